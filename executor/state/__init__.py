"""What a rank holds of a stage, and that all holders hold the same."""
