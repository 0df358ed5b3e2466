"""Stages that are decided: every plan of a space with a cut has them, whatever else is searched."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_cluster, random_model, random_problem

from contraflow.planner import (
    Choice,
    Cluster,
    Effort,
    InputError,
    Layer,
    Link,
    ModelFamily,
    ModelGraph,
    Progress,
    SearchSpace,
    Workload,
    check,
    compare,
    evaluate,
    frontier,
    plan,
    plan_family,
)
from contraflow.planner.basics import ScheduleError, WorkloadError
from contraflow.planner.problem import SharedParameters, StageCosts, merged, stages_of
from contraflow.planner.search.common import fits

Asked = tuple[ModelGraph, Cluster, Workload]
ASKED = (
    SearchSpace(),
    SearchSpace(),
    SearchSpace(replicas=2),
    SearchSpace("1f1b"),
    SearchSpace("zb-v"),
    SearchSpace("chimera"),
    SearchSpace(asynchronous=("2bw",)),
    SearchSpace(asynchronous=("stash",)),
    SearchSpace("pipedream"),
)
CHAIN = ModelGraph.chain([Layer(f"l{k}", 1, 1, 1, stash_bytes=4, parameter_bytes=2, output_bytes=1) for k in range(6)])
CLUSTER = Cluster.uniform(2, 1000, Link(10.0, 0.1))
EVERY_OTHER = (("l0", "l1"), ("l2", "l3"), ("l4", "l5"))


def drawn(rng: random.Random, seed: int) -> Asked:
    """A small problem: chains and graphs, tight and roomy memory, tied layers at times."""
    if rng.random() < 0.5:
        model, cluster, workload = random_problem(seed)
    else:
        model, cluster = random_model(rng, rng.randint(1, 7)), random_cluster(rng, rng.randint(1, 4))
        workload = Workload(rng.randint(1, 6), rng.choice(["sgd", "adam"]))
    if len(model.layers) > 1 and rng.random() < 0.3:
        pair = rng.sample(model.layers, 2)
        size = min(layer.parameter_bytes for layer in pair)
        if size:
            model = replace(model, shared=(SharedParameters((pair[0].name, pair[1].name), size),))
    return model, cluster, workload


def some_cut(rng: random.Random, model: ModelGraph) -> tuple[str, ...]:
    """The layers that begin a stage, beside the first."""
    names = [model.layers[position].name for position in model.topological]
    return tuple(sorted(rng.sample(names[1:], rng.randint(0, len(names) - 1)), key=names.index))


@pytest.mark.long
@settings(max_examples=14)
@given(st.integers(0, 2**20), st.sampled_from(ASKED))
def test_every_plan_has_the_stages_asked_for(seed: int, space: SearchSpace) -> None:
    """With a flush and without, searched and named, on replicas: checked, within memory, told as simulated."""
    rng = random.Random(seed)
    model, cluster, workload = drawn(rng, seed)
    begun = some_cut(rng, model)
    stages = stages_of(model, begun)
    heard: list[Progress] = []
    space = replace(space, cut=begun if rng.random() < 0.5 else stages)
    try:
        asked = model, cluster, workload, space, 1.0
        found = plan(*asked, workers=1, deterministic_limit=0.02, on_progress=lambda event: heard.append(event))
    except InputError:  # a schedule that does not exist for these numbers
        return
    for one in [found.plan, *(event.plan for event in heard)]:
        if one is not None:
            assert one.stages == stages
            assert one.problem.model == model
            assert not check(one)
            assert fits(one)
    if found.plan is not None:
        assert found.seconds == pytest.approx(evaluate(found.plan).objective_s)
        assert found.bound_s <= found.plan.forecast.objective_s * (1 + 1e-9)


@settings(max_examples=60)
@given(st.integers(0, 2**20))
def test_stages_as_layers_cost_what_the_stages_do(seed: int) -> None:
    """Seconds and bytes of the model whose layers are the stages, but for what layers of one give each other."""
    rng = random.Random(seed)
    model, _, _ = drawn(rng, seed)
    stages = stages_of(model, some_cut(rng, model))
    small = merged(model, stages)
    whole, parts = StageCosts.of(model, stages), StageCosts.of(small, tuple((layer.name,) for layer in small.layers))
    for key in ("backward_s", "forward_s", "parameter_bytes", "trained_bytes", "tied_bytes", "stash_bytes"):
        assert getattr(whole, key) == pytest.approx(getattr(parts, key))
    for key in ("weight_stash_bytes", "workspace_bytes", "buffer_bytes", "incoming_bytes"):
        assert list(getattr(whole, key)) == list(getattr(parts, key))
    assert whole.edges == parts.edges
    assert [(tie.stages, tie.bytes) for tie in whole.ties] == [(tie.stages, tie.bytes) for tie in parts.ties]


def test_more_stages_than_devices_run_in_a_row_or_interleaved() -> None:
    """Three stages on two devices, and bound and gap speak of the plan as it is told."""
    found = plan(CHAIN, CLUSTER, Workload(4), SearchSpace(cut=("l2", "l4")), time_limit=5, workers=1)
    assert found.plan is not None
    assert found.plan.stages == EVERY_OTHER
    free = plan(CHAIN, CLUSTER, Workload(4), time_limit=5, workers=1)
    assert free.bound_s <= found.seconds * (1 + 1e-9)
    again = plan(CHAIN, CLUSTER, Workload(4), SearchSpace(cut=EVERY_OTHER), time_limit=0.5, hint=found.plan)
    assert again.seconds <= found.seconds * (1 + 1e-9)


def test_what_cannot_be_is_said() -> None:
    """Layers that are not there, out of order, left out, stages that go back, too few for a schedule."""
    for cut, said in (
        (("l9",), "no layer 'l9'"),
        (("l4", "l2"), "in order"),
        (("l0",), "after 'l0'"),
        ((("l0",), ("l1",)), "is in no stage"),
        ((("l2", "l3", "l4", "l5"), ("l0", "l1")), "goes back"),
    ):
        with pytest.raises(WorkloadError, match=said):
            plan(CHAIN, CLUSTER, Workload(4), SearchSpace(cut=cut), time_limit=1)
    with pytest.raises(WorkloadError, match="must be a list"):
        SearchSpace(cut="l2")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="4 stages on 2 devices, there are 3 layers"):
        plan(CHAIN, CLUSTER, Workload(4), SearchSpace("zb-v", cut=("l2", "l4")), time_limit=1)
    tight = plan(CHAIN, CLUSTER, Workload(4, memory_limit_bytes=9), SearchSpace(cut=("l1",)), time_limit=2)
    assert tight.status == "infeasible"
    assert "bytes missing" in tight.violations[0].missing


def test_comparisons_frontiers_and_families_keep_the_cut() -> None:
    """Whatever calls the search asks it of the same stages."""
    space = SearchSpace(cut=("l2", "l4"))
    table = compare(CHAIN, CLUSTER, Workload(4), space, ("gpipe", "1f1b", "zb-v"), time_limit=1, workers=1)
    points = frontier(CHAIN, CLUSTER, Workload(4), space, count=3, time_limit=0.5, workers=1)
    family = ModelFamily((CHAIN, replace(CHAIN, micro_batch_size=2)))
    joint = plan_family(family, CLUSTER, Workload(4), Choice(4), space, Effort(2, workers=1))
    plans = [one.plan for one in (*table, *points, joint) if one.plan is not None]
    assert len(plans) >= 5
    assert {one.stages for one in plans} == {EVERY_OTHER}
    assert [one.status for one in table if one.schedule == "zb-v"] == ["does not apply"]
    assert joint.points
    assert joint.plan is not None
    assert joint.plan.problem.model in family.members


def test_a_cut_survives_its_file() -> None:
    """Both forms, as JSON has them."""
    for cut in (("l2", "l4"), EVERY_OTHER, ()):
        space = SearchSpace(cut=cut)
        assert SearchSpace.from_dict(space.to_dict()) == space
