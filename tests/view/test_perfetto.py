"""Chrome trace events of plans and runs: the format's rules, and the simulator's figures."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from pictures import ONE_ROUTE, one_way, pictured, routed
from traces import simulated_run, with_ops

from contraflow.planner.basics.errors import InputError
from contraflow.planner.plan import COMPUTE, Kind, Op, Plan
from contraflow.planner.runs.trace import OpTrace, RunTrace
from contraflow.planner.simulate import simulate
from contraflow.planner.view import perfetto

Event = dict[str, Any]
KEYS = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "M": {"name", "pid", "tid", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}
PLANS = list(pictured())
NANOSECOND = 0.001


def events_of(plan: Plan, run: RunTrace | None = None, only_run: bool = False) -> list[Event]:
    """The events of a plan's trace, which keep every rule of the format."""
    assert plan.forecast is not None
    text = perfetto.render(plan, simulate(plan), plan.forecast, run, only_run)
    content = json.loads(text, parse_constant=pytest.fail)
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert content["displayTimeUnit"] == "ms"
    assert_valid(content["traceEvents"])
    return list(content["traceEvents"])


def assert_valid(events: list[Event]) -> None:
    """The rules of the Trace Event Format document, and those by which Perfetto draws what it is given."""
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        assert set(event) == {"ph", *KEYS[event["ph"]]}, event
        assert isinstance(event["name"], str)
        assert event["name"] != ""
        for key in ("pid", "tid"):
            assert type(event[key]) is int
        for key in {"ts", "dur"} & set(event):
            assert isinstance(event[key], (int, float))
            assert math.isfinite(event[key])
            assert event[key] >= 0
            assert abs(event[key] * 1000 - round(event[key] * 1000)) < 1e-3, "not whole nanoseconds"
        if event["ph"] != "M":
            threads[event["pid"], event["tid"]].append(event)
    assert_named(events, set(threads))
    for of_thread in threads.values():
        assert_in_order([event for event in of_thread if event["ph"] in "Xsf"])
    counters: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event)
            assert [type(value) for value in event["args"].values()] == [int]
            assert min(event["args"].values()) >= 0
    for points in counters.values():
        times = [point["ts"] for point in points]
        assert times == sorted(times)
    assert_paired(events)


def assert_named(events: list[Event], used: set[tuple[int, int]]) -> None:
    """Every process and thread has one name, and no two threads of a process share one."""
    names = Counter((e["pid"], e["tid"]) for e in events if e["name"] == "thread_name")
    assert set(names) == {(pid, tid) for pid, tid in used if tid}
    assert set(names.values()) <= {1}
    labels = Counter((e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name")
    assert set(labels.values()) <= {1}
    processes = Counter(e["pid"] for e in events if e["name"] == "process_name")
    assert set(processes) == {pid for pid, _ in used}
    assert set(processes.values()) == {1}


def assert_in_order(events: list[Event]) -> None:
    """Times do not go back, slices do not overlap, and an arrow lies in the slice written before it."""
    ends = 0
    slice_: Event = {}
    for event in events:
        start = round(event["ts"] * 1000)
        if event["ph"] == "X":
            assert start >= ends, event
            ends, slice_ = start + round(event["dur"] * 1000), event
        else:
            assert slice_["ts"] <= event["ts"] <= slice_["ts"] + slice_["dur"] + 1e-3


def assert_paired(events: list[Event]) -> None:
    """Every arrow has one beginning and one end, with equal names and categories, and the end is later.

    Perfetto reads events by their times: of two at one time the end may come first, and such arrows are lost.
    """
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    arrows = [e for e in events if e["ph"] in "sf"]
    assert len(arrows) == 2 * len(begins)
    assert set(begins) == set(ends)
    for number, begin in begins.items():
        assert begin["cat"] == ends[number]["cat"]
        assert begin["name"] == ends[number]["name"]
        assert begin["ts"] < ends[number]["ts"]


def processes(events: list[Event]) -> dict[int, str]:
    """Names by pid."""
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


@pytest.mark.parametrize("name", PLANS)
def test_every_op_of_the_simulation_is_a_slice(name: str) -> None:
    """Compute, copies, reductions and messages at the simulated microseconds, nothing besides."""
    plan = pictured()[name]
    timeline, events = simulate(plan), events_of(plan)
    wanted: Counter[tuple[int, str, int, int]] = Counter()

    def note(device: int, op: object, start_s: float, end_s: float) -> None:
        wanted[device + 1, str(op), round(start_s * 1e9), round(end_s * 1e9)] += 1

    for d, (device, copies) in enumerate(zip(timeline.devices, timeline.copies, strict=True)):
        for item in (*device.ops, *copies):
            note(d, item.op, item.start_s, item.end_s)
    receives = {(d, op) for d, order in enumerate(plan.orders) for op in order if op.kind.name.startswith("RECV")}
    for sent in timeline.messages:
        note(sent.source, sent.op, sent.start_s, sent.end_s)
        far = sent.source if sent.op.kind in (Kind.SEND_S, Kind.SEND_P) else sent.op.stage
        near = sent.op.stage if sent.op.kind in (Kind.SEND_S, Kind.SEND_P) else sent.op.peer
        received = Op(Kind(sent.op.kind + 1), near, sent.op.micro_batch, far)
        receives.remove((sent.target, received))
        note(sent.target, received, sent.start_s + (sent.arrival_s - sent.end_s), sent.arrival_s)
    assert not receives
    found = Counter(
        (e["pid"], e["name"], round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000))
        for e in events
        if e["ph"] == "X"
    )
    assert found == wanted


@pytest.mark.parametrize("name", PLANS)
def test_counters_are_the_simulated_memory(name: str) -> None:
    """Peaks of every device and every host, each under its own process."""
    plan = pictured()[name]
    timeline, events = simulate(plan), events_of(plan)
    peaks: dict[str, int] = defaultdict(int)
    names = processes(events)
    for event in events:
        if event["ph"] == "C":
            peaks[names[event["pid"]]] = max(peaks[names[event["pid"]]], event["args"]["bytes"])
    wanted = {f"forecast device {d}": m.peak_bytes for d, m in enumerate(timeline.device_memory)}
    wanted |= {f"forecast host of node {n}": m.peak_bytes for n, m in enumerate(timeline.host_memory) if m.peak_bytes}
    assert peaks == wanted
    assert any("host" in name for name in peaks) == ("offload" in name)


@pytest.mark.parametrize("name", PLANS)
def test_every_message_and_every_offload_has_an_arrow(name: str) -> None:
    """SEND to RECV and OFFLOAD to FETCH, on the threads of their engines."""
    plan = pictured()[name]
    events = events_of(plan)
    sends = sum(op.kind.name.startswith("SEND") for order in plan.orders for op in order)
    offloads = sum(op.kind == Kind.OFFLOAD for order in plan.orders for op in order)
    assert Counter(e["cat"] for e in events if e["ph"] == "s") == Counter(message=sends, copy=offloads)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    starts = {"F": "compute", "B": "compute", "SEND": "sends to", "RECV": "receives from", "OFFLOAD": "copies to",
              "FETCH": "copies from", "REDUCE": "reductions", "STEP": "compute"}  # fmt: skip
    for event in events:
        if event["ph"] == "X":
            kind = event["name"].strip("0123456789<>").split("_")[0].rstrip("0123456789")
            assert threads[event["pid"], event["tid"]].startswith(starts.get(kind, "compute")), event


@pytest.mark.parametrize("micro_batches", [4, 8])
def test_messages_that_take_no_time_have_arrows_of_a_nanosecond(micro_batches: int) -> None:
    """On free links both ends are at one time, down the devices and up again: no arrow stands still or is left out."""
    plan = one_way(2, micro_batches)
    events = events_of(plan)
    begins = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    assert len(begins) == 2 * micro_batches
    for event in events:
        if event["ph"] == "f":
            assert event["ts"] == pytest.approx(begins[event["id"]] + NANOSECOND)
        elif event["ph"] == "X" and event["cat"] == "message":
            assert event["dur"] == NANOSECOND


def test_names_are_in_order_where_they_are_sorted() -> None:
    """Of 12 devices the third is 02, of four 2: of processes, and of the devices that links lead to."""
    for devices, third in ((12, "02"), (4, "2")):
        events = events_of(one_way(devices, 2))
        names = [name for name in processes(events).values() if "device" in name]
        assert names == sorted(names)
        assert names[2] == f"forecast device {third}"
        threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
        assert f"sends to device {third}" in threads


def a_run(plan: Plan, slower: float = 1.5) -> RunTrace:
    """A run of the plan in which everything took longer; messages from their posts to their ends, all overlapping."""
    run = simulated_run(plan, slower=slower)

    def measured(item: OpTrace) -> OpTrace:
        if item.op.kind in COMPUTE:
            return replace(item, live_bytes=5, peak_bytes=7)
        return replace(item, start_s=0.1, end_s=run.step_s - 0.1)

    return with_ops(run, measured)


@pytest.mark.parametrize("name", PLANS)
def test_a_run_lies_beside_its_forecast(name: str) -> None:
    """Other processes in the same file, on the same clock; overlapping messages take threads of their own."""
    plan = pictured()[name]
    run = a_run(plan)
    both, alone = events_of(plan, run), events_of(plan, run, only_run=True)
    names = processes(both)
    measured = [pid for pid, name in names.items() if name.startswith("measured")]
    assert [names[pid] for pid in measured] == [f"measured device {d}" for d in range(len(plan.orders))]
    assert set(processes(alone).values()) == {names[pid] for pid in measured}
    ran = Counter(e["name"] for e in both if e["ph"] == "X" and e["pid"] in measured)
    assert ran == Counter(str(op) for order in plan.orders for op in order)
    assert sum(e["ph"] == "s" for e in alone) * 2 == sum(e["ph"] == "s" for e in both)
    assert {e["args"]["bytes"] for e in alone if e["ph"] == "C"} == {7}


def test_a_run_whose_memory_is_not_known_has_no_counter() -> None:
    """0 bytes are no measurement."""
    plan = routed(ONE_ROUTE, micro_batches=1)
    run = with_ops(a_run(plan), lambda item: replace(item, peak_bytes=0), device=0)
    assert {e["pid"] for e in events_of(plan, run, only_run=True) if e["ph"] == "C"} == {2}


def test_an_arrow_that_would_go_back_in_time_is_left_out() -> None:
    """Clocks of two devices differ: a RECV is over before its SEND starts."""
    plan = routed(ONE_ROUTE, micro_batches=1)
    early = with_ops(
        a_run(plan), lambda x: replace(x, start_s=0.0, end_s=0.01) if x.op.kind is Kind.RECV_F else x, device=1
    )
    assert sum(e["ph"] == "s" for e in events_of(plan, early, only_run=True)) == 1


def test_a_run_of_another_plan_is_refused() -> None:
    """And without a run there is none to draw."""
    with pytest.raises(InputError, match="the run is of another plan"):
        events_of(routed(ONE_ROUTE), a_run(routed(ONE_ROUTE, micro_batches=5)))
    with pytest.raises(InputError, match="no run"):
        events_of(routed(ONE_ROUTE), only_run=True)


def test_names_are_json_text() -> None:
    """Quotes, markup and line ends in a model's name stay in a string."""
    plan = routed(ONE_ROUTE)
    name = '</script>"\n\x1b[31m'
    odd = replace(plan, problem=replace(plan.problem, model=replace(plan.problem.model, name=name)))
    assert odd.forecast is not None
    content = json.loads(perfetto.render(odd, simulate(odd), odd.forecast))
    assert content["otherData"]["model"] == '</script>" �[31m'
