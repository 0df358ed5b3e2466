"""Ticks that every order of an instance of routes takes, split backwards and stash policies included. No solver."""

from __future__ import annotations

from ...plan import Kind
from .instance import Instance

_FAR = 1 << 60


def least_ticks(instance: Instance) -> int:
    """Heads, loads and tails of the devices, whatever is recomputed or copied; the best of all shares of two ways.

    As bounds.candidate; with split backwards the last op of a device may be a W, which nothing waits for. 0 where
    devices are open.
    """
    if instance.open:
        return 0
    ways, count = range(instance.directions), instance.micro_batches
    ends = [_ends(instance, way) for way in ways]
    loads = [[sum(x.sites[way].ticks[kind] for kind in x.kinds) for x in instance.stages] for way in ways]
    shares = [(k, count - k) for k in range(1, count)] if len(ways) == 2 else [(count,)]
    best = _FAR if shares else 0
    for share in shares:
        found: dict[int, tuple[int, int, int]] = {}
        for w, part in enumerate(share):
            head, tail, _ = ends[w]
            for s, device in enumerate(instance.route(w)):
                busy, first, last = found.get(device, (0, _FAR, _FAR))
                found[device] = (busy + part * loads[w][s], min(first, head[s]), min(last, tail[s]))
        best = min(best, max(map(sum, found.values())))
    return max(best, min(longest for _, _, longest in ends))


def _ends(instance: Instance, way: int) -> tuple[list[int], list[int], int]:
    """Per stage, ticks before its first F and after its last op at the least; and one micro-batch's round trip."""
    stages = instance.stages
    ticks = [stage.sites[way].ticks for stage in stages]
    back = [times[stage.backwards[0]] for times, stage in zip(ticks, stages, strict=True)]
    own = [times.get(Kind.W, 0) + stage.finish[way, way] for times, stage in zip(ticks, stages, strict=True)]
    head, after = [0] * len(stages), [0] * len(stages)
    for edge in sorted(instance.edges, key=lambda edge: edge.consumer):
        a, b = edge.producer, edge.consumer
        head[b] = max(head[b], head[a] + ticks[a][Kind.F] + edge.activation[way, way].arrives)
        after[b] = max(after[b], edge.gradient[way, way].arrives + back[a] + max(after[a], own[a]))
    trips = (h + t[Kind.F] + b + max(x, y) for h, t, b, x, y in zip(head, ticks, back, after, own, strict=True))
    tail = [
        stage.finish[way, way] if stage.split else max(stage.finish[way, way], rest)
        for stage, rest in zip(stages, after, strict=True)
    ]
    return head, tail, max(trips)
