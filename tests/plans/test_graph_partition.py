"""Partitions of layer graphs: against every chain of order ideals on small graphs, against published optima."""

from __future__ import annotations

import itertools
import math
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner.basics.errors import InputError
from contraflow.planner.formats import read
from contraflow.planner.partition.dag import (
    OBJECTIVES,
    Devices,
    LayerInstance,
    NodeBlock,
    configure,
    count,
    loads,
    solve,
)
from contraflow.planner.partition.dag import ideals as graph_ideals
from contraflow.planner.partition.dag import model as graph_model
from contraflow.planner.partition.dag import problem as graph_problem
from contraflow.planner.partition.dag import search as graph
from contraflow.planner.partition.dag.problem import Block, GraphProblem, Group, Lean, Tensor
from contraflow.planner.problem import Layer, ModelGraph

DATA = Path(__file__).parents[1] / "data"
BERT = DATA / "dnn-partitioning" / "bert24_training.json"
GNMT = DATA / "pipedream" / "gnmt" / "graph.txt"
VGG = DATA / "pipedream" / "vgg16" / "graph.txt"

# ------------------------------------------------------------------ an independent answer for small graphs


def chains(problem: GraphProblem) -> Iterator[list[frozenset[int]]]:
    """Every way to cut the graph into stages in order, none of them empty."""

    def grow(left: frozenset[int]) -> Iterator[list[frozenset[int]]]:
        if not left:
            yield []
        for size in range(1, len(left) + 1):
            for stage in map(frozenset, itertools.combinations(sorted(left), size)):
                if all(a not in left or a in stage for a, b in problem.edges if b in stage):
                    yield from ([stage, *rest] for rest in grow(left - stage))

    yield from grow(frozenset(range(len(problem))))


def stage_time(problem: GraphProblem, stages: list[frozenset[int]], s: int, lean: frozenset[int]) -> float:
    """Time of an accelerator with stage s, written from the definition of the objectives."""
    work = 0.0
    for g in stages[s]:
        group = problem.groups[g]
        work += group.lean.work if g in lean and group.lean else group.work
    place = {g: position for position, stage in enumerate(stages) for g in stage}
    into, out, moved = 0.0, 0.0, 0.0
    for tensor in problem.tensors:
        home, away = place[tensor.source], {place[t] for t in tensor.targets}
        into += tensor.cost * (home < s and max(away) >= s)
        out += tensor.cost * (home <= s and max(away) > s)
        moved += tensor.cost * ((home == s and away != {s}) or (home != s and s in away))
    return max(work, into, out) if problem.overlap else work + moved


def least_time(problem: GraphProblem, stages: list[frozenset[int]], s: int, flying: int) -> float:
    """The same with the best choice of lean groups that fits the memory; infinite when none does."""
    best = math.inf
    for size in range(len(stages[s]) + 1):
        for lean in map(frozenset, itertools.combinations(sorted(stages[s]), size)):
            held = 0.0
            for g in stages[s]:
                group = problem.groups[g]
                way = group.lean if g in lean and group.lean else group
                held += way.static_bytes + flying * way.in_flight_bytes
            if held <= problem.limit_bytes and all(problem.groups[g].lean for g in lean):
                best = min(best, stage_time(problem, stages, s, lean))
    return best


def best_of_all(problem: GraphProblem) -> float:
    """The smallest largest stage of all partitions; infinite when there is none."""
    best = math.inf
    for stages in chains(problem):
        if problem.every and len(stages) != problem.accelerators:
            continue
        for cpus in itertools.product((False, True), repeat=len(stages)):
            if sum(cpus) > problem.cpus or len(stages) - sum(cpus) > problem.accelerators:
                continue
            times = []
            for s, cpu in enumerate(cpus):
                flying = sum(not c for c in cpus[s:])
                slow = sum(problem.groups[g].cpu_work for g in stages[s])
                times.append(slow if cpu else least_time(problem, stages, s, flying))
            best = min(best, max(times))
    return best


@st.composite
def problems(draw: st.DrawFn) -> GraphProblem:
    """Random small graphs with every kind of cost."""
    size = draw(st.integers(1, 5))
    pairs = list(itertools.combinations(range(size), 2))
    edges = tuple(pair for pair in pairs if draw(st.booleans()))
    kind = draw(st.sampled_from(["load", "load", "overlap", "lean"]))
    number = st.one_of(st.integers(0, 9), st.floats(0, 9, allow_subnormal=False))
    groups = []
    for _ in range(size):
        lean = None
        if kind == "lean" and draw(st.booleans()):
            lean = Lean(draw(number), draw(st.integers(0, 9)), draw(st.integers(0, 3)))
        flight = draw(st.integers(0, 3)) if kind != "load" else 0
        work = math.inf if kind == "load" and draw(st.integers(0, 9)) == 0 else float(draw(number))
        groups.append(Group(work, float(draw(number)), draw(st.integers(0, 9)), flight, lean))
    tensors = []
    for source in range(size):
        # In training a tensor also goes to stages before its producer's: to a backward.
        targets = [t for t in range(size) if t != source and ((source, t) in edges or kind == "load")]
        chosen = frozenset(t for t in targets if draw(st.booleans()))
        if chosen:
            tensors.append(Tensor(source, chosen, float(draw(number))))
    return GraphProblem(
        tuple(groups),
        edges,
        tuple(tensors),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2)) if kind == "load" else 0,
        every=kind == "overlap",
        limit_bytes=draw(st.one_of(st.just(math.inf), st.integers(5, 40))),
        overlap=kind == "overlap",
    )


def agrees(problem: GraphProblem) -> None:
    expected = best_of_all(problem)
    found = graph.cut_graph(problem, graph.Effort(workers=1))
    if math.isinf(expected):
        assert found.status == "infeasible"
        assert found.partition is found.objective is found.bound is None
        return
    assert found.status == "optimal"
    assert found.objective == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert found.bound is not None
    assert found.bound <= expected * (1 + 1e-12) + 1e-12
    assert found.bound == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert found.partition is not None
    assert graph_problem.objective(problem, found.partition) == found.objective


@settings(max_examples=100)
@given(problems())
def test_all_ideals_give_the_best_of_all_partitions(problem: GraphProblem) -> None:
    agrees(problem)


@settings(max_examples=60)
@given(problems())
def test_the_solver_gives_the_best_of_all_partitions(problem: GraphProblem) -> None:
    """Without the dynamic programme over all ideals, from nothing or from the chain of one order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_MOST_IDEALS", 0)
        patch.setattr(graph, "_ORDERS", len(problem.edges) % 2)
        patch.setattr(graph, "_MISSES", 0)
        agrees(problem)


# ------------------------------------------------------------------ the parts


def diamond(**rest: Any) -> GraphProblem:
    groups = tuple(Group(float(work), cpu_work=10.0, static_bytes=4) for work in (1, 2, 3, 4))
    edges = ((0, 1), (0, 2), (1, 3), (2, 3), (0, 3))
    tensors = (Tensor(0, frozenset({1, 2}), 0.5), Tensor(1, frozenset({3}), 8.0), Tensor(2, frozenset({3}), 0.25))
    return GraphProblem(groups, edges, tensors, **rest)


def test_a_diamond_has_six_ideals_and_a_chain_one_more_than_groups() -> None:
    found = graph_ideals.ideals(diamond(accelerators=2), most=100)
    assert found is not None
    assert sorted(found) == [0b0000, 0b0001, 0b0011, 0b0101, 0b0111, 0b1111]
    assert graph_ideals.ideals(diamond(accelerators=2), most=5) is None
    chain = GraphProblem((Group(1.0),) * 7, tuple((i, i + 1) for i in range(6)), (), 2)
    assert len(graph_ideals.ideals(chain, most=100) or []) == 8


def test_a_tensor_costs_once_where_it_leaves_and_once_where_it_arrives() -> None:
    problem = diamond(accelerators=3)
    apart = (Block((0,)), Block((1, 2)), Block((3,)))
    assert [graph_problem.load(problem, apart, s) for s in range(3)] == [1.5, 5 + 0.5 + 8.25, 4 + 8.25]
    both = (Block((0, 1)), Block((2,)), Block((3,)))
    assert graph_problem.load(problem, both, 0) == 3 + 0.5 + 8


def test_with_overlap_what_passes_by_loads_both_cuts_and_work_hides_it() -> None:
    problem = diamond(accelerators=3, every=True, overlap=True)
    passing = (Block((0, 1)), Block((2,)), Block((3,)))
    assert [graph_problem.load(problem, passing, s) for s in range(3)] == [8.5, 8.5, 8.25]
    assert graph.cut_graph(problem).objective == 2 + 4  # 1 and 3 together: no stage pays 8


def test_groups_whose_cut_costs_too_much_become_one() -> None:
    problem = diamond(accelerators=2)
    pairs = graph_problem.inseparable(problem, upper=9.0)
    assert pairs == [(1, 3)]
    merged = graph_problem.merge(problem, pairs)
    assert merged.members == ((0,), (2,), (1, 3))
    assert merged.problem.groups[2].work == 6
    assert [(t.source, sorted(t.targets), t.cost) for t in merged.problem.tensors] == [(0, [1, 2], 0.5), (1, [2], 0.25)]
    assert graph_problem.inseparable(diamond(accelerators=2, cpus=1), upper=9.0) == [(1, 3)]
    assert graph_problem.inseparable(diamond(accelerators=2, cpus=1), upper=10.5) == []


def test_orders_are_topological_and_keep_to_their_groups() -> None:
    problem = diamond(accelerators=2)
    for order in graph_ideals.orders(problem, 8, seed=3):
        assert sorted(order) == [0, 1, 2, 3]
        assert all(order.index(a) < order.index(b) for a, b in problem.edges)


def test_devices_that_cannot_be_are_errors() -> None:
    with pytest.raises(InputError, match="at least one device"):
        graph.cut_graph(diamond(accelerators=0))
    with pytest.raises(InputError, match="overlaps"):
        graph.cut_graph(diamond(accelerators=1, cpus=1, overlap=True))
    assert graph.cut_graph(diamond(accelerators=5, every=True)).status == "infeasible"
    assert graph.cut_graph(diamond(accelerators=2, limit_bytes=4)).status == "infeasible"


# ------------------------------------------------------------------ published instances


@pytest.mark.parametrize(
    ("path", "devices", "optimum"),
    [
        (BERT, Devices(), 41.7458125),
        (BERT, Devices(count=0), 2178.13),  # all on the CPU: the sum of its latencies
        (BERT, Devices(count=1, cpus=0), 217.813),  # and of an accelerator's
        (GNMT, Devices(count=8, bandwidth=1.25e9), 0.019285),
        (VGG, Devices(count=8, bandwidth=1.25e9), 0.381063),
        (VGG, Devices(count=1), 0.672535),  # forward and backward of all nodes,
    ],
)
def test_published_optima(path: Path, devices: Devices, optimum: float) -> None:
    found = solve(read(path), devices)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(optimum, rel=1e-6)
    assert found.bound == pytest.approx(optimum, rel=1e-6)


def test_what_is_returned_costs_what_it_says_in_the_file() -> None:
    for path, devices in ((BERT, Devices()), (GNMT, Devices(count=5))):
        instance, found = read(path), solve(read(path), devices)
        assert count(configure(instance, devices), found.blocks, devices) == found.objective


def test_a_partition_that_breaks_a_rule_is_not_counted() -> None:
    instance = configure(read(BERT), Devices())
    everything = tuple(node.id for node in instance.nodes)
    assert count(instance, [NodeBlock(everything)]) == pytest.approx(217.813)
    with pytest.raises(InputError, match="every node once"):
        count(instance, [NodeBlock(everything[:-1])])
    with pytest.raises(InputError, match="colour"):
        count(instance, [NodeBlock(tuple(range(1, 33))), NodeBlock(tuple(range(33, 65)))])
    first = (1, 33)  # node 1 and its backward
    with pytest.raises(InputError, match="leads back"):
        count(instance, [NodeBlock(tuple(i for i in everything if i not in first)), NodeBlock(first)])
    with pytest.raises(InputError, match="does not fit"):
        count(configure(read(BERT), Devices(limit_bytes=1e9)), [NodeBlock(everything)])
    with pytest.raises(InputError, match="more stages than devices"):
        count(configure(read(BERT), Devices(cpus=0)), [NodeBlock(everything, cpu=True)])


def test_with_less_memory_a_partition_gets_slower_until_there_is_none() -> None:
    times = [solve(read(BERT), Devices(cpus=0, limit_bytes=limit)).objective for limit in (2e10, 7.8e8, 7.5e8, 7.2e8)]
    *finite, none = times
    assert none is None
    assert finite == sorted(set(finite))


def test_pipedream_stages_hold_weights_and_activations_for_every_stage_from_them_on() -> None:
    free, tight = (solve(read(GNMT), Devices(count=4, limit_bytes=limit)) for limit in (None, 9e8))
    assert (free.objective or 0.0) < (tight.objective or 0.0)
    assert solve(read(GNMT), Devices(count=4, limit_bytes=6e8)).status == "infeasible"


# ------------------------------------------------------------------ models


def branches(objective: str) -> LayerInstance:
    """A source, two branches of unlike work and a sink; the source's tensor is read by both."""
    work = {"in": 1.0, "left": 4.0, "right": 3.0, "out": 2.0}
    layers = [
        Layer(name, s, s / 2, s / 2, parameter_bytes=10, stash_bytes=100, output_bytes=8) for name, s in work.items()
    ]
    edges = (("in", "left"), ("in", "right"), ("left", "out"), ("right", "out"))
    return LayerInstance(ModelGraph(tuple(layers), edges), "overlap" if objective == "overlap" else "load")


def test_a_model_costs_its_work_and_two_tensors_for_every_one_it_sends() -> None:
    cut = [NodeBlock(("in", "left")), NodeBlock(("right", "out"))]
    devices = Devices(2, bandwidth=4.0)
    assert loads(branches("overlap"), cut, devices) == [10.0, 10.0]  # 4 s for either tensor, 8 s together
    assert loads(branches("load"), cut, devices) == [10 + 8.0, 10 + 8.0]
    slow = Devices(2, bandwidth=1.0)
    assert loads(branches("overlap"), cut, slow) == [32.0, 32.0]
    with pytest.raises(InputError, match="leads back"):
        loads(branches("load"), cut[::-1], devices)
    with pytest.raises(InputError, match="stage 0 does not fit"):
        loads(branches("load"), cut, Devices(2, limit_bytes=439))
    assert loads(branches("load"), cut, Devices(2, limit_bytes=440))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("devices", [Devices(n, bandwidth=b) for n in (1, 2, 3) for b in (2.0, 16.0)])
@pytest.mark.parametrize("limit", [None, 440, 350])
def test_the_best_cut_of_a_model_is_the_best_of_all(objective: str, devices: Devices, limit: int | None) -> None:
    """Against every chain of order ideals, each priced from the model."""
    instance, devices = branches(objective), replace(devices, limit_bytes=limit)
    problem = GraphProblem((Group(0.0),) * 4, ((0, 1), (0, 2), (1, 3), (2, 3)), (), 1)
    names, values = [layer.name for layer in instance.model.layers], []
    for stages in chains(problem):
        with suppress(InputError):
            blocks = [NodeBlock(tuple(names[g] for g in stage)) for stage in stages]
            values.append(max(loads(instance, blocks, devices)))
    found = solve(instance, devices)
    if not values:
        assert found.status == "infeasible"
    else:
        assert (found.status, found.objective) == ("optimal", pytest.approx(min(values)))
        assert found.gap == pytest.approx(0, abs=1e-8)


# ------------------------------------------------------------------ interrupts


def test_who_interrupts_gets_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(value: float, bound: float) -> None:
        told.append((value, bound))
        raise KeyboardInterrupt

    told: list[tuple[float, float]] = []
    found = solve(read(BERT), Devices(), on_better=interrupt)
    assert found.status == "feasible"
    assert [found.objective] == [pytest.approx(value) for value, _ in told]
    assert found.bound is not None
    assert found.bound <= 41.7458125


def test_who_interrupts_the_solver_keeps_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_MOST_IDEALS", 0)
    monkeypatch.setattr(graph_model.time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    found = solve(read(BERT), Devices())
    assert found.status in ("feasible", "optimal")
    assert found.objective == count(configure(read(BERT), Devices()), found.blocks)
    assert (found.bound or 0.0) <= 41.7458125 <= (found.objective or 0.0) + 1e-9
