"""What a run's trace says: medians of times over steps, memory op by op, and what it is a trace of."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty
import pytest
import torch
from runs import Case, planned
from traces import simulated_run

from contraflow.executor.place.records import OpRecord
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.executor.run.trace import KEPT_STEPS, StepSamples
from contraflow.executor.step.step_state import StepRecord
from contraflow.planner.basics.errors import InputError
from contraflow.planner.plan import IN_LINE, Kind, Op
from contraflow.planner.runs.trace import RunTrace, plan_fingerprint
from contraflow.planner.runs.trace_file import load_trace, save_trace, trace_from_dict, trace_to_dict
from contraflow.planner.simulate import evaluate, simulate
from contraflow.planner.view import html, perfetto

OFFLOADED = Case("gpipe", "gpt-tiny", 2, 2, stash="offload")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    """Five steps of a plan that offloads its stashes, and its file."""
    path = tmp_path_factory.mktemp("run") / "run.json"
    plan = planned(OFFLOADED)
    return execute(plan, 5, transport="threads", self_check=False, trace=path), path


def test_times_and_memory_come_from_different_steps(run: tuple[RunResult, Path]) -> None:
    """Following memory costs time: two first steps for memory, the rest for times."""
    trace = run[0].trace
    assert trace.tracked_steps == (0, 1)
    assert trace.timed_steps == (2, 3, 4)
    assert trace.step_s == sorted(run[0].step_times[2:])[1] == run[0].step_s


def test_every_op_is_there_with_its_times_and_memory(run: tuple[RunResult, Path]) -> None:
    """In list order; in-line ops follow one another; no op's memory exceeds the device's peak."""
    plan, trace = planned(OFFLOADED), run[0].trace
    for order, device in zip(plan.orders, trace.devices, strict=True):
        assert tuple(x.op for x in device.ops) == order
        line = [x for x in device.ops if x.op.kind in IN_LINE]
        assert all(a.end_s <= b.start_s for a, b in zip(line, line[1:], strict=False))
        assert all(0 < x.live_bytes <= x.peak_bytes <= device.peak_bytes for x in device.ops)
        assert max(x.peak_bytes for x in device.ops) >= 0.9 * device.peak_bytes
        forward = next(x for x in device.ops if x.op.kind is Kind.F)
        assert forward.peak_bytes > forward.live_bytes, "a forward leaves a stash"


def test_what_is_moved_is_in_the_trace(run: tuple[RunResult, Path]) -> None:
    """Stashes to the host and back, activations as the plan has them."""
    plan, trace = planned(OFFLOADED), run[0].trace
    moved = {x.op: x.moved_bytes for device in trace.devices for x in device.ops}
    for op, size in moved.items():
        if op.kind is Kind.OFFLOAD:
            assert size == moved[op._replace(kind=Kind.FETCH)] > 0
    last = plan.problem.model.layers[plan.problem.model.index[plan.stages[0][-1]]]
    assert moved[Op(Kind.SEND_F, 0, 0, 1)] == moved[Op(Kind.RECV_F, 1, 0, 0)] == last.output_bytes


def test_a_trace_says_of_what_it_is(run: tuple[RunResult, Path]) -> None:
    """Plan, model and environment; its file says the same."""
    plan, trace = planned(OFFLOADED), run[0].trace
    trace.require_plan(plan)
    trace.require_model(plan.problem.model)
    assert (trace.stages, trace.pipelines, trace.stash) == (plan.stages, plan.pipelines, plan.stash)
    assert trace.environment["transport"] == "thread"
    assert trace.environment["torch"] == str(torch.__version__)
    assert trace.environment["dtype"] == "float32"
    assert load_trace(run[1]) == trace


def test_a_real_run_is_drawn_from_its_file(run: tuple[RunResult, Path]) -> None:
    """Beside the forecast, on the page and as a Perfetto trace; its memory as the run followed it."""
    plan, trace = planned(OFFLOADED), run[0].trace
    assert f'"run":{{"step_s":{json.dumps(trace.step_s)},' in html(plan, run[1])
    content = json.loads(perfetto.render(plan, simulate(plan), evaluate(plan), load_trace(run[1]), only_run=True))
    events = content["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == sum(map(len, plan.orders))
    line = [x.peak_bytes for device in trace.devices for x in device.ops if x.op.kind in IN_LINE]
    assert sorted(e["args"]["bytes"] for e in events if e["ph"] == "C") == sorted(line)


def test_the_fingerprint_is_of_what_devices_do() -> None:
    """Other costs, machines or forecasts are the same plan; another order is not."""
    plan = faulty.planned()
    slower = replace(faulty.GRAPH, layers=tuple(replace(x, forward_s=1.0) for x in faulty.GRAPH.layers))
    assert plan_fingerprint(replace(plan, problem=replace(plan.problem, model=slower))) == plan_fingerprint(plan)
    swapped = (plan.orders[0][1::-1] + plan.orders[0][2:], *plan.orders[1:])
    other = replace(plan, orders=swapped)
    with pytest.raises(InputError, match=r"of another plan: fingerprint \w+, not \w+"):
        simulated_run(plan).require_plan(other)


def test_a_trace_that_does_not_have_its_plans_ops_is_refused() -> None:
    """Right fingerprint or not: views find every op of the plan in it."""
    plan = faulty.planned()
    run = simulated_run(plan)
    first = run.devices[0]
    with pytest.raises(InputError, match="the run has 1 devices, the plan 2"):
        replace(run, devices=(first,)).require_plan(plan)
    with pytest.raises(InputError, match=f"op 0 of device 1 is 0F0, not {run.devices[1].ops[0].op}"):
        replace(run, devices=(first, first)).require_plan(plan)
    last = len(first.ops) - 1
    with pytest.raises(InputError, match=f"op {last} of device 0 is missing, not {first.ops[last].op}"):
        replace(run, devices=(replace(first, ops=first.ops[:-1]), run.devices[1])).require_plan(plan)
    with pytest.raises(InputError, match=f"op {last + 1} of device 0 is 0F0, not in the plan"):
        replace(run, devices=(replace(first, ops=(*first.ops, first.ops[0])), run.devices[1])).require_plan(plan)


# ---------------------------------------------------------------- many steps to one


ORDER = (Op(Kind.F, 0, 0), Op(Kind.SEND_F, 0, 0, 1), Op(Kind.B, 0, 0))


def step(*times: tuple[float, float, float], memory: int = 0) -> StepRecord:
    """A step whose ops have these (start, end, waited)."""
    ops = [OpRecord(op, *t[:2], waited_s=t[2], live_bytes=memory) for op, t in zip(ORDER, times, strict=True)]
    return StepRecord(1.0, {}, ops)


def test_an_op_has_its_median_its_spread_and_what_surrounds_it() -> None:
    """B starts 4 after F's end: 3 of it is waiting for the message, 1 is overhead."""
    samples = StepSamples(ORDER)
    samples.add(0, step((9, 99, 0), (99, 99, 0), (99, 199, 0), memory=7), tracked=True)
    for number, length in enumerate((1.0, 2.0, 9.0), start=1):
        samples.add(number, step((0.5, 2, 0), (2, 3, 0.5), (6, 6 + length, 2.5)), tracked=False)
    forward, send, backward = samples.ops()
    assert samples.timed_steps == (1, 2, 3)
    assert (backward.start_s, backward.end_s, backward.duration_s) == (6, 8, 2)
    assert backward.spread_s == 4.0
    assert (forward.overhead_s, send.overhead_s, backward.overhead_s) == (0.5, 0, 1)
    assert backward.waited_s == 2.5
    assert forward.live_bytes == 7


def test_a_short_run_takes_its_times_from_what_there_is() -> None:
    """Both steps tracked: times come from the second; a single step is both."""
    samples = StepSamples(ORDER)
    samples.add(4, step((0, 5, 0), (5, 5, 0), (5, 9, 0)), tracked=True)
    assert samples.timed_steps == samples.tracked_steps == (4,)
    samples.add(5, step((0, 1, 0), (1, 1, 0), (1, 2, 0)), tracked=True)
    assert samples.timed_steps == (5,)
    assert samples.ops()[0].duration_s == 1


def test_a_long_run_keeps_its_last_steps() -> None:
    """Memory for samples does not grow with the run."""
    samples = StepSamples(ORDER)
    for number in range(3 * KEPT_STEPS):
        samples.add(number, step((0, 1, 0), (1, 1, 0), (1, 2, 0)), tracked=number == 0)
    assert samples.timed_steps == tuple(range(2 * KEPT_STEPS, 3 * KEPT_STEPS))


# ---------------------------------------------------------------- reading


def change(path: str, value: object) -> Callable[[Any], None]:
    """Sets what a dotted path leads to; DELETED removes it."""
    *way, last = (int(key) if key.isdecimal() else key for key in path.split("."))

    def apply(content: Any) -> None:
        for key in way:
            content = content[key]
        if value is DELETED:
            del content[last]
        else:
            content[last] = value

    return apply


DELETED = object()
BAD = {
    "format must be": change("format", "other"),
    "run version must be 1, got 2": change("version", 2),
    "unknown key 'extra'": change("extra", 1),
    "devices.0.: unknown key 'colour'": change("devices.0.colour", "red"),
    "ops.1.: unknown key 'kind'": change("devices.1.ops.1.kind", "F"),
    "step_s is missing": change("step_s", DELETED),
    "step_s must be above 0": change("step_s", 0),
    "step_s must be finite": change("step_s", float("inf")),
    "devices must not be empty": change("devices", []),
    "losses must be a list": change("losses", 3),
    "devices.0.: busy_s must be finite and not negative": change("devices.0.busy_s", -1),
    "devices.0.: bubble must be finite": change("devices.0.bubble", float("nan")),
    "devices.0.: peak_bytes must be a whole number": change("devices.0.peak_bytes", 1.5),
    "ops.0.: end_s must be a number": change("devices.0.ops.0.end_s", True),
    "ops.1.: live_bytes must be a number": change("devices.0.ops.1.live_bytes", "8"),
    "speed must be finite": change("devices.0.speed", float("inf")),
    r"devices.0.: ops.0.: not an operation: '0X0'": change("devices.0.ops.0.op", "0X0"),
    "op 7F0 is of stage 7, but there are 2 stages": change("devices.0.ops.0.op", "7F0"),
    "before it starts at": change("devices.0.ops.0.start_s", 1e9),
    "duration_s must be finite and not negative": change("devices.0.ops.0.duration_s", -1),
    "stages.* must be a list": change("stages.0", "layer"),
    "pipelines.0.: forward must be a whole number": change("pipelines.0.forward.0", 0.5),
    "environment: torch must be a string": change("environment.torch", [2]),
    "losses must be a number": change("losses.0", "low"),
    "plan must be a string": change("plan", 3),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_trace_is_refused_in_one_line(message: str) -> None:
    """Naming the key."""
    content = json.loads(json.dumps(trace_to_dict(simulated_run(faulty.planned()))))
    assert isinstance(trace_from_dict(content), RunTrace)
    BAD[message](content)
    with pytest.raises(InputError, match=message) as caught:
        trace_from_dict(content)
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_no_number_is_read_back(tmp_path: Path) -> None:
    """Training can arrive at NaN; everything else is as it was written."""
    run = simulated_run(faulty.planned())
    save_trace(replace(run, losses=(2.5, float("nan"))), tmp_path / "run.json")
    found = load_trace(tmp_path / "run.json")
    assert found.losses[0] == 2.5
    assert math.isnan(found.losses[1])
    assert replace(found, losses=run.losses) == run


def test_files_that_are_not_there_or_no_json_are_refused(tmp_path: Path) -> None:
    """As every other file."""
    with pytest.raises(InputError, match="cannot read"):
        load_trace(tmp_path / "none.json")
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        load_trace(tmp_path / "run.json")
