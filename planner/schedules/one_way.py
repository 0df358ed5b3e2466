"""Schedules with one pipeline and whole backwards: GPipe, 1F1B (DAPPLE), interleaved 1F1B and breadth-first.

1F1B, 4 devices, 8 micro-batches, F = B:        F0 F1 F2 F3 B0 F4 B1 F5 B2 ...      device 0
                                                   F0 F1 F2 B0 F3 B1 F4 ...         device 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..plan import Op, Pipeline
from .layout import Layout, backward, forward, pipeline, require


def gpipe(devices: int, micro_batches: int) -> Layout:
    """All forwards, then all backwards (Huang et al., arXiv:1811.06965)."""
    batch = range(micro_batches)
    orders = tuple(tuple([forward(s, m) for m in batch] + [backward(s, m) for m in batch]) for s in range(devices))
    return Layout("gpipe", devices, (pipeline(range(devices), batch),), orders)


def one_f_one_b(devices: int, micro_batches: int) -> Layout:
    """1F1B with a flush: stage s starts with D - s forwards, then alternates (DAPPLE, arXiv:2007.01045)."""
    return alternating("1f1b", range(devices, 0, -1), micro_batches)


def capped(devices: int, micro_batches: int, most: int) -> Layout:
    """1F1B with at most `most` micro-batches in flight on a device; `most` = devices is 1F1B itself."""
    return alternating(f"1f1b-capped-{most}", [min(k, most) for k in range(devices, 0, -1)], micro_batches)


def alternating(name: str, in_flight: Sequence[int], micro_batches: int) -> Layout:
    """Stage s starts with in_flight[s] forwards, no fewer than the next one, and then alternates."""
    devices = len(in_flight)
    orders: list[tuple[Op, ...]] = []
    for s in range(devices):
        warm = min(in_flight[s], micro_batches)
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
    orders = tuple(
        tuple(
            grouped_order(
                d, devices, micro_batches, chunks, devices, (devices - d - 1) * 2 + (chunks - 1) * devices, backward
            )
        )
        for d in range(devices)
    )
    return Layout(name, devices * chunks, (looped(devices, micro_batches, chunks),), orders)


def looped(devices: int, micro_batches: int, chunks: int) -> Pipeline:
    """The pipeline that visits all devices in turn, `chunks` times."""
    return pipeline([s % devices for s in range(devices * chunks)], range(micro_batches))


def grouped_order(
    device: int, devices: int, micro_batches: int, chunks: int, group: int, ahead: int, back: Callable[[int, int], Op]
) -> list[Op]:
    """One device's order of interleaved stages: `ahead` forwards, then forwards and backwards by turns.

    Whole groups of micro-batches visit a device's chunks, backwards from the last one; `back` makes backward ops.
    """
    total = micro_batches * chunks

    def stage_and_batch(position: int, last_chunk_first: bool) -> tuple[int, int]:
        number, rest = divmod(position, group * chunks)
        chunk, within = divmod(rest, group)
        return (chunks - 1 - chunk if last_chunk_first else chunk) * devices + device, number * group + within

    forwards = [forward(*stage_and_batch(k, False)) for k in range(total)]
    backwards = [back(*stage_and_batch(k, True)) for k in range(total)]
    warm = min(total, ahead)
    order = forwards[:warm]
    for f, b in zip(forwards[warm:], backwards, strict=False):
        order += [f, b]
    return order + backwards[total - warm :]


def looped_bfs(devices: int, micro_batches: int, chunks: int = 2) -> Layout:
    """Breadth-first: every micro-batch through a chunk before the next chunk (Lamy-Poirier, arXiv:2211.05953).

    All micro-batches' stashes are alive at once; with one chunk a device it is GPipe.
    """
    name = f"looped-bfs-{chunks}"
    require(chunks >= 2, name, f"needs at least 2 chunks a device, got {chunks}")
    batch = range(micro_batches)
    stages = devices * chunks
    orders = tuple(
        (
            *(forward(s, m) for s in range(d, stages, devices) for m in batch),
            *(backward(s, m) for s in reversed(range(d, stages, devices)) for m in batch),
        )
        for d in range(devices)
    )
    return Layout(name, stages, (looped(devices, micro_batches, chunks),), orders)
