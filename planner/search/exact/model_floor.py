"""Ticks that every order of an instance takes, split backwards and stash policies included. No solver."""

from __future__ import annotations

from .instance import Instance, Way

_FAR = 1 << 60


def least_ticks(instance: Instance) -> int:
    """Heads, loads and tails of the devices, whatever is recomputed or copied; the best of all shares of two ways.

    As bounds.candidate; with split backwards the last op of a device may be a W, which nothing waits for.
    """
    stages, count = range(instance.stages), instance.micro_batches
    ends = [_ends(instance, way) for way in instance.ways]
    loads = [[sum(way.ticks(kind, s) for kind in instance.kinds(s)) for s in stages] for way in instance.ways]
    shares = [(k, count - k) for k in range(1, count)] if len(instance.ways) == 2 else [(count,)]
    best = _FAR if shares else 0
    for share in shares:
        found: dict[int, tuple[int, int, int]] = {}
        for w, part in enumerate(share):
            head, tail, _ = ends[w]
            for s, device in enumerate(instance.ways[w].devices):
                busy, first, last = found.get(device, (0, _FAR, _FAR))
                found[device] = (busy + part * loads[w][s], min(first, head[s]), min(last, tail[s]))
        best = min(best, max(map(sum, found.values())))
    return max(best, min(longest for _, _, longest in ends))


def _ends(instance: Instance, way: Way) -> tuple[list[int], list[int], int]:
    """Per stage, ticks before its first F and after its last op at the least; and one micro-batch's round trip."""
    stages = instance.stages
    weight = [way.weight[s] if instance.split[s] else 0 for s in range(stages)]
    head, after, longest = [0] * stages, [0] * stages, 0
    for edge, (a, b) in sorted(enumerate(instance.edges), key=lambda entry: entry[1][1]):
        there, back = way.activation[edge], way.gradient[edge]
        head[b] = max(head[b], head[a] + way.forward[a] + there.occupation + there.latency)
        rest = way.ticks(instance.backward(a), a) + max(after[a], weight[a] + way.tail[a])
        after[b] = max(after[b], back.occupation + back.latency + rest)
    for s in range(stages):
        trip = head[s] + way.forward[s] + way.ticks(instance.backward(s), s)
        longest = max(longest, trip + max(after[s], weight[s] + way.tail[s]))
    tail = [way.tail[s] if instance.split[s] else max(way.tail[s], after[s]) for s in range(stages)]
    return head, tail, longest
