"""Tied parameters in plans: one copy a device, summed once over all devices that hold one, before any is updated."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, one_layer_a_stage, solved
from random_plans import plans_of, random_candidate, tied

from contraflow.planner import bounds
from contraflow.planner.basics.errors import ModelError, PlanError
from contraflow.planner.check import check
from contraflow.planner.forecast.timeline import Deadlock, Timeline
from contraflow.planner.graph import Candidate, StageCosts, holders, messages, static_bytes
from contraflow.planner.graph.reductions import reduce_seconds
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition.chain import Chain, compositions
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.plan_file import op_from_text, plan_from_dict, plan_to_dict
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph, SharedParameters
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.exact.instance import Rules
from contraflow.planner.search.exact.search import solve
from contraflow.planner.search.exact.solver import Effort
from contraflow.planner.simulate import simulate

SEEDS = st.integers(0, 10**6)
ENDS = (Kind.B, Kind.W)


def chain(layers: int, tie: tuple[int, ...], shared: int = 6, own: int = 2, **rest: int) -> ModelGraph:
    """Layers of F=1, B=2 with parameters of their own; those of `tie` share some more."""
    made = [
        Layer(f"layer{k}", 1.0, 2.0, separable=False, parameter_bytes=own + shared * (k in tie), **rest)
        for k in range(layers)
    ]
    return ModelGraph.chain(made, shared=(SharedParameters(tuple(f"layer{k}" for k in tie), shared),))


def tie_ops(found: Plan) -> list[list[str]]:
    """The TIEs of every device as text."""
    return [[str(op) for op in order if op.kind is Kind.TIE] for order in found.orders]


# ---------------------------------------------------------------- what is held


@pytest.mark.parametrize(
    ("schedule", "devices", "parameters"),
    [
        ("1f1b", 4, [8, 2, 2, 8]),
        ("chimera", 4, [10, 4, 4, 10]),  # both ends of both pipelines on devices 0 and 3: one copy each
        ("zb-v", 2, [10, 4]),  # one device holds both ends
        ("interleaved", 2, [10, 10]),
    ],
)
def test_a_device_holds_one_copy(schedule: str, devices: int, parameters: list[int]) -> None:
    """Four stages of 2 bytes of their own, 6 bytes shared by the first and the last; SGD: parameters and gradients."""
    model = chain(4, (0, 3))
    if schedule == "zb-v":
        split = [replace(x, separable=True, backward_input_s=1.0, backward_weight_s=1.0) for x in model.layers]
        model = replace(model, layers=tuple(split))
    found = named(schedule, devices, 8, model=model)
    held = static_bytes(found, StageCosts.of(model, found.stages))
    own = [2 * len({s for s, owners in holders(found).items() if d in owners}) for d in range(devices)]
    ends = [any(d in holders(found)[s] for s in (0, 3)) for d in range(devices)]
    assert [parts["parameters"] for parts in held] == [a + 6 * b for a, b in zip(own, ends, strict=True)] == parameters
    assert [parts["gradients"] for parts in held] == parameters
    assert check(found) == []


def test_one_sum_a_step_where_several_devices_hold_a_copy() -> None:
    """1F1B's first and last device; none for a V, whose first device holds both ends; both ends of a Chimera once."""
    assert tie_ops(named("1f1b", 4, 8, model=chain(4, (0, 3)))) == [["0TIE=0"], [], [], ["3TIE=0"]]
    assert tie_ops(named("chimera", 4, 8, model=chain(4, (0, 3)))) == [["0TIE=0"], [], [], ["0TIE=0"]]
    three = replace(chain(4, (0, 1, 3)), shared=(SharedParameters(("layer0", "layer3", "layer1"), 6),))
    assert tie_ops(named("1f1b", 4, 8, model=three)) == [["0TIE=0"], ["1TIE=0"], [], ["3TIE=0"]]
    model = chain(4, (0, 3))
    route = (0, 1, 1, 0)
    folded = Candidate(
        Problem(model, Cluster.uniform(2), Workload(3)), one_layer_a_stage(model), (Pipeline(route, route, (0, 1, 2)),)
    )
    assert all(tie_ops(p) == [[], []] for p in plans_of(folded, 0, 3, False))


def test_a_tie_inside_a_stage_is_the_stages_own() -> None:
    """Counted once, reduced with the stage's other gradients where it has replicas, and no TIE."""
    model = chain(4, (0, 1))
    stages = (("layer0", "layer1"), ("layer2", "layer3"))
    costs = StageCosts.of(model, stages)
    assert costs.parameter_bytes.tolist() == costs.own_bytes.tolist() == [10, 4]
    assert costs.ties == ()
    pipelines = (Pipeline((0, 1), (0, 1), (0, 2)), Pipeline((1, 0), (1, 0), (1, 3)))
    for found in plans_of(Candidate(Problem(model, Cluster.uniform(2), Workload(4)), stages, pipelines), 0, 3, False):
        assert tie_ops(found) == [[], []]
        assert check(found) == []


def test_the_sum_starts_when_the_last_device_is_ready_and_every_step_waits_for_it() -> None:
    """6 bytes over links of 2 B/s and 0.5 s: a ring of two takes 2 rounds of 3 bytes; then STEP reads and writes."""
    link = Link(2.0, 0.5)
    model, workload = chain(2, (0, 1), own=0), Workload(2)
    kind = DeviceType("toy", 1 << 20, 1.0, memory_bandwidth=18.0)
    problem = Problem(model, Cluster((NodeGroup(1, 2, kind, link),)), workload)
    order = [[Op(Kind.F, s, m) for m in range(2)] + [Op(Kind.B, s, m) for m in range(2)] for s in range(2)]
    found = assemble(Candidate(problem, one_layer_a_stage(model), (Pipeline((0, 1), (0, 1), (0, 1)),)), order)
    timeline = simulate(found)
    timed = {(d, t.op.kind): t for d, line in enumerate(timeline.devices) for t in line.ops}
    ends = max(t.end_s for line in timeline.devices for t in line.ops if t.op.kind is Kind.B)
    assert timed[0, Kind.TIE][1:] == timed[1, Kind.TIE][1:] == (ends, ends + 3.0)
    for d in range(2):  # SGD: parameters read and written, gradients read: 18 bytes at 18 B/s
        assert timed[d, Kind.STEP][1:] == (ends + 4.0, ends + 5.0)


def test_a_step_updates_tied_parameters_once_a_device() -> None:
    """Two stages on one device: the lower one's STEP takes the time of the tied parameters."""
    model = chain(2, (0, 1), own=0)
    problem = Problem(
        model, Cluster((NodeGroup(1, 1, DeviceType("toy", 1 << 20, 1.0, memory_bandwidth=18.0)),)), Workload(1)
    )
    route = Pipeline((0, 0), (0, 0), (0,))
    (found,) = plans_of(Candidate(problem, one_layer_a_stage(model), (route,)), 0, 1, False)
    steps = [(str(t.op), t.end_s - t.start_s) for t in simulate(found).devices[0].ops if t.op.kind is Kind.STEP]
    assert sorted(steps) == [("0STEP", 1.0), ("1STEP", 0.0)]


# ---------------------------------------------------------------- any plan


def last_backwards(found: Plan, timeline: Timeline) -> dict[tuple[int, int], float]:
    """End of the last backward of every stage on every device."""
    ends: dict[tuple[int, int], float] = {}
    for d, line in enumerate(timeline.devices):
        for t in line.ops:
            if t.op.kind in ENDS:
                ends[d, t.op.stage] = max(ends.get((d, t.op.stage), 0.0), t.end_s)
    return ends


def check_times(found: Plan, timeline: Timeline) -> None:
    """Every sum of tied gradients follows all backwards of its stages, and all their STEPs follow it."""
    home = {name: s for s, names in enumerate(found.stages) for name in names}
    ends = last_backwards(found, timeline)
    timed = [(d, t) for d, line in enumerate(timeline.devices) for t in line.ops]
    for number, group in enumerate(found.problem.model.shared):
        stages = {home[name] for name in group.layers}
        devices = sorted({d for d, s in ends if s in stages})
        sums = [(d, t) for d, t in timed if t.op.kind is Kind.TIE and t.op.peer == number]
        asked = len(stages) > 1 and len(devices) > 1
        assert [d for d, _ in sums] == (devices if asked else [])
        ready = max(end for (_, s), end in ends.items() if s in stages)
        seconds, latency = reduce_seconds(found.problem.cluster, tuple(devices), group.bytes if asked else 0)
        assert all(t.start_s >= ready - 1e-9 for _, t in sums)
        assert all(t.end_s == pytest.approx(t.start_s + seconds) for _, t in sums)
        summed = max((t.end_s + latency for _, t in sums), default=0.0)
        for d, t in timed:
            if t.op.kind is Kind.STEP and t.op.stage in stages and len(stages) > 1:
                here = max(end for (e, s), end in ends.items() if e == d and s in stages)
                assert t.start_s >= (summed if asked else here) - 1e-9


def check_static(found: Plan, costs: StageCosts) -> None:
    """Bytes counted layer by layer: on a device, members of a group beyond the first cost nothing."""
    model, index = found.problem.model, found.problem.model.index
    adam = found.problem.workload.optimizer == "adam"
    home = {name: s for s, names in enumerate(found.stages) for name in names}
    for d, parts in enumerate(static_bytes(found, costs)):
        trained = {x.name for x in model.layers if d in holders(found)[home[x.name]]}
        used = {
            x.name
            for x in model.layers
            if any(p.forward[home[x.name]] == d and p.micro_batches for p in found.pipelines)
        }

        def once(names: set[str]) -> int:
            again = sum(g.bytes * max(0, len(names & set(g.layers)) - 1) for g in model.shared)
            return sum(model.layers[index[name]].parameter_bytes for name in names) - again

        tensors = sum(len(model.layers[index[name]].parameter_shapes or ()) for name in trained)
        if tensors:
            tensors -= sum(max(0, len(trained & set(g.layers)) - 1) for g in model.shared)
        assert parts.get("parameters", 0) == once(trained | used)
        assert parts.get("gradients", 0) == once(trained)
        assert parts.get("optimizer", 0) == (2 * once(trained) + 4 * tensors) * adam


@settings(max_examples=40)
@given(seed=SEEDS, apart=st.booleans())
def test_random_ties_keep_every_rule(seed: int, apart: bool) -> None:
    """Checked, unchanged by the file, in time, held once, and no shorter than any bound."""
    candidate = tied(random_candidate(seed, apart), seed)
    for found in plans_of(candidate, seed, 2, split=True):
        assert check(found) == []
        assert plan_from_dict(json.loads(json.dumps(plan_to_dict(found)))) == found
        timeline = simulate(found)
        check_times(found, timeline)
        check_static(found, timeline.costs)
        sent = sorted((m.source, m.target, str(m.op), m.bytes) for m in timeline.messages)
        assert sent == sorted((m.source, m.target, str(m.send), m.bytes) for m in messages(found, timeline.costs))
        kept, step_s = replace(candidate, stash=found.stash), timeline.step_s * (1 + 1e-9)
        shares = tuple(len(p.micro_batches) for p in found.pipelines)
        room = [1 << 60] * len(found.orders) if apart else [device.memory.peak_bytes for device in timeline.devices]
        assert bounds.candidate(kept, shares, True, room) <= step_s
        tight = replace(found.problem.workload, memory_limit_bytes=max(d.memory.peak_bytes for d in timeline.devices))
        assert bounds.space(replace(found.problem, workload=tight), SearchSpace()) <= step_s


@pytest.mark.parametrize("seed", range(8))
def test_exact_searches_never_claim_more_than_is_true(seed: int) -> None:
    """Their bounds lie below every plan of the candidate that fits, and their plans pass the check."""
    candidate = tied(random_candidate(seed), seed)
    path = candidate.pipelines[0].forward
    workload = replace(candidate.problem.workload, micro_batches=3)
    pipeline = Pipeline(path, path, (0, 1, 2))
    one = Candidate(replace(candidate.problem, workload=workload), candidate.stages, (pipeline,))
    known = plans_of(one, seed, 6, split=False)
    peak = min(max(p.forecast.peak_bytes) for p in known if p.forecast)
    limited = replace(one, problem=replace(one.problem, workload=replace(workload, memory_limit_bytes=peak)))
    fitting = [p.forecast.step_s for p in known if p.forecast and max(p.forecast.peak_bytes) <= peak]
    for found in (
        solve(limited, Effort(2, 0.1, 1)),
        solve(limited, Effort(2, 0.1, 1), Rules(open=True)),
    ):
        assert found.bound_s <= min(fitting) * (1 + 1e-9)
        assert found.plan is None or check(found.plan) == []


@pytest.mark.parametrize("seed", range(12))
def test_the_partition_counts_what_the_plan_counts(seed: int) -> None:
    """Every cut of a random chain with ties: bytes of each stage alone, and of a device with the first and the last."""
    given_ = tied(random_candidate(seed), seed)
    layers = Chain.of(given_.problem)
    for cuts in (compositions(len(layers), min(3, len(layers)), 30) or [])[:10]:
        stages, ends = layers.stages(cuts), (0, *cuts, len(layers))
        own = layers.bytes(0, 0) - layers.workspace_bytes
        for route in (tuple(range(len(stages))), (*range(len(stages) - 1), 0)):
            problem = replace(given_.problem, cluster=Cluster.uniform(len(stages)))
            held = Candidate(problem, stages, (Pipeline(route, route, (0,)),))
            true = [sum(parts.values()) for parts in static_bytes(held, held.costs)]
            wanted = [0.0] * len(stages)
            for s, d in enumerate(route):
                wanted[d] += own[ends[s], ends[s + 1]]
            if len(stages) > 1 and route[-1] == 0:
                first, last = (ends[0], ends[1]), (ends[-2], ends[-1])
                wanted[0] -= sum(size for size, members in layers.copies if members[first] and members[last])
            assert wanted == true


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize("apart", [False, True])
def test_memory_that_only_one_copy_fits(apart: bool) -> None:
    """Two devices, 12 shared bytes, SGD: both ends on one device need 28 bytes beside the stash, apart 52 in all."""
    model = chain(3, (0, 2), 12, 1, stash_bytes=1)
    space = SearchSpace(separate_backward=apart)
    both = 2 * (12 + 1 + 1)
    found = solved(model, Cluster.uniform(2), Workload(2, memory_limit_bytes=both + 2), space)
    assert found.plan is not None
    assert check(found.plan) == []
    assert max(found.plan.forecast.peak_bytes) <= both + 2
    less = solved(model, Cluster.uniform(2), Workload(2, memory_limit_bytes=2 * 13), space)
    assert less.status == "infeasible"


def test_the_search_plans_tied_models() -> None:
    """The same step as untied where the sum costs nothing."""
    model = chain(4, (0, 3), stash_bytes=1)
    found = solved(model, Cluster.uniform(4), Workload(4))
    free = solved(replace(model, shared=()), Cluster.uniform(4), Workload(4))
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.plan.forecast.step_s == pytest.approx(free.plan.forecast.step_s)


# ---------------------------------------------------------------- the checker


def with_orders(found: Plan, device: int, order: list[Op]) -> Plan:
    orders = tuple(tuple(order) if d == device else line for d, line in enumerate(found.orders))
    return replace(found, orders=orders)


def codes(found: Plan) -> set[tuple[str, str]]:
    return {(violation.code, violation.where) for violation in check(found)}


def test_the_checker_names_missing_and_misplaced_sums() -> None:
    """Missing, on a device without a copy, of another stage, before a backward, after a STEP."""
    found = named("1f1b", 3, 4, model=chain(3, (0, 2)))
    first, middle = list(found.orders[0]), list(found.orders[1])
    tie = Op(Kind.TIE, 0, -1, 0)
    rest = [op for op in first if op != tie]
    assert codes(with_orders(found, 0, rest)) == {("missing-op", "device 0")}
    assert codes(with_orders(found, 0, [*first, tie])) == {("repeated-op", "device 0")}
    assert codes(with_orders(found, 1, [*middle, tie])) == {("unexpected-op", "device 1")}
    assert codes(with_orders(found, 0, [*rest, tie._replace(stage=2)])) == {
        ("missing-op", "device 0"), ("unexpected-op", "device 0"),
    }  # fmt: skip
    assert codes(with_orders(found, 0, [*rest, tie._replace(peer=1)])) >= {("missing-op", "device 0")}
    assert codes(with_orders(found, 0, [tie, *rest])) == {("dependency", "device 0")}
    assert codes(with_orders(found, 0, [*rest, tie])) == {("dependency", "device 0")}


def test_the_checker_wants_every_backward_of_the_group_before_a_step() -> None:
    """One device holds both ends and needs no sum: no STEP of either before the last backward of both."""
    model = chain(2, (0, 1))
    route = Pipeline((0, 0), (0, 0), (0,))
    (found,) = plans_of(
        Candidate(Problem(model, Cluster.uniform(1), Workload(1)), one_layer_a_stage(model), (route,)), 0, 1, False
    )
    early = ["0F0", "1F0", "1B0", "1STEP", "0B0", "0STEP"]
    assert codes(with_orders(found, 0, list(map(op_from_text, early)))) == {("dependency", "device 0")}
    untied = replace(found, problem=replace(found.problem, model=replace(model, shared=())))
    assert ("dependency", "device 0") not in codes(with_orders(untied, 0, list(map(op_from_text, early))))


def test_sums_that_wait_for_each_other_are_a_deadlock() -> None:
    """Device 1 runs stage 1, and stage 0 forward only; this it does after a STEP that waits for stage 0's backward."""
    model = chain(2, (0, 1))
    pipelines = (Pipeline((0, 1), (0, 1), (0,)), Pipeline((1, 0), (0, 0), (1,)))
    candidate = Candidate(Problem(model, Cluster.uniform(2), Workload(2)), one_layer_a_stage(model), pipelines)
    orders = (["0F0", "0B0", "1F1", "1B1", "0B1"], ["1F0", "1B0", "0F1"])
    found = assemble(candidate, [list(map(op_from_text, order)) for order in orders])
    assert check(found) == []
    assert tie_ops(found) == [["0TIE=0"], ["1TIE=0"]]
    late = [op for op in found.orders[1] if op.micro_batch == 1] + [Op(Kind.RECV_P, 0, -1, 0)]
    stuck = with_orders(found, 1, [*(op for op in found.orders[1] if op not in late), *late])
    assert codes(stuck) == {("deadlock", "plan")}
    with pytest.raises(Deadlock):
        simulate(stuck)
    with pytest.raises(PlanError, match="0TIE=1 does not belong here"):
        simulate(with_orders(found, 0, [Op(Kind.TIE, 0, -1, 1), *found.orders[0]]))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("layers", "size", "named_fault"),
    [(("layer0",), 1, "two or more"), (("layer0", "layer0"), 1, "two or more"), (("layer0", "layer1"), 9, "has 2")],
)
def test_bad_groups_are_refused(layers: tuple[str, ...], size: int, named_fault: str) -> None:
    """One layer, a layer twice, and more bytes than a layer has."""
    with pytest.raises(ModelError, match=named_fault):
        replace(chain(2, (0, 1), 0), shared=(SharedParameters(layers, size),))


def test_ties_are_part_of_the_fingerprint() -> None:
    """A checkpoint of an untied model does not fit a tied one."""
    model = chain(3, (0, 2))
    assert model.fingerprint != replace(model, shared=()).fingerprint
    assert ModelGraph.from_dict(model.to_dict()).fingerprint == model.fingerprint


def test_the_text_of_a_sum_names_its_group() -> None:
    assert op_from_text("3TIE=12") == Op(Kind.TIE, 3, -1, 12)
    assert str(Op(Kind.TIE, 3, -1, 12)) == "3TIE=12"
