"""Named schedules without a flush whose stages run forward and backward on two devices.

What is tried: cuts, what happens to stashes from the first stage up to some stage, and how many micro-batches forwards
are ahead of the STEPs of their stage, with as little time as that can take. The simulation has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ...basics import check_time
from ...graph import (
    KEEP,
    OFFLOAD,
    RECOMPUTE,
    Candidate,
    require_sound,
    stash_policy,
    step_seconds,
    update_size,
    with_returns,
)
from ...lower import Orders
from ...partition import Cuts, Floats, bottleneck, trace
from ...plan import Kind, Op, Pipeline
from ...problem import WEIGHT_POLICIES, Link
from ...schedules import Layout, build
from ..common import SIZE, TOLERANCE, Session, priced
from ..named import Order, device_orders, place, with_recomputation
from .build import LATE, NEVER, SOON
from .rules import Rules
from .tables import Intervals
from .trials import Trial, every_cut, lacks_least

Row = tuple[str, ...]
"""A stash policy for every stage."""
TRANSIT = 2
"""Stashes of a stage on a device that only passes them on: one that is made or used, one that moves."""


@dataclass(frozen=True)
class TwoDevices:
    """A schedule on devices, two for every stage.

    update: micro-batches an update.
    """

    session: Session
    layout: Layout
    update: int

    @classmethod
    def of(cls, session: Session, order: Order) -> TwoDevices:
        """The session's schedule on devices in this order. Raises PlanError where its updates do not come out."""
        problem = session.problem
        layout = build(session.space.schedule, len(order), problem.workload.micro_batches)
        placed = place(layout, order, len(problem.cluster))
        inner = layout.stages - 1
        stages = session.chain.stages(tuple(range(1, inner + 1)))
        candidate = Candidate(problem, stages, placed.pipelines, (), layout.weights)
        require_sound(candidate)
        return cls(session, placed, update_size(candidate))

    @classmethod
    def orders(cls, session: Session) -> list[Order]:
        """Devices in the order of the schedule's: an even number of them, at most two for every layer."""
        devices = len(session.problem.cluster)
        even = devices - devices % 2 if devices > 1 else devices
        return device_orders(session.problem, min(even, 2 * len(session.chain)))

    @property
    def pipeline(self) -> Pipeline:
        """The only one."""
        return self.layout.pipelines[0]

    @cached_property
    def _intervals(self) -> Intervals:
        return Intervals.of(self.session.chain, replicated=False)

    # ---------------------------------------------------------------- what an interval of layers takes

    def loads(self, stage: int, policy: str) -> Floats:
        """Seconds a micro-batch takes of the busier device of a stage, or of a link, by [first, end] layer."""
        x, chain, cluster = self._intervals, self.session.chain, self.session.problem.cluster
        here, there = self.pipeline.forward[stage], self.pipeline.backward[stage]
        steps = chain.step_s(there)
        back = x.backward + (x.forward if stash_policy(policy).remade else 0.0)
        back = back / chain.speed(there) + (steps[None, :] - steps[:, None]) / self.update
        stash = x.incoming if stash_policy(policy).remade else x.stash
        moved = np.maximum(
            stash * self._stash_rate(stage, policy), x.own / cluster.link(there, here).bandwidth / self.update
        )
        busiest = np.maximum(np.maximum(x.forward / chain.speed(here), back), moved)
        busiest = np.maximum(busiest, self._entering_s(stage)[:, None])
        return np.where(np.tri(x.size, dtype=bool), np.inf, busiest)

    def _stash_rate(self, stage: int, policy: str) -> float:
        """Seconds a byte of a stash on the slowest way that it takes."""
        cluster = self.session.problem.cluster
        ends = self.pipeline.forward[stage], self.pipeline.backward[stage]
        if not stash_policy(policy).hosted:
            return 1 / cluster.link(*ends).bandwidth
        return max(1 / cluster.node_groups[cluster.devices[d].node].host_link.bandwidth for d in ends)

    def _entering_s(self, stage: int) -> Floats:
        """Seconds of the tensor that enters a stage, or of its gradient, by cut."""
        chain, cluster = self.session.chain, self.session.problem.cluster
        if stage == 0:
            return np.zeros(len(chain) + 1)
        there = cluster.link(self.pipeline.forward[stage - 1], self.pipeline.forward[stage])
        back = cluster.link(self.pipeline.backward[stage], self.pipeline.backward[stage - 1])
        return chain.boundary_bytes / min(there.bandwidth, back.bandwidth)

    def fitting(self, stage: int, policy: str) -> Floats:
        """The same, infinite where a full pipeline is estimated not to fit one of the two devices."""
        x, chain, ahead = self._intervals, self.session.chain, self.layout.ahead[stage]
        here, there = self.pipeline.forward[stage], self.pipeline.backward[stage]
        rules = Rules(WEIGHT_POLICIES[self.layout.weights], self.update, reduced=False)
        copies = float(rules.copies(np.array(float(ahead)), np.array(False)))
        moving = TRANSIT * (x.incoming if stash_policy(policy).remade else x.stash)
        kept = {KEEP: ahead * x.stash, OFFLOAD: moving, RECOMPUTE: ahead * x.incoming + x.stash}[policy]
        forward = 2 * x.held + x.workspace + moving  # a version that comes in beside the one in use
        backward = x.fixed + copies * x.held + kept
        too_much = (forward > chain.limit(here)) | (backward > chain.limit(there))
        return np.where(too_much, np.inf, self.loads(stage, policy))

    # ---------------------------------------------------------------- what is tried

    @cached_property
    def rows(self) -> list[Row]:
        """Policies of all stages: one for the first stages, where most is on its way, and the others keep theirs."""
        stages = range(self.layout.stages)
        return [(KEEP,) * len(stages)] + [
            (policy,) * (last + 1) + (KEEP,) * (len(stages) - last - 1)
            for policy in priced(self.session.problem, self.session.space)
            for last in stages
            if not stash_policy(policy).hosted or all(self._one_node(stage) for stage in stages[: last + 1])
        ]

    def _one_node(self, stage: int) -> bool:
        cluster = self.session.problem.cluster
        return cluster.same_node(self.pipeline.forward[stage], self.pipeline.backward[stage])

    @property
    def bound_s(self) -> float:
        """Least period of any cut: the heaviest device or link, whatever happens to stashes."""
        space = self.session.space
        policies = [KEEP, *([RECOMPUTE] if space.recompute else []), *([OFFLOAD] if space.offload else [])]
        tables = (
            np.minimum.reduce([self.loads(stage, policy) for policy in policies]) for stage in range(self.layout.stages)
        )
        return bottleneck(tables, self._intervals.size)[0]

    @cached_property
    def _every(self) -> list[Cuts] | None:
        return every_cut(self.session, self.layout.stages)

    @property
    def complete(self) -> bool:
        """Whether what is tried decides whether anything fits: no cut has room for one stash at a time."""
        row = (RECOMPUTE if self.session.space.recompute else KEEP,) * self.layout.stages
        return self._every is not None and all(lacks_least(self._candidate(row, cuts)) > 0 for cuts in self._every)

    def _cuts(self, row: Row) -> list[Cuts]:
        """Cuts worth simulating with these policies, the most promising first; all of them where they are few."""
        found, stages = [], list(enumerate(row))
        for table in (self.fitting, self.loads):
            worst, choices = bottleneck((table(*stage) for stage in stages), self._intervals.size)
            if math.isfinite(worst):
                found.append(trace(choices, self._intervals.size - 1))
        return list(dict.fromkeys([*found, *(self._every or ())]))

    def trials(self) -> Iterator[Trial]:
        """Everything that is tried, what can be fastest first; where nothing can fit, what lacks least memory."""
        found = [trial for row in self.rows for cuts in self._cuts(row) for trial in self._with_all(row, cuts)]
        lacks = [lacks_least(trial.candidate) for trial in found]
        worth = [trial for trial, lack in zip(found, lacks, strict=True) if lack <= 0]
        yield from sorted(worth or [found[int(np.argmin(lacks))]], key=lambda trial: trial.least_s)

    def _with_all(self, row: Row, cuts: Cuts) -> Iterator[Trial]:
        """With every number of micro-batches ahead that is worth trying: of a full pipeline, one more, and fewer."""
        check_time()
        layout, ends = self.layout, (0, *cuts, len(self.session.chain))
        load_s = max(float(self.loads(s, p)[ends[s], ends[s + 1]]) for s, p in enumerate(row))
        candidate = self._candidate(row, cuts)
        trips = Trips.of(candidate)
        full = tuple(min(n, SIZE.ahead) for n in trips.ahead(load_s))
        for ahead in dict.fromkeys(
            [full, tuple(n + 1 for n in full), *(tuple(min(n, most) for n in full) for most in range(max(full), 0, -1))]
        ):
            least_s = max(load_s, trips.least_s(ahead, self.update))
            ways = [
                partial(self._ordered, candidate, ahead, leaving, waits)
                for waits in ((False, True) if OFFLOAD in row else (False,))
                for leaving in (NEVER, LATE, SOON)
            ]
            yield Trial(candidate, ways, layout.name, least_s, ahead=max(ahead) + self.update)

    def _candidate(self, row: Row, cuts: Cuts) -> Candidate:
        stages, layout = self.session.chain.stages(cuts), self.layout
        return Candidate(self.session.problem, stages, layout.pipelines, (row,), layout.weights)

    def _ordered(self, candidate: Candidate, ahead: Sequence[int], leaving: int | None, waits: bool) -> Orders:
        row = candidate.stash[0]
        orders = with_recomputation(candidate, self.layout.orders)
        return with_returns(candidate, [_spared(order, row, leaving, waits) for order in orders], ahead)


def _spared(order: Sequence[Op], row: Row, leaving: int | None, waits: bool) -> list[Op]:
    """A compute order that holds fewer stashes for more waiting.

    leaving: forwards wait until at most so many stashes of their stage are still leaving. waits: a stash comes from the
    host when the backward before its own has ended, not while it runs.
    """
    found: list[Op] = []
    for op in order:
        whole = not stash_policy(row[op.stage]).remade
        if op.kind is Kind.F and leaving is not None and whole and op.micro_batch > leaving:
            found.append(Op(Kind.FREE, op.stage, op.micro_batch - 1 - leaving))
        if op.kind is Kind.B and waits and stash_policy(row[op.stage]).hosted:
            found.append(Op(Kind.FETCH, op.stage, op.micro_batch))
        found.append(op)
    return found


@dataclass(frozen=True)
class Trips:
    """How long a micro-batch takes from the start of its F on each stage to the end of its B there, in seconds.

    compute: what its passes take. whole: messages and copies included, each as if it had its link for itself. back:
    what comes then before a forward of the stage can use the result: the STEP, and new parameters on their way.
    """

    compute: tuple[float, ...]
    whole: tuple[float, ...]
    back: tuple[float, ...]

    @classmethod
    def of(cls, candidate: Candidate) -> Trips:
        """Of the only pipeline of a candidate whose stages send to the next one."""
        costs, cluster, (pipeline,) = candidate.costs, candidate.problem.cluster, candidate.pipelines
        speed = [device.kind.speed for device in cluster.devices]
        sizes = {edge.producer: edge.bytes for edge in costs.edges if edge.consumer == edge.producer + 1}
        compute, whole, back = [0.0], [0.0], []
        for s in reversed(range(len(candidate.stages))):
            here, there, policy = pipeline.forward[s], pipeline.backward[s], candidate.stash[0][s]
            f, b = float(costs.forward_s[s]) / speed[here], float(costs.backward_s[s]) / speed[there]
            if stash_policy(policy).remade:
                b += float(costs.forward_s[s]) / speed[there]
            inner = whole[-1]
            if s in sizes:
                inner += _seconds(cluster.link(here, pipeline.forward[s + 1]), sizes[s])
                inner += _seconds(cluster.link(pipeline.backward[s + 1], there), sizes[s])
            compute.append(f + b + (compute[-1] if s in sizes else 0.0))
            whole.append(f + max(inner, _crossing_s(candidate, s)) + b)
            returned = _seconds(cluster.link(there, here), int(costs.own_trained_bytes[s]))
            back.append(step_seconds(candidate, costs, s, there) + returned)
        return cls(tuple(compute[:0:-1]), tuple(whole[:0:-1]), tuple(back[::-1]))

    def ahead(self, period_s: float) -> tuple[int, ...]:
        """Micro-batches that a stage's forwards must be ahead of its STEPs for this period."""
        trips = zip(self.whole, self.back, strict=True)
        least = [
            max(1, math.ceil((trip + back) / period_s - TOLERANCE.same)) if period_s else 1 for trip, back in trips
        ]
        return tuple(int(n) for n in np.maximum.accumulate(least[::-1])[::-1])

    def least_s(self, ahead: Sequence[int], update: int) -> float:
        """No period is shorter with so many ahead: a forward waits for an update that ends at most so much earlier."""
        return max(trip / (n + update - 1) for trip, n in zip(self.compute, ahead, strict=True))


def _crossing_s(candidate: Candidate, stage: int) -> float:
    """Seconds from the end of F to where B has its stash (recompute: what it is made of)."""
    costs, cluster, (pipeline,) = candidate.costs, candidate.problem.cluster, candidate.pipelines
    here, there, policy = pipeline.forward[stage], pipeline.backward[stage], candidate.stash[0][stage]
    size = int(stash_policy(policy).moved_bytes(costs)[stage])
    if not stash_policy(policy).hosted:
        return _seconds(cluster.link(here, there), size)
    nodes = (cluster.node_groups[cluster.devices[device].node] for device in (here, there))
    return sum(_seconds(node.host_link, size) for node in nodes)


def _seconds(link: Link, size: int) -> float:
    """From the start of a message to its arrival."""
    return link.occupation_s(size) + link.latency_s
