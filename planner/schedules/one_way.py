"""Schedules with one pipeline: GPipe, 1F1B (DAPPLE) and interleaved 1F1B.

1F1B, 4 devices, 8 micro-batches, F = B:        F0 F1 F2 F3 B0 F4 B1 F5 B2 ...      device 0
                                                   F0 F1 F2 B0 F3 B1 F4 ...         device 1
"""

from __future__ import annotations

from ..plan import Op
from .layout import Layout, backward, forward, pipeline, require


def gpipe(devices: int, micro_batches: int) -> Layout:
    """All forwards, then all backwards (Huang et al., arXiv:1811.06965)."""
    batch = range(micro_batches)
    orders = tuple(tuple([forward(s, m) for m in batch] + [backward(s, m) for m in batch]) for s in range(devices))
    return Layout("gpipe", devices, (pipeline(range(devices), batch),), orders)


def one_f_one_b(devices: int, micro_batches: int) -> Layout:
    """1F1B with a flush: stage s starts with D - s forwards, then alternates (DAPPLE, arXiv:2007.01045)."""
    return _alternating("1f1b", devices, micro_batches, devices)


def capped(devices: int, micro_batches: int, most: int) -> Layout:
    """1F1B with at most `most` micro-batches in flight on a device; `most` = devices is 1F1B itself."""
    return _alternating(f"1f1b-capped-{most}", devices, micro_batches, most)


def _alternating(name: str, devices: int, micro_batches: int, most: int) -> Layout:
    orders: list[tuple[Op, ...]] = []
    for s in range(devices):
        warm = min(devices - s, most, micro_batches)
        order = [forward(s, m) for m in range(warm)]
        for m in range(micro_batches):
            order.append(backward(s, m))
            if m + warm < micro_batches:
                order.append(forward(s, m + warm))
        orders.append(tuple(order))
    return Layout(name, devices, (pipeline(range(devices), range(micro_batches)),), tuple(orders))


def interleaved(devices: int, micro_batches: int, chunks: int = 2) -> Layout:
    """Interleaved 1F1B: `chunks` stages a device, groups of D micro-batches (Megatron-LM, arXiv:2104.04473).

    Exists for micro-batches in multiples of the devices.
    """
    name = f"interleaved-{chunks}"
    require(chunks >= 2, name, f"needs at least 2 chunks a device, got {chunks}")
    require(
        micro_batches % devices == 0,
        name,
        f"needs micro-batches in multiples of the {devices} devices, got {micro_batches}",
    )
    stages, total = devices * chunks, micro_batches * chunks

    def chunk_and_batch(position: int, last_chunk_first: bool) -> tuple[int, int]:
        group, rest = divmod(position, devices * chunks)
        chunk, within = divmod(rest, devices)
        return (chunks - 1 - chunk if last_chunk_first else chunk), group * devices + within

    orders: list[tuple[Op, ...]] = []
    for d in range(devices):

        def f(position: int, d: int = d) -> Op:
            chunk, m = chunk_and_batch(position, False)
            return forward(chunk * devices + d, m)

        def b(position: int, d: int = d) -> Op:
            chunk, m = chunk_and_batch(position, True)
            return backward(chunk * devices + d, m)

        warm = min(total, (devices - d - 1) * 2 + (chunks - 1) * devices)
        order = [f(k) for k in range(warm)]
        for k in range(total - warm):
            order += [f(warm + k), b(k)]
        order += [b(k) for k in range(total - warm, total)]
        orders.append(tuple(order))
    route = [s % devices for s in range(stages)]
    return Layout(name, stages, (pipeline(route, range(micro_batches)),), tuple(orders))
