"""Where a rank computes, and how many bytes it holds there."""

from .choice import place_of, require_device
from .lanes import Lanes
from .memory import StorageTracker, unique_bytes
from .place import CPU, Mark, Place, Side, Times
from .records import OpRecord

__all__ = [
    "CPU",
    "Lanes",
    "Mark",
    "OpRecord",
    "Place",
    "Side",
    "StorageTracker",
    "Times",
    "place_of",
    "require_device",
    "unique_bytes",
]
