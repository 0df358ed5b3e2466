"""Whether replicas share optimizers: what the search makes of the choice, and bounds that hold for both."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import plans_of, random_candidate

from contraflow.planner import Choice, Effort, ModelFamily, bounds, check, plan, plan_family
from contraflow.planner.graph import Candidate, holders
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.common import Clock
from contraflow.planner.search.driver import Search
from contraflow.planner.search.named import overfull, own_orders
from contraflow.planner.search.sharding import searched_sharded, settled
from contraflow.planner.simulate import simulate

LAYERS = tuple(
    Layer(f"layer{k}", 1.0, 1.0, 1.0, parameter_bytes=640, stash_bytes=40, output_bytes=10) for k in range(4)
)
MODEL = ModelGraph.chain(LAYERS)
ALL = SearchSpace()


def cluster(devices: int, memory: int, link: Link, bandwidth: float | None = 1e4) -> Cluster:
    return Cluster((NodeGroup(1, devices, DeviceType("even", memory, 1.0, bandwidth), link),), link)


def solved(machine: Cluster, workload: Workload, space: SearchSpace = ALL, hint: Plan | None = None) -> Plan:
    found = plan(MODEL, machine, workload, space, time_limit=30, workers=1, deterministic_limit=0.2, hint=hint).plan
    assert found is not None
    assert check(found) == []
    return found


def gathers(found: Plan) -> bool:
    return any(op.kind is Kind.GATHER for order in found.orders for op in order)


def test_tight_memory_is_no_slower_with_shared_optimizers() -> None:
    """Two devices; and what the bound speaks for is said."""
    link, workload = Link(1e5), Workload(6, "adam")
    tight = cluster(2, 4 * (640 * 3 + 40) + 300, link)
    more, less = solved(tight, workload), solved(tight, workload, SearchSpace(shard_optimizer=False))
    assert not gathers(less)
    assert not less.problem.workload.sharded
    assert more.forecast is not None
    assert less.forecast is not None
    assert more.forecast.step_s <= less.forecast.step_s * (1 + 1e-9)
    assert "optimizers whole" in less.provenance.space
    assert "optimizers whole" not in more.provenance.space


def test_what_the_search_without_sharing_found_is_not_lost_where_time_is_up() -> None:
    """Its plan needs no simulation; that of the best plan without sharing does, and there is no time for it."""
    machine = cluster(2, 1 << 20, Link(100.0))
    theirs = solved(machine, Workload(6, "adam"), SearchSpace(shard_optimizer=False))
    problem = searched_sharded(Problem(MODEL, machine, Workload(6, "adam")), ALL)
    clock = Clock(time.monotonic() - 100, None, time.monotonic() - 130)
    session = Search(problem, ALL, clock, 0, 1, None).session
    every = tuple(range(6))
    ours = gathering(problem, every)
    assert ours.forecast is not None
    assert theirs.forecast is not None
    assert theirs.forecast.step_s < ours.forecast.step_s
    assert settled(session, ours, theirs) is theirs


def gathering(problem: Problem, every: tuple[int, ...]) -> Plan:
    """Two replicas of all layers that share their optimizers."""
    names = (tuple(layer.name for layer in LAYERS),)
    halves = tuple(Pipeline((d,), (d,), every[d::2]) for d in range(2))
    candidate = Candidate(problem, names, halves, (("keep",), ("keep",)))
    return assemble(
        candidate, [[op for m in every[d::2] for op in (Op(Kind.F, 0, m), Op(Kind.B, 0, m))] for d in range(2)]
    )


def test_shared_optimizers_are_in_the_answer_where_steps_take_long() -> None:
    """Everything fits: replicas of the whole model, whose step of 1/r is shorter and traffic the same."""
    roomy = cluster(4, 1 << 20, Link(1e6), bandwidth=300.0)
    more = solved(roomy, Workload(4, "adam"))
    less = solved(roomy, Workload(4, "adam"), SearchSpace(shard_optimizer=False))
    assert gathers(more)
    assert more.problem.workload.sharded
    assert more.forecast is not None
    assert less.forecast is not None
    assert more.forecast.step_s < less.forecast.step_s


@pytest.mark.parametrize(
    ("devices", "workload", "space"),
    [
        (1, Workload(4, "adam"), SearchSpace()),
        (2, Workload(1, "adam"), SearchSpace()),
        (2, Workload(4, "adam"), SearchSpace(pipelines=1)),
        (2, Workload(4, "adam"), SearchSpace(asynchronous=("stash",))),
        (2, Workload(4, "adam"), SearchSpace(schedule="pipedream")),
        (2, Workload(4, "adam"), SearchSpace(shard_optimizer=False)),
    ],
)
def test_where_there_is_nothing_to_share(devices: int, workload: Workload, space: SearchSpace) -> None:
    problem = Problem(MODEL, cluster(devices, 1 << 20, Link(1e5)), workload)
    assert not searched_sharded(problem, space).workload.sharded


def test_teams_share_as_devices_do() -> None:
    model = replace(MODEL, ways=(("tensor", 2),))
    problem = Problem(model, cluster(4, 1 << 20, Link(1e5)).teams(2), Workload(4, "adam"))
    assert searched_sharded(problem, ALL).workload.sharded
    alone = Problem(model, cluster(2, 1 << 20, Link(1e5)).teams(2), Workload(4, "adam"))
    assert not searched_sharded(alone, ALL).workload.sharded


def test_a_family_whose_layers_fit_with_shared_optimizers_only() -> None:
    """A device has no room for the one layer with all of its state: neither bound nor search rules the plan out."""
    machine = cluster(2, 640 * 3 + 40 + 200, Link(1e5))
    whole = replace(MODEL, layers=LAYERS[:1], edges=())
    for model in (whole, replace(whole, ways=(("tensor", 2),))):
        machines = machine if model is whole else cluster(4, 640 * 3 + 40 + 200, Link(1e5))
        answer = plan_family(
            ModelFamily((model,)), machines, Workload(1, "adam"), Choice(4), ALL,
            Effort(30, workers=1, deterministic_limit=0.1),
        )  # fmt: skip
        assert answer.plan is not None
        assert gathers(answer.plan)
        assert check(answer.plan) == []


def test_state_to_share_or_a_step_that_takes_time() -> None:
    slow, free = (cluster(2, 1 << 20, Link(1e5), bandwidth) for bandwidth in (10.0, None))
    for machine, optimizer, precision, some in (
        (free, "sgd", "fp32", False), (slow, "sgd", "fp32", True), (free, "adam", "fp32", True),
        (free, "sgd", "mixed", True),
    ):  # fmt: skip
        problem = Problem(MODEL, machine, Workload(4, optimizer, precision))
        assert searched_sharded(problem, SearchSpace()).workload.sharded == some


def test_the_answer_is_no_worse_than_a_plan_to_start_from_with_whole_optimizers() -> None:
    """Latencies at the end of a step: an all-reduce that backwards hide, and a gathering that nothing does."""
    far = cluster(2, 1 << 20, Link(1e6, 3.0), bandwidth=None)
    for schedule in ("chimera", "gems"):
        hint = solved(far, Workload(4, "adam"), SearchSpace(schedule=schedule, shard_optimizer=False))
        asked = solved(far, Workload(4, "adam"), hint=hint)
        assert asked.forecast is not None
        assert hint.forecast is not None
        assert asked.forecast.step_s <= hint.forecast.step_s * (1 + 1e-9)


@pytest.mark.parametrize("latency_s", [0.2, 1.0])
def test_the_answer_is_no_worse_than_that_with_whole_optimizers(latency_s: float) -> None:
    """Where gathering parameters ends every step, what is best with whole optimizers is not what is best with parts."""
    far = cluster(4, 1 << 20, Link(1e4, latency_s), bandwidth=None)
    whole, asked = (
        solved(far, Workload(8, "adam"), SearchSpace(shard_optimizer=False)),
        solved(far, Workload(8, "adam")),
    )
    assert not gathers(whole)
    assert asked.forecast is not None
    assert whole.forecast is not None
    assert asked.forecast.step_s <= whole.forecast.step_s * (1 + 1e-9)


def test_a_sharded_plan_to_start_from_is_made_whole_where_that_is_asked_for() -> None:
    roomy, workload = cluster(4, 1 << 20, Link(1e6), bandwidth=300.0), Workload(4, "adam")
    hint = solved(roomy, workload)
    assert gathers(hint)
    assert not gathers(solved(roomy, workload, SearchSpace(shard_optimizer=False), hint=hint))


def test_named_schedules_share_as_well() -> None:
    found = solved(cluster(4, 1 << 20, Link(1e6), 300.0), Workload(8, "adam"), SearchSpace(schedule="chimera"))
    assert gathers(found)
    assert max(map(len, holders(found).values())) == 2


# ---------------------------------------------------------------- bounds


def candidate_of(seed: int) -> Candidate:
    """A random candidate with parameters worth sharing."""
    rng, found = random.Random(seed), random_candidate(seed)
    layers = tuple(replace(x, parameter_bytes=rng.choice([0, 64, 640])) for x in found.problem.model.layers)
    workload = Workload(found.problem.workload.micro_batches, rng.choice(("adam", "momentum")), sharded=True)
    problem = replace(found.problem, model=replace(found.problem.model, layers=layers), workload=workload)
    return replace(found, problem=problem)


@settings(max_examples=60)
@given(st.integers(0, 1 << 20))
def test_no_bound_is_above_a_plan_whichever_way_it_holds_its_optimizers(seed: int) -> None:
    """Of the candidate, and of the space under limits that are exactly what the plan needs."""
    candidate = candidate_of(seed)
    for found in plans_of(candidate, seed, 2, seed % 2 == 0):
        whole = replace(found.problem, workload=replace(found.problem.workload, sharded=False))
        other = assemble(Candidate(whole, found.stages, found.pipelines, found.stash), own_orders(found))
        assert found.forecast is not None
        assert other.forecast is not None
        shares = tuple(len(pipeline.micro_batches) for pipeline in candidate.pipelines)
        if not any(policy.startswith("ship") for row in candidate.stash for policy in row):
            assert bounds.candidate(candidate, shares) <= found.forecast.step_s * (1 + 1e-9)
        for forecast in (found.forecast, other.forecast):
            most = max(forecast.peak_bytes)
            limited = replace(found.problem, workload=replace(found.problem.workload, memory_limit_bytes=most))
            assert bounds.possible(limited, SearchSpace())
            assert bounds.space(limited, SearchSpace()) <= forecast.step_s * (1 + 1e-9)
            assert not overfull(limited, SearchSpace(), kept=False)


def test_bounds_of_one_group_know_that_others_share() -> None:
    """Of two groups, each holds half of everybody's optimizer."""
    machine = cluster(1, 4 * (640 * 3 + 40) + 300, Link(1e5))
    alone = Problem(MODEL, machine, Workload(4, "adam", sharded=True))
    assert math.isinf(bounds.space(alone, SearchSpace()))
    beside = replace(alone, workload=replace(alone.workload, groups=2))
    assert math.isfinite(bounds.space(beside, SearchSpace()))


def test_a_plan_with_whole_optimizers_is_answered_as_it_is() -> None:
    """Its receives stand where memory has room for them; made from its compute orders again, it would not fit."""
    space = SearchSpace(schedule="gpipe", shard_optimizer=False)
    found = solved(cluster(2, 1 << 20, Link(1e6, 0.1), bandwidth=None), Workload(4, "adam"), space)
    late = simulated(replace(found, orders=tuple(tuple(received_late(order)) for order in found.orders)))
    assert late.forecast is not None
    most = max(device.peak_bytes for device in late.forecast.devices)
    tight = cluster(2, most, Link(1e6, 0.1), bandwidth=None)
    best = solved(cluster(2, 1 << 20, Link(1e6, 9.0)), Workload(4, "adam"), SearchSpace(schedule="chimera"))
    hint = simulated(replace(late, problem=replace(late.problem, cluster=tight)))
    now = time.monotonic()
    search = Search(Problem(MODEL, tight, Workload(4, "adam")), ALL, Clock(now + 9, None, now), 0, 1, None)
    assert settled(search.session, best, hint) is hint


def simulated(found: Plan) -> Plan:
    return found.with_forecast(simulate(found).forecast())


def received_late(order: tuple[Op, ...]) -> list[Op]:
    """An order in which everything is received just before it is used."""
    late: list[Op] = []
    waiting: list[Op] = []
    for op in order:
        if op.kind in (Kind.RECV_F, Kind.RECV_B):
            waiting.append(op)
            continue
        late += [one for one in waiting if one.stage == op.stage and one.micro_batch == op.micro_batch]
        waiting = [one for one in waiting if one not in late]
        late.append(op)
    return late
