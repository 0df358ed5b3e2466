"""Runs of any_model.py in processes that stay: starting one, with torch and a library, takes longer than a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kit"))

from kept_ranks import kept
from runs import collected, run_rank_of

from contraflow.executor.run.job import Job
from contraflow.executor.run.result import RunResult
from contraflow.models import once


def run_together(jobs: Sequence[Job], folder: Path) -> list[RunResult]:
    """Runs jobs on equally many ranks one after another; a module is exported once in every process."""
    kept(jobs[0].ranks).run(_rank, jobs[0].ranks, jobs, str(folder))
    return collected(jobs, folder)


def _rank(rank: int, ranks: int, jobs: Sequence[Job], folder: str) -> None:
    with once.kept():
        run_rank_of(rank, ranks, jobs, folder)
