"""Devices, stash choices and cuts annealed together without a flush: their times, and the plans that come of them."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from contraflow.planner import check, evaluate, plan
from contraflow.planner.lower import Assembled, period_seconds, repeat
from contraflow.planner.plan import Kind, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search import modulo
from contraflow.planner.search.common import Clock, Session, fits
from contraflow.planner.search.driver import with_flush
from contraflow.planner.search.modulo.tables import CLOSED, EARLY
from contraflow.planner.search.steady.build import excess_for_long
from contraflow.planner.search.steady.mixture_plans import Method, built, case_of
from contraflow.planner.search.steady.mixtures import Mixtures
from contraflow.planner.search.steady.search import Steady
from contraflow.planner.search.steady.tables import Split
from contraflow.tests.kit.editing import codes
from contraflow.tests.search.test_layer_orders import random_graph

GO_ON = np.zeros(1, dtype=np.int64)
TIMES = (0.7, 1.0, 1.4, 1.3, 0.8, 0.7, 0.9, 0.9, 1.0, 0.9, 1.6, 0.7)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Compiles once."""
    modulo.warm()


def problem(limit: int, devices: int = 3, batches: int = 18, update: int = 3, weight: int = 0) -> Problem:
    """Twelve layers on a few devices with host links."""
    layers = [
        Layer(
            f"l{k}",
            t,
            2 * t,
            separable=False,
            parameter_bytes=weight,
            stash_bytes=1000,
            workspace_bytes=0,
            output_bytes=200,
        )
        for k, t in enumerate(TIMES)
    ]  # fmt: skip
    cluster = Cluster((NodeGroup(1, devices, DeviceType("d", 1 << 40), Link(1000.0), None, Link(2000.0)),))
    return Problem(
        ModelGraph.chain(layers), cluster, Workload(batches, memory_limit_bytes=limit, update_every=update)
    )  # fmt: skip


def annealed(given: Problem, space: SearchSpace, seed: int = 0, effort: float = 1.5) -> tuple[Session, list[Assembled]]:
    """What annealing finds within a deterministic effort, from nothing."""
    session, taken = Session(given, space, Clock(time.monotonic() + 120, effort), seed), list[Assembled]()

    def take(found: Assembled) -> bool:
        taken.append(found)
        return session.offer(found.plan, "mixtures")

    Mixtures(session, take).run()
    return session, taken


@pytest.mark.parametrize("seed", range(20))
def test_passes_do_not_overlap_within_the_period_and_come_after_what_they_need(seed: int) -> None:
    rng, given = random.Random(seed), problem(1 << 30, devices=4)
    case = case_of(Split(given, ((0, 1, 2, 3),)), Method("stash", 3, 12))
    ends = [*sorted(rng.sample(range(1, 12), 5)), 12]
    choices = (modulo.KEEP, modulo.LATE, modulo.RECOMPUTE, modulo.HOST)
    stages = [(end, rng.randrange(4), rng.randrange(4), rng.choice(choices)) for end in ends]
    arm = modulo.Arm.of(case, stages, 6, 1e6, seed)
    period = arm.evaluate(modulo.Allowed(choices, True))
    times = arm.times()
    assert times is not None
    forward = [sum(TIMES[a:b]) for a, b in pairwise((0, *ends))]
    lasts = [(f, 2 * f + (f if code == modulo.RECOMPUTE else 0)) for f, (*_, code) in zip(forward, stages, strict=True)]
    busy: dict[int, list[tuple[float, float]]] = {}
    for s, (_, a, b, _) in enumerate(stages):
        for d, row, length in ((a, modulo.FORWARD, lasts[s][0]), (b, modulo.BACKWARD, lasts[s][1])):
            busy.setdefault(d, []).append((times[row, s], length))
        assert times[modulo.BACKWARD, s] >= times[modulo.FORWARD, s] + lasts[s][0] - 1e-6
    for s in range(5):
        assert times[modulo.FORWARD, s + 1] >= times[modulo.FORWARD, s] + lasts[s][0] - 1e-6
        assert times[modulo.BACKWARD, s] >= times[modulo.BACKWARD, s + 1] + lasts[s + 1][1] - 1e-6
    for passes in busy.values():
        assert sum(length for _, length in passes) <= period * (1 + 1e-6)
        for i, (start, length) in enumerate(passes):
            for other, _ in passes[:i] + passes[i + 1 :]:
                assert (other - start) % period >= length - 1e-5 * period or (start - other) % period < 1e-5 * period


@pytest.mark.parametrize("even", [0.0, 20.0])
@pytest.mark.parametrize("seed", range(6))
def test_decisions_fit_at_the_period_that_annealing_says(seed: int, even: float) -> None:
    rng, given = random.Random(seed), problem(random.Random(seed).randint(3000, 9000), devices=3)
    case = case_of(Split(given, ((0, 1, 2),)), Method("stash", 3, 9))
    stages = [(end, rng.randrange(3), rng.randrange(3), modulo.KEEP) for end in (2, 4, 6, 8, 10, 12)]
    arm = modulo.Arm.of(case, stages, 9, 1e3, seed)
    for _ in range(6):  # from where annealing ended: an answer close to the busiest device's load is likely
        arm.improve(modulo.Allowed((modulo.KEEP, modulo.RECOMPUTE), True), 400, modulo.Heat(0.02, 0.001, even), GO_ON)
        assert (arm.times() is not None) == (arm.period_s <= arm.cap_s)


def test_devices_without_a_gap_are_filled() -> None:
    """Passes whose loads come out even on three devices run at the load, wherever their times would leave gaps."""
    given = problem(1 << 30, devices=3, batches=60)
    case = case_of(Split(given, ((0, 1, 2),)), Method("stash", 3, 12))
    seconds = [(t, s, 0) for s, t in enumerate(TIMES)] + [(2 * t, s, 1) for s, t in enumerate(TIMES)]
    load, on = [0.0] * 3, dict[tuple[int, int], int]()
    for t, s, side in sorted(seconds, reverse=True):
        on[s, side] = device = load.index(min(load))
        load[device] += t
    arm = modulo.Arm.of(case, [(s + 1, on[s, 0], on[s, 1], modulo.KEEP) for s in range(12)], 12, 1e3, 0)
    allowed = modulo.Allowed((modulo.KEEP,), True)
    apart = arm.evaluate(allowed)
    arm.slack[:EARLY] = CLOSED
    assert arm.evaluate(allowed) == pytest.approx(max(load), rel=1e-6)
    assert apart > 1.02 * max(load)
    short = case_of(Split(problem(1 << 30, devices=3, batches=12), ((0, 1, 2),)), Method("stash", 3, 12))
    arm.case = short  # no update of which every device runs all passes: nothing of the run can be repeated
    assert arm.evaluate(allowed) > arm.cap_s


def test_messages_leave_room_for_parameters_ahead_of_them() -> None:
    """Parameters of the first stage go from device 2 to device 0, between nodes, in 5 s. The last stage's gradient goes
    from device 2 to another node, too, in 0.25 s: the backward that takes it expects it behind them."""
    layers = [
        Layer(f"l{k}", t, 2 * t, 0, False, 1000 if k < 4 else 0, 1000, 0, output_bytes=200)
        for k, t in enumerate(TIMES)
    ]  # fmt: skip
    nodes = (NodeGroup(2, 2, DeviceType("d", 1 << 40), Link(3000.0)),)
    cluster, train = Cluster(nodes, Link(800.0)), Workload(72, memory_limit_bytes=1 << 30, update_every=8)
    given = Problem(ModelGraph.chain(layers), cluster, train)
    case = case_of(Split(given, ((0, 1, 2, 3),)), Method("stash", 8, 3))
    stages = [(4, 0, 2, modulo.KEEP), (8, 3, 1, modulo.KEEP), (12, 2, 2, modulo.KEEP)]
    arm = modulo.Arm.of(case, stages, 3, 1e3, 0)
    arm.slack[:EARLY] = 0.0
    assert arm.evaluate(modulo.Allowed((modulo.KEEP,), True)) < 1e3
    times = arm.times()
    assert times is not None
    sent = times[modulo.BACKWARD, 2] + 2 * sum(TIMES[8:])
    assert times[modulo.BACKWARD, 1] >= sent + 4000 / 800 - 1e-6
    arm.case = case._replace(trained=np.zeros_like(case.trained))
    arm.evaluate(modulo.Allowed((modulo.KEEP,), True))
    times = arm.times()
    assert times is not None
    assert times[modulo.BACKWARD, 1] < times[modulo.BACKWARD, 2] + 2 * sum(TIMES[8:]) + 4000 / 800


def test_layers_that_take_no_time_are_planned() -> None:
    """Their period is 0, and a timetable divides by its period."""
    layers = [Layer(f"l{k}", 0.0, 0.0, 0, False, 100, 1000, 0, output_bytes=0) for k in range(6)]
    given = Problem(ModelGraph.chain(layers), Cluster.uniform(3, 4000), Workload(24, update_every=2))
    taken = annealed(given, SearchSpace(asynchronous=("stash",)), effort=0.1)[1]
    assert all(not check(found.plan) for found in taken)


@pytest.mark.long
def test_little_memory_is_met_by_a_mixture_of_devices_and_stash_choices() -> None:
    session, taken = annealed(problem(4400), SearchSpace(asynchronous=("stash",)))
    assert session.best is not None
    assert session.best_s < 24
    for found in taken:
        assert not check(found.plan)
        assert fits(found.plan)
    assert session.best_s >= sum(TIMES) * (1 - 1e-9)  # three units of work a second, three devices


@pytest.mark.long
@pytest.mark.parametrize("method", ["stash", "2bw", "pipeoptim", "naive"])
def test_every_weight_policy_gets_plans_that_pass_the_checker(method: str) -> None:
    session, taken = annealed(problem(40_000, update=9, weight=300), SearchSpace(asynchronous=(method,)))
    assert taken
    assert not any(check(found.plan) for found in taken)
    assert session.best is not None
    assert session.best.weights == method


@pytest.mark.parametrize("seed", [11, 16, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (5, 17))])
def test_what_ships_late_runs_on_and_on(seed: int) -> None:
    """Stashes that wait for room are sent after parameters: a longer run takes the two in the same order."""
    model = ModelGraph.chain(random_graph(seed).layers) if seed % 2 else random_graph(seed)
    given = Problem(model, Cluster.uniform(2 + seed % 3, link=Link(500.0, 0.0)), Workload(40))
    taken = annealed(given, SearchSpace(asynchronous=("pipeoptim",), pipelines=1), seed, effort=1.0)[1]
    assert any(op.kind is Kind.RECV_P for found in taken for order in found.plan.orders for op in order)
    for found in taken:
        for count in (41, 90):
            assert codes(repeat(found.plan, count)) == {"forecast"}


@pytest.mark.long
@pytest.mark.parametrize("seed", [10, pytest.param(5, marks=pytest.mark.slow)])
def test_a_longer_run_fits_where_the_plan_does(seed: int) -> None:
    """Where its stashes, asked for as early as a longer run can, do not fit, they come as late as in the plan."""
    given = Problem(random_graph(seed), Cluster.uniform(2 + seed % 3, link=Link(500.0, 0.0)), Workload(40))
    taken = annealed(given, SearchSpace(asynchronous=("stash",), pipelines=1), seed, effort=0.3)[1]
    exceeded = 0
    for found in taken:
        most = max(found.forecast.peak_bytes)
        exceeded += max(evaluate(repeat(found.plan, 90)).peak_bytes) > most
        limited = replace(given, workload=replace(given.workload, memory_limit_bytes=most))
        for count in (41, 90):
            assert max(evaluate(repeat(replace(found.plan, problem=limited), count)).peak_bytes) <= most
    assert exceeded


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_stash_waits_for_a_share_of_its_time(share: float) -> None:
    """Of two stages the first has its backward elsewhere: from 6 s before its backward on, it has to leave. Where the
    other device computes at that time, and it is not too late, it leaves when that has ended; where it does not, at the
    last time before when either device has ended an op."""
    given = problem(1 << 30)
    case, allowed = case_of(Split(given, ((0, 1, 2),)), Method("stash", 3, 2)), modulo.Allowed((modulo.LATE,), True)
    arm = modulo.Arm.of(case, [(6, 0, 1, modulo.LATE), (12, 2, 2, modulo.KEEP)], 2, 1e6, 0)
    arm.slack[EARLY] = share
    assert arm.evaluate(allowed) < modulo.NEVER
    times = arm.times()
    assert times is not None
    ready, needed = times[modulo.FORWARD, 0] + sum(TIMES[:6]), times[modulo.BACKWARD, 0] - 6 * 1000 / 1000.0
    assert needed > ready
    chosen, begin = ready + (1 - share) * (needed - ready), times[modulo.BACKWARD, 0]
    into = (chosen - begin) % arm.period_s
    lasts = 2 * sum(TIMES[:6])
    ended = chosen + lasts - into if into < lasts - 1e-6 else chosen
    chosen = ended if ended <= needed else chosen
    ends = [ready, begin + lasts]
    sent = max(end - math.ceil((end - chosen) / arm.period_s - 1e-6) * arm.period_s for end in ends)
    assert times[modulo.SENT, 0] == pytest.approx(max(ready, sent))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "update", "limit", "weight", "least"),
    [
        *(("stash", 3, limit, 100, 15) for limit in (5000, 7000, 9000)),
        *(("2bw", 9, limit, 300, 16) for limit in (7000, 9000, 12_000)),
        *(("vertical", 3, limit, 300, 16) for limit in (7000, 9000, 12_000)),
    ],
)
def test_plans_run_at_the_period_and_in_the_memory_that_were_promised(
    name: str, update: int, limit: int, weight: int, least: int
) -> None:
    """Of passes, stashes that wait, copies that share a host link and versions of weights the simulation knows no
    more."""
    given = problem(limit, devices=3, batches=54 if update == 9 else 36, update=update, weight=weight)
    split, method = Split(given, ((0, 1, 2),)), Method(name, update, 9)
    case, kept, in_time = case_of(split, method), list[bool](), list[bool]()
    choices = (modulo.KEEP, modulo.LATE, modulo.RECOMPUTE, modulo.HOST)
    for seed in range(20):
        rng = random.Random(seed)
        stages = [(end, rng.randrange(3), rng.randrange(3), rng.choice(choices)) for end in (2, 4, 6, 8, 10, 12)]
        arm = modulo.Arm.of(case, stages, 9, 1e3, seed)
        arm.improve(modulo.Allowed(choices, True), 2000, modulo.Heat(0.05, 0.001), GO_ON)
        if arm.period_s <= arm.cap_s and (found := built(split, method, arm)) is not None:
            fit = not excess_for_long(found.plan).total
            in_time.append(period_seconds(found.plan) <= arm.period_s * 1.001)
            kept.append(fit and in_time[-1])
    assert sum(in_time) >= 19
    assert sum(kept) >= least


@pytest.mark.long
def test_no_memory_at_all_is_infeasible() -> None:
    for limit in (0, 1):
        given = problem(limit)
        found = plan(given.model, given.cluster, given.workload, SearchSpace(asynchronous=("stash",)), time_limit=2)
        assert found.status == "infeasible"


def test_what_is_forbidden_is_not_used() -> None:
    space = SearchSpace(asynchronous=("stash",), separate_backward=False, offload=False)
    session, _ = annealed(problem(9000), space)
    assert session.best is not None
    assert all(p.forward == p.backward for p in session.best.pipelines)
    assert "offload" not in {text for row in session.best.stash for text in row}


@pytest.mark.long
def test_the_same_seed_and_effort_give_the_same_plan() -> None:
    found = [annealed(problem(6000), SearchSpace(asynchronous=("stash",)), seed=3, effort=1.0)[0] for _ in range(2)]
    assert found[0].best is not None
    assert found[0].best == found[1].best


@pytest.mark.long
def test_the_search_finds_them_beside_everything_else() -> None:
    given, space = problem(4400), SearchSpace(asynchronous=("stash",))
    session = Session(given, space, Clock(time.monotonic() + 300, 2.0))
    search = Steady(session, with_flush)
    search.run()
    assert session.best is not None
    assert session.best_s < 24
    assert np.isfinite(search.answer().bound_s)
    assert not check(session.best)


def test_a_device_holds_one_prediction_at_a_time() -> None:
    """There and back on two devices, each stage's predicted weights for its own passes: all at once do not fit."""
    layers = [
        Layer(f"l{k}", x, x, x, parameter_bytes=4_000_000, stash_bytes=500_000, output_bytes=1)
        for k, x in enumerate((1.0, 1.0, 3.0, 3.0))
    ]
    cluster, workload = Cluster.uniform(2, 40_000_000), Workload(24, "adam", update_every=4)
    space = SearchSpace(asynchronous=("pipeoptim",), recompute=False)
    found = plan(ModelGraph.chain(layers), cluster, workload, space, time_limit=8).plan
    assert found is not None
    assert check(found) == []
    assert found.forecast is not None
    assert found.forecast.objective_s == pytest.approx(12.0, rel=0.05)  # half of all work; neighbours alone: 18
    assert max(found.forecast.peak_bytes) + 4_000_000 > 40_000_000  # with a second one
