"""What a page says of a run is the run's: its critical path, what decided its starts, what binds, what it missed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from instances import named
from pictures import chimera, one_way, pictured
from traces import simulated_run, with_ops

from contraflow.planner.cli.compare import compare
from contraflow.planner.plan import COLLECTIVES, COPIES, IN_LINE, Kind, Plan
from contraflow.planner.plan_file import save_plan
from contraflow.planner.runs import RunTrace
from contraflow.planner.runs.trace_file import save_trace
from contraflow.planner.search import facts
from contraflow.planner.simulate import simulate
from contraflow.planner.view import html, late_table, run_lateness
from contraflow.planner.view.html_columns import columns_of
from contraflow.planner.view.reasons import binding

PLANS = pictured() | {"chimera": chimera(), "free links": one_way(4, 8)}


def data_of(plan: Plan, run: RunTrace) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="plan">(.*?)</script>', html(plan, run), re.DOTALL)
    return json.loads(found)


def slower(plan: Plan, stage: int, factor: float) -> tuple[Plan, RunTrace]:
    """The plan on a model of which a layer takes longer, and a run of the plan on that."""
    model = plan.problem.model
    layers = list(model.layers)
    old = layers[stage]
    layers[stage] = replace(
        old, forward_s=factor * old.forward_s, backward_input_s=factor * old.backward_input_s,
        backward_weight_s=factor * old.backward_weight_s,
    )  # fmt: skip
    truth = replace(model, layers=tuple(layers))
    return replace(plan, problem=replace(plan.problem, model=truth)), simulated_run(plan, truth)


@pytest.mark.parametrize("name", PLANS)
def test_the_path_of_a_run_leads_from_its_start_to_its_end_without_a_hole(name: str) -> None:
    """In a run that went as simulated, twice as slow: what decided a start was over just then."""
    plan = PLANS[name]
    run = simulated_run(plan, slower=2.0)
    data = data_of(plan, run)
    path, start, end = data["run"]["path"], data["run"]["start_s"], data["run"]["end_s"]
    kinds, latency = [Kind(kind) for kind in data["items"]["kind"]], columns_of(data["items"]["latency_s"])
    assert start[path[0]] == 0
    assert end[path[-1]] == max(t for t, kind in zip(end, kinds, strict=True) if kind in IN_LINE)
    for before, item in pairwise(path):
        assert data["run"]["decided"][item] == before
        assert start[before] <= start[item]
        if kinds[item] in IN_LINE and kinds[before] not in COPIES | COLLECTIVES:  # these arrive a latency later
            assert end[before] + 2.0 * latency[before] == pytest.approx(start[item])


@pytest.mark.parametrize("name", PLANS)
def test_what_decided_a_start_in_a_run_is_among_what_it_waited_for(name: str) -> None:
    """Of every op in line; nothing decides when the first begin."""
    data = data_of(PLANS[name], simulated_run(PLANS[name]))
    back, place = data["waits"]["back"], 0
    for item, (count, decided) in enumerate(zip(data["waits"]["count"], data["run"]["decided"], strict=True)):
        waited = {item - step for step in back[place : place + count]}
        place += count
        assert decided in waited | {-1}
        if Kind(data["items"]["kind"][item]) in IN_LINE and data["run"]["start_s"][item] > 0:
            assert decided >= 0


def test_a_slow_stage_binds_the_run_and_not_the_forecast() -> None:
    """Stage 0 of 1F1B takes four times as long as planned: the run's path stays on its device."""
    plan = one_way(3, 6)
    truth, run = slower(plan, 0, 4.0)
    data = data_of(plan, run)
    devices = data["items"]["device"]
    assert {devices[k] for k in data["run"]["path"]} == {0}
    assert {devices[k] for k in data["forecast"]["path"]} > {0}
    assert data["run"]["binding"] == binding(facts(replace(truth, forecast=None)), 3)
    assert "device 0 alone" in data["run"]["binding"]
    assert "device 0 alone" not in data["why"]["binding"]
    assert data["run"]["simulated_s"] == pytest.approx(run.step_s)
    assert "operations explain most" in data["run"]["remark"]


@pytest.mark.parametrize("name", PLANS)
def test_lateness_along_the_path_adds_up_to_what_the_run_is_late_by(name: str) -> None:
    """Of a run in which every op took half as long again: what is lost in and before its ops, one after the other."""
    plan = PLANS[name]
    timeline, run = simulate(plan), simulated_run(plan, slower=1.5)
    late = run_lateness(plan, timeline, run)
    assert len(late) > 3
    total = 0.0
    ends = {(d, x.op): x.end_s for d, device in enumerate(timeline.devices) for x in device.ops}
    ran = {(d, x.op): x.end_s for d, device in enumerate(run.devices) for x in device.ops}
    for one in late:
        total += one.added_s
        assert one.late_s == pytest.approx(total)
        assert one.late_s == pytest.approx(ran[one.device, one.op] - ends[one.device, one.op])
    assert total == pytest.approx(0.5 * ends[late[-1].device, late[-1].op])
    table = late_table(late)
    assert len(table) <= 10
    if len(late) > 8:
        assert table[-1][0] == f"{len(late) - 8} others"


def test_the_page_says_what_the_terminal_says_of_a_run(tmp_path: Path) -> None:
    """The causes of `compare --measured`, its remark, and where the run became late."""
    plan = one_way(3, 6)
    _, run = slower(plan, 0, 4.0)
    save_plan(plan, tmp_path / "plan.json")
    save_trace(run, tmp_path / "run.json")
    files = [str(tmp_path / "plan.json"), "--measured", str(tmp_path / "run.json")]
    said = CliRunner().invoke(compare, files).stdout
    data = data_of(plan, run)["run"]
    for text in (data["remark"], data["late"], *(what for _, what in data["causes"])):
        assert text in said
    for row in data["late_table"]:
        assert "  ".join(filter(None, row)).split() in [line.split() for line in said.splitlines()]
    assert len(data["causes"]) == 4


def test_a_late_message_decides_only_where_its_device_was_blocked() -> None:
    """1F1B on two devices: B0 of device 0 waits for the gradient; were it not blocked, F1 before it would decide."""
    plan = one_way(2, 4)
    run = simulated_run(plan)
    kinds = ["SEND_B", "F"]
    for blocked, kind in zip((True, False), kinds, strict=True):
        seen = run if blocked else with_ops(run, lambda x: replace(x, waited_s=0.0))
        data = data_of(plan, seen)
        items = data["items"]
        rows = list(zip(items["device"], items["kind"], items["micro_batch"], strict=True))
        item = rows.index((0, Kind.B, 0))
        decided = data["run"]["decided"][item]
        assert Kind(items["kind"][decided]).name == kind


def test_overhead_is_no_wait() -> None:
    """Ops that begin late because of launches were decided by the one before them."""
    plan = named("gpipe", 1, 3)
    data = data_of(plan, simulated_run(plan, overhead_s=0.2))
    assert data["run"]["decided"][0] == -1
    assert data["run"]["decided"][1:] == list(range(len(data["run"]["decided"]) - 1))
