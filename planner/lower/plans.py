"""Candidates and compute orders to plans, with their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..basics import check_time
from ..forecast import Timeline, build_columns, timeline_of
from ..graph import Candidate, Ops
from ..plan import Forecast, Kind, Op, Pipeline, Plan, Problem, Provenance
from ..problem import FLUSH
from .complete import Orders, completed
from .period import period_seconds


@dataclass(frozen=True, eq=False)
class Assembled:
    """Complete op lists as columns and their forecast: a plan but for the lists, which take longest to make."""

    candidate: Candidate
    ops: Ops
    forecast: Forecast
    source: str

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        c = self.candidate
        made = Provenance(source=self.source)
        return Plan(c.problem, c.stages, c.pipelines, self.ops.lists(), c.stash, c.weights, self.forecast, made)


def assembled(candidate: Candidate, compute_orders: Orders, source: str = "", period: bool = True) -> Assembled:
    """As `assemble`, without the lists; without `period`, an asynchronous plan's forecast has none."""
    timeline = simulated(candidate, compute_orders)
    found = Assembled(candidate, timeline.jobs.ops, timeline.forecast(), source)
    if candidate.weights == FLUSH or not period:
        return found
    return replace(found, forecast=replace(found.forecast, period_s=period_seconds(found.plan)))


def simulated(candidate: Candidate, compute_orders: Orders) -> Timeline:
    """The timeline of these compute orders, completed. Raises as `assemble`; its lists are left out."""
    ops, messages = completed(candidate, candidate.costs, compute_orders)
    check_time()
    jobs = build_columns(candidate, candidate.costs, ops, messages)
    check_time()
    return timeline_of(candidate, candidate.costs, jobs, ())


def assemble(candidate: Candidate, compute_orders: Orders, source: str = "") -> Plan:
    """The complete plan of these compute orders with its forecast.

    The orders hold F, B, I, W and R per device, and may hold OFFLOAD, FETCH, FREE, SEND_S and RECV_S at places of
    their own, and the STEPs of an asynchronous plan; those that are missing are placed, and every PREDICT anew.
    Raises Deadlock when the orders wait for each other in a circle, PlanError where updates do not come out.
    """
    return assembled(candidate, compute_orders, source).plan


def replicated(problem: Problem, devices: Sequence[int], source: str = "") -> Plan:
    """The plan with all layers on each of these devices, which take micro-batches in turn and run them one by one.

    Raises as `assemble`.
    """
    batches, count = problem.workload.micro_batches, len(devices)
    mine = {device: tuple(range(k, batches, count)) for k, device in enumerate(devices)}
    pipelines = tuple(Pipeline((device,), (device,), dealt) for device, dealt in mine.items())
    orders = [
        [Op(kind, 0, m) for m in mine.get(device, ()) for kind in (Kind.F, Kind.B)]
        for device in range(len(problem.cluster))
    ]
    layers = tuple(layer.name for layer in problem.model.layers)
    return assemble(Candidate(problem, (layers,), pipelines), orders, source)
