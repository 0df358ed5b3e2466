"""Whether the kernels can be used in the time that is left: their first compilation takes seconds."""

from __future__ import annotations

import numpy as np

from ...basics import on_disk
from ...graph import Candidate
from ...plan import Pipeline, Problem
from ...problem import Cluster, Layer, ModelGraph, Workload
from ..common import SECONDS
from . import anneal, greedy, kernels
from .arm import Arm


def ready(seconds: float, call_s: float) -> bool:
    """Whether the compiled kernels are in memory or on disk, or there is time to compile them.

    That is, in the `seconds` for the order search; or in the `call_s` that are left of the whole call, which then gives
    at most half of them to it.
    """
    if seconds > SECONDS.compilation or call_s > 2 * SECONDS.compilation:
        return True
    return compiled()


def compiled() -> bool:
    """Whether the kernels are in memory or on disk."""
    return all(map(on_disk, (anneal.anneal, greedy.hunt, kernels.run)))


def warm() -> None:
    """Compiles the kernels, or loads them from disk; seconds the first time. Planning does it when it needs them."""
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, 1.0, stash_bytes=2, weight_stash_bytes=1) for k in range(2)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20), Workload(2))
    candidate = Candidate(problem, (("layer0",), ("layer1",)), (Pipeline((0, 1), (0, 1), (0, 1)),))
    arm, stop = Arm(candidate, True, False, 0), np.zeros(1, dtype=np.int64)
    arm.start(1, 0.0, stop)
    arm.improve(1, 0.0, stop)
