"""Bounds without a flush: seconds a micro-batch in the steady state of every plan of a space."""

from __future__ import annotations

import numpy as np

from ..partition import Chain, Floats
from ..plan import Problem
from ..problem import WEIGHT_POLICIES, SearchSpace
from .packing import fullest
from .space import long_run
from .whole import load

TOLERANCE = 1e-9
"""Share by which sums may be off."""


def period(problem: Problem, space: SearchSpace) -> float:
    """Valid for every plan of the space whose steady state fits, whatever its stages, devices and order.

    Per micro-batch all devices together work off every layer, and what a STEP of it takes, shared out over the
    micro-batches of an update. On one route a layer's F has one device, and so have its B and its STEP.
    """
    chain, devices = Chain.of(problem), problem.cluster.devices
    speeds = np.array([device.kind.speed for device in devices])
    steps = np.array([np.diff(chain.step_s(d)) * speed for d, speed in enumerate(speeds)]).min(axis=0)
    updates = _updates(problem, space)
    forward, back = chain.costs.forward_s, chain.costs.backward_s + steps / max(updates)
    found = max(
        load(problem) / problem.workload.micro_batches, float((forward + back).sum()) / problem.cluster.whole_speed
    )
    found = max(found, long_run(problem, space), _between_steps(chain.costs.backward_s, steps, speeds, updates))
    found = max(found, _fresh(chain, steps, float(speeds.max()), max(updates)))
    if space.pipelines != 1:
        return found
    items = np.concatenate([forward, back]) if space.separate_backward else forward + back
    return max(found, fullest(items, speeds))


def _between_steps(backward: Floats, steps: Floats, speeds: Floats, updates: list[int]) -> float:
    """All backwards of a layer and an update lie between two of its STEPs, whatever replicas run them.

    A STEP waits for the gradients of all replicas, and the next update's backwards wait for the STEP: so many
    backwards on as many devices as there are, and a STEP, fit an update's periods.
    """
    least = np.inf
    for update in updates:
        times = np.sort(np.concatenate([np.arange(1, update + 1) / speed for speed in speeds]))
        each = (times[update - 1] * backward + steps / speeds.max()) / update
        least = min(least, float(each.max(initial=0.0)))
    return least * (1 - TOLERANCE)


def _fresh(chain: Chain, steps: Floats, fastest: float, update: int) -> float:
    """With weights at most so many updates old, a forward of the first layer waits for the STEP so many updates ago.

    From the end of that STEP to that of its own update lie the whole way forward and back, and a STEP.
    """
    limit = chain.problem.workload.staleness_limit
    if limit is None or not chain.problem.model.straight:
        return 0.0
    way = float((chain.costs.forward_s + chain.costs.backward_s).sum() + steps[0]) / fastest
    return way / ((limit + 1) * update) * (1 - TOLERANCE)


def two_sides(problem: Problem, space: SearchSpace) -> float:
    """The same of plans with one pipeline whose devices run forwards or backwards, of consecutive layers, not both.

    The least greatest load over all cuts of both chains and all splits of the devices, each as fast as the fastest.
    """
    chain, devices = Chain.of(problem), problem.cluster.devices
    fastest = max(device.kind.speed for device in devices)
    steps = np.array([np.diff(chain.step_s(d)) for d in range(len(devices))]).min(axis=0)
    forward = chain.costs.forward_s / fastest
    back = chain.costs.backward_s / fastest + steps / max(_updates(problem, space))
    sides = [_least_loads(items, len(devices)) for items in (forward, back)]
    if len(devices) < 2:
        return np.inf
    return max(period(problem, space), min(map(max, zip(sides[0][:-1], sides[1][-2::-1], strict=True))))


def _least_loads(items: Floats, most: int) -> list[float]:
    """The least greatest load of consecutive items on 1, 2, .. `most` devices."""
    before = np.concatenate([[0.0], np.cumsum(items)])
    table = np.where(np.tri(len(before), dtype=bool), np.inf, before[None, :] - before[:, None])
    found, best = [], np.where(np.arange(len(before)) == 0, 0.0, np.inf)
    for _ in range(most):
        best = np.minimum(best, np.maximum(best[:, None], table).min(axis=0))
        found.append(float(best[-1]))
    return found


def _updates(problem: Problem, space: SearchSpace) -> list[int]:
    """Micro-batches an update that plans of the space may have."""
    if problem.workload.update_every is not None:
        return [problem.workload.update_every]
    counts = range(1, len(problem.model.layers) + 1)
    return sorted({WEIGHT_POLICIES[name].least_update(n) for name in space.asynchronous for n in counts}) or [1]
