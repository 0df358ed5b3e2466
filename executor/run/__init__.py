"""One run from its options to its trace: ranks started here or by somebody else, checkpoints, and how it ends.

Imports every room but measure, oracle and cli. Begin with `launch.py` (which of threads, processes or torchrun) and
`rank.py` (one rank's whole run, whatever carries its messages).
"""

from .allocator import keep_freed_memory
from .exporting import export_weights
from .launch import RUNNERS, execute, prepare, run_plan
from .metrics import JsonLines, StepMetrics, TensorBoard
from .rank import blueprint_of, run_rank
from .result import RunResult
from .stopping import Interrupted, Terminated
from .torch_actions import torch_schedule
from .trainer import Trainer

__all__ = [
    "Interrupted",
    "JsonLines",
    "RUNNERS",
    "RunResult",
    "StepMetrics",
    "TensorBoard",
    "Terminated",
    "Trainer",
    "blueprint_of",
    "execute",
    "export_weights",
    "keep_freed_memory",
    "prepare",
    "run_plan",
    "run_rank",
    "torch_schedule",
]
