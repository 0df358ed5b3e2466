"""Bounds under a memory limit are bounds: every plan fits its own peaks, and none is faster than they allow."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import product

import pytest
from random_plans import WHOLE, Costs, alike, plans_of, random_candidate, random_cluster, random_layers, random_model

from contraflow.planner import bounds
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import variants

CLOSE = 1 + 1e-7
COUNTED = Costs(
    WHOLE, WHOLE, 1, range(1, 5), (1, 0.5, 0), held_more=0, output=(0,), parameters=(0,), workspace=(0,), input=(None,)
)
"""Whole seconds and few bytes: what an exact model can count."""


def hold(plan: Plan, split: bool, wide: bool = False) -> None:
    """No bound for the plan's own peaks as limits is above its step."""
    assert plan.forecast is not None
    step_s, peaks = plan.forecast.step_s, plan.forecast.peak_bytes
    candidate = Candidate(plan.problem, plan.stages, plan.pipelines, plan.stash)
    shares = tuple(len(p.micro_batches) for p in plan.pipelines)
    assert bounds.candidate(candidate, shares, split, peaks) <= step_s * CLOSE
    assert bounds.candidate(candidate, None, split, peaks) <= step_s * CLOSE
    above = [bound.__name__ for bound in bounds.EVERY_PLAN if bound(plan.problem, split) > step_s * CLOSE]
    assert above == []
    limited = replace(plan.problem, workload=replace(plan.problem.workload, memory_limit_bytes=max(peaks)))
    again = any("recompute" in row for row in plan.stash)
    away = any(policy not in ("keep", "recompute") for row in plan.stash for policy in row)
    hosted = any("offload" in row for row in plan.stash)
    kinds = len({(p.forward, p.backward) for p in plan.pipelines})
    if any(p.forward != p.backward for p in plan.pipelines) or (away and not hosted):
        space = SearchSpace("search", kinds, hosted, again, split, True)
        assert bounds.space(limited, space) <= step_s * CLOSE, space
    if any(p.forward != p.backward for p in plan.pipelines):
        return
    for allowed in (
        SearchSpace("search", kinds, away, again, split, False),
        *([SearchSpace("search", kinds, away, again, split, True)] if wide else []),
        *([SearchSpace("search", None, True, again, split, True)] if wide else []),
        *([SearchSpace("search", None, away, True, split, False)] if wide else []),
    ):
        assert bounds.space(limited, allowed) <= step_s * CLOSE, allowed


def is_split(plan: Plan) -> bool:
    return any(op.kind == Kind.W for order in plan.orders for op in order)


@pytest.mark.parametrize("seed", range(24))
def test_no_random_order_on_two_devices_a_stage_is_faster(seed: int) -> None:
    """Neither where stages have a backward device of their own."""
    for split in (True, False):
        for plan in plans_of(random_candidate(seed, apart=True), seed, 2, split):
            hold(plan, split)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 30))])
def test_no_random_order_is_faster(seed: int) -> None:
    """Random candidates of every kind, random orders of every kind."""
    candidate = random_candidate(seed)
    for k, plan in enumerate(plans_of(candidate, seed, 4, True)):
        hold(plan, True, k == 0)
    for plan in plans_of(candidate, seed, 2, False):
        hold(plan, False)


@pytest.mark.parametrize("seed", [4, 6, 7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 5))])
def test_no_named_schedule_is_faster(seed: int) -> None:
    """Every named schedule on random costs, one layer a stage."""
    rng = random.Random(seed)
    devices = rng.choice([2, 3, 4])
    cluster, batches = random_cluster(rng, devices), rng.choice([devices, 2 * devices, 3 * devices])
    model = random_model(rng, 4 * devices)
    for _, layout in variants(devices, batches, 4 * devices):
        short = ModelGraph.chain([*model.layers[: layout.stages]])
        problem = Problem(short, cluster, Workload(batches))
        candidate = Candidate(problem, tuple((x.name,) for x in short.layers), layout.pipelines)
        if any(op.kind == Kind.W for order in layout.orders for op in order) and not all(candidate.costs.separable):
            short = ModelGraph.chain([replace(x, separable=True) for x in short.layers])
            candidate = replace(candidate, problem=replace(problem, model=short))
        plan = assemble(candidate, layout.orders)
        hold(plan, is_split(plan))


# ------------------------------------------------------------------ exact optima


def optimum(candidate: Candidate, limits: list[int]) -> float | None:
    """The best step of a candidate of whole seconds, latencies only and stashes kept; None where none fits."""
    from ortools.sat.python import cp_model

    costs, model = candidate.costs, cp_model.CpModel()
    far = 40 * candidate.problem.workload.micro_batches * len(candidate.stages)
    span = model.new_int_var(0, far, "span")
    busy: dict[int, list[cp_model.IntervalVar]] = {d: [] for d in range(len(limits))}
    held: dict[int, list[tuple[cp_model.IntervalVar, int]]] = {d: [] for d in range(len(limits))}
    start: dict[tuple[str, int, int], cp_model.IntVar] = {}
    sizes = {"F": costs.forward_s, "I": costs.backward_input_s, "W": costs.backward_weight_s}

    def end(name: str, s: int, m: int) -> cp_model.LinearExpr:
        return start[name, s, m] + int(sizes[name][s])

    def hold(device: int, begin: cp_model.LinearExprT, until: cp_model.LinearExprT, size: int) -> None:
        life = model.new_int_var(0, far, "")
        held[device].append((model.new_interval_var(begin, life, until, ""), size))

    for p in candidate.pipelines:
        for a, m in enumerate(p.micro_batches):
            for s, device in enumerate(p.forward):
                for name, seconds in sizes.items():
                    start[name, s, m] = var = model.new_int_var(0, far, "")
                    busy[device].append(model.new_fixed_size_interval_var(var, int(seconds[s]), ""))
                    if a:
                        model.add(var >= end(name, s, p.micro_batches[a - 1]))
                model.add(start["I", s, m] >= end("F", s, m))
                model.add(start["W", s, m] >= end("I", s, m))
                model.add(span >= end("W", s, m))
                hold(device, start["F", s, m], end("I", s, m), int(costs.stash_bytes[s]))
                hold(device, end("I", s, m), end("W", s, m), int(costs.weight_stash_bytes[s]))
            for a_, b_, _ in costs.edges:
                there, back = p.forward[a_], p.forward[b_]
                late = 0 if there == back else int(candidate.problem.cluster.link(there, back).latency_s)
                model.add(start["F", b_, m] >= end("F", a_, m) + late)
                model.add(start["I", a_, m] >= end("I", b_, m) + late)
    for device, limit in enumerate(limits):
        model.add_no_overlap(busy[device])
        if held[device]:
            model.add_cumulative([x for x, _ in held[device]], [size for _, size in held[device]], limit)
    model.minimize(span)
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # or Ctrl-C ends the process from here on
    solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, 10
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None
    return float(solver.objective_value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else float("inf")


def whole_candidate(seed: int) -> tuple[Candidate, int]:
    """A candidate of whole seconds without messages' bytes, and a tight limit."""
    rng = random.Random(seed)
    devices = rng.choice([2, 2, 3])
    straight = tuple(range(devices))
    routes = rng.choice(
        [[straight], [straight], [straight + straight[::-1]], [straight * 2], [straight, straight[::-1]]]
    )
    same = rng.random() < 0.4
    layers = random_layers(rng, 1 if same else len(routes[0]), COUNTED)
    layers = alike(layers[0], len(routes[0])) if same else layers
    batches = rng.randint(len(routes), 5)
    cluster = Cluster.uniform(devices, 1 << 20, Link(latency_s=rng.choice([0, 0, 1])))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(batches))
    half = batches // len(routes)
    pipelines = tuple(
        Pipeline(r, r, tuple(range(k * half, batches if k + 1 == len(routes) else (k + 1) * half)))
        for k, r in enumerate(routes)
    )
    largest = max(layer.stash_bytes for layer in layers)
    most = largest * (len(routes[0]) // devices) + rng.choice([0, largest, 2 * largest, 4 * largest])
    return Candidate(problem, tuple((x.name,) for x in layers), pipelines), most


@pytest.mark.parametrize("seed", [*range(24), 699])
def test_no_optimum_is_below(seed: int) -> None:
    """Small candidates with tight memory, solved to the end: every bound that speaks for them."""
    candidate, limit = whole_candidate(seed)
    devices = len(candidate.problem.cluster)
    best = optimum(candidate, [limit] * devices)
    shares = tuple(len(p.micro_batches) for p in candidate.pipelines)
    limits = [limit] * devices
    least = bounds.candidate(candidate, shares, True, limits)
    if best is None:
        return
    assert least <= best * CLOSE
    limited = replace(candidate.problem, workload=replace(candidate.problem.workload, memory_limit_bytes=limit))
    routes = SearchSpace(pipelines=len(candidate.pipelines), offload=False, recompute=False, separate_backward=False)
    assert bounds.space(limited, routes) <= best * CLOSE


# ------------------------------------------------------------------ known figures


def benchmark_problem(
    devices: int, batches: int, limit: float, chunks: int, uneven: bool, per_device: int = 4
) -> tuple[Problem, tuple[tuple[str, ...], ...]]:
    """100 / 100 / 100 a device, or 100 / 120 / 80 and a latency of 5; a device's share leaves 16 bytes; its stages."""
    f, i, w, late = (100, 120, 80, 5) if uneven else (100, 100, 100, 0)
    k = per_device
    layers = [
        Layer(f"l{n}", f / k, i / k, w / k, stash_bytes=16 // k, weight_stash_bytes=8 // k) for n in range(devices * k)
    ]
    cluster = Cluster.uniform(devices, int(16 * limit), Link(latency_s=late))
    size = k // chunks
    stages = tuple(tuple(x.name for x in layers[n : n + size]) for n in range(0, len(layers), size))
    return Problem(ModelGraph.chain(layers), cluster, Workload(batches)), stages


@pytest.mark.parametrize(
    ("devices", "batches", "limit", "chunks", "uneven", "expected"),
    [
        (4, 8, 4, 1, False, 8 * 300 + 300),
        (8, 16, 8, 1, False, 16 * 300 + 700),
        (4, 8, 4, 1, True, 2880),
        (4, 8, 2, 2, False, 2950),
        (8, 16, 4, 2, False, 5950),
        (8, 32, 4, 2, False, 10750),
        (8, 16, 4, 2, True, 6380),
    ],
)
def test_known_lengths(devices: int, batches: int, limit: int, chunks: int, uneven: bool, expected: float) -> None:
    """One chunk at 1F1B memory: ZB-H1's length (arXiv:2401.10241). V at half of it: V-Half's (arXiv:2405.15362)."""
    problem, stages = benchmark_problem(devices, batches, limit, chunks, uneven)
    straight = tuple(range(devices))
    way = straight + straight[::-1] if chunks == 2 else straight
    candidate = Candidate(problem, stages, (Pipeline(way, way, tuple(range(batches))),))
    assert bounds.candidate(candidate) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("devices", "batches", "limit", "uneven", "expected"),
    [
        (4, 8, 4, False, 2475),
        (8, 16, 8, False, 4975),
        (16, 32, 16, False, 9975),
        (8, 16, 4, False, 5575),
        (8, 16, 4, True, 5895),
    ],
)
def test_known_spaces(devices: int, batches: int, limit: int, uneven: bool, expected: float) -> None:
    """At 1F1B memory the bound of one route, at most four chunks a device, is what interleaved zero-bubble takes."""
    problem, _ = benchmark_problem(devices, batches, limit, 4, uneven)
    allowed = SearchSpace("search", 1, False, False, True, False)
    assert bounds.space(problem, allowed) == pytest.approx(expected, rel=1e-6)


def test_a_forward_is_made_again_where_it_was_needed_for_one_whose_stash_stays() -> None:
    """Four forwards a device before the first backward, and memory for six bytes: of all beginnings of the way that
    are worth most, two thirds keep all of their stashes, and a third those of one byte, with the others made again."""
    layers = [Layer(f"l{n}", 1.0, 1.0, 0.0, stash_bytes=(3, 1)[n % 2]) for n in range(4)]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(4, 6, Link()), Workload(16))
    expected = 4 + (16 * 8 - (16 * 2 / 3 + 16 * 1 / 3 / 2)) / 4
    assert bounds.any_plan(problem) == 32
    assert bounds.space(problem, SearchSpace(offload=False)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(8))
def test_no_placement_beats_the_space(seed: int) -> None:
    """The optimum of every placement of a few layers on two or three devices, and the bound for all of them."""
    rng = random.Random(seed)
    count, many = rng.choice([(2, 2), (2, 3), (3, 3)])
    layers = random_layers(rng, many, COUNTED)
    layers = alike(layers[0], many) if seed % 2 else layers
    limit = max(layer.stash_bytes for layer in layers) * rng.choice([1, 2, 3])
    cluster = Cluster.uniform(count, limit, Link(latency_s=rng.choice([0, 1])))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(rng.randint(1, 4)))
    batches, best = tuple(range(problem.workload.micro_batches)), float("inf")
    for way in product(range(count), repeat=many):
        candidate = Candidate(problem, tuple((x.name,) for x in layers), (Pipeline(way, way, batches),))
        found = optimum(candidate, [limit] * count)
        if found is not None:
            assert bounds.candidate(candidate) <= found * CLOSE
            best = min(best, found)
    assert bounds.space(problem, SearchSpace("search", 1, False, False, True, False)) <= best * CLOSE


def test_nothing_fits() -> None:
    """A stash larger than every device: no plan, so the bound is infinite."""
    problem, stages = benchmark_problem(4, 8, 0.5, 1, False, 1)
    way = tuple(range(4))
    candidate = Candidate(problem, stages, (Pipeline(way, way, tuple(range(8))),))
    assert bounds.candidate(candidate) == float("inf")
    assert bounds.space(problem, SearchSpace(offload=False, recompute=False)) == float("inf")


def test_large_candidates_are_quick() -> None:
    """64 devices, 512 micro-batches, 4 chunks a device: less than a second of the processor, ten on a slow one."""
    problem, stages = benchmark_problem(64, 512, 64, 4, True)
    way = tuple(range(64)) * 4
    candidate = Candidate(problem, stages, (Pipeline(way, way, tuple(range(512))),))
    started = time.process_time()
    assert bounds.candidate(candidate) > 512 * 300
    assert time.process_time() - started < 10
