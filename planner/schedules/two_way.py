"""Schedules with pipelines in both directions and whole backwards: GEMS and Chimera.

Chimera, 4 devices, 4 micro-batches (0, 1 down; 2, 3 up), F = B, one column a slot:

    device 0   F0 .  F1 F2 B2 F3 B3 B0 .  B1
    device 1   .  F0 F2 F1 F3 B2 B0 B3 B1 .
    device 2   .  F2 F0 F3 F1 B0 B2 B1 B3 .
    device 3   F2 .  F3 F0 B0 F1 B1 B2 .  B3
"""

from __future__ import annotations

from collections import defaultdict

from ..plan import Op
from .layout import Layout, backward, forward, pipeline, require


def gems(devices: int, micro_batches: int) -> Layout:
    """Micro-batches alternate direction, two in flight at most (Jain et al., SC'20).

    Every micro-batch's forward follows the backward of the one before it through the devices.
    """
    down = pipeline(range(devices), range(0, micro_batches, 2))
    up = pipeline(reversed(range(devices)), range(1, micro_batches, 2))
    orders = []
    for d in range(devices):
        order: list[Op] = []
        for m in range(micro_batches):
            stage = d if m % 2 == 0 else devices - 1 - d
            order += [forward(stage, m), backward(stage, m)]
        orders.append(tuple(order))
    return Layout("gems", devices, (down, up) if micro_batches > 1 else (down,), tuple(orders))


def chimera(devices: int, micro_batches: int, pipelines: int = 2) -> Layout:
    """Chimera with 2f pipelines, units of D micro-batches concatenated directly (arXiv:2107.06925).

    Down pipeline i runs stage s on device (s + i*D/f) mod D, up pipeline i the other way round. With F = B = 1
    and j counting a pipeline's micro-batches in a unit, F of stage s is at slot s + 2j and B at 2D - 1 - s + 2j;
    units repeat every 2D slots without a conflict, which gives the order.
    """
    name = "chimera" if pipelines == 2 else f"chimera-{pipelines}"
    require(devices % 2 == 0, name, f"needs an even number of devices, got {devices}")
    require(pipelines % 2 == 0 and pipelines >= 2, name, f"needs an even number of pipelines, got {pipelines}")
    f = pipelines // 2
    require(
        f == 1 or (devices // 2) % f == 0,
        name,
        f"{f} pipelines in each direction do not divide half of the {devices} devices",
    )
    routes = [[(s + i * devices // f) % devices for s in range(devices)] for i in range(f)]
    routes += [[devices - 1 - d for d in route] for route in routes]
    taken: list[list[int]] = [[] for _ in routes]
    slots: dict[int, list[tuple[int, Op]]] = defaultdict(list)
    for unit_start in range(0, micro_batches, devices):
        unit = range(unit_start, min(unit_start + devices, micro_batches))
        for p, members in enumerate(_shares(unit, f)):
            taken[p] += members
            for j, m in enumerate(members):
                for s, device in enumerate(routes[p]):
                    slots[device].append((2 * unit_start + s + 2 * j, forward(s, m)))
                    slots[device].append((2 * unit_start + 2 * devices - 1 - s + 2 * j, backward(s, m)))
    used = tuple(pipeline(routes[p], taken[p]) for p in range(len(routes)) if taken[p])
    orders = tuple(tuple(op for _, op in sorted(slots[d])) for d in range(devices))
    return Layout(name, devices, used, orders)


def chimera_doubling(devices: int, micro_batches: int) -> Layout:
    """Chimera with forward doubling: two micro-batches' F for one B, in units of 2D (arXiv:2107.06925, section 3.5).

    Two F fill the slot of one B where B = 2F, so units follow each other without a gap, at up to twice the
    stashes of direct concatenation: (N + D/2 - 1)(F + B) for N a multiple of 2D. At most D micro-batches left over
    make a plain unit, more a doubled one with some missing. Exists for N > D; up to D it is Chimera itself.
    """
    return _doubled("chimera-doubling", devices, micro_batches)


def chimera_halving(devices: int, micro_batches: int) -> Layout:
    """Chimera with backward halving: one F for two B of half a micro-batch each (arXiv:2107.06925, section 3.5).

    "The same schedule as forward doubling": here micro-batches 2k and 2k + 1 are the halves, so the orders are
    those of forward doubling, and against direct concatenation of N/2 whole micro-batches memory does not grow.
    """
    return _doubled("chimera-halving", devices, micro_batches)


def _doubled(name: str, devices: int, micro_batches: int) -> Layout:
    """A unit has F of a direction's pair j, stage s, at slot s + 2j and B of its k-th at 2D - 1 - s + 2k.

    One direction's F and the other's B share the slots of one parity without a conflict, and fill every one of the
    unit's 3D slots (derived).
    """
    require(devices % 2 == 0, name, f"needs an even number of devices, got {devices}")
    require(
        micro_batches > devices, name, f"needs more than the {devices} micro-batches of a unit, got {micro_batches}"
    )
    routes = [range(devices), range(devices - 1, -1, -1)]
    taken: list[list[int]] = [[], []]
    slots: dict[int, list[tuple[int, Op]]] = defaultdict(list)
    start = 0
    for first in range(0, micro_batches, 2 * devices):
        unit = range(first, min(first + 2 * devices, micro_batches))
        at_once = 2 if len(unit) > devices else 1
        for p, route in enumerate(routes):
            members = [m for k, m in enumerate(unit) if k // at_once % 2 == p]
            taken[p] += members
            for j, m in enumerate(members):
                for s, device in enumerate(route):
                    slots[device].append((start + s + 2 * (j // at_once), forward(s, m)))
                    slots[device].append((start + 2 * devices - 1 - s + 2 * j, backward(s, m)))
        start += 3 * devices
    used = tuple(pipeline(routes[p], taken[p]) for p in range(2))
    orders = tuple(tuple(op for _, op in sorted(slots[d])) for d in range(devices))
    return Layout(name, devices, used, orders)


def _shares(unit: range, f: int) -> list[list[int]]:
    """A unit's micro-batches dealt in turn to down and up pipelines: down 0, up 0, down 1, up 1, ..."""
    shares: list[list[int]] = [[] for _ in range(2 * f)]
    for k, m in enumerate(unit):
        turn = k % (2 * f)
        shares[turn // 2 + (f if turn % 2 else 0)].append(m)
    return shares
