"""One rank's op list, interpreted: nothing is decided here, the list says what happens and in which order.

What is alive within a step, what is posted beside compute, what every op waits for, memory that was promised. Imports
state, stage, wires and place. Begin with `interpreter.py`, the loop, then `training_work.py`, which puts one handler a
kind of op together from `pass_ops`, `message_ops`, `stash_ops` and `parameter_ops`; `worker.py` is what they share.
"""

from .course import KEPT_OPS, Course, Run, lengthened, run_at, runs
from .enforcement import Limit, cap_device
from .evaluation import Evaluator, evaluation_seed
from .host_ledger import open_ledger
from .interpreter import Interpreter
from .observe import Observer
from .samples import compare_samples
from .step_state import StepRecord
from .training_work import TrainingWork
from .update import GROUP
from .worker import Surroundings, Worker

__all__ = [
    "Course",
    "Evaluator",
    "GROUP",
    "Interpreter",
    "KEPT_OPS",
    "Limit",
    "Observer",
    "Run",
    "StepRecord",
    "Surroundings",
    "TrainingWork",
    "Worker",
    "cap_device",
    "compare_samples",
    "evaluation_seed",
    "lengthened",
    "open_ledger",
    "run_at",
    "runs",
]
