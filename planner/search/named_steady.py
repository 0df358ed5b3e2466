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
from ..plan import Provenance
from ..schedules import Layout, build
from ..updates import on_lists, require_sound, with_updates
from ..version_copies import most_copies
from ..versions import update_size
from .considered import Considered
from .driver import Result
from .fit import lacking, shortages
from .portfolio import FEW_CUTS, LARGE, Order, place
from .session import PROVEN, Session

SPACE = "this schedule on any cut into as many contiguous stages, on these devices in any of the orders tried"


@dataclass(frozen=True)
class _Placed:
    """A schedule on devices: most copies of weights of every stage beyond the newest version, micro-batches an update.

    period_s: least seconds a micro-batch, whatever the cut.
    """

    session: Session
    layout: Layout
    order: Order
    copies: tuple[int, ...]
    update: int

    @classmethod
    def of(cls, session: Session, layout: Layout, order: Order) -> _Placed:
        """Raises PlanError where its updates do not come out."""
        placed = place(layout, order, len(session.problem.cluster))
        names = session.chain.names
        any_cut = (*((name,) for name in names[: layout.stages - 1]), names[layout.stages - 1 :])
        candidate = Candidate(session.problem, any_cut, placed.pipelines, (), layout.weights)
        require_sound(candidate)
        copies = most_copies(on_lists(candidate, with_updates(candidate, placed.orders)))
        return cls(session, placed, order, copies, update_size(candidate))

    def loads(self) -> Iterator[Floats]:
        """Seconds a micro-batch takes of the device of every stage, or of the link into it, by [first, end] layer."""
        chain = self.session.chain
        for stage, device in enumerate(self.order):
            before = chain.step_s(device)
            step = (before[None, :] - before[:, None]) / self.update
            link, _ = link_seconds(chain, self.order, stage)
            yield np.maximum(chain.seconds / chain.speed(device) + step, link[:, None])

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


def plan_named(session: Session, orders: list[Order]) -> Result:
    """The named asynchronous schedule with the shortest period that fits, and a bound on the period.

    Raises InputError where the schedule does not exist for these numbers.
    """
    batches = session.problem.workload.micro_batches
    placed = [_Placed.of(session, build(session.space.schedule, len(order), batches), order) for order in orders]
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
