"""More effort never brings less: a shorter run is the beginning of a longer one with the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, plan
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search.common import ROUND, Clock

KEEP_ALL = SearchSpace(offload=False, recompute=False)
SPACES = {
    "one pipeline": SearchSpace(pipelines=1, offload=False, recompute=False),
    "two directions": SearchSpace(pipelines=2, offload=False, recompute=False),
    "all that may become of a stash": SearchSpace(pipelines=1),
    "groups of devices": KEEP_ALL,
}
NAMES = list(SPACES)


def bests(space: SearchSpace, seed: int, limit: float) -> list[float]:
    """The steps of the best plans one after the other, on a random chain of uneven layers."""
    rng = random.Random(seed)
    layers = [
        Layer(f"l{k}", *(rng.uniform(0.5, 1.5) for _ in range(3)), stash_bytes=16, weight_stash_bytes=8)
        for k in range(8)
    ]
    node = NodeGroup(1, 4, DeviceType("one", rng.choice((48, 64, 96))), Link(latency_s=0.1), None, Link(100.0, 0.01))
    found: list[float] = []
    plan(
        ModelGraph.chain(layers), Cluster((node,)), Workload(6), space, 600, seed, 1, limit,
        on_progress=lambda event: found.append(event.best_step_s) if event.best_step_s else None,
    )  # fmt: skip
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_a_shorter_run_is_the_beginning_of_a_longer_one(name: str) -> None:
    """Plan for plan, whatever the space; so a longer one is never worse."""
    runs = [bests(SPACES[name], 2, limit) for limit in (0.1, 0.6)]
    assert len(runs[-1]) > len(runs[0])
    assert runs[-1] == sorted(runs[-1], reverse=True)
    assert runs[0] == runs[-1][: len(runs[0])]


def efforts(limit: float, uses: float) -> Iterator[float]:
    """Efforts of the rounds of a search that uses so much of each."""
    clock = Clock(1e12, limit)
    for _ in clock.rounds():
        assert clock.effort is not None
        yield clock.effort
        for _ in range(4):
            if clock.meter.go():
                clock.meter.count(uses * clock.effort / 4)


def test_rounds_do_not_depend_on_the_limit_but_for_their_number() -> None:
    """The first has none, for the quick plans; also where a search uses little, they come to an end."""
    assert list(efforts(0.0, 1.0)) == [0.0]
    assert list(efforts(3.0, 1.0)) == [0.0, ROUND.effort, 2 * ROUND.effort, 4 * ROUND.effort, 8 * ROUND.effort]
    assert list(efforts(3.0, 0.0))[:5] == list(efforts(3.0, 1.0))
    assert list(Clock(1e12).rounds()) == [None]


def test_a_piece_of_work_that_has_begun_comes_to_its_end() -> None:
    """And none begins after the limit; then the search is over."""
    clock = Clock(1e12, 1.0)
    next(rounds := clock.rounds())
    assert clock.meter.go()
    clock.meter.count(1.5)
    assert not clock.over(planned=True)
    assert not clock.meter.go()
    assert clock.over(planned=True)
    assert list(rounds) == []
