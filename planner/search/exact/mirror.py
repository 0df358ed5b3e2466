"""Folding an instance of two mirrored directions into one of half the devices, and unfolding its solution.

A schedule in which the up direction does on each device's twin what the down direction does on the device is decided
by the down direction alone: both directions' stages then run on one device of each pair. Half the ops, and no choice
of direction: found much faster than in the full model, though a best schedule need not be of this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .instance import Edge, Hops, Instance, Stage
from .variables import Solution


def fold(instance: Instance) -> Instance | None:
    """One direction with half the micro-batches on the devices that come first of each pair; None where it cannot be.

    It needs two mirrored directions of equally many micro-batches, devices in pairs with equal capacity, and host
    links that pairs do not share.
    """
    if instance.directions != 2 or not instance.alike or instance.micro_batches % 2:
        return None
    twin = dict(zip(instance.route(0), instance.route(1), strict=True))
    if any(a == b or instance.capacity[a] != instance.capacity[b] for a, b in twin.items()):
        return None
    if any(room is not None for room in instance.host_room) or len({instance.host[d] for d in twin}) < len(twin):
        return None
    if any(stage.sites[0].ticks != stage.sites[1].ticks for stage in instance.stages):
        return None
    return replace(
        instance,
        micro_batches=instance.micro_batches // 2,
        stages=tuple(_stage(stage, twin) for stage in instance.stages),
        edges=tuple(_edge(edge, twin) for edge in instance.edges),
        alike=False,
    )


def _stage(stage: Stage, twin: Mapping[int, int]) -> Stage:
    """The stage at its first site, on the first device of the pair."""
    site = stage.sites[0]
    first = replace(site, device=min(site.device, twin[site.device]))
    return replace(stage, sites=(first,), finish={(0, 0): stage.finish[0, 0]})


def _edge(edge: Edge, twin: Mapping[int, int]) -> Edge:
    """The messages of the first direction."""

    def folded(hops: Hops) -> Hops:
        send = hops[0, 0]
        return {(0, 0): send._replace(links=tuple(_one_of_pair(link, twin) for link in send.links))}

    return replace(edge, activation=folded(edge.activation), gradient=folded(edge.gradient))


def _one_of_pair(link: tuple[str, int, int], twin: Mapping[int, int]) -> tuple[str, int, int]:
    """A link or its twin, the same name for both: they carry the same messages at the same time."""
    name, source, target = link
    return min(link, (name, twin[source], twin.get(target, target)))


def unfold(half: Solution, micro_batches: int) -> Solution:
    """The solution of both directions: the second half of the micro-batches goes up at the same times."""
    count = micro_batches // 2
    return Solution(
        {(kind, s, k + up): start for (kind, s, k), start in half.starts.items() for up in (0, count)},
        {(s, k + up): (int(up > 0),) * 2 for s, k in half.sites for up in (0, count)},
        {(s, k + up): policy for (s, k), policy in half.policies.items() for up in (0, count)},
        {
            name: {(s, k + up): t for (s, k), t in table.items() for up in (0, count)}
            for name, table in half.times.items()
        },
    )
