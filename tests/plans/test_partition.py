"""Cutting chains: dynamic programmes against brute force on small chains, and speed on long ones."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from instances import uniform

from contraflow.planner.graph import Candidate, StageCosts, static_bytes
from contraflow.planner.partition.chain import Chain, Cuts, compositions, cut, lightest
from contraflow.planner.partition.folded import fold
from contraflow.planner.plan import Pipeline, Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload


def chain_of(seed: int, layers: int, devices: int, memory: int) -> Chain:
    """A random chain with uneven times, stashes and parameters."""
    rng = random.Random(seed)
    model = ModelGraph.chain(
        [
            Layer(
                f"layer{k}",
                rng.uniform(1, 5),
                rng.uniform(1, 9),
                parameter_bytes=rng.randint(0, 9),
                stash_bytes=rng.randint(1, 20),
                output_bytes=rng.randint(0, 4),
                workspace_bytes=rng.randint(0, 6),
            )
            for k in range(layers)
        ]
    )
    return Chain.of(Problem(model, Cluster.uniform(devices, memory, Link(2.0, 0.1)), Workload(8, "adam")))


def needs(chain: Chain, cuts: Cuts, in_flight: list[int]) -> list[float]:
    """Bytes of every stage without boundary tensors, from the operations' own definitions."""
    costs = StageCosts.of(chain.problem.model, chain.stages(cuts))
    route = tuple(range(len(cuts) + 1))
    candidate = Candidate(chain.problem, chain.stages(cuts), (Pipeline(route, route, (0,)),))
    static = [sum(parts.values()) for parts in static_bytes(candidate, costs)]
    return [static[s] + in_flight[s] * int(costs.stash_bytes[s]) + int(costs.workspace_bytes[s]) for s in route]


def slowest(chain: Chain, cuts: Cuts) -> float:
    """Largest compute or link time of a stage."""
    costs = StageCosts.of(chain.problem.model, chain.stages(cuts))
    compute = max((costs.forward_s + costs.backward_s).tolist())
    return max([compute, *(edge.bytes / 2.0 for edge in costs.edges)])


@pytest.mark.parametrize("seed", range(30))
def test_cut_is_the_best_of_all_cuts_that_fit(seed: int) -> None:
    """Bottleneck and memory ratio equal brute force over every composition."""
    stages, memory = 2 + seed % 3, 60 + 10 * (seed % 7)
    chain = chain_of(seed, 7, stages, memory)
    in_flight = [stages - s for s in range(stages)]
    every = compositions(7, stages, 1000)
    assert every is not None
    fitting = [c for c in every if max(needs(chain, c, in_flight)) <= memory]
    found = cut(chain, range(stages), in_flight, buffers=0)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting
        assert slowest(chain, found) == pytest.approx(min(slowest(chain, c) for c in fitting))
    least = lightest(chain, range(stages), in_flight)
    assert least is not None
    assert least[1] == pytest.approx(min(max(needs(chain, c, in_flight)) for c in every) / memory)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_fold_finds_a_cut_where_both_stages_of_a_device_fit(seed: int, stages: int) -> None:
    """Device d holds stages d and D-1-d; a cut is found exactly when brute force finds one."""
    memory = 90 + 15 * (seed % 6)
    chain = chain_of(seed, 8, stages, memory)
    every = compositions(8, stages, 1000)
    assert every is not None

    def fits(cuts: Cuts) -> bool:
        stage = needs(chain, cuts, [1] * stages)
        return all(stage[d] + stage[stages - 1 - d] <= memory for d in range(stages) if 2 * d != stages - 1) and (
            stages % 2 == 0 or needs(chain, cuts, [2] * stages)[stages // 2] <= memory
        )

    found = fold(chain, range(stages), [(1, 1)] * stages)
    assert (found is not None) == any(fits(c) for c in every)
    if found is not None:
        assert fits(found)


def test_compositions_are_all_cuts_or_none() -> None:
    """C(L-1, S-1) cuts, none beyond the cap."""
    assert compositions(4, 2, 10) == [(1,), (2,), (3,)]
    assert compositions(40, 8, 1000) is None
    assert compositions(2, 3, 10) is None
    assert compositions(5, 1, 10) == [()]


def test_boundary_bytes_count_a_skipping_tensor_at_every_cut_it_crosses() -> None:
    """a -> b -> c and a -> c: the output of a crosses both cuts, that of b the second."""
    layers = tuple(Layer(name, 1, 1, output_bytes=size) for name, size in (("a", 5), ("b", 7), ("c", 0)))
    model = ModelGraph(layers, (("a", "b"), ("b", "c"), ("a", "c")))
    chain = Chain.of(Problem(model, Cluster.uniform(2), Workload(1)))
    assert chain.boundary_bytes.tolist() == [0, 5, 12, 0]


def test_a_thousand_layers_on_64_stages_in_seconds() -> None:
    """The dynamic programme is fast on long chains, and even chains are cut evenly."""
    chain = Chain.of(Problem(uniform(1000), Cluster.uniform(64), Workload(64)))
    started = time.process_time()
    found = cut(chain, range(64), [64 - s for s in range(64)])
    assert time.process_time() - started < 60
    assert found is not None
    sizes = [b - a for a, b in itertools.pairwise((0, *found, 1000))]
    assert max(sizes) == 16
