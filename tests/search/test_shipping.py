"""Stashes shipped to other devices (BPipe): chosen for named orders where memory lacks, never above a bound."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, bounds, check, plan
from contraflow.planner.basics import ScheduleError
from contraflow.planner.forecast import simulate_orders
from contraflow.planner.graph import SHIP, Candidate, ship_target
from contraflow.planner.lower.plans import assembled
from contraflow.planner.partition import QUARTERS
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.schedules import Layout, build
from contraflow.planner.search.common import Clock, Session, limits
from contraflow.planner.search.named.halves import whole_backwards
from contraflow.planner.search.named.relief import Relief, with_quarters
from contraflow.planner.search.named.relieved import try_relieved
from contraflow.planner.search.orders.arm import Arm
from contraflow.planner.search.orders.race import simulated
from contraflow.planner.search.proofs import unrestricted
from contraflow.planner.search.scale import take_over

STASH, PARAMETERS, OUTPUT = 100, 1000, 4


def crowded(devices: int, batches: int, stashes: float, bandwidth: float = 200.0) -> Problem:
    """One layer a device, F = 1, B = 2, room for so many stashes a device; shipping one takes 100 / bandwidth s."""
    layers = [
        Layer(f"l{k}", 1.0, 2.0, separable=False, stash_bytes=STASH, parameter_bytes=PARAMETERS, output_bytes=OUTPUT)
        for k in range(devices)
    ]
    limit = int(2 * PARAMETERS + stashes * STASH + 4 * OUTPUT)
    cluster = Cluster.uniform(devices, 1 << 40, Link(bandwidth))
    return Problem(ModelGraph.chain(layers), cluster, Workload(batches, memory_limit_bytes=limit))


def named(problem: Problem, layout: Layout) -> Candidate:
    """One layer a stage."""
    return Candidate(problem, tuple((layer.name,) for layer in problem.model.layers), layout.pipelines)


@pytest.mark.parametrize(("devices", "batches", "room"), [(8, 32, 6), (8, 64, 6), (16, 64, 12), (16, 64, 10)])
def test_1f1b_takes_no_longer_where_others_have_room_for_what_it_lacks(devices: int, batches: int, room: int) -> None:
    """The first stages lack memory, the last ones have it: with room for three quarters nothing is waited for."""
    problem, layout = crowded(devices, batches, room), build("1f1b", devices, batches)
    candidate = named(problem, layout)
    whole = simulate_orders(candidate, candidate.costs, assembled(candidate, layout.orders).ops.lists())
    guests = Relief(candidate, whole, [SHIP], [0] * devices).choose()
    found = assembled(with_quarters(candidate, guests), layout.orders).plan
    assert check(found) == []
    assert max(map(len, guests.values())) < QUARTERS
    assert found.forecast is not None
    assert found.forecast.step_s == pytest.approx(whole.step_s)


@pytest.mark.long
def test_plan_ships_stashes_where_that_is_best() -> None:
    """Waiting for memory takes 237 s, making stashes again 221 s; with stashes on other devices 1F1B takes 215.48 s."""
    problem = crowded(8, 64, 6)
    found = plan(problem.model, problem.cluster, problem.workload, time_limit=300, workers=1, deterministic_limit=0.3)
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.seconds is not None
    assert found.bound_s <= found.seconds <= 215.48 * (1 + 1e-9)
    own = SearchSpace(separate_backward=False)
    kept = plan(problem.model, problem.cluster, problem.workload, own, 300, workers=1, deterministic_limit=0.1)
    assert kept.plan is not None
    assert not any(ship_target(policy) is not None for row in kept.plan.stash for policy in row)


def test_nothing_is_shipped_over_links_that_have_no_time_for_it() -> None:
    problem, layout = crowded(8, 32, 6, bandwidth=1.0), build("1f1b", 8, 32)
    candidate = named(problem, layout)
    whole = simulate_orders(candidate, candidate.costs, assembled(candidate, layout.orders).ops.lists())
    assert Relief(candidate, whole, [SHIP], [0] * 8).choose() == {}


def test_guests_are_nearby_where_they_can_be() -> None:
    """Between nodes a message takes far longer: what lacks room goes to a device of its own node."""
    problem = crowded(4, 16, 100)
    group = replace(problem.cluster.nodes[0], count=2, devices=4)
    cluster = replace(problem.cluster, nodes=(group,), network=Link(25.0))
    problem = replace(crowded(8, 32, 7), cluster=cluster)
    layout = build("1f1b", 8, 32)
    candidate = named(problem, layout)
    whole = simulate_orders(candidate, candidate.costs, assembled(candidate, layout.orders).ops.lists())
    guests = Relief(candidate, whole, [SHIP], [0] * 8).choose()
    assert guests
    for (_, stage), targets in guests.items():
        assert all(cluster.same_node(stage, ship_target(target) or 0) for target in targets)


def random_problem(rng: random.Random) -> tuple[Problem, Layout]:
    """A random problem and a named order of one layer a stage for it."""
    devices, batches = rng.randint(2, 5), rng.randint(2, 9)
    name = rng.choice(["1f1b", "gpipe", "chimera", "zb-h1", "interleaved", "zb-v"])
    try:
        layout = build(name, devices, batches)
    except ScheduleError:
        layout = build("1f1b", devices, batches)
    layers = [
        Layer(
            f"l{k}", rng.uniform(0.5, 2), rng.uniform(0.5, 2), rng.uniform(0.5, 2), stash_bytes=rng.randint(5, 40),
            weight_stash_bytes=rng.randint(0, 20), parameter_bytes=rng.randint(0, 30), output_bytes=rng.randint(0, 5),
            workspace_bytes=rng.randint(0, 5),
        )
        for k in range(layout.stages)
    ]  # fmt: skip
    link = Link(rng.choice([5.0, 30.0, 300.0]), rng.choice([0.0, 0.2]))
    return Problem(ModelGraph.chain(layers), Cluster.uniform(devices, 1 << 40, link), Workload(batches)), layout


def shipping_somewhere(seed: int) -> tuple[Plan, float]:
    """A plan with random stashes shipped anywhere, under just the memory that it takes; and its step with more."""
    rng = random.Random(seed)
    problem, layout = random_problem(rng)
    devices = len(problem.cluster)
    candidate = named(problem, layout)
    units = [(p, s) for p in range(len(layout.pipelines)) for s in range(layout.stages)]
    guests = {}
    for p, s in rng.sample(units, rng.randint(1, len(units))):
        others = [d for d in range(devices) if d != layout.pipelines[p].forward[s]]
        guests[p, s] = [f"{SHIP}>{rng.choice(others)}" for _ in range(rng.randint(1, QUARTERS))]
    found = assembled(with_quarters(candidate, guests), layout.orders)
    tight = replace(problem, workload=replace(problem.workload, memory_limit_bytes=max(found.forecast.peak_bytes)))
    return assembled(replace(found.candidate, problem=tight), layout.orders).plan, found.forecast.step_s


@pytest.mark.parametrize("seed", range(60))
def test_no_bound_is_above_a_plan_that_ships(seed: int) -> None:
    """Random stashes shipped anywhere, as many as they are: under just the memory that the plan takes, and without."""
    made, roomy_s = shipping_somewhere(seed)
    assert check(made) == []
    tight = made.problem
    step_s = roomy_s * (1 + 1e-9)
    same = Candidate(tight, made.stages, made.pipelines, made.stash)
    shares = tuple(len(pipeline.micro_batches) for pipeline in made.pipelines)
    assert bounds.candidate(same, shares) <= step_s
    for space in (SearchSpace(), SearchSpace(recompute=False, offload=False)):
        assert bounds.space(tight, unrestricted(tight, space)) <= step_s


@pytest.mark.parametrize("seed", range(60))
def test_plans_that_ship_are_raced(seed: int) -> None:
    """Whatever fits goes on as an arm, and its order as a plan: the race counts guests more carefully than plans do."""
    made, _ = shipping_somewhere(seed)
    arm = Arm(Candidate(made.problem, made.stages, made.pipelines, made.stash), True, False, seed).seeded(made.orders)
    assert arm.order is not None
    found = simulated(arm)
    assert found is not None
    assert found.stash == made.stash
    assert not arm.lowered or max(arm.lowered) <= 0


@pytest.mark.parametrize("seed", range(40))
def test_what_is_foreseen_is_about_what_is_simulated(seed: int) -> None:
    """Whoever ships holds less, and no device that had room exceeds its limit by more than it has messages."""
    rng = random.Random(1000 + seed)
    problem, layout = random_problem(rng)
    candidate = named(problem, layout)
    orders = [whole_backwards(order, frozenset()) for order in layout.orders]
    whole = simulate_orders(candidate, candidate.costs, assembled(candidate, orders).ops.lists())
    peaks = [memory.peak_bytes for memory in whole.device_memory]
    limit = round(sum(peaks) / len(peaks) * rng.uniform(0.9, 1.1))
    tight = replace(candidate, problem=replace(problem, workload=replace(problem.workload, memory_limit_bytes=limit)))
    guests = Relief(tight, whole, [SHIP], [0] * len(peaks)).choose()
    found = assembled(with_quarters(tight, guests), orders)
    assert check(found.plan) == [] or max(found.forecast.peak_bytes) > limit
    homes = {tight.pipelines[p].forward[s] for p, s in guests}
    over = [max(0, peak - room) for peak, room in zip(peaks, limits(tight.problem), strict=True)]
    assert all(over[device] > 0 for device in homes)
    for targets in guests.values():
        assert all(peaks[ship_target(target) or 0] < limit for target in targets)


def test_a_named_order_that_shipped_with_few_micro_batches_ships_with_all() -> None:
    """What a search with fewer micro-batches found is made anew with all of them, on the same cut."""
    problem, few = crowded(8, 64, 6), crowded(8, 32, 6)
    session = Session(problem, SearchSpace(replicas=1), Clock(time.monotonic() + 60))
    small = Session(few, session.space, Clock(time.monotonic() + 60))
    try_relieved(small, build("1f1b", 8, 32), tuple(range(1, 8)))
    assert small.best is not None
    assert small.best_s == pytest.approx(118.36)
    take_over(session, small, [tuple(range(8))])
    assert session.best is not None
    assert check(session.best) == []
    assert session.best_s == pytest.approx(215.48)
    assert any(ship_target(policy) is not None for row in session.best.stash for policy in row)
