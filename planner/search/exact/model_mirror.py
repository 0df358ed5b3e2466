"""Folding an instance of two mirrored directions into one of half the devices, and unfolding its solution.

A schedule in which the up direction does on each device's twin what the down direction does on the device is decided
by the down direction alone: both directions' stages then run on one device of each pair. Half the ops, and no choice
of direction: found much faster than in the full model, though a best schedule need not be of this form.
"""

from __future__ import annotations

from dataclasses import replace

from .instance import Instance, Send
from .model_orders import Solution


def fold(instance: Instance) -> Instance | None:
    """One direction with half the micro-batches on the devices that come first of each pair; None where it cannot be.

    It needs two mirrored directions of equally many micro-batches, devices in pairs with equal capacity, and host
    links that pairs do not share.
    """
    if len(instance.ways) != 2 or not instance.mirrored or instance.micro_batches % 2:
        return None
    down, up = instance.ways
    twin = dict(zip(down.devices, up.devices, strict=True))
    if any(a == b or instance.capacity[a] != instance.capacity[b] for a, b in twin.items()):
        return None
    if any(room is not None for room in instance.host_room) or len({instance.host[d] for d in twin}) < len(twin):
        return None
    if any(
        (w.forward, w.whole, w.input, w.weight) != (down.forward, down.whole, down.input, down.weight) for w in [up]
    ):
        return None

    def first(device: int) -> int:
        return min(device, twin[device])

    def folded(send: Send) -> Send:
        return replace(send, links=tuple(_one_of_pair(link, twin) for link in send.links))

    way = replace(
        down,
        devices=tuple(first(d) for d in down.devices),
        activation=tuple(folded(send) for send in down.activation),
        gradient=tuple(folded(send) for send in down.gradient),
    )
    return replace(instance, micro_batches=instance.micro_batches // 2, ways=(way,), mirrored=False)


def _one_of_pair(link: tuple[str, int, int], twin: dict[int, int]) -> tuple[str, int, int]:
    """A link or its twin, the same name for both: they carry the same messages at the same time."""
    name, source, target = link
    return min(link, (name, twin[source], twin.get(target, target)))


def unfold(half: Solution, micro_batches: int) -> Solution:
    """The solution of both directions: the second half of the micro-batches goes up at the same times."""
    count = micro_batches // 2
    starts = dict(half.starts)
    starts |= {(kind, s, k + count): start for (kind, s, k), start in half.starts.items()}
    policies = dict(half.policies)
    policies |= {(s, k + count): policy for (s, k), policy in half.policies.items()}
    return Solution(starts, [0] * count + [1] * count, policies)
