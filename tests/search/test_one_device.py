"""One device that does not hold a whole backward: cut into stages, made again where they must be, in turn."""

from __future__ import annotations

import random
from itertools import product

import pytest

from contraflow.planner import Cluster, ModelGraph, Plan, SearchSpace, Workload, plan
from contraflow.planner.check import check
from contraflow.planner.graph import KEEP, RECOMPUTE, Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition import compositions
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem import Layer

BATCHES = 3


def problem(rng: random.Random) -> Problem:
    """Layers of which each takes and keeps something else."""
    made = [
        Layer(
            name=f"layer {k}",
            forward_s=float(rng.randint(1, 9)),
            backward_input_s=float(rng.randint(2, 18)),
            separable=False,
            stash_bytes=rng.randint(20, 90),
            output_bytes=rng.randint(1, 9),
            workspace_bytes=rng.randint(0, 5),
        )
        for k in range(rng.randint(4, 6))
    ]
    return Problem(ModelGraph(tuple(made), name="toy"), Cluster.uniform(1), Workload(BATCHES))


def in_turn(of: Problem, cuts: tuple[int, ...], remade: tuple[bool, ...]) -> Plan:
    """Micro-batch after micro-batch, every stage that is made again right before its backward."""
    names = [layer.name for layer in of.model.layers]
    stages = tuple(tuple(names[a:b]) for a, b in zip((0, *cuts), (*cuts, len(names)), strict=True))
    count, every = len(stages), tuple(range(of.workload.micro_batches))
    stash = (tuple(RECOMPUTE if again else KEEP for again in remade),)
    candidate = Candidate(of, stages, (Pipeline((0,) * count, (0,) * count, every),), stash)
    back = [Op(kind, s, 0) for s in reversed(range(count)) for kind in ((Kind.R, Kind.B) if remade[s] else (Kind.B,))]
    one = [*(Op(Kind.F, s, 0) for s in range(count)), *back]
    return assemble(candidate, [[op._replace(micro_batch=m) for m in every for op in one]])


def every_way(of: Problem) -> list[tuple[int, float]]:
    """Peak bytes and seconds of every cut with every choice of what is made again."""
    layers = len(of.model.layers)
    cuts = [c for n in range(1, layers + 1) for c in compositions(layers, n, 10**4) or ()]
    plans = (in_turn(of, c, remade) for c in cuts for remade in product((False, True), repeat=len(c) + 1))
    return [(p.forecast.peak_bytes[0], p.forecast.step_s) for p in plans if p.forecast is not None]


@pytest.mark.parametrize("seed", range(6))
def test_as_fast_as_the_best_of_all_ways_to_cut_it(seed: int) -> None:
    """Under a limit to which no plan of one stage keeps."""
    rng = random.Random(seed)
    loose = problem(rng)
    every, whole = every_way(loose), in_turn(loose, (), (False,)).forecast
    assert whole is not None
    limit = rng.randint(min(peak for peak, _ in every), whole.peak_bytes[0] - 1)
    found = plan(
        loose.model,
        loose.cluster,
        Workload(BATCHES, memory_limit_bytes=limit),
        SearchSpace(offload=False),
        time_limit=30,
        workers=1,
        deterministic_limit=2,
    ).plan
    assert found is not None
    assert found.forecast is not None
    assert check(found) == []
    assert found.forecast.step_s <= min(step for peak, step in every if peak <= limit) * (1 + 1e-9)
