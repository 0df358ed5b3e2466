"""Problems of which few candidates can be tried: scaled down to few micro-batches, and what was found repeated.

Imports the named schedules, the order search and lowering's repetition. Begin with `scaled_down.py`.
"""

from .scaled_down import fewer_batches, limit_uses, take_over

__all__ = [
    "limit_uses",
    "fewer_batches",
    "take_over",
]
