"""The checker names every way in which a plan without a flush can be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from editing import edited, faults, put
from instances import named, uniform

from contraflow.planner.check import check
from contraflow.planner.graph import predict_workspace
from contraflow.planner.plan import Kind, Op, Plan
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.workload import Workload
from contraflow.planner.simulate import evaluate, simulate


def plan_of(name: str, devices: int = 3, batches: int = 9, **workload: int) -> Plan:
    model = uniform(devices, 1.0, 2.0, parameter_bytes=3)
    return named(name, devices, batches, model=model, workload=Workload(batches, **workload))


def test_policies_and_updates_that_do_not_come_out() -> None:
    plan = plan_of("pipedream", update_every=3)
    assert faults(replace(plan, weights="fresh"))[0].startswith("weights: plan: unknown weight policy 'fresh'; known:")
    stages, orders = plan.stages, plan.orders
    assert faults(replace(plan_of("pipedream", update_every=1), weights="2bw")) == [
        f"update: plan: weight policy '2bw' needs at least {len(stages)} micro-batches an update, has 1:"
        " one for every stage"
    ]
    four = replace(plan.problem, workload=Workload(9))
    uneven = replace(plan, weights="2bw", problem=four, stages=(*stages, ("none",)), orders=orders)
    assert "update: plan: updates of 4 micro-batches do not divide 9 micro-batches" in faults(uneven)


@pytest.mark.parametrize("name", ["pipedream", "spectrain"])
def test_every_op_of_an_update_is_needed_once(name: str) -> None:
    """Leaving out, repeating or adding a STEP or PREDICT is named, with the op and its device."""
    plan = plan_of(name)
    for device, order in enumerate(plan.orders):
        for place, op in enumerate(order):
            if op.kind not in (Kind.STEP, Kind.PREDICT):
                continue
            missing = check(edited(plan, lambda line, k=place: line.pop(k), device))  # type: ignore[misc]
            assert [(v.code, v.where) for v in missing] == [("missing-op", f"device {device}")]
            assert str(op) in missing[0].message
            twice = check(edited(plan, lambda line, k=place, x=op: line.insert(k, x), device))  # type: ignore[misc]
            wanted = "repeated-op" if op.kind is Kind.STEP else "prediction"
            assert {(v.code, v.where) for v in twice} == {(wanted, f"device {device}")}


def test_an_update_of_another_size_is_not_this_one() -> None:
    plan = plan_of("pipedream", update_every=3)
    assert faults(edited(plan, lambda line: line.append(Op(Kind.STEP, 1, 3)), 1)) == [
        "unexpected-op: device 1: 1STEP3 does not belong here"
    ]
    assert faults(edited(plan, lambda line: line.append(Op(Kind.STEP, 1)), 1)) == [
        "unexpected-op: device 1: 1STEP does not belong here"
    ]


def test_an_update_stands_between_its_backwards_and_the_next() -> None:
    plan = plan_of("pipedream", update_every=3)
    early = faults(put(plan, 1, "1STEP2", "1B2"))
    assert early == ["dependency: device 1: 1STEP2 comes before 1B2, which it needs"]
    late = put(plan, 1, "1B3", "1STEP2")
    assert "dependency: device 1: 1B3 comes before 1STEP2, which it needs" in faults(late)


def test_a_recomputation_reads_what_its_backward_reads() -> None:
    """With the newest weights it comes after the update before; with a stashed version it may come earlier."""
    for weights, wrong in (("stash", False), ("naive", True)):
        plan = plan_of("pipedream")
        rows = tuple(("keep", "recompute", "keep") for _ in plan.pipelines)
        for m in range(9):
            plan = edited(plan, lambda line, m=m: line.insert(line.index(Op(Kind.B, 1, m)), Op(Kind.R, 1, m)), 1)
        asked = replace(put(plan, 1, "1R4", "1STEP3"), weights=weights, stash=rows)
        dependency = "dependency: device 1: 1R4 comes before 1STEP3, which it needs"
        assert (dependency in faults(asked.with_forecast(evaluate(asked)))) == wrong


def test_predictions_are_counted() -> None:
    plan = plan_of("pipeoptim")

    def farther(line: list[Op]) -> None:
        line[line.index(op_from_text("0PREDICT4+2"))] = op_from_text("0PREDICT4+3")

    assert faults(edited(plan, farther, 0)) == [
        "prediction: device 0: 0PREDICT4+3 predicts 3 updates ahead, 0F4 runs on weights of 2 ahead"
    ]
    assert faults(edited(plan, lambda line: line.remove(op_from_text("0PREDICT4+2")), 0)) == [
        "missing-op: device 0: 0PREDICT4+2 is missing: 0F4 runs on weights of 2 updates ahead"
    ]
    away = faults(put(plan, 0, "0PREDICT4+2", "0STEP1"))
    assert "prediction: device 0: 0PREDICT4+2 does not stand directly before a pass of its micro-batch" in away
    last = edited(plan, lambda line: line.insert(line.index(Op(Kind.F, 2, 4)), Op(Kind.PREDICT, 2, 4, 1)), 2)
    assert faults(last) == [
        "unexpected-op: device 2: 2PREDICT4+1 does not belong here: 2F4 runs on weights as they are"
    ]
    end = edited(plan, lambda line: line.append(Op(Kind.PREDICT, 2, 4, 1)), 2)
    assert [violation.split(":")[0] for violation in faults(end)] == ["prediction"]


def test_a_synchronous_plan_predicts_nothing() -> None:
    plan = named("1f1b", 3, 4)
    predicted = edited(plan, lambda line: line.insert(line.index(Op(Kind.F, 1, 2)), Op(Kind.PREDICT, 1, 2, 1)), 1)
    assert faults(predicted) == [
        "unexpected-op: device 1: 1PREDICT2+1 does not belong here: 1F2 runs on weights as they are"
    ]


def test_a_version_must_have_been_made() -> None:
    """With vertical sync a stage that steps late has not the version that the first stage began with."""
    plan = plan_of("pipedream-vertical", 2, 4)
    late = edited(plan, lambda line: line.__setitem__(slice(None), sorted(line, key=_forwards_first)), 1)
    assert "version: device 1: 1F3 needs version 2 of its weights, the newest there is 0" in faults(late)


def _forwards_first(op: Op) -> bool:
    return op.kind not in (Kind.RECV_F, Kind.F)


def test_staleness_has_a_limit() -> None:
    assert faults(plan_of("pipedream", staleness_limit=2)) == []
    assert faults(plan_of("pipedream", staleness_limit=1)) == [
        "staleness: stage 0: the weights of 0F2 are 2 updates old, the limit is 1"
    ]
    stale = faults(plan_of("pipedream-vertical", staleness_limit=0))
    assert [violation.split(": ")[1] for violation in stale] == ["stage 0", "stage 1", "stage 2"]


@pytest.mark.parametrize("period_s", [2.9, 3.1, None])
def test_a_tampered_period_is_named(period_s: float | None) -> None:
    plan = plan_of("pipedream-2bw")
    assert plan.forecast is not None
    changed = plan.with_forecast(replace(plan.forecast, period_s=period_s))
    assert faults(changed) == [f"forecast: period_s: says {period_s}, the simulation gives {plan.forecast.period_s}"]


def test_bound_and_gap_speak_of_the_period() -> None:
    plan = plan_of("pipedream")
    assert plan.forecast is not None
    period_s = plan.forecast.period_s
    assert period_s is not None
    good = replace(plan.forecast, bound_s=period_s / 2, gap=1.0)
    assert faults(plan.with_forecast(good)) == []
    beyond = faults(plan.with_forecast(replace(good, bound_s=1.1 * period_s)))
    assert beyond == [f"forecast: bound_s: bound {1.1 * period_s} against a period of {period_s}"]
    claimed = faults(plan.with_forecast(replace(good, status="optimal")))
    assert claimed == ["forecast: status: says optimal with a gap of 1.0"]


@pytest.mark.parametrize(
    ("precision", "parameters", "piece"), [("fp32", 3000, 0), ("mixed", 3000, 6000), ("mixed", 1 << 20, 1 << 18)]
)
def test_a_prediction_in_mixed_precision_needs_a_piece_of_its_master(
    precision: str, parameters: int, piece: int
) -> None:
    """Masters are predicted in float32, 65,536 elements at once, and rounded into the 16-bit copy."""
    model = uniform(3, 1.0, 2.0, parameter_bytes=parameters)
    workload = Workload(9, optimizer="momentum", precision=precision)
    plan = named("pipeoptim", 3, 9, model=model, workload=workload)
    assert predict_workspace(plan).tolist() == [piece] * 3
    least = simulate(plan).device_memory[0].peak_bytes
    assert least >= (parameters if precision == "fp32" else 2 * parameters) + piece
