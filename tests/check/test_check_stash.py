"""The checker on plans whose stashes leave the device, are made again, or are shipped: every rule is broken once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from editing import edited, forecast_anew, put
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, one_layer_a_stage

from contraflow.planner.check import Violation, check
from contraflow.planner.forecast.timeline import Deadlock
from contraflow.planner.graph import regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.simulate import simulate

Orders = list[list[Op]]
Rows = Mapping[int, tuple[str, ...]]
DEVICES, MICRO_BATCHES = 3, 4


def problem(stages: int, devices: int, micro_batches: int, host: int | None = None) -> Problem:
    """Layers whose backward can be split, on one node whose host offers so many bytes."""
    layers = [
        Layer(f"layer{k}", 1.0, 1.0, 1.0, stash_bytes=4, weight_stash_bytes=2, output_bytes=1) for k in range(stages)
    ]
    group = NodeGroup(1, devices, DeviceType("toy", 1 << 30), Link(8.0, 0.1), host, Link(8.0, 0.1), 2)
    return Problem(ModelGraph.chain(layers), Cluster((group,)), Workload(micro_batches))


def stashed(
    rows: Rows,
    name: str = "1f1b",
    devices: int = DEVICES,
    micro_batches: int = MICRO_BATCHES,
    split: bool = False,
    host: int | None = None,
) -> Plan:
    """A named schedule in which every micro-batch has its own row of stash policies."""
    layout = build(name, devices, micro_batches)
    asked = problem(layout.stages, devices, micro_batches, host)
    orders: Orders = []
    for order in layout.orders:
        orders.append([])
        for op in order:
            if op.kind == Kind.B and rows.get(op.micro_batch, ("",) * layout.stages)[op.stage] == "recompute":
                orders[-1].append(op._replace(kind=Kind.R))
            halves = (Kind.I, Kind.W) if split and op.kind == Kind.B else (op.kind,)
            orders[-1] += [op._replace(kind=kind) for kind in halves]
    candidate = regroup(asked, one_layer_a_stage(asked.model), layout.pipelines, rows)
    return assemble(candidate, orders, name)


def everywhere(*row: str) -> Rows:
    return dict.fromkeys(range(MICRO_BATCHES), row)


def with_free(plan: Plan) -> Plan:
    """FREE before the first F that follows the departure of each stash."""

    def edit(orders: Orders) -> None:
        for device, order in enumerate(orders):
            home = {op.stage for op in order if op.kind == Kind.F}
            waiting, listed = [], []
            for op in order:
                if op.kind == Kind.F:
                    listed += [Op(Kind.FREE, gone.stage, gone.micro_batch) for gone in waiting]
                    waiting = []
                if op.kind == Kind.OFFLOAD or (op.kind == Kind.SEND_S and op.stage in home):
                    waiting.append(op)
                listed.append(op)
            orders[device] = listed

    return forecast_anew(edited(plan, edit))


MIXED: Rows = {
    0: ("keep", "recompute", "offload"),
    1: ("offload", "ship>2", "keep"),
    2: ("ship>2", "offload", "recompute"),
    3: ("offload", "ship>0", "ship>1"),
}
POLICIES: dict[str, Rows] = {
    "keep": everywhere("keep", "keep", "keep"),
    "recompute": everywhere("recompute", "recompute", "recompute"),
    "offload": everywhere("offload", "offload", "offload"),
    "ship": everywhere("ship>2", "ship>0", "ship>1"),
    "mixed": MIXED,
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rows", POLICIES.values(), ids=POLICIES.keys())
def test_correct_plans_of_every_policy_pass(rows: Rows, split: bool) -> None:
    assert check(stashed(rows, split=split)) == []


@pytest.mark.parametrize("rows", [POLICIES["offload"], MIXED], ids=["offload", "mixed"])
def test_correct_plans_with_free_pass(rows: Rows) -> None:
    plan = with_free(stashed(rows))
    assert any(op.kind == Kind.FREE for order in plan.orders for op in order)
    assert check(plan) == []


def test_pipelines_with_equal_routes_are_one_replica() -> None:
    plan = stashed(MIXED)
    assert len(plan.pipelines) == 4
    assert len({pipeline.forward for pipeline in plan.pipelines}) == 1
    assert not any(op.kind == Kind.REDUCE for order in plan.orders for op in order)
    halves = tuple(replace(plan.pipelines[0], micro_batches=half) for half in ((0, 2), (1, 3)))
    equal = named("1f1b", 3, 4)
    assert check(replace(equal, pipelines=halves, stash=(equal.stash[0],) * 2)) == []


@pytest.mark.parametrize("rows", POLICIES.values(), ids=POLICIES.keys())
def test_every_op_of_every_policy_is_needed(rows: Rows) -> None:
    plan = stashed(rows, split=True)
    for device, order in enumerate(plan.orders):
        for place, op in enumerate(order):
            found = check(edited(plan, lambda o, d=device, k=place: o[d].pop(k)))
            assert [(v.code, v.where) for v in found] == [("missing-op", f"device {device}")]
            assert str(op) in found[0].message


def test_every_repeated_op_is_named() -> None:
    plan = with_free(stashed(MIXED))
    for device, order in enumerate(plan.orders):
        for op in order:
            found = check(edited(plan, lambda o, d=device, x=op: o[d].append(x)))
            assert [(v.code, v.where) for v in found] == [("repeated-op", f"device {device}")]
            assert str(op) in found[0].message


@pytest.mark.parametrize(
    ("device", "op"),
    [
        (0, Op(Kind.OFFLOAD, 0, 0)),  # kept
        (0, Op(Kind.FETCH, 0, 0)),
        (0, Op(Kind.FREE, 0, 0)),
        (0, Op(Kind.SEND_S, 0, 0, 1)),
        (1, Op(Kind.FREE, 1, 0)),  # recomputed
        (1, Op(Kind.OFFLOAD, 1, 0)),
        (2, Op(Kind.R, 2, 0)),  # offloaded
        (2, Op(Kind.SEND_S, 2, 0, 0)),
        (2, Op(Kind.OFFLOAD, 2, 0, 1)),
        (0, Op(Kind.OFFLOAD, 2, 0)),  # on the wrong device
        (2, Op(Kind.FREE, 1, 1)),  # where it was shipped to
        (1, Op(Kind.SEND_S, 1, 1, 0)),  # shipped to another device
        (1, Op(Kind.R, 1, 1)),
        (1, Op(Kind.FETCH, 1, 1)),
        (0, Op(Kind.RECV_S, 0, 10**30, 1)),
        (0, Op(Kind.FREE, -1)),
    ],
    ids=lambda x: str(x),
)
def test_ops_of_another_policy_are_named(device: int, op: Op) -> None:
    found = check(edited(stashed(MIXED), lambda o: o[device].insert(3, op)))
    assert [(v.code, v.where) for v in found] == [("unexpected-op", f"device {device}")]
    assert str(op) in found[0].message


@pytest.mark.parametrize(
    ("policy", "numbers"),
    [
        ("drop", ["'drop'"]),
        ("", ["''"]),
        ("ship", ["'ship'"]),
        ("ship>", ["'ship>'"]),
        ("ship>-1", ["'ship>-1'"]),
        ("ship>01", ["'ship>01'"]),
        ("ship> 1", ["'ship> 1'"]),
        ("ship>1.0", ["'ship>1.0'"]),
        ("ship>²", ["'ship>²'"]),
        ("ship>" + "9" * 5000, ["ship>999"]),
        ("ship>3", ["device 3", "has 3"]),
        ("ship>1", ["device 1 to device 1"]),
    ],
)
def test_wrong_policies_are_named(policy: str, numbers: list[str]) -> None:
    plan = named("1f1b", 3, 4)
    found = check(replace(plan, stash=(("keep", policy, "keep"),)))
    assert [(v.code, v.where) for v in found] == [("stash", "pipeline 0")]
    assert all(number in found[0].message for number in ["stage 1", *numbers])


def test_every_wrong_policy_is_named_and_rows_have_a_policy_for_each_stage() -> None:
    plan = named("1f1b", 3, 4)
    assert [v.code for v in check(replace(plan, stash=(("a", "b", "ship>7"),)))] == ["stash"] * 3
    assert [v.message for v in check(replace(plan, stash=(("keep",),)))] == ["1 stash policies for 3 stages"]
    assert [v.code for v in check(replace(plan, stash=()))] == ["stash"]


ORDER_FAULTS = {
    "offload before its forward": (2, Op(Kind.OFFLOAD, 2, 0), Op(Kind.F, 2, 0), False),
    "fetch before its offload": (2, Op(Kind.FETCH, 2, 0), Op(Kind.OFFLOAD, 2, 0), False),
    "backward before its fetch": (2, Op(Kind.FETCH, 2, 0), Op(Kind.B, 2, 0), True),
    "backward before its recompute": (1, Op(Kind.R, 1, 0), Op(Kind.B, 1, 0), True),
    "recompute before its forward": (1, Op(Kind.R, 1, 0), Op(Kind.F, 1, 0), False),
    "free before its offload": (0, Op(Kind.FREE, 0, 1), Op(Kind.OFFLOAD, 0, 1), False),
    "free before its stash is sent": (1, Op(Kind.FREE, 1, 1), Op(Kind.SEND_S, 1, 1, 2), False),
    "sent before its forward": (1, Op(Kind.SEND_S, 1, 1, 2), Op(Kind.F, 1, 1), False),
    "received back before it is sent": (1, Op(Kind.RECV_S, 1, 1, 2), Op(Kind.SEND_S, 1, 1, 2), False),
    "backward before its stash is back": (1, Op(Kind.RECV_S, 1, 1, 2), Op(Kind.B, 1, 1), True),
    "sent back before it has come": (2, Op(Kind.SEND_S, 1, 1, 1), Op(Kind.RECV_S, 1, 1, 1), False),
}


@pytest.mark.parametrize(("device", "moved", "anchor", "after"), ORDER_FAULTS.values(), ids=ORDER_FAULTS.keys())
def test_wrong_order_in_a_list_is_named(device: int, moved: Op, anchor: Op, after: bool) -> None:
    plan = with_free(stashed(MIXED))
    op, earlier = (anchor, moved) if after else (moved, anchor)
    found = check(put(plan, device, moved, anchor, after))
    assert Violation("dependency", f"device {device}", f"{op} comes before {earlier}, which it needs") in found
    assert {v.code for v in found} <= {"dependency", "message-order"}


def test_halves_of_a_backward_wait_for_the_stash_too() -> None:
    plan = stashed(everywhere("offload", "keep", "ship>0"), split=True)
    for device, op in ((0, Op(Kind.FETCH, 0, 0)), (2, Op(Kind.RECV_S, 2, 0, 0))):
        found = check(put(plan, device, op, Op(Kind.I, op.stage, 0), after=True))
        assert {v.code for v in found} == {"dependency"}


def test_stashes_and_activations_share_the_order_of_their_device_pair() -> None:
    """Device 0 sends micro-batch 0's activations and then its stash; device 1 wants them the other way round."""
    plan = stashed(everywhere("ship>1", "keep", "keep"))
    first, second = Op(Kind.RECV_F, 1, 0, 0), Op(Kind.RECV_S, 0, 0, 0)
    assert plan.orders[1].index(first) < plan.orders[1].index(second)
    found = check(put(plan, 1, second, first))
    assert [(v.code, v.where) for v in found] == [("message-order", "devices 0 -> 1")]
    assert "0SEND_F0>1 is sent before 0SEND_S0>1" in found[0].message


def test_host_memory_names_the_node_and_both_numbers() -> None:
    plan = stashed(everywhere("offload", "keep", "keep"), "gpipe")
    peak = simulate(plan).host_memory[0].peak_bytes
    assert peak == 4 * MICRO_BATCHES
    assert check(stashed(everywhere("offload", "keep", "keep"), "gpipe", host=peak)) == []
    found = check(stashed(everywhere("offload", "keep", "keep"), "gpipe", host=peak - 1))
    assert [(v.code, v.where) for v in found] == [("host-memory", "node 0")]
    assert f"{peak} bytes, the limit is {peak - 1}" in found[0].message


def test_every_node_has_its_own_host_memory() -> None:
    plan = stashed(everywhere("offload", "offload", "offload"), "gpipe")
    group = replace(plan.problem.cluster.nodes[0], host_memory_bytes=4 * MICRO_BATCHES)
    nodes = (replace(group, devices=1), replace(group, devices=2))
    found = check(forecast_anew(replace(plan, problem=replace(plan.problem, cluster=Cluster(nodes)))))
    assert [(v.code, v.where) for v in found] == [("host-memory", "node 1")]


def test_free_that_waits_for_a_stash_that_cannot_leave() -> None:
    """Device 2 posts the RECV of stash 0 only after micro-batch 1, which device 0 starts only when 0 has left."""
    plan = stashed({0: ("ship>2", "keep", "keep")}, "gpipe", micro_batches=2)
    plan = edited(plan, lambda o: o[0].insert(o[0].index(Op(Kind.F, 0, 1)), Op(Kind.FREE, 0, 0)))
    assert check(forecast_anew(plan)) == []
    stuck = put(plan, 2, Op(Kind.RECV_S, 0, 0, 0), Op(Kind.F, 2, 1), after=True)
    found = check(stuck)
    assert [v.code for v in found] == ["deadlock"]
    assert "0FREE0 on device 0" in found[0].message
    assert "message 0SEND_S0>2 (device 0 to 2)" in found[0].message
    with pytest.raises(Deadlock):
        simulate(stuck)


def test_fetch_that_waits_for_memory_that_cannot_be_given_up() -> None:
    """FETCH 0 may use the memory of stash 1, whose receiver waits for the backward that needs FETCH 0."""
    asked, route = problem(3, 3, 2), (2, 1, 0)
    candidate = regroup(
        asked,
        one_layer_a_stage(asked.model),
        [Pipeline(route, route, (0, 1))],
        {0: ("keep", "keep", "offload"), 1: ("keep", "keep", "ship>2")},
    )
    last = [
        Op(Kind.F, 2, 0), Op(Kind.OFFLOAD, 2, 0), Op(Kind.F, 2, 1), Op(Kind.SEND_S, 2, 1, 2), Op(Kind.FETCH, 2, 0),
        Op(Kind.B, 2, 0), Op(Kind.RECV_S, 2, 1, 2), Op(Kind.B, 2, 1),
    ]  # fmt: skip
    others = [[Op(kind, stage, m) for kind in (Kind.F, Kind.B) for m in (0, 1)] for stage in (1, 0)]
    plan = assemble(candidate, [last, *others])
    assert check(plan) == []
    stuck = put(plan, 2, Op(Kind.RECV_S, 2, 1, 0), Op(Kind.B, 0, 0), after=True)
    stuck = put(stuck, 2, Op(Kind.SEND_S, 2, 1, 0), Op(Kind.RECV_S, 2, 1, 0), after=True)
    found = check(stuck)
    assert [v.code for v in found] == ["deadlock"]
    assert "2FETCH0 on device 0" in found[0].message
    with pytest.raises(Deadlock):
        simulate(stuck)


def test_knots_that_have_nothing_in_common_are_all_named() -> None:
    """Two replicas, each with a FREE that waits for a stash that cannot leave."""
    asked = problem(3, 6, 4)
    routes = [Pipeline((0, 1, 2), (0, 1, 2), (0, 1)), Pipeline((3, 4, 5), (3, 4, 5), (2, 3))]
    candidate = regroup(
        asked, one_layer_a_stage(asked.model), routes, {0: ("ship>2", "keep", "keep"), 2: ("ship>5", "keep", "keep")}
    )
    orders = [
        [Op(kind, stage, m) for kind in (Kind.F, Kind.B) for m in pipeline.micro_batches]
        for pipeline in routes
        for stage in (0, 1, 2)
    ]
    plan = assemble(candidate, orders)
    assert check(plan) == []
    for home, m in ((0, 0), (3, 2)):
        free = Op(Kind.FREE, 0, m)
        plan = edited(plan, lambda o, d=home, x=free: o[d].insert(o[d].index(Op(Kind.F, 0, x.micro_batch + 1)), x))
        plan = put(plan, home + 2, Op(Kind.RECV_S, 0, m, home), Op(Kind.F, 2, m + 1), after=True)
    found = check(plan)
    assert [v.code for v in found] == ["deadlock"] * 2
    assert all(f"0FREE{m} on device {d}" in v.message for v, m, d in zip(found, (0, 2), (0, 3), strict=True))


NAMES = ["gpipe", "1f1b", "chimera", "gems", "interleaved"]
NUMBERS = st.sampled_from([-(10**30), -7, -1, 0, 1, 2, 3, 5, 99, 10**30])
OPS = st.builds(Op, st.sampled_from(Kind), NUMBERS, NUMBERS, NUMBERS)


@st.composite
def valid_plans(draw: st.DrawFn) -> Plan:
    """Random named schedules with a random policy for every stash, whole or split backwards, with or without FREE."""
    name, devices = draw(st.sampled_from(NAMES)), draw(st.sampled_from([2, 4]))
    micro_batches = draw(st.sampled_from([2, 4])) if name != "interleaved" else devices
    layout = build(name, devices, micro_batches)
    home = {m: pipeline.forward for pipeline in layout.pipelines for m in pipeline.micro_batches}
    rows = {}
    for m in range(micro_batches):
        away = [f"ship>{d}" for d in range(devices)]
        policies = ["keep", "recompute", "offload"]
        rows[m] = tuple(
            draw(st.sampled_from(policies + [x for x in away if x != f"ship>{device}"])) for device in home[m]
        )
    plan = stashed(rows, name, devices, micro_batches, draw(st.booleans()))
    return with_free(plan) if draw(st.booleans()) and len(layout.pipelines) == 1 else plan


def mutate(draw: st.DrawFn, orders: Orders) -> None:
    """Drops, repeats, swaps, shifts or adds one op."""
    order = draw(st.sampled_from([x for x in orders if x] or [[]]))
    if not order:
        return
    k, n = (draw(st.integers(0, len(order) - 1)) for _ in range(2))
    how = draw(st.sampled_from(["shift", "shift", "shift", "neighbours", "swap", "drop", "repeat", "foreign"]))
    if how == "shift":
        order.insert(n, order.pop(k))
    elif how == "neighbours":
        order.insert(max(0, k - 1), order.pop(k))
    elif how == "swap":
        order[k], order[n] = order[n], order[k]
    elif how == "drop":
        order.pop(k)
    elif how == "repeat":
        order.insert(n, order[k])
    else:
        order.insert(n, draw(OPS))


@pytest.mark.long
@settings(max_examples=120)
@given(st.data())
def test_whatever_the_checker_accepts_can_run(data: st.DataObject) -> None:
    """Mutated plans: check never raises, what it accepts simulates, and what it calls a deadlock does not."""
    plan = data.draw(valid_plans())
    assert check(plan) == []
    count = data.draw(st.integers(1, 3))
    broken = edited(plan, lambda orders: [mutate(data.draw, orders) for _ in range(count)])
    codes = {violation.code for violation in check(broken)}
    if codes <= {"forecast", "memory", "host-memory"}:
        assert check(forecast_anew(broken)) == []
    if codes == {"deadlock"}:
        with pytest.raises(Deadlock):
            simulate(broken)
