"""Runs: ranks, their launch, watching, checkpoints."""
