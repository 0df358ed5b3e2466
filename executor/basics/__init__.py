"""What every room needs: errors, options, addresses."""

from .checkpointing import Checkpointing
from .errors import Aborted, ExecutionError, RunError, SilentExit, failed_op, foreign, one_line, ours
from .memory import StorageTracker, unique_bytes
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
    "StorageTracker",
    "Training",
    "failed_op",
    "foreign",
    "one_line",
    "ours",
    "unique_bytes",
]
