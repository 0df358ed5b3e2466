"""What the options of `plan` and `compare` ask for: space, workload and effort."""

from __future__ import annotations

from typing import Any

import click

from ..basics import InputError
from ..problem import SearchSpace
from ..schedules import ASYNCHRONOUS, SCHEDULES, known, spelled_out
from .asynchronous import methods, within


def search_space(schedule: str, options: dict[str, Any]) -> SearchSpace:
    """The space of the command line's flags; raises InputError for an unknown schedule or method, listing the known."""
    check_schedule(schedule)
    return SearchSpace(
        schedule,
        options["pipelines"],
        offload=not options["no_offload"],
        recompute=not options["no_recompute"],
        split_backward=not options["no_split_backward"],
        separate_backward=not options["no_separate_backward"],
        shard_optimizer=not options["no_shard_optimizer"],
        asynchronous=methods(options, schedule),
        quality_within=within(options),
        cut=None if options["cut"] is None else tuple(filter(None, options["cut"].split(","))),
    )


def workload_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that make a Workload."""
    return {
        "micro_batches": options["micro_batches"] or 1,
        "optimizer": options["optimizer"],
        "precision": options["precision"],
        "memory_limit_bytes": options["memory_limit"],
        "update_every": options["update_every"],
        "staleness_limit": options["staleness_limit"],
    }


def effort_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that say how hard and how reproducibly to search."""
    return {name: options[name] for name in ("time_limit", "seed", "workers", "deterministic_limit")}


def schedule_names(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Of schedules, for shells that complete them."""
    return [name for name in ("search", *SCHEDULES, *ASYNCHRONOUS) if name.startswith(begun)]


def check_schedule(name: str) -> None:
    """Raises InputError unless `name` is "search" or a named schedule."""
    base, _ = spelled_out(name)
    if base != "search" and not known(base):
        raise InputError(f"unknown schedule {name!r}; known: {', '.join(['search', *SCHEDULES, *ASYNCHRONOUS])}")
