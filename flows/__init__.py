"""Orchestration: Prefect flows that wire the stages together, and the command line."""
