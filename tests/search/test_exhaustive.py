"""The search against every order there is, on instances small enough to try them all."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest
from instances import nothing_better, solved

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Problem

KEEP_ALL = SearchSpace(pipelines=2, recompute=False, offload=False, separate_backward=False)


def every_order(problem: Problem) -> float | None:
    """The least step over all directions and all orders of two one-layer stages on two devices; None: none fits."""
    batches = range(problem.workload.micro_batches)
    stages = tuple((layer.name,) for layer in problem.model.layers)
    limits = [problem.workload.memory_limit(d.kind.memory_bytes) for d in problem.cluster.devices]
    best: float | None = None
    for directions in product((0, 1), repeat=len(batches)):
        routes = [(0, 1), (1, 0)]
        taken = [tuple(m for m in batches if directions[m] == k) for k in (0, 1)]
        pipelines = tuple(Pipeline(r, r, t) for r, t in zip(routes, taken, strict=True) if t)
        candidate = Candidate(problem, stages, pipelines)
        work: list[list[Op]] = [[], []]
        for m in batches:
            for stage, device in enumerate(routes[directions[m]]):
                work[device] += [Op(Kind.F, stage, m), Op(Kind.B, stage, m)]
        for orders in product(*(legal(ops) for ops in work)):
            try:
                forecast = assemble(candidate, orders).forecast
            except PlanError:
                continue
            assert forecast is not None
            fits = all(peak <= limit for peak, limit in zip(forecast.peak_bytes, limits, strict=True))
            if fits and (best is None or forecast.step_s < best):
                best = forecast.step_s
    return best


def legal(ops: list[Op]) -> list[tuple[Op, ...]]:
    """Orders in which every backward follows its forward."""
    return [
        order
        for order in permutations(ops)
        if all(order.index(op) > order.index(op._replace(kind=Kind.F)) for op in ops if op.kind == Kind.B)
    ]


@pytest.mark.parametrize("seed", range(30))
def test_two_stages_two_micro_batches(seed: int) -> None:
    """Unequal stages, messages, weights, a memory limit: the search finds the best order there is, and no bound
    is above it."""
    draw = random.Random(seed)
    layers = [
        Layer(
            f"l{k}",
            draw.randint(1, 5),
            draw.randint(1, 7),
            separable=False,
            parameter_bytes=draw.choice([0, 2]),
            stash_bytes=(stash := draw.randint(1, 4)),
            weight_stash_bytes=stash,
            output_bytes=draw.choice([0, 1, 3]),
        )
        for k in range(2)
    ]
    model = ModelGraph.chain(layers)
    cluster = Cluster.uniform(2, 1000, Link(draw.choice([1.0, 2.0]), draw.choice([0, 1])))
    workload = Workload(2, memory_limit_bytes=draw.choice([8, 12, 20, 1000]))
    expected = every_order(Problem(model, cluster, workload))
    result = solved(model, cluster, workload, KEEP_ALL)
    if expected is None:
        assert result.status in ("infeasible", "unknown")
        return
    assert result.plan is not None
    assert check(result.plan) == []
    assert result.plan.forecast is not None
    assert result.plan.forecast.step_s == pytest.approx(expected)
    assert result.bound_s <= expected * (1 + 1e-9)
    if workload.memory_limit_bytes == 1000 and not any(layer.parameter_bytes for layer in layers):
        # reductions may compete with messages for a link and buffers for memory: the solver's model relaxes both
        assert nothing_better(result)
