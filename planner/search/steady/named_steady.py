"""A named asynchronous schedule on its best cut: the one whose steady state takes the least time a micro-batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...basics import OutOfTime, check_time, until
from ...bounds import load
from ...forecast import most_copies
from ...graph import RECOMPUTE, Candidate, on_lists, update_size, with_updates
from ...lower import assembled
from ...partition import Cuts, Floats, bottleneck, cut_mixed, link_seconds, trace
from ...plan import Kind, Plan
from ...problem import WEIGHT_POLICIES, Workload
from ...schedules import Layout, build
from ..common import (
    COUNT,
    ONE_ORDER,
    SECONDS,
    Considered,
    Proven,
    Result,
    Session,
    answered,
    in_words,
    missing,
    policies,
    shortages,
    unanswered,
)
from ..named import Order, lightened, place, with_choices, with_recomputation
from .own_cuts import of_schedule, run_own_cuts
from .separate import TwoChains
from .trials import Trial, Tried, every_cut, lacks_least
from .two_devices import TwoDevices


@dataclass(frozen=True)
class _Placed:
    """A schedule on devices, one for every stage.

    copies: the most copies of every stage's weights beyond the newest version. predictions: PREDICTs of every stage a
    micro-batch in steady state. update: micro-batches an update.
    """

    session: Session
    layout: Layout
    order: Order
    copies: tuple[int, ...]
    predictions: tuple[float, ...]
    update: int

    @classmethod
    def of(cls, session: Session, order: Order) -> _Placed:
        """The session's schedule on devices in this order. Raises PlanError where its updates do not come out."""
        workload = session.problem.workload
        plan = _listed(session, order, workload)
        update, stages = update_size(plan), len(order)
        check_time()
        # two runs that reach the steady state, whole updates both: between them everything repeats
        short = -(-4 * stages // update) * update
        runs = [
            _listed(session, order, replace(workload, micro_batches=n * update + short))
            for n in (0, COUNT.steady_updates)
        ]
        less, more = (_predicts(run) for run in runs)
        often = tuple((more[stage] - less[stage]) / (COUNT.steady_updates * update) for stage in range(stages))
        layout = build(session.space.schedule, stages, workload.micro_batches)
        placed = place(layout, order, len(session.problem.cluster))
        return cls(session, placed, order, most_copies(plan), often, update)

    def loads(self) -> Iterator[Floats]:
        """Seconds a micro-batch takes of the device of every stage, or of the link into it, by [first, end] layer."""
        chain = self.session.chain
        for stage, device in enumerate(self.order):
            before = chain.step_s(device)
            each = (before[None, :] - before[:, None]) / self.update + self._predict_s(stage)
            link, _ = link_seconds(chain, self.order, stage)
            yield np.maximum(chain.seconds / chain.speed(device) + each, link[:, None])

    def _predict_s(self, stage: int) -> Floats | float:
        """Seconds a micro-batch of predicting the weights of every interval of layers; what ties share left out."""
        problem, own = self.session.problem, self.session.chain.costs.own_trained_bytes
        bandwidth = problem.cluster.devices[self.order[stage]].kind.memory_bandwidth
        if bandwidth is None or not self.predictions[stage]:
            return 0.0
        first = WEIGHT_POLICIES[self.layout.weights].momentum_first
        traffic = [problem.workload.predict_traffic_bytes(int(count), first) for count in own]
        before = np.concatenate([[0.0], np.cumsum(traffic)]) * self.predictions[stage] / bandwidth
        return np.asarray(before[None, :] - before[:, None], dtype=np.float64)

    def fitting(self, buffers: int) -> Iterator[Floats]:
        """The same, infinite where stashes, copies of weights and so many tensors at each boundary do not fit."""
        chain, in_flight = self.session.chain, self.layout.in_flight
        weights = np.concatenate([[0.0], np.cumsum(chain.costs.trained_bytes)])
        size = weights[None, :] - weights[:, None]
        for stage, table in enumerate(self.loads()):
            held = chain.bytes(in_flight[stage], buffers) + self.copies[stage] * size
            yield np.where(held > chain.limit(self.order[stage]), np.inf, table)

    @property
    def bound_s(self) -> float:
        """Least period of any cut: the heaviest device or link."""
        return bottleneck(self.loads(), len(self.session.chain) + 1)[0]

    def cuts(self) -> list[Cuts]:
        """Cuts worth simulating, the most promising first; all of them where they are few."""
        size = len(self.session.chain) + 1
        found = []
        for tables in (self.fitting(2), self.fitting(0), self.loads()):
            worst, choices = bottleneck(tables, size)
            if math.isfinite(worst):
                found.append(trace(choices, size - 1))
        return list(dict.fromkeys([*found, *(self._every or ())]))

    @cached_property
    def _every(self) -> list[Cuts] | None:
        return every_cut(self.session, self.layout.stages)

    @property
    def complete(self) -> bool:
        """Whether every cut is tried."""
        return self._every is not None

    @property
    def hopeless(self) -> bool:
        """Whether no cut has room for one stash at a time, whatever becomes of the others."""
        layout, row = self.layout, ((RECOMPUTE,) * self.layout.stages,)
        return self._every is not None and all(
            lacks_least(
                Candidate(self.session.problem, self.session.chain.stages(cuts), layout.pipelines, row, layout.weights)
            )
            for cuts in self._every
        )

    def trials(self) -> Iterator[Trial]:
        """A plan of every cut worth simulating; no period is shorter than its heaviest device or link."""
        problem, chain, layout = self.session.problem, self.session.chain, self.layout
        for cuts in self.cuts():
            ends = (0, *cuts, len(chain))
            least_s = max(float(table[a, b]) for table, a, b in zip(self.loads(), ends, ends[1:], strict=False))
            candidate = Candidate(problem, chain.stages(cuts), layout.pipelines, (), layout.weights)
            yield Trial(candidate, [lambda: layout.orders], layout.name, least_s)

    def lightened(self, tried: Tried, allowed: Collection[str]) -> None:
        """Tries the schedule with the cheapest stash choices that fit, less memory each time they do not."""
        chain, layout, loads = self.session.chain, self.layout, list(self.loads())
        weights = np.concatenate([[0.0], np.cumsum(chain.costs.trained_bytes)])
        size = weights[None, :] - weights[:, None]
        found = [cut_mixed(chain, self.order, layout.in_flight, allowed, more=[n * size for n in self.copies])]
        worst, choices = bottleneck(iter(loads), len(chain) + 1)
        found += [trace(choices, len(chain))] if math.isfinite(worst) else []
        for cuts in dict.fromkeys(c for c in found if c is not None):
            ends = (0, *cuts, len(chain))
            least_s = max(float(table[a, b]) for table, a, b in zip(loads, ends, ends[1:], strict=False))
            plain = Candidate(self.session.problem, chain.stages(cuts), layout.pipelines, (), layout.weights)
            less = [0] * len(self.session.problem.cluster)
            for device, n, a, b in zip(self.order, self.copies, ends, ends[1:], strict=False):
                less[device] = int(n * size[a, b])
            self._lighten(tried, plain, least_s, allowed, less)

    def _lighten(
        self, tried: Tried, plain: Candidate, least_s: float, allowed: Collection[str], less: Sequence[int]
    ) -> None:
        for _ in range(COUNT.fitted):
            chosen = lightened(plain, self.layout.orders, allowed, less)
            if chosen is None or self.session.over:
                return
            candidate = with_choices(plain, chosen[0])
            orders, fit = with_recomputation(candidate, self.layout.orders), tried.fit
            tried.run(self.session, [Trial(candidate, [lambda orders=orders: orders], self.layout.name, least_s)])  # type: ignore[misc]
            if tried.fit > fit:
                return
            over = missing(assembled(candidate, orders, period=False))
            less = [a + b for a, b in zip(less, over, strict=True)]


def _listed(session: Session, order: Order, workload: Workload) -> Plan:
    """The lists of the session's schedule on some cut, STEPs and PREDICTs included: of ops only, whatever they cost."""
    layout = build(session.space.schedule, len(order), workload.micro_batches)
    placed = place(layout, order, len(session.problem.cluster))
    names, inner = session.chain.names, layout.stages - 1
    problem = replace(session.problem, workload=workload)
    stages = (*((name,) for name in names[:inner]), names[inner:])
    candidate = Candidate(problem, stages, placed.pipelines, (), layout.weights)
    return on_lists(candidate, with_updates(candidate, placed.orders))


def _predicts(plan: Plan) -> Counter[int]:
    """PREDICTs of every stage."""
    return Counter(op.stage for order in plan.orders for op in order if op.kind is Kind.PREDICT)


def plan_named(session: Session, orders: list[Order]) -> Result:
    """The named asynchronous schedule with the shortest period that fits, and a bound on the period.

    Where stashes need not be kept, the cheapest choices that fit are tried as well.

    Raises InputError where the schedule does not exist for these numbers.
    """
    batches = session.problem.workload.micro_batches
    every_s, tried = load(session.problem) / batches, Tried(complete=False)
    allowed = policies(session.problem, session.space)
    bound_s, straight = every_s, session.problem.model.straight
    try:
        with until(session.clock.deadline + SECONDS.grace):
            placed = _places(session, orders)
            apart = of_schedule(session, tried) if _two_sided(session) else []
            cut_s = min(one.below_s if isinstance(one, TwoChains) else one.bound_s for one in apart or placed)
            bound_s = max(bound_s, cut_s)
            tried.complete = straight and all(one.complete for one in placed)
            for one in placed:
                tried.run(session, one.trials())
            for one in placed if allowed else ():
                if isinstance(one, _Placed):
                    one.lightened(tried, allowed)
                    tried.complete &= tried.best is not None or one.hopeless
            if apart:
                _cut_apart(session, tried, apart)
    except KeyboardInterrupt:
        session.clock.interrupt()
        tried.complete = False
    except OutOfTime:
        tried.complete = False
    text = in_words(session.space)
    if straight:
        return _answer(session, tried, Proven(text, bound_s), [])
    return _answer(session, tried, Proven(text, every_s), [Proven(f"{text}, {ONE_ORDER}", bound_s)])


def _two_sided(session: Session) -> bool:
    """Whether forwards and backwards of the schedule run on devices of their own."""
    return bool(build(session.space.schedule, 2, session.problem.workload.micro_batches).ahead)


def _cut_apart(session: Session, tried: Tried, every: list[TwoChains]) -> None:
    """Forwards and backwards on cuts of their own, and on as many devices each as is best."""
    run_own_cuts(session, every)
    for one in every if tried.best is None else ():
        one.shortest_of_memory()
        if one.least_bad is not None:
            tried.take(one.least_bad)
    tried.complete = tried.complete and all(one.hopeless for one in every)


def _places(session: Session, orders: list[Order]) -> Sequence[_Placed | TwoDevices]:
    if _two_sided(session):
        return [TwoDevices.of(session, order) for order in TwoDevices.orders(session)]
    return [_Placed.of(session, order) for order in orders]


def _answer(session: Session, tried: Tried, whole: Proven, parts: list[Proven]) -> Result:
    best, fit_s = tried.best, None if tried.best is None else tried.best_s
    what = f"{session.space.schedule} on its best cuts: {tried.simulated} simulated, {tried.fit} fit"
    considered = (Considered(what, whole.bound_s, fit_s, "simulated"),)
    if best is None:
        short = shortages(tried.least_bad.plan) if tried.least_bad is not None else ()
        return unanswered(whole.bound_s, short, tried.complete, considered)
    return answered(session, best.plan, whole, parts, considered)
