"""Earliest times of a candidate's ops, and what must follow them: the only precedences the bounds use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..graph import Candidate, gather_seconds, holders, reduce_seconds, step_seconds, sum_seconds
from ..partition import Floats
from ..plan import Pipeline

MessageSeconds = Callable[[int, int, int], float]


@dataclass(frozen=True)
class Route:
    """Times of one pipeline of a candidate with unsplit backwards, seconds per stage.

    head_s: from the start of the step to the first F of a stage at the earliest. tail_s: from the last B of
    a stage to the end of the step at the least, its own optimizer step included. load_s: F and B of one
    micro-batch.
    """

    head_s: Floats
    tail_s: Floats
    load_s: Floats


def route(candidate: Candidate, pipeline: Pipeline) -> Route:
    """Heads and tails along the messages between stages: durations, link occupations and latencies add up."""
    times = Times.of(candidate, pipeline, False, message_cache(candidate), finishes(candidate))
    total = np.array(times.forward) + np.array(times.inputs) + np.array(times.weights)
    return Route(np.array(times.first_f), np.array(times.rest), total)


def message_seconds(candidate: Candidate, source: int, target: int, size: int) -> float:
    """Seconds from the start of a message to its arrival; 0 on one device."""
    if source == target:
        return 0.0
    link = candidate.problem.cluster.link(source, target)
    return link.occupation_s(size) + link.latency_s


def message_cache(candidate: Candidate) -> MessageSeconds:
    """`message_seconds` of a candidate that remembers its answers."""
    return cache(lambda source, target, size: message_seconds(candidate, source, target, size))


def finish_seconds(candidate: Candidate, stage: int, device: int) -> float:
    """Seconds after a stage's last B on a device at the least: sums of its gradients, its step, and gathering."""
    owners = holders(candidate)
    return _sums(candidate, stage, owners) + step_seconds(candidate, candidate.costs, stage, device, owners)


def _sums(candidate: Candidate, stage: int, owners: Mapping[int, tuple[int, ...]]) -> float:
    """Of them the sums and gathering, which take all devices of a stage the same."""
    costs, problem, own = candidate.costs, candidate.problem, int(candidate.costs.own_trained_bytes[stage])
    longest = sum(sum_seconds(problem, owners[stage], own))
    for tie in costs.ties:
        if stage in tie.stages:
            count = problem.workload.gradient_bytes(tie.trained_bytes)
            longest = max(longest, sum(reduce_seconds(problem.cluster, tuple(tie.copies(owners)), count)))
    return longest + sum(gather_seconds(problem, owners[stage], own))


def finishes(candidate: Candidate) -> Callable[[int, int], float]:
    """`finish_seconds` of a candidate that remembers its answers."""
    owners, costs = holders(candidate), candidate.costs
    sums = cache(lambda stage: _sums(candidate, stage, owners))
    return cache(lambda stage, device: sums(stage) + step_seconds(candidate, costs, stage, device, owners))


@dataclass(frozen=True)
class Times:
    """Seconds per stage of one pipeline, from precedences alone.

    A stage's backward is I, then W; one that cannot be split is an I of the whole length and a W of 0. A B in a
    plan with split backwards counts as I and W one after the other: its gradient leaves no earlier.

    first_f, first_i: from the start of the step to the first F and I at the earliest. trip: from the end of an
    F to the start of its I at the least. rest: from the end of an I to the end of the step at the least, on the
    path back through the other stages or through its own W, reduction and optimizer step.
    """

    forward: list[float]
    inputs: list[float]
    weights: list[float]
    first_f: list[float]
    first_i: list[float]
    trip: list[float]
    rest: list[float]

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        pipeline: Pipeline,
        split: bool,
        seconds: MessageSeconds,
        finish: Callable[[int, int], float],
    ) -> Times:
        costs, devices = candidate.costs, candidate.problem.cluster.devices
        ahead = np.array([devices[d].kind.speed for d in pipeline.forward])
        back = np.array([devices[d].kind.speed for d in pipeline.backward])
        halves = np.array(costs.separable, dtype=bool) & split
        f = (costs.forward_s / ahead).tolist()
        i = (np.where(halves, costs.backward_input_s, costs.backward_s) / back).tolist()
        w = (np.where(halves, costs.least_weight_s, 0.0) / back).tolist()
        edges = []
        for a, b, size in sorted(costs.edges, key=lambda edge: (edge.consumer, edge.producer)):
            there = seconds(pipeline.forward[a], pipeline.forward[b], size)
            edges.append((a, b, there, seconds(pipeline.backward[b], pipeline.backward[a], size)))
        first_f, trip = [0.0] * len(f), [0.0] * len(f)
        rest = [w[s] + finish(s, d) for s, d in enumerate(pipeline.backward)]
        for a, b, there, home in edges:
            first_f[b] = max(first_f[b], first_f[a] + f[a] + there)
            rest[b] = max(rest[b], home + i[a] + rest[a])
        edges.sort(key=lambda edge: -edge[0])
        for a, b, there, home in edges:
            trip[a] = max(trip[a], there + f[b] + trip[b] + i[b] + home)
        first_i = [first_f[s] + f[s] + trip[s] for s in range(len(f))]
        for a, b, _, home in edges:
            first_i[a] = max(first_i[a], first_i[b] + i[b] + home)
        return cls(f, i, w, first_f, first_i, trip, rest)


@dataclass(frozen=True)
class Lag:
    """Seconds at the least between ops of one micro-batch on one device, by pair of its stages (earlier, later).

    there: from the end of one stage's F to the start of the other's; back: from the end of one stage's I to the
    start of the other's, keyed (later, earlier).
    """

    there: dict[tuple[int, int], float]
    back: dict[tuple[int, int], float]


def lags(candidate: Candidate, pipeline: Pipeline, times: Times, device: int) -> Lag:
    """Longest paths between the stages of a pipeline on a device, whose F and I run there."""
    own = [s for s, d in enumerate(pipeline.forward) if d == device]
    edges = sorted(candidate.costs.edges, key=lambda edge: (edge.consumer, edge.producer))
    there: dict[tuple[int, int], float] = {}
    back: dict[tuple[int, int], float] = {}
    for first in own:
        ahead, home = {first: 0.0}, {first: 0.0}
        for a, b, size in edges:
            if a not in ahead:
                continue
            go = message_seconds(candidate, pipeline.forward[a], pipeline.forward[b], size)
            come = message_seconds(candidate, pipeline.backward[b], pipeline.backward[a], size)
            within = a != first
            ahead[b] = max(ahead.get(b, 0.0), ahead[a] + within * times.forward[a] + go)
            home[b] = max(home.get(b, 0.0), home[a] + within * times.inputs[a] + come)
        there |= {(first, s): ahead[s] for s in own if s != first and s in ahead}
        back |= {(s, first): home[s] for s in own if s != first and s in home}
    return Lag(there, back)
