"""The commands that need torch."""

from .profile import measure

__all__ = [
    "measure",
]
