"""Named orders that are made to fit: what is alive when, the cheapest stash choices that fit, and cuts for them."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, bounds, check, evaluate, plan
from contraflow.planner.graph import KEEP, OFFLOAD, RECOMPUTE, SHIP, Candidate
from contraflow.planner.lower.plans import assembled
from contraflow.planner.partition import QUARTERS, choices
from contraflow.planner.partition.chain import Chain
from contraflow.planner.partition.mixed import cut_mixed
from contraflow.planner.plan import Kind, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.schedules import build, capped, variants
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.common.effort import SHARE
from contraflow.planner.search.common.fit import lacking
from contraflow.planner.search.common.shapes import balanced
from contraflow.planner.search.named.fitted import run_first_plan, run_mixed
from contraflow.planner.search.named.fullest import fullest, in_flight, of_layout
from contraflow.planner.search.named.laying import splits
from contraflow.planner.search.named.nearby import run_nearby
from contraflow.planner.search.named.portfolio import (
    device_orders,
    holds,
    not_split,
    run_lightest,
    run_named,
    run_other_cuts,
    whole_backwards,
)
from contraflow.planner.search.named.widths import Phases, search_widths
from contraflow.planner.search.scale.scaled_down import left_out

STASH, INPUT = 1 << 20, 1 << 12


def blocks(count: int, parameters: int = 0) -> ModelGraph:
    """Equal layers with F = I = W = 1 s and inputs far smaller than stashes."""
    layer = Layer(
        "l", 1.0, 1.0, 1.0, parameter_bytes=parameters, stash_bytes=STASH, output_bytes=INPUT, input_bytes=INPUT
    )
    return ModelGraph.chain([replace(layer, name=f"l{k}") for k in range(count)])


def tight(layers: int, devices: int, batches: int, stashes: float, host: float = math.inf) -> Problem:
    """A chain on equal devices with room for so many layers' stashes beside the tensors that are in transit."""
    cluster = Cluster.uniform(devices, 1 << 40, Link(1e12))
    cluster = Cluster((replace(cluster.nodes[0], host_link=Link(host)),))
    limit = int(stashes * STASH) + 4 * batches * INPUT
    return Problem(blocks(layers), cluster, Workload(batches, memory_limit_bytes=limit))


def session(problem: Problem, space: SearchSpace) -> Session:
    """A search without a limit that matters."""
    return Session(problem, space, Clock(time.monotonic() + 1e6))


ONE_WAY = SearchSpace(pipelines=1)


# ---------------------------------------------------------------- what is alive


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "chimera", "zb-h2", "zb-v", "dualpipe", "v-half"])
def test_the_fullest_instants_are_those_of_counting_op_by_op(name: str) -> None:
    layout, rng = build(name, 4, 8), np.random.default_rng(5)
    line = {m: p for p, pipeline in enumerate(layout.pipelines) for m in pipeline.micro_batches}
    units = [(p, s) for p in range(len(layout.pipelines)) for s in range(layout.stages)]
    for _ in range(5):
        stash, later = (dict(zip(units, rng.integers(1, 100, len(units)).tolist(), strict=True)) for _ in range(2))
        for device, order in zip(of_layout(layout), layout.orders, strict=True):
            held = most = 0
            for op in order:
                unit = line[op.micro_batch], op.stage
                held += {Kind.F: stash[unit], Kind.B: -stash[unit], Kind.I: later[unit] - stash[unit]}.get(op.kind, 0)
                held -= later[unit] if op.kind == Kind.W else 0
                most = max(most, held)
            rows = [np.array([size[unit] for unit in device.units], dtype=np.int64) for size in (stash, later)]
            assert device.bytes(rows[0], rows[1]) >= most
            assert device.bytes(rows[0], np.minimum(*rows)) <= most  # I's end may add, and counts as what follows it
    assert in_flight(layout) == list(layout.in_flight)


def test_a_device_without_work_holds_nothing() -> None:
    layout = capped(2, 3, 2)
    assert fullest([*layout.orders, ()], layout.pipelines, 2)[2].bytes(np.zeros(0, int), np.zeros(0, int)) == 0


@pytest.mark.parametrize("stashes", [1.0, 2.5, 4.0])
def test_what_cannot_hold_its_stashes_does_not_fit(stashes: float) -> None:
    """The cheap test never turns down an order that fits; it is necessary, not sufficient."""
    problem, seen = tight(8, 4, 8, 2 * stashes), set()
    for _, layout in variants(4, 8, 8):
        cuts = balanced(Chain.of(problem), layout.pipelines[0].forward)
        if cuts is None:
            continue
        candidate = Candidate(problem, Chain.of(problem).stages(cuts), layout.pipelines)
        whole = not_split(SearchSpace(), candidate)
        found = assembled(candidate, [whole_backwards(order, whole) for order in layout.orders])
        seen.add((not lacking(found), holds(candidate, layout, KEEP)))
    assert (True, False) not in seen
    assert (False, False) in seen


# ---------------------------------------------------------------- cuts and choices


@pytest.mark.parametrize("policies", [(), (RECOMPUTE,), (OFFLOAD,), (RECOMPUTE, OFFLOAD)])
def test_the_cut_is_the_best_of_all_cuts_and_fates(policies: tuple[str, ...]) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        layers = [
            Layer(f"l{k}", *rng.integers(1, 9, 3).astype(float).tolist(), stash_bytes=int(rng.integers(10, 99)),
                  parameter_bytes=int(rng.integers(0, 50)), output_bytes=1, input_bytes=1)
            for k in range(7)
        ]  # fmt: skip
        cluster = Cluster.uniform(3, int(rng.integers(150, 700)), Link(1e9))
        cluster = Cluster((replace(cluster.nodes[0], host_link=Link(float(rng.integers(2, 40)))),))
        chain = Chain.of(Problem(ModelGraph.chain(layers), cluster, Workload(6)))
        best = min(_worst(chain, (0, *cuts, 7), policies) for cuts in combinations(range(1, 7), 2))
        found = cut_mixed(chain, (0, 1, 2), (3, 2, 1), policies)
        assert math.isinf(best) == (found is None)
        if found is not None:
            assert _worst(chain, (0, *found, 7), policies) == pytest.approx(best)


def _worst(chain: Chain, ends: tuple[int, ...], policies: tuple[str, ...]) -> float:
    """The slowest of three stages with three, two and one micro-batch in flight, each under its cheapest choice."""
    costs, worst = chain.costs, 0.0
    for flight, i, j in zip((3, 2, 1), ends, ends[1:], strict=False):
        forward, stash = float(costs.forward_s[i:j].sum()), float(costs.stash_bytes[i:j].sum())
        work = forward + float(costs.backward_s[i:j].sum())
        transit = 2 * (int(i > 0) + int(j < 7))
        room = chain.limit(0) - float(chain.static_bytes[0, i:j].sum()) - transit
        options = [(work, flight * stash)]
        slow = stash / chain.problem.cluster.nodes[0].host_link.bandwidth
        for choice in choices(policies)[1:]:
            whole = min(flight, QUARTERS - choice.quarters)
            if choice.policy == RECOMPUTE:
                options.append((work + choice.quarters / QUARTERS * forward, whole * stash + (flight - whole) + stash))
                continue
            share, backward = choice.quarters / QUARTERS, work - forward
            late = {3: 0.0, 2: max(0.0, slow - forward) + max(0.0, slow - backward), 1: 2 * slow}[choice.depth]
            options.append((max(work, share * slow) + share * late, min(flight, whole + choice.depth) * stash))
        worst = max(worst, min((seconds for seconds, held in options if held <= room), default=math.inf))
    return worst


def test_where_only_recomputing_everything_fits_there_is_a_plan_at_once() -> None:
    """Room for one stage's stash: the first plan, which takes no search, is within 1.5 of the bound of all plans.

    With stages in pieces, which come next, some may be kept.
    """
    problem = tight(16, 8, 64, 2.1)
    searching = session(problem, ONE_WAY)
    next(run_first_plan(searching, device_orders(problem, 8)[0]))
    assert searching.best is not None
    assert check(searching.best) == []
    assert {policy for row in searching.best.stash for policy in row[:-1]} == {RECOMPUTE}
    assert searching.best_s <= 1.5 * bounds.space(problem, ONE_WAY)


def test_with_more_memory_less_is_recomputed_and_the_first_plan_is_faster() -> None:
    steps, remade = [], []
    for stashes in (2.1, 6.1, 10.1, 17.0):
        problem = tight(16, 8, 32, stashes)
        searching = session(problem, ONE_WAY)
        list(run_first_plan(searching, device_orders(problem, 8)[0]))
        assert searching.best is not None
        assert max(evaluate(searching.best).peak_bytes) <= (problem.workload.memory_limit_bytes or 0)
        steps.append(searching.best_s)
        remade.append(sum(op.kind == Kind.R for order in searching.best.orders for op in order))
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 0.85 * steps[0]
    assert remade == sorted(remade, reverse=True)
    assert remade[-1] == 0


def test_where_recomputing_is_not_allowed_stashes_go_to_the_host() -> None:
    """Copies as fast as a stage's own work need no more than a few stashes a device."""
    problem = tight(16, 8, 32, 8.5, host=STASH / 1.0)
    searching = session(problem, replace(ONE_WAY, recompute=False))
    list(run_first_plan(searching, device_orders(problem, 8)[0]))
    assert searching.best is not None
    assert check(searching.best) == []
    assert any(OFFLOAD in row for row in searching.best.stash)


def test_named_schedules_with_several_stages_a_device_are_tried_too() -> None:
    """More stages a device: shorter waits, and no more than one of them is recomputed at a time."""
    problem = tight(16, 4, 16, 3.1)
    searching = session(problem, ONE_WAY)
    list(run_first_plan(searching, device_orders(problem, 4)[0]))
    first_s = searching.best_s
    list(run_mixed(searching, device_orders(problem, 4)[0]))
    assert searching.best is not None
    assert check(searching.best) == []
    assert searching.best_s < 0.95 * first_s
    assert len(searching.best.stages) > 4


# ---------------------------------------------------------------- groups, and few micro-batches


@pytest.mark.parametrize(
    ("devices", "per_device", "batches", "first", "last", "stashes"),
    [(3, 5, 16, 3, 1, 5), (5, 3, 16, 2, 1, 5), (7, 3, 16, 1, 2, 6)],
)
def test_no_v_by_name_is_shorter_than_what_the_named_schedules_start_the_search_with(
    devices: int, per_device: int, batches: int, first: int, last: int, stashes: int
) -> None:
    """Which building blocks fit depends on the cut, and the best cut may be one for another V's stashes."""
    layer = Layer("l", 1.0, 1.0, 0.75, parameter_bytes=0, stash_bytes=STASH, output_bytes=0)
    weights = [first, *([1] * (devices * per_device - 2)), last]
    layers = [
        replace(layer, name=f"l{k}", forward_s=w, backward_input_s=w, backward_weight_s=0.75 * w)
        for k, w in enumerate(weights)
    ]
    cluster = Cluster.uniform(devices, 1 << 40, Link(math.inf, 0.25))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(batches, memory_limit_bytes=stashes * STASH))
    searched = session(problem, replace(ONE_WAY, recompute=False, offload=False))
    for run in (run_lightest, run_named, run_other_cuts, run_nearby):
        for _ in run(searched, tuple(range(devices))):
            pass
    for name in ("zb-v", "v-half", "v-min", "v-auto"):
        found = plan(problem.model, cluster, problem.workload, replace(searched.space, schedule=name), 5).plan
        assert found is None or searched.best_s <= found.forecast.step_s * (1 + 1e-9), name


def test_the_width_with_the_best_first_plan_gets_its_quick_plans_first() -> None:
    """Eight devices that hold the parameters twice: two groups of four recompute less than one of eight would wait."""
    problem = tight(8, 8, 8, 6)
    searching, seen = session(problem, SearchSpace()), list[tuple[int, float]]()

    def first(inner: Session, orders: list[tuple[int, ...]]) -> None:
        list(run_first_plan(inner, orders[0]))

    def quick(inner: Session, _: list[tuple[int, ...]]) -> None:
        seen.append((len(inner.problem.cluster), inner.best_s))
        assert not list(inner.rounds.go_on_with(lambda: iter(())))  # nothing to do, and that at once

    ways = list(splits(problem, SearchSpace()))
    orders = device_orders(problem, 8)
    search_widths(searching, orders, ways, Phases(lambda _: 0.0, first, quick, lambda *_: None, lambda _: None))
    assert searching.best is not None
    assert seen[0][1] == searching.best_s
    assert seen[-1][0] == 8


def test_what_is_left_out_of_many_micro_batches_is_a_multiple_of_what_named_orders_repeat() -> None:
    for devices, batches, expected in ((64, 512, 256), (32, 512, 384), (5, 4000, 3960)):
        problem = Problem(blocks(2 * devices), Cluster.uniform(devices, 1 << 40), Workload(batches))
        assert left_out(session(problem, ONE_WAY)) == expected
        assert expected % (2 * devices) == 0


# ---------------------------------------------------------------- techniques


@pytest.mark.slow
def test_with_copies_allowed_the_search_is_no_worse_than_without() -> None:
    """Allowing more costs a fixed share of the effort; the rest goes the way it goes without."""
    problem = tight(8, 4, 104, 4.1, host=STASH / 4.0)
    given = problem.model, problem.cluster, problem.workload
    joint = plan(*given, ONE_WAY, 1e4, workers=1, deterministic_limit=0.5)
    alone = plan(
        *given, replace(ONE_WAY, offload=False), 1e4, workers=1, deterministic_limit=0.5 * SHARE.without_copies
    )
    assert joint.plan is not None
    assert alone.plan is not None
    assert check(joint.plan) == []
    assert evaluate(joint.plan).step_s <= evaluate(alone.plan).step_s * (1 + 1e-9)
    assert joint.bound_s <= alone.bound_s * (1 + 1e-9)


# ---------------------------------------------------------------- named schedules


NO_MOVES = SearchSpace(recompute=False, offload=False, separate_backward=False)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "chimera", "gems", "zb-v"])
def test_a_named_schedule_that_does_not_fit_recomputes_copies_or_ships_as_flags_allow(name: str) -> None:
    """Less than its fullest device takes: whatever is allowed makes it fit in less time, and nothing else is used."""
    roomy = tight(8, 4, 8, 100.0, host=STASH / 0.25)
    named = SearchSpace(schedule=name)
    whole = plan(roomy.model, roomy.cluster, roomy.workload, named, 5, workers=1).plan
    assert whole is not None
    most = max(evaluate(whole).peak_bytes)
    problem = replace(roomy, workload=replace(roomy.workload, memory_limit_bytes=int(0.7 * most)))
    given = problem.model, problem.cluster, problem.workload
    for space, used in (
        (replace(named, offload=False, separate_backward=False), {RECOMPUTE}),
        (replace(named, recompute=False, separate_backward=False), {OFFLOAD}),
        (named, {RECOMPUTE, OFFLOAD, SHIP}),
    ):
        found = plan(*given, space, 5, workers=1)
        assert found.plan is not None
        assert check(found.plan) == []
        assert {policy.partition(">")[0] for row in found.plan.stash for policy in row} - {KEEP} <= used
        assert found.bound_s <= evaluate(found.plan).step_s
        assert evaluate(found.plan).step_s >= evaluate(whole).step_s * (1 - 1e-9)
        alone = plan(*given, replace(NO_MOVES, schedule=name), 5, workers=1).plan
        assert alone is None or evaluate(alone).step_s >= evaluate(found.plan).step_s


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("stashes", [2.2, 2.6])
def test_what_is_copied_back_early_takes_no_room_that_ops_before_its_backward_need(stages: int, stashes: float) -> None:
    """1F1B with two stashes on a device and a slow host link: each comes back right before its backward."""
    size = 10**6
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, False, stash_bytes=size, output_bytes=size // 100) for k in range(stages)]
    node = NodeGroup(1, stages, DeviceType("d", 1 << 40), Link(1e9), None, Link(size / 2))
    workload = Workload(4 * stages, memory_limit_bytes=int(stashes * size))
    space = SearchSpace(schedule="1f1b", recompute=False)
    found = plan(ModelGraph.chain(layers), Cluster((node,)), workload, space, 20, workers=1).plan
    assert found is not None
    assert check(found) == []
    assert found.forecast is not None
    assert found.forecast.step_s <= 18 * stages


def test_a_named_schedule_that_fits_keeps_its_stashes() -> None:
    problem = tight(8, 4, 8, 8.5, host=STASH / 0.25)
    given = problem.model, problem.cluster, problem.workload
    for name in ("1f1b", "zb-h1"):
        found, kept = (plan(*given, replace(space, schedule=name), 5, workers=1) for space in (SearchSpace(), NO_MOVES))
        assert found.plan is not None
        assert kept.plan is not None
        assert evaluate(found.plan).step_s == evaluate(kept.plan).step_s
        assert {policy for row in found.plan.stash for policy in row} == {KEEP}
        assert (found.status, found.bound_s) == (kept.status, kept.bound_s)


@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw", "spectrain", "pipeoptim"])
def test_a_schedule_without_a_flush_that_does_not_fit_recomputes_or_copies(name: str) -> None:
    roomy = tight(8, 4, 16, 100.0, host=STASH / 0.25)
    whole = plan(roomy.model, roomy.cluster, roomy.workload, replace(NO_MOVES, schedule=name), 5, workers=1).plan
    assert whole is not None
    most = max(evaluate(whole).peak_bytes)
    problem = replace(roomy, workload=replace(roomy.workload, memory_limit_bytes=int(0.6 * most)))
    given = problem.model, problem.cluster, problem.workload
    kept = plan(*given, replace(NO_MOVES, schedule=name), 5, workers=1).plan
    for space, policy in ((replace(NO_MOVES, recompute=True), RECOMPUTE), (replace(NO_MOVES, offload=True), OFFLOAD)):
        found = plan(*given, replace(space, schedule=name), 5, workers=1)
        assert found.plan is not None
        assert found.seconds is not None
        assert check(found.plan) == []
        assert policy in {policy for row in found.plan.stash for policy in row}
        assert found.bound_s <= found.seconds * (1 + 1e-9)
        assert kept is None or found.seconds < (evaluate(kept).period_s or 0)
