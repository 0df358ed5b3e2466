"""Stages with replicas, tensor-parallel ways and modes: against every configuration of small instances."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner.basics.errors import InputError
from contraflow.planner.formats import PiperInstance, pipedream, piper, read
from contraflow.planner.partition.dag import Devices, NodeBlock, configure, loads, solve, width_search
from contraflow.planner.partition.dag.mode_choice import NO, UNKNOWN, YES, choose, ordered
from contraflow.planner.partition.dag.narrow import narrow_ideals
from contraflow.planner.partition.dag.published import piper_problem

DATA = Path(__file__).parents[1] / "data"
VGG = DATA / "pipedream" / "vgg16" / "graph.txt"
GNMT = DATA / "pipedream" / "gnmt" / "graph.txt"
BERT = DATA / "piper" / "bert32a100.json"
VANILLA, AGAIN = "vanilla", "activation recomp"

# ------------------------------------------------------------------ an independent answer for small instances


def chains(nodes: Sequence[Any], edges: Sequence[tuple[Any, Any]]) -> Iterator[list[list[Any]]]:
    """Every way to cut a graph into stages in order, none of them empty."""

    def grow(left: list[Any]) -> Iterator[list[list[Any]]]:
        if not left:
            yield []
        for size in range(1, len(left) + 1):
            for stage in itertools.combinations(left, size):
                if all(a not in left or a in stage for a, b in edges if b in stage):
                    yield from ([list(stage), *rest] for rest in grow([n for n in left if n not in stage]))

    yield from grow(list(nodes))


def piper_stage(content: dict[str, Any], nodes: list[int], t: int, d: int, flying: int) -> float:
    """Time per micro-batch of a stage with its best modes, from the file's numbers; infinite where nothing fits."""
    bandwidth, best = content["bandwidth"], math.inf
    layers = {node["id"]: node["TMPCs"].get(str(t), []) for node in content["nodes"]}
    crossing = [e for e in content["edges"] if (e["sourceId"] in nodes) != (e["destId"] in nodes)]
    for modes in itertools.product(*(layers[n] for n in nodes)):
        own = dict(zip(nodes, modes, strict=True))
        if sum(m["memoryUsageA"] * flying + m["memoryUsageB"] for m in modes) > content["maxMemoryPerDevice"]:
            continue
        moved = sum(2 * e["communicationCost"] for e in crossing)
        for e in crossing:
            if e["destId"] in own:
                moved += 2 * own[e["destId"]]["syncTimeFw"].get(str(e["sourceId"]), 0)
            else:
                moved += 2 * own[e["sourceId"]]["syncTimeBw"].get(str(e["destId"]), 0)
        weights = sum(m["parameterSize"] for m in modes)
        summing = 4 * (d - 1) * weights / d / content["mbsInBatch"]
        time = sum(m["timePerSample"] for m in modes) / d + (moved / d + summing) / bandwidth
        best = min(best, time)
    return best


def best_piper(content: dict[str, Any]) -> float:
    """The smallest largest stage of all configurations; infinite when there is none."""
    ids = [node["id"] for node in content["nodes"]]
    edges = [(e["sourceId"], e["destId"]) for e in content["edges"]]
    batch, devices, best = content["mbsInBatch"], content["maxDevices"], math.inf
    shapes = [(t, d) for t in (1, 2) for d in range(1, devices + 1) if batch % d == 0 and t * d <= devices]
    for stages in chains(ids, edges):
        for widths in itertools.product(shapes, repeat=len(stages)):
            if sum(t * d for t, d in widths) > devices or sum(d for _, d in widths) > batch:
                continue
            times = []
            for s, (t, d) in enumerate(widths):
                flying = math.ceil(sum(other for _, other in widths[s:]) / d)
                times.append(piper_stage(content, stages[s], t, d, flying))
            best = min(best, max(times))
    return best


@st.composite
def instances(draw: st.DrawFn) -> dict[str, Any]:
    """Random small Piper files, also with modes that synchronise differently or hold more the slower they are."""
    size = draw(st.integers(1, 4))
    edges = [pair for pair in itertools.combinations(range(size), 2) if draw(st.booleans())]
    few = st.integers(0, 9)

    def mode(name: str, node: int, t: int) -> dict[str, Any]:
        sync = {} if t == 1 else {a: draw(few) for a, b in edges if b == node}
        after = {} if t == 1 else {b: draw(few) for a, b in edges if a == node}
        return {
            "id": name, "timePerSample": draw(few), "parameterSize": draw(few),
            "memoryUsageA": draw(few), "memoryUsageB": draw(few),
            "syncTimeFw": {str(k): v for k, v in sync.items()}, "syncTimeBw": {str(k): v for k, v in after.items()},
        }  # fmt: skip

    names = [VANILLA, AGAIN, "third"]
    nodes = []
    for node in range(size):
        ways = {str(t): [mode(name, node, t) for name in names[: draw(st.integers(0, 3))]] for t in (1, 2)}
        ways["1"] = ways["1"] or [mode(VANILLA, node, 1)]
        nodes.append({"id": node, "TMPCs": ways})
    return {
        "maxDevices": draw(st.integers(1, 4)), "maxMemoryPerDevice": draw(st.integers(5, 60)),
        "bandwidth": draw(st.integers(1, 4)), "mbsInBatch": draw(st.integers(1, 6)), "nodes": nodes,
        "edges": [{"sourceId": a, "destId": b, "communicationCost": draw(few)} for a, b in edges],
    }  # fmt: skip


def agrees(content: dict[str, Any]) -> None:
    expected = best_piper(content)
    found = solve(piper.parse(json.loads(json.dumps(content)), "x"), time_limit=60)
    if math.isinf(expected):
        assert (found.status, found.objective, found.blocks) == ("infeasible", None, ())
        return
    assert found.status == "optimal"
    assert found.objective == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert found.bound is not None
    assert found.bound <= expected * (1 + 1e-9) + 1e-12


@pytest.mark.slow
@settings(max_examples=25)
@given(instances())
def test_the_best_piper_configuration_is_the_best_of_all(content: dict[str, Any]) -> None:
    agrees(content)


@pytest.mark.long
@settings(max_examples=12)
@given(instances())
def test_no_bound_lies_above_the_best_where_orders_are_all_that_is_tried(content: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(width_search, "_MOST_IDEALS", 0)
        patch.setattr(width_search, "_MISSES", 2)
        found = solve(piper.parse(json.loads(json.dumps(content)), "x"), time_limit=60)
    expected = best_piper(content)
    if found.objective is not None:
        assert found.bound is not None
        assert found.bound <= expected * (1 + 1e-9) + 1e-12
        assert found.objective >= expected * (1 - 1e-9)


def best_replicated(profile: pipedream.PipeDreamProfile, devices: int, replicas: int, limit: float) -> float:
    """The same of PipeDream's stages with replicas, in seconds at 1 byte a microsecond."""
    nodes, best = {n.id: n for n in profile.nodes}, math.inf
    for stages in chains(list(nodes), profile.edges):
        place = {i: s for s, stage in enumerate(stages) for i in stage}
        cuts = [0.0] * (len(stages) + 1)
        for i, node in nodes.items():
            reach = max([place[b] for a, b in profile.edges if a == i], default=place[i])
            for s in range(place[i] + 1, reach + 1):
                cuts[s] += 2 * node.activation_bytes / 1e6
        for widths in itertools.product(range(1, replicas + 1), repeat=len(stages)):
            if sum(widths) > devices:
                continue
            times = []
            for s, r in enumerate(widths):
                inside = [nodes[i] for i in stages[s]]
                held = sum(n.parameter_bytes + n.activation_bytes for n in inside) * math.ceil(sum(widths[s:]) / r)
                work = sum(n.forward_ms + n.backward_ms for n in inside) / 1e3
                work += 4 * (r - 1) * sum(n.parameter_bytes for n in inside) / r / 1e6
                times.append(max(work, cuts[s], cuts[s + 1]) / r if held <= limit else math.inf)
            best = min(best, max(times))
    return best


@st.composite
def profiles(draw: st.DrawFn) -> pipedream.PipeDreamProfile:
    size = draw(st.integers(1, 4))
    lines = [
        f"n{k} -- x -- forward_compute_time={draw(st.integers(0, 9))}, "
        f"backward_compute_time={draw(st.integers(1, 9))}, "
        f"activation_size={draw(st.integers(0, 9999))}, parameter_size={draw(st.integers(0, 9999))}"
        for k in range(size)
    ]
    lines += [f"\tn{a} -- n{b}" for a, b in itertools.combinations(range(size), 2) if draw(st.booleans())]
    return pipedream.parse("\n".join(lines), "x")


@settings(max_examples=60)
@given(profiles(), st.integers(1, 4), st.integers(1, 4), st.sampled_from([math.inf, 20_000.0, 40_000.0]))
def test_the_best_replicas_of_a_profile_are_the_best_of_all(
    profile: pipedream.PipeDreamProfile, devices: int, replicas: int, limit: float
) -> None:
    expected = best_replicated(profile, devices, replicas, limit)
    given_limit = None if math.isinf(limit) else limit
    found = solve(profile, Devices(devices, limit_bytes=given_limit, bandwidth=1e6, replicas=replicas), time_limit=60)
    if math.isinf(expected):
        assert found.status == "infeasible"
        return
    assert found.status == "optimal"
    assert found.objective == pytest.approx(expected, rel=1e-7)


@settings(max_examples=25)
@given(profiles(), st.integers(1, 4))
def test_ideals_of_small_borders_prove_the_best_where_all_are_too_many(
    profile: pipedream.PipeDreamProfile, devices: int
) -> None:
    expected = best_replicated(profile, devices, devices, math.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(width_search, "_MOST_IDEALS", 0)
        found = solve(profile, Devices(devices, bandwidth=1e6, replicas=devices), time_limit=60)
    assert (found.status, found.objective) == ("optimal", pytest.approx(expected, rel=1e-7))


@settings(max_examples=25)
@given(instances(), st.floats(0.1, 40))
def test_no_stages_within_a_load_end_elsewhere_than_at_ideals_of_small_borders(
    content: dict[str, Any], load: float
) -> None:
    instance = piper.parse(content, "x")
    problem, _ = piper_problem(instance, Devices())
    if math.isinf(problem.least):
        return
    kept = narrow_ideals(problem, load, 1 << 10, lambda: None)
    assert kept is not None
    for stages in chains(range(len(problem)), problem.graph.edges):
        for widths in itertools.product([(1, 1), (2, 1), (1, 2)], repeat=len(stages)):
            blocks = [
                NodeBlock(tuple(s), False, d, t, (VANILLA,) * len(s)) for s, (d, t) in zip(stages, widths, strict=True)
            ]
            with suppress(InputError):
                if max(loads(instance, blocks)) <= load:
                    ends = itertools.accumulate(sum(1 << g for g in stage) for stage in stages)
                    assert {0, *ends} <= set(kept)


# ------------------------------------------------------------------ the parts


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=3), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_modes_are_found_where_there_are_some(items: list[list[tuple[int, int]]], most: int, limit: int) -> None:
    cost, memory = np.full((len(items), 3), 99.0), np.full((len(items), 3), 99.0)
    for v, modes in enumerate(items):
        for k, (c, m) in enumerate(modes):
            cost[v, k], memory[v, k] = c, m
    there = any(
        sum(c for c, _ in pick) <= most and sum(m for _, m in pick) <= limit for pick in itertools.product(*items)
    )
    counts = np.array([len(modes) for modes in items])
    assert choose(cost, memory, counts, len(items), float(most), float(limit)) == (YES if there else NO)


def test_too_many_combinations_are_unknown_and_not_denied() -> None:
    """Powers of two in both sums: no combination dominates another, and the sum that is asked for is between two."""
    n = 40
    scale = 2.0 ** np.arange(n)
    cost, memory = np.stack([scale * 0, scale], axis=1), np.stack([scale, scale * 0], axis=1)
    half = scale.sum() / 2
    assert choose(cost, memory, np.full(n, 2), n, half, half) == UNKNOWN


@given(st.lists(st.integers(0, 5), max_size=20))
def test_positions_are_ordered_by_key_and_then_as_they_were(keys: list[int]) -> None:
    found = ordered(np.array(keys, dtype=float), len(keys))
    assert [int(i) for i in found] == sorted(range(len(keys)), key=lambda i: keys[i])


# ------------------------------------------------------------------ published instances


def test_bert_on_ten_devices_of_80_gb_is_ten_replicas_of_everything() -> None:
    found = solve(read(BERT))
    assert found.status == "optimal"
    assert [(len(b.nodes), b.replicas, b.ways, set(b.modes)) for b in found.blocks] == [(37, 10, 1, {VANILLA})]
    assert found.objective == pytest.approx(0.09772736112)


def test_less_memory_or_fewer_ways_and_replicas_are_never_faster() -> None:
    """Piper's figure 1 forbids one technique after the other: 64 devices of 2 GiB."""
    bert = read(BERT)
    best = solve(bert, Devices(64, limit_bytes=2 * 2**30)).objective
    assert best is not None
    assert best == pytest.approx(0.0324, rel=0.02)
    for devices in (
        Devices(64, limit_bytes=2 * 2**30, ways=1),
        Devices(64, limit_bytes=2 * 2**30, replicas=1),
        Devices(64, limit_bytes=1.5 * 2**30),
    ):
        worse = solve(bert, devices).objective
        assert worse is None or worse >= best * (1 - 1e-9)


def test_one_replica_of_a_profile_is_no_slower_than_exactly_so_many_stages() -> None:
    straight = solve(read(GNMT), Devices(8, bandwidth=1.25e9)).objective
    assert solve(read(GNMT), Devices(8, bandwidth=1.25e9, replicas=1)).objective == pytest.approx(straight)
    vgg = solve(read(VGG), Devices(16, bandwidth=1.25e9, replicas=16))
    assert vgg.status == "optimal"
    assert vgg.objective == pytest.approx(0.0547948908)
    assert [(len(b.nodes), b.replicas) for b in vgg.blocks] == [(24, 13), (7, 2), (9, 1)]


def test_stages_that_break_a_rule_are_not_counted() -> None:
    bert = read(BERT)
    assert isinstance(bert, PiperInstance)
    ids = tuple(node.id for node in bert.nodes)
    modes = (VANILLA,) * len(ids)
    assert loads(bert, [NodeBlock(ids, replicas=10, modes=modes)]) == [pytest.approx(0.09772736112)]
    for block, message in (
        (NodeBlock(ids, replicas=6, ways=2, modes=modes), "need 12 devices, there are 10"),
        (NodeBlock(ids, replicas=7, modes=modes), "7 replicas do not divide 1920 micro-batches"),
        (NodeBlock(ids, ways=3, modes=modes), "has no mode 'vanilla' in 3 ways"),
        (NodeBlock(ids, modes=("other", *modes[1:])), "has no mode 'other' in 1 ways"),
        (NodeBlock(ids, replicas=0, modes=modes), "stage 0 has 0 replicas"),
    ):
        with pytest.raises(InputError, match=message):
            loads(bert, [block])
    with pytest.raises(InputError, match="stage 0 does not fit"):
        loads(configure(bert, Devices(limit_bytes=1e9)), [NodeBlock(ids, modes=modes)])
    with pytest.raises(InputError, match="stage 0 has 2 ways"):
        loads(bert, [NodeBlock(ids, ways=2, modes=modes)], Devices(ways=1))
    halves = [NodeBlock(ids[20:], modes=modes[20:]), NodeBlock(ids[:20], modes=modes[:20])]
    with pytest.raises(InputError, match="leads back"):
        loads(configure(bert, Devices(2)), halves)
