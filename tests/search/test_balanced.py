"""Cuts of routes that visit devices repeatedly: the loop as plain Python and as numba runs it."""

from __future__ import annotations

import random

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Workload
from contraflow.planner.partition import Chain
from contraflow.planner.plan import Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search.common import balance


def drawn(seed: int) -> tuple[Chain, tuple[int, ...], tuple[int, ...]]:
    """Uneven layers, and a route round and round, back and forth, or in two directions."""
    dice = random.Random(seed)
    devices, visits = dice.choice((2, 3, 5, 8)), dice.choice((2, 3, 4))
    layers = [
        Layer(f"l{k}", dice.lognormvariate(0, 0.6), dice.lognormvariate(0.7, 0.6), output_bytes=1)
        for k in range(devices * visits + dice.choice((0, 3, 20)))
    ]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(devices), Workload(dice.choice((4, 16))))
    there = tuple(range(devices))
    if seed % 3 == 0:
        return Chain.of(problem), there * visits, ()
    if seed % 3 == 1:
        return Chain.of(problem), tuple(d for k in range(visits) for d in (there, there[::-1])[k % 2]), ()
    return Chain.of(problem), there, there[::-1]


@pytest.mark.parametrize("seed", range(9))
def test_compiled_it_finds_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, route, twin = drawn(seed)
    monkeypatch.setattr(balance._loops, "compiled", lambda pieces: False)
    plain = balance._balanced(chain, route, twin)
    monkeypatch.setattr(balance._loops, "compiled", lambda pieces: True)
    assert balance._balanced(chain, route, twin) == plain
    assert plain is not None
    ends = [0, *plain, len(chain)]
    assert all(a < b for a, b in zip(ends, ends[1:], strict=False))


@pytest.mark.parametrize("compiled", [False, True])
def test_one_device_may_be_as_good_as_none(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes 1e30 times as long has no more layers than stages, and no number overflows."""
    layers = [Layer(f"l{k}", 1.0, 1.0, output_bytes=1) for k in range(9)]
    kinds = (DeviceType("fast", 1 << 30, 1.0), DeviceType("slow", 1 << 30, 1e-30))
    cluster = Cluster(tuple(NodeGroup(1, 1, kind, Link(1e9)) for kind in kinds))
    monkeypatch.setattr(balance._loops, "compiled", lambda pieces: compiled)
    cuts = balance._balanced(Chain.of(Problem(ModelGraph.chain(layers), cluster, Workload(4))), (0, 1, 0, 1), ())
    assert cuts is not None
    assert (cuts[1] - cuts[0]) + (9 - cuts[2]) == 2
