"""Named schedules, as order generators: the only place, beside the command line, that knows a scheme's name.

A schedule is data: pipelines over stages and, for every device, the order of its compute ops. Imports plans and their
vocabulary. Begin with `layout.py`, then `one_way.py`; a new schedule is one function and one row of `SCHEDULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from ..basics import ScheduleError
from .asynchronous import ALTERNATING, ASYNCHRONOUS, WEIGHTS
from .dual import dualpipe, dualpipe_v
from .layout import Layout, unsplit
from .one_way import capped, gpipe, interleaved, looped_bfs, one_f_one_b
from .two_way import chimera, chimera_doubling, chimera_halving, gems
from .v_shape import v_half, v_min, zb_v
from .zero_bubble import interleaved_zb, zb_h1, zb_h2

SCHEDULES: Mapping[str, Callable[..., Layout]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
    "looped-bfs": looped_bfs,
    "gems": gems,
    "chimera": chimera,
    "chimera-doubling": chimera_doubling,
    "chimera-halving": chimera_halving,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "interleaved-zb": interleaved_zb,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
}
"""Synchronous schedules; those without a flush are in ASYNCHRONOUS."""
_CAPPED = "1f1b-capped"
_NUMBER = re.compile("[1-9][0-9]{0,3}")
_REPLICAS = re.compile("(.+), ([1-9][0-9]{0,4}) replicas")
_CHUNKED = frozenset({"interleaved", "looped-bfs", "interleaved-zb"})
_V_SHAPED = frozenset({"zb-v", "v-half", "v-min", "dualpipe-v"})


def _parameter(name: str) -> tuple[str, int | None]:
    """A name without its number, and that; None where it is no name with a number."""
    base, _, number = name.rpartition("-")
    numbered = name not in SCHEDULES and (base in _CHUNKED or base in ("chimera", _CAPPED))
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
    "1f1b-capped-2" at most two micro-batches in flight.

    Raises ScheduleError for an unknown name, and where the scheme does not exist for these numbers.
    """
    base, number = _parameter(name)
    if number is not None and base == _CAPPED:
        return capped(devices, micro_batches, number)
    if number is not None:
        name, chunks, pipelines = base, number, number
    if name in ASYNCHRONOUS:
        return ASYNCHRONOUS[name](devices, micro_batches)
    if name not in SCHEDULES:
        known = ", ".join([*SCHEDULES, *ASYNCHRONOUS])
        raise ScheduleError(f"unknown schedule {name!r}; known: {known}")
    if name in _CHUNKED:
        return SCHEDULES[name](devices, micro_batches, 2 if chunks is None else chunks)
    if name == "chimera":
        return chimera(devices, micro_batches, 2 if pipelines is None else pipelines)
    return SCHEDULES[name](devices, micro_batches)


def variants(
    devices: int, micro_batches: int, max_stages: int, name: str | None = None
) -> Iterator[tuple[str, Layout]]:
    """Every synchronous schedule that exists for these numbers, with every chunk and pipeline count it comes in.

    With a `name`, only that schedule's. A layout is built when it is asked for. Backward halving, whose orders are
    forward doubling's, comes by its name only.
    """
    for scheme in SCHEDULES if name is None else (name,):
        if name is None and scheme == "chimera-halving":
            continue
        for option in _options(scheme, devices, max_stages):
            try:
                layout = build(scheme, devices, micro_batches, **option)
            except ScheduleError:
                continue
            yield layout.name, layout


def _options(name: str, devices: int, max_stages: int) -> list[dict[str, int]]:
    """What `build` takes besides the numbers, for every variant of at most `max_stages` stages."""
    if name in _CHUNKED:
        return [{"chunks": c} for c in range(2, max_stages // devices + 1)]
    if max_stages < (2 * devices if name in _V_SHAPED else devices):
        return []
    if name == "chimera":
        return [{"pipelines": 2 * f} for f in range(1, max(1, devices // 2) + 1)]
    return [{}]


__all__ = [
    "ALTERNATING",
    "ASYNCHRONOUS",
    "Layout",
    "SCHEDULES",
    "WEIGHTS",
    "build",
    "capped",
    "known",
    "spelled_out",
    "unsplit",
    "variants",
]
