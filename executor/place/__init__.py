"""Where a rank computes."""

from .lanes import Lanes
from .place import CPU, Mark, Place, Side, Times, place_of, require_device
from .records import OpRecord

__all__ = [
    "CPU",
    "Lanes",
    "Mark",
    "OpRecord",
    "Place",
    "Side",
    "Times",
    "place_of",
    "require_device",
]
