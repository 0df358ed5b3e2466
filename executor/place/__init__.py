"""Where a rank computes, and how many bytes it holds there: the CPU, or one CUDA device with its queues.

Imports the basics only. Begin with `place.py`, the interface that the interpreter calls; `cuda.py` is the other
implementation (docs/cuda.md).
"""

from .choice import place_of, require_device
from .core_count import at_once, cores
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
    "at_once",
    "cores",
    "place_of",
    "require_device",
    "unique_bytes",
]
