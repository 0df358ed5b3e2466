"""Data parallelism with several stages a device: sums of gradients run beside the backwards that are left."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from instances import step_of

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.search import plan
from contraflow.planner.search.common import Clock, Session, nearby_cuts
from contraflow.planner.search.driver import Search
from contraflow.planner.search.named import move_ends, stage_ends
from contraflow.planner.search.named.finer import finer, in_pieces
from contraflow.planner.search.named.last_weights import weights_by_sums
from contraflow.planner.search.named.stage_ends import _neighbours, _plainer


def planned(layers: int, batches: int, space: SearchSpace = SearchSpace()) -> tuple[float, int]:  # noqa: B008
    """Step and stages of the plan for two devices that sum 4 bytes a layer at 4 bytes a second."""
    model = ModelGraph.chain(
        [Layer(f"l{k}", 1.0, 1.0, separable=False, parameter_bytes=4, output_bytes=400) for k in range(layers)]
    )
    cluster = Cluster.uniform(2, 1 << 20, Link(4.0))
    found = plan(model, cluster, Workload(batches), space, 10, deterministic_limit=0.2)
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.bound_s <= step_of(found) * (1 + 1e-9)
    return step_of(found), len(found.plan.stages)


def test_sums_overlap_the_backwards_that_are_left() -> None:
    """Two layers: in one stage 4 s of passes and 2 of sums; in two the first sum runs beside the second backward."""
    assert planned(2, 2) == (5.0, 2)


def test_of_three_layers_only_the_first_ones_sum_comes_last() -> None:
    assert planned(3, 4)[0] == pytest.approx(13.0)


def test_a_plan_of_single_layers_has_no_finer_one() -> None:
    model = ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, parameter_bytes=4) for k in range(2)])
    found = plan(model, Cluster.uniform(2, 1 << 20, Link(4.0)), Workload(2), SearchSpace("1f1b"), 5)
    assert found.plan is not None
    assert finer(found.plan, 2) is None


def around(found: Plan) -> list[Plan]:
    return [assemble(candidate, orders, "search") for candidate, orders in _neighbours(found)]


def step_s(found: Plan) -> float:
    assert found.forecast is not None
    return found.forecast.step_s


def replicas() -> Plan:
    """Six layers as one stage on each of two devices, whose sums take as long as a pass of three layers."""
    model = ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=4 + k, output_bytes=400) for k in range(6)])
    problem = Problem(model, Cluster.uniform(2, 1 << 20, Link(8.0)), Workload(4))
    layers = tuple(layer.name for layer in model.layers)
    pipelines = tuple(Pipeline((d,), (d,), (d, d + 2)) for d in range(2))
    orders = [[Op(kind, 0, m) for m in (d, d + 2) for kind in (Kind.F, Kind.I, Kind.W)] for d in range(2)]
    return assemble(Candidate(problem, (layers,), pipelines), orders, "search")


def session_with(found: Plan) -> Session:
    now = time.monotonic()
    session = Search(found.problem, SearchSpace(), Clock(now + 60, None, now), 0, 1, None).session
    assert session.offer(replace(found, problem=session.problem), "hint")
    return session


def test_ends_of_stages_on_one_device_move_come_and_go() -> None:
    """Every neighbour is a plan of the same layers; from one stage a device the way leads to sums that overlap."""
    found = replicas()
    layers = found.stages[0]
    visited = [step_s(found)]
    while True:
        beside = around(found)
        assert all(check(other) == [] for other in beside)
        assert all(sum(other.stages, ()) == layers for other in beside)
        best = min(beside, key=step_s)
        if step_s(best) >= visited[-1]:
            break
        found = best
        visited.append(step_s(best))
    assert len(visited) > 2
    assert len(found.stages) > 1
    merged = next(other for other in around(found) if len(other.stages) < len(found.stages))
    assert sum(map(len, merged.stages)) == len(layers)


def test_the_descent_ends_where_no_neighbour_is_shorter() -> None:
    session = session_with(replicas())
    move_ends(session)
    assert session.best is not None
    assert session.best_s < step_s(replicas())
    assert session.best_s <= min(map(step_s, around(session.best))) * (1 + 1e-9)


def test_what_is_plainer_is_a_start_of_its_own() -> None:
    """Three stages a device with halves of backwards, as one stage a device, and that with whole backwards."""
    found = replicas()
    layers = found.stages[0]
    split = assemble(*in_pieces(found, [[layers[:2], layers[2:4], layers[4:]]]), "search")
    one, whole = _plainer(split)
    assert one.stages == whole.stages == (layers,)
    assert step_s(one) == step_s(found)
    assert {op.kind for order in whole.orders for op in order} & {Kind.I, Kind.W, Kind.B} == {Kind.B}
    assert check(one) == check(whole) == []
    assert [other.stages for other in _plainer(whole)] == []


def test_descents_go_on_where_time_had_ended_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With time for six rounds a call, by a clock that ticks when it is read, as far as with time for all."""
    once, again = session_with(replicas()), session_with(replicas())
    move_ends(once)
    monkeypatch.setattr(stage_ends, "time", SimpleNamespace(monotonic=count().__next__))
    calls = 0
    while not calls or again.rounds.descents:
        move_ends(again)
        calls += 1
    assert calls > 1
    assert again.best_s <= once.best_s * (1 + 1e-9)


def test_layers_are_handed_on_from_device_to_device() -> None:
    """The first of three devices has the first and the last stage: loads stay even only if all three ends move."""
    model = ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, 1.0) for k in range(12)])
    names = [layer.name for layer in model.layers]
    stages = tuple(tuple(names[a:b]) for a, b in ((0, 2), (2, 6), (6, 10), (10, 12)))
    problem = Problem(model, Cluster.uniform(3, 1 << 20), Workload(2))
    candidate = Candidate(problem, stages, (Pipeline((0, 1, 2, 0), (0, 1, 2, 0), (0, 1)),))
    busy_s = 4 * 3.0 * 2
    assert [[len(stage) for stage in cut] for cut in nearby_cuts(candidate, busy_s + 0.1)] == [
        [1, 4, 4, 3],
        [3, 4, 4, 1],
    ]
    assert nearby_cuts(candidate, busy_s) == []
    everywhere = nearby_cuts(candidate, math.inf)
    assert [2, 3, 5, 2] in [[len(stage) for stage in cut] for cut in everywhere]
    assert all(sum(cut, ()) == tuple(names) and all(cut) for cut in everywhere)


def test_weight_halves_at_the_end_come_in_the_order_of_their_sums() -> None:
    """Only those behind all others of their device; the stage with most to sum first."""
    found = replicas()
    split, orders = in_pieces(found, [[found.stages[0][:1], found.stages[0][1:5], found.stages[0][5:]]])
    mixed = [[*order[:-3], order[-1], order[-3], order[-2]] for order in orders]
    for order, sorted_ in zip(mixed, weights_by_sums(split, mixed), strict=True):
        assert [op.stage for op in sorted_[-3:]] == [1, 2, 0]
        assert sorted_[:-3] == order[:-3]


def test_a_plan_to_start_from_may_list_its_layers_in_any_order() -> None:
    """A diamond whose stages are written backwards: ends move by the outermost layers, wherever they are written."""
    chain = ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=100, output_bytes=4) for k in range(8)])
    ends = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (6, 7)]
    model = ModelGraph.from_dict({**chain.to_dict(), "edges": [[f"l{a}", f"l{b}"] for a, b in ends]})
    cluster, workload = Cluster.uniform(2, 1 << 20, Link(400.0)), Workload(8)
    known = plan(model, cluster, workload, time_limit=20, deterministic_limit=0.3).plan
    assert known is not None
    backwards = replace(known, stages=tuple(stage[::-1] for stage in known.stages))
    found = plan(model, cluster, workload, time_limit=20, deterministic_limit=0.3, hint=backwards).plan
    assert found is not None
    assert check(found) == []
    assert step_s(found) <= step_s(known)
