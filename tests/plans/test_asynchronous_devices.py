"""Plans without a flush on replicas, on two devices a stage, with tied stages, and with versions on the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from instances import POLICIES, machine, one_layer_a_stage, passes, replicated, separated, uniform

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.graph.versions import Versions
from contraflow.planner.lower.plans import assemble
from contraflow.planner.lower.repetition import repeat
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph, SharedParameters
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.weight_policy import WEIGHT_POLICIES
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.simulate import evaluate, simulate

# ------------------------------------------------------------------ replicas and ties


def replicas(weights: str, update: int, batches: int, optimizer: str = "sgd") -> Plan:
    """Sums take a second."""
    model = uniform(2, 1.0, 2.0, parameter_bytes=8, output_bytes=1)
    workload = Workload(batches, optimizer, update_every=update)
    return replicated(model, workload, weights, machine(4, 64.0, Link(8.0, 0.1)))


def test_replicas_need_work_in_every_run() -> None:
    plan = replicas("stash", 2, 8)
    with pytest.raises(PlanError, match="would leave a replica without any"):
        repeat(replicas("stash", 1, 8), 1)
    assert check(repeat(plan, 2).with_forecast(evaluate(repeat(plan, 2)))) == []


@pytest.mark.parametrize("weights", POLICIES)
@pytest.mark.parametrize("update", [1, 2, 4])
def test_replicas_sum_their_gradients_in_every_update(weights: str, update: int) -> None:
    """One REDUCE and one STEP an update on every device; the sum runs beside the next forward."""
    if update < WEIGHT_POLICIES[weights].least_update(2):
        return
    plan = replicas(weights, update, 16, "adam")
    assert check(plan) == []
    assert check(repeat(plan, 32).with_forecast(evaluate(repeat(plan, 32)))) == []
    ends = list(range(update - 1, 16, update))
    for order in plan.orders:
        for kind in (Kind.REDUCE, Kind.STEP):
            assert [op.micro_batch for op in order if op.kind is kind] == ends
    timeline = simulate(plan)
    for m in ends:
        job = timeline.jobs.reduce_job[Kind.REDUCE, 0, m]
        steps = [t for d in timeline.devices for t in d.ops if t.op == Op(Kind.STEP, 0, m)]
        assert len(steps) == 2
        assert all(t.start_s >= timeline.jobs.end[job] for t in steps)
    if update == 2:
        line = [op for op in plan.orders[0] if op.kind in (Kind.F, Kind.B, Kind.REDUCE, Kind.STEP)]
        assert [str(op) for op in line[:9]] == (
            ["0F0", "0F2", "0B0", "0REDUCE1", "0F4", "0STEP1", "0B2", "0REDUCE3", "0F6"]
        )


def test_tied_stages_are_summed_in_every_update() -> None:
    """Embedding and head on two devices: a TIE an update, and a device may not train both without a flush."""
    layers = [Layer(f"l{k}", 1.0, 2.0, parameter_bytes=8 if k != 1 else 0) for k in range(3)]
    model = replace(ModelGraph.chain(layers), shared=(SharedParameters(("l0", "l2"), 8),))
    layout = build("pipedream", 3, 6)
    problem = Problem(model, machine(3, 64.0, Link(8.0)), Workload(6, update_every=2))
    stages = one_layer_a_stage(model)
    plan = assemble(Candidate(problem, stages, layout.pipelines, (), "stash"), layout.orders)
    assert check(plan) == []
    for device, count in enumerate([3, 0, 3]):
        assert sum(op.kind is Kind.TIE for op in plan.orders[device]) == count
    folded = (Pipeline((0, 1, 0), (0, 1, 0), tuple(range(6))),)
    orders = [[op for m in range(6) for op in part(m)] for part in (_folded_outside, _folded_inside)]
    both = assemble(Candidate(problem, stages, folded, (), "stash"), [*orders, []])
    assert [str(v) for v in check(both)] == [
        "ties: device 0: runs stages 0, 2, which share parameters: only with a flush"
    ]


def _folded_outside(m: int) -> list[Op]:
    return [Op(Kind.F, 0, m), Op(Kind.F, 2, m), Op(Kind.B, 2, m), Op(Kind.B, 0, m)]


def _folded_inside(m: int) -> list[Op]:
    return [Op(Kind.F, 1, m), Op(Kind.B, 1, m)]


# ------------------------------------------------------------------ forward and backward on two devices


def two_devices(weights: str, devices: int, update: int, updates: int = 8) -> Plan:
    model = uniform(devices, 1.0, 2.0, parameter_bytes=6, output_bytes=1, stash_bytes=4)
    workload = Workload(update * updates, "momentum", update_every=update)
    return separated(model, workload, weights, machine(devices, 60.0, Link(10.0, 0.05)))


@pytest.mark.parametrize("weights", POLICIES)
def test_new_parameters_go_to_the_forward_device_after_every_update(weights: str) -> None:
    plan = two_devices(weights, 3, 3)
    assert check(plan) == []
    longer = repeat(plan, 36)
    assert check(longer.with_forecast(evaluate(longer))) == []
    assert [passes(longer, d) for d in range(3)] == [passes(two_devices(weights, 3, 3, 12), d) for d in range(3)]
    ends = list(range(2, 24, 3))
    sent = [op.micro_batch for op in plan.orders[2] if op.kind is Kind.SEND_P]
    received = [op.micro_batch for op in plan.orders[0] if op.kind is Kind.RECV_P]
    assert sent == received == ends
    assert not [op for op in plan.orders[1] if op.kind in (Kind.SEND_P, Kind.RECV_P)]


def test_a_forward_waits_for_the_version_that_its_list_names() -> None:
    plan = two_devices("stash", 3, 1)
    timeline, versions = simulate(plan), Versions.of(plan)
    arrival = {(m.op.stage, m.op.micro_batch): m.arrival_s for m in timeline.messages if m.op.kind is Kind.SEND_P}
    for timed in timeline.devices[0].ops:
        if timed.op.kind is Kind.F and versions.newest[0, timed.op.micro_batch]:
            assert timed.start_s >= arrival[0, versions.newest[0, timed.op.micro_batch] - 1] - 1e-9
    held = dict(plan.forecast.devices[2].peak_parts)["weight versions"]
    assert held >= 6 * (versions.most_stale[0] - 1)


def test_what_is_sent_is_predicted_for_its_first_forward() -> None:
    """The owner predicts right before it sends; the forward device predicts nothing."""
    plan = two_devices("pipeoptim", 3, 1)
    versions = Versions.of(plan)
    assert versions.sent_ahead
    for (stage, device, update), ahead in versions.sent_ahead.items():
        owner = plan.orders[2 - stage]
        place = owner.index(Op(Kind.PREDICT, stage, update, ahead))
        assert owner[place + 1] == Op(Kind.SEND_P, stage, update, device)
        first = min(m for m in range(8) if versions.newest[stage, m] == update + 1)
        assert ahead == first - update - 1
    assert not [op for op in plan.orders[0] if op.kind is Kind.PREDICT and op.stage == 0]
    place = plan.orders[2].index(next(op for op in plan.orders[2] if op.kind is Kind.PREDICT and op.stage == 0))
    gone = (*plan.orders[2][:place], *plan.orders[2][place + 1 :])
    found = check(replace(plan, orders=(*plan.orders[:2], gone)))
    assert [violation.code for violation in found] == ["missing-op"]
    assert "sends weights of" in found[0].message


# ------------------------------------------------------------------ versions on the host


def offloading(weights: str, *choices: str) -> Plan:
    """Four stages with weights of 30 bytes and stashes of 4; a host link of 40 bytes a second."""
    model = uniform(4, 1.0, 2.0, parameter_bytes=30, stash_bytes=4)
    node = NodeGroup(1, 4, DeviceType("device", 1 << 30, 1.0, None), Link(), None, Link(40.0))
    problem = Problem(model, Cluster((node,)), Workload(12))
    layout = build("1f1b", 4, 12)
    rows = (choices,)
    return assemble(Candidate(problem, one_layer_a_stage(model), layout.pipelines, rows, weights), layout.orders)


@pytest.mark.parametrize("weights", ["stash", "vertical"])
def test_versions_go_to_the_host_with_their_stash(weights: str) -> None:
    """The device then keeps the newest version and those on their way; the copies carry stash and weights."""
    keep = ("keep",) * 3
    plans = {choice: offloading(weights, choice, *keep) for choice in ("keep", "offload", "offload+weights")}
    assert all(check(plan) == [] for plan in plans.values())
    held = {
        choice: dict(plan.forecast.devices[0].peak_parts).get("weight versions", 0) for choice, plan in plans.items()
    }
    assert (held["keep"], held["offload"]) == (90, 90)
    assert held["offload+weights"] <= 60
    hosts = {choice: simulate(plan).host_memory[0].peak_bytes for choice, plan in plans.items()}
    assert hosts["keep"] == 0
    assert hosts["offload+weights"] % 34 == 0
    assert hosts["offload+weights"] > hosts["offload"]
    timeline = simulate(plans["offload+weights"])
    assert {round(item.end_s - item.start_s, 9) for item in timeline.copies[0]} == {34 / 40}
    longer = repeat(plans["offload+weights"], 20)
    assert check(longer.with_forecast(evaluate(longer))) == []


def test_only_a_stashed_version_goes_to_the_host() -> None:
    plan = offloading("naive", "offload+weights", "keep", "keep", "keep")
    assert [str(v) for v in check(plan)] == [
        "stash: pipeline 0: stage 0: offloads a version that no backward uses with weight policy 'naive'"
    ]
    apart = two_devices("stash", 3, 1)
    found = check(replace(apart, stash=(("offload+weights", "keep", "keep"),)))
    assert [str(v) for v in found] == [
        "stash: pipeline 0: stage 0: offloads a version with forward and backward on devices 0 and 2"
    ]


def test_a_step_waits_for_the_version_that_leaves() -> None:
    plan = offloading("stash", "offload+weights", "offload+weights", "keep", "keep")
    timeline = simulate(plan)
    for device in (0, 1):
        order = plan.orders[device]
        ends = {item.op: item.end_s for item in timeline.copies[device]}
        starts = {item.op: item.start_s for item in timeline.devices[device].ops}
        for place, op in enumerate(order):
            if op.kind is Kind.OFFLOAD:
                steps = [later for later in order[place:] if later.kind is Kind.STEP]
                assert not steps or starts[steps[0]] >= ends[op] - 1e-9
