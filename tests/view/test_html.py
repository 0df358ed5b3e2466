"""The HTML page without a browser: its data are the simulator's, its names stay data, nothing comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instances import by_lists as separate
from instances import named, shared, uniform
from pictures import NASTY, both_ways, chimera, nasty_plan, one_way
from random_plans import plans_of, random_candidate, tied
from traces import simulated_run, with_ops

from contraflow.planner import InputError
from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.graph import Versions
from contraflow.planner.plan import IN_LINE, RECEIVES, Kind, Op, Plan
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.runs.trace_file import save_trace
from contraflow.planner.simulate import simulate
from contraflow.planner.view import html
from contraflow.planner.view.critical import CriticalPath
from contraflow.planner.view.html_columns import columns_of
from contraflow.planner.view.text import device_limit

Item = tuple[int, Op]


def data_of(page: str, name: str = "plan") -> Any:
    """The page's embedded JSON."""
    (found,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def listed(plan: Plan) -> list[Item]:
    """The ops that are items, with their devices, in the page's order."""
    return [(d, op) for d, order in enumerate(plan.orders) for op in order if op.kind not in RECEIVES]


def intervals(timeline: Timeline) -> dict[Item, tuple[float, float]]:
    """Start and end of every op from the simulator's own lists."""
    found: dict[Item, tuple[float, float]] = {}
    for d, device in enumerate(timeline.devices):
        found |= {(d, timed.op): timed[1:] for timed in [*device.ops, *timeline.copies[d]]}
    return found | {(m.source, m.op): (m.start_s, m.end_s) for m in timeline.messages}


# ---------------------------------------------------------------- truth


def assorted() -> list[Plan]:
    """Every technique: two directions, replicas, optimizers that they share, split backwards, copies, ships, two
    devices a stage, no flush."""
    split = ModelGraph.chain([Layer(f"l{k}", 1, 1, 1, stash_bytes=3, weight_stash_bytes=2) for k in range(4)])
    plans = [
        chimera(),
        shared(chimera()),
        both_ways(),
        one_way(4, 8),
        named("zb-v", 2, 4, model=split),
        named("interleaved", 2, 4),
    ]
    plans += [named("pipeoptim", 4, 8, model=uniform(4, 1.0, 2.0, parameter_bytes=3)), named("pipedream-2bw", 2, 6)]
    plans.append(separate((0, 1), (1, 0), ["0F0 0F1 1B0 1B1", "1F0 1F1 0B0 0B1"], parameter_bytes=3, output_bytes=5))
    plans.append(separate((0,), (1,), ["0F0 0FREE0 0F1", "0B0 0B1"]))
    for seed in range(24):
        candidate = random_candidate(seed, apart=seed % 3 == 0)
        plans += plans_of(tied(candidate, seed) if seed % 4 == 0 else candidate, seed, 1, split=seed % 2 == 0)
    assert {op.kind for plan in plans for order in plan.orders for op in order} == set(Kind)
    return plans


@pytest.fixture(scope="module")
def pages() -> list[tuple[Plan, Timeline, Any]]:
    """Plans of every kind, simulated, and their pages' data."""
    return [(plan, simulate(plan), data_of(html(plan))) for plan in assorted()]


@pytest.mark.long
def test_what_is_drawn_is_what_the_simulator_says(pages: list[tuple[Plan, Timeline, Any]]) -> None:
    """Every op with start and end, to the last bit: the page adds the same two numbers."""
    for plan, timeline, data in pages:
        items, known = data["items"], intervals(timeline)
        starts, durations = columns_of(items["start_s"]), columns_of(items["duration_s"])
        assert data["forecast"]["step_s"] == timeline.step_s
        found = zip(items["device"], items["kind"], items["stage"], items["micro_batch"], strict=True)
        expected = listed(plan)
        assert list(found) == [(d, op.kind, op.stage, op.micro_batch) for d, op in expected]
        for key, start, duration in zip(expected, starts, durations, strict=True):
            if key in known:  # FREE takes no time and is on no timeline
                assert (start, start + duration) == known[key], key


def test_messages_have_their_ends_and_bytes(pages: list[tuple[Plan, Timeline, Any]]) -> None:
    for plan, timeline, data in pages:
        items, place = data["items"], {key: k for k, key in enumerate(listed(plan))}
        sizes, latencies = columns_of(items["bytes"]), columns_of(items["latency_s"])
        for message in timeline.messages:
            k = place[message.source, message.op]
            assert (items["target"][k], sizes[k]) == (message.target, message.bytes)
            assert message.end_s + latencies[k] == message.arrival_s


def test_tensors_add_up_to_the_memory_curve(pages: list[tuple[Plan, Timeline, Any]]) -> None:
    """Between any two changes, on every device: what it always holds and the tensors in the page are what it holds."""
    for plan, timeline, data in pages:
        columns = ("start_s", "end_s", "bytes")
        start, end, size = (np.array(columns_of(data["tensors"][name]), dtype=float) for name in columns)
        device = np.array(data["tensors"]["device"], dtype=int)
        for d in range(len(plan.orders)):
            times, counts = map(np.array, timeline.memory(d))
            edges = np.append(np.unique(times), timeline.step_s)
            for t in (edges[1:] + edges[:-1]) / 2:
                held = size[(device == d) & (start <= t) & (end > t)].sum()
                assert held == counts[np.searchsorted(times, t, "right") - 1] - counts[0], (d, t)


def test_a_large_page_has_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals alone, and the rest is drawn as ever."""
    monkeypatch.setattr("contraflow.planner.view.html_data.MOST_TENSORS", 10)
    data = data_of(html(chimera()))
    assert data["tensors"] is None
    assert data["memory"]


def test_memory_is_the_simulators(pages: list[tuple[Plan, Timeline, Any]]) -> None:
    """At every time what stays and the most that was held; peak, its parts and the limit."""
    for plan, timeline, data in pages:
        forecast = timeline.forecast()
        for d, device in enumerate(data["devices"]):
            times, counts = timeline.memory(d)
            curve = data["memory"][d]
            stays = dict(zip(times, counts, strict=True))
            assert dict(zip(columns_of(curve["times_s"]), columns_of(curve["stays"]), strict=True)) == stays
            known = forecast.devices[d]
            assert max(columns_of(curve["most"])) == device["peak_bytes"] == known.peak_bytes
            assert tuple(map(tuple, device["peak_parts"])) == known.peak_parts
            assert (device["busy_s"], device["limit_bytes"]) == (known.busy_s, device_limit(plan, d))


def test_an_item_starts_when_the_last_it_waits_for_is_over(pages: list[tuple[Plan, Timeline, Any]]) -> None:
    """The dependencies explain every start, and no item waits for one that is over later."""
    for _, _, data in pages:
        starts, durations = columns_of(data["items"]["start_s"]), columns_of(data["items"]["duration_s"])
        back, lags, k = data["waits"]["back"], columns_of(data["waits"]["lag_s"]), 0
        for item, count in enumerate(data["waits"]["count"]):
            over = [starts[item - back[j]] + durations[item - back[j]] + lags[j] for j in range(k, k + count)]
            assert starts[item] == pytest.approx(max(over, default=0.0), rel=1e-9)
            k += count
        assert k == len(back)


def test_the_critical_path_fills_the_step(pages: list[tuple[Plan, Timeline, Any]]) -> None:
    """Durations and lags on it add up to the step, and each job starts when the one before and its lag are over."""
    for _, timeline, _ in pages:
        path, jobs = CriticalPath.of(timeline), timeline.jobs
        time = 0.0
        for job, lag in zip(path.jobs, path.lags_s, strict=True):
            assert jobs.start[job] == pytest.approx(time, rel=1e-9, abs=1e-9)
            time = jobs.end[job] + lag
        assert time == pytest.approx(timeline.step_s)
        durations = sum(float(jobs.duration[job]) for job in path.jobs)
        assert durations + sum(path.lags_s) == pytest.approx(timeline.step_s)


@pytest.mark.parametrize("schedule", ["pipeoptim", "pipedream"])
def test_a_plan_without_a_flush_shows_its_period_and_versions(schedule: str) -> None:
    """PipeDream's staleness is D - 1 - k; in the brackets a device does an update's work, the rest is bubble."""
    plan = named(schedule, 4, 12, model=uniform(4, 1.0, 2.0, parameter_bytes=3))
    timeline, data = simulate(plan), data_of(html(plan))
    steady, period = data["steady"], data["forecast"]["period_s"]
    assert steady["stale"] == [3, 2, 1, 0]
    assert steady["to_s"] - steady["from_s"] == pytest.approx(steady["update"] * period)
    idle = []
    for device in timeline.devices:
        inside = [min(x.end_s, steady["to_s"]) - max(x.start_s, steady["from_s"]) for x in device.ops]
        idle.append(1 - sum(max(0.0, part) for part in inside) / (steady["update"] * period))
    assert steady["bubble"] == pytest.approx(sum(idle) / 4, abs=1e-9)
    versions = Versions.of(plan)
    items = data["items"]
    for k, kind in enumerate(items["kind"]):
        key = (items["stage"][k], items["micro_batch"][k])
        if kind == Kind.F:
            assert steady["version"][k] == versions.forward[key]
            assert steady["ahead"][k] == versions.forward_ahead[key]
        elif kind == Kind.B:
            assert steady["version"][k] == versions.backward[key]
        elif kind not in (Kind.I, Kind.W, Kind.R):
            assert steady["version"][k] == -1
    assert data_of(html(one_way(2, 2)))["steady"] is None


def test_a_plan_that_takes_no_time_has_a_page() -> None:
    """Zero is allowed for every cost."""
    data = data_of(html(one_way(2, 2, forward_s=0.0)))
    assert data["forecast"]["step_s"] == 0
    assert data["why"]["binding"] == "nothing takes time"


# ---------------------------------------------------------------- names are data


def test_names_are_data_only() -> None:
    """They come back as they were, and the page has the scripts and comments that it always has."""
    page = html(nasty_plan())
    data = data_of(page)
    assert (data["model"], data["source"], data["stages"][0]) == (NASTY, NASTY, [NASTY])
    plain = html(one_way(2, 2))
    for mark in ("<script", "</script", "<!--"):
        assert page.count(mark) == plain.count(mark)
    assert "\u2028" not in page[page.index("<script") :]
    page.encode()  # a lone surrogate does not keep the file from being written


def test_nothing_is_fetched_and_only_its_own_script_may_run() -> None:
    page = html(chimera())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for tag in ("script", "style"):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() in policy
    assert not re.findall(r"https?:|\bsrc=|\bhref=|@import|url\(|\bfetch\(|XMLHttp|eval\(|innerHTML", page)


def test_notebooks_get_the_page_in_a_frame() -> None:
    """The page in srcdoc, unchanged, and in a sandbox."""
    plan = both_ways()
    shown = plan._repr_html_()
    (inside,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert unescape(inside) == html(plan)
    assert 'sandbox="allow-scripts"' in shown


# ---------------------------------------------------------------- runs


def test_a_runs_times_are_beside_the_forecasts(tmp_path: Path) -> None:
    """Start and end of every op, twice the forecast's, and the peaks as measured; from the run or from its file."""
    plan = chimera()
    run = simulated_run(plan, slower=2.0)
    run = replace(run, devices=tuple(replace(x, peak_bytes=100 + d) for d, x in enumerate(run.devices)))
    data = data_of(html(plan, run))
    starts, durations = columns_of(data["items"]["start_s"]), columns_of(data["items"]["duration_s"])
    assert data["run"]["start_s"] == pytest.approx([2 * start for start in starts])
    assert data["run"]["end_s"] == pytest.approx([2 * (a + b) for a, b in zip(starts, durations, strict=True)])
    assert data["run"]["step_s"] == pytest.approx(2 * data["forecast"]["step_s"])
    assert [device["peak_bytes"] for device in data["run"]["devices"]] == [100, 101, 102, 103]
    save_trace(run, tmp_path / "run.json")
    assert data_of(html(plan, tmp_path / "run.json")) == data


def test_a_runs_memory_is_there_where_it_was_measured() -> None:
    """The most that each op in line held; messages and ops without a figure are left out."""
    plan = both_ways()
    run = with_ops(simulated_run(plan), lambda item: replace(item, peak_bytes=7), device=0)
    memory = data_of(html(plan, run))["run"]["memory"]
    assert memory[0]["peak_bytes"] == [7] * sum(op.kind in IN_LINE for op in plan.orders[0])
    assert memory[1]["peak_bytes"] == []


def test_without_a_run_there_is_none() -> None:
    assert data_of(html(both_ways()))["run"] is None


def test_a_run_of_another_plan_is_refused() -> None:
    with pytest.raises(InputError, match="the run is of another plan"):
        html(one_way(2, 2), simulated_run(one_way(2, 4)))
