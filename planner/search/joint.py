"""plan_family(): which teams, and how many samples a micro-batch; the search of every such point shares the time.

A point (ways of a team, micro-batch size) is a problem of its own, so the space is their union: its bound is the least
of theirs. All begin with uniform grids; points whose bound is no less than the best plan are dropped; the likeliest
is searched next, then every other for a while, then the best of all again, then the best with whole blocks as layers
where it has their parts; it gets the rest of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ... import __version__
from .. import bounds
from ..basics import ModelError, WorkloadError, collecting_seldom, end_asked, heeding_ctrl_c, listed
from ..plan import Plan, Problem, Provenance
from ..problem import Cluster, ModelFamily, ModelGraph, Point, SearchSpace, Workload, at_speeds, choose_ways
from ..schedules import ASYNCHRONOUS
from .answers import answer
from .coarser import OfBlocks
from .common import COUNT, HOPE, SHARE, TOLERANCE, Clock, OnProgress, PointFound, Progress, Proven, Result, told
from .driver import Search, plan
from .given_cut import family_of_cut
from .named import expected_s
from .proofs import asked
from .request import asked_for, check_effort
from .sharding import searched_sharded


@dataclass(frozen=True)
class Choice:
    """What `plan_family` may choose among.

    Attributes:
        samples: of a step, in all micro-batches of all pipelines together.
        teams: ranks of a team; None: all that the family has and every node can form.
        micro_batch_sizes: samples of a micro-batch; None: all that the family has and that divide `samples`.
    """

    samples: int
    teams: tuple[int, ...] | None = None
    micro_batch_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Effort:
    """How long and how reproducibly to search, as for `plan`; both limits are of all points together."""

    time_limit: float = 60
    seed: int = 0
    workers: int = 2
    deterministic_limit: float | None = None


@heeding_ctrl_c()
def plan_family(
    family: ModelFamily,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    space: SearchSpace = SearchSpace(),  # noqa: B008 - immutable
    effort: Effort = Effort(),
    on_progress: OnProgress | None = None,
) -> Result:
    """The fastest plan found for a family over all points of a choice, with a bound for all of them together.

    `workload.micro_batches` is replaced by `choice.samples` over the micro-batch size of the point. Status, bound and
    gap of the answer speak for all points; `Result.points` and the plan's provenance say what became of each. With one
    point this is `plan` of it. Raises InputError: a team that does not divide a node, a size that was not profiled,
    samples that a size does not divide, and what `plan` raises.
    """
    check_effort(effort.time_limit, effort.seed, effort.workers, effort.deterministic_limit, None)
    if space.cut is not None:

        def searched(members: ModelFamily, free: SearchSpace, hear: OnProgress) -> Result:
            return plan_family(members, cluster, workload, choice, free, effort, hear)

        return family_of_cut(searched, family.on(cluster), space, on_progress)
    found = points(family.on(cluster), cluster, choice)
    if not flushed(space) and len({one.point.micro_batch_size for one in found}) > 1:
        raise WorkloadError("without a flush micro-batch sizes are not compared: give one")
    searches = [_Search(one, workload, space) for one in found]
    return _Joint(searches, space, effort, on_progress).answer()


def flushed(space: SearchSpace) -> bool:
    """Whether plans of the space update all weights at the end of a step."""
    return not space.asynchronous and space.schedule not in ASYNCHRONOUS


@dataclass(frozen=True)
class Chosen:
    """A point as a problem: its model, the cluster of its teams, its micro-batches."""

    point: Point
    model: ModelGraph
    cluster: Cluster
    micro_batches: int
    interpolated: bool = False


def points(family: ModelFamily, cluster: Cluster, choice: Choice) -> list[Chosen]:
    """All points of a choice, small teams and small micro-batches first. Raises InputError."""
    found: list[Chosen] = []
    if isinstance(choice.samples, bool) or not isinstance(choice.samples, int) or choice.samples < 1:
        raise WorkloadError(f"samples must be a whole number of at least 1, got {choice.samples!r}")
    for ways in choose_ways(family, cluster, choice.teams):
        known = [size for size in family.sizes(ways) if choice.samples % size == 0]
        for size in dict.fromkeys(known if choice.micro_batch_sizes is None else choice.micro_batch_sizes):
            point = Point(ways, size)
            if size < 1 or choice.samples % size:
                raise WorkloadError(f"{choice.samples} samples do not divide into micro-batches of {size}")
            model = family.point(point)
            teams = at_speeds(cluster.teams(point.team), model)
            found.append(Chosen(point, model, teams, choice.samples // size, not family.measured(point)))
    if not found:
        sizes = listed([str(size) for size in sorted({x.micro_batch_size for x in family.members})])
        raise ModelError(f"no profiled micro-batch size ({sizes}) divides {choice.samples} samples")
    return found


@dataclass
class _Search:
    """One point: what is proven of it, and the best plan.

    Attributes:
        bound_s: what every plan takes, before `prove` has looked at its memory. likely_s: a guess at what is found.
        search, of_blocks: of the layers as they are, and of whole blocks.
        hope: of what a point that found nothing may still find, the part that is left; hope_of_blocks: the same of its
            plans of whole blocks. owed: of a turn, to its plans of whole blocks.
    """

    of: Chosen
    workload: Workload
    space: SearchSpace
    bound_s: float = field(init=False)
    likely_s: float = field(init=False)
    proven: bool = False
    found: Result | None = None
    search: Search | None = None
    of_blocks: OfBlocks | None = None
    seconds: float = 0.0
    hope: float = 1.0
    hope_of_blocks: float = 1.0
    owed: float = 0.0

    def __post_init__(self) -> None:
        self.workload = replace(self.workload, micro_batches=self.of.micro_batches)
        problem, space = self._asked_for()
        if not flushed(space):  # what counts is the period
            self.proven = True
            self.bound_s = self.likely_s = bounds.period(problem, space) if space.asynchronous else 0.0
            return
        fits = bounds.possible(problem, space)
        self.bound_s = bounds.any_plan(problem, space.split_backward) if fits else math.inf
        self.likely_s = max(self.bound_s, expected_s(problem, space)) if fits else math.inf

    def _asked_for(self) -> tuple[Problem, SearchSpace]:
        problem, space = asked_for(self.of.model, self.of.cluster, self.workload, self.space)
        return searched_sharded(problem, space), space

    def prove(self) -> None:
        """Bounds the step under the limits of memory as well, once."""
        if not self.proven and math.isfinite(self.bound_s):
            self.bound_s = max(self.bound_s, asked(*self._asked_for()).bound_s)
        self.proven = True

    @property
    def guess_s(self) -> float:
        """What more time may come to: part of the way from the best plan to the bound."""
        if math.isinf(self.step_s):
            return self.likely_s
        return self.step_s - self.hope * HOPE.of_gap * max(0.0, self.step_s - self.bound_s)

    @property
    def plan(self) -> Plan | None:
        return None if self.found is None else self.found.plan

    @property
    def step_s(self) -> float:
        if self.found is not None and self.found.seconds is not None:
            return self.found.seconds
        return math.inf if self.search is None else self.search.session.best_s

    @property
    def settled(self) -> bool:
        """Whether more time changes nothing: proven optimal, or proven that nothing fits."""
        return self.found is not None and self.found.status in ("optimal", "infeasible")

    def run(self, effort: Effort, on_progress: OnProgress | None) -> None:
        """Searches on from where it ended; without a flush from the best plan so far."""
        began = time.monotonic()
        with collecting_seldom():
            found = self._searched(effort, on_progress) if flushed(self.space) else self._planned(effort, on_progress)
        self.seconds += time.monotonic() - began
        self.proven = True
        self.bound_s = math.inf if found.status == "infeasible" else max(self.bound_s, found.bound_s)
        if self.plan is None or (found.seconds is not None and found.seconds <= self.step_s):
            self.found = found

    def begun(self, effort: Effort, on_progress: OnProgress | None) -> Search:
        """The search of this point, which has tried nothing."""
        problem, space = asked_for(self.of.model, self.of.cluster, self.workload, self.space)
        self.search = Search(problem, space, _clock(effort), effort.seed, effort.workers, on_progress)
        return self.search

    def _searched(self, effort: Effort, on_progress: OnProgress | None) -> Result:
        if self.search is not None:
            return self.search.go_on(_clock(effort), on_progress)
        return self.begun(effort, on_progress).run(None)

    def _planned(self, effort: Effort, on_progress: OnProgress | None) -> Result:
        hint, of = None if self.found is None else self.found.plan, self.of
        limits = (effort.time_limit, effort.seed, effort.workers, effort.deterministic_limit)
        return plan(of.model, of.cluster, self.workload, self.space, *limits, hint, on_progress)

    def run_of_blocks(self, effort: Effort, on_progress: OnProgress | None) -> None:
        """Searches on with whole blocks, where layers are parts of some; the search of the parts has begun."""
        if self.of_blocks is None:
            searched = flushed(self.space) and self.space.schedule == "search"
            self.of_blocks = OfBlocks(self.search if searched else None, partial(Search, space=self.space))
        with collecting_seldom():
            self.of_blocks.run(_clock(effort), on_progress)
        if self.search is not None and self.search.session.best_s < self.step_s:
            self.found = answer(self.search.session, self.search.orders, None)

    def turn_of_blocks(self) -> bool:
        """Whether its next turn is for its plans of whole blocks: every other one where there is hope, and less often.

        A turn is for one of the two: halves of short ones would be too short for either.
        """
        if self.of_blocks is None or not self.of_blocks.near:
            return False
        self.owed += self.hope_of_blocks / 2
        turn = self.owed >= 1 / 2
        self.owed -= turn
        return turn

    def heed(self, of_blocks: bool, found: bool) -> None:
        """A turn has found a shorter plan, or has not."""
        if of_blocks:
            self.hope_of_blocks = 1.0 if found else HOPE.fruitless
        else:
            self.hope = 1.0 if found else HOPE.fruitless * self.hope

    def told(self, best_s: float, chosen: bool) -> PointFound:
        """What became of the point."""
        said = "searched"
        if chosen:
            said = "chosen"
        elif math.isinf(self.bound_s):
            said = "does not fit the memory"
        elif self.bound_s >= best_s * (1 - TOLERANCE.same):
            said = "cannot be shorter than the best plan"
        step_s = None if math.isinf(self.step_s) else self.step_s
        at = self.of
        return PointFound(at.point, at.micro_batches, at.interpolated, self.bound_s, step_s, said, self.seconds)


def _clock(effort: Effort) -> Clock:
    now = time.monotonic()
    return Clock(now + effort.time_limit, effort.deterministic_limit, now)


class _Joint:
    """The searches of all points, and the time that they share."""

    def __init__(
        self, searches: Sequence[_Search], space: SearchSpace, effort: Effort, on_progress: OnProgress | None
    ) -> None:
        self.searches, self.space, self.effort, self.on_progress = list(searches), space, effort, on_progress
        self.began = time.monotonic()
        self.spent = 0.0  # of the deterministic limit, as a share

    @property
    def best(self) -> _Search:
        return min(self.searches, key=lambda one: (one.step_s, one.bound_s))

    @property
    def bound_s(self) -> float:
        """No plan of any point takes less."""
        return min(one.bound_s for one in self.searches)

    def alive(self) -> list[_Search]:
        """Those that may still have the best plan, the most promising first."""
        worth_s = self.best.step_s * (1 - TOLERANCE.same)
        found = [one for one in self.searches if one.bound_s < worth_s and not one.settled]
        return sorted(found, key=lambda one: (one.guess_s, one.bound_s))

    def answer(self) -> Result:
        """Shares the time among the points, and says what is the best plan, and what is proven."""
        several = len(self.searches) > 1
        if several and flushed(self.space):
            self._grids(SHARE.grids, COUNT.uniform, relieved=False)
            self._grids(SHARE.relieved_grids, COUNT.relieved_grids, relieved=True)
        self._some(self.alive()[:1] if several else [], SHARE.likeliest_point)
        self._some([one for one in self.alive() if one.found is None], SHARE.other_points)
        among = self.alive()[: COUNT.best_points]
        self._some(among if len(among) > 1 else [], SHARE.best_points)
        near_s = self.best.step_s * (1 + HOPE.blocks)
        for one in self.alive() if several else ():
            if one.step_s <= near_s:
                self._run_of_blocks(one, SHARE.blocks)
        if several and flushed(self.space) and self.effort.deterministic_limit is None:
            self._go_on()
        tried: set[int] = set()
        while rest := [one for one in self.alive() if id(one) not in tried]:
            tried.add(id(rest[0]))
            self._run(rest[0], 1.0)
        if self.best.found is None:  # proven before any search; what is lacking is said of the largest team
            self._run(max(self.searches, key=lambda one: one.of.point.team), 1.0)
        return self._told()

    def _go_on(self) -> None:
        """By turns of a part of the time that is left: the point with the best plan, then the one that is most
        promising, and again; its blocks where near.
        """
        turns = 0
        while self._left > SHARE.last_turn and (alive := self.alive()):
            one = self.best if turns % 2 == 0 and self.best in alive else alive[0]
            turns, before_s, step_s = turns + 1, self._left, one.step_s
            share = max(SHARE.turn * self._left, min(self._left, SHARE.least_turn))
            of_blocks = one.turn_of_blocks()
            (self._run_of_blocks if of_blocks else self._run)(one, share)
            one.heed(of_blocks, one.step_s < step_s * (1 - TOLERANCE.same))
            if not of_blocks and self._left > before_s - SHARE.idle_turn * share:
                return

    def _grids(self, share: float, most: int, relieved: bool) -> None:
        """The uniform grids of all points together, the most promising first; or those that must be relieved."""
        limit, tried, now = self.effort.deterministic_limit, 0, time.monotonic()
        end = now + share * self.effort.time_limit if limit is None else self.began + self.effort.time_limit
        clock = Clock(end, limit, self.began)
        searches = [one.search or one.begun(self.effort, self._listener(one)) for one in self.alive()]
        while searches and tried < most and not clock.over(False):
            search = min(searches, key=lambda one: one.next_point_s(relieved))
            if search.next_point_s(relieved) >= self.best.step_s:
                return
            tried += search.try_point(clock, self.best.step_s, relieved)

    def _some(self, among: Sequence[_Search], share: float) -> None:
        """Shares a part of the time equally; points that are dropped meanwhile leave theirs to those behind them."""
        for number, one in enumerate(among):
            began_s, began = time.monotonic(), self.spent
            part = share / (len(among) - number)
            self._run(one, part)
            used = (time.monotonic() - began_s) / self.effort.time_limit
            share = max(0.0, share - (used if self.effort.deterministic_limit is None else self.spent - began))

    def _run(self, one: _Search, share: float) -> None:
        """Gives a point so much of the time and of the effort, at most what is left, unless it has become hopeless."""
        if any(other.found is not None for other in self.searches):
            one.prove()
            if self._over(one):
                return
        one.run(self._part(share), self._listener(one))

    def _run_of_blocks(self, one: _Search, share: float) -> None:
        """The same for its plans of whole blocks, once its parts have been searched."""
        if one.search is not None and one.search.ran and not self._over(one):
            one.run_of_blocks(self._part(share), self._listener(one))

    def _over(self, one: _Search) -> bool:
        return self._left <= 0 or end_asked() or one not in self.alive()

    @property
    def _left(self) -> float:
        """The share of the effort that is left."""
        if self.effort.deterministic_limit is not None and self.spent >= 1:
            return 0.0
        left = 1 - (time.monotonic() - self.began) / self.effort.time_limit
        return left if self.effort.deterministic_limit is None or left <= 0 else 1 - self.spent

    def _part(self, share: float) -> Effort:
        """So much of the time and of the effort, at most what is left."""
        share = min(share, 1 - self.spent)
        limit = self.effort.deterministic_limit
        seconds = max(0.0, self.effort.time_limit - (time.monotonic() - self.began))
        if limit is None:
            seconds = min(seconds, share * self.effort.time_limit)
        else:
            limit, self.spent = share * limit, self.spent + share
        return replace(self.effort, time_limit=seconds, deterministic_limit=limit)

    def _listener(self, one: _Search) -> OnProgress | None:
        tell, before = self.on_progress, time.monotonic() - self.began
        if tell is None:
            return None
        others = [other for other in self.searches if other is not one]
        which = f"{one.of.point}: " if others else ""

        def heard(progress: Progress) -> bool | None:
            steps = [progress.step_s or math.inf, one.step_s, *(other.step_s for other in others)]
            bound_s = min([max(progress.bound_s, one.bound_s), *(other.bound_s for other in others)])
            step_s = min(steps)
            known = None if math.isinf(step_s) else step_s
            best = progress.plan if progress.step_s == known else self.best.plan
            phase = f"{which}{progress.phase}"
            return tell(Progress(before + progress.seconds, known, min(bound_s, step_s), phase, best))

        return heard

    # ------------------------------------------------------------ the answer

    def _told(self) -> Result:
        best = self.best
        for one in self.searches:
            if one.bound_s < best.step_s:
                one.prove()
        found = best.found or next(one.found for one in self.searches if one.found is not None)
        said = tuple(one.told(best.step_s, one is best and found.plan is not None) for one in self.searches)
        if len(self.searches) == 1:
            return replace(found, points=said, plan=None if found.plan is None else _noted(found.plan, said))
        if found.plan is None:
            impossible = all(one.settled or math.isinf(one.bound_s) for one in self.searches) and found.violations
            bound_s = self.bound_s if math.isfinite(self.bound_s) else found.bound_s
            return replace(found, status="infeasible" if impossible else "unknown", bound_s=bound_s, points=said)
        listed = "; ".join(str(one.of.point) for one in self.searches)
        words = f"{found.plan.provenance.space}; {len(said)} points: {listed}"
        parts = [Proven(f"plans for {best.of.point}", best.bound_s)]
        made = replace(found.plan.provenance, version=__version__, seconds=time.monotonic() - self.began)
        noted, made = _noted(found.plan, said), _points_of(made, said)
        whole = told(noted, Proven(words, self.bound_s), parts, made, found.considered)
        return replace(whole, points=said, methods=found.methods)


def _points_of(made: Provenance, said: Sequence[PointFound]) -> Provenance:
    return replace(made, points="; ".join(map(str, said)))


def _noted(found: Plan, said: Sequence[PointFound]) -> Plan:
    """The plan whose provenance says what became of all points."""
    return replace(found, provenance=_points_of(found.provenance, said))


__all__ = ["Choice", "Effort", "plan_family", "points"]
