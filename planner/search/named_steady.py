"""A named asynchronous schedule on its best cut: the one whose steady state takes the least time a micro-batch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ... import __version__
from ..bounds.whole import load
from ..errors import PlanError
from ..lower import Assembled, assembled
from ..operations import Candidate
from ..partition.chain import Cuts, Floats, bottleneck, compositions, link_seconds, trace
from ..plan import Kind, Plan, Provenance
from ..schedules import Layout, build
from ..updates import on_lists, with_updates
from ..version_copies import most_copies
from ..versions import update_size
from ..weight_policy import WEIGHT_POLICIES
from ..workload import Workload
from .considered import Considered
from .driver import Result
from .fit import lacking, shortages
from .portfolio import FEW_CUTS, LARGE, Order, place
from .session import PROVEN, Session

SPACE = "this schedule on any cut into as many contiguous stages, on these devices in any of the orders tried"


@dataclass(frozen=True)
class _Placed:
    """A schedule on devices.

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
        # two runs that reach the steady state, whole updates both: between them everything repeats
        short = -(-4 * stages // update) * update
        runs = [_listed(session, order, replace(workload, micro_batches=n * update + short)) for n in (0, 12)]
        few, many = ([_predicts(run, stage) for stage in range(stages)] for run in runs)
        often = tuple((b - a) / (12 * update) for a, b in zip(few, many, strict=True))
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
        problem, own = self.session.problem, self.session.chain.costs.own_bytes
        bandwidth = problem.cluster.devices[self.order[stage]].kind.memory_bandwidth
        if bandwidth is None or not self.predictions[stage]:
            return 0.0
        first = WEIGHT_POLICIES[self.layout.weights].momentum_first
        traffic = [problem.workload.predict_traffic_bytes(int(count), first) for count in own]
        before = np.concatenate([[0.0], np.cumsum(traffic)]) * self.predictions[stage] / bandwidth
        return np.asarray(before[None, :] - before[:, None], dtype=np.float64)

    def fitting(self, buffers: int) -> Iterator[Floats]:
        """The same, infinite where stashes, copies of weights and so many tensors at each boundary do not fit."""
        chain = self.session.chain
        weights = np.concatenate([[0.0], np.cumsum(chain.costs.parameter_bytes)])
        size = weights[None, :] - weights[:, None]
        for stage, table in enumerate(self.loads()):
            held = chain.bytes(self.layout.in_flight[stage], buffers) + self.copies[stage] * size
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
        small = 2 * self.session.problem.workload.micro_batches * self.layout.stages <= LARGE
        every = compositions(size - 1, self.layout.stages, FEW_CUTS) if small else None
        return list(dict.fromkeys([*found, *(every or ())]))

    def load_of(self, cuts: Cuts) -> float:
        """The heaviest device or link with this cut: no period is shorter."""
        ends = (0, *cuts, len(self.session.chain))
        return max(float(table[a, b]) for table, a, b in zip(self.loads(), ends, ends[1:], strict=False))


def _listed(session: Session, order: Order, workload: Workload) -> Plan:
    """The lists of the session's schedule on some cut, STEPs and PREDICTs included: of ops only, whatever they cost."""
    layout = build(session.space.schedule, len(order), workload.micro_batches)
    placed = place(layout, order, len(session.problem.cluster))
    names, inner = session.chain.names, layout.stages - 1
    problem = replace(session.problem, workload=workload)
    stages = (*((name,) for name in names[:inner]), names[inner:])
    candidate = Candidate(problem, stages, placed.pipelines, (), layout.weights)
    return on_lists(candidate, with_updates(candidate, placed.orders))


def _predicts(plan: Plan, stage: int) -> int:
    return sum(op.kind is Kind.PREDICT and op.stage == stage for order in plan.orders for op in order)


def plan_named(session: Session, orders: list[Order]) -> Result:
    """The named asynchronous schedule with the shortest period that fits, and a bound on the period.

    Raises InputError where the schedule does not exist for these numbers.
    """
    batches = session.problem.workload.micro_batches
    placed = [_Placed.of(session, order) for order in orders]
    bound_s = max(load(session.problem) / batches, min(one.bound_s for one in placed))
    best: Assembled | None = None
    tried: list[Assembled] = []
    try:
        for one in placed:
            for found in _simulated(one, best, tried):
                best = found
    except KeyboardInterrupt:
        session.interrupted = True
    return _answer(session, best, tried, bound_s)


def _simulated(one: _Placed, best: Assembled | None, tried: list[Assembled]) -> Iterator[Assembled]:
    """Plans that fit, each better than the one before; everything simulated is added to `tried`."""
    session = one.session
    for cuts in one.cuts():
        if session.over or (best is not None and one.load_of(cuts) > best.forecast.objective_s * (1 + PROVEN)):
            continue
        candidate = Candidate(session.problem, session.chain.stages(cuts), one.layout.pipelines, (), one.layout.weights)
        try:
            found = assembled(candidate, one.layout.orders, one.layout.name)
        except PlanError:
            continue
        tried.append(found)
        if not lacking(found) and (best is None or _key(found) < _key(best)):
            best = found
            yield found


def _key(found: Assembled) -> tuple[float, float]:
    return found.forecast.objective_s * (1 - 1e-12), found.forecast.step_s


def _answer(session: Session, best: Assembled | None, tried: list[Assembled], bound_s: float) -> Result:
    fit = [found.forecast.objective_s for found in tried if not lacking(found)]
    what = f"{session.space.schedule} on its best cuts: {len(tried)} simulated, {len(fit)} fit"
    considered = (Considered(what, bound_s, min(fit, default=None), "simulated"),)
    if best is None:
        least = min(tried, key=lacking, default=None)
        short = shortages(least.plan) if least is not None else ()
        return Result("unknown", None, bound_s, None, short, considered)
    seconds = best.forecast.objective_s
    bound_s = min(bound_s, seconds)
    gap = seconds / bound_s - 1 if bound_s > 0 else (0.0 if seconds == 0 else math.inf)
    status = "optimal" if gap <= PROVEN else "feasible"
    made = Provenance(__version__, session.seed, best.source, seconds=time.monotonic() - session.started, space=SPACE)
    forecast = replace(best.forecast, bound_s=bound_s, gap=gap, status=status)
    return Result(status, replace(best.plan, forecast=forecast, provenance=made), bound_s, gap, (), considered)
