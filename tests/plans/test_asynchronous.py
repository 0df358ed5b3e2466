"""Plans without a flush: versions, staleness, memory and period are the published ones; long runs are like short."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import NAMES, POLICIES, machine, named, one_layer_a_stage, passes, steady, uniform
from naive import assert_forecast

from contraflow.planner.basics.errors import InputError, PlanError
from contraflow.planner.check import check
from contraflow.planner.forecast.version_copies import most_copies
from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.graph.versions import Versions
from contraflow.planner.lower.plans import assemble
from contraflow.planner.lower.repetition import repeat
from contraflow.planner.plan import Kind, Op, Plan, Problem
from contraflow.planner.plan_file import plan_from_dict, plan_to_dict
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import ASYNCHRONOUS, SCHEDULES, build, capped, variants
from contraflow.planner.search.driver import plan as search
from contraflow.planner.search.named import with_recomputation
from contraflow.planner.simulate import evaluate


def settled(plan: Plan, stage: int) -> range:
    """Micro-batches of the plan's middle."""
    return range(2 * len(plan.stages), plan.problem.workload.micro_batches - len(plan.stages))


# ------------------------------------------------------------------ what was published


def test_pipedreams_first_stage() -> None:
    """Four forwards, then a backward and a forward in turn, an update after every backward (PipeDream, figure 4)."""
    assert passes(steady("pipedream", 4, 6), 0) == (
        "F0 F1 F2 F3 B0 STEP0 F4 B1 STEP1 F5 B2 STEP2 B3 STEP3 B4 STEP4 B5 STEP5"
    )


def test_predictions_look_as_far_ahead_as_the_list_says() -> None:
    """The second of three stages lies one update behind: two forwards are begun before its first backward."""
    assert passes(steady("pipeoptim", 3, 4), 1) == (
        "F0 PREDICT1+1 F1 B0 STEP0 PREDICT2+1 F2 B1 STEP1 PREDICT3+1 F3 B2 STEP2 B3 STEP3"
    )
    assert "PREDICT" not in passes(steady("pipeoptim", 3, 4), 2)
    lookahead = passes(steady("pipeoptim-lookahead", 3, 4), 2)
    assert lookahead.startswith("PREDICT0+1 F0 B0 STEP0 PREDICT1+1 F1")


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_versions_that_each_stage_holds(devices: int) -> None:
    """PipeDream D - k at stage k, with vertical sync D everywhere, 2BW two, without stashing one."""
    batches = 5 * devices
    held = {name: [1 + n for n in most_copies(steady(name, devices, batches))] for name in NAMES}
    assert held["pipedream"] == [devices - k for k in range(devices)]
    assert held["pipedream-vertical"] == [devices] * devices
    assert held["pipedream-2bw"] == [min(2, devices)] * devices
    assert held["naive-async"] == [1] * devices


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_staleness_in_the_middle_of_a_run(devices: int) -> None:
    """D - 1 - k updates at stage k; with vertical sync D - 1 everywhere, one with 2BW, none on a single device."""
    each = [devices - 1 - k for k in range(devices)]
    expected = {"pipedream-vertical": [devices - 1] * devices, "pipedream-2bw": [min(1, devices - 1)] * devices}
    for name in NAMES:
        plan = steady(name, devices, 5 * devices)
        versions = Versions.of(plan)
        for k, wanted in enumerate(expected.get(name, each)):
            assert {versions.staleness(k, m) for m in settled(plan, k)} == {wanted}, name
        assert max(versions.most_stale.values()) == max(expected.get(name, each))


def test_spectrain_predicts_for_the_time_of_the_last_stage() -> None:
    """Both passes look stage // 2 updates further ahead (SpecTrain, section 4.2)."""
    plan = steady("spectrain", 4, 20)
    versions = Versions.of(plan)
    for k, (forward, back) in enumerate([(3, 0), (2, 0), (2, 1), (1, 1)]):
        assert {versions.forward_ahead[k, m] for m in settled(plan, k)} == {forward}
        assert {versions.backward_ahead[k, m] for m in settled(plan, k)} == {back}


def test_an_update_of_several_micro_batches_is_less_stale() -> None:
    """With updates of D micro-batches a forward is at most one update behind, whatever the policy."""
    for name in NAMES:
        versions = Versions.of(steady(name, 4, 16, 4))
        assert max(versions.most_stale.values()) <= 1
    assert passes(steady("pipedream", 2, 4, 2), 1) == "F0 B0 F1 B1 STEP1 F2 B2 F3 B3 STEP3"


# ------------------------------------------------------------------ period


@pytest.mark.parametrize("name", NAMES)
def test_the_period_is_the_heaviest_device(name: str) -> None:
    """Messages are free: a micro-batch takes what the busiest device does for it, its share of a STEP included."""
    for devices, update in ((1, 1), (3, 3), (4, 4)):
        assert steady(name, devices, 4 * devices, update).forecast.period_s == pytest.approx(3.0, rel=1e-12)
    layers = [Layer(f"l{k}", 1.0 + (k == 1), 2.0, parameter_bytes=30) for k in range(3)]
    problem = Problem(ModelGraph.chain(layers), machine(3, 100.0), Workload(18, "momentum", update_every=3))
    layout = build(name, 3, 18)
    plan = assemble(
        Candidate(problem, one_layer_a_stage(problem.model), layout.pipelines, (), layout.weights), layout.orders
    )
    share = Workload(1, "momentum").step_traffic_bytes(30) / 100.0 / 3
    policy = WEIGHT_POLICIES[layout.weights]
    each = Workload(1, "momentum").predict_traffic_bytes(30, policy.momentum_first) / 100.0
    loads = [
        3.0 + (k == 1) + share + each / 3 * sum(op.kind is Kind.PREDICT and 9 <= op.micro_batch < 12 for op in order)
        for k, order in enumerate(plan.orders)
    ]
    assert plan.forecast.period_s == pytest.approx(max(loads), rel=1e-9)


def test_a_plan_without_a_body_is_run_again_from_the_start() -> None:
    """As few micro-batches as stages never fill the pipeline: the run's time counts."""
    plan = steady("pipedream", 4, 4)
    with pytest.raises(PlanError, match="no part that repeats"):
        repeat(plan, 8)
    assert plan.forecast.period_s == plan.forecast.step_s / 4


@pytest.mark.parametrize(("devices", "batches"), [(3, 24), (4, 26), (9, 54)])
@pytest.mark.parametrize(("every", "update"), [(2, 1), (3, 1), (4, 1), (4, 2)])
def test_the_period_does_not_hang_on_which_micro_batches_are_recomputed(
    devices: int, batches: int, every: int, update: int
) -> None:
    """One in so many, whichever is the first: its forward once more, shared among them."""
    layers = [Layer(f"l{k}", 1.0, 2.0, stash_bytes=4) for k in range(devices)]
    problem = Problem(ModelGraph.chain(layers), machine(devices), Workload(batches, "sgd", update_every=update))
    layout, stages = build("pipedream", devices, batches), one_layer_a_stage(problem.model)
    for first in range(every):
        some = tuple("recompute" if k == devices // 2 else "keep" for k in range(devices))
        candidate = regroup(
            problem, stages, layout.pipelines, dict.fromkeys(range(first, batches, every), some), "stash"
        )
        plan = assemble(candidate, with_recomputation(candidate, layout.orders))
        assert plan.forecast.period_s == pytest.approx(3.0 + 1.0 / every, rel=1e-9), first


def test_a_synchronous_plan_has_no_period() -> None:
    assert named("1f1b", 3, 6).forecast.period_s is None


# ------------------------------------------------------------------ repeat


@pytest.mark.parametrize("name", NAMES)
def test_longer_and_shorter_runs_are_the_plan_of_their_length(name: str) -> None:
    """Every length, by whole updates, is the plan that the schedule itself gives for it."""
    plan = steady(name, 3, 12, 3)
    for batches in (3, 6, 9, 12, 15, 27, 36):
        found, wanted = repeat(plan, batches), steady(name, 3, batches, 3)
        assert [passes(found, d) for d in range(3)] == [passes(wanted, d) for d in range(3)]
        assert check(found.with_forecast(evaluate(found))) == []
        assert evaluate(found).period_s == pytest.approx(3.0) or batches < 9
    again = repeat(repeat(plan, 30), 12)
    assert (again.orders, again.pipelines, again.stash) == (plan.orders, plan.pipelines, plan.stash)


def test_a_run_is_whole_updates() -> None:
    plan = steady("pipedream-2bw", 3, 12)
    for batches in (0, 4, 13):
        with pytest.raises(PlanError, match=f"cannot run {batches} micro-batches: an update takes 3"):
            repeat(plan, batches)


# ------------------------------------------------------------------ memory


def test_stashed_versions_lie_beside_the_newest() -> None:
    """A stage's peak is the synchronous one and its older versions: bytes of parameters each."""
    plain, stashing = steady("1f1b", 4, 16, stash_bytes=5), steady("pipedream", 4, 16, stash_bytes=5)
    for k, (sync, found) in enumerate(zip(plain.forecast.devices, stashing.forecast.devices, strict=True)):
        assert dict(found.peak_parts).get("weight versions", 0) == 3 * (3 - k)
        assert found.peak_bytes == sync.peak_bytes + 3 * (3 - k)
    assert steady("naive-async", 4, 16).forecast.peak_bytes == steady("1f1b", 4, 16).forecast.peak_bytes


def test_predicted_weights_and_last_gradients_take_room() -> None:
    """A prediction is one copy of the parameters; SGD's next direction needs the last gradient beside the new one."""
    model = uniform(3, 1.0, 2.0, parameter_bytes=7)
    found = {}
    for optimizer in ("sgd", "momentum", "nesterov", "rmsprop", "adam"):
        plan = named("pipeoptim", 3, 9, model=model, workload=Workload(9, optimizer))
        assert check(plan) == []
        found[optimizer] = [dict(device.peak_parts) for device in plan.forecast.devices]
    for optimizer, devices in found.items():
        kept = 2 if optimizer in ("sgd", "nesterov", "rmsprop") else 1
        assert [parts["gradients"] for parts in devices] == [7 * kept, 7 * kept, 7]
        assert [parts.get("weight versions", 0) for parts in devices] == [7, 7, 0]
    lookahead = named("pipeoptim-lookahead", 3, 9, model=model, workload=Workload(9, "momentum"))
    assert all(dict(device.peak_parts)["gradients"] == 14 for device in lookahead.forecast.devices)


# ------------------------------------------------------------------ named schedules in plan()


def uneven(seed: int, bandwidth: float = 200.0, memory: int = 1 << 30) -> tuple[ModelGraph, Cluster]:
    costs = [(1 + (7 * k + seed) % 5, 2 + (3 * k + seed) % 4, 4 + (5 * k + seed) % 9) for k in range(8)]
    layers = [
        Layer(f"l{k}", f, b, stash_bytes=6, weight_stash_bytes=6, output_bytes=1, parameter_bytes=p)
        for k, (f, b, p) in enumerate(costs)
    ]
    return ModelGraph.chain(layers), machine(4, bandwidth, Link(50.0, 0.05), memory)


@pytest.mark.parametrize("name", NAMES)
def test_a_named_schedule_is_planned_on_its_best_cut(name: str) -> None:
    """The least period of all cuts, proven; one micro-batch an update where the policy allows it."""
    model, cluster = uneven(len(name))
    result = search(model, cluster, Workload(24, "momentum"), SearchSpace(schedule=name))
    assert result.plan is not None
    assert result.status == "optimal"
    assert check(result.plan) == []
    assert result.plan.weights == build(name, 4, 24).weights
    periods = []
    layout = build(name, 4, 24)
    names = [layer.name for layer in model.layers]
    for cuts in ((2, 4, 6), (1, 4, 6), (2, 5, 7), (3, 5, 7)):
        stages = tuple(tuple(names[a:b]) for a, b in pairwise((0, *cuts, 8)))
        problem = Problem(model, cluster, Workload(24, "momentum"))
        other = assemble(Candidate(problem, stages, layout.pipelines, (), layout.weights), layout.orders)
        periods.append(other.forecast.period_s)
    assert result.plan.forecast.period_s <= min(periods) * (1 + 1e-9)


def test_a_named_schedule_says_what_it_lacks() -> None:
    model, cluster = uneven(0, memory=40)
    result = search(model, cluster, Workload(24, "adam"), SearchSpace(schedule="pipedream"))
    assert (result.status, result.plan) == ("infeasible", None)  # all 35 cuts were simulated
    assert result.violations
    with pytest.raises(InputError, match="updates of 4 micro-batches do not divide 6 micro-batches"):
        search(model, cluster, Workload(6), SearchSpace(schedule="pipedream-2bw"))
    with pytest.raises(InputError, match="needs at least 4 micro-batches an update for 4 full stages, has 2"):
        search(model, cluster, Workload(8, update_every=2), SearchSpace(schedule="pipedream-2bw"))


def test_synchronous_searches_meet_no_asynchronous_schedule() -> None:
    assert not set(SCHEDULES) & set(ASYNCHRONOUS)
    assert all(layout.weights == FLUSH for _, layout in variants(3, 6, 9))
    assert [name for name, _ in variants(3, 6, 9, "spectrain")] == ["spectrain"]


# ------------------------------------------------------------------ any plan


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Candidate, list[tuple[Op, ...]]]:
    """One pipeline of one to five uneven stages with any policy, costs, and micro-batches in flight."""
    devices, weights = draw(st.integers(1, 5)), draw(st.sampled_from(POLICIES))
    update = draw(st.integers(WEIGHT_POLICIES[weights].least_update(devices), 6))
    batches = update * draw(st.integers(1, 4))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 1.7])
    layers = [
        Layer(
            f"l{k}", draw(seconds), draw(seconds), parameter_bytes=draw(st.sampled_from([0, 3, 8])),
            stash_bytes=4, weight_stash_bytes=4, output_bytes=draw(st.integers(0, 4)),
        )
        for k in range(devices)
    ]  # fmt: skip
    link = draw(st.sampled_from([Link(), Link(2.0, 0.3)]))
    cluster = machine(devices, draw(st.sampled_from([None, 16.0])), link)
    optimizer = draw(st.sampled_from(["sgd", "momentum", "adam"]))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(batches, optimizer, update_every=update))
    layout = capped(devices, batches, draw(st.integers(1, devices)))
    rows = (tuple(draw(st.sampled_from(["keep", "recompute"])) for _ in range(devices)),)
    again = {k for k, policy in enumerate(rows[0]) if policy == "recompute"}
    orders = [tuple(op for first in order for op in _recomputed(first, again)) for order in layout.orders]
    return Candidate(problem, one_layer_a_stage(problem.model), layout.pipelines, rows, weights), orders


def _recomputed(op: Op, stages: set[int]) -> list[Op]:
    return [op._replace(kind=Kind.R), op] if op.kind is Kind.B and op.stage in stages else [op]


@settings(max_examples=25)
@given(candidates())
def test_every_assembled_plan_is_clean_and_repeats(case: tuple[Candidate, list[tuple[Op, ...]]]) -> None:
    """The checker agrees; a file keeps it; a longer run is clean too, and its beginning is the plan."""
    plan = assemble(*case)
    assert check(plan) == []
    assert_forecast(plan)
    assert plan_from_dict(plan_to_dict(plan)) == plan
    update, batches = plan.problem.workload.update_every or 1, plan.problem.workload.micro_batches
    shorter = repeat(plan, update)
    assert check(shorter.with_forecast(evaluate(shorter))) == []
    try:
        longer = repeat(plan, batches + 2 * update)
    except PlanError as error:
        assert "no part that repeats" in str(error)  # noqa: PT017
        return
    assert check(longer.with_forecast(evaluate(longer))) == []
    again = repeat(longer, batches)
    assert [passes(again, d) for d in range(len(plan.orders))] == [passes(plan, d) for d in range(len(plan.orders))]
