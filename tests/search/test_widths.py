"""Data-parallel groups, problems with few micro-batches, plans that need least memory, and where an order is cut."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from instances import solved

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, bounds, check, evaluate, plan
from contraflow.planner.graph import Candidate, across
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.schedules import build
from contraflow.planner.search import driver
from contraflow.planner.search.common import Clock, Session, parts
from contraflow.planner.search.common.considered import describe
from contraflow.planner.search.named.laying import best_laid, cheap, laid, splits
from contraflow.planner.search.named.portfolio import device_orders, run_named
from contraflow.planner.search.named.widths import _next, width_of
from contraflow.planner.search.orders.arm import Arm
from contraflow.planner.search.orders.recut import recut
from contraflow.planner.search.scale.scaled_down import fewer_batches, take_over

GIB = 1 << 30
KIND = DeviceType("test", 64 * GIB, 1.0, 1e12)


def blocks(count: int, parameters: int = GIB, stash: int = GIB) -> ModelGraph:
    """Equal layers with F = I = W = 1 s."""
    return ModelGraph.chain(
        [
            Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=parameters, stash_bytes=stash, output_bytes=1 << 20)
            for k in range(count)
        ]
    )


def named(problem: Problem, schedule: str) -> Plan:
    """A named schedule on equal stages."""
    layout = build(schedule, len(problem.cluster), problem.workload.micro_batches)
    each = len(problem.model.layers) // layout.stages
    names = [layer.name for layer in problem.model.layers]
    stages = tuple(tuple(names[s * each : (s + 1) * each]) for s in range(layout.stages))
    return assemble(Candidate(problem, stages, layout.pipelines), layout.orders, schedule)


def nodes(count: int, devices: int, network: float = 10e9) -> Cluster:
    """Nodes with fast links inside and a slower network between them."""
    return Cluster((NodeGroup(count, devices, KIND, Link(100e9, 1e-6), 100, Link(20e9), 2),), Link(network, 1e-5))


# ---------------------------------------------------------------- groups


def test_groups_are_of_neighbours_and_where_reductions_are_slow_also_of_one_device_a_node() -> None:
    problem = Problem(blocks(8, 8 * GIB), nodes(2, 4), Workload(8))
    found = list(splits(problem, SearchSpace()))
    assert ((0, 1, 2, 3), (4, 5, 6, 7)) in found
    assert ((0, 2, 4, 6), (1, 3, 5, 7)) in found
    assert tuple((d,) for d in range(8)) in found
    assert all(sorted(d for group in groups for d in group) == list(range(8)) for groups in found)
    light = Problem(blocks(8, 1), nodes(2, 4), Workload(8))
    assert ((0, 2, 4, 6), (1, 3, 5, 7)) not in list(splits(light, SearchSpace()))


def test_groups_need_equal_devices_enough_micro_batches_and_leave_to_be_more_than_two_pipelines() -> None:
    unequal = Cluster((NodeGroup(1, 3, KIND), NodeGroup(1, 1, replace(KIND, speed=0.5))))
    assert list(splits(Problem(blocks(4), unequal, Workload(4)), SearchSpace())) == []
    four = Problem(blocks(4), nodes(1, 4), Workload(4))
    assert {len(groups) for groups in splits(four, SearchSpace())} == {2, 4}
    assert list(splits(four, SearchSpace(pipelines=2))) == []
    assert {len(groups) for groups in splits(four, SearchSpace(pipelines=3))} == {2}
    assert {len(groups) for groups in splits(replace(four, workload=Workload(3)), SearchSpace())} == {2}
    assert list(splits(four, SearchSpace(schedule="1f1b"))) == []


def test_a_part_of_a_cluster_keeps_its_nodes_and_its_share_of_the_host() -> None:
    whole = nodes(2, 4)
    near, far = whole.part((4, 5)), whole.part((0, 2, 4, 6))
    assert [device.node for device in near.devices] == [0, 0]
    assert near.node_groups[0].host_memory_bytes == 50
    assert (near.node_groups[0].host_link.bandwidth, near.node_groups[0].host_link_shared_by) == (20e9, 2)
    assert [device.node for device in far.devices] == [0, 0, 1, 1]
    assert far.link(1, 2) == whole.network
    assert (far.node_groups[0].host_link.bandwidth, far.node_groups[0].host_link_shared_by) == (10e9, 1)


@pytest.mark.parametrize("batches", [8, 7])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "chimera"])
def test_a_plan_laid_on_groups_is_the_groups_plan_and_its_reductions(schedule: str, batches: int) -> None:
    """Without parameters nothing is reduced: the step is that of the busiest group."""
    for parameters in (0, GIB):
        problem = Problem(blocks(8, parameters), nodes(2, 4, 1e9), Workload(batches))
        groups = ((0, 1, 2, 3), (4, 5, 6, 7))
        small = Problem(problem.model, problem.cluster.part(groups[0]), Workload(-(-batches // 2)))
        one = plan(small.model, small.cluster, small.workload, SearchSpace(schedule=schedule), 20).plan
        assert one is not None
        whole = laid(problem, groups, one)
        assert whole is not None
        assert check(whole) == []
        assert sorted(m for p in whole.pipelines for m in p.micro_batches) == list(range(batches))
        shapes = parts(whole, groups)
        assert shapes is not None
        assert {p.forward for part in shapes for p in part.pipelines} == {p.forward for p in one.pipelines}
        alone, together = evaluate(one).step_s, evaluate(whole).step_s
        if parameters == 0:
            assert together == pytest.approx(alone)
        else:  # every stage's gradients, 2 GiB over 1 GB/s, are reduced over both groups
            assert together > alone + 0.5
            assert {op.stage for order in whole.orders for op in order if op.kind == Kind.REDUCE} == set(
                range(len(one.stages))
            )


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "chimera", "interleaved-2"])
def test_a_group_counts_the_sums_with_other_groups(schedule: str, sharded: bool) -> None:
    """Its own step, and the bound of its orders, are those of the plan on all groups."""
    workload = Workload(8, "adam", sharded=sharded)
    problem = Problem(blocks(8, GIB), nodes(2, 4, 1e9), workload)
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    alone = replace(workload, micro_batches=4, groups=2, across=across(problem, groups))
    small = Problem(problem.model, problem.cluster.part(groups[0]), alone)
    one = named(small, schedule)
    whole = laid(problem, groups, one)
    assert whole is not None
    assert one.forecast is not None
    assert evaluate(whole).step_s == pytest.approx(one.forecast.step_s, rel=1e-9)
    shares = tuple(len(p.micro_batches) for p in one.pipelines)
    least_s = bounds.candidate(Candidate(small, one.stages, one.pipelines, one.stash), shares)
    assert least_s <= one.forecast.step_s * (1 + 1e-9)
    silent = replace(small, workload=replace(alone, across=None))
    assert named(silent, schedule).forecast.step_s < one.forecast.step_s - 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "chimera", "dualpipe"])
def test_sums_between_nodes_are_not_missed_where_groups_lie_side_by_side(
    schedule: str, near: bool, sharded: bool
) -> None:
    """Four nodes of two devices: a group of one device each, or of two nodes; sums of two directions leave the node."""
    workload = Workload(16, "adam", sharded=sharded)
    problem = Problem(blocks(8, 4 * GIB), nodes(4, 2, 4e9), workload)
    groups = ((0, 2, 4, 6), (1, 3, 5, 7)) if near else ((0, 1, 2, 3), (4, 5, 6, 7))
    alone = replace(workload, micro_batches=8, groups=2, across=across(problem, groups))
    one = named(Problem(problem.model, problem.cluster.part(groups[0]), alone), schedule)
    whole = laid(problem, groups, one)
    assert whole is not None
    assert one.forecast is not None
    assert evaluate(whole).step_s == pytest.approx(one.forecast.step_s, rel=1e-9)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "interleaved-2"])
def test_a_group_does_not_count_a_network_that_its_sums_need_not_use(schedule: str, sharded: bool) -> None:
    """Two nodes of four devices, sums that are cheap: replicas lie together, and no plan is passed over as too long."""
    problem = Problem(blocks(8, 4 * GIB), nodes(2, 4), Workload(32, "adam", sharded=sharded))
    groups = next(splits(problem, SearchSpace()))
    assert groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert cheap(problem, groups)
    clock = Clock(time.monotonic() + 60)
    inner = width_of(Session(problem, SearchSpace(), clock), groups).session
    one = named(inner.problem, schedule)
    whole, alone = best_laid(problem, groups, one), laid(problem, groups, one)
    assert whole is not None
    assert alone is not None
    assert one.forecast is not None
    assert one.forecast.step_s <= evaluate(whole).step_s <= 1.01 * one.forecast.step_s
    assert evaluate(whole).step_s < evaluate(alone).step_s


def test_the_search_finds_replicas_where_they_are_best_and_says_what_it_considered() -> None:
    """Four devices that hold the whole model four times: no bubble at all, but for the reductions."""
    model, cluster, workload = blocks(4, 1 << 20, 1 << 20), nodes(1, 4), Workload(8)
    result = solved(model, cluster, workload)
    assert result.plan is not None
    assert check(result.plan) == []
    assert result.plan.forecast is not None
    assert result.plan.forecast.step_s == pytest.approx(24, rel=1e-3)
    assert len({p.forward for p in result.plan.pipelines}) == 4
    assert any(part.what.startswith("4 groups of 1") for part in result.considered)
    assert any(part.what.startswith("named schedules") for part in result.considered)


def test_a_named_schedule_takes_groups_only_where_that_many_pipelines_are_allowed() -> None:
    model, cluster, workload = blocks(8, 1 << 20, 1 << 20), nodes(1, 8), Workload(8)
    alone = plan(model, cluster, workload, SearchSpace(schedule="1f1b"), 20)
    wide = plan(model, cluster, workload, SearchSpace(schedule="1f1b", pipelines=8), 20)
    assert alone.plan is not None
    assert wide.plan is not None
    assert len(alone.plan.pipelines) == 1
    assert len(wide.plan.pipelines) == 8
    assert evaluate(wide.plan).step_s < evaluate(alone.plan).step_s


# ---------------------------------------------------------------- few micro-batches


def test_plans_with_few_micro_batches_are_repeated() -> None:
    """The repeated order takes its steady period for every further micro-batch, and fits as before."""
    problem = Problem(blocks(4, 0), Cluster.uniform(4, 4 * GIB + (1 << 24), Link()), Workload(2000))
    session = Session(problem, SearchSpace(pipelines=1), Clock(time.monotonic() + 60))
    small = fewer_batches(session, lambda inner: 0.0)
    assert small is not None
    assert small.problem.workload.micro_batches < 100
    orders = device_orders(problem, 4)
    list(run_named(small, orders[0]))
    take_over(session, small, orders)
    assert session.best is not None
    assert check(session.best) == []
    assert session.best_s <= small.best_s + 3 * (2000 - small.problem.workload.micro_batches) + 1e-6


# ---------------------------------------------------------------- least memory


@pytest.mark.long
@pytest.mark.parametrize("batches", [3, pytest.param(700, marks=pytest.mark.slow)])
def test_a_limit_that_holds_one_recomputed_layer_at_a_time_has_a_plan(batches: int) -> None:
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, stash_bytes=1 << 20, output_bytes=1024, input_bytes=1024) for k in range(8)]
    cluster = Cluster.uniform(2, 1 << 40, Link(1e9))
    workload = Workload(batches, memory_limit_bytes=(1 << 20) + 16 * 1024)
    result = solved(ModelGraph.chain(layers), cluster, workload, SearchSpace(pipelines=1))
    assert result.plan is not None
    assert check(result.plan) == []
    assert max(evaluate(result.plan).peak_bytes) <= (1 << 20) + 16 * 1024


# ---------------------------------------------------------------- cuts


def test_layers_move_to_the_faster_device_while_that_shortens_an_order() -> None:
    model = blocks(6, 0, 1)
    cluster = Cluster((NodeGroup(1, 1, KIND), NodeGroup(1, 1, replace(KIND, speed=0.5))))
    stages = tuple(tuple(layer.name for layer in part) for part in (model.layers[:3], model.layers[3:]))
    problem = Problem(model, cluster, Workload(8))
    arm = Arm(Candidate(problem, stages, (Pipeline((0, 1), (0, 1), tuple(range(8))),)), True, False, 0)
    arm.start(12, 0.0, np.zeros(1, dtype=np.int64))
    better = recut(arm)
    assert better.seconds < arm.seconds
    assert [len(stage) for stage in better.candidate.stages] == [4, 2]
    assert describe(better.candidate) == "1 stage a device, 1 route"


# ---------------------------------------------------------------- what does not fit


KEPT = SearchSpace(recompute=False, offload=False, separate_backward=False)


def test_layers_that_cannot_be_packed_are_infeasible_with_the_bytes_missing() -> None:
    """Five layers of 3 on four devices of 5: their sum fits, but one device has two; recomputed, two share a stash."""
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=1, stash_bytes=1, output_bytes=1) for k in range(5)]
    cluster, workload = Cluster.uniform(4, 5, Link(1e9)), Workload(4)
    kept = plan(ModelGraph.chain(layers), cluster, workload, KEPT, 10)
    assert kept.status == "infeasible"
    assert max(lack.over_bytes for lack in kept.violations) >= 1
    less = plan(
        ModelGraph.chain(layers), Cluster.uniform(4, 4, Link(1e9)), workload, SearchSpace(separate_backward=False), 10
    )
    assert less.status == "infeasible"


def test_a_large_problem_on_two_groups_does_not_begin_with_a_plan_on_one() -> None:
    """That would not be what was asked for, and may be shorter than all that is."""
    problem = Problem(blocks(16, 0, 10), Cluster.uniform(16), Workload(400))
    for replicas, planned in ((2, False), (1, True), (None, True)):
        session = Session(problem, SearchSpace(replicas=replicas), Clock(time.monotonic() + 60, None))
        driver._first_of_many(session, device_orders(problem, session.stages))
        assert (session.best is not None) == planned


def test_the_most_promising_group_has_turns_while_the_best_finds_nothing() -> None:
    """Two groups are a hundredth behind four and may come to a twentieth less: two turns in vain are enough."""
    cluster = nodes(1, 8)
    whole = Session(Problem(blocks(8), cluster, Workload(16)), SearchSpace(), Clock(time.monotonic() + 60))
    every = [width_of(whole, groups) for groups in splits(whole.problem, whole.space)]
    two, four = (next(width for width in every if len(width.groups) == count) for count in (2, 4))
    whole.incumbent.start_from(named(whole.problem, "gpipe"))
    four.laid_s, two.laid_s = whole.best_s, 1.01 * whole.best_s
    for width in (two, four):
        width.session.proof.of_searched(0.95 * whole.best_s)
    turns = []
    for _ in range(6):
        turns.append(_next(whole, [two, four]))
        whole.rounds.heed(turns[-1][0].groups, False)
    assert turns == [(four, True), (two, True), (four, True), (two, True), (four, False), (four, False)]
    whole.rounds.heed(two.groups, True)
    assert whole.rounds.leads
    assert _next(whole, [two, four]) == (four, True)
    whole.rounds.heed(four.groups, False)
    assert _next(whole, [two, four]) == (two, True)
