"""plan(): the search for a plan and its proof, within a time limit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from .. import bounds
from ..basics import OutOfTime, collecting_seldom, end_asked, heeding_ctrl_c, remembering, time_left, until
from ..graph import RECOMPUTE
from ..plan import Plan, Problem
from ..problem import Cluster, ModelGraph, SearchSpace, Workload
from ..schedules import ASYNCHRONOUS
from .answers import answer
from .both_sharings import better_of_both
from .common import (
    SECONDS,
    SHARE,
    SIZE,
    Clock,
    Incumbent,
    OnProgress,
    Progress,
    Result,
    Session,
    Shortage,
    Stale,
    policies,
    unknown,
)
from .given_cut import plan_of_cut
from .layer_orders import best_in_layer_orders, in_layer_orders
from .methods import best_method
from .named import (
    Order,
    Phases,
    device_orders,
    holds_all,
    move_ends,
    next_point_s,
    next_relieved_s,
    overfull_here,
    quick_on_widths,
    run_at_once,
    run_capped,
    run_copied,
    run_eager,
    run_fewer,
    run_finer,
    run_first_plan,
    run_folded,
    run_hint,
    run_laps,
    run_least_memory,
    run_lightest,
    run_mixed,
    run_named,
    run_nearby,
    run_other_cuts,
    run_relieved,
    run_relieved_grids,
    run_remade,
    run_replicas,
    run_uniform,
    search_widths,
    splits,
    try_point,
    try_relieved_point,
)
from .proofs import asked, searched, unrestricted
from .request import asked_for, check_effort
from .scale import fewer_batches, limit_uses, take_over
from .sharding import searched_sharded
from .techniques import by_turns


def _kept_again(session: Session, _: Order) -> Iterator[None]:
    """Of the best plans that recompute every stash, those kept that memory holds; whatever the order of devices is."""
    from .orders import keep_what_fits  # loads the compiler

    if RECOMPUTE in policies(session.problem, session.space):
        yield from keep_what_fits(session)


Step = Callable[[Session, Order], Iterator[None]]
"""A part of the quick plans: tries one after the other, with the devices in some order."""
KEPT: tuple[Step, ...] = (
    run_lightest,
    run_least_memory,
    run_first_plan,
    run_named,
    run_fewer,
    run_eager,
    run_mixed,
    run_other_cuts,
    run_nearby,
)
CHANGED: tuple[Step, ...] = (
    run_relieved,
    partial(run_fewer, fitted=True),
    run_copied,
    run_capped,
    run_remade,
    _kept_again,
)
"""The quick plans in their order: with stashes kept, or made again where they must be; then with all else."""
NAMED: tuple[Step, ...] = (
    run_named,
    run_other_cuts,
    run_nearby,
    run_mixed,
    partial(run_mixed, copies=True),
    run_relieved,
    run_remade,
)
"""Of one named schedule: where its stashes do not fit on its best cut, with what else the flags let become of them."""


@heeding_ctrl_c()
@collecting_seldom()
@remembering()
def plan(
    model: ModelGraph,
    cluster: Cluster,
    workload: Workload,
    space: SearchSpace = SearchSpace(),  # noqa: B008 - immutable
    time_limit: float = 60,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
    hint: Plan | None = None,
    on_progress: OnProgress | None = None,
    bound: bool = True,
) -> Result:
    """The fastest plan found within `time_limit` seconds, with a proven bound on its step.

    With `space.asynchronous`, weights are updated without a flush, and what counts is the period of a micro-batch.
    `space.schedule` plans a named schedule on its best cut. `deterministic_limit` bounds CP-SAT's deterministic
    time; the answer depends on the wall clock only where `time_limit` is reached. `hint`: a plan to start from.
    `bound=False` spends no time on the bound of a search with a flush: what it tells is the work on all devices, or the
    longest path. `on_progress` receives Progress in the caller's thread; where it returns True, the call ends with the
    best plan so far, as with Ctrl-C; a second Ctrl-C, a second later, raises KeyboardInterrupt where the first is not
    heeded.

    Raises InputError (a ValueError) for bad input; infeasible is an answer.
    """
    started = time.monotonic()
    check_effort(time_limit, seed, workers, deterministic_limit, hint)
    problem, space = asked_for(model, cluster, workload, space)
    if space.cut is not None:
        rest = {"cluster": cluster, "workload": workload, "seed": seed, "workers": workers, "hint": hint}
        rest |= {"deterministic_limit": deterministic_limit, "on_progress": on_progress, "bound": bound}
        return plan_of_cut(plan, model, space, time_limit, rest)
    clock = Clock(started + time_limit, deterministic_limit, started)
    search = Search(problem, space, clock, seed, workers, on_progress, bound)
    session, orders = search.session, search.orders
    if space.schedule in ASYNCHRONOUS:
        from .steady import plan_named

        return best_in_layer_orders(session, lambda part, _: plan_named(part, orders))
    if space.asynchronous:
        from .steady import search_steady

        def steady(part: Session, start: Plan | None) -> Result:
            return best_in_layer_orders(part, lambda one, found: search_steady(one, found or start, with_flush))

        return best_method(session, steady, hint)
    return better_of_both(search, lambda: search.without_sharing(), hint)


class Search:
    """The search for plans of a problem; one with a flush can go on in another call, where time was too short."""

    def __init__(
        self,
        problem: Problem,
        space: SearchSpace,
        clock: Clock,
        seed: int,
        workers: int,
        listener: OnProgress | None,
        bounded: bool = True,
    ) -> None:
        whole = searched_sharded(problem, space)
        self.session = Session(whole, space, clock, seed, workers, incumbent=Incumbent(listener), bounded=bounded)
        self.orders = device_orders(self.session.problem, self.session.stages)
        self.ran = False

    def without_sharing(self) -> Search:
        """A search of the same problem in which every replica has its whole optimizer."""
        session = self.session
        space, bounded = replace(session.space, shard_optimizer=False), session.bounded
        return Search(session.problem, space, session.clock, session.seed, session.workers, None, bounded)

    def next_point_s(self, relieved: bool = False) -> float:
        """Seconds that the next uniform grid is likely to come to, or the next that must be relieved; infinite where
        none is left.
        """
        return next_relieved_s(self.session) if relieved else next_point_s(self.session)

    def try_point(self, clock: Clock, worth_s: float, relieved: bool = False) -> int:
        """Only that grid, if it may come to less than `worth_s`; how many plans that were, or grids relieved."""
        session, most_s = self.session, self.session.incumbent.most_s
        session.go_on(clock, session.incumbent.listener, again=False)
        session.incumbent.limit(worth_s)
        try:
            return try_relieved_point(session) if relieved else try_point(session)
        except OutOfTime:
            return 0
        finally:
            session.incumbent.limit(most_s)

    def go_on(self, clock: Clock, listener: OnProgress | None, hint: Plan | None = None) -> Result:
        """The best plan by the end of another clock; hint: what another search has found meanwhile."""
        self.session.go_on(clock, listener, self.ran)
        return self.run(hint)

    def run(self, hint: Plan | None) -> Result:
        """The best plan by the end of the clock, or when nothing is left to do."""
        session, orders, clock = self.session, self.orders, self.session.clock
        self.ran = True
        try:
            with contextlib.suppress(OutOfTime), until(clock.deadline + SECONDS.grace):
                _search(session, orders, hint)
            clock.interrupt(end_asked())
        except KeyboardInterrupt:
            clock.interrupt()
        return self.told(hint)

    def told(self, hint: Plan | None) -> Result:
        """The answer with what is known so far."""
        return answer(self.session, self.orders, hint)


def with_flush(session: Session, problem: Problem, space: SearchSpace) -> Search:
    """A search with a flush beside another, which lends it its time."""
    return Search(problem, space, session.clock, session.seed, session.workers, None, session.bounded)


def _search(session: Session, orders: list[Order], hint: Plan | None) -> None:
    problem, space, proof = session.problem, session.space, session.proof
    if hint is not None and space.schedule == "search":
        run_hint(session, hint)
    if bounds.possible(problem, unrestricted(problem, space)):
        _first(session, orders)
    if not proof.looked:  # another call has proven it already
        with until(session.clock.deadline):
            proof.of_asked(_asked_bound(session), time_left() > 0)
    _first_of_many(session, orders)
    run_uniform(session)
    run_relieved_grids(session)
    same = searched(problem, space, session.ships) == unrestricted(problem, space)
    if not (proof.bound_s or same or space.schedule != "search"):
        proof.of_searched(_space_bound(session))
    proof.of_searched(proof.asked_s)
    if math.isinf(proof.bound_s) or (space.schedule == "search" and overfull_here(session)):
        return

    def search(part: Session) -> None:
        by_turns(part, _space_bound, lambda turn: _with_copies(turn, orders), lambda turn: _search_space(turn, orders))

    for number, _ in enumerate(session.clock.rounds()):
        if number:
            session.next_round()
        if hint is not None or not session.rounds.fresh:  # what another search has brought
            run_finer(session)
            move_ends(session)
        run_replicas(session)
        in_layer_orders(session, search)
        run_finer(session)
        if session.ended:
            return


def _with_copies(session: Session, orders: list[Order]) -> None:
    """Named orders with all that their stashes may become, where the space without copies is searched on its own."""
    quick_on_widths(session, orders, _first_plan, _copied)


def _copied(session: Session, orders: list[Order]) -> None:
    _go_through(session, lambda: _copied_trials(session, orders))


def _copied_trials(session: Session, orders: list[Order]) -> Iterator[None]:
    session.rounds.end_plain_trials()
    yield from _trials(session, orders, (run_relieved, partial(run_mixed, copies=True)))
    if not session.rounds.resumed:  # of these devices there is no plan without copies
        yield from _trials(session, orders, (*KEPT, *CHANGED))


def _tried(session: Session, orders: list[Order], *steps: Step) -> None:
    """Tries what these steps list, with the devices in every order."""
    for _ in _trials(session, orders, steps):
        if session.over:
            return


def _trials(session: Session, orders: list[Order], steps: Sequence[Step]) -> Iterator[None]:
    for step in steps:
        for order in orders:
            yield from step(session, order)


def _first(session: Session, orders: list[Order]) -> None:
    """A plan of a small problem before anything is proven: the time may suffice for one only."""
    space = session.space
    if session.ops > SIZE.one_cut or session.best is not None or (space.replicas or 1) > 1:
        return
    quick: tuple[Step, ...] = (run_at_once, run_lightest, run_first_plan, run_least_memory)
    for _ in _trials(session, orders[:1], quick if space.schedule == "search" else (run_named, run_mixed)):
        if session.best is not None or session.over:
            return


def _first_of_many(session: Session, orders: list[Order]) -> None:
    """The same of a large problem, where none is ruled out."""
    one_group = session.space.schedule == "search" and (session.space.replicas or 1) == 1
    if session.ops > SIZE.one_cut and one_group and session.best is None and math.isfinite(session.proof.asked_s):
        _tried(session, orders[:1], run_capped)


def _search_space(session: Session, orders: list[Order]) -> None:
    ways = list(splits(session.problem, session.space))
    if ways:
        search_widths(session, orders, ways, Phases(_space_bound, _first_plan, _quick, _long, _apart))
    else:
        _first_plan(session, orders)
        run_replicas(session)
        _quick(session, orders)
        run_replicas(session)
        _long(session, orders)


def _apart(session: Session) -> None:
    """Plans whose stages have replicas each in its own number, and gradient sums beside computing."""
    run_replicas(session)
    run_finer(session)


def _first_plan(session: Session, orders: list[Order]) -> None:
    """One plan at once where memory is tight."""
    if session.space.schedule == "search" and not session.rounds.resumed and session.rounds.trials is None:
        _tried(session, orders, run_first_plan)


def _asked_bound(session: Session) -> float:
    """Of the space asked for."""
    problem, space = session.problem, session.space
    if session.bounded:
        return asked(problem, space).bound_s
    return bounds.any_plan(problem) if bounds.possible(problem, unrestricted(problem, space)) else math.inf


def _space_bound(session: Session) -> float:
    """Of what a session searches."""
    if not session.bounded:
        return bounds.any_plan(session.problem)
    if session.space.schedule != "search":
        return asked(session.problem, session.space).bound_s
    if unknown(session.problem, session.space):
        return bounds.any_plan(session.problem, session.space.split_backward)
    return bounds.space(session.problem, searched(session.problem, session.space, session.ships))


def _quick(session: Session, orders: list[Order], whole: bool = True) -> None:
    """The named schedules, and what needs least memory; with many micro-batches, of a problem with fewer.

    whole: not such a part of another search.
    """
    if session.rounds.resumed or session.rounds.trials is not None:
        _copied(session, orders)
        return
    known = session.smaller
    small = known or session.scale_down(fewer_batches(session, _space_bound))
    if whole and known is None and session.ops > SIZE.one_cut and session.space.schedule == "search":
        _tried(session, orders, run_capped, run_eager)
        if not _grown(session, orders):
            _tried(session, orders, run_laps, run_folded)
        _blocks(session, orders)
    if small is not None:
        if not session.done:
            _quick(small, orders, whole=False)
            take_over(session, small, orders)
    elif not (whole and _vast(session)):
        _steps(session, orders)
    if session.space.schedule == "search":
        _tried(session, orders, run_least_memory)


def _steps(session: Session, orders: list[Order]) -> None:
    """Named schedules step by step, quick ones first; called again, it goes on where time was too short."""
    steps = KEPT if session.space.schedule == "search" else NAMED
    more = CHANGED if session.space.schedule == "search" else ()
    _go_through(
        session, lambda: chain(_trials(session, orders, steps), _plainly_tried(session), _trials(session, orders, more))
    )


def _plainly_tried(session: Session) -> Iterator[None]:
    """Notes that of the quick plans only those are left that change what becomes of stashes."""
    session.rounds.end_plain_trials()
    yield from ()


def _go_through(session: Session, trials: Callable[[], Iterator[None]]) -> None:
    """Quick plans from where the last time ended."""
    for _ in session.rounds.go_on_with(trials):
        if session.over:
            return


def _blocks(session: Session, orders: list[Order]) -> None:
    """Free placement and periodic blocks, in shares of the time; of many micro-batches, before named schedules."""
    if session.space.schedule == "search" and not session.done:
        from .flow import search_flow  # these load the compiler
        from .periodic import search_blocks

        search_flow(session, orders)
        search_blocks(session, orders)


def _grown(session: Session, orders: list[Order]) -> bool:
    """Rules of the dispatcher, in large problems from few devices grown; whether that is the best plan."""
    if session.space.schedule != "search" or session.done:
        return False
    if not orders or not holds_all(session, orders[0]):  # with less room blocks are better
        return False
    from .periodic import search_grown  # loads the compiler

    return search_grown(session, orders[:1])


def _vast(session: Session) -> bool:
    """Whether the named schedules take longer than what is left of them is worth: there is a plan, and no order of one
    stage a device can be annealed.
    """
    return session.best is not None and 3 * session.ops > 2 * SIZE.annealed_ops and session.space.schedule == "search"


def _long(session: Session, orders: list[Order]) -> None:
    """Exact search, races and windows; of a problem with fewer micro-batches first."""
    if session.space.schedule != "search" or session.done:
        return
    from .improve import improve  # solver and compiler: loaded when they are needed

    named, late = session.smaller is None and not session.rounds.resumed, _vast(session)
    if named and not late:
        _steps(session, orders)
    _grown(session, orders)
    _blocks(session, orders)
    if named and late:
        _steps(session, orders)
    if session.smaller is not None:
        limit_uses(session, session.smaller)
        with session.part(session.smaller, SHARE.scaled_down):
            _long(session.smaller, orders)
        take_over(session, session.smaller, orders)
    if not session.done:
        improve(session, orders)


__all__ = ["Progress", "Result", "Shortage", "Stale", "plan"]
