"""Contraflow: search for pipeline-parallel training plans, prove how good they are, run them with torch."""

__version__ = "0.1.0"
