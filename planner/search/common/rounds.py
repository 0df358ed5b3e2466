"""What a search remembers from one round to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...lower import Assembled
from ...plan import Plan
from .considered import Ledger
from .effort import SIZE
from .fit import lacking

Groups = tuple[tuple[int, ...], ...]
"""Devices of every group, in the order of the one group that is searched."""


@dataclass(frozen=True)
class Earlier:
    """How far an earlier search on one way to form groups came: its best plan of one group, that plan's step on all
    groups in seconds, what it simulated, and how often it has been searched at length."""

    best: Plan | None
    laid_s: float
    seen: list[Assembled]
    count: int


@dataclass
class Rounds:
    """The rounds of a search.

    Attributes:
        count: how often it has been searched at length: later rounds try something else.
        resumed: whether an earlier search had the quick plans of this problem.
        seen: what was simulated. widths: what an earlier search of the same problem came to, by groups of devices.
        descended: plans whose stash choices have been looked at one by one.
        spread: whether stages with replicas of their own have been looked at.
        ledger: what to tell those who ask what was looked at.
    """

    count: int = 0
    resumed: bool = False
    seen: list[Assembled] = field(default_factory=list)
    widths: dict[Groups, Earlier] = field(default_factory=dict)
    descended: list[Plan] = field(default_factory=list)
    spread: bool = False
    ledger: Ledger = field(default_factory=Ledger)

    @classmethod
    def after(cls, earlier: Earlier | None) -> Rounds:
        """Of a search that goes on from an earlier one of the same problem."""
        return cls() if earlier is None else cls(earlier.count, True, list(earlier.seen))

    def remember(self, found: Assembled, best_s: float) -> None:
        """Keeps what was simulated for later: of what is large, only what is the best of its kind so far.

        That is the fastest that fits, or what lacks least memory.
        """
        if len(found.ops) > SIZE.remembered_ops and self.seen:
            short = lacking(found)
            if short >= lacking(self.seen[-1]) and (short or found.forecast.step_s >= best_s):
                return
        self.seen.append(found)

    def take_up(self, other: Rounds, planned: bool) -> None:
        """Goes on where another search of this problem ended; `planned`: with a plan.

        Groups without a plan so far may have one where more is allowed, so they begin again.
        """
        self.seen += other.seen
        self.widths = {groups: width for groups, width in other.widths.items() if math.isfinite(width.laid_s)}
        self.count, self.resumed = other.count + 1, planned

    def keep(self, groups: Groups, width: Earlier) -> None:
        """What the search on a way to form groups came to."""
        self.widths[groups] = width

    def resume(self, known: bool) -> None:
        """The quick plans are known only if these are too."""
        self.resumed &= known

    def again(self) -> None:
        """One more round begins."""
        self.count += 1

    def go_on(self) -> None:
        """One more round begins, on the plans of those before."""
        self.again()
        self.resumed = True

    def descends(self, plan: Plan) -> bool:
        """Whether the stash choices of a plan are to be looked at one by one: once."""
        new = not self.resumed and all(plan is not done for done in self.descended)
        if new:
            self.descended.append(plan)
        return new

    def spreads(self) -> bool:
        """Whether stages with replicas of their own are to be looked at: once."""
        new, self.spread = not self.spread, True
        return new
