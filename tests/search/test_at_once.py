"""A plan before its bound: what a call has in little time, and what calls leave behind."""

from __future__ import annotations

import gc
import math
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from instances import uniform

from contraflow.planner import Cluster, Layer, ModelGraph, Progress, SearchSpace, Workload, bounds, check, plan
from contraflow.planner.basics import OutOfTime, until
from contraflow.planner.plan import Problem
from contraflow.planner.search import driver


def small(seed: int) -> Problem:
    """Uneven layers on two to four devices with room for one to two times what 1F1B has in flight, or less."""
    rng = random.Random(seed)
    count, devices, batches = rng.randint(4, 12), rng.randint(2, 4), rng.randint(1, 16)
    layers = [
        Layer(f"layer{k}", *(rng.uniform(0.5, 1.5) for _ in range(3)), stash_bytes=16, weight_stash_bytes=8)
        for k in range(count)
    ]
    memory = round(16 * count * rng.choice((0.6, 1.0, 2.0)))
    return Problem(ModelGraph.chain(layers), Cluster.uniform(devices, memory), Workload(batches))


@pytest.mark.parametrize("schedule", ["search", "1f1b"])
@pytest.mark.parametrize("seed", range(4))
def test_there_is_a_plan_where_there_is_no_time_for_a_bound(
    monkeypatch: pytest.MonkeyPatch, seed: int, schedule: str
) -> None:
    """It runs, fits, and says what is certain of every plan: the work on all devices, or the longest path."""

    def late(*_: object) -> float:
        raise OutOfTime("the deadline came in the bound")

    problem = small(seed)
    monkeypatch.setattr(driver, "asked", late)
    found = plan(problem.model, problem.cluster, problem.workload, SearchSpace(schedule), deterministic_limit=0.1)
    assert found.plan is not None
    assert not check(found.plan)
    least_s = min(bounds.any_plan(problem), found.seconds or math.inf)
    assert least_s * (1 - 1e-6) <= found.bound_s <= (found.seconds or 0.0)


@pytest.mark.parametrize("schedule", ["search", "gpipe"])
def test_without_a_bound_none_is_looked_for(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    """And what is told of the plan is less, never more, than with it."""
    problem, space = small(2), SearchSpace(schedule)
    asked = (problem.model, problem.cluster, problem.workload, space)
    proven = plan(*asked, deterministic_limit=0.01)
    monkeypatch.setattr(bounds, "space", None)
    found = plan(*asked, deterministic_limit=0.01, bound=False)
    assert found.plan is not None
    assert not check(found.plan)
    assert 0 < found.bound_s <= proven.bound_s
    assert found.bound_s == pytest.approx(min(bounds.any_plan(problem), found.seconds or math.inf))


def test_what_no_device_holds_is_infeasible_without_a_bound_too() -> None:
    heavy = uniform(4, 1, 2, parameter_bytes=1000)
    found = plan(heavy, Cluster.uniform(2, 100), Workload(2), SearchSpace(), 20, bound=False)
    assert (found.status, found.plan) == ("infeasible", None)


@pytest.mark.parametrize("space", [SearchSpace(), SearchSpace("search", 1, False, False, True, False)])
def test_at_the_deadline_a_bound_is_what_is_proven_by_then(space: SearchSpace) -> None:
    """Never more than with time."""
    for seed in range(8):
        problem = small(seed)
        with until(time.monotonic() - 1):
            early_s = bounds.space(problem, space)
        whole_s = bounds.space(problem, space)
        assert early_s == whole_s or bounds.any_plan(problem, space.split_backward) <= early_s <= whole_s


def test_calls_leave_nothing_behind() -> None:
    """Objects that a call makes are gone after it."""
    problem, counts = small(1), list[int]()
    for calls in (4, 6, 6):
        for _ in range(calls):
            plan(problem.model, problem.cluster, problem.workload, SearchSpace("1f1b"), bound=False)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < 200, counts


@pytest.mark.parametrize("schedule", ["search", "1f1b"])
def test_who_is_told_of_progress_may_end_the_search(schedule: str) -> None:
    """With the plan that it was told of; another call in the same thread is not ended."""
    problem = small(1)
    asked = (problem.model, problem.cluster, problem.workload, SearchSpace(schedule), 60)
    heard: list[Progress] = []

    def enough(event: Progress) -> bool:
        heard.append(event)
        return event.step_s is not None

    found = plan(*asked, on_progress=enough)
    assert len([event for event in heard if event.step_s is not None]) == 1
    assert found.seconds == heard[-1].step_s
    assert found.plan is not None
    assert not check(found.plan)
    again = plan(*asked, deterministic_limit=0.01)
    assert (again.seconds or math.inf) <= (found.seconds or 0.0)


def test_one_search_of_several_threads_is_ended_alone() -> None:
    """What one caller's listener says does not end the other's call."""
    problem = small(1)
    counts = {True: 0, False: 0}

    def planned(stops: bool) -> None:
        def heard(event: Progress) -> bool:
            counts[stops] += event.step_s is not None
            return stops

        plan(problem.model, problem.cluster, problem.workload, deterministic_limit=0.01, on_progress=heard)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(planned, (True, False)))
    assert counts[True] == 1 < counts[False]
