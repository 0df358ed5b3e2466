"""The checker names every way in which a plan can be wrong."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from editing import codes, edited
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, one_layer_a_stage

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build


@pytest.fixture
def plan() -> Plan:
    return named("1f1b", 3, 4, 1, 2)


def test_a_generated_plan_is_clean(plan: Plan) -> None:
    assert check(plan) == []


def test_every_single_op_is_needed(plan: Plan) -> None:
    """Leaving out any op is named, with the op and its device."""
    for device, order in enumerate(plan.orders):
        for place, op in enumerate(order):
            found = check(edited(plan, lambda o, d=device, k=place: o[d].pop(k)))
            assert [(v.code, v.where) for v in found] == [("missing-op", f"device {device}")]
            assert str(op) in found[0].message


def test_every_repeated_op_is_named(plan: Plan) -> None:
    for device, order in enumerate(plan.orders):
        for op in order:
            found = check(edited(plan, lambda o, d=device, x=op: o[d].append(x)))
            assert {v.code for v in found} == {"repeated-op"}
            assert str(op) in found[0].message


def test_foreign_ops_are_named(plan: Plan) -> None:
    """An op of another device's stage, of no stage, of no micro-batch."""
    for op in (Op(Kind.F, 2, 0), Op(Kind.B, 1, 0), Op(Kind.F, 0, 99), Op(Kind.REDUCE, 0), Op(Kind.F, 77, 0)):
        found = check(edited(plan, lambda o, x=op: o[0].append(x)))
        assert {v.code for v in found} == {"unexpected-op"}, op


def test_backward_before_its_forward(plan: Plan) -> None:
    def swap(orders: list[list[Op]]) -> None:
        f, b = orders[2].index(Op(Kind.F, 2, 0)), orders[2].index(Op(Kind.B, 2, 0))
        orders[2][f], orders[2][b] = orders[2][b], orders[2][f]

    assert codes(edited(plan, swap)) == {"dependency"}


def test_two_devices_that_wait_for_each_other() -> None:
    """Device 0 wants B1 before F1's successor can run: the circle is named."""
    plan = named("1f1b", 2, 4, 1, 2)

    def deadlock(orders: list[list[Op]]) -> None:
        # device 1 insists on F of micro-batch 3 before it gives back the gradient of 0
        late = [op for op in orders[1] if op.micro_batch == 3 and op.kind in (Kind.RECV_F, Kind.F)]
        orders[1] = late + [op for op in orders[1] if op not in late]
        first = [op for op in orders[0] if op.micro_batch == 0]
        orders[0] = first + [op for op in orders[0] if op not in first]

    found = check(edited(plan, deadlock))
    assert {v.code for v in found} <= {"deadlock", "message-order"}
    assert found


def test_a_pure_deadlock_is_named_with_its_circle() -> None:
    """Each device insists on the micro-batch that the other one starts; messages alone are in order."""
    plan = named("chimera", 2, 2, 1, 2)

    def deadlock(orders: list[list[Op]]) -> None:
        for device in (0, 1):
            receives = [Op(Kind.RECV_B, 0, device, 1), Op(Kind.RECV_F, 1, 1 - device, 0)]
            work = [op for op in orders[device] if op not in receives]
            # sorted() is stable: the other device's micro-batch first, REDUCE and STEP last
            work.sort(key=lambda op: 2 if op.micro_batch < 0 else op.micro_batch == device)
            orders[device] = receives + work

    found = check(edited(plan, deadlock))
    assert {v.code for v in found} == {"deadlock"}
    assert "->" in found[0].message


def test_messages_of_a_pair_in_different_orders() -> None:
    plan = named("gpipe", 2, 3)

    def swap(orders: list[list[Op]]) -> None:
        receives = [k for k, op in enumerate(orders[1]) if op.kind == Kind.RECV_F]
        a, b = receives[0], receives[1]
        orders[1].insert(a, orders[1].pop(b))

    assert codes(edited(plan, swap)) == {"message-order"}


def test_memory_over_the_limit_names_device_and_both_numbers() -> None:
    plan = named("gpipe", 2, 5, cluster=Cluster.uniform(2, 3))
    found = check(plan)
    assert {v.code for v in found} == {"memory"}
    assert "5 bytes, the limit is 3" in found[0].message


def test_device_out_of_range(plan: Plan) -> None:
    pipeline = replace(plan.pipelines[0], forward=(0, 1, 3), backward=(0, 1, 3))
    assert codes(replace(plan, pipelines=(pipeline,))) == {"device"}


def test_micro_batches_must_take_exactly_one_pipeline(plan: Plan) -> None:
    for wrong in ((0, 1, 2), (0, 1, 2, 3, 3), (0, 1, 2, 3, 4)):
        pipeline = replace(plan.pipelines[0], micro_batches=wrong)
        assert codes(replace(plan, pipelines=(pipeline,))) == {"micro-batches"}, wrong


@pytest.mark.parametrize("key", ["busy_s", "bubble", "peak_bytes"])
def test_tampered_device_forecast(plan: Plan, key: str) -> None:
    device = plan.forecast.devices[1]
    changed = replace(device, **{key: type(getattr(device, key))(getattr(device, key) * 0.5)})
    devices = (plan.forecast.devices[0], changed, plan.forecast.devices[2])
    assert codes(plan.with_forecast(replace(plan.forecast, devices=devices))) == {"forecast"}


def test_tampered_step_bound_and_status(plan: Plan) -> None:
    said = plan.forecast
    for wrong in (
        replace(said, step_s=said.step_s * 0.9),
        replace(said, bound_s=said.step_s * 1.1, gap=-0.1),
        replace(said, bound_s=said.step_s / 2, gap=0.0),
        replace(said, bound_s=said.step_s / 2, gap=1.0, status="optimal"),
        replace(said, status="perfect"),
    ):
        assert codes(plan.with_forecast(wrong)) == {"forecast"}
    assert codes(replace(plan, forecast=None)) == {"forecast"}


def test_layers_must_be_cut_into_stages_exactly_once(plan: Plan) -> None:
    for stages in (
        (("layer0",), ("layer1",), ("layer1",)),
        (("layer0",), ("layer1",), ("nowhere",)),
        (("layer1",), ("layer0",), ("layer2",)),
        (("layer0",), ("layer1", "layer2"), ()),
    ):
        assert codes(replace(plan, stages=stages)) == {"stages"}


@pytest.mark.long
@settings(max_examples=100)
@given(st.data())
def test_structure_is_judged_without_raising(data: st.DataObject) -> None:
    """Any routes, micro-batches and policies."""
    plan = named("1f1b", 3, 4)
    integers = st.sampled_from([-(10**30), -7, -1, 0, 1, 2, 3, 5, 99, 10**30])
    numbers = st.lists(integers, max_size=4).map(tuple)
    routes = st.one_of(st.sampled_from([(0, 1, 2), (2, 1, 0), (1, 1, 1)]), numbers)
    pipelines = st.lists(st.builds(Pipeline, routes, routes, numbers), max_size=4).map(tuple)
    texts = st.one_of(st.sampled_from(["keep", "offload", "ship>1", "ship>7"]), st.text(max_size=8))
    rows = st.lists(st.lists(texts, max_size=4).map(tuple), max_size=3).map(tuple)
    if data.draw(st.booleans()):
        plan = replace(plan, pipelines=data.draw(pipelines))
    if data.draw(st.booleans()):
        plan = replace(plan, stash=data.draw(rows))
    known = {"pipelines", "device", "micro-batches", "stash", "missing-op", "unexpected-op"}
    assert codes(plan) <= known


@pytest.mark.long
def test_a_large_plan_is_checked_in_seconds() -> None:
    """64 devices, 512 micro-batches, split backwards: about 230,000 ops in less than two seconds."""
    layout = build("1f1b", 64, 512)
    halves = {Kind.F: (Kind.F,), Kind.B: (Kind.I, Kind.W)}
    orders = [[op._replace(kind=kind) for op in order for kind in halves[op.kind]] for order in layout.orders]
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0, 1.0) for k in range(64)])
    problem = Problem(model, Cluster.uniform(64), Workload(512))
    plan = assemble(Candidate(problem, one_layer_a_stage(model), layout.pipelines), orders)
    assert sum(map(len, plan.orders)) > 220_000
    check(named("1f1b", 2, 2))
    begin = time.process_time()
    assert check(plan) == []
    assert time.process_time() - begin < 2
