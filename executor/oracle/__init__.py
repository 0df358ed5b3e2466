"""What a run must equal."""
