"""Who is alive: what ranks say they do, what the system says of their processes, and who hangs. Knows no torch.

A spawned rank begins here (`spawned`), watched and bound to its parent before anything large is imported. Imports the
basics only. Begin with `board.py`, what ranks write, and `watcher.py`, which reads it.
"""

from .board import MATES, NOWHERE, Board, Doing, Slot
from .proc import ProcessState, die_with_parent, process_state
from .pulse import Stillness
from .siblings import Siblings, under_torchrun
from .spawned import Shared, spawned_rank
from .watcher import Hang, Watcher, lost_another

__all__ = [
    "Board",
    "Doing",
    "Hang",
    "MATES",
    "NOWHERE",
    "ProcessState",
    "Shared",
    "Siblings",
    "Slot",
    "Stillness",
    "Watcher",
    "die_with_parent",
    "lost_another",
    "process_state",
    "spawned_rank",
    "under_torchrun",
]
