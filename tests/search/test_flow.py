"""Stages on any devices: what a timetable promises holds, and where memory is tight it is far less than routes take."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_plans import random_problem

from contraflow.planner.check import check
from contraflow.planner.partition import Chain
from contraflow.planner.plan import Kind, Problem
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.search import plan
from contraflow.planner.search.common import FLOW, Clock, Session
from contraflow.planner.search.driver import Search
from contraflow.planner.search.flow.arm import Arm
from contraflow.planner.search.flow.kernel import value_of
from contraflow.planner.search.flow.search import PHASE, Flows, search_flow
from contraflow.planner.search.flow.tables import case_of
from contraflow.planner.search.jit import NEVER

GO_ON = np.zeros(1, dtype=np.int64)
PLAIN = SearchSpace(pipelines=1, recompute=False, offload=False)


def tight(seed: int) -> Problem | None:
    """A random problem whose devices hold a part of what all stashes would take; None with one device."""
    model, cluster, workload = random_problem(seed)
    if len(cluster.devices) < 2 or len(model.layers) < 3:
        return None
    stashes = sum(layer.stash_bytes for layer in model.layers) * workload.micro_batches
    room = 8 * sum(layer.parameter_bytes for layer in model.layers) + stashes
    limit = 20 + int(room / len(cluster.devices) * random.Random(seed).choice((0.3, 0.6, 1.0)))
    return Problem(model, cluster, replace(workload, memory_limit_bytes=limit))


def session_of(problem: Problem, seconds: float = 60.0, space: SearchSpace = PLAIN) -> Session:
    now = time.monotonic()
    return Search(problem, space, Clock(now + seconds, None, now), 0, 1, None).session


def some_arm(problem: Problem, seed: int) -> Arm:
    """Stages of random layers on random devices, annealed a little."""
    rng, chain, devices = random.Random(seed), Chain.of(problem), range(len(problem.cluster))
    stages = rng.randint(2, len(chain))
    cuts = tuple(sorted(rng.sample(range(1, len(chain)), stages - 1)))
    case = case_of(chain, devices, rng.random() < 0.7, rng.random() < 0.5)
    arm = Arm.of(case, [rng.choice(devices) for _ in range(stages)], cuts, seed, case.remakes)
    arm.improve(30, 0.05, GO_ON)
    return arm


@settings(max_examples=60)
@example(600557)  # what waits for a W takes more than the stash
@given(st.integers(0, 2**20))
def test_passes_of_a_timetable_neither_meet_nor_exceed_the_room(seed: int) -> None:
    """Op by op, over as many passes as are under way at once; and orders are those of these times."""
    problem = tight(seed)
    if problem is None:
        return
    arm = some_arm(problem, seed)
    if arm.seconds >= NEVER:
        assert arm.orders() is None
        return
    orders = arm.orders()
    assert orders is not None
    work, case, count = arm.work, arm.case, len(arm.route)
    period_s = _period(arm)
    passes = 1 + math.ceil((work.done.max() + work.begins.max()) / period_s) if period_s > 1e-9 else 1
    for device in range(len(case.room)):
        mine = [s for s in range(count) if arm.route[s] == device]
        spans, changes = [], []
        for s in mine:
            back = 2 * count - 1 - s
            backward_s = work.remake[s] + work.inputs[s]
            times = [(work.begins[s], work.forward[s]), (work.begins[back], backward_s)]
            times += [(work.done[s] - work.weights[s], work.weights[s])] if work.weights[s] else []
            for m in range(min(passes, 60)):
                spans += [(at + m * period_s, length) for at, length in times if length > 0]
                changes += [(work.begins[s] + m * period_s, 1, work.kept[s])]
                changes += [(work.begins[back] + m * period_s, 1, work.stash[s] - work.kept[s])]
                changes += [(work.begins[back] + backward_s + m * period_s, 0, work.pending[s] - work.stash[s])]
                changes += [(work.done[s] + m * period_s, 0, -work.pending[s])]
        spans.sort()
        for (at, length), (following, _) in zip(spans, spans[1:], strict=False):
            assert at + length <= following + 1e-6 * (1 + following)
        held = most = 0.0
        for _, _, size in sorted((round(at, 6), kind, size) for at, kind, size in changes):
            held += size
            most = max(most, held)
        assert most <= work.left[device] * (1 + 1e-6) + 1e-6
        kinds = {Kind.F, Kind.B, Kind.I, Kind.W}
        assert {op.stage for op in orders[device]} == set(mine)
        assert {op.kind for op in orders[device]} <= kinds


def _period(arm: Arm) -> float:
    """Of a timetable, from what it promises for all micro-batches."""
    _, period_s = value_of(arm.case, arm.work, arm.ends, arm.devices, arm.remade, FLOW.finest)
    return float(period_s)


@settings(max_examples=30)
@given(st.integers(0, 2**20), st.sampled_from((PLAIN, SearchSpace(pipelines=1, offload=False))))
def test_what_is_offered_is_a_plan(seed: int, space: SearchSpace) -> None:
    """Of layers and devices of every kind, with tied layers, overheads and several nodes."""
    problem = tight(seed)
    if problem is None:
        return
    session = session_of(problem, space=space)
    flows = Flows(session, [tuple(range(len(problem.cluster)))])
    for arm in list(flows._starts())[:2]:
        arm.improve(100, 0.02, GO_ON)
        if arm.seconds < NEVER:
            flows._plan(arm)
    assert session.best is None or check(session.best) == []


def far_apart() -> Problem:
    """Seven devices that hold 1.75 of the stashes that 1F1B would have seven of, messages of 0.4 F."""
    layers = [Layer(f"l{k}", 4.0, 4.0, 3.0, stash_bytes=300, weight_stash_bytes=100, output_bytes=1) for k in range(28)]
    cluster, workload = Cluster.uniform(7, 1 << 20, Link(latency_s=6.0)), Workload(21, memory_limit_bytes=2100)
    return Problem(ModelGraph.chain(layers), cluster, workload)


@pytest.mark.long
def test_stages_anywhere_take_far_less_than_any_route_where_memory_is_tight() -> None:
    """The last layers, whose stashes are short-lived, lie together; neighbours that share a device need no message."""
    problem = far_apart()
    given = problem.model, problem.cluster, problem.workload
    named = [plan(*given, SearchSpace(name, recompute=False, offload=False), 10).plan for name in ("v-auto", "v-half")]
    found = plan(*given, PLAIN, 15, workers=1).plan
    assert found is not None
    assert check(found) == []
    assert found.forecast is not None
    steps = [one.forecast.step_s for one in named if one is not None and one.forecast is not None]
    assert found.forecast.step_s < 0.85 * min(steps)
    assert len(set(found.pipelines[0].forward)) == 7


def test_nothing_is_looked_for_where_memory_holds_everything() -> None:
    problem = far_apart()
    session = session_of(replace(problem, workload=Workload(21)))
    search_flow(session, [tuple(range(7))])
    assert PHASE not in session.rounds.begun


def test_a_turn_ends_with_its_time_and_leaves_its_best_to_the_next() -> None:
    session = session_of(far_apart(), 3.0)
    search_flow(session, [tuple(range(7))])
    flows = session.rounds.begun[PHASE]
    assert isinstance(flows, Flows)
    assert session.best is not None
    assert check(session.best) == []
    before, began = [arm.seconds for arm in flows.best], time.monotonic()
    assert before == sorted(before)
    search_flow(session, [tuple(range(7))])
    assert flows.best[0].seconds <= before[0]
    assert time.monotonic() - began < 3.0
