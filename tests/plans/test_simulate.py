"""The simulator's times and memory, against definitions spelled out naively."""

from __future__ import annotations

import gc
import random
import sys
import time
import weakref
from collections import defaultdict
from dataclasses import replace

import pytest
from editing import mutant
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, one_layer_a_stage, uniform
from naive import assert_forecast
from random_plans import plans_of, random_candidate, tied

from contraflow.planner import basics
from contraflow.planner.basics import Loops
from contraflow.planner.basics.deadline import OutOfTime, until
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate, StageCosts, kernel
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import COMPUTE, Kind, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.simulate import evaluate, simulate

SEEDS = st.integers(0, 10**6)


def plans(seed: int) -> list[Plan]:
    """At most one random plan, whose stashes stay and whose backwards are whole."""
    return plans_of(random_candidate(seed, policies=()), seed, 1, False)


@pytest.mark.long
@settings(max_examples=150)
@given(SEEDS)
def test_generated_plans_pass_the_checker_and_respect_every_rule(seed: int) -> None:
    """No two ops of a device overlap, every message waits for its producer and arrives before its consumer."""
    for plan in plans(seed):
        assert check(plan) == []
        timeline = simulate(plan)
        times = {}
        for device, line in enumerate(timeline.devices):
            clock = 0.0
            for timed in line.ops:
                if timed.op.kind in COMPUTE:
                    assert timed.start_s >= clock
                    clock = timed.end_s
                    times[device, timed.op] = timed
            assert clock <= timeline.step_s
        for message in timeline.messages:
            op = message.op
            producer = Kind.F if op.kind == Kind.SEND_F else Kind.B
            assert message.start_s >= times[message.source, op._replace(kind=producer, peer=-1)].end_s
            consumer = op._replace(kind=producer, stage=op.peer, peer=-1)
            assert times[message.target, consumer].start_s >= message.arrival_s
            link = plan.problem.cluster.link(message.source, message.target)
            assert message.end_s - message.start_s == pytest.approx(message.bytes / link.bandwidth)
            assert message.arrival_s - message.end_s == pytest.approx(link.latency_s)


@settings(max_examples=100)
@given(SEEDS)
def test_links_and_network_cards_carry_one_message_at_a_time(seed: int) -> None:
    for plan in plans(seed):
        cluster = plan.problem.cluster
        lanes = defaultdict(list)
        for m in simulate(plan).messages:
            if cluster.same_node(m.source, m.target):
                lanes[m.source, m.target].append(m)
            else:
                lanes["out", m.source].append(m)
                lanes["in", m.target].append(m)
        for lane in lanes.values():
            lane.sort(key=lambda m: (m.start_s, m.end_s))
            for a, b in zip(lane, lane[1:], strict=False):
                assert b.start_s >= a.end_s - 1e-9


@pytest.mark.long
@settings(max_examples=200)
@given(SEEDS)
def test_times_and_memory_equal_a_naive_account(seed: int) -> None:
    for plan in plans(seed):
        assert_forecast(plan)
        for said in plan.forecast.devices:
            assert sum(count for _, count in said.peak_parts) == said.peak_bytes


@pytest.mark.parametrize("seed", range(24))
def test_edited_lists_are_accounted_for_as_well(seed: int) -> None:
    """Random plans of all policies, with halves and ties, and what the checker accepts of their edited lists."""
    candidate = random_candidate(seed, seed % 3 == 0)
    for plan in plans_of(tied(candidate, seed) if seed % 2 else candidate, seed, 1, seed % 4 < 2):
        assert_forecast(plan)
        if (other := mutant(plan, random.Random(seed), 20)) is not None:
            assert_forecast(other)


def test_a_send_makes_room_only_for_what_is_listed_behind_it() -> None:
    """Stash 10, tensors of 30, links that take no time: there is room for the RECV behind the SEND, not before it."""
    plan = named("gpipe", 2, 1, 2, 2, model=uniform(2, 2, 2, stash_bytes=10, output_bytes=30))
    first, second = plan.orders
    assert [str(op) for op in first] == ["0F0", "0SEND_F0>1", "0RECV_B0<1", "0B0", "0STEP"]
    assert plan.forecast is not None
    assert plan.forecast.peak_bytes[0] == 40
    swapped = replace(plan, orders=((first[0], first[2], first[1], *first[3:]), second))
    assert check(swapped.with_forecast(evaluate(swapped))) == []
    assert simulate(swapped).memory(0) == ([0, 0, 2, 2, 8], [0, 40, 70, 40, 0])
    assert evaluate(swapped).peak_bytes == (70, 40)


def test_of_two_that_exchange_at_one_time_one_holds_both() -> None:
    """Both post a RECV of 30 bytes behind a SEND of 30 at 2 s: one waits for its SEND, and the other for that RECV."""
    plan = named("chimera", 2, 2, 2, 2, model=uniform(2, 2, 2, stash_bytes=10, output_bytes=30))
    for d, order in enumerate(plan.orders):
        assert [str(op) for op in order][:3] == [f"0F{d}", f"0SEND_F{d}>1", f"1RECV_F{1 - d}<0"]
    at_2 = [
        max(size for time, size in zip(*simulate(plan).memory(device), strict=True) if time == 2) for device in (0, 1)
    ]
    assert sorted(at_2) == [40, 70]


def test_latency_delays_but_does_not_occupy() -> None:
    """Two stages, link 1 byte/s, 4-byte activations, latency 10: the second message starts when the first left."""
    plan = named(
        "gpipe", 2, 2, 1, 1, model=uniform(2, 1, 1, output_bytes=4), cluster=Cluster.uniform(2, link=Link(1.0, 10.0))
    )
    forward = [m for m in simulate(plan).messages if m.op.kind == Kind.SEND_F]
    assert [(m.start_s, m.end_s, m.arrival_s) for m in forward] == [(1, 5, 15), (5, 9, 19)]


def test_reduction_and_step_are_inside_the_horizon() -> None:
    """Two stages of 8 bytes, two replicas each: 2(r-1)/r * bytes / bandwidth, and 3 * 8 bytes a STEP.

    The first reduction overlaps the last backward, and the first STEP the second reduction.
    """
    model = uniform(2, 1, 1, parameter_bytes=8)
    layout = build("chimera", 2, 2)
    for bandwidth, memory_bandwidth, extra in ((8.0, None, 1.0), (8.0, 24.0, 2.0)):
        kind = DeviceType("toy", 1000, 1.0, memory_bandwidth)
        cluster = Cluster((NodeGroup(1, 2, kind, Link(bandwidth)),))
        candidate = Candidate(Problem(model, cluster, Workload(2)), one_layer_a_stage(model), layout.pipelines)
        plan = assemble(candidate, layout.orders)
        assert check(plan) == []
        assert plan.forecast.step_s == 4 + extra


def test_evaluate_under_other_costs() -> None:
    """The same orders on devices of twice the speed take half as long."""
    plan = named("1f1b", 4, 8, 1, 2)
    assert evaluate(plan).step_s == 33
    assert evaluate(plan, cluster=Cluster.uniform(4, speed=2.0)).step_s == 16.5
    assert evaluate(plan, model=uniform(4, 2, 4)).step_s == 66
    assert evaluate(replace(plan, forecast=None)).peak_bytes == (4, 3, 2, 1)


def test_compiled_and_plain_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """One definition, two ways to run it: plain at first, compiled where that pays."""
    plan = named("chimera", 8, 32, 1, 2)
    loops = Loops(kernel.serve, kernel.by_predecessor, small=0, worth=kernel.WORTH)
    monkeypatch.setattr(kernel, "_loops", loops)
    plain = evaluate(plan)
    assert loops.plain > 0
    assert not loops.in_memory
    loops.worth = loops.plain
    assert evaluate(plan) == plain
    assert loops.in_memory
    assert loops.plain == loops.worth


def test_what_is_on_disk_is_loaded_soon_where_the_compiler_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an eighth of the work, and in the two seconds that a turn of a search may last."""
    pytest.importorskip("numba")
    loops = Loops(kernel.serve, small=0, worth=800)
    assert loops.functions
    monkeypatch.setattr(basics.loops, "on_disk", lambda function: True)
    with until(time.monotonic() + 2):
        assert [loops.compiled(60), loops.compiled(60)] == [False, True]
        monkeypatch.setattr(basics.loops, "on_disk", lambda function: False)
        assert not loops.compiled(60)
        monkeypatch.delitem(sys.modules, "numba")
        monkeypatch.setattr(basics.loops, "on_disk", lambda function: True)
        assert not loops.compiled(10**6)


def test_nothing_is_compiled_for_a_call_that_must_end_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python serves a large graph where the time left is less than a compilation takes."""
    plan = named("chimera", 8, 32, 1, 2)
    loops = Loops(kernel.serve, kernel.by_predecessor, small=0, worth=0)
    monkeypatch.setattr(kernel, "_loops", loops)
    monkeypatch.setattr(basics.loops, "on_disk", lambda function: False)
    with until(time.monotonic() + basics.loops.COMPILATION_S - 1):
        evaluate(plan)
    assert not loops.in_memory
    with pytest.raises(OutOfTime), until(time.monotonic() - 1):
        evaluate(plan)


def test_costs_are_computed_once_a_model_and_forgotten_with_it() -> None:
    """The same object for the same cut of the same model; nothing keeps a model alive."""
    model = uniform(2)
    stages = one_layer_a_stage(model)
    assert StageCosts.of(model, stages) is StageCosts.of(model, tuple(stages))
    assert StageCosts.of(model, (("layer0", "layer1"),)).forward_s.tolist() == [2.0]
    assert StageCosts.of(uniform(2, 3.0), stages).forward_s.tolist() == [3.0, 3.0]
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
