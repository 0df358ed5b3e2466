"""What a search remembers from one round to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...basics import OutOfTime
from ...lower import Assembled
from ...plan import Plan
from .considered import Ledger
from .effort import COUNT, HOPE, ROUND, SIZE
from .fit import lacking
from .groups import Groups


@dataclass
class Simulated:
    """What has been simulated, by what was; None where it does not run. `room`: ops of what may still be remembered.

    parts: the same of one of several equal groups.
    """

    known: dict[Hashable, object] = field(default_factory=dict)
    room: int = SIZE.simulated_ops
    parts: dict[Groups, Simulated] = field(default_factory=dict)

    def keep(self, key: Hashable, found: object, ops: int) -> None:
        """Remembers something of so many ops where there is room."""
        if ops <= self.room:
            self.room -= ops
            self.known[key] = found

    def of(self, groups: Groups) -> Simulated:
        """What has been simulated of one of these groups."""
        return self.parts.setdefault(groups, Simulated())


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
        begun: by name, searches that go on where they ended (periodic blocks, grown rules, free placement), and what is
            still to be tried of uniform grids.
        races: how often orders have been searched, in all rounds. turns: how many rounds there were, short ones too.
        credits: by the part of a round, what its share is multiplied by; 1 where it is not there.
        hunt: the exact search, which goes on where it ended. arms: orders that the last search of orders ended with;
            paused: that search, where it had too little time.
        placed: the same of the search for forward and backward devices. placed_in_vain: how long it has found nothing,
            and the best step then.
        resumed: whether an earlier search had the quick plans of this problem.
        seen: what was simulated. widths: what an earlier search of the same problem came to, by groups of devices.
        descended: plans whose stash choices have been looked at one by one.
        refined: the last plan that was tried with finer stages. ended: with other ends of stages, by these descents.
        parted: the last plan on all groups of whose part on this group was asked.
        trials: the quick plans that are still to be tried; None before they begin. through: all have been.
        plainly_tried: those have been that leave stashes where they are.
        tries: what is still to be tried of stages with replicas of their own; None before it is known. tried: nothing.
        relieved_on: the searches on one of several equal groups that fit those whose stashes are relieved.
        ledger: what to tell those who ask what was looked at.
        short: rounds that were too short for two spaces.
        hopes: what is hoped of ways to form groups that had turns and found nothing, as a part of what was at first.
            leads: whether the next turn is for the one with the best plan.
        laid: names and steps of plans of one of several equal groups that have been laid on all of them.
        layouts: which layouts have been simulated on which cuts. simulations: what came to `remember`.
        simulated: named orders with every stash kept, which all searches of one problem share, whatever they allow.
    """

    count: int = 0
    races: int = 0
    turns: int = 0
    credits: dict[str, float] = field(default_factory=dict)
    hunt: object = None
    arms: list[object] = field(default_factory=list)
    paused: object = None
    placed: list[object] = field(default_factory=list)
    placed_in_vain: tuple[float, float] = (0.0, math.inf)
    resumed: bool = False
    seen: list[Assembled] = field(default_factory=list)
    widths: dict[Groups, Earlier] = field(default_factory=dict)
    descended: list[Plan] = field(default_factory=list)
    refined: Plan | None = None
    parted: Plan | None = None
    ended: Plan | None = None
    descents: list[Iterator[bool]] = field(default_factory=list)
    trials: Iterator[None] | None = None
    through: bool = False
    plainly_tried: bool = False
    tries: Iterator[Callable[[], None]] | None = None
    tried: bool = False
    begun: dict[str, object] = field(default_factory=dict)
    relieved_on: dict[Groups, object] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    short: int = 0
    hopes: dict[Groups, float] = field(default_factory=dict)
    leads: bool = True
    laid: set[tuple[str, float]] = field(default_factory=set)
    simulated: Simulated = field(default_factory=Simulated)
    layouts: set[Hashable] = field(default_factory=set)
    simulations: int = 0

    @classmethod
    def after(cls, earlier: Earlier | None, simulated: Simulated) -> Rounds:
        """Of a search that goes on from an earlier one of the same problem."""
        if earlier is None:
            return cls(simulated=simulated)
        return cls(count=earlier.count, resumed=True, seen=list(earlier.seen), simulated=simulated)

    @property
    def fresh(self) -> bool:
        """Whether nothing but first plans and uniform grids has been tried."""
        return not self.resumed and self.trials is None and not self.widths

    def join(self, other: Earlier) -> None:
        """Goes on with what another search of this problem simulated, too."""
        self._add(other.seen)
        self.resumed = True

    def _add(self, others: Iterable[Assembled]) -> None:
        known = set(map(id, self.seen))
        self.seen += [found for found in others if id(found) not in known]

    def tried_before(self, *what: Hashable) -> bool:
        """Whether this was simulated before; it is now."""
        if what in self.layouts:
            return True
        self.layouts.add(what)
        return False

    def remember(self, found: Assembled, best_s: float) -> None:
        """Keeps what was simulated for later: of what is large, only what is the best of its kind so far, without its
        lists, and no more than a few.

        That is the fastest that fits, or what lacks least memory.
        """
        self.simulations += 1
        if len(found.ops) <= SIZE.remembered_ops:
            self.seen.append(found)
            return
        short = lacking(found)
        if self.seen and short >= lacking(self.seen[-1]) and (short or found.forecast.step_s >= best_s):
            return
        large = [one for one in self.seen if len(one.ops) > SIZE.remembered_ops]
        dropped = set(map(id, large[: max(0, len(large) + 1 - COUNT.large_remembered)]))
        self.seen[:] = [*(one for one in self.seen if id(one) not in dropped), replace(found, ops=replace(found.ops))]

    def take_up(self, other: Rounds, planned: bool) -> None:
        """Goes on where another search of this problem ended; `planned`: with a plan.

        Groups without a plan so far may have one where more is allowed, so they begin again.
        """
        self._add(other.seen)
        self.placed = [*other.placed, *self.placed]
        self.widths = {groups: width for groups, width in other.widths.items() if math.isfinite(width.laid_s)}
        self.count, self.resumed = other.count + 1, planned

    def take_widths(self, other: Rounds, allowed: Callable[[Plan], bool]) -> None:
        """Takes what another search of this problem came to on equal groups, where that is better and allowed here."""
        for groups, width in other.widths.items():
            known = self.widths.get(groups)
            better = known is not None and width.laid_s < known.laid_s
            if known is not None and better and width.best is not None and allowed(width.best):
                self.widths[groups] = replace(known, best=width.best, laid_s=width.laid_s)

    def keep(self, groups: Groups, width: Earlier) -> None:
        """What the search on a way to form groups came to."""
        self.widths[groups] = width

    def heed(self, groups: Groups, found: bool) -> None:
        """A turn of a way to form groups has found a shorter plan, or has not: then the next is for another."""
        self.hopes[groups] = 1.0 if found else HOPE.fruitless * self.hopes.get(groups, 1.0)
        self.leads = found or not self.leads

    def resume(self, known: bool) -> None:
        """The quick plans are known only if these are too."""
        self.resumed &= known

    def again(self) -> None:
        """One more round begins."""
        self.count += 1

    def turn(self) -> int:
        """How many rounds were there before: in each another part comes first."""
        self.turns += 1
        return self.turns - 1

    def others_turn(self) -> bool:
        """Whether a round too short for two spaces is for the one that has not the best plan."""
        self.short += 1
        return self.short % ROUND.other_space == 0

    def credit(self, part: str, found: bool, idle: float = ROUND.idle) -> None:
        """What is tried in every round has found a shorter plan, or has not: then its share of the next is smaller.

        idle: by how much.
        """
        before = self.credits.get(part, 1.0)
        self.credits[part] = 1.0 if found else max(ROUND.least_credit, idle * before)

    def race(self) -> int:
        """The number of the next search of orders: no two have the same random numbers."""
        self.races += 1
        return COUNT.seeds_a_round * self.count + self.races - 1

    def end_race(self, arms: Sequence[object], paused: object = None) -> None:
        """What a search of orders ended with, best first: the next one goes on from these; or with what is paused."""
        self.arms, self.paused = list(arms[: COUNT.polished]), paused

    def end_placing(self, arms: Sequence[object], barren: float, best_s: float) -> None:
        """The same for forward and backward devices; `barren`: how long nothing has got better."""
        self.placed, self.placed_in_vain = list(arms[: COUNT.polished]), (barren, best_s)

    def barren(self, best_s: float) -> float:
        """How long the search for forward and backward devices has found nothing; 0 where there is a better plan."""
        barren, then_s = self.placed_in_vain
        return barren if best_s >= then_s else 0.0

    def goes_on(self, which: str, made: Callable[[], object]) -> object:
        """A search that goes on where it ended, or what is still to be tried, made when it is first asked for."""
        if which not in self.begun:
            self.begun[which] = made()
        return self.begun[which]

    def hunts(self, made: Callable[[], object]) -> object:
        """The exact search, made when it is first asked for."""
        if self.hunt is None:
            self.hunt = made()
        return self.hunt

    def go_on(self) -> None:
        """One more round begins, on the plans of those before."""
        self.again()
        self.resumed = True

    def refines(self, plan: Plan) -> bool:
        """Whether a plan is still to be tried with finer stages: once."""
        new = plan is not self.refined
        self.refined = plan
        return new

    def parts(self, plan: Plan) -> bool:
        """Whether this group's part of a plan is still to be taken over: once."""
        new = plan is not self.parted
        self.parted = plan
        return new

    def moving(self, plan: Plan, made: Callable[[], list[Iterator[bool]]]) -> list[Iterator[bool]]:
        """What is left of the descents that move ends of stages, made where they are the first from this plan."""
        if plan is not self.ended:
            self.ended, self.descents = plan, made()
        return self.descents

    def moved(self, plan: Plan) -> None:
        """What they have come to: there are no others from it."""
        self.ended = plan

    def descends(self, plan: Plan) -> bool:
        """Whether the stash choices of a plan are still to be looked at one by one."""
        return not self.resumed and all(plan is not done for done in self.descended)

    def end_descent(self, plan: Plan) -> None:
        """They have been."""
        self.descended.append(plan)

    def lays(self, source: str, step_s: float) -> bool:
        """Whether a plan of one group is to be laid on all: once."""
        new = (source, step_s) not in self.laid
        self.laid.add((source, step_s))
        return new

    def to_try(self, listed: Callable[[], Iterable[Callable[[], None]]]) -> Iterator[Callable[[], None]]:
        """What is left to be tried of stages with replicas of their own, listed when it is first asked for.

        All has been tried when the next is asked for and there is none.
        """
        if self.tries is None:
            self.tries = iter(listed())
        yield from self.tries
        self.tried = True

    def end_plain_trials(self) -> None:
        """Of the quick plans those are left that change what becomes of stashes."""
        self.plainly_tried = True

    def go_on_with(self, trials: Callable[[], Iterator[None]]) -> Iterator[None]:
        """The quick plans one by one, from where an earlier round of them ended; all have been tried at the end."""
        if self.trials is None:
            self.trials = trials()
        try:
            for _ in self.trials:  # not `yield from`, which would close them with this one
                yield
        except OutOfTime:  # what was raised within them has ended them
            self.trials = None
            raise
        self.through = True
