"""What every room needs: errors of one line, and how a run trains and saves. Knows no torch.

Imports nothing of the executor, so that a command can refuse its options before torch is loaded. Begin with
`options.py`: its record travels from the command line to every rank. What a field says of itself is in
`option_fields.py`.
"""

from .checkpointing import Checkpointing
from .errors import Aborted, ExecutionError, RunError, SilentExit, failed_op, foreign, one_line, ours, rank_name
from .option_fields import About, Form, SameIn, about, keywords_of, option, same_in, words
from .options import DEVICES, DTYPES, ENGINES, TIMEOUT_S, TRANSPORTS, Engine, OnStep, RunOptions
from .shared_file import SharedFile
from .training import DEFAULT_RATES, DYNAMIC, INITIAL_SCALE, ON_REQUEST, SCHEDULES, SKIP, STOP, LossScaler, Training

__all__ = [
    "Aborted",
    "About",
    "Checkpointing",
    "DEFAULT_RATES",
    "DEVICES",
    "DTYPES",
    "DYNAMIC",
    "ENGINES",
    "Engine",
    "ExecutionError",
    "Form",
    "INITIAL_SCALE",
    "LossScaler",
    "ON_REQUEST",
    "OnStep",
    "RunError",
    "RunOptions",
    "SCHEDULES",
    "SKIP",
    "STOP",
    "SameIn",
    "SharedFile",
    "SilentExit",
    "TIMEOUT_S",
    "TRANSPORTS",
    "Training",
    "about",
    "failed_op",
    "foreign",
    "keywords_of",
    "one_line",
    "option",
    "ours",
    "rank_name",
    "same_in",
    "words",
]
