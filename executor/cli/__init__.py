"""The commands that need torch: `profile`, `execute` and `env`, and their options as records.

Torch is imported when a command runs. Imports every room of the executor by its face, and from `planner.cli` what all
commands share. Begin with `execute.py`.
"""

from .profile import Asked, measure

__all__ = [
    "Asked",
    "measure",
]
