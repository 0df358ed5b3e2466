"""Named schedules, as order generators: the only place, beside the command line, that knows a scheme's name.

A schedule is data: pipelines over stages and, for every device, the order of its compute ops. Imports plans and their
vocabulary. Begin with `layout.py`, then `one_way.py`; a new schedule is one function and one row of `SCHEDULES`. Where
costs are known, `costed.py` makes its orders anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ..basics import ScheduleError
from .asynchronous import ALTERNATING, ASYNCHRONOUS, WEIGHTS
from .costed import by_costs
from .dual import dualpipe, dualpipe_v
from .layout import Layout, unsplit
from .one_way import alternating, capped, gpipe, interleaved, looped_bfs, one_f_one_b
from .pieces import PIECES, cut_ops, in_pieces
from .timing import Timing
from .two_way import chimera, chimera_doubling, chimera_halving, gems
from .v_shape import v_auto, v_half, v_min, zb_v
from .zero_bubble import interleaved_zb, interleaved_zb_half, interleaved_zb_wide, zb_h1, zb_h2

CHUNKS, PIPELINES = "chunks", "pipelines"
"""What the number at the end of a name may count: stages a device, or Chimera's 2f pipelines."""


@dataclass(frozen=True)
class Scheme:
    """A row: a named schedule with a flush.

    Attributes:
        make: its layout for so many devices and micro-batches, and a number where it has one. Raises ScheduleError.
        counts: what its number counts, CHUNKS or PIPELINES; None: it has no number.
        stages_per_device: where no number says so.
        by_name_only: not among `variants`, since another scheme has the same orders, or `in_laps` has them.
    """

    make: Callable[..., Layout]
    counts: str | None = None
    stages_per_device: int = 1
    by_name_only: bool = False

    def numbers(self, devices: int, most_stages: int) -> list[int | None]:
        """The numbers that it comes in on so many devices, with at most so many stages; [None] where it has none."""
        if self.counts == CHUNKS:
            return list(range(2, most_stages // devices + 1))
        if most_stages < self.stages_per_device * devices:
            return []
        return list(range(2, max(2, devices) + 1, 2)) if self.counts == PIPELINES else [None]


SCHEDULES: dict[str, Scheme] = {
    "1f1b": Scheme(one_f_one_b),
    "gpipe": Scheme(gpipe),
    "interleaved": Scheme(interleaved, CHUNKS),
    "looped-bfs": Scheme(looped_bfs, CHUNKS),
    "gems": Scheme(gems),
    "chimera": Scheme(chimera, PIPELINES),
    "chimera-doubling": Scheme(chimera_doubling),
    "chimera-halving": Scheme(chimera_halving, by_name_only=True),  # its orders are forward doubling's
    "zb-h1": Scheme(zb_h1),
    "zb-h2": Scheme(zb_h2),
    "interleaved-zb": Scheme(interleaved_zb, CHUNKS),
    "interleaved-zb-half": Scheme(interleaved_zb_half, CHUNKS),
    "interleaved-zb-wide": Scheme(interleaved_zb_wide, CHUNKS, by_name_only=True),  # in `in_laps` wherever it may help
    "zb-v": Scheme(zb_v, stages_per_device=2),
    "v-half": Scheme(v_half, stages_per_device=2),
    "v-min": Scheme(v_min, stages_per_device=2),
    "v-auto": Scheme(v_auto, stages_per_device=2),
    "dualpipe": Scheme(dualpipe),
    "dualpipe-v": Scheme(dualpipe_v, stages_per_device=2),
}
"""Schedules with a flush, by name: a row each, and nothing else knows them. Those without are in ASYNCHRONOUS."""
_CAPPED = "1f1b-capped"
_NUMBER = re.compile("[1-9][0-9]{0,3}")
_REPLICAS = re.compile("(.+), ([1-9][0-9]{0,4}) replicas")


def _parameter(name: str) -> tuple[str, int | None]:
    """A name without its number, and that; None where it is no name with a number."""
    base, _, number = name.rpartition("-")
    scheme = SCHEDULES.get(base)
    numbered = name not in SCHEDULES and (
        base in (_CAPPED, PIECES) or (scheme is not None and scheme.counts is not None)
    )
    return (base, int(number)) if numbered and _NUMBER.fullmatch(number) else (name, None)


def known(name: str) -> bool:
    """Whether this names a schedule, its number of chunks or pipelines included where it has one."""
    return name in SCHEDULES or name in ASYNCHRONOUS or _parameter(name)[1] is not None


def spelled_out(name: str) -> tuple[str, int | None]:
    """The schedule of a plan's `source`, and how many groups of devices run it alike: "chimera-4, 2 replicas".

    None: as many as there may be.
    """
    match = _REPLICAS.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def build(
    name: str, devices: int, micro_batches: int, pipelines: int | None = None, chunks: int | None = None
) -> Layout:
    """The layout of a named schedule. `chunks`: stages a device; `pipelines`: Chimera's 2f.

    Also takes the names that layouts have: "interleaved-3" is three chunks, "chimera-4" four pipelines,
    "1f1b-capped-2" at most two micro-batches in flight, "1f1b-pieces-3" three stages in a row on every device.

    Raises ScheduleError for an unknown name, and where the scheme does not exist for these numbers.
    """
    base, number = _parameter(name)
    if number is not None and base == _CAPPED:
        return capped(devices, micro_batches, number)
    if number is not None and base == PIECES:
        return in_pieces(one_f_one_b(devices, micro_batches), number)
    if name in ASYNCHRONOUS:
        return ASYNCHRONOUS[name](devices, micro_batches)
    if base not in SCHEDULES:
        known = ", ".join([*SCHEDULES, *ASYNCHRONOUS])
        raise ScheduleError(f"unknown schedule {name!r}; known: {known}")
    scheme = SCHEDULES[base]
    if scheme.counts is None:
        return scheme.make(devices, micro_batches)
    given = {CHUNKS: chunks, PIPELINES: pipelines}[scheme.counts] if number is None else number
    return scheme.make(devices, micro_batches, 2 if given is None else given)


def whole_laps(devices: int, micro_batches: int, chunks: int) -> Layout:
    """One pipeline with so many stages a device, round and round, backwards whole; raises ScheduleError."""
    return one_f_one_b(devices, micro_batches) if chunks == 1 else interleaved(devices, micro_batches, chunks)


def split_laps(devices: int, micro_batches: int, chunks: int) -> Layout:
    """The same with split backwards, in 1F1B's memory."""
    return zb_h1(devices, micro_batches) if chunks == 1 else interleaved_zb(devices, micro_batches, chunks)


def in_laps(devices: int, micro_batches: int, chunks: int) -> Iterator[Layout]:
    """One pipeline with so many stages a device, round and round: with whole and split backwards, where they exist.

    Split ones in 1F1B's memory, and in more.
    """
    rounds = [partial(make, chunks=chunks) for make in (interleaved, interleaved_zb, interleaved_zb_wide)]
    for make in (one_f_one_b, zb_h1, zb_h2) if chunks == 1 else rounds:
        try:
            yield make(devices, micro_batches)
        except ScheduleError:
            continue


def folded(devices: int, micro_batches: int) -> Iterator[Layout]:
    """One pipeline down and up, two stages a device, backwards split: with all memory there is, 1F1B's, and less."""
    for make in (v_auto, zb_v, *([v_half] if devices > 2 else []), v_min):  # V-Half is V-ZB on two
        yield make(devices, micro_batches)


def variants(
    devices: int, micro_batches: int, max_stages: int, name: str | None = None
) -> Iterator[tuple[str, Layout]]:
    """Every synchronous schedule that exists for these numbers, with every chunk and pipeline count it comes in.

    With a `name`, only that schedule's. A layout is built when it is asked for; every schedule comes with its first
    count before any with its second.
    """
    listed: list[tuple[int, str, dict[str, int | None]]] = []
    for scheme in SCHEDULES if name is None else (name,):
        row = SCHEDULES.get(scheme, Scheme(partial(build, scheme)))
        if name is not None or not row.by_name_only:
            numbers = enumerate(row.numbers(devices, max_stages))
            listed += [(k, scheme, {} if row.counts is None else {row.counts: number}) for k, number in numbers]
    for _, scheme, options in sorted(listed, key=lambda one: one[0]):
        try:
            layout = build(scheme, devices, micro_batches, **options)
        except ScheduleError:
            continue
        yield layout.name, layout


__all__ = [
    "ALTERNATING",
    "ASYNCHRONOUS",
    "Layout",
    "SCHEDULES",
    "Scheme",
    "Timing",
    "WEIGHTS",
    "alternating",
    "build",
    "by_costs",
    "capped",
    "cut_ops",
    "folded",
    "in_laps",
    "in_pieces",
    "known",
    "spelled_out",
    "split_laps",
    "unsplit",
    "variants",
    "whole_laps",
]
