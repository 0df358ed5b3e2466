"""What every room needs: errors of one line, and how a run trains and saves. Knows no torch.

Imports nothing of the executor, so that a command can refuse its options before torch is loaded. Begin with
`training.py`: its record travels from the command line to every rank.
"""

from .checkpointing import Checkpointing
from .errors import Aborted, ExecutionError, RunError, SilentExit, failed_op, foreign, one_line, ours
from .shared_file import SharedFile
from .training import DEFAULT_RATES, DYNAMIC, INITIAL_SCALE, SCHEDULES, SKIP, STOP, LossScaler, Training

__all__ = [
    "Aborted",
    "Checkpointing",
    "DEFAULT_RATES",
    "DYNAMIC",
    "ExecutionError",
    "INITIAL_SCALE",
    "LossScaler",
    "RunError",
    "SCHEDULES",
    "SKIP",
    "STOP",
    "SharedFile",
    "SilentExit",
    "Training",
    "failed_op",
    "foreign",
    "one_line",
    "ours",
]
