"""The search against every order there is, on instances small enough to try them all."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
    """The least step of all plans with at most two routes of one-layer stages, on any devices, or of one stage."""
    limits = [problem.workload.memory_limit(d.kind.memory_bytes) for d in problem.cluster.devices]
    found = []
    for candidate in candidates(problem):
        work: list[list[list[Op]]] = [[] for _ in problem.cluster.devices]
        for pipeline in candidate.pipelines:
            for m in pipeline.micro_batches:
                passes = [Op(Kind.F, s, m) for s in range(len(candidate.stages))]
                line = [*passes, *(Op(Kind.B, op.stage, m) for op in reversed(passes))]
                for device, lines in enumerate(work):
                    lines.append([op for op in line if pipeline.forward[op.stage] == device])
        for orders in product(*(merged(lines) for lines in work)):
            try:
                forecast = assemble(candidate, orders).forecast
            except PlanError:
                continue
            assert forecast is not None
            if all(peak <= limit for peak, limit in zip(forecast.peak_bytes, limits, strict=True)):
                found.append(forecast.step_s)
    return min(found, default=None)


def candidates(problem: Problem) -> Iterator[Candidate]:
    """All stages on any devices, and all ways to deal the micro-batches to at most two routes."""
    names = tuple(layer.name for layer in problem.model.layers)
    devices, batches = range(len(problem.cluster)), range(problem.workload.micro_batches)
    for stages in (tuple((name,) for name in names), (names,)):
        for taken in product(product(devices, repeat=len(stages)), repeat=len(batches)):
            routes = dict.fromkeys(taken)
            if len(routes) <= 2:
                pipelines = (Pipeline(r, r, tuple(m for m in batches if taken[m] == r)) for r in routes)
                yield Candidate(problem, stages, tuple(pipelines))


def merged(lines: list[list[Op]]) -> list[tuple[Op, ...]]:
    """Every order of the ops that keeps the order of each line."""
    counts = [k for k, line in enumerate(lines) for _ in line]
    return [
        tuple(next(left[k]) for k in turns) for turns in set(permutations(counts)) for left in [[*map(iter, lines)]]
    ]


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 30))])
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
