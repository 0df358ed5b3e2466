"""The state of one call of plan(): the clock, the best plan so far, and what to tell the caller."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...basics import end_asked
from ...graph import OFFLOAD
from ...lower import Assembled
from ...partition import Chain
from ...plan import Plan, Problem
from ...problem import SearchSpace
from .considered import Ledger
from .effort import SIZE, TOLERANCE
from .fit import fits, lacking
from .two_device_space import pays, searchable


@dataclass(frozen=True)
class Progress:
    """What the search knows `seconds` after its start: best step, bound of the space asked for, and its phase."""

    seconds: float
    best_step_s: float | None
    bound_s: float
    phase: str

    @property
    def step_s(self) -> float | None:
        """The best step so far; None before the first plan that fits."""
        return self.best_step_s


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Begun:
    """How far a search on one way to form groups came: its best plan of one group, that plan's step on all groups in
    seconds, what it simulated, and how often it has been searched at length."""

    best: Plan | None
    laid_s: float
    seen: list[Assembled]
    rounds: int


@dataclass
class Session:
    """One search. `deadline`: time.monotonic() at which it must be done.

    plain: the best plan without copies to the host.
    asked_s: no plan of the space asked for takes less. bound_s: none of those that the search may find, whatever its
    shape. shapes_s: no plan of the shapes searched exactly takes less.
    widths_s: the same for plans of several equal groups. hopeless: no plan of these shapes fits the memory.
    apart: stages may have two devices, and ship their stashes. together_s: no plan takes less whose stages have one
    device each. most_s: plans in which some device computes for so long are of no use, whatever they are for.
    call_until: deadline of the whole call, of which this may be a part (0: this is it).
    begun: what an earlier search of the same problem came to, by groups of devices. resumed: whether it had the
    quick plans of this problem. longest_s: the longest simulation so far. descended: plans whose stash decisions have
    been looked at one by one.
    """

    problem: Problem
    space: SearchSpace
    deadline: float
    seed: int
    workers: int
    deterministic_limit: float | None
    on_progress: OnProgress | None
    started: float = field(default_factory=time.monotonic)
    best: Plan | None = None
    plain: Plan | None = None
    asked_s: float = 0.0
    bound_s: float = 0.0
    shapes_s: float = 0.0
    widths_s: float = math.inf
    hopeless: bool = False
    together_s: float = 0.0
    interrupted: bool = False
    most_s: float = math.inf
    call_until: float = 0.0
    begun: dict[object, Begun] = field(default_factory=dict)
    resumed: bool = False
    longest_s: float = 0.0

    def __post_init__(self) -> None:
        self.call_until = self.call_until or self.deadline
        self.chain = Chain.of(self.problem)
        self.seen: list[Assembled] = []
        self.few: Session | None = None
        self.ledger = Ledger()
        self.rounds = 0
        self.descended: list[Plan] = []
        searching = self.space.schedule == "search"
        self.apart = searching and pays(self.problem, self.space) and searchable(self.problem)

    @property
    def stages(self) -> int:
        """Stages of the search's space: as many as devices, fewer when there are fewer layers."""
        return min(len(self.chain), len(self.problem.cluster))

    @property
    def best_s(self) -> float:
        """Step of the best plan that fits; infinite before there is one."""
        if self.best is None or self.best.forecast is None:
            return math.inf
        return self.best.forecast.step_s

    @property
    def worth_s(self) -> float:
        """Only plans whose devices compute for less are of use (seconds)."""
        return min(self.best_s, self.most_s)

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the search has to stop: time is up, or there is a plan and no time to simulate another."""
        spare_s = 0.0 if self.best is None else self.longest_s
        return self.interrupted or end_asked() or self.remaining_s <= spare_s

    @property
    def proven(self) -> bool:
        """Whether no plan of the shapes searched is shorter than the best."""
        return self.best_s <= max(self.bound_s, self.shapes_s) * (1 + TOLERANCE.proven)

    @property
    def only_apart(self) -> bool:
        """Whether only plans with two devices a stage can still be shorter than the best."""
        return self.apart and 0 < self.best_s <= self.together_s * (1 + TOLERANCE.proven)

    @contextmanager
    def part(self, inner: Session, time_share: float, effort_share: float | None = None) -> Iterator[None]:
        """Lends `inner` shares of the time and of the deterministic effort that are left; takes Ctrl-C over."""
        deadline, limit = self.deadline, self.deterministic_limit
        share = time_share if effort_share is None else effort_share
        inner.deadline = min(deadline, time.monotonic() + time_share * max(0.0, self.remaining_s))
        inner.deterministic_limit = None if limit is None else share * limit
        try:
            yield
        except KeyboardInterrupt:
            inner.interrupted = True
        finally:
            inner.deadline, self.deadline = deadline, deadline
            self.deterministic_limit = None if limit is None else limit * (1 - share)
            self.interrupted |= inner.interrupted

    @contextmanager
    def hurried(self, share: float) -> Iterator[None]:
        """This search itself, with a share of the time and of the deterministic effort that are left."""
        deadline, limit = self.deadline, self.deterministic_limit
        self.deadline = time.monotonic() + share * max(0.0, self.remaining_s)
        self.deterministic_limit = None if limit is None else share * limit
        try:
            yield
        finally:
            self.deadline = deadline
            self.deterministic_limit = None if limit is None else limit * (1 - share)

    def without_copies(self) -> Session:
        """A search without copies to the host, from the best such plan on; what it finds is offered to this one."""

        def heard(event: Progress) -> None:
            if other.best is not None and other.best is not self.best:
                self.offer(other.best, event.phase)
            self.report(event.phase)

        space = replace(self.space, offload=False)
        other = replace(
            self,
            space=space,
            on_progress=heard,
            best=self.plain,
            shapes_s=0.0,
            together_s=0.0,
            hopeless=False,
            begun={},
        )
        other.ledger = self.ledger
        return other

    def remember(self, found: Assembled) -> None:
        """Keeps what was simulated for later: of what is large, only what is the best of its kind so far.

        That is the fastest that fits, or what lacks least memory.
        """
        if len(found.ops) > SIZE.remembered_ops and self.seen:
            short = lacking(found)
            if short >= lacking(self.seen[-1]) and (short or found.forecast.step_s >= self.best_s):
                return
        self.seen.append(found)

    def offer(self, plan: Plan, phase: str) -> bool:
        """Takes a simulated plan into account; True when it fits the memory."""
        if not fits(plan):
            return False
        assert plan.forecast is not None
        plain = self.plain
        if not any(OFFLOAD in row for row in plan.stash) and (plain is None or _step_s(plan) < _step_s(plain)):
            self.plain = plan
        if plan.forecast.step_s < self.best_s * (1 - TOLERANCE.better):
            self.best = plan
            self.report(phase)
        return True

    def report(self, phase: str) -> None:
        """Tells the caller where the search stands."""
        if self.on_progress is None:
            return
        step_s = None if self.best is None else self.best_s
        bound = self.asked_s if step_s is None else min(self.asked_s, step_s)
        self.on_progress(Progress(time.monotonic() - self.started, step_s, bound, phase))


def _step_s(plan: Plan) -> float:
    return math.inf if plan.forecast is None else plan.forecast.step_s
