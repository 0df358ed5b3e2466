"""Costs of layers and machines, measured or estimated."""
