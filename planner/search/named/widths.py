"""Data parallelism: equal groups of devices run the same plan on their part of the micro-batches.

One group is a smaller problem of its own, searched like any other; its best plan is then laid on all groups, completed
with the reductions between them, and simulated as a whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...basics import ScheduleError
from ...bounds import any_plan, possible
from ...lower import Assembled
from ...partition import Chain
from ...plan import Plan, Problem
from ...problem import SearchSpace
from ..common import (
    COUNT,
    HOPE,
    MODEL,
    SECONDS,
    SHARE,
    SIZE,
    TOLERANCE,
    Earlier,
    Groups,
    Progress,
    Rounds,
    Session,
    lacking,
    objective_s,
)
from .finer import offer_finer, run_finer
from .first_group import lies_on, of_first_group
from .laying import best_laid, least_across, reduction_s, splits
from .least_memory import overfull_here
from .on_groups import named_on
from .portfolio import Order, device_orders
from .stage_ends import move_ends

Phase = Callable[[Session, list[Order]], None]


@dataclass(frozen=True)
class Phases:
    """What a search of one problem consists of: its bound in seconds, a first plan, quick plans, long work on them.

    apart: quick plans whose stages have replicas each in its own number.
    """

    bound: Callable[[Session], float]
    first: Phase
    quick: Phase
    long: Phase
    apart: Callable[[Session], None]


@dataclass(eq=False)
class Width:
    """One way to form groups and the search on one of them; `groups` of one: the problem itself.

    `summed`: whether gradient sums between the groups take time. `laid_s`: the best plan's step on all groups.
    """

    session: Session
    groups: Groups
    orders: list[Order]
    summed: bool = False
    laid_s: float = math.inf
    ended: bool = False

    def earlier(self) -> Earlier:
        """What to go on from in a later search."""
        inner = self.session
        return Earlier(inner.best, self.laid_s, inner.seen, inner.rounds.count + self.ended)

    @property
    def guess_s(self) -> float:
        """What this width may come to: part of the way from its best plan to its bound; infinite without a plan."""
        if math.isinf(self.laid_s):
            return math.inf
        return self.laid_s - HOPE.of_gap * max(0.0, self.laid_s - self.session.bound_s)


def search_widths(session: Session, orders: list[Order], ways: list[Groups], phases: Phases) -> None:
    """Quick plans for every width, then long work on the most promising ones; offers what they find.

    Proves of widths: no plan of equal groups takes less whose groups lie in the shapes searched exactly.
    """
    problem = session.problem
    one = (tuple(range(len(problem.cluster))),)
    before = session.rounds.widths
    whole = Width(session, one, orders, laid_s=before[one].laid_s if one in before else math.inf)
    session.rounds.resume(one in before)
    ways = sorted(ways, key=lambda groups: _expected_s(problem, groups))
    # all devices as one group come first, unless most of them would have nothing to do
    idle = _alone_s(problem, one) > HOPE.idle * _expected_s(problem, ways[0])
    every = [width_of(session, groups) for groups in ways]
    if session.space.replicas is None:
        every.insert(len(every) if idle else 0, whole)
    session.parts.update((width.groups, width.session) for width in every if width is not whole)
    if session.best is not None and not any(lies_on(groups, session.best) for groups in ways):
        whole.laid_s = min(whole.laid_s, session.best_s)
    _bound_widths(session, whole, every)
    # a first look may have ended before anything was tried
    again = bool(before) and all(width.session.rounds.plainly_tried for width in every if _hopeful(session, width))
    _each(session, every, phases.first)
    every.sort(key=lambda width: width.laid_s)
    phases.apart(session)  # not as a plan of the whole: other groups get their time as before
    quick = SHARE.quick_again if again else SHARE.quick_on if before else SHARE.quick_turns
    with session.earning("quick plans", quick):
        _quick(session, every, whole, phases.quick, impatient=True)
    _each(session, [width for width in every if width is not whole], lambda inner, _: phases.apart(inner))
    phases.apart(session)
    _bound_widths(session, whole, every)
    if 2 * problem.workload.micro_batches * session.stages <= MODEL.ops:
        for width in every:
            if width is not whole and not session.over and _open(session, width):
                width.session.proof.of_searched(phases.bound(width.session))
        _bound_widths(session, whole, every)
    _at_length(session, whole, every, phases, again)
    for width in every:
        session.rounds.keep(width.groups, width.earlier())
        if width is not whole:
            _note(session, width)


def _at_length(session: Session, whole: Width, every: list[Width], phases: Phases, again: bool) -> None:
    """Long work: a look at the most promising widths, unless there was one in an earlier call, then turns."""
    timed = not session.clock.fixed
    looks = session.space.schedule == "search" and not (timed and again)
    for _ in range(COUNT.probed_widths if looks else 0):
        if timed and SHARE.probe * session.remaining_s < SECONDS.width_turn:
            break
        still = [width for width in every if _open(session, width)]
        hopeful = [width for width in still if not width.ended]
        if session.over or not hopeful or len(still) < 2:
            break
        _further(session, min(hopeful, key=lambda width: width.guess_s), phases, SHARE.probe)
        _bound_widths(session, whole, every)
    done: list[Width] = []
    while not session.over and (hopeful := [w for w in every if w not in done and _open(session, w)]):
        left_s, width, rival = session.remaining_s, *_next(session, hopeful)
        before_s, share = width.laid_s, 1.0
        if rival and timed and session.space.schedule == "search":
            share = max(SHARE.width_turn, min(1.0, SECONDS.width_turn / max(SECONDS.tick, left_s)))
        _further(session, width, phases, share)
        session.rounds.heed(width.groups, width.laid_s < before_s * (1 - TOLERANCE.same))
        _bound_widths(session, whole, every)
        if not timed or session.space.schedule != "search":
            break
        if session.remaining_s > left_s - SECONDS.no_progress:
            done.append(width)


def _next(session: Session, hopeful: list[Width]) -> tuple[Width, bool]:
    """The width with the best plan, or by turns, where that finds nothing, the most promising of the others.

    Those that had a turn and found nothing promise less than before, until none seems to come to less than the best;
    whether one does.
    """
    leader = min(hopeful, key=lambda width: (width.laid_s, width.guess_s))

    def hoped_s(width: Width) -> float:
        hope = HOPE.of_gap * session.rounds.hopes.get(width.groups, 1.0)
        step_s = width.laid_s if math.isfinite(width.laid_s) else HOPE.unlaid * session.best_s
        return step_s - hope * max(0.0, step_s - width.session.bound_s)

    others = [width for width in hopeful if width is not leader and hoped_s(width) < session.best_s]
    return (leader if session.rounds.leads else min(others, key=hoped_s, default=leader)), bool(others)


def quick_on_widths(session: Session, orders: list[Order], first: Phase, quick: Phase) -> None:
    """A first plan of every width, then quick plans of all in turns, as far as time goes."""
    whole = Width(session, (tuple(range(len(session.problem.cluster))),), orders)
    every = [width_of(session, groups) for groups in splits(session.problem, session.space)]
    if session.space.replicas is None:
        every.insert(0, whole)
    session.parts.update((width.groups, width.session) for width in every if width is not whole)
    _each(session, every, first)
    _quick(session, every, whole, quick)


def _each(session: Session, every: list[Width], phase: Phase, favourite: Width | None = None) -> None:
    """One phase on every width that may still be the best; the favourite may take longer than the others."""
    for width in every:
        if not session.over and _hopeful(session, width):
            _run(session, width, phase, SHARE.favourite_width if width is favourite else SHARE.other_width, 0.0)


def _quick(session: Session, every: list[Width], whole: Width, quick: Phase, impatient: bool = False) -> None:
    """Quick plans of every width that may still be the best, in turns: the next is whose took least time so far.

    `impatient`: until some bring nothing when all named schedules have been simulated; what changes their stashes takes
    longest, and comes last, but is all there is where no plan is yet near what is expected. At once where time is not
    what is shared out, or a problem with fewer micro-batches is searched.
    """
    if session.clock.fixed or session.ops > SIZE.one_cut:
        every = sorted(every, key=lambda width: width.laid_s)
        _each(session, every, quick, every[0] if math.isfinite(every[0].laid_s) else whole)
        return
    enough_s = HOPE.unlikely * expected_s(session.problem, session.space) if impatient else 0.0
    idle, spent_s = 0, dict.fromkeys((width.groups for width in every), 0.0)
    while not session.over:
        left = [width for width in every if _hopeful(session, width) and not width.session.rounds.through]
        if not left or (impatient and idle >= COUNT.idle_turns * len(left) and session.best_s <= enough_s):
            return
        width, before_s, began = min(left, key=lambda width: spent_s[width.groups]), session.best_s, time.monotonic()
        _run(session, width, quick, SHARE.quick_turn / len(left), 0.0)
        spent_s[width.groups] += max(SECONDS.tick, time.monotonic() - began)  # a single trial may take longer
        found = math.isinf(before_s) or session.best_s < before_s * (1 - TOLERANCE.same)
        idle = 0 if found or not all(width.session.rounds.plainly_tried for width in left) else idle + 1


def _hopeful(session: Session, width: Width) -> bool:
    return _open(session, width) and _alone_s(session.problem, width.groups) < session.best_s


def _note(session: Session, width: Width) -> None:
    """What became of a width: its searches' notes, or why there were none."""
    inner = width.session
    what = f"{len(width.groups)} groups of {len(width.groups[0])}"
    what += "" if width.groups[0][-1] - width.groups[0][0] < len(width.groups[0]) else ", replicas side by side"
    bound_s, step_s = inner.proof.least_s, None if inner.best is None else inner.best_s
    tried = "searched" if width.ended else f"named schedules only ({len(inner.seen)} simulated)"
    left_out = not width.ended and not _open(session, width)
    session.ledger.note(what, bound_s, step_s, "" if left_out or not inner.seen else tried)
    session.ledger.adopt(inner.ledger, what)


def _further(session: Session, width: Width, phases: Phases, share: float) -> None:
    """Long work on a width; from the second time on with other random numbers."""
    inner = width.session
    if inner is not session:
        inner.proof.of_searched(phases.bound(inner))
    if width.ended:
        inner.rounds.again()
    width.ended = True
    _run(session, width, phases.long, share, share)


def _bound_widths(session: Session, whole: Width, every: list[Width]) -> None:
    session.proof.of_widths(min((w.session.proof.least_s for w in every if w is not whole), default=math.inf))


def _open(session: Session, width: Width) -> bool:
    """Whether plans of this width may still be the best."""
    return width.session.proof.least_s < session.best_s * (1 - TOLERANCE.same)


def width_of(session: Session, groups: Groups) -> Width:
    """A search of one group: the one with most micro-batches."""
    problem, most = session.problem, session.space.pipelines
    batches = -(-problem.workload.micro_batches // len(groups))
    sides = problem.workload.groups * len(groups)
    workload = replace(problem.workload, micro_batches=batches, groups=sides, across=least_across(problem, groups))
    small = Problem(problem.model, problem.cluster.part(groups[0]), workload)
    alone = None if session.space.replicas is None else 1
    space = replace(session.space, pipelines=None if most is None else max(1, most // len(groups)), replicas=alone)

    def heard(event: Progress) -> None:
        session.report(named_on(groups, event.phase))

    known = session.rounds.widths.get(groups)
    laid_s = math.inf if known is None else known.laid_s
    if groups in session.parts:  # it goes on
        inner = session.parts[groups]
        inner.rounds.again()
        if known is not None and known.best is not None and known.best is not inner.best:
            inner.incumbent.take(known.best, TOLERANCE.sums)
            inner.rounds.join(known)
        return Width(inner, groups, device_orders(small, inner.stages), reduction_s(problem, groups) > 0, laid_s)
    inner = session.inner(small, space, heard, Rounds.after(known, session.rounds.simulated.of(groups)))
    if known is not None:
        inner.incumbent.start_from(known.best)
    fits = possible(small, space) and not overfull_here(inner)
    inner.proof.of_searched(any_plan(small, space.split_backward) if fits else math.inf)
    return Width(inner, groups, device_orders(small, inner.stages), reduction_s(problem, groups) > 0, laid_s)


def _run(session: Session, width: Width, phase: Phase, share: float, effort: float) -> None:
    """One phase on one width with shares of the time and effort that are left; its best plan is laid on all groups."""
    inner, before_s = width.session, session.best_s
    if inner is not session:
        inner.incumbent.beat(session.incumbent.aim_s)
    with session.part(inner, share, effort):
        try:
            if inner is not session:  # what the phase before has found
                _take_part(session, width)
                if width.laid_s <= HOPE.near_width * session.best_s:
                    run_finer(inner)
                    move_ends(inner)
            phase(inner, width.orders)
        except ScheduleError:  # a named schedule that does not exist for one group
            if inner is session:
                raise
    if inner is session:
        width.laid_s = session.best_s if session.best_s < before_s else width.laid_s
        return
    session.clock.heed(inner.clock)
    width.laid_s = min(width.laid_s, inner.best_s)  # until it has been laid
    if inner.best is not None and inner.best_s < session.best_s and _lays(inner, inner.best):
        step_s = offered(session, width, inner.best)
        width.laid_s = width.laid_s if step_s is None else step_s
    for found in _others(session, width):
        if not session.over and inner.rounds.lays(found.source, found.forecast.step_s):
            step_s = offered(session, width, found.plan)
            width.laid_s = width.laid_s if step_s is None else min(width.laid_s, step_s)


def _take_part(session: Session, width: Width) -> None:
    """The search on a group goes on from the best plan of the whole, where that is one of these groups."""
    plan, inner = session.best, width.session
    if plan is None or objective_s(plan) >= inner.best_s or not inner.rounds.parts(plan):
        return
    part, most = of_first_group(inner.problem, width.groups, plan), inner.space.pipelines
    if part is not None and (most is None or len({p.forward for p in part.pipelines}) <= most):
        inner.offer(part, part.provenance.source)


def _others(session: Session, width: Width) -> list[Assembled]:
    """Plans of a group that may be better than its best once the sums that follow are there, the shortest first."""
    inner = width.session
    if not width.summed:
        return []
    known, best_s = inner.rounds.laid, session.best_s
    steps = ((x.forecast.step_s, n, x) for n, x in enumerate(inner.seen) if x.forecast.step_s < best_s)
    new = ((step_s, n, x) for step_s, n, x in steps if (x.source, step_s) not in known and not lacking(x))
    return [found for _, _, found in sorted(new)[: COUNT.laid]]


def _lays(inner: Session, plan: Plan) -> bool:
    return inner.rounds.lays(plan.provenance.source, objective_s(plan))


def offered(session: Session, width: Width, plan: Plan) -> float | None:
    """Lays a group's plan on all groups and offers it: its step in seconds, infinite if it does not run; or None."""
    found, most = best_laid(session.problem, width.groups, plan), session.space.pipelines
    if found is None or (most is not None and len({p.forward for p in found.pipelines}) > most):
        return math.inf
    assert found.forecast is not None
    step_s = found.forecast.step_s if session.offer(found, found.provenance.source) else math.inf
    if session.space.schedule == "search":  # one that is not the best may be, with its sums beside its backwards
        step_s = min(step_s, offer_finer(session, found))
    return step_s if math.isfinite(step_s) else None


# ------------------------------------------------------------------ guesses


def _expected_s(problem: Problem, groups: Groups) -> float:
    """Seconds of 1F1B on equal stages: which width to try first."""
    batches, devices = -(-problem.workload.micro_batches // len(groups)), _used(problem, groups)
    return _alone_s(problem, groups) * (1 + (devices - 1) / batches)


def expected_s(problem: Problem, space: SearchSpace) -> float:
    """A guess at the step that a search will find: that of 1F1B on equal stages, of the likeliest groups.

    Of groups that hold the parameters; as much of a micro-batch's stashes is made again as does not fit beside them.
    """
    chain, everything = Chain.of(problem), (tuple(range(len(problem.cluster))),)
    forward_s, work_s = chain.costs.forward_s.sum(), (chain.costs.forward_s + chain.costs.backward_s).sum()
    stashes = float(chain.stash.ends[-1])
    found = []
    for groups in (everything, *splits(problem, space)):
        used = _used(problem, groups)
        kept = float(chain.static_bytes[0].sum() - chain.optimizer_bytes.sum() * (1 - 1 / len(groups)))
        room = min(chain.limit(d) for d in groups[0]) - kept / used
        if room > 0 and work_s > 0:
            again = forward_s / work_s * max(0.0, 1 - room / stashes) if stashes else 0.0
            found.append(_expected_s(problem, groups) * (1 + again))
    return float(min(found, default=math.inf))


def _alone_s(problem: Problem, groups: Groups) -> float:
    """What the work of the busiest group takes at the least on as many devices as it can use."""
    speeds = sorted((problem.cluster.devices[d].kind.speed for d in groups[0]), reverse=True)
    work = sum(layer.forward_s + layer.backward_s for layer in problem.model.layers)
    return -(-problem.workload.micro_batches // len(groups)) * work / sum(speeds[: _used(problem, groups)])


def _used(problem: Problem, groups: Groups) -> int:
    return min(len(groups[0]), len(problem.model.layers))
