"""The search without a flush: periods worked out by hand, every plan of tiny problems, limits, Ctrl-C."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from instances import nothing_better, uniform

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Plan, Result, SearchSpace, Workload, check, evaluate
from contraflow.planner import plan as search
from contraflow.planner.basics.errors import InputError
from contraflow.planner.graph import KEEP, OFFLOAD, OFFLOAD_WEIGHTS, RECOMPUTE, Candidate
from contraflow.planner.graph.versions import Versions
from contraflow.planner.lower import assemble
from contraflow.planner.partition.chain import compositions
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.model_graph import SharedParameters
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.driver import Progress, Stale, with_flush
from contraflow.planner.search.steady.alternatives import alternatives
from contraflow.planner.search.steady.build import built, excess_for_long, sloping, with_period
from contraflow.planner.search.steady.drained import Drained
from contraflow.planner.search.steady.programme import PARTS, Choice, Stage
from contraflow.planner.search.steady.search import Steady

METHODS = tuple(name for name in WEIGHT_POLICIES if name != FLUSH)


def solved(
    model: ModelGraph, cluster: Cluster, *methods: str, batches: int = 24, seconds: float = 60, **workload: object
) -> Result:
    """The search's answer; the plan passes the checker, and says of itself what `evaluate` says."""
    space = SearchSpace(asynchronous=methods)
    found = search(model, cluster, Workload(batches, **workload), space, seconds)  # type: ignore[arg-type]
    if found.plan is not None:
        assert check(found.plan) == []
        assert found.plan.forecast is not None
        period_s = found.plan.forecast.period_s
        assert period_s == evaluate(found.plan).period_s
        assert period_s is not None
        assert found.bound_s <= period_s
    return found


def period(found: Result) -> float:
    """Seconds a micro-batch of a result's plan."""
    assert found.plan is not None
    return period_of(found.plan)


def period_of(plan: Plan) -> float:
    """Seconds a micro-batch of a plan."""
    assert plan.forecast is not None
    assert plan.forecast.period_s is not None
    return plan.forecast.period_s


def in_flight(plan: Plan) -> list[int]:
    """Forwards before the first backward on every device."""
    return [next(n for n, kind in enumerate(k for k in _kinds(order)) if kind is Kind.B) for order in plan.orders]


def _kinds(order: tuple[object, ...]) -> Iterator[Kind]:
    return (op.kind for op in order if op.kind in (Kind.F, Kind.B))  # type: ignore[attr-defined]


# ---------------------------------------------------------------- worked out by hand


@pytest.mark.parametrize("method", METHODS)
def test_equal_stages_take_the_load_of_one(method: str) -> None:
    """F = 1 and B = 2 on each of four devices that are always busy: 3 s a micro-batch."""
    found = solved(uniform(4, 1.0, 2.0, parameter_bytes=4), Cluster.uniform(4), method)
    assert (found.status, period(found)) == ("optimal", 3.0)
    assert found.plan is not None
    assert (found.plan.weights, in_flight(found.plan)) == (method, [4, 3, 2, 1])


def test_messages_take_more_in_flight_not_more_time() -> None:
    """A second there and back to the next stage, and no device has time to wait: round trips of 3, 9, 15 and 21 s."""
    found = solved(uniform(4, 1.0, 2.0, output_bytes=1), Cluster.uniform(4, link=Link(latency_s=0.5)), "naive")
    assert (found.status, period(found)) == ("optimal", 3.0)
    assert found.plan is not None
    assert in_flight(found.plan) == [7, 5, 3, 1]


@pytest.mark.long
def test_a_link_may_take_longest() -> None:
    """A tensor of 4 bytes at 1 byte/s between two stages of 3 s; on one device both layers take 6 s."""
    found = solved(uniform(2, 1.0, 2.0, output_bytes=4), Cluster.uniform(2, link=Link(1.0)), "stash")
    assert (nothing_better(found), period(found)) == (True, 4.0)


@pytest.mark.long
def test_a_nic_serves_both_neighbours() -> None:
    """The middle node of three sends 2 s of activations and 2 s of gradients a micro-batch: 4 s are the least."""
    nodes = NodeGroup(3, 1, DeviceType("one", 1 << 40))
    found = solved(uniform(3, 1.0, 2.0, output_bytes=2), Cluster((nodes,), Link(1.0)), "naive", batches=48)
    assert period(found) == pytest.approx(4.0)
    assert nothing_better(found)


@pytest.mark.long
def test_updates_take_their_time() -> None:
    """A STEP of 3 bytes a byte of parameters: 1 s after every micro-batch, or after every fourth."""
    kind = DeviceType("toy", 1 << 40, 1.0, 30.0)
    cluster = Cluster((NodeGroup(1, 2, kind),))
    model = uniform(2, 1.0, 2.0, parameter_bytes=10)
    assert period(solved(model, cluster, "stash")) == pytest.approx(4.0)
    assert period(solved(model, cluster, "stash", update_every=4)) == pytest.approx(3.25)
    # PREDICT reads parameters and gradient, and writes: as long as a STEP; on the first stage only
    assert period(solved(model, cluster, "pipeoptim")) == pytest.approx(5.0)


def test_faster_devices_get_more_layers() -> None:
    """Four layers of 3 s on devices of speed 1 and 3, the slow one first: 3 s each."""
    slow, fast = DeviceType("slow", 1 << 40, 1.0), DeviceType("fast", 1 << 40, 3.0)
    cluster = Cluster((NodeGroup(1, 1, slow), NodeGroup(1, 1, fast)))
    found = solved(uniform(4, 1.0, 2.0), cluster, "naive")
    assert (found.status, period(found)) == ("optimal", 3.0)


def test_equal_groups_share_the_micro_batches() -> None:
    """Two layers on four devices: two replicas of the pipeline, each with every other micro-batch."""
    found = solved(uniform(2, 1.0, 2.0, parameter_bytes=4), Cluster.uniform(4), "stash", update_every=2)
    assert (found.status, period(found)) == ("optimal", 1.5)
    assert found.plan is not None
    assert {p.forward for p in found.plan.pipelines} == {(0, 1), (2, 3)}


# ---------------------------------------------------------------- methods and limits


def test_the_better_of_equal_methods_is_taken() -> None:
    """Predicting takes no time where the memory bandwidth is not known, and makes up for staleness."""
    model, cluster = uniform(2, 1.0, 2.0, parameter_bytes=4), Cluster.uniform(2)
    for methods in (("pipeoptim", "naive"), ("naive", "pipeoptim")):
        found = solved(model, cluster, *methods).plan
        assert found is not None
        assert found.weights == "pipeoptim"


def test_a_staleness_limit_of_one_chooses_double_buffering() -> None:
    """With one version more, stashing allows two in flight, 6 s a micro-batch; an update every four keeps up at 3 s."""
    model, cluster = uniform(4, 1.0, 2.0, parameter_bytes=4), Cluster.uniform(4)
    stash = solved(model, cluster, "stash", staleness_limit=1)
    assert (nothing_better(stash), period(stash)) == (True, pytest.approx(6.0))
    found = solved(model, cluster, "stash", "2bw", staleness_limit=1)
    assert (found.status, period(found)) == ("optimal", 3.0)
    assert found.plan is not None
    assert found.plan.weights == "2bw"
    assert set(Versions.of(found.plan).most_stale.values()) == {1}


@pytest.mark.long
def test_less_memory_than_stashing_needs_is_met_by_copies_and_recomputation() -> None:
    """The first device holds four stashes and three versions; a byte less, and something else happens to a stash."""
    model = uniform(4, 1.0, 2.0, stash_bytes=40, parameter_bytes=4, output_bytes=1)
    host = Link(80.0)
    cluster = Cluster((NodeGroup(1, 4, DeviceType("toy", 1 << 20), host_link=host),))
    free = solved(model, cluster, "stash")
    assert free.plan is not None
    assert free.plan.forecast is not None
    limit = max(free.plan.forecast.peak_bytes) - 1
    away = solved(model, cluster, "stash", memory_limit_bytes=limit)
    assert (away.status, period(away)) == ("optimal", 3.0)  # half a second each way, while the device computes
    assert away.plan is not None
    assert OFFLOAD in away.plan.stash[0]
    no_copies = SearchSpace(asynchronous=("stash",), offload=False, separate_backward=False)
    again = search(model, cluster, Workload(24, memory_limit_bytes=limit), no_copies, 8).plan
    assert again is not None
    assert RECOMPUTE in again.stash[0]
    assert check(again) == []
    assert max(evaluate(again).peak_bytes) <= limit


@pytest.mark.slow
def test_versions_of_large_weights_go_to_the_host() -> None:
    """Three versions of 40 bytes on the first of four devices, stashes of 4: half of them have room."""
    model = uniform(4, 1.0, 2.0, stash_bytes=4, parameter_bytes=40, output_bytes=1)
    cluster = Cluster((NodeGroup(1, 4, DeviceType("toy", 1 << 20), host_link=Link(80.0)),))
    limit = 2 * 40 + 40 + 2 * (4 + 1) + 20
    found = solved(model, cluster, "stash", memory_limit_bytes=limit, optimizer="sgd")
    assert (found.status, period(found)) == ("optimal", 3.0)
    assert found.plan is not None
    assert found.plan.stash[0][0] == OFFLOAD_WEIGHTS
    assert max(evaluate(found.plan).peak_bytes) <= limit
    kept = SearchSpace(asynchronous=("stash",), offload=False, recompute=False)
    alone = search(model, cluster, Workload(24, "sgd", memory_limit_bytes=limit), kept).plan
    assert alone is None or period_of(alone) > 3.0
    # a link that copies no version in 3 s
    slow = Cluster((NodeGroup(1, 4, DeviceType("toy", 1 << 20), host_link=Link(10.0)),))
    assert period(solved(model, slow, "stash", memory_limit_bytes=limit, optimizer="sgd")) > 3.0


@pytest.mark.long
def test_never_worse_than_a_named_schedule_that_fits() -> None:
    """Uneven layers and a memory limit, for every method on its own."""
    rng = random.Random(5)
    layers = [
        Layer(f"l{k}", rng.uniform(1, 3), rng.uniform(1, 3), separable=False, stash_bytes=9, output_bytes=1)
        for k in range(6)
    ]
    model, cluster, workload = ModelGraph.chain(layers), Cluster.uniform(3), Workload(24, memory_limit_bytes=60)
    for name, method in (("pipedream", "stash"), ("pipedream-2bw", "2bw"), ("naive-async", "naive")):
        named = search(model, cluster, workload, SearchSpace(name))
        found = solved(model, cluster, method, seconds=8, memory_limit_bytes=60)
        assert period(found) <= period(named) * (1 + 1e-9)


@pytest.mark.long
def test_some_micro_batches_of_a_stage_are_recomputed_where_only_some_have_to_be() -> None:
    """The first of three equal stages has room for two of the three stashes that a full pipeline has there."""
    layers = [Layer(f"layer{k}", 1.0, 2.0, separable=False, stash_bytes=1000, output_bytes=10) for k in range(3)]
    cluster = Cluster.uniform(3, 2300, Link(1e6))
    found = solved(ModelGraph.chain(layers), cluster, "2bw", seconds=8, update_every=4)
    assert found.plan is not None
    assert {row[0] for row in found.plan.stash} == {KEEP, RECOMPUTE}
    assert 3.0 < period(found) < 4.0


@pytest.mark.parametrize("quarters", range(5))
def test_most_stashes_that_are_kept_are_those_of_some_row_of_micro_batches(quarters: int) -> None:
    stage = Stage(0, 1, RECOMPUTE, 3, quarters)
    kept = [stage.policy(k) == KEEP for k in range(40)]
    assert sum(kept) == 10 * (4 - quarters)
    for count in range(1, 12):
        rows = [kept[a : a + count] for a in range(20)]
        most = max(map(sum, rows))
        assert most == Choice(RECOMPUTE, quarters).kept(np.array([float(count)]))[0]
        assert quarters == 4 or any(row[0] for row in rows if sum(row) == most)


def test_its_first_plan_recomputes_where_stashes_do_not_fit() -> None:
    """Thirteen devices with room for two of thirteen stashes."""
    layers = [
        Layer(f"layer{k}", 1.0, 1.0, 1.0, stash_bytes=1000, output_bytes=50, parameter_bytes=10) for k in range(39)
    ]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(13, 6000, Link(1000.0)), Workload(39, update_every=1))
    began = time.monotonic()
    session = Session(problem, SearchSpace(asynchronous=("stash",)), Clock(began + 60, None, began))
    Steady(session, with_flush).first_named()
    assert session.best is not None
    assert {policy for row in session.best.stash for policy in row} == {RECOMPUTE}
    assert check(session.best) == []


@pytest.mark.long
def test_infeasible_says_how_many_bytes_are_missing() -> None:
    """A stage needs its stash, and parameters and gradients: 17 bytes."""
    model, cluster = uniform(2, 1.0, 2.0, parameter_bytes=8), Cluster.uniform(2, 16)
    found = solved(model, cluster, "stash", "2bw")
    assert (found.status, found.plan) == ("infeasible", None)
    assert [(v.device, v.over_bytes) for v in found.violations if not isinstance(v, Stale)] == [(0, 1), (1, 1)]


@pytest.mark.long
def test_no_plan_says_which_staleness_is_needed() -> None:
    """Tied parameters are stepped before the next backward, so the forward before it misses an update, unless every
    update begins with an empty pipeline.
    """
    model = replace(uniform(2, 1.0, 2.0, parameter_bytes=10), shared=(SharedParameters(("layer0", "layer1"), 1),))
    cluster = Cluster.uniform(2, 32)  # one device cannot hold both layers
    found = solved(model, cluster, "stash", seconds=5, staleness_limit=0)
    assert found.plan is not None
    assert set(Versions.of(found.plan).most_stale.values()) == {0}
    session = Session(found.plan.problem, SearchSpace(asynchronous=("stash",)), Clock(time.monotonic() + 5))
    (lack,) = Steady(session, with_flush).answer().violations  # nothing has been tried yet
    assert lack == Stale(0, 1)
    assert "at least 1" in str(lack)


def test_what_does_not_apply_is_refused() -> None:
    """In one line with both numbers."""
    model, cluster = uniform(4), Cluster.uniform(4)
    with pytest.raises(InputError, match=r"divides 24, got 5"):
        solved(model, cluster, "stash", "2bw", update_every=5)
    with pytest.raises(InputError, match=r"two updates of 4 micro-batches, got 4"):
        solved(model, cluster, "2bw", batches=4)


def test_interrupted_it_keeps_the_best_plan() -> None:
    """Ctrl-C after the first plan."""

    def interrupt(event: Progress) -> None:
        assert event.best_step_s is not None
        raise KeyboardInterrupt

    space = SearchSpace(asynchronous=("stash",))
    found = search(uniform(6, 1.0, 2.0), Cluster.uniform(4), Workload(24), space, on_progress=interrupt)
    assert found.plan is not None
    assert found.bound_s <= period(found)


def test_a_hint_is_where_it_starts() -> None:
    """Without time for anything else, the answer is no worse than the hint."""
    model, cluster, space = uniform(4, 1.0, 2.0), Cluster.uniform(4), SearchSpace(asynchronous=("stash",))
    best = solved(model, cluster, "stash")
    again = search(model, cluster, Workload(24), space, time_limit=0, hint=best.plan)
    assert period(again) <= period(best)


# ---------------------------------------------------------------- against every plan there is


def every_plan(problem: Problem, space: SearchSpace, most: int) -> Iterator[Plan]:
    """All cuts, numbers in flight up to `most`, and policies that the search chooses from, in one group."""
    for a in alternatives(problem, space):
        count, chain = len(a.order), a.split.chain
        for cuts in compositions(len(chain), count, 100) or ():
            ends = (0, *cuts, len(chain))
            for flying in itertools.combinations_with_replacement(range(most, 0, -1), count):
                for row in itertools.product(a.stashes, repeat=count):
                    stages = [Stage(ends[k], ends[k + 1], row[k], flying[k]) for k in range(count)]
                    made = built(a.split, a.order, stages, a.method, "all")
                    if made is not None:
                        yield made


def tiny(rng: random.Random, devices: int, host: Link = Link()) -> Problem:  # noqa: B008 - immutable
    """Up to three uneven layers, links that take time, and perhaps too little memory to keep every stash."""
    layers = [
        Layer(
            f"layer{k}",
            rng.choice([1.0, 2.0, rng.uniform(0.5, 3)]),
            rng.choice([1.0, 2.0, rng.uniform(0.5, 3)]),
            separable=False,
            parameter_bytes=rng.choice([0, 5]),
            stash_bytes=rng.randint(2, 12),
            output_bytes=rng.choice([0, 1, 2]),
            workspace_bytes=rng.choice([0, 3]),
        )
        for k in range(rng.randint(devices, 3))
    ]
    link = rng.choice([Link(), Link(latency_s=0.4), Link(4.0, 0.1)])
    held = sum(x.parameter_bytes for x in layers) * 4 // devices
    memory = rng.choice([None, held + rng.randint(10, 40)])
    workload = Workload(12, memory_limit_bytes=memory, staleness_limit=rng.choice([None, None, 1]))
    node = NodeGroup(1, devices, DeviceType("tiny", 1 << 20), link, host_link=host)
    return Problem(ModelGraph.chain(layers), Cluster((node,)), workload)


def judged(seed: int, devices: int, most: int, host: Link = Link()) -> None:  # noqa: B008 - immutable
    """The search finds the best of all plans of a random problem, and proves it."""
    rng = random.Random(seed)
    problem = tiny(rng, devices, host)
    method = rng.choice([name for name in METHODS if name != "2bw"])
    space = SearchSpace(asynchronous=(method,), pipelines=1)
    found = search(problem.model, problem.cluster, problem.workload, space)
    limit = problem.workload.staleness_limit
    fit = [
        made
        for made in every_plan(problem, space, most)
        if not excess_for_long(made).total and (limit is None or max(Versions.of(made).most_stale.values()) <= limit)
    ]
    best = min((made.forecast.objective_s for made in map(with_period, fit) if made.forecast is not None), default=None)
    if best is None:
        assert found.plan is None
        return
    assert found.bound_s <= best * (1 + 1e-9)
    assert period(found) <= best * (1 + 1e-6)
    assert found.plan is not None
    assert check(found.plan) == []
    assert limit is None or max(Versions.of(found.plan).most_stale.values()) <= limit


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_the_space_is_better(seed: int) -> None:
    """One or two devices, up to four in flight."""
    judged(seed, 2 if seed else 1, 4)


@pytest.mark.parametrize(
    "seed", [200, 203, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (201, 202, 204, 205, 206, 207))]
)
def test_no_plan_with_copies_is_better(seed: int) -> None:
    """The same with host links, so that stashes, and versions of the weights, may leave."""
    judged(seed, 2, 3, Link((3.0, 10.0, 40.0)[seed % 3], 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_no_plan_of_three_stages_is_better(seed: int) -> None:
    """Three devices, up to five in flight."""
    judged(seed, 3, 5)


@pytest.mark.parametrize("seed", range(6))
def test_what_a_bound_rules_out_has_no_plan(seed: int) -> None:
    """Of random stages with a part of their stashes recomputed or copied: what is built is allowed at its period."""
    rng = random.Random(f"bounds {seed}")
    problem = tiny(rng, 2, Link(8.0, 0.1))
    problem = replace(problem, workload=replace(problem.workload, staleness_limit=None))
    seen = 0
    for a in alternatives(problem, SearchSpace(asynchronous=(METHODS[seed % len(METHODS)],), pipelines=1)):
        count, size = len(a.order), len(a.split.chain)
        for _ in range(30):
            ends = [0, *sorted(rng.sample(range(1, size), count - 1)), size]
            stages = []
            for k in range(count):
                stash = rng.choice(a.stashes)
                quarters = rng.randint(1, 4) if stash in PARTS else 4
                stages.append(Stage(ends[k], ends[k + 1], stash, rng.randint(1, 4), quarters))
            made = built(a.split, a.order, stages, a.method, "random", rng.choice([None, 0, 1]))
            if made is not None and not excess_for_long(made).total:
                seen += 1
                assert a.allows(sloping(stages), period_of(with_period(made)) * (1 + 1e-9))
    assert seen


def test_some_stashes_are_copied_where_a_link_has_no_time_for_all() -> None:
    """Eight devices, of which two lack room for a stash each: a copy of every stash takes 4 s, of some less than 3."""
    model = uniform(8, 1.0, 2.0, parameter_bytes=1, stash_bytes=1000)
    cluster = Cluster((NodeGroup(1, 8, DeviceType("toy", 6900), Link(1e6), host_link=Link(250.0)),))
    space = SearchSpace(asynchronous=("2bw",), recompute=False, pipelines=1, separate_backward=False)
    found = search(model, cluster, Workload(48), space, 20, deterministic_limit=0.05)
    assert found.plan is not None
    assert check(found.plan) == []
    assert {row[0] for row in found.plan.stash} == {KEEP, OFFLOAD}
    assert period(found) == pytest.approx(3.0)


# ------------------------------------------------------------------ updates that begin with an empty pipeline


@pytest.mark.parametrize("update", [1, 2, 3])
def test_two_versions_suffice_where_few_are_in_flight(update: int) -> None:
    """Updates of fewer micro-batches than the plan has stages: no forward is more than one update behind."""
    found = solved(uniform(4, 1.0, 2.0, parameter_bytes=3), Cluster.uniform(4), "2bw", seconds=5, update_every=update)
    assert found.plan is not None
    assert update >= len(found.plan.stages) or max(Versions.of(found.plan).most_stale.values()) <= 1


def test_updates_are_drained_where_no_second_version_fits() -> None:
    """Two layers of each of two devices' parameters, gradients and momentum fill them but for a stash."""
    model = uniform(4, 1.0, 2.0, parameter_bytes=100, stash_bytes=4)
    found = solved(model, Cluster.uniform(2, 2 * 2 * 100 + 2 * 2 * 4), "stash", seconds=10, update_every=4)
    assert found.plan is not None
    assert set(Versions.of(found.plan).most_stale.values()) == {0}
    assert period(found) <= 7.5  # 1F1B of four micro-batches, 30 seconds an update: one in flight without that, 12


class _Fixed:
    """A search with a flush that has found a step already."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def go_on(self, clock: Clock, listener: object, hint: Plan | None = None) -> Result:
        return self.result


def test_where_a_step_does_not_fit_when_repeated_a_plainer_one_is_looked_for() -> None:
    """Two layers of three devices: an idle one takes what is shipped of a step, but not of twelve, all at once."""
    model = uniform(2, 1.0, 2.0, parameter_bytes=100, stash_bytes=10)
    cluster = Cluster.uniform(3, 240)
    problem = Problem(model, cluster, Workload(48, update_every=4))
    session = Session(
        problem, SearchSpace(asynchronous=("2bw",)), Clock(time.monotonic() + 60, None), seed=0, workers=1
    )
    asked: list[SearchSpace] = []

    def begin(session: Session, flushed: Problem, space: SearchSpace) -> _Fixed:
        asked.append(space)
        shipped = ("ship>2", KEEP) if space.offload else (KEEP, KEEP)
        pipelines = (Pipeline((0, 1), (0, 1), (0, 1, 2, 3)),)
        candidate = Candidate(flushed, (("layer0",), ("layer1",)), pipelines, (shipped,))
        batches = range(4)
        orders = [[Op(kind, s, m) for m in batches for kind in (Kind.F, Kind.B)] for s in range(2)]
        orders[0] = [Op(Kind.F, 0, m) for m in batches] + [Op(Kind.B, 0, m) for m in batches]
        return _Fixed(Result("feasible", assemble(candidate, orders, "search"), 0.0))

    taken: list[Plan] = []
    Drained(session, begin, lambda plan, _: taken.append(plan)).look()
    assert [(space.separate_backward, space.offload) for space in asked] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert taken
    assert {policy for plan in taken for row in plan.stash for policy in row} == {KEEP}
