"""Measured memory of every device stays within the plan's, and close to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from random_plans import plans_of, random_candidate
from runs import Case, planned, worst_excess

from contraflow.executor.run.launch import execute
from contraflow.executor.step.waits import waits
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.forecast import memory
from contraflow.planner.forecast.curves import curves
from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.graph import StageCosts, static_bytes
from contraflow.planner.graph.columns import Ints
from contraflow.planner.plan import Kind, Op, Plan
from contraflow.planner.simulate import evaluate, simulate

GPT = [
    *(Case(schedule, "gpt-tiny", 2, 4) for schedule in ("gpipe", "1f1b", "interleaved", "gems", "chimera")),
    Case("chimera", "gpt-tiny", 4, 8),
    Case("1f1b", "gpt-tiny", 2, 4, "adamw"),
    Case("gems", "gpt-mini", 2, 4, "sgd"),
]
OTHERS = [Case(schedule, model, 2, 4) for schedule in ("1f1b", "chimera") for model in ("mlp", "resnet-tiny")]


@pytest.mark.parametrize("case", GPT, ids=lambda case: "-".join(map(str, case)))
def test_gpt_peak_is_within_the_plan_and_within_ten_percent_of_it(case: Case) -> None:
    """From a real profile, byte for byte on every device."""
    for device, share in worst_excess(
        execute(planned(case), 2, dtype=case.dtype, transport="threads", self_check=False)
    ).items():
        assert 0.9 <= share <= 1.0, f"device {device}: measured / planned = {share:.4f}"


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: "-".join(map(str, case)))
def test_no_peak_exceeds_the_plan(case: Case) -> None:
    """Convolutions and BatchNorm keep more in reserve, but never less than they use."""
    for device, share in worst_excess(
        execute(planned(case), 2, dtype=case.dtype, transport="threads", self_check=False)
    ).items():
        assert share <= 1.0, f"device {device}: measured / planned = {share:.4f}"


# ---------------------------------------------------------------- whatever the weather


class _Latest(memory.Events):
    """What leaves does so when the executor first waits for it, not when the forecast has it leave."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        super().__init__(timeline.jobs, timeline.step_s)
        count = len(timeline.jobs.ops)
        self.gate, self.fetched = np.full(count, -1), np.full(count, np.inf)
        offset = 0
        for order, mine in zip(plan.orders, waits(plan), strict=True):
            for place, left in enumerate(mine.left):
                self._wait(order, offset, place, left)
            last = self.gate[offset : offset + len(order)]
            last[last < 0] = offset + len(order) - 1
            offset += len(order)

    def _wait(self, order: Sequence[Op], offset: int, place: int, left: Sequence[int]) -> None:
        if order[place].kind is Kind.FETCH:
            listed = [s for s in range(place) if order[s].kind in (Kind.OFFLOAD, Kind.SEND_S)]
            gone = offset + np.array([*left, *listed], dtype=np.int64)
            self.fetched[gone] = np.minimum(self.fetched[gone], self.jobs.start[offset + place])
        else:
            gone = offset + np.array(left, dtype=np.int64)
            self.gate[gone] = np.where(self.gate[gone] < 0, offset + place, self.gate[gone])

    def left(self, op: Ints, delta: Ints, category: int) -> None:
        gate = self.line.at(self.gate[op])
        early = self.fetched[op] <= self.line.time[gate]
        self._add_loose(op[early], self.fetched[op[early]], delta[early], category)
        self.listed.append((gate[~early], delta[~early], category))


def _peaks(events: memory.Events, plan: Plan, costs: StageCosts) -> list[int]:
    memory._compute_events(events, plan, costs)
    memory._message_events(events, plan, costs)
    memory._local_events(events, plan, costs)
    memory._away_events(events, plan, costs)
    return [device.peak_bytes for device in curves(events, static_bytes(plan, costs))]


def _shuffled(plan: Plan, rng: random.Random) -> Plan:
    """The plan with some neighbours in its lists exchanged, as far as the checker accepts."""
    for _ in range(6):
        device = rng.randrange(len(plan.orders))
        order = list(plan.orders[device])
        if len(order) > 1:
            k = rng.randrange(len(order) - 1)
            order[k : k + 2] = order[k + 1], order[k]
        orders = (*plan.orders[:device], tuple(order), *plan.orders[device + 1 :])
        changed = replace(plan, orders=orders)
        try:
            changed = changed.with_forecast(evaluate(changed))
        except PlanError:
            continue
        plan = plan if check(changed) else changed
    return plan


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_slow_messages_cost_no_memory(seed: int, apart: bool) -> None:
    """However late something leaves: what must not run before it has left waits for it, so the peaks are the plan's."""
    candidate = random_candidate(seed, apart)
    for plan in plans_of(candidate, seed, 3, split=True):
        plan = _shuffled(plan, random.Random(seed))
        timeline = simulate(plan)
        planned = [device.peak_bytes for device in timeline.device_memory]
        latest = _peaks(_Latest(plan, timeline), plan, timeline.costs)
        assert all(a <= b for a, b in zip(latest, planned, strict=True)), f"{latest} > {planned}"
