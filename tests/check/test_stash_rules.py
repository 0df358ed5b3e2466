"""Rules that every plan with stashes away from home obeys, on random plans against naive accounts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import assert_forecast
from random_plans import plans_of, random_candidate

from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import IN_LINE, Kind, Op, Plan
from contraflow.planner.problem.cluster import Link
from contraflow.planner.simulate import simulate

SEEDS = st.integers(0, 10**6)


def plans(seed: int, *policies: str) -> list[Plan]:
    """At most one random plan with a random policy for every stash, and whole backwards."""
    return plans_of(random_candidate(seed, policies=policies or ("offload", "ship")), seed, 1, False)


@pytest.mark.long
@settings(max_examples=150)
@given(SEEDS)
def test_every_stash_is_back_before_its_backward_and_copies_take_turns(seed: int) -> None:
    for plan in plans(seed):
        timeline, cluster = simulate(plan), plan.problem.cluster
        links, lanes = cluster.host_links, defaultdict(list)
        latency = cluster.nodes[0].host_link.latency_s
        for device, line in enumerate(timeline.copies):
            start = {t.op: t.start_s for t in timeline.devices[device].ops}
            end = {t.op: t.end_s for t in timeline.devices[device].ops}
            copied = {t.op: t for t in line}
            for t in line:
                lanes[links[device], t.op.kind].append(t)
                assert t.start_s >= end[t.op._replace(kind=Kind.F)]
                if t.op.kind == Kind.FETCH:
                    assert t.start_s >= copied[t.op._replace(kind=Kind.OFFLOAD)].end_s + latency
                    assert start[t.op._replace(kind=Kind.B)] >= t.end_s + latency
        for lane in lanes.values():
            lane.sort(key=lambda t: t.start_s)
            assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(lane))
        for m in timeline.messages:
            if m.op.kind == Kind.SEND_S:
                homes = {p.forward[m.op.stage] for p in plan.pipelines if m.op.micro_batch in p.micro_batches}
                if m.target in homes:
                    ops_home = {t.op: t for t in timeline.devices[m.target].ops}
                    assert ops_home[Op(Kind.B, m.op.stage, m.op.micro_batch)].start_s >= m.arrival_s


@pytest.mark.long
@settings(max_examples=150)
@given(SEEDS)
def test_every_byte_is_given_back(seed: int) -> None:
    for plan in plans(seed):
        timeline = simulate(plan)
        for line in timeline.devices:
            assert line.memory.bytes[-1] == line.memory.bytes[0] == line.memory.bytes.min()
            assert sum(count for _, count in line.memory.peak_parts) == line.memory.peak_bytes
        assert all(memory.bytes[-1] == 0 for memory in timeline.host_memory)


@pytest.mark.long
@settings(max_examples=150)
@given(SEEDS)
def test_times_and_memory_equal_a_naive_account(seed: int) -> None:
    for plan in plans(seed):
        assert_forecast(plan)


@settings(max_examples=50)
@given(SEEDS)
def test_copies_that_take_no_time_cost_no_time(seed: int) -> None:
    """Where posting them takes none, either."""
    for plan in plans(seed, "offload"):
        nodes = tuple(replace(node, host_link=Link()) for node in plan.problem.cluster.nodes)
        problem = replace(plan.problem, cluster=replace(plan.problem.cluster, nodes=nodes, overhead=None))
        orders = [[op for op in order if op.kind in (Kind.F, Kind.B)] for order in plan.orders]
        away, kept = (
            assemble(Candidate(problem, plan.stages, plan.pipelines, stash), orders) for stash in (plan.stash, ())
        )
        assert simulate(away).step_s == simulate(kept).step_s


@settings(max_examples=50)
@given(SEEDS)
def test_given_places_stay(seed: int) -> None:
    """Lists stripped of their messages are completed to the same places of copies."""
    for plan in plans(seed):
        kept = IN_LINE | {Kind.OFFLOAD, Kind.FETCH}
        orders = [[op for op in order if op.kind in kept and op.kind != Kind.STEP] for order in plan.orders]
        candidate = Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash)
        again = assemble(candidate, orders)
        for before, after in zip(plan.orders, again.orders, strict=True):
            assert [op for op in before if op.kind in kept] == [op for op in after if op.kind in kept]
