"""Plans found with whole blocks as layers, as plans of the blocks' parts."""

from __future__ import annotations

import random

import pytest

from contraflow.planner import (
    Choice,
    Cluster,
    Effort,
    Layer,
    Link,
    ModelFamily,
    ModelGraph,
    Plan,
    Progress,
    Workload,
    check,
    plan,
    plan_family,
)
from contraflow.planner.plan import Problem
from contraflow.planner.search.coarser import blocks_of, coarser, finer


def model(seed: int, blocks: int = 6, size: int = 1, named: str = "block{}.{}") -> ModelGraph:
    """An embedding, blocks of an attention and an MLP, a head: costs at random, in proportion to the samples."""
    dice = random.Random(seed)
    parts = [(named.format(k, part), dice.uniform(0.5, 2)) for k in range(blocks) for part in ("attention", "mlp")]
    layers = [
        Layer(
            name, size * work, size * work, size * work, parameter_bytes=1000, output_bytes=size * 100,
            stash_bytes=size * dice.randint(200, 900), weight_stash_bytes=size * 100,
        )
        for name, work in [("embedding", 0.1), *parts, ("head", 0.3)]
    ]  # fmt: skip
    return ModelGraph.chain(layers, micro_batch_size=size)


def test_neighbours_with_one_name_before_the_last_dot_are_a_block() -> None:
    found = blocks_of(model(0, 2))
    assert found == (("embedding",), *((f"block{k}.attention", f"block{k}.mlp") for k in range(2)), ("head",))
    assert blocks_of(model(0, 2, named="layer{}-{}")) is None


@pytest.mark.parametrize("seed", range(2))
def test_plans_of_blocks_are_plans_of_their_parts(seed: int) -> None:
    """With the same step, which the checker confirms; memory so tight that some stashes are made again."""
    dice = random.Random(seed)
    parts = model(seed)
    cluster = Cluster.uniform(dice.choice((2, 3, 4)), dice.choice((25_000, 60_000)), Link(1e5))
    problem = Problem(parts, cluster, Workload(8))
    blocks = blocks_of(parts)
    assert blocks is not None
    small = coarser(problem, blocks)
    found = plan(small.model, cluster, Workload(8), time_limit=0.5, workers=1).plan
    assert found is not None
    assert found.forecast is not None
    told = finer(found, problem, blocks)
    assert told is not None
    assert told.forecast is not None
    assert told.forecast.step_s == pytest.approx(found.forecast.step_s)
    assert not check(told)
    assert {name for stage in told.stages for name in stage} == {layer.name for layer in parts.layers}


def test_a_family_of_parts_is_searched_in_blocks_too_and_tells_of_parts_only() -> None:
    heard: list[Plan] = []
    bounds: list[float] = []

    def hear(event: Progress) -> None:
        bounds.append(event.bound_s)
        if event.plan is not None:
            heard.append(event.plan)

    family = ModelFamily((model(1), model(1, size=2)))
    effort = Effort(time_limit=2, workers=1)
    found = plan_family(family, Cluster.uniform(3, 1 << 30, Link(1e3)), Workload(1), Choice(8), effort=effort,
                        on_progress=hear)  # fmt: skip
    assert found.plan is not None
    assert not check(found.plan)
    assert found.seconds == min(one.step_s for one in found.points if one.step_s is not None)
    names = {layer.name for layer in family.members[0].layers}
    assert heard
    assert max(bounds) <= found.bound_s * (1 + 1e-9)
    for one in [*heard, found.plan]:
        assert {name for stage in one.stages for name in stage} == names
        assert not check(one)
