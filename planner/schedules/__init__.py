"""Named schedules, as order generators: the only place, beside the command line, that knows a scheme's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..errors import ScheduleError
from .layout import Layout
from .one_way import capped, gpipe, interleaved, one_f_one_b
from .two_way import chimera, gems

SCHEDULES: Mapping[str, Callable[..., Layout]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
    "gems": gems,
    "chimera": chimera,
}


def build(
    name: str, devices: int, micro_batches: int, pipelines: int | None = None, chunks: int | None = None
) -> Layout:
    """The layout of a named schedule. `chunks`: stages a device; `pipelines`: Chimera's 2f.

    Raises ScheduleError for an unknown name, and where the scheme does not exist for these numbers.
    """
    if name not in SCHEDULES:
        raise ScheduleError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")
    if name == "interleaved":
        return interleaved(devices, micro_batches, chunks or 2)
    if name == "chimera":
        return chimera(devices, micro_batches, pipelines or 2)
    return SCHEDULES[name](devices, micro_batches)


def variants(devices: int, micro_batches: int, max_stages: int) -> Iterator[tuple[str, Layout]]:
    """Every named schedule that exists for these numbers, with every chunk and pipeline count it comes in."""
    options: dict[str, list[dict[str, int]]] = {
        "interleaved": [{"chunks": c} for c in range(2, max_stages // devices + 1)],
        "chimera": [{"pipelines": 2 * f} for f in range(1, max(1, devices // 2) + 1)],
    }
    for name in SCHEDULES:
        for option in options.get(name, [{}]):
            try:
                layout = build(name, devices, micro_batches, **option)
            except ScheduleError:
                continue
            if layout.stages <= max_stages:
                yield layout.name, layout


__all__ = ["SCHEDULES", "Layout", "build", "capped", "variants"]
