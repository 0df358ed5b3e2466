"""The commands that need torch."""
