"""What every room needs: errors and options. Knows no torch."""

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
