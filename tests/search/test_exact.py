"""The exact order search: known optima, ticks, and that its bound and its plan agree."""

from __future__ import annotations

import math

import pytest
from instances import one_layer_a_stage, uniform

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.plan import Pipeline, Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.exact.instance import common_tick
from contraflow.planner.search.exact.search import Known, solve
from contraflow.planner.search.exact.solver import Effort

FREE = Link()


def candidate(
    devices: int,
    batches: int,
    limit: int,
    two: bool,
    link: Link = FREE,
    backward: float = 2,
    **rest: int,
) -> Candidate:
    """F=1, B=2, one layer a device, a stash of one byte; one direction or both."""
    problem = Problem(uniform(devices, 1, backward, **rest), Cluster.uniform(devices, limit, link), Workload(batches))
    down, up = tuple(range(devices)), tuple(reversed(range(devices)))
    pipelines = (
        (Pipeline(down, down, tuple(range(batches - 1))), Pipeline(up, up, (batches - 1,)))
        if two
        else (Pipeline(down, down, tuple(range(batches))),)
    )
    return Candidate(problem, one_layer_a_stage(problem.model), pipelines)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("devices", "limit", "two", "expected"),
    [(8, 8, True, 36), (4, 4, True, 28), (4, 5, True, 27), (8, 8, False, 45), (4, 5, False, 33)],
)
def test_known_optima(devices: int, limit: int, two: bool, expected: int, workers: int) -> None:
    """F=1, B=2, N=8, proven without any incumbent."""
    found = solve(candidate(devices, 8, limit, two), Effort(20, 20, workers))
    assert found.closed
    assert found.bound_s == pytest.approx(expected)
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert found.plan.forecast.step_s == pytest.approx(expected)
    assert check(found.plan) == []


def test_nothing_below_the_optimum() -> None:
    """With the optimum as incumbent the search proves that there is nothing better."""
    found = solve(candidate(4, 8, 4, True), Effort(20, 20), known=Known(28.0))
    assert found.plan is None
    assert found.closed
    assert found.bound_s == pytest.approx(28)


def test_one_stash_a_device_too_many_is_infeasible() -> None:
    """A stash of 2 bytes does not fit into 1."""
    found = solve(candidate(2, 4, 1, False, stash_bytes=2), Effort(5, 5))
    assert found.closed
    assert math.isinf(found.bound_s)


def test_messages_occupy_links_and_the_bound_stays_below_the_plan() -> None:
    """Slow links: the simulated plan is never below the bound, and passes the checker."""
    slow = candidate(3, 5, 40, True, Link(4.0, 0.3), stash_bytes=4, output_bytes=3)
    found = solve(slow, Effort(5, 5))
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert check(found.plan) == []
    assert found.bound_s <= found.plan.forecast.step_s * (1 + 1e-9)


def test_ticks_are_exact_where_durations_share_a_divisor() -> None:
    """0.1, 0.2 and 0.35 are multiples of 0.05; rounding errors of sums do not matter."""
    tick = common_tick([0.1, 0.1 + 0.2, 0.35], 10.0, 50)
    assert tick.exact
    assert tick.seconds == pytest.approx(0.05)
    assert tick.down(0.1 + 0.2) == 6


def test_ticks_round_down_otherwise_by_less_than_a_thousandth_of_the_step() -> None:
    """A path of 50 ops loses at most 50 ticks."""
    tick = common_tick([1.0, math.pi, math.e], 100.0, 50)
    assert not tick.exact
    assert 50 * tick.seconds < 0.001 * 100
    assert tick.down(math.pi) * tick.seconds <= math.pi


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("latency", [0.0, 0.013])
def test_few_ticks_bound_the_step_and_lead_to_what_many_prove(two: bool, latency: float) -> None:
    """Times without a common divisor: a solve in few ticks does not close what one in many does, below its bound."""
    odd = candidate(3, 4, 2, two, Link(math.inf, latency), backward=math.e)
    quick = solve(odd, Effort(20, 20), coarse=True)
    assert quick.plan is not None
    assert quick.plan.forecast is not None
    step_s = quick.plan.forecast.step_s
    assert quick.coarse
    assert not quick.ended
    assert quick.closed == (step_s <= quick.bound_s * (1 + 1e-9))
    assert quick.bound_s * (1 - 1e-9) <= step_s < quick.bound_s * 1.02
    proven = solve(odd, Effort(20, 20), known=Known(step_s, quick.bound_s, quick.plan))
    assert proven.closed
    assert not proven.coarse
    best_s = step_s if proven.plan is None or proven.plan.forecast is None else proven.plan.forecast.step_s
    assert quick.bound_s <= best_s * (1 + 1e-9)
    assert proven.bound_s == pytest.approx(best_s, rel=1e-5)


def test_few_ticks_that_are_exact_close_a_candidate() -> None:
    """Whole durations need no second solve."""
    found = solve(candidate(4, 8, 4, True), Effort(20, 20), coarse=True)
    assert found.closed
    assert not found.coarse
    assert found.bound_s == pytest.approx(28)


def test_the_divisor_is_the_tick_only_where_ticks_are_few_enough() -> None:
    """1, 1 1/2 and 1 1/61 make 122 ticks a second: 10,980 of a step of 90 s are too many for a quick answer."""
    times = [1, 1 + 1 / 2, 1 + 1 / 61]
    many, few = common_tick(times, 90.0, 30), common_tick(times, 90.0, 30, coarse=True)
    assert many.exact
    assert many.seconds == pytest.approx(1 / 122)
    assert not few.exact
    assert few.seconds > 5 * many.seconds
