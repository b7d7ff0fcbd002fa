"""The placement map as a replicated state machine: rows, commands and rules."""
