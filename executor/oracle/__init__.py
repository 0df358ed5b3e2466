"""What a run must equal: training in one process, with gradient accumulation or with weight versions in a table.

For whoever tests a plan, a transport or a model of their own; no command needs it. Of the executor it imports stage
programs, optimizers and how a run prepares its model, and neither the interpreter nor any wire, so that both cannot be
wrong in the same way. Begin with `reference.py` (with a flush); `emulation.py` is without.
"""

from .emulation import Emulation, Emulator, Timing, emulate, updates_ahead
from .reference import ReferenceRun, train_reference

__all__ = [
    "Emulation",
    "Emulator",
    "ReferenceRun",
    "Timing",
    "emulate",
    "train_reference",
    "updates_ahead",
]
