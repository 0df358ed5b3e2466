"""What STEP and PREDICT need beside what they work on."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from ..problem import UNFUSED, Layer
from .structured import Structured

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def step_workspace(plan: Structured) -> NDArray[np.int64]:
    """Bytes that a STEP of every stage takes while it runs: room for two gradients in a row, where it needs any.

    The unfused step lets go of a tensor only when it has made the next one. A layer whose shapes are not known counts
    as one tensor.
    """
    import numpy as np

    model, workload = plan.problem.model, plan.problem.workload
    found = np.zeros(len(plan.stages), dtype=np.int64)
    if workload.optimizer in UNFUSED:
        for stage, names in enumerate(plan.stages):
            sizes = [size for name in names for size in _tensor_bytes(model.layers[model.index[name]])]
            found[stage] = workload.gradient_bytes(max(map(sum, pairwise([0, *sizes])), default=0))
    return found


PREDICTED_AT_ONCE = 1 << 16
"""Elements of a master that a PREDICT computes at once, before they are rounded to 16 bit."""


def predict_workspace(plan: Structured) -> NDArray[np.int64]:
    """Bytes that a PREDICT of every stage takes beside what it makes: two pieces of masters in mixed precision.

    It lets go of one only when it has made the next.
    """
    import numpy as np

    model, workload = plan.problem.model, plan.problem.workload
    found = np.zeros(len(plan.stages), dtype=np.int64)
    if workload.precision == "mixed":
        for stage, names in enumerate(plan.stages):
            sizes = [size for name in names for size in _tensor_bytes(model.layers[model.index[name]])]
            pieces = [min(workload.gradient_bytes(size), 4 * PREDICTED_AT_ONCE) for size in sizes]
            found[stage] = max(map(sum, pairwise([0, *pieces])), default=0)
    return found


def _tensor_bytes(layer: Layer) -> list[int]:
    """Of its parameters, in order; none where all are frozen."""
    if not layer.trained_bytes:
        return []
    sizes = [prod(shape) for shape in layer.parameter_shapes or ()]
    if any(sizes):
        return [-(-layer.parameter_bytes * size // sum(sizes)) for size in sizes]
    return [layer.parameter_bytes] if layer.parameter_bytes else []
