"""The commands that need no torch."""
