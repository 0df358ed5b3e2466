"""Memory that was promised and not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...planner import evaluate
from ...planner.graph import asynchronous, update_size
from ...planner.plan import Op, Plan
from ..step import lengthened
from .reports import RankReport

LONGER = 3
"""Runs of so many times a plan's own length have settled."""


@dataclass(frozen=True)
class Excess:
    """A device that held more than was planned, in bytes, and the op in which it did."""

    device: int
    measured_bytes: int
    planned_bytes: int
    op: Op | None

    def __str__(self) -> str:
        """In one line."""
        when = "" if self.op is None else f" in {self.op}"
        return f"device {self.device} held {self.measured_bytes} bytes{when}, {self.planned_bytes} were planned"


def planned_peaks(plan: Plan, updates: int) -> tuple[int, ...]:
    """Bytes that every device holds at the most in runs of up to so many updates.

    Without a flush a longer run may hold a little more than the plan's own where it has not settled by its end.
    """
    assert plan.forecast is not None, "it is executed"
    own, known = plan.forecast.peak_bytes, plan.problem.workload.micro_batches
    asked = min(updates * update_size(plan), LONGER * known)
    if not asynchronous(plan) or asked <= known:
        return own
    return tuple(map(max, own, evaluate(lengthened(plan, asked // update_size(plan))).peak_bytes))


def excesses(reports: Sequence[RankReport], planned: Sequence[int]) -> tuple[Excess, ...]:
    """The devices above their planned peaks, by what every rank reports."""
    return tuple(
        Excess(report.rank, report.peak_bytes, most, report.peak_op)
        for report, most in zip(reports, planned, strict=True)
        if report.peak_bytes > most
    )
