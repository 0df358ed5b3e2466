"""Bounds without a flush: seconds a micro-batch in the steady state of every plan of a space."""

from __future__ import annotations

import numpy as np

from ..partition import Chain, Floats
from ..plan import Problem
from ..problem import WEIGHT_POLICIES, SearchSpace
from .whole import load


def period(problem: Problem, space: SearchSpace) -> float:
    """Valid for the steady state of every plan of the space, whatever its stages, devices, order and memory.

    Per micro-batch all devices together work off every layer, and what a STEP of it takes, shared out over the
    micro-batches of an update. On one route a layer's F has one device, and so have its B and its STEP.
    """
    chain, devices = Chain.of(problem), problem.cluster.devices
    speeds = np.array([device.kind.speed for device in devices])
    steps = np.array([np.diff(chain.step_s(d)) * speed for d, speed in enumerate(speeds)]).min(axis=0)
    forward, back = chain.costs.forward_s, chain.costs.backward_s + steps / _longest_update(problem, space)
    found = max(load(problem) / problem.workload.micro_batches, float((forward + back).sum() / speeds.sum()))
    if space.pipelines != 1:
        return found
    items = np.concatenate([forward, back]) if space.separate_backward else forward + back
    return max(found, _packed(items, speeds))


def _longest_update(problem: Problem, space: SearchSpace) -> int:
    """Micro-batches an update in plans of the space, at the most."""
    if problem.workload.update_every is not None:
        return problem.workload.update_every
    counts = range(1, len(problem.model.layers) + 1)
    return max((WEIGHT_POLICIES[name].least_update(n) for name in space.asynchronous for n in counts), default=1)


def _packed(items: Floats, speeds: Floats) -> float:
    """No assignment of whole items to devices of these speeds has a lower greatest load: of k * D + 1 items, the
    largest, some device gets k + 1."""
    sizes, fastest = np.sort(items)[::-1], float(speeds.max())
    found = 0.0
    for k in range((len(sizes) - 1) // len(speeds) + 1):
        at = k * len(speeds)
        found = max(found, float(sizes[at - k : at + 1].sum()) / fastest)
    return found
