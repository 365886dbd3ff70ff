"""Rules that place without learning."""
