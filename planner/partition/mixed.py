"""Cuts for orders that do not fit with every stash kept: every stage gets the cheapest stash choice that fits.

A choice says what happens to the stashes of a stage: 0 to QUARTERS, how many of every four micro-batches are
recomputed (0 keeps all), or AWAY, all are copied to the host.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ..basics import PlanError
from ..graph import KEEP, OFFLOAD, RECOMPUTE
from .chain import Chain, Cuts, Floats, _cheapest, bottleneck, link_seconds, trace

QUARTERS = 4
AWAY = QUARTERS + 1
HELD = 3
"""Stashes of an AWAY stage that its device holds: one leaving, one coming back, one in use."""


def kept(in_flight: int, choice: int) -> int:
    """Most whole stashes alive at once under a choice, of so many micro-batches in flight one after the other."""
    if choice == AWAY:
        return min(in_flight, HELD)
    return in_flight // QUARTERS * (QUARTERS - choice) + min(in_flight % QUARTERS, QUARTERS - choice)


def choices(policies: Collection[str]) -> list[int]:
    """The choices that these policies allow, beside keeping. Raises PlanError for policies that have none."""
    for policy in policies:
        if policy not in (KEEP, RECOMPUTE, OFFLOAD):
            raise PlanError(f"no stash choice for policy {policy!r}; known: {KEEP}, {RECOMPUTE}, {OFFLOAD}")
    recomputed = range(1, QUARTERS + 1) if RECOMPUTE in policies else ()
    return [0, *recomputed, *([AWAY] if OFFLOAD in policies else [])]


def cut_mixed(
    chain: Chain, devices: Sequence[int], in_flight: Sequence[int], policies: Collection[str], less: Sequence[int] = ()
) -> Cuts | None:
    """The contiguous cut with the smallest bottleneck, each stage under the cheapest choice that fits, or None.

    As `chain.cut`, where a stage's seconds contain what it recomputes, and are not less than what its copies take on
    the host link; of equal cuts, that with the least sum of seconds. `less`: bytes taken off every device's limit.
    """
    size = len(chain) + 1
    if len(devices) >= size:
        return None
    tables = list(_tables(chain, devices, in_flight, choices(policies), less))
    worst = bottleneck(iter(tables), size)[0]
    if math.isinf(worst):
        return None
    allowed = worst * (1 + 1e-12)
    return trace(_cheapest((np.where(t <= allowed, t, np.inf) for t in tables), size)[1], size - 1)


def _tables(
    chain: Chain, devices: Sequence[int], in_flight: Sequence[int], options: Sequence[int], less: Sequence[int]
) -> Iterator[Floats]:
    """Per stage, the seconds of every interval of layers under its cheapest choice; infinite where none fits."""
    forward = _intervals(chain.costs.forward_s)
    stash = _intervals(chain.costs.stash_bytes.astype(float))
    entering = chain.boundary_bytes[:, None] + _intervals(chain.costs.input_bytes.astype(float))
    static = chain.bytes(0)
    for s, device in enumerate(devices):
        room = chain.limit(device) - (less[device] if len(less) else 0) - static
        speed, occupation = chain.speed(device), link_seconds(chain, devices, s)[0]
        best = np.full_like(static, np.inf)
        for choice in options:
            whole = kept(in_flight[s], choice)
            held = whole * stash
            seconds = chain.seconds / speed
            if 0 < choice <= QUARTERS:
                held = held + (in_flight[s] - whole) * entering + stash
                seconds = seconds + choice / QUARTERS * forward / speed
            elif choice == AWAY:
                seconds = np.maximum(seconds, stash * host_seconds(chain, device))
            best = np.minimum(best, np.where(held <= room, seconds, np.inf))
        yield np.maximum(best, occupation[:, None])


def host_seconds(chain: Chain, device: int) -> float:
    """Seconds a byte of one device's share of its host link."""
    cluster = chain.problem.cluster
    group = cluster.node_groups[cluster.devices[device].node]
    return group.host_link_shared_by / group.host_link.bandwidth


def _intervals(values: Floats) -> Floats:
    """Sums over every interval [i, j) of layers; shape (L + 1, L + 1)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[None, :] - total[:, None])
