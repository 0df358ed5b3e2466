"""Room for lines beside one another."""

from __future__ import annotations

from collections.abc import Sequence


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """For every span the lowest lane in which it overlaps no other; short ones get the low lanes."""
    taken: list[list[tuple[float, float]]] = []
    found = [0] * len(spans)
    for k in sorted(range(len(spans)), key=lambda k: (spans[k][1] - spans[k][0], spans[k], k)):
        low, high = spans[k]
        free = (n for n, lane in enumerate(taken) if all(high <= a or b <= low for a, b in lane))
        found[k] = next(free, len(taken))
        if found[k] == len(taken):
            taken.append([])
        taken[found[k]].append((low, high))
    return found
