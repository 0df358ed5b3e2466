"""What a candidate's ops take, for named schedules whose orders depend on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...graph import Candidate, static_bytes
from ...schedules import Timing
from ..common import limits


def timing_of(candidate: Candidate, whole: Collection[int]) -> Timing:
    """What the ops of a candidate with one pipeline take; backwards of the stages `whole` are not split."""
    costs, cluster, route = candidate.costs, candidate.problem.cluster, candidate.pipelines[0].forward
    speeds = [cluster.devices[device].kind.speed for device in route]
    split = [s not in whole for s in range(len(route))]
    weight = [w if can else 0.0 for w, can in zip(costs.backward_weight_s.tolist(), split, strict=True)]
    rest = [b - w for b, w in zip(costs.backward_s.tolist(), weight, strict=True)]
    static = [sum(parts.values()) for parts in static_bytes(candidate, costs)]
    return Timing(
        forward_s=_scaled(costs.forward_s.tolist(), speeds),
        input_s=_scaled(rest, speeds),
        weight_s=_scaled(weight, speeds),
        arrival_s=_arrivals(candidate),
        stash_bytes=costs.stash_bytes.tolist(),
        pending_bytes=[size if can else 0 for size, can in zip(costs.weight_stash_bytes.tolist(), split, strict=True)],
        room_bytes=[limit - held for limit, held in zip(limits(candidate.problem), static, strict=True)],
    )


def _scaled(seconds: Sequence[float], speeds: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(seconds, speeds, strict=True)]


def _arrivals(candidate: Candidate) -> list[float]:
    """Seconds of the messages between every stage and the next, one after the other; tensors for later stages too."""
    cluster, route = candidate.problem.cluster, candidate.pipelines[0].forward
    sent = [0] * len(route)
    for edge in candidate.costs.edges:
        sent[edge.producer] += edge.bytes
    links = [None if a == b else cluster.link(a, b) for a, b in zip(route, route[1:], strict=False)]
    return [
        0.0 if link is None else link.occupation_s(size) + link.latency_s
        for link, size in zip(links, sent, strict=False)
    ]
