"""Named schedules whose orders depend on what ops take, made for a candidate."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ...basics import PlanError
from ...graph import Candidate, static_bytes
from ...lower import Assembled, assembled
from ...schedules import Layout, Timing, by_costs
from ..common import COUNT, SIZE, Groups, alike, limits, missing
from .halves import whole_backwards
from .on_groups import on_groups


def adapts(layout: Layout) -> bool:
    """Whether a layout's orders depend on costs, and are worth making for them."""
    batches = sum(len(pipeline.micro_batches) for pipeline in layout.pipelines)
    return layout.most is not None and 2 * batches * layout.stages <= SIZE.by_costs_ops


def made_for(
    candidate: Candidate, layout: Layout, whole: frozenset[int], groups: Groups, blocks: bool, worth_s: float
) -> Assembled | None:
    """The layout with its orders made for the candidate, whose backwards of the stages `whole` are not split.

    `groups`: equal ones, of whose first the layout is, and which all run it. What messages and workspace take is known
    afterwards only; where it does not fit, the orders are made for less. `blocks`: other building blocks, too. None
    where the orders cannot be shorter than `worth_s` seconds, or none fits.
    """
    timing = timing_of(candidate, whole, groups)
    for _ in range(COUNT.fitted):
        made = by_costs(layout, timing, blocks, worth_s)
        if made is None or made[1] >= worth_s:
            return None
        placed = on_groups(candidate.problem, groups, made[0]) if groups else made[0]
        try:
            found = assembled(candidate, [whole_backwards(order, whole) for order in placed.orders], placed.name)
        except PlanError:
            return None
        over = missing(found)
        if not any(over):
            return found
        lacks = [max(over[d] for d in devices) for devices in alike(candidate.problem, groups)]
        timing = replace(timing, room_bytes=[a - b for a, b in zip(timing.room_bytes, lacks, strict=True)])
    return None


def rooms_of(candidate: Candidate, groups: Groups = ()) -> list[float]:
    """Bytes that devices have for what ops hold; of equal groups, those of one, the least of devices that run alike."""
    static = [sum(parts.values()) for parts in static_bytes(candidate, candidate.costs)]
    room = [limit - held for limit, held in zip(limits(candidate.problem), static, strict=True)]
    return [min(room[d] for d in devices) for devices in alike(candidate.problem, groups)]


def timing_of(candidate: Candidate, whole: Collection[int], groups: Groups = ()) -> Timing:
    """What the ops of a candidate's first pipeline take; backwards of the stages `whole` are not split."""
    costs, cluster, route = candidate.costs, candidate.problem.cluster, candidate.pipelines[0].forward
    speeds = [cluster.devices[device].kind.speed for device in route]
    split = [s not in whole for s in range(len(route))]
    weight = [w if can else 0.0 for w, can in zip(costs.backward_weight_s.tolist(), split, strict=True)]
    more = [costs.overhead.op_s if can else 0.0 for can in split]  # two ops instead of one
    rest = [b - w + o for b, w, o in zip(costs.backward_s.tolist(), weight, more, strict=True)]
    return Timing(
        forward_s=_scaled(costs.forward_s.tolist(), speeds),
        input_s=_scaled(rest, speeds),
        weight_s=_scaled(weight, speeds),
        arrival_s=_arrivals(candidate),
        stash_bytes=costs.stash_bytes.tolist(),
        pending_bytes=[size if can else 0 for size, can in zip(costs.weight_stash_bytes.tolist(), split, strict=True)],
        room_bytes=rooms_of(candidate, groups),
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
