"""Stage programs: F, B, I and W of a stage from an explicit stash."""
