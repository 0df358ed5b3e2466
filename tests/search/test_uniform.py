"""Uniform grids: no plan of a point is below its bound, the best is that of a grid made by hand, and calls go on."""

from __future__ import annotations

import importlib
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contraflow.planner import (
    Choice,
    Cluster,
    Effort,
    Layer,
    Link,
    ModelFamily,
    ModelGraph,
    SearchSpace,
    Workload,
    check,
    plan_family,
)
from contraflow.planner.partition import Cuts
from contraflow.planner.plan import Kind, Problem
from contraflow.planner.problem.cluster import DeviceType, NodeGroup
from contraflow.planner.schedules import Layout, folded
from contraflow.planner.search import joint
from contraflow.planner.search.common import Clock, Groups, Session, equal_groups
from contraflow.planner.search.named import uniform
from contraflow.planner.search.named.portfolio import Tried, try_layout

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
cases: Any = importlib.import_module("jobs_cases")
grid: Any = importlib.import_module("jobs_grid")


def drawn(seed: int) -> tuple[ModelGraph, Cluster, Workload]:
    """Unequal layers on two or four nodes whose network is slower than what is inside them."""
    rng = random.Random(seed)
    layers = [
        Layer(
            f"l{k}", t, 2 * t, separable=False, stash_bytes=rng.randint(20, 60), output_bytes=rng.randint(1, 9),
            parameter_bytes=rng.randint(50, 400), input_bytes=9,
        )
        for k, t in enumerate(rng.uniform(0.6, 1.4) for _ in range(rng.randint(12, 20)))
    ]  # fmt: skip
    count = rng.choice((2, 4))
    group = NodeGroup(count, 8 // count, DeviceType("d", 1 << 30), Link(2000.0, 0.001))
    cluster = Cluster((group,), Link(rng.choice((100.0, 400.0)), 0.01))
    memory = rng.choice((None, 6000, 4500))
    return ModelGraph.chain(layers), cluster, Workload(rng.choice((32, 48)), "adam", memory_limit_bytes=memory)


def session_of(seed: int) -> Session:
    """A search that has tried nothing."""
    return Session(Problem(*drawn(seed)), SearchSpace(), Clock(math.inf, 1.0))


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_a_point_is_shorter_than_its_floor(seed: int) -> None:
    session, floors = session_of(seed), []
    for point in list(uniform._points(session))[seed::7]:
        session.incumbent.start_from(None)
        for layout in point.layouts():
            try_layout(session, layout, point.cuts, layout.name, point.policy, point.of.groups)
        if session.best is not None:
            assert not check(session.best)
            floors.append(point.floor_s)
            assert session.best_s >= point.floor_s * (1 - 1e-9)
    assert floors


@pytest.mark.parametrize("held", [3, 4, 5])
@pytest.mark.parametrize("uneven", [0.0, 0.3])
def test_no_plan_of_a_point_is_shorter_than_its_stashes_stay(held: int, uneven: float) -> None:
    """Down and up on eight devices that hold few stashes: what they wait for says more than their work does."""
    rng = random.Random(held)
    layers = [
        Layer(f"l{k}", t, t, t, stash_bytes=100, output_bytes=1)
        for k, t in enumerate(1 + uneven * rng.random() for _ in range(16))
    ]
    workload = Workload(48, memory_limit_bytes=100 * held + 20)
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(8, 1 << 20, Link()), workload)
    session = Session(problem, SearchSpace(), Clock(math.inf, 1.0))
    point = next(p for p in uniform._points(session) if p.folded and len(p.of.groups) == 1)
    for layout in point.layouts():
        try_layout(session, layout, [point.even], layout.name, point.policy, point.of.groups)
    assert session.best is not None
    assert point.floor_s < point.held_s(point.even) <= session.best_s * (1 + 1e-9)
    assert point.likely_s >= point.held_s(point.even) > session.best_s / 2


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_a_point_is_shorter_than_the_messages_on_its_busiest_link(seed: int) -> None:
    """Links that are slow beside the layers, in nodes and between them; some plan takes at most 1.3 times that."""
    model, cluster, workload = drawn(seed)
    bare = ModelGraph.chain([replace(layer, parameter_bytes=0) for layer in model.layers])
    slow = replace(cluster, nodes=(replace(cluster.nodes[0], link=Link(2.0)),), network=Link(0.4))
    problem = Problem(bare, slow, Workload(workload.micro_batches))
    session, nearest = Session(problem, SearchSpace(), Clock(math.inf, 1.0)), math.inf
    for point in list(uniform._points(session))[seed::9]:
        cuts, least_s = point.even, point.busiest_link_s(point.even)
        for layout in point.layouts():
            session.incumbent.start_from(None)
            tried = try_layout(session, layout, [cuts], layout.name, point.policy, point.of.groups)
            if tried.simulated and least_s:
                assert session.best_s >= least_s * (1 - 1e-9)
                nearest = min(nearest, session.best_s / least_s)
    assert nearest < 1.3


def test_backwards_stay_whole_where_that_is_asked_for() -> None:
    """Layers that could be split, under the schedules that split them."""
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, output_bytes=1) for k in range(24)]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(8, link=Link(1e3, 1e-3)), Workload(24))
    for split in (True, False):
        session = Session(problem, SearchSpace(split_backward=split, replicas=1), Clock(math.inf, 1.0))
        uniform.run_uniform(session)
        assert session.best is not None
        assert any(op.kind is Kind.I for order in session.best.orders for op in order) == split


@pytest.mark.parametrize("seed", range(4))
def test_they_are_no_worse_than_a_grid_that_was_made_by_hand(seed: int) -> None:
    """That of the benchmark, which shares no code with the search."""
    model, cluster, workload = drawn(seed)
    costs = cases.Costs("chain", "custom", "fp32", "1", "1", "")
    best = grid.best_grid(
        cases.Job("a chain", costs, cluster, workload.micro_batches, workload), [ModelFamily((model,))], False
    )
    assert best.plan is not None
    session = session_of(seed)
    uniform.run_uniform(session)
    assert session.best is not None
    assert not check(session.best)
    assert session.best_s <= best.seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_orders_made_for_costs_are_those_of_one_group_on_all_of_them(seed: int) -> None:
    """Without parameters to sum, equal groups take what one of them takes for its share, and hold no more."""
    rng = random.Random(seed)
    layers = [
        Layer(f"l{k}", t, t, 0.7 * t, stash_bytes=9, weight_stash_bytes=4, output_bytes=3)
        for k, t in enumerate(rng.uniform(0.6, 1.4) for _ in range(8))
    ]
    found: dict[int, dict[str, float]] = {1: {}, 2: {}}
    for width, steps in found.items():
        cluster = Cluster.uniform(4 * width, 60, Link(50.0, 0.01))
        problem = Problem(ModelGraph.chain(layers), cluster, Workload(9 * width))
        groups = tuple(tuple(range(4 * g, 4 * g + 4)) for g in range(width))
        for layout in folded(4, 9):
            session = Session(problem, SearchSpace(), Clock(math.inf, 1.0))
            assert try_layout(session, layout, [(1, 2, 3, 4, 5, 6, 7)], layout.name, groups=groups).simulated
            if session.best is not None:
                assert not check(session.best)
                steps[layout.name] = session.best_s
    assert found[1] == pytest.approx(found[2])
    assert min(found[1], key=lambda name: found[1][name]) == "v-auto"


def test_replicas_together_are_a_layout_of_their_own_only_between_nodes() -> None:
    model, cluster, workload = drawn(0)
    assert len(equal_groups(Problem(model, cluster, workload), 4)) == 2
    assert equal_groups(Problem(model, Cluster.uniform(8), workload), 4) == [((0, 1), (2, 3), (4, 5), (6, 7))]


def test_another_call_goes_on_where_the_first_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points of a family take turns."""
    tried: list[tuple[object, ...]] = []
    before = uniform.try_layout

    def noted(session: Session, layout: Layout, cuts: list[Cuts], phase: str, policy: str, groups: Groups) -> Tried:
        tried.append((layout.name, layout.orders, layout.pipelines, tuple(cuts), policy, groups))
        return before(session, layout, cuts, phase, policy, groups)

    monkeypatch.setattr(uniform, "try_layout", noted)
    monkeypatch.setattr(uniform, "COUNT", _Few())
    session, steps = session_of(2), []
    for _ in range(4):
        uniform.run_uniform(session)
        steps.append(session.best_s)
    assert steps == sorted(steps, reverse=True)
    assert len(tried) > _Few.uniform
    assert len(set(tried)) == len(tried)


class _Few:
    uniform, deepest = 3, 4


def test_all_members_of_a_family_begin_with_the_best_of_their_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that can be best are tried before any member is searched, and the best of each member's own is found."""
    model, cluster, workload = drawn(3)
    both = [
        replace(layer, forward_s=1.7 * layer.forward_s, backward_input_s=3.4 * layer.forward_s)
        for layer in model.layers
    ]
    family = ModelFamily((model, ModelGraph.chain(both, micro_batch_size=2)))
    alone = [Session(p, SearchSpace(), Clock(math.inf, 1.0)) for p in _problems(family, cluster, workload)]
    for session in alone:
        uniform.run_uniform(session)
    heard: list[float] = []
    unshared = SearchSpace(shard_optimizer=False)
    monkeypatch.setattr(joint._Joint, "_some", lambda self, *_: heard.append(self.best.step_s) or _stop())
    with pytest.raises(_Stopped):
        plan_family(family, cluster, workload, Choice(workload.micro_batches), unshared, Effort(60, 0, 1, 1.0))
    assert heard == [min(session.best_s for session in alone)]


def _problems(family: ModelFamily, cluster: Cluster, workload: Workload) -> Iterator[Problem]:
    for model in family.members:
        yield Problem(model, cluster, replace(workload, micro_batches=workload.micro_batches // model.micro_batch_size))


class _Stopped(Exception):
    pass


def _stop() -> None:
    raise _Stopped
