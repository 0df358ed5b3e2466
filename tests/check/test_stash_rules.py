"""Rules that every plan with stashes away from home obeys, on random plans against naive accounts."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from instances import one_layer_a_stage
from naive import assert_forecast

from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import IN_LINE, Kind, Op, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.simulate import simulate


@st.composite
def plans(draw: st.DrawFn, stashes_only: bool = False, host: Link | None = None) -> Plan:
    """Random chains under a random schedule with a random policy for every stash."""
    devices, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    name = draw(st.sampled_from(["gpipe", "1f1b", "chimera"]))
    layout = build(name if devices % 2 == 0 else "1f1b", devices, micro_batches)
    times, sizes = st.integers(1, 5), st.integers(1, 9)
    extra = st.just(0) if stashes_only else st.integers(0, 9)
    layers = []
    for k in range(layout.stages):
        stash = draw(sizes)
        layers.append(
            Layer(
                f"l{k}", draw(times), draw(times), separable=False, stash_bytes=stash, weight_stash_bytes=stash,
                output_bytes=draw(extra), parameter_bytes=draw(sizes), workspace_bytes=draw(extra),
            )
        )  # fmt: skip
    group = NodeGroup(
        1, devices, DeviceType("toy", 10**6), Link(draw(st.sampled_from([1.0, 8.0])), draw(st.integers(0, 2))), None,
        host or Link(draw(st.sampled_from([0.5, 4.0])), draw(st.integers(0, 2))), draw(st.integers(1, 2)),
    )  # fmt: skip
    model = ModelGraph.chain(layers)
    asked = Problem(model, Cluster((group,)), Workload(micro_batches))
    policies = ["keep", "offload"] + [f"ship>{d}" for d in range(devices) if host is None]
    rows = {}
    for pipeline in layout.pipelines:
        for m in pipeline.micro_batches:
            drawn = [draw(st.sampled_from(policies)) for _ in layers]
            at_home = [f"ship>{home}" for home in pipeline.forward]
            rows[m] = tuple("keep" if policy == home else policy for policy, home in zip(drawn, at_home, strict=True))
    candidate = regroup(asked, one_layer_a_stage(model), layout.pipelines, rows)
    return assemble(candidate, layout.orders, name)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_every_stash_is_back_before_its_backward_and_copies_take_turns(plan: Plan) -> None:
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


@settings(max_examples=150, deadline=None)
@given(plans())
def test_every_byte_is_given_back(plan: Plan) -> None:
    timeline = simulate(plan)
    for line in timeline.devices:
        assert line.memory.bytes[-1] == line.memory.bytes[0] == line.memory.bytes.min()
        assert sum(count for _, count in line.memory.peak_parts) == line.memory.peak_bytes
    assert all(memory.bytes[-1] == 0 for memory in timeline.host_memory)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_times_and_memory_equal_a_naive_account(plan: Plan) -> None:
    assert_forecast(plan)


@settings(max_examples=50, deadline=None)
@given(plans(host=Link()))
def test_copies_that_take_no_time_cost_no_time(plan: Plan) -> None:
    candidate = Candidate(plan.problem, plan.stages, plan.pipelines)
    orders = [[op for op in order if op.kind in (Kind.F, Kind.B)] for order in plan.orders]
    assert simulate(plan).step_s == simulate(assemble(candidate, orders)).step_s


@settings(max_examples=50, deadline=None)
@given(plans())
def test_given_places_stay(plan: Plan) -> None:
    """Lists stripped of their messages are completed to the same places of copies."""
    kept = IN_LINE | {Kind.OFFLOAD, Kind.FETCH}
    orders = [[op for op in order if op.kind in kept and op.kind != Kind.STEP] for order in plan.orders]
    candidate = Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash)
    again = assemble(candidate, orders)
    for before, after in zip(plan.orders, again.orders, strict=True):
        assert [op for op in before if op.kind in kept] == [op for op in after if op.kind in kept]
