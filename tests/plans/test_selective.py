"""Selective recomputation: what of a stash is made again in little time need not be held meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from naive import assert_forecast
from random_plans import Greedy, random_candidate

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, bounds, check, plan
from contraflow.planner.basics.errors import ModelError
from contraflow.planner.graph import SELECTIVE, Candidate
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem import DeviceType, NodeGroup


def parted(layer: Layer, rng: random.Random, kept: int = 0) -> Layer:
    """Some layers drop a part of their stash, but for `kept` bytes, in less time than a forward or in more."""
    dropped = rng.choice([0, (layer.stash_bytes - kept) // 2, layer.stash_bytes - kept])
    return replace(layer, selective_bytes=dropped, selective_s=rng.choice([0.1, 1.5]) * layer.forward_s)


def random_plan(seed: int) -> Plan:
    """Random routes and orders, in which some stashes are made again in part and some as a whole."""
    rng, kept = random.Random(seed), random_candidate(seed)
    twice = {pair.second: 0 for pair in kept.problem.model.kept_twice}
    for pair in kept.problem.model.kept_twice:
        twice[pair.second] += pair.bytes
    layers = tuple(parted(layer, rng, twice.get(layer.name, 0)) for layer in kept.problem.model.layers)
    problem = replace(kept.problem, model=replace(kept.problem.model, layers=layers))
    rows = tuple(tuple(rng.choice((SELECTIVE, SELECTIVE, "recompute", "keep")) for _ in row) for row in kept.stash)
    kept = Candidate(problem, kept.stages, kept.pipelines, tuple(("keep",) * len(row) for row in rows))
    orders = Greedy(kept, random.Random(seed), True).orders()
    policy = {
        (s, m): rows[p][s] for p, line in enumerate(kept.pipelines) for s in range(len(rows[p]))
        for m in line.micro_batches
    }  # fmt: skip

    def again(order: list[Op]) -> list[Op]:
        found = []
        for op in order:
            if op.kind in (Kind.B, Kind.I) and policy[op.stage, op.micro_batch] != "keep":
                found.append(Op(Kind.R, op.stage, op.micro_batch))
            found.append(op)
        return found

    return assemble(replace(kept, stash=rows), [again(list(order)) for order in orders])


@pytest.mark.parametrize("seed", range(20))
def test_random_plans_are_sound_and_forecast_as_the_naive_account_has_them(seed: int) -> None:
    made = random_plan(seed)
    assert check(made) == []
    assert_forecast(made)


@pytest.mark.parametrize("seed", range(20))
def test_no_bound_is_above_a_plan_that_fits(seed: int) -> None:
    """Of the candidate, and of every space that it is in, under the plan's own peaks."""
    made = random_plan(seed)
    assert made.forecast is not None
    step_s, peaks = made.forecast.step_s * (1 + 1e-7), made.forecast.peak_bytes
    candidate = Candidate(made.problem, made.stages, made.pipelines, made.stash)
    assert bounds.candidate(candidate, None, True, peaks) <= step_s
    limited = replace(made.problem, workload=replace(made.problem.workload, memory_limit_bytes=max(peaks)))
    for offload in (False, True):
        space = SearchSpace(pipelines=None, offload=offload, separate_backward=offload)
        assert bounds.space(limited, space) <= step_s


def problem(part: int, room: int = 330) -> Problem:
    """Four devices; every other layer drops so much of its stash of 100 bytes for a twentieth of its forward."""
    layers = [
        Layer(
            f"l{k}", 1.0, 1.0, 1.0, stash_bytes=60 if k % 2 else 100, weight_stash_bytes=50, output_bytes=10,
            selective_bytes=0 if k % 2 else part, selective_s=0.0 if k % 2 else 0.05 * (part > 0),
        )
        for k in range(8)
    ]  # fmt: skip
    node = NodeGroup(1, 4, DeviceType("x", room), Link(1000.0))
    return Problem(ModelGraph.chain(layers), Cluster((node,)), Workload(8))


@pytest.mark.long
def test_the_search_chooses_it_and_gains() -> None:
    """A third of a step is recomputed otherwise; the bound of the space knows what it may save."""
    space = SearchSpace(offload=False, separate_backward=False)
    found = {}
    for part in (70, 0):
        asked = problem(part)
        found[part] = plan(asked.model, asked.cluster, asked.workload, space, 300, deterministic_limit=0.1)
    with_it, without = found[70].plan, found[0].plan
    assert SELECTIVE in {policy for row in with_it.stash for policy in row}
    assert SELECTIVE not in {policy for row in without.stash for policy in row}
    assert check(with_it) == []
    assert with_it.forecast.step_s < without.forecast.step_s
    assert bounds.any_plan(problem(70)) < found[70].bound_s <= with_it.forecast.step_s
    assert found[70].bound_s <= found[0].bound_s
    kept = plan(
        asked.model, asked.cluster, asked.workload, replace(space, recompute=False), 300, deterministic_limit=0.1
    )
    assert kept.plan is None or {policy for row in kept.plan.stash for policy in row} == {"keep"}


def test_its_backward_runs_where_its_rest_is() -> None:
    asked = problem(70)
    line = Pipeline((0, 1, 2, 3), (1, 1, 2, 3), tuple(range(8)))
    stages = tuple((f"l{k}", f"l{k + 1}") for k in range(0, 8, 2))
    made = Plan(asked, stages, (line,), ((),) * 4, ((SELECTIVE,) * 4,))
    said = [violation.message for violation in check(made)]
    assert said == ["stage 0: keeps a part of its stash on device 0, but its backward runs on device 1"]


def test_layers_say_what_they_drop() -> None:
    """In model.json, where there is something; never more than the stash."""
    layer = problem(70).model.layers[0]
    graph = ModelGraph((layer,), ())
    assert ModelGraph.from_dict(graph.to_dict()) == graph
    assert "selective_bytes" not in str(ModelGraph((replace(layer, selective_bytes=0, selective_s=0.0),), ()).to_dict())
    with pytest.raises(ModelError, match="selective_bytes must be at most stash_bytes, 100, got 101"):
        replace(layer, selective_bytes=101)
