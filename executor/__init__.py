"""Runs plans with torch: what a stage computes, where, over which wires, in which order, and what came of it.

Imports the planner's data (plans, problems, traces) and the models, never the search. Rooms stand on one another:
`basics`; `place` (a device and its memory) and `watch` (who is alive); `stage` (programs) and `wires` (messages);
`state` (what a rank holds between steps); `step` (the interpreter); `run` (ranks, checkpoints); `measure` and
`oracle`; `cli`. Begin with `step/interpreter.py`, which runs a list, and `run/launch.py`, which starts the ranks that
do. `Trainer`, for training loops of one's own, is loaded with torch when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import JsonLines, StepMetrics, TensorBoard, Trainer, torch_schedule

__all__ = ["JsonLines", "StepMetrics", "TensorBoard", "Trainer", "torch_schedule"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import run

    return getattr(run, name)
