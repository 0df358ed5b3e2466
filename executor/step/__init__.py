"""One rank's op list, interpreted."""

from .course import KEPT_OPS, Course, Run, lengthened, run_at, runs
from .enforcement import Limit, cap_device
from .evaluation import Evaluator, evaluation_seed
from .host_ledger import open_ledger
from .interpreter import Interpreter
from .observe import Observer
from .samples import compare_samples
from .step_state import StepRecord
from .update import GROUP
from .watch import LONG, NOWHERE, TIMEOUT_S, Board, Doing, Hang, Slot, Watcher, lost_another

__all__ = [
    "Board",
    "Course",
    "Doing",
    "Evaluator",
    "GROUP",
    "Hang",
    "Interpreter",
    "KEPT_OPS",
    "LONG",
    "Limit",
    "NOWHERE",
    "Observer",
    "Run",
    "Slot",
    "StepRecord",
    "TIMEOUT_S",
    "Watcher",
    "cap_device",
    "compare_samples",
    "evaluation_seed",
    "lengthened",
    "lost_another",
    "open_ledger",
    "run_at",
    "runs",
]
