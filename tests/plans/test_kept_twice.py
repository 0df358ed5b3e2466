"""Tensors that two layers keep: once in a stage of both, twice where they are in two."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from random_plans import in_detail, random_model

from contraflow.planner import Cluster, Layer, ModelGraph, Workload
from contraflow.planner.basics.errors import ModelError
from contraflow.planner.partition.chain import Chain
from contraflow.planner.plan import Problem
from contraflow.planner.problem import KeptTwice, StageCosts, merged
from contraflow.planner.problem.layer import WORKSPACES
from contraflow.planner.search.steady.tables import least_workspace_bytes

LAYERS = [Layer(f"l{k}", stash_bytes=10, weight_stash_bytes=6, output_bytes=4, workspace_bytes=5) for k in range(4)]
CHAIN = ModelGraph.chain(LAYERS)


def test_a_stage_of_both_keeps_it_once() -> None:
    model = replace(CHAIN, kept_twice=(KeptTwice("l0", "l1", 4, 1), KeptTwice("l2", "l3", 3)))
    costs = StageCosts.of(model, (("l0", "l1", "l2"), ("l3",)))
    assert costs.stash_bytes.tolist() == [26, 10]
    assert costs.weight_stash_bytes.tolist() == [17, 6]
    assert ModelGraph.from_dict(model.to_dict()) == model


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([KeptTwice("l0", "l2", 1)], "kept_twice 'l0', 'l2': there is no such edge"),
        ([KeptTwice("l1", "l0", 1)], "kept_twice 'l1', 'l0': there is no such edge"),
        ([KeptTwice("l0", "l1", 1), KeptTwice("l0", "l1", 2)], "kept_twice 'l0', 'l1' is there twice"),
        ([KeptTwice("l0", "l1", 11)], "bytes is 11, and the stash that nothing drops of 'l1' has 10 left"),
        ([KeptTwice("l0", "l1", 1, 7)], "weight_bytes is 7, and the weight stash of 'l1' has 6 left"),
        ([KeptTwice("l0", "l1", -1)], "kept_twice 'l0', 'l1': bytes"),
    ],
)
def test_what_cannot_be_is_one_line(pairs: list[KeptTwice], words: str) -> None:
    with pytest.raises(ModelError, match=re.escape(words)):
        replace(CHAIN, kept_twice=tuple(pairs))


def test_workspaces_are_said_of_every_op_or_of_none() -> None:
    with pytest.raises(ModelError, match="layer 'l0': has no remake_workspace_bytes, but others"):
        replace(LAYERS[0], forward_workspace_bytes=3)


def test_while_a_layer_runs_later_stashes_are_not_there() -> None:
    """The first layer's backward takes most; then the three stashes behind it have gone."""
    keys = WORKSPACES[:-1]
    sizes = zip(LAYERS, (40, 4, 4, 6), strict=True)
    layers = [replace(x, **dict.fromkeys(keys, size), unsaved_input_bytes=0) for x, size in sizes]
    alone = StageCosts.of(ModelGraph.chain(layers), (("l0",), ("l1", "l2", "l3")))
    assert alone.workspaces.backward.tolist() == [40 - 4, 6 - 4]
    whole = StageCosts.of(ModelGraph.chain(layers), (("l0", "l1", "l2", "l3"),))
    loss = 8  # the gradient of a loss, which a last stage has all the time
    assert whole.workspaces.backward.tolist() == [40 + loss - 30]
    assert whole.workspace_bytes.tolist() == [5]


@pytest.mark.parametrize("seed", range(30))
def test_intervals_of_a_chain_are_what_stages_cost(seed: int) -> None:
    """Tables over all intervals, sums for compiled searches, and the model whose layers are the stages."""
    rng = random.Random(seed)
    model = in_detail(random_model(rng, rng.randint(2, 6)), rng)
    chain = Chain.of(Problem(model, Cluster.uniform(2), Workload(4)))
    names, lower = chain.names, least_workspace_bytes(chain)
    for begin, end in combinations(range(len(names) + 1), 2):
        stages = tuple(part for part in (names[:begin], names[begin:end], names[end:]) if part)
        at = stages.index(names[begin:end])
        costs = StageCosts.of(model, stages)
        assert chain.stash.table[begin, end] == costs.stash_bytes[at]
        assert chain.stash.ends[end] - chain.stash.begins[begin] >= costs.stash_bytes[at]
        assert chain.stash.added[begin:end].sum() <= costs.stash_bytes[at]
        if model.straight and not set(model.edges) - set(pairwise(names)):
            assert chain.stash.ends[end] - chain.stash.begins[begin] == costs.stash_bytes[at]
        work = costs.workspaces
        halves = int(work.inputs[at]) + max(0, int(costs.weight_stash_bytes[at] - costs.stash_bytes[at]))
        least = max(int(work.forward[at]), min(int(work.backward[at]), halves))
        assert lower[begin, end] <= least
        again = StageCosts.of(merged(model, stages), tuple((stage[0],) for stage in stages))
        for mine, theirs in zip(costs.workspaces, again.workspaces, strict=True):
            assert mine[at] == theirs[at]
