"""What a search looked at, for people who ask why: `contraflow plan --explain`, Result.considered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...graph import KEEP, Candidate
from ...problem import Point
from .effort import TOLERANCE


@dataclass(frozen=True)
class Considered:
    """A part of the space that was looked at.

    Attributes:
        what: in words: how many groups, stages a device, directions, what happens to stashes.
        bound_s: no plan of this part takes less.
        step_s: the best plan found in it, of one group where it is a part of groups; None without one.
        outcome: what became of it.
    """

    what: str
    bound_s: float
    step_s: float | None
    outcome: str


@dataclass(frozen=True)
class MethodFound:
    """What came of one of several weight policies without a flush.

    Attributes:
        status: of the search with it alone. predicted: whether it predicts weights.
        chosen: whether its plan is the answer.
        period_s, peak_bytes, staleness: of its plan: seconds a micro-batch, the most bytes of a device, most updates of
            staleness of every stage; None without a plan.
    """

    weights: str
    status: str
    predicted: bool
    chosen: bool
    period_s: float | None = None
    peak_bytes: int | None = None
    staleness: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PointFound:
    """What came of one point of a family: a way of forming teams and a micro-batch size.

    Attributes:
        micro_batches: of a step. interpolated: whether its costs lie between those of two profiled sizes.
        bound_s: no plan of this point takes less. step_s: its best plan; None without one.
        outcome: what became of it. seconds: that it was searched for.
    """

    point: Point
    micro_batches: int
    interpolated: bool
    bound_s: float
    step_s: float | None
    outcome: str
    seconds: float

    def __str__(self) -> str:
        """One line for people; bounds that are infinite are left out."""
        step = "no plan" if self.step_s is None else f"{self.step_s:.6g} s"
        bound = f", bound {self.bound_s:.6g} s" if math.isfinite(self.bound_s) else ""
        between = " (interpolated)" if self.interpolated else ""
        return f"{self.point}{between}: {step}{bound}, {self.outcome}"


class Ledger:
    """Notes of one search; of one part, the best step and the least bound are kept."""

    def __init__(self) -> None:
        self.parts: dict[str, Considered] = {}

    def note(self, what: str, bound_s: float, step_s: float | None, outcome: str = "") -> None:
        """Adds or updates a part; without an outcome, `settled` says how it compares with the best plan."""
        old = self.parts.get(what)
        if old is not None:
            bound_s = min(bound_s, old.bound_s)
            step_s = min((s for s in (step_s, old.step_s) if s is not None), default=None)
        self.parts[what] = Considered(what, bound_s, step_s, outcome)

    def adopt(self, other: Ledger, prefix: str) -> None:
        """Takes over the notes of a search of a part."""
        for part in other.parts.values():
            self.note(f"{prefix}: {part.what}", part.bound_s, part.step_s, part.outcome)

    def settled(self, best_s: float) -> tuple[Considered, ...]:
        """All notes in order, each with an outcome."""
        return tuple(
            part if part.outcome else replace(part, outcome=_outcome(part, best_s)) for part in self.parts.values()
        )


def _outcome(part: Considered, best_s: float) -> str:
    if math.isinf(part.bound_s):
        return "left out: does not fit the memory"
    if part.bound_s >= best_s * (1 - TOLERANCE.same):
        return "left out: cannot be shorter than the best plan"
    return "no order found that fits" if part.step_s is None else "searched"


def describe(candidate: Candidate) -> str:
    """Stages a device, the route, the number of directions, and what happens to stashes."""
    route = candidate.pipelines[0].forward
    devices = len(dict.fromkeys(route))
    chunks = len(route) // devices
    way = ""
    if chunks > 1:
        way = ", round and round" if route[:devices] == route[devices : 2 * devices] else ", back and forth"
    routes = len({(p.forward, p.backward) for p in candidate.pipelines})
    chosen = sorted({policy for row in candidate.stash for policy in row} - {KEEP})
    stages = f"{chunks} stage{'s' if chunks > 1 else ''} a device{way}"
    return f"{stages}, {routes} route{'s' if routes > 1 else ''}" + (f", some {' and '.join(chosen)}" if chosen else "")
