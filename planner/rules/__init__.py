"""The checker's rules over op lists. They know no simulator and no solver."""

from .columns import Homes, Listed, Violation
from .order import Order, deadlock, local_order, message_order
from .sets import listed_ops, structure
from .sound import sound_columns
from .updates import update_rules

__all__ = [
    "Homes",
    "Listed",
    "Order",
    "Violation",
    "deadlock",
    "listed_ops",
    "local_order",
    "message_order",
    "sound_columns",
    "structure",
    "update_rules",
]
