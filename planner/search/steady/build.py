"""From the stages of a solution to a plan: start-up, F and B in turn, drain, on every group of devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ...basics import PlanError
from ...forecast import simulate_orders
from ...graph import costs_of, regroup, stash_policy, update_size
from ...lower import assembled, period_seconds, repeat
from ...plan import Kind, Op, Pipeline, Plan
from ..common import excess, host_excess
from .programme import Stage
from .tables import Split

NEVER, LATE, SOON = None, 1, 0
"""How many stashes that leave for the host may still be there when the next forward begins."""


def built(
    split: Split, order: Sequence[int], stages: Sequence[Stage], weights: str, source: str, leaving: int | None = NEVER
) -> Plan | None:
    """The plan of these stages with its forecast, but for the period; None where its lists cannot run.

    order: devices of a group, by stage, as positions in the group. Micro-batches are dealt out to the groups in turn.
    """
    problem, groups, chain = split.whole, split.groups, split.chain
    width, batches = len(groups), problem.workload.micro_batches
    names = tuple(chain.names[stage.first : stage.end] for stage in stages)
    pipelines, orders = [], [list[Op]() for _ in problem.cluster.devices]
    for g, devices in enumerate(groups):
        route = tuple(devices[position] for position in order[: len(stages)])
        mine = tuple(range(g, batches, width))
        pipelines.append(Pipeline(route, route, mine))
        for s, (device, stage) in enumerate(zip(route, sloping(stages), strict=True)):
            orders[device] = list(one_stage(s, stage, mine, leaving))
    rows = {
        m: tuple(stage.policy(k) for stage in stages) for p in pipelines for k, m in enumerate(p.micro_batches)
    }  # fmt: skip
    try:
        candidate = regroup(problem, names, pipelines, rows, weights)
        return assembled(candidate, orders, source, period=False).plan
    except PlanError:
        return None


def ways_to_leave(stages: Sequence[Stage]) -> tuple[int | None, ...]:
    """How many stashes that leave may still be there: the more, the sooner forwards run, with more memory taken."""
    return (NEVER, LATE, SOON) if any(stash_policy(stage.stash).hosted for stage in stages) else (NEVER,)


class _Made(Protocol):
    @property
    def excess(self) -> Excess: ...


_M = TypeVar("_M", bound=_Made)


def first_that_fits(made: Iterable[_M | None]) -> _M | None:
    """Of plans each of which takes less memory and runs slower the first that fits, else the last that runs."""
    last = None
    for one in made:
        last = one or last
        if one is not None and not one.excess.total:
            break
    return last


def with_period(plan: Plan) -> Plan:
    """The plan with the period in its forecast."""
    assert plan.forecast is not None
    return plan.with_forecast(replace(plan.forecast, period_s=period_seconds(plan)))


def sloping(stages: Sequence[Stage]) -> list[Stage]:
    """Stages with at least as many micro-batches in flight as the next: with fewer they would wait in a circle."""
    found: list[Stage] = []
    for stage in reversed(stages):
        most = max(stage.in_flight, found[-1].in_flight if found else 1)
        found.append(replace(stage, in_flight=most))
    return found[::-1]


def one_stage(s: int, stage: Stage, micro_batches: Sequence[int], leaving: int | None) -> Iterator[Op]:
    """F, B, R and FREE of one stage, or of one of its replicas: as many ahead as are in flight, then in turn."""
    policies = [stash_policy(stage.policy(k)) for k in range(len(micro_batches))]
    started = 0

    def forward() -> Iterator[Op]:
        nonlocal started
        gone = started - 1 - (leaving or 0)
        if leaving is not None and gone >= 0 and policies[gone].hosted:
            yield Op(Kind.FREE, s, micro_batches[gone])
        yield Op(Kind.F, s, micro_batches[started])
        started += 1

    while started < min(stage.in_flight, len(micro_batches)):
        yield from forward()
    for m, policy in zip(micro_batches, policies, strict=True):
        if policy.remade:
            yield Op(Kind.R, s, m)
        yield Op(Kind.B, s, m)
        if started < len(micro_batches):
            yield from forward()


@dataclass(frozen=True)
class Excess:
    """By how many bytes a plan exceeds the memory of every device, and of the hosts together."""

    devices: tuple[int, ...]
    hosts: int

    @property
    def total(self) -> int:
        """All of them; 0 where the plan fits."""
        return sum(self.devices) + self.hosts


def excess_for_long(plan: Plan, in_flight: int | None = None, whole: bool = True) -> Excess:
    """What a plan with a forecast exceeds, in its run and in one that is long enough to reach its steady state.

    `in_flight`: most micro-batches between F and B of a stage; None: as the lists of its devices say. `whole`: where
    its run already exceeds, how much the longer one does, too.
    """
    if not whole:
        at_once = Excess(tuple(excess(plan)), sum(host_excess(plan)))
        if at_once.total:
            return at_once
    runs, update = [plan], update_size(plan)
    most = max(map(_most_in_flight, plan.orders)) if in_flight is None else in_flight
    needed = 2 * len(plan.pipelines) * (most + 1) + 2 * update
    if plan.problem.workload.micro_batches < needed:
        try:
            longer = repeat(plan, -(-needed // update) * update)
            runs.append(longer.with_forecast(simulate_orders(longer, costs_of(longer), longer.orders).forecast()))
        except PlanError:
            pass
    devices = [max(over) for over in zip(*(excess(run) for run in runs), strict=True)]
    return Excess(tuple(devices), max(sum(host_excess(run)) for run in runs))


def _most_in_flight(order: Sequence[Op]) -> int:
    """Most micro-batches between F and B in a device's list."""
    started = most = 0
    for op in order:
        started += (op.kind is Kind.F) - (op.kind is Kind.B)
        most = max(most, started)
    return most
