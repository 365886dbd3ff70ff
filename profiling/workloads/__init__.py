"""Built-in training steps."""
