"""Stages with a forward device and a backward device of their own: times and memory by hand, the checker, the file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from editing import edited, faults, put
from instances import SLOW, by_lists
from timelines import device_curve, host_curve, spans

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate, messages, parameter_returns, static_bytes
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.cluster import Cluster, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.simulate import simulate
from contraflow.planner.view import draw_timeline, text

Orders = list[list[Op]]


def listed(plan: Plan) -> list[str]:
    return [" ".join(map(str, order)) for order in plan.orders]


# ------------------------------------------------------------------ by hand


def test_a_kept_stash_crosses_once() -> None:
    """F 0-2, on the link 2-4, there at 5, B 5-7; on device 0 until it has left, on device 1 from its RECV_S's place."""
    plan = by_lists((0,), (1,), ["0F0", "0B0"])
    assert listed(plan) == ["0F0 0SEND_S0>1", "0RECV_S0<0 0B0 0STEP"]
    assert check(plan) == []
    timeline = simulate(plan)
    assert spans(timeline, 0) == {"F0": (0, 2)}
    assert spans(timeline, 1) == {"B0": (5, 7)}
    assert device_curve(timeline, 0) == [(0, 10), (4, 0)]
    assert device_curve(timeline, 1) == [(0, 10), (7, 0)]
    assert timeline.step_s == 7


def test_a_receive_waits_for_memory_where_the_list_says() -> None:
    """B0 runs 5-7 on device 1; the second stash is received behind it: on the link 7-9, B1 10-12."""
    plan = by_lists((0,), (1,), ["0F0 0F1", "0B0 0RECV_S1<0 0B1"])
    assert listed(plan)[1] == "0RECV_S0<0 0B0 0RECV_S1<0 0B1 0STEP"
    timeline = simulate(plan)
    assert spans(timeline, 1) == {"B0": (5, 7), "B1": (10, 12)}
    assert device_curve(timeline, 0) == [(0, 10), (2, 20), (4, 10), (9, 0)]
    assert device_curve(timeline, 1) == [(0, 10), (12, 0)]
    assert check(plan) == []


def test_free_makes_a_forward_wait_until_the_stash_has_left() -> None:
    """F1 starts at 4 and not at 2, and device 0 never holds more than one stash."""
    plan = by_lists((0,), (1,), ["0F0 0FREE0 0F1", "0B0 0B1"])
    timeline = simulate(plan)
    assert spans(timeline, 0) == {"F0": (0, 2), "F1": (4, 6)}
    assert max(size for _, size in device_curve(timeline, 0)) == 10
    assert check(plan) == []


def test_recompute_sends_only_what_it_keeps() -> None:
    """Stage 1: its input of 5 bytes takes 1 s to device 1 (F1 5-7 there after 2-3 and latency), 7-8 on to device 2.

    F of stage 0 ends at 2, the tensor is there at 4, F 4-6, sent 6-7, there at 8, R 8-10, B 10-12; the gradient is
    on the link 12-13 and there at 14, B of stage 0 14-16.
    """
    plan = by_lists((0, 1), (0, 2), ["0F0 0B0", "1F0", "1R0 1B0"], "keep recompute", output_bytes=5)
    assert check(plan) == []
    timeline = simulate(plan)
    assert spans(timeline, 1) == {"F0": (4, 6)}
    assert spans(timeline, 2) == {"R0": (8, 10), "B0": (10, 12)}
    assert spans(timeline, 0) == {"F0": (0, 2), "B0": (14, 16)}
    # the input stays on device 1 until it has left at 7; F makes an output of the last stage only on paper (0 bytes)
    assert device_curve(timeline, 1) == [(0, 5), (7, 0)]
    # on device 2 from its RECV_S's place, until R puts it into the stash; beside the stash the gradient it sends
    assert device_curve(timeline, 2) == [(0, 5), (8, 10), (10, 15), (12, 5), (13, 0)]


def test_offload_goes_through_the_host_of_one_node() -> None:
    """To the host 2-4, there at 5, from the host 5-7, there at 8: B 8-10. Neither device holds it in between."""
    plan = by_lists((0,), (1,), ["0F0", "0B0"], "offload")
    assert listed(plan) == ["0F0 0OFFLOAD0", "0FETCH0 0B0 0STEP"]
    timeline = simulate(plan)
    assert spans(timeline, 0) == {"F0": (0, 2), "OFFLOAD0": (2, 4)}
    assert spans(timeline, 1) == {"FETCH0": (5, 7), "B0": (8, 10)}
    assert device_curve(timeline, 0) == [(0, 10), (4, 0)]
    assert device_curve(timeline, 1) == [(0, 0), (5, 10), (10, 0)]
    assert host_curve(timeline) == [(0, 0), (2, 10), (7, 0)]
    assert check(plan) == []


def test_new_parameters_come_back_before_the_step_ends() -> None:
    """20 bytes: 4 s on the link after STEP at 7, there at 12. Both devices hold them, one of them gradients as well."""
    plan = by_lists((0,), (1,), ["0F0", "0B0"], parameter_bytes=20)
    assert listed(plan) == ["0F0 0SEND_S0>1 0RECV_P<1", "0RECV_S0<0 0B0 0STEP 0SEND_P>0"]
    timeline = simulate(plan)
    assert timeline.step_s == 12
    assert device_curve(timeline, 0) == [(0, 30), (4, 20)]
    assert device_curve(timeline, 1) == [(0, 50), (7, 40)]
    assert static_bytes(plan, timeline.costs) == [
        {"parameters": 20, "buffers": 0},
        {"parameters": 20, "gradients": 20, "optimizer": 0, "buffers": 0},
    ]
    assert check(plan) == []


def test_the_nearest_owner_returns_parameters() -> None:
    """Device 3 shares a node with owner 2, device 4 with none: it gets them from owner 1, the lowest."""
    model = ModelGraph.chain([Layer("l0", 1, 1, separable=False, parameter_bytes=4)])
    kind = DeviceType("toy", 10**6)
    cluster = Cluster((NodeGroup(2, 2, kind, SLOW), NodeGroup(1, 1, kind, SLOW)), SLOW)
    routes = [((0,), (1,)), ((3,), (2,)), ((4,), (2,))]
    pipelines = tuple(Pipeline(f, b, (m,)) for m, (f, b) in enumerate(routes))
    candidate = Candidate(Problem(model, cluster, Workload(3)), (("l0",),), pipelines)
    assert parameter_returns(candidate, candidate.costs) == [(0, 1, 0), (0, 2, 3), (0, 1, 4)]
    lists = [[Op(Kind.F, 0, 0)], [Op(Kind.B, 0, 0)], [Op(Kind.B, 0, 1), Op(Kind.B, 0, 2)]]
    plan = assemble(candidate, [*lists, [Op(Kind.F, 0, 1)], [Op(Kind.F, 0, 2)]])
    assert check(plan) == []
    assert listed(plan)[1] == "0RECV_S0<0 0B0 0REDUCE 0STEP 0SEND_P>0 0SEND_P>4"


def test_a_stage_without_parameters_returns_nothing() -> None:
    """And messages of 0 bytes are messages all the same: activations, gradients and stashes."""
    plan = by_lists((0, 1), (1, 0), ["0F0 1B0", "1F0 0B0"], stash_bytes=0, weight_stash_bytes=0)
    kinds = [m.send.kind for m in messages(plan, simulate(plan).costs)]
    assert sorted(kinds) == [Kind.SEND_F, Kind.SEND_B, Kind.SEND_S, Kind.SEND_S]
    assert check(plan) == []


def test_views_show_such_plans() -> None:
    plan = by_lists((0, 1), (1, 0), ["0F0 0F1 1B0 1B1", "1F0 1F1 0B0 0B1"], parameter_bytes=3)
    assert plan.forecast is not None
    timeline = simulate(plan)
    drawn = text.render(plan, timeline, plan.forecast)
    assert "2 of 2 stages run backward on another device" in " ".join(drawn.split())
    assert "</svg>" in draw_timeline.render(plan, timeline, plan.forecast)


# ------------------------------------------------------------------ the checker


def crossed() -> Plan:
    """Two stages on two devices, each with its backward on the other."""
    return by_lists((0, 1), (1, 0), ["0F0 0F1 1B0 1B1", "1F0 1F1 0B0 0B1"], parameter_bytes=3)


def op(word: str) -> Op:
    return op_from_text(word)


def test_the_unedited_plan_is_clean() -> None:
    assert faults(crossed()) == []


@pytest.mark.parametrize(
    ("device", "word", "said"),
    [
        (0, "0SEND_S0>1", "missing-op: device 0: 0SEND_S0>1 is missing"),
        (1, "0RECV_S1<0", "missing-op: device 1: 0RECV_S1<0 is missing"),
        (1, "0SEND_P>0", "missing-op: device 1: 0SEND_P>0 is missing"),
        (0, "0RECV_P<1", "missing-op: device 0: 0RECV_P<1 is missing"),
        (1, "0B1", "missing-op: device 1: 0B1 is missing"),
        (0, "0F1", "missing-op: device 0: 0F1 is missing"),
    ],
)
def test_every_op_must_be_there(device: int, word: str, said: str) -> None:
    assert faults(edited(crossed(), lambda orders: orders[device].remove(op(word)))) == [said]


@pytest.mark.parametrize("word", ["0B0", "0SEND_P>1", "0SEND_S0>1", "0R0", "0FREE0", "0FETCH0", "0SEND_B0>1"])
def test_nothing_else_may_be_there(word: str) -> None:
    """On device 1, which runs stage 0 backward only (device 1 has B0: there twice)."""
    found = faults(edited(crossed(), lambda orders: orders[1].append(op(word))))
    assert len(found) == 1
    assert found[0].startswith(("unexpected-op: device 1", "repeated-op: device 1"))


@pytest.mark.parametrize(
    ("device", "word", "before", "said"),
    [
        (0, "0SEND_S0>1", "0F0", "0SEND_S0>1 comes before 0F0, which it needs"),
        (1, "0B0", "0RECV_S0<0", "0B0 comes before 0RECV_S0<0, which it needs"),
        (1, "0SEND_P>0", "0STEP", "0SEND_P>0 comes before 0STEP, which it needs"),
        (0, "0RECV_P<1", "0F1", "0RECV_P<1 comes before 0F1, which it needs"),
    ],
)
def test_order_within_a_device(device: int, word: str, before: str, said: str) -> None:
    assert f"dependency: device {device}: {said}" in faults(put(crossed(), device, word, before))


def test_a_backward_before_what_its_forward_waits_for_is_a_circle() -> None:
    """F of stage 1 on device 1 is behind B0 of stage 0, which needs the gradient that comes after it."""

    def edit(orders: Orders) -> None:
        for word, behind in (("1F0", "0B0"), ("1SEND_S0>0", "1F0")):
            orders[1].remove(op(word))
            orders[1].insert(orders[1].index(op(behind)) + 1, op(word))

    plan = by_lists((0, 1), (1, 0), ["0F0 1B0", "1F0 0B0"])
    (found,) = faults(edited(plan, edit))
    assert found.startswith("deadlock: plan: these wait for each other")


def test_policies_that_two_devices_do_not_allow() -> None:
    plan = by_lists((0, 1), (1, 0), ["0F0 1B0", "1F0 0B0"])
    shipped = replace(plan, stash=(("ship>1", "keep"),))
    assert faults(shipped) == [
        "stash: pipeline 0: stage 0: ships its stash to device 1 and back, but its backward runs on device 1, not 0"
    ]
    with pytest.raises(PlanError, match="cannot be shipped away and back"):
        by_lists((0,), (1,), ["0F0", "0B0"], "ship>1")
    far = by_lists((0,), (1,), ["0F0", "0B0"], "keep", nodes=(1, 1))
    assert faults(far) == []
    assert faults(replace(far, stash=(("offload",),))) == [
        "stash: pipeline 0: stage 0: offloads its stash on device 0, but device 1, which needs it, is in another node"
    ]


def test_memory_is_checked_on_both_devices() -> None:
    plan = by_lists((0,), (1,), ["0F0 0F1", "0B0 0B1"])
    problem = replace(plan.problem, workload=replace(plan.problem.workload, memory_limit_bytes=9))
    found = faults(replace(plan, problem=problem))
    assert [line.split(":")[1].strip() for line in found if line.startswith("memory")] == ["device 0", "device 1"]
