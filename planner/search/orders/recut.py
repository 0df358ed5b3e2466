"""Where to cut, for a given order: layers move between neighbouring stages while that makes the order shorter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Candidate
from ..common import ANNEALING, TOLERANCE
from .arm import Arm, bound
from .kernels import NEVER

Stages = tuple[tuple[str, ...], ...]


def recut(arm: Arm) -> Arm:
    """The arm with the cut that moves of single layers lead to; the arm itself where none is an improvement."""
    if arm.order is None:
        return arm
    improved = True
    while improved:
        improved = False
        for stages in _moves(arm.candidate):
            other = _with(arm, stages)
            if other.seconds < arm.seconds * (1 - TOLERANCE.same):
                arm, improved = other, True
                break
    return arm


def _with(arm: Arm, stages: Stages) -> Arm:
    """The arm's order on another cut, with its makespan there."""
    candidate = replace(arm.candidate, stages=stages)
    other = replace(arm, candidate=candidate, order=None, seconds=NEVER, bound_s=bound(candidate, arm.split))
    assert arm.order is not None
    if other.bound_s < arm.seconds:
        other.accept(arm.order)
    return other


def _moves(candidate: Candidate) -> Iterator[Stages]:
    """Cuts in which one layer has moved to a neighbouring stage on another device, without overloading that device."""
    stages = candidate.stages
    most = max(_loads(candidate).values())
    for s in range(1, len(stages)):
        if all(p.forward[s] == p.forward[s - 1] for p in candidate.pipelines):
            continue
        before, after = stages[s - 1], stages[s]
        for left, right in ((before[:-1], (before[-1], *after)), ((*before, after[0]), after[1:])):
            if left and right:
                moved = (*stages[: s - 1], left, right, *stages[s + 1 :])
                if max(_loads(replace(candidate, stages=moved)).values()) <= ANNEALING.overload * most:
                    yield moved


def _loads(candidate: Candidate) -> dict[int, float]:
    """Seconds of forwards and backwards of every device."""
    costs, devices = candidate.costs, candidate.problem.cluster.devices
    work = (costs.forward_s + costs.backward_s).tolist()
    found: dict[int, float] = {}
    for pipeline in candidate.pipelines:
        for s, device in enumerate(pipeline.forward):
            found[device] = found.get(device, 0.0) + len(pipeline.micro_batches) * work[s] / devices[device].kind.speed
    return found
