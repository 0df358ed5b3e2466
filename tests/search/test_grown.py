"""Rules of the dispatcher: what they run fits and takes what they say; what is good on few devices is so on more."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, bounds, check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Pipeline, Problem
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.periodic import search_grown
from contraflow.planner.search.periodic.cases import case_of, compute_orders
from contraflow.planner.search.periodic.coarse import coarse, in_legs
from contraflow.planner.search.periodic.grown import Line, Way, sizes
from contraflow.planner.search.periodic.kernel import NEVER
from contraflow.planner.search.periodic.tables import Case

SHARE = 1 << 12
HEAT = (0.006, 0.0002)


def problem(devices: int, chunks: int, batches: int, memory: float, costs: tuple[float, ...]) -> Problem:
    """So many layers a device; memory in shares of a device's stash."""
    f, i, w, latency = costs
    layers = [
        Layer(f"l{k}", f / chunks, i / chunks, w / chunks, True, stash_bytes=SHARE, weight_stash_bytes=SHARE // 2)
        for k in range(chunks * devices)
    ]
    workload = Workload(batches, memory_limit_bytes=int(memory * chunks * SHARE))
    return Problem(ModelGraph.chain(layers), Cluster.uniform(devices, 1 << 40, Link(latency_s=latency)), workload)


def structure(of: Problem, chunks: int, back: bool) -> Candidate:
    """A layer a stage, round and round, or back and forth."""
    devices = tuple(range(len(of.cluster)))
    route = tuple(d for k in range(chunks) for d in (devices[::-1] if back and k % 2 else devices))
    stages = tuple((layer.name,) for layer in of.model.layers)
    return Candidate(of, stages, (Pipeline(route, route, tuple(range(of.workload.micro_batches))),))


def case(candidate: Candidate) -> Case:
    """What the dispatcher reads of it."""
    return case_of(candidate, frozenset(), [candidate.problem.workload.micro_batches])


@settings(max_examples=15)
@given(
    devices=st.integers(2, 5), chunks=st.integers(1, 4), back=st.booleans(), batches=st.integers(1, 10),
    memory=st.integers(1, 6), costs=st.tuples(*(st.integers(4, 50) for _ in range(4))), seed=st.integers(0, 5),
)  # fmt: skip
def test_what_is_dispatched_runs_and_fits(
    devices: int, chunks: int, back: bool, batches: int, memory: int, costs: tuple[int, ...], seed: int
) -> None:
    """Any rules that come to an end: the checker finds nothing, memory is kept, and the simulator takes no longer."""
    candidate = structure(problem(devices, chunks, batches, memory, costs), chunks, back)
    line = Line(Way(candidate, frozenset(), [case(candidate)]), seed)
    line.improve(10, 20, HEAT, line.scratched())
    if line.value >= NEVER:
        return
    work, legs = line.scratched()
    line.value = NEVER
    line.improve(0, 0, HEAT, (work, legs))
    found = assemble(candidate, compute_orders(candidate, line.way.cases[0], work, frozenset()), "rules")
    assert found.forecast is not None
    assert check(found) == []
    assert max(found.forecast.peak_bytes) <= memory * chunks * SHARE
    assert found.forecast.step_s <= line.value * line.way.cases[0].load * batches * (1 + 1e-9)


@pytest.mark.parametrize("back", [False, True])
def test_neighbours_as_one_device_are_a_smaller_problem(back: bool) -> None:
    """Of equal devices: half as many, with half the memory and half the micro-batches."""
    costs = (100, 120, 80, 5)
    whole, half = (case(structure(problem(n, 4, m, n, costs), 4, back)) for n, m in ((12, 48), (6, 24)))
    assert in_legs(whole)
    for one, other in zip(coarse(whole, 6), half, strict=True):
        np.testing.assert_allclose(one, other)


def test_unequal_neighbours_are_one_device_of_what_they_have_on_average() -> None:
    """Seven devices as three: work and memory of all stay what they were, in proportion to the devices."""
    of = case(structure(problem(7, 2, 14, 7, (100, 120, 80, 5)), 2, True))
    of = of._replace(takes=np.arange(1.0, len(of.takes) + 1))
    few = coarse(of, 3)
    groups = [(0, 1, 2), (3, 4), (5, 6)]
    for group, (low, high) in zip(groups, pairwise(few.first_mine[0]), strict=True):
        mine = few.takes[few.mine[0, low:high]].sum()
        assert mine == pytest.approx(np.mean([of.takes[of.device == d].sum() for d in group]))
    assert few.batches.tolist() == [6]


def test_rules_of_few_devices_serve_many() -> None:
    """Looked for with 12 devices and 48 micro-batches, they lose less than 3 % with 48 and 192."""
    candidate = structure(problem(48, 4, 192, 48, (100, 120, 80, 5)), 4, back=False)
    full = case(candidate)
    way = Way(candidate, frozenset(), [*(coarse(full, few) for few in sizes(48)), full])
    line = Line(way, 0)
    line.improve(40, 200, HEAT, line.scratched())
    small = line.value
    line.grow()
    line.grow()
    assert line.value <= 1.03 * small


def test_grown_rules_come_near_the_bound_of_their_shape() -> None:
    """24 devices, 96 micro-batches, 1F1B's memory: within 3 % of what no plan of such stages is below."""
    of = problem(24, 4, 96, 24, (100, 120, 80, 5))
    session = Session(of, SearchSpace(offload=False, recompute=False, pipelines=1), Clock(1e12, effort=4.2))
    assert search_grown(session, [tuple(range(24))])
    assert session.best is not None
    assert check(session.best) == []
    floor = bounds.candidate(structure(of, 4, back=False), None, True)
    assert session.best_s <= 1.03 * floor


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_rules_of_a_small_problem_reach_the_bound_of_six_stages_a_device(seed: int) -> None:
    """13 devices, 21 micro-batches, one and a half times 1F1B's memory: no multiple of anything, which named orders of
    many stages a device are made for, and chance decides whether blocks of six stages are looked at for long.
    """
    of = problem(13, 6, 21, 19.5, (103, 133, 69, 5))
    session = Session(of, SearchSpace(offload=False, recompute=False, pipelines=1), Clock(1e12, effort=30.0), seed)
    assert search_grown(session, [tuple(range(13))])
    assert session.best is not None
    assert check(session.best) == []
    assert session.best_s == pytest.approx(bounds.candidate(structure(of, 6, back=False), None, True))
