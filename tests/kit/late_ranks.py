"""Ranks on late devices; a module of its own, so that a spawned process finds it by its name."""

from __future__ import annotations

from collections.abc import Sequence

from late import LatePlace
from runs import run_rank_of

from contraflow.executor.run import rank
from contraflow.executor.run.job import Job


def run_late_rank_of(number: int, ranks: int, jobs: Sequence[Job], folder: str) -> None:
    """One process of `run_together` whose copies run as late as they may."""
    rank.place_of = lambda device, local_rank: LatePlace()  # type: ignore[assignment]
    run_rank_of(number, ranks, jobs, folder)
