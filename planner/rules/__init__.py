"""The checker's rules over op lists: parts, ops, order, updates. All violations, each named.

They state again, in other words, what lowering and search must get right, so they import columns of the operation
graph but neither simulator nor solver. Begin with `sets.py`; `sound.py` is the fast yes or no that the simulator asks
first.
"""

from .columns import Listed, Violation
from .order import Order, deadlock, local_order, message_order
from .sets import listed_ops, structure
from .sound import sound_columns
from .updates import update_rules

__all__ = [
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
