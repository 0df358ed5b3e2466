"""V-shaped schedules: stages d and 2D-1-d on device d, one building block repeated (Qi et al., arXiv:2405.15362).

A block is one micro-batch's F and I on every device; it repeats every six slots: F, I and W of two chunks. The
slots a pass takes to the next device fix how long a stash lives, and so the memory. W fill the idle slots. For given
costs the block is another one (`blocks.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..plan import Op
from .layout import Layout, forward, input_backward, pipeline
from .list_order import with_weights


class _Block(NamedTuple):
    """Slots from device to device down (F of the first chunk, I of the second) and up, and waits at the turns.

    A turn is where a pass comes back to the device that it has just left: last F down to first F up, last F to
    first I, last I down to first I up; its wait is counted in slots beyond the one of the op itself. The waits keep
    the block's four ops in different slots, modulo the period, on every device.
    """

    down: int
    up: int
    turns: tuple[int, int, int] = (0, 0, 0)


_PERIOD = 6
_ZERO_BUBBLE = _Block(4, 2)


def zb_v(devices: int, micro_batches: int) -> Layout:
    """V-ZB: idle only until the last device's first F, for F = I = W and N >= D, with D stashes (arXiv:2401.10241)."""
    return _repeated("zb-v", devices, micro_batches, _ZERO_BUBBLE, 2 * devices)


def v_half(devices: int, micro_batches: int) -> Layout:
    """V-Half: at most D/2 + 1 stashes of a device, bubble (3D-5)F/2 for F = I = W, N >= D > 1 (arXiv:2405.15362).

    On one or two devices that much memory is V-ZB's.
    """
    turns = (0, 0, 1) if devices % 2 else (3, 0, 4)
    block = _ZERO_BUBBLE if devices <= 2 else _Block(2, 1, turns)
    return _repeated("v-half", devices, micro_batches, block, devices + 2)


def v_min(devices: int, micro_batches: int) -> Layout:
    """V-Min: at most (D + 4) // 3 stashes of a device, bubble (4D-5)F/2 for F = I = W, D > 1 (arXiv:2405.15362).

    With costs that differ every block adds to the bubble.
    """
    turns = (0, 0, 0) if devices % 3 else (2, 0, 2)
    return _repeated("v-min", devices, micro_batches, _Block(1, 1, turns), 2 * ((devices + 4) // 3))


def v_auto(devices: int, micro_batches: int) -> Layout:
    """V-Auto: the best block for the costs and all the memory there is (arXiv:2405.15362); without costs V-Min's."""
    return replace(v_min(devices, micro_batches), name="v-auto", most=2 * devices * micro_batches)


def _repeated(name: str, devices: int, micro_batches: int, block: _Block, most: int) -> Layout:
    """The block repeated; `most`: stashes of one chunk on a device."""
    leg, last = (block.down + block.up) * (devices - 1), 2 * devices - 1
    up = leg + 1 + block.turns[0]
    back = up + 1 + block.turns[1]
    home = back + leg + 1 + block.turns[2]
    orders = []
    for d in range(devices):
        slots: list[tuple[int, Op]] = []
        for m in range(micro_batches):
            t = _PERIOD * m
            slots += [
                (t + block.down * d, forward(d, m)),
                (t + up - block.up * d, forward(last - d, m)),
                (t + back + block.down * d, input_backward(last - d, m)),
                (t + home - block.up * d, input_backward(d, m)),
            ]
        slots.sort()
        orders.append([op for _, op in slots])
    route = pipeline([*range(devices), *reversed(range(devices))], range(micro_batches))
    placed = with_weights(orders, route.forward, most)
    return Layout(name, 2 * devices, (route,), placed, most=most)
