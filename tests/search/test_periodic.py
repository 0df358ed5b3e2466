"""Periodic blocks: what is unrolled runs and fits, is no longer than V-schedules, and costs no more at any length."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check, plan
from contraflow.planner.graph import Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Pipeline, Plan, Problem
from contraflow.planner.search.common import BLOCK, Clock, Session
from contraflow.planner.search.orders.known import on_other_routes
from contraflow.planner.search.periodic.block import Block
from contraflow.planner.search.periodic.cases import legs
from contraflow.planner.search.periodic.kernel import NEVER, PERIOD, lists
from contraflow.planner.search.periodic.search import Blocks, best_of, search_blocks
from contraflow.planner.search.periodic.tables import scratch

SHARE = 1 << 12
GO_ON = np.zeros(1, dtype=np.int64)


def v_shape(devices: int, batches: int, memory: float, costs: tuple[float, float, float, float]) -> Candidate:
    """Two stages a device, down and up; memory in shares of a device's stash."""
    f, i, w, latency = costs
    layers = [
        Layer(f"l{k}", f / 2, i / 2, w / 2, True, stash_bytes=SHARE // 2, weight_stash_bytes=SHARE // 4)
        for k in range(2 * devices)
    ]
    cluster = Cluster.uniform(devices, 1 << 40, Link(latency_s=latency))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(batches, memory_limit_bytes=int(memory * SHARE)))
    route = (*range(devices), *reversed(range(devices)))
    return Candidate(
        problem, tuple((layer.name,) for layer in layers), (Pipeline(route, route, tuple(range(batches))),)
    )


def unrolled(block: Block) -> Plan:
    """Its plan with all micro-batches."""
    orders = block.complete().orders()
    assert orders is not None
    return assemble(block.candidate, orders, "blocks")


def test_a_way_turns_where_it_comes_back_to_a_device() -> None:
    """A V has two parts down and up for F, and two for I; round and round as many."""
    assert legs((0, 1, 1, 0)).tolist() == [0, 2, 4, 6, 8]
    assert legs((0, 1, 2, 0, 1, 2)).tolist() == [0, 3, 6, 9, 12]


def test_half_the_memory_of_1f1b_is_no_reason_to_wait() -> None:
    """p=4, m=16, F=I=W: V-Half takes 16 * 300 + 350 + 200 (arXiv:2405.15362, table 3); a block is no longer."""
    block = Block(v_shape(4, 16, 3, (100, 100, 100, 0)), frozenset(), 16, 0)
    block.improve(200, 400, 0.01, GO_ON)
    found = unrolled(block)
    assert found.forecast is not None
    assert check(found) == []
    assert found.forecast.step_s == pytest.approx(block.step_s)
    assert found.forecast.step_s <= 16 * 300 + 550


@settings(max_examples=15)
@given(
    devices=st.integers(2, 5), batches=st.integers(1, 12), memory=st.integers(1, 5), together=st.integers(1, 3),
    costs=st.tuples(*(st.integers(1, 50) for _ in range(4))), seed=st.integers(0, 5),
)  # fmt: skip
def test_what_is_unrolled_runs_and_fits(
    devices: int, batches: int, memory: int, together: int, costs: tuple[int, int, int, int], seed: int
) -> None:
    """Any block that comes to its end: the checker finds nothing, and the simulator agrees on the step."""
    block = Block(v_shape(devices, batches, memory, costs), frozenset(), batches, seed, together=together)
    block.improve(10, 20, 0.01, GO_ON)
    if block.step_s >= NEVER:
        return
    found = unrolled(block)
    assert found.forecast is not None
    assert check(found) == []
    assert max(found.forecast.peak_bytes) <= memory * SHARE
    assert found.forecast.step_s == pytest.approx(block.step_s)


@settings(max_examples=40)
@given(
    devices=st.integers(1, 4), batches=st.integers(1, 9), together=st.integers(1, 3), seed=st.integers(0, 10**6),
    period=st.floats(0.2, 3),
)  # fmt: skip
def test_lists_are_in_the_order_of_the_blocks_times(
    devices: int, batches: int, together: int, seed: int, period: float
) -> None:
    """The ops of all passes, each repeated a period later again and again, sorted, and cut off when all have run."""
    block = Block(v_shape(devices, batches, 9, (7, 5, 3, 2)), frozenset(), batches, 0, together=together)
    case, work = block.case, scratch(block.case, together)
    block.pauses[:] = np.random.default_rng(seed).uniform(0, 40, block.pauses.shape)
    block.rules[PERIOD] = period
    lists(case, work, block.pauses, block.rules)
    repeated = period * case.load * together
    for device in range(devices):
        times = [
            (work.begins[j, x] + turn * repeated, x)
            for x in np.flatnonzero(case.device == device) for j in range(together) for turn in range(batches)
        ]  # fmt: skip
        expected, seen = [], Counter[int]()
        for _, x in sorted(times):
            seen[x] += 1
            if seen[x] <= batches:
                expected.append(x)
        assert work.todo[work.first[device] : work.first[device + 1]].tolist() == expected


@pytest.mark.parametrize("cost", [0, 1e-13, 1e-5])
def test_messages_that_take_many_periods(cost: float) -> None:
    """Lists are made in as many steps as they have ops, not in as many as periods pass; without any cost as well."""
    block = Block(v_shape(3, 5, 9, (cost, cost, cost, 1)), frozenset(), 5, 0, together=2)
    block.improve(20, 200, 0.01, GO_ON)
    assert check(unrolled(block)) == []
    assert block.step_s == pytest.approx(8, rel=1e-3)  # two messages down, two up, and back


def test_what_stays_on_is_of_more_than_one_structure() -> None:
    """Of equal blocks one; a structure has half of the places, but for those that are much longer."""
    shapes = [v_shape(2, 4, 9, (7, 5, 3, 2)) for _ in range(3)]
    steps = [(0, 100.0), (0, 100.0), (0, 100.5), (0, 101.0), (1, 102.0), (2, 120.0)]
    blocks = [Block(shapes[n], frozenset(), 4, 0, step_s=step_s) for n, step_s in steps]
    assert [line.step_s for line in best_of(blocks, 4)] == [100, 100.5, 102, 101]
    assert [line.step_s for line in best_of(blocks, 2)] == [100, 102]
    assert [line.step_s for line in best_of(blocks, 9)] == [100, 100.5, 101, 102, 120]


def test_a_race_begins_with_blocks_of_other_structures_too() -> None:
    """Blocks that are near to the best plan are remembered; races start from those on other routes."""
    wide = v_shape(8, 12, 6, (100, 120, 80, 5)).problem
    problem = Problem(wide.model, Cluster.uniform(4, 1 << 40, Link(latency_s=5)), wide.workload)
    session = Session(problem, SearchSpace(offload=False, recompute=False, pipelines=1), Clock(1e12, effort=4.0))
    search_blocks(session, [(0, 1, 2, 3)])
    assert session.best is not None
    routes = {found.candidate.pipelines for found in session.seen}
    assert len(routes) > 1
    others = {arm.candidate.pipelines for arm in on_other_routes(session)}
    assert others
    assert others <= routes - {session.best.pipelines}


def test_a_structure_that_begins_anew_finds_other_blocks() -> None:
    """Nothing of the blocks before is known to it, and they stay as they are."""
    block = Block(v_shape(4, 12, 3, (100, 120, 80, 5)), frozenset(), 12, 0)
    block.improve(20, 20, 0.01, GO_ON)
    pauses, step_s = block.pauses.copy(), block.step_s
    other = block.anew(0)
    assert other.candidate is block.candidate
    assert other.step_s == NEVER
    assert not other.pauses.any()
    other.improve(20, 20, 0.01, GO_ON)
    assert (other.pauses != pauses).any()
    assert (block.pauses == pauses).all()
    assert block.step_s == step_s


@pytest.mark.parametrize(("near", "timed", "turns"), [(True, True, 2), (False, True, 1), (True, False, 1)])
def test_the_first_search_of_blocks_begins_anew_where_most_of_its_time_is_left(
    monkeypatch: pytest.MonkeyPatch, near: bool, timed: bool, turns: int
) -> None:
    """Blocks of either turn stay; a later search is one turn."""
    candidate = v_shape(4, 12, 6, (100, 120, 80, 5))
    taken: list[Block] = []

    def turn(blocks: Blocks, starts: list[Block], lines: list[Block]) -> None:
        taken.append(starts[0])
        blocks.calls, blocks.lines = blocks.calls + 1, [replace(starts[0], step_s=100.0 - blocks.calls)]

    monkeypatch.setattr(Blocks, "_turn", turn)
    monkeypatch.setattr(Blocks, "promising", near)
    clock = Clock(time.monotonic() + 60, None) if timed else Clock(1e12, effort=4.0)
    blocks = Blocks(Session(candidate.problem, SearchSpace(pipelines=1), clock), [(0, 1, 2, 3)])
    blocks.run()
    assert len(taken) == turns
    assert len({line.seed for line in taken}) == turns
    assert [line.step_s for line in blocks.lines] == [101.0 - turns]
    blocks.run()
    assert len(taken) == turns + 1


def test_a_block_for_few_micro_batches_serves_many() -> None:
    """Looked for with a tenth of the micro-batches, it is hardly longer than one that is looked for with all."""
    steps = []
    for few in (16, 160):
        block = Block(v_shape(4, 160, 2, (100, 120, 80, 5)), frozenset(), few, 0)
        block.improve(200, 400, 0.01, GO_ON)
        found = unrolled(block)
        assert found.forecast is not None
        steps.append(found.forecast.step_s)
    assert steps[0] <= 1.01 * steps[1]


def test_the_same_seed_gives_the_same_block() -> None:
    """And a stopped search keeps what it began with."""
    steps = []
    for _ in range(2):
        block = Block(v_shape(4, 8, 2, (100, 120, 80, 5)), frozenset(), 8, 3)
        block.improve(20, 50, 0.01, GO_ON)
        steps.append((block.step_s, block.pauses.tolist()))
    assert steps[0] == steps[1]
    before = block.step_s
    block.improve(20, 50, 0.01, np.ones(1, dtype=np.int64))
    assert block.step_s == before


def test_what_is_good_on_few_devices_is_taken_where_it_is_shorter() -> None:
    """8 devices as 4 with half the micro-batches: every part of the way pauses alike; a worse block changes nothing."""
    block = Block(v_shape(8, 24, 5, (100, 120, 80, 5)), frozenset(), 24, 0)
    few = block.on_few(4)
    few.improve(60, 0, 0.01, GO_ON)
    assert few.case.batches.tolist() == [12]
    assert len(few.case.room) == 4
    block.follow(few, GO_ON)
    assert block.step_s < NEVER
    assert check(unrolled(block)) == []
    for low, high, first in zip(block.case.legs, block.case.legs[1:], few.case.legs, strict=False):
        assert block.pauses[0, low] == few.pauses[0, first]
        assert len(set(block.pauses[0, low + 1 : high])) == 1
    pauses, rules, step_s = block.pauses.copy(), block.rules.copy(), block.step_s
    few.pauses[:] = 10_000
    block.follow(few, GO_ON)
    assert (block.step_s, block.rules.tolist()) == (step_s, rules.tolist())
    assert (block.pauses == pauses).all()


def test_of_many_devices_only_structures_near_the_best_get_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 1F1B's memory is no place for one that goes round and round; what is near is begun more than once."""
    monkeypatch.setattr("contraflow.planner.search.periodic.search.BLOCK", replace(BLOCK, many=8, fewer=2))
    candidate = v_shape(8, 24, 4, (100, 120, 80, 5))
    blocks = Blocks(Session(candidate.problem, SearchSpace(pipelines=1), Clock(1e12, effort=4.0)), [tuple(range(8))])
    found = blocks._hunted(blocks.starts, 0.1)
    added = [line for line in found if line not in blocks.starts]
    least = min(line.step_s for line in blocks.starts)
    assert added
    for line in blocks.starts:
        same = [other for other in added if other.candidate is line.candidate]
        assert len(same) in (0, BLOCK.kinds - 1)
        assert len(same) == 0 or line.step_s <= BLOCK.likely * least
    routes = {line.candidate.pipelines[0].forward for line in added}
    assert (*range(8), *range(8)) not in routes
    assert len({line.seed for line in found}) == len(found)


@pytest.mark.long
def test_plan_uses_blocks_where_memory_is_tight() -> None:
    """p=8, m=16, half of 1F1B's memory, costs that differ: V-Auto takes 7,100 (arXiv:2405.15362, its code)."""
    candidate = v_shape(8, 16, 4, (100, 120, 80, 5))
    problem, phases = candidate.problem, []
    found = plan(
        problem.model, problem.cluster, problem.workload, SearchSpace(offload=False, recompute=False, pipelines=1),
        time_limit=60, workers=1, deterministic_limit=2, on_progress=lambda event: phases.append(event.phase),
    )  # fmt: skip
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert check(found.plan) == []
    assert "periodic blocks" in phases
    assert found.plan.forecast.step_s < 0.95 * 7100
