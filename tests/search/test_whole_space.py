"""What plan() claims, against plans from all over the space that was asked for: no bound above any of them, no plan
that is called optimal beaten, nothing worse than a hint."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from instances import uniform
from whole_space import SPACES, allowed, limited, plans, seconds, small_problem

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Plan, SearchSpace, Workload, check
from contraflow.planner import plan as search
from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.schedules import build
from contraflow.planner.search.common import Result
from contraflow.planner.search.proofs import TOGETHER, asked

CLOSE = 1e-9


def claims_hold(found: Result, others: list[Plan]) -> None:
    """Nothing is claimed that another plan of the space refutes."""
    best_s = min(map(seconds, others))
    assert found.bound_s <= best_s * (1 + CLOSE)
    if found.plan is None:
        assert found.status == "unknown"
        return
    assert check(found.plan) == []
    if found.status == "optimal":
        assert seconds(found.plan) <= best_s * (1 + 1e-6)
    among = found.among
    if among is not None:
        assert found.status == "feasible"
        assert among.bound_s > found.bound_s
        assert (found.plan.provenance.among, found.plan.provenance.among_bound_s) == (among.space, among.bound_s)
        together = [p for p in others if all(x.forward == x.backward for x in p.pipelines)]
        kept = [p for p in together if {policy for row in p.stash for policy in row} == {"keep"}]
        if among.space == f"{TOGETHER}, stashes kept" and kept:
            assert among.bound_s <= min(map(seconds, kept)) * (1 + CLOSE)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 60))])
def test_no_bound_is_above_a_plan_of_the_space(seed: int) -> None:
    """Random structures, devices, policies and orders; without a limit, and with limits that some just keep."""
    rng = random.Random(seed)
    problem = small_problem(rng)
    found = plans(problem, rng, 25)
    peaks = sorted({max(p.forecast.peak_bytes) for p in found if p.forecast})
    for limit in (None, peaks[0], peaks[len(peaks) // 8], peaks[len(peaks) // 3]):
        tight, fit = limited(problem, found, limit)
        for space in SPACES:
            mine = allowed(space, fit)
            assert not mine or asked(tight, space).bound_s <= min(map(seconds, mine)) * (1 + CLOSE)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_no_optimum_is_beaten_with_hints_and_without(seed: int) -> None:
    """The search with little effort, on its own and from plans of the space: the best one, and any."""
    rng = random.Random(1000 + seed)
    problem = small_problem(rng)
    found = plans(problem, rng, 12)
    peaks = sorted({max(p.forecast.peak_bytes) for p in found if p.forecast})
    tight, fit = limited(problem, found, rng.choice([None, peaks[0], peaks[len(peaks) // 4]]))
    for space in rng.sample(SPACES, 2):
        mine = allowed(space, fit)
        for hint in [None, min(mine, key=seconds), rng.choice(mine)] if mine else []:
            result = search(
                tight.model, tight.cluster, tight.workload, space, 20, seed, 1, deterministic_limit=0.02, hint=hint
            )
            claims_hold(result, mine)
            if hint is not None:
                assert result.plan is not None
                assert seconds(result.plan) <= seconds(hint) * (1 + CLOSE)


# ---------------------------------------------------------------- plans that no search here finds


def shipped(devices: int, batches: int, limit: int, link: Link, every: tuple[int, int]) -> Plan:
    """1F1B of which stages in the first half ship `every` a of b micro-batches' stashes to their mirror and back."""
    layers = [
        Layer(f"l{k}", 1.0, 2.0, separable=False, stash_bytes=100, parameter_bytes=1000, output_bytes=4)
        for k in range(devices)
    ]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(devices, limit, link), Workload(batches))
    layout, (some, of) = build("1f1b", devices, batches), every
    rows = {
        m: tuple(
            f"ship>{devices - 1 - s}" if s < devices // 2 and m * some % of < some else "keep" for s in range(devices)
        )
        for m in range(batches)
    }
    stages = tuple((layer.name,) for layer in layers)
    return assemble(regroup(problem, stages, layout.pipelines, rows), layout.orders, "by hand")


@pytest.mark.parametrize(("devices", "batches", "every"), [(6, 13, (1, 2)), (8, 32, (2, 5))])
def test_one_device_a_stage_is_not_all_where_stashes_may_be_shipped(
    devices: int, batches: int, every: tuple[int, int]
) -> None:
    """BPipe by hand needs less than 1F1B's memory: the bound is below it, and what it beats is not called optimal."""
    free = shipped(devices, batches, 1 << 40, Link(200.0), every)
    assert free.forecast is not None
    limit = max(free.forecast.peak_bytes)
    by_hand = shipped(devices, batches, limit, Link(200.0), every)
    assert check(by_hand) == []
    problem = by_hand.problem
    for space in (SearchSpace(), SearchSpace(pipelines=1, recompute=False, offload=False)):
        assert asked(problem, space).bound_s <= seconds(by_hand) * (1 + CLOSE)
        for hint in (None, by_hand):
            found = search(problem.model, problem.cluster, problem.workload, space, 0.5, workers=1, hint=hint)
            claims_hold(found, [by_hand])
            assert hint is None or (found.plan is not None and seconds(found.plan) <= seconds(hint) * (1 + CLOSE))


def hybrid(problem: Problem, cut: int) -> Plan:
    """Without a flush: replicas of the first stage on all devices but the last, which has the second stage."""
    count, last = problem.workload.micro_batches, len(problem.cluster) - 1
    names = [layer.name for layer in problem.model.layers]
    pipelines = tuple(Pipeline((d, last), (d, last), tuple(range(d, count, last))) for d in range(last))
    orders: list[list[Op]] = [[] for _ in range(last + 1)]
    for pipeline in pipelines:
        mine = pipeline.micro_batches
        for m, later in zip(mine, (*mine[1:], None), strict=True):
            orders[pipeline.forward[0]] += [Op(Kind.F, 0, m)] if m == mine[0] else []
            orders[pipeline.forward[0]] += [] if later is None else [Op(Kind.F, 0, later)]
            orders[pipeline.forward[0]] += [Op(Kind.B, 0, m)]
    orders[last] = [op for m in range(count) for op in (Op(Kind.F, 1, m), Op(Kind.B, 1, m))]
    stages = (tuple(names[:cut]), tuple(names[cut:]))
    return assemble(Candidate(problem, stages, pipelines, weights="stash"), orders, "by hand")


def test_without_a_flush_a_poor_hint_is_not_optimal() -> None:
    """Three replicas and a second stage on the wrong cut: what is proven of one stage a device says nothing of it."""
    model = uniform(8, 1.0, 2.0, parameter_bytes=40, output_bytes=1)
    problem = Problem(model, Cluster.uniform(4, link=Link(1e3)), Workload(36, update_every=3))
    space = SearchSpace(asynchronous=("stash",))
    every = [hybrid(problem, cut) for cut in range(3, 8)]
    assert all(check(p) == [] for p in every)
    for hint in every:
        found = search(problem.model, problem.cluster, problem.workload, space, 2, hint=hint)
        claims_hold(found, every)
        assert found.plan is not None
        assert seconds(found.plan) <= seconds(hint) * (1 + CLOSE)


def test_a_hint_from_outside_the_space_is_answered_for_the_space_with_it() -> None:
    """Only one pipeline and whole stashes asked for; the hint has two that recompute: the bound is of both."""
    model, cluster = uniform(4, 1.0, 2.0, output_bytes=1), Cluster.uniform(2, 9)
    problem = Problem(model, cluster, Workload(4))
    lanes = [Pipeline((d,) * 4, (d,) * 4, (d, d + 2)) for d in range(2)]
    stages = tuple((layer.name,) for layer in model.layers)
    rows = dict.fromkeys(range(4), ("recompute",) * 4)
    orders = [
        [
            op
            for m in (d, d + 2)
            for op in (
                *(Op(Kind.F, s, m) for s in range(4)),
                *(Op(kind, s, m) for s in reversed(range(4)) for kind in (Kind.R, Kind.B)),
            )
        ]
        for d in range(2)
    ]
    hint = assemble(regroup(problem, stages, lanes, rows), orders, "by hand")
    assert check(hint) == []
    asked_for = SearchSpace(pipelines=1, recompute=False, offload=False, separate_backward=False)
    found = search(model, cluster, problem.workload, asked_for, 0, hint=hint)
    assert found.plan is not None
    assert found.bound_s == pytest.approx(asked(problem, replace(asked_for, pipelines=2, recompute=True)).bound_s)
    assert "more than was asked for" in found.plan.provenance.space
