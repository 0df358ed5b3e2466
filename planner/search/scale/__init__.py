"""Problems of which few candidates can be tried."""

from .scaled_down import limit_uses, smaller, take_over

__all__ = [
    "limit_uses",
    "smaller",
    "take_over",
]
