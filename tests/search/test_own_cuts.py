"""Forwards and backwards cut on their own, without a flush: by hand, and against what is searched besides."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner import check
from contraflow.planner.bounds import two_sides
from contraflow.planner.lower.repetition import repeat
from contraflow.planner.plan import Kind, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.common.answer import Result
from contraflow.planner.search.driver import plan as search
from contraflow.planner.simulate import evaluate

STASH = SearchSpace(asynchronous=("stash",), pipelines=1)
LINK = Link(1000.0)


def chain(times: list[tuple[float, float]], **sizes: int) -> ModelGraph:
    """Layers of these seconds forward and backward."""
    sizes = {"parameter_bytes": 0, "stash_bytes": 10, "output_bytes": 1, **sizes}
    return ModelGraph.chain(
        [Layer(f"l{k}", f, b, separable=False, **sizes) for k, (f, b) in enumerate(times)]  # type: ignore[arg-type]
    )


def solved(model: ModelGraph, cluster: Cluster, space: SearchSpace = STASH, limit: int | None = None) -> Result:
    """The search's answer; its plan passes the checker, runs longer too, and its bounds lie below it."""
    workload = Workload(24, memory_limit_bytes=limit)
    found = search(model, cluster, workload, space, time_limit=60, workers=1, deterministic_limit=0.1)
    if found.plan is not None:
        assert check(found.plan) == []
        longer = repeat(found.plan, 60)
        assert check(longer.with_forecast(evaluate(longer))) == []
        assert found.bound_s <= period(found)
        assert found.among is None or found.among.bound_s <= period(found)
    return found


def period(found: Result) -> float:
    """Seconds a micro-batch."""
    assert found.plan is not None
    assert found.plan.forecast is not None
    return found.plan.forecast.objective_s


# ---------------------------------------------------------------- worked out by hand


def test_own_cuts_beat_one_cut_for_both() -> None:
    """Forwards of 6 s on one device, backwards of 6 s each on two, say: no stage of both sides balances as well."""
    found = solved(chain([(1, 6), (1, 1), (4, 5)]), Cluster.uniform(3, link=LINK))
    assert (found.status, period(found)) == ("optimal", pytest.approx(6.0))
    assert found.plan is not None
    (pipeline,) = found.plan.pipelines
    assert pipeline.forward != pipeline.backward


def test_a_device_may_run_a_piece_of_both() -> None:
    """Two layers on two devices: F of the one and B of the other, 5 s each; stages of one device take 4 and 6 s."""
    found = solved(chain([(3, 1), (2, 4)]), Cluster.uniform(2, link=LINK))
    assert (found.status, period(found)) == ("optimal", pytest.approx(5.0))


def test_the_last_layer_is_divided_where_it_is_the_slowest() -> None:
    """Three layers of 1 and 2 s and one of 4 and 8 s on four devices: its backward alone takes 8 s."""
    found = solved(chain([(1, 2), (1, 2), (1, 2), (4, 8)]), Cluster.uniform(4, link=LINK))
    assert (found.status, period(found)) == ("optimal", pytest.approx(8.0))


def test_separate_devices_may_be_forbidden() -> None:
    """As in every search."""
    space = replace(STASH, separate_backward=False)
    found = solved(chain([(1, 2), (1, 2), (1, 2), (4, 8)]), Cluster.uniform(4, link=LINK), space)
    assert period(found) == pytest.approx(12.0)


def test_stashes_wait_where_there_is_room() -> None:
    """Neither device of the first layer holds all stashes on their way to its backward; both together do."""
    model = chain([(2, 4), (2, 4), (2, 4)], stash_bytes=40)
    found = solved(model, Cluster.uniform(5, link=LINK), SearchSpace("pipefb", recompute=False), limit=165)
    assert period(found) == pytest.approx(4.0)
    assert found.plan is not None
    assert max(found.plan.forecast.peak_bytes) <= 165
    owner = found.plan.orders[found.plan.pipelines[0].backward[0]]
    asked = next(k for k, op in enumerate(owner) if op.kind is Kind.RECV_S and op.micro_batch == 12)
    done = [op.micro_batch for op in owner[:asked] if op.kind is Kind.B and op.stage == 0]
    assert 12 - max(done) <= 4


# ---------------------------------------------------------------- bounds


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_the_bound_of_two_sides_is_the_least_of_all_cuts(seed: int) -> None:
    """Against every cut of both chains and every split of the devices."""
    rng = random.Random(seed)
    times = [(rng.uniform(0, 3), rng.uniform(0, 3)) for _ in range(rng.randint(1, 5))]
    devices = rng.randint(2, 5)
    problem = Problem(chain(times), Cluster.uniform(devices), Workload(8))

    def least(items: list[float], count: int) -> float:
        layers = len(items)
        return min(
            max(sum(items[a:b]) for a, b in itertools.pairwise((0, *cuts, layers)))
            for pieces in range(1, min(count, layers) + 1)
            for cuts in itertools.combinations(range(1, layers), pieces - 1)
        )

    forward, backward = ([pair[side] for pair in times] for side in (0, 1))
    best = min(max(least(forward, k), least(backward, devices - k)) for k in range(1, devices))
    assert two_sides(problem, STASH) == pytest.approx(best)


# ---------------------------------------------------------------- never worse


def problem_of(seed: int) -> tuple[ModelGraph, Cluster, int | None]:
    """Random layers, links, memory and devices."""
    rng = random.Random(seed)
    devices = rng.randint(3, 6)
    layers = [
        Layer(
            f"l{k}",
            rng.choice([1.0, rng.uniform(0.2, 3)]),
            rng.choice([2.0, rng.uniform(0.2, 5)]),
            separable=False,
            parameter_bytes=rng.choice([0, 5, 20]),
            stash_bytes=rng.randint(2, 30),
            output_bytes=rng.choice([0, 1, 3]),
        )
        for k in range(rng.randint(2, 9))
    ]
    total = sum(x.parameter_bytes * 3 + x.stash_bytes * 4 for x in layers)
    limit = rng.choice([None, None, int(total * rng.uniform(0.5, 1.5))])
    link, host = Link(rng.choice([5.0, 20.0, 500.0]), rng.choice([0.0, 0.05])), Link(rng.choice([10.0, 100.0]), 0.01)
    node = NodeGroup(1, devices, DeviceType("toy", 1 << 30), link, host_link=host)
    return ModelGraph.chain(layers), Cluster((node,)), limit


@pytest.mark.slow
@settings(max_examples=2, derandomize=True)
@given(st.integers(0, 10**6))
def test_never_worse_than_without(seed: int) -> None:
    """Than forward nodes and backward nodes by name, and than one device a stage."""
    model, cluster, limit = problem_of(seed)
    best = solved(model, cluster, STASH, limit)
    for other in (SearchSpace("pipefb"), replace(STASH, separate_backward=False)):
        found = solved(model, cluster, other, limit)
        if found.plan is not None:
            assert best.plan is not None
            assert period(best) <= period(found) * (1 + 1e-6)
