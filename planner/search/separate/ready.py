"""Whether the compiled dispatcher can be used in the time that is left: its first compilation takes seconds."""

from __future__ import annotations

import numpy as np

from ...basics import on_disk
from ...plan import Problem
from ...problem import Cluster, Layer, ModelGraph, Workload
from ..common import SECONDS
from . import anneal, dispatch
from .arm import Allowed, Arm
from .case import case_of
from .tables import CAP, KEEP, ROWS, WINDOW


def ready(seconds: float, call_s: float) -> bool:
    """Whether the compiled functions are in memory or on disk, or there is time to compile them.

    That is, in the `seconds` for this search; or in the `call_s` that are left of the whole call, which then gives at
    most half of them to it.
    """
    if seconds > SECONDS.compilation or call_s > 2 * SECONDS.compilation:
        return True
    return compiled()


def compiled() -> bool:
    """Whether the compiled functions are in memory or on disk."""
    return all(map(on_disk, (anneal.anneal, anneal.value_of, dispatch.dispatch)))


def warm() -> None:
    """Compiles them, or loads them from disk; seconds the first time. Planning does it when it needs them."""
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, stash_bytes=2, weight_stash_bytes=2) for k in range(2)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20), Workload(2))
    stages, dec = (("layer0",), ("layer1",)), np.zeros((ROWS, 2), dtype=np.int64)
    dec[CAP] = dec[WINDOW] = 2
    arm = Arm(problem, stages, case_of(problem, stages), dec, np.zeros((3, 2, 2)), 0)
    arm.evaluate()
    arm.improve(Allowed((KEEP,), False), 1, 0.0, np.zeros(1, dtype=np.int64))
    arm.plan()
