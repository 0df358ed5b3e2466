"""Models that are no chains: cut along other orders of their layers than the file's."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner import Cluster, Layer, ModelGraph, SearchSpace, Workload, plan
from contraflow.planner.check import check
from contraflow.planner.partition import Chain, Effort, least_load, other_orders
from contraflow.planner.partition.dag import Devices, LayerInstance, solve
from contraflow.planner.plan import Problem
from contraflow.planner.problem import Link
from contraflow.planner.search import layer_orders

BRANCH = 4
SLOW = Link(1e3, 0.0)


def branches(count: int = 2, inner_bytes: int = 9000) -> ModelGraph:
    """Branches side by side, layer by layer in the file: whoever cuts between rows sends a large tensor of each."""
    names = [[f"{chr(97 + b)}{k}" for k in range(BRANCH)] for b in range(count)]
    layers = [Layer("in", 0.1, 0.1, 0.1, output_bytes=10)]
    layers += [layer(names[b][k], inner_bytes if k < BRANCH - 1 else 10) for k in range(BRANCH) for b in range(count)]
    layers.append(Layer("out", 0.1, 0.1, 0.1))
    edges = [("in", branch[0]) for branch in names] + [(branch[-1], "out") for branch in names]
    edges += [pair for branch in names for pair in zip(branch, branch[1:], strict=False)]
    return ModelGraph(tuple(layers), tuple(edges), "branches")


def layer(name: str, output_bytes: int) -> Layer:
    return Layer(name, 1.0, 1.0, 1.0, output_bytes=output_bytes)


def random_graph(seed: int, most: int = 14) -> ModelGraph:
    """Layers of random costs, each after one to three of those before it."""
    rng = random.Random(seed)
    count = rng.randint(6, most)
    edges = {(rng.randint(max(0, k - 4), k), k + 1) for k in range(count - 1) for _ in range(rng.randint(1, 3))}
    layers = [
        Layer(f"l{k}", t, t, t, stash_bytes=8, output_bytes=rng.randint(0, 4000))
        for k, t in enumerate(rng.randint(1, 9) for _ in range(count))
    ]
    return ModelGraph(tuple(layers), tuple((f"l{a}", f"l{b}") for a, b in sorted(edges)), "graph")


def own_order_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_orders, "_others", lambda session: [])


def test_a_chain_has_one_order() -> None:
    chain = ModelGraph.chain([layer(f"l{k}", 1) for k in range(4)])
    skip = ModelGraph(chain.layers, (*chain.edges, ("l0", "l3")))
    assert chain.straight
    assert skip.straight
    assert not branches().straight


def test_the_partition_is_contiguous_in_an_order() -> None:
    model = branches()
    problem = Problem(model, Cluster.uniform(2, link=SLOW), Workload(micro_batches=16))
    orders = other_orders(Chain.of(problem), (0, 1), Effort(5, 1), 0)
    best = solve(LayerInstance(model), Devices(2, bandwidth=2 * SLOW.bandwidth), workers=1).objective
    loads = []
    for order in orders:
        along = Problem(model.in_order(order), problem.cluster, problem.workload)
        assert along.model.topological == tuple(range(len(model.layers)))
        loads.append(least_load(Chain.of(along), (0, 1), (2, 1)))
    assert min(loads) == pytest.approx(best)
    assert least_load(Chain.of(problem), (0, 1), (2, 1)) > 1.2 * min(loads)


@pytest.mark.long
@pytest.mark.parametrize("space", [SearchSpace(pipelines=1), SearchSpace("1f1b")])
def test_branches_are_cut_apart(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (branches(), Cluster.uniform(2, link=SLOW), Workload(micro_batches=8), space)
    found = plan(*asked, time_limit=20, workers=1, deterministic_limit=2)
    own_order_only(monkeypatch)
    alone = plan(*asked, time_limit=20, workers=1, deterministic_limit=2)
    assert found.plan is not None
    assert alone.plan is not None
    assert not check(found.plan)
    assert found.plan.problem.model == branches()
    if space.schedule == "search":
        assert found.seconds <= alone.seconds
        return
    assert found.seconds < 0.9 * alone.seconds
    assert any(len(stage) == BRANCH + 1 for stage in found.plan.stages)


@pytest.mark.long
@pytest.mark.parametrize("space", [SearchSpace("pipedream"), SearchSpace(asynchronous=("stash",), pipelines=1)])
def test_without_a_flush_too(space: SearchSpace) -> None:
    model = branches()
    best = solve(LayerInstance(model), Devices(2, bandwidth=2 * SLOW.bandwidth), workers=1).objective
    asked = (model, Cluster.uniform(2, link=SLOW), Workload(micro_batches=32), space)
    found = plan(*asked, 300, workers=1, deterministic_limit=0.3)
    assert found.plan is not None
    assert not check(found.plan)
    assert found.plan.problem.model == model
    assert found.seconds == pytest.approx(best, rel=0.02)
    if found.among is not None and found.status != "optimal":
        assert "one order of the layers" in found.among.space


@settings(max_examples=6)
@given(seed=st.integers(0, 2**20), devices=st.integers(2, 4), slow=st.booleans(), flush=st.booleans())
def test_never_worse_than_the_order_of_the_file(seed: int, devices: int, slow: bool, flush: bool) -> None:
    link = Link(500.0, 0.0) if slow else Link()
    space = SearchSpace("1f1b") if flush else SearchSpace("pipedream")
    asked = (random_graph(seed), Cluster.uniform(devices, link=link), Workload(micro_batches=12), space)
    found = plan(*asked, time_limit=20, workers=1, deterministic_limit=1)
    with pytest.MonkeyPatch.context() as patch:
        own_order_only(patch)
        alone = plan(*asked, time_limit=20, workers=1, deterministic_limit=1)
    assert found.plan is not None
    assert alone.plan is not None
    assert not check(found.plan)
    assert found.bound_s <= found.seconds <= alone.seconds * (1 + 1e-9)
    assert found.bound_s == pytest.approx(alone.bound_s)


def test_deterministic_where_effort_is_limited() -> None:
    asked = (random_graph(7), Cluster.uniform(3, link=Link(500.0, 0.0)), Workload(micro_batches=6))
    found = [plan(*asked, time_limit=60, workers=1, deterministic_limit=0.3).plan for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].orders == found[1].orders
    assert found[0].stages == found[1].stages


def test_infeasible_is_not_claimed_of_one_order() -> None:
    """Two stages of two layers fit only as (a, c), (b, d), which the file's order has not."""
    sizes = {"a": 3, "b": 7, "c": 7, "d": 3}
    layers = tuple(Layer(name, 1, 1, 1, parameter_bytes=size) for name, size in sizes.items())
    model = ModelGraph(layers, (("a", "c"), ("b", "d")))
    found = plan(model, Cluster.uniform(2, memory_bytes=20), Workload(micro_batches=2), SearchSpace("gpipe"), 5)
    assert found.plan is not None
