"""The exact order search with split backwards, several stages a device, and stashes that are recomputed or offloaded.

Peers' convention: F = I = W = 10, a stash of 2 bytes, 1 of them held for the weights; messages of 0 bytes.
"""

from __future__ import annotations

import re

import pytest
from instances import one_layer_a_stage, step_of

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.graph import POLICIES, STASH, Candidate, Content, Hold, StashPolicy
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.common.fit import excess
from contraflow.planner.search.exact.instance import Rules
from contraflow.planner.search.exact.lists import _List as List
from contraflow.planner.search.exact.lists import _Run as Run
from contraflow.planner.search.exact.search import Found, Known, solve
from contraflow.planner.search.exact.solver import Effort
from contraflow.planner.search.exact.windows import improve

EFFORT = Effort(60, 60)


def line(devices: int) -> tuple[int, ...]:
    """Devices in order."""
    return tuple(range(devices))


def candidate(
    routes: list[tuple[int, ...]],
    batches: int,
    limit: int,
    times: tuple[float, float, float] = (10, 10, 10),
    copy_s: float = 6,
    shared_by: int = 1,
    **rest: int,
) -> Candidate:
    """One layer a stage on the routes' devices, `limit` stashes a device, `copy_s` on the host link each way."""
    costs = {"stash_bytes": 2, "weight_stash_bytes": 1} | rest
    model = ModelGraph.chain([Layer(f"layer{k}", *times, **costs) for k in range(len(routes[0]))])
    devices = max(max(route) for route in routes) + 1
    host = Link(costs["stash_bytes"] / copy_s)
    kind = DeviceType("custom", limit * costs["stash_bytes"])
    cluster = Cluster((NodeGroup(1, devices, kind, host_link=host, host_link_shared_by=shared_by),))
    pipelines = tuple(Pipeline(route, route, tuple(range(k, batches, len(routes)))) for k, route in enumerate(routes))
    return Candidate(Problem(model, cluster, Workload(batches)), one_layer_a_stage(model), pipelines)


def plan_of(found: Found) -> Plan:
    """The plan found, checked: it is executable, fits and is not below the bound."""
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert check(found.plan) == []
    assert not any(excess(found.plan))
    assert found.bound_s <= found.plan.forecast.step_s * (1 + 1e-9)
    return found.plan


def step(found: Found) -> float:
    """Seconds of the plan found."""
    return step_of(plan_of(found))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("devices", "batches", "expected"), [(4, 8, 270), (8, 16, 550), (8, 32, 1030)])
def test_split_backward_in_one_direction(devices: int, batches: int, expected: float, workers: int) -> None:
    """With 1F1B's memory ZB-H1's length is optimal: N(F + I + W) + (p - 1)F."""
    found = solve(candidate([line(devices)], batches, devices), Effort(60, 60, workers), Rules(split=True))
    assert found.closed
    assert found.bound_s == pytest.approx(expected)
    assert step(found) == pytest.approx(expected)


@pytest.mark.parametrize(("batches", "expected"), [(8, 270), (16, 510), (32, 990)])
def test_split_backward_in_two_directions(batches: int, expected: float) -> None:
    """Eight devices, eight stashes each: proven by the load and the head."""
    found = solve(candidate([line(8), line(8)[::-1]], batches, 8), EFFORT, Rules(split=True))
    assert found.closed
    assert step(found) == pytest.approx(expected)
    assert found.bound_s == pytest.approx(expected)


def test_mirrored_schedules_are_only_a_start() -> None:
    """The full model finds the same without them."""
    found = solve(candidate([line(4), line(4)[::-1]], 4, 4), EFFORT, Rules(split=True, mirror=False))
    assert found.closed
    assert step(found) == pytest.approx(
        step(solve(candidate([line(4), line(4)[::-1]], 4, 4), EFFORT, Rules(split=True)))
    )


@pytest.mark.parametrize("route", [(0, 1, 2, 3, 3, 2, 1, 0), (0, 1, 2, 3, 0, 1, 2, 3), (0, 1, 2, 3, 2, 3, 0, 1)])
def test_several_stages_a_device(route: tuple[int, ...]) -> None:
    """A zigzag and two interleaved placements: never below the load of a device and its head."""
    found = solve(candidate([route], 8, 8), EFFORT, Rules(split=True))
    assert found.closed
    assert step(found) == pytest.approx(found.bound_s)
    assert found.bound_s >= 2 * 8 * 30 + 30
    assert any(op.kind == Kind.W for order in plan_of(found).orders for op in order)


def test_whole_backwards_where_a_stage_cannot_be_split() -> None:
    """The same with `split` and without where no layer is separable."""
    given = candidate([line(3)], 4, 3)
    layers = [Layer(f"layer{k}", 10, 20, separable=False, stash_bytes=2, weight_stash_bytes=2) for k in range(3)]
    problem = Problem(ModelGraph.chain(layers), given.problem.cluster, given.problem.workload)
    whole = Candidate(problem, given.stages, given.pipelines)
    assert step(solve(whole, EFFORT, Rules(split=True))) == step(solve(whole, EFFORT)) == pytest.approx(180)


@pytest.mark.parametrize(
    ("limit", "policies", "expected"),
    [(2, {"keep"}, 410), (2, {"keep", "offload"}, 280), (3, {"keep"}, 310), (3, {"keep", "offload"}, 270)],
)
def test_offload(limit: int, policies: set[str], expected: float) -> None:
    """Four devices, eight micro-batches, copies of 6 s each way, proven."""
    found = solve(candidate([line(4)], 8, limit), EFFORT, Rules(split=True, policies=frozenset(policies)))
    assert found.bound_s == pytest.approx(expected)
    assert step(found) == pytest.approx(expected)
    assert any("offload" in row for row in plan_of(found).stash) == ("offload" in policies)


def test_offload_to_a_shared_host_link() -> None:
    """Two devices that share one link: no shorter than with one each, and the plan runs."""
    rules = Rules(split=True, policies=frozenset({"keep", "offload"}))
    alone = solve(candidate([line(2)], 5, 1, copy_s=12), EFFORT, rules)
    shared = candidate([line(2)], 5, 1, copy_s=12, shared_by=2)
    found = solve(shared, EFFORT, rules)
    assert step(found) >= step(alone) - 1e-9


def test_recompute() -> None:
    """Two stashes a device, inputs of no bytes: recomputing some beats keeping all (410)."""
    found = solve(candidate([line(4)], 8, 2), EFFORT, Rules(split=True, policies=frozenset({"keep", "recompute"})))
    assert found.closed
    assert step(found) == pytest.approx(300)
    plan = plan_of(found)
    assert {"keep", "recompute"} == {policy for row in plan.stash for policy in row}
    assert any(op.kind == Kind.R for order in plan.orders for op in order)


def test_recompute_everywhere_where_nothing_else_is_allowed() -> None:
    """Every micro-batch has R on every stage; F = R = I = W."""
    found = solve(candidate([line(2)], 3, 8), EFFORT, Rules(split=True, policies=frozenset({"recompute"})))
    plan = plan_of(found)
    assert plan.stash == (("recompute", "recompute"),)
    assert sum(op.kind == Kind.R for order in plan.orders for op in order) == 6


@pytest.mark.parametrize("anywhere", [False, True])
def test_a_policy_that_is_added_to_the_table_is_understood(monkeypatch: pytest.MonkeyPatch, anywhere: bool) -> None:
    """It keeps half a stash until R: better than keeping all, no better than recomputing from nothing."""
    halves = Content("half a stash", "stashes", lambda costs: costs.stash_bytes // 2)
    row = StashPolicy("half", frozenset({Kind.R}), (Hold(Kind.F, Kind.R, halves), Hold(Kind.R, Kind.B, STASH)))
    monkeypatch.setitem(POLICIES, "half", row)
    given = candidate([line(2)], 4, 1, (10, 20)) if anywhere else candidate([line(4)], 8, 2)
    keep, half, recompute = (
        step(solve(given, EFFORT, Rules(not anywhere, frozenset({"keep", name}), anywhere)))
        for name in ("keep", "half", "recompute")
    )
    assert recompute <= half <= keep
    if not anywhere:
        assert recompute < half < keep


def test_a_policy_that_holds_what_no_model_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, never taken for another."""
    little = Content("a little", "stashes", lambda costs: costs.stash_bytes // 2)
    monkeypatch.setitem(POLICIES, "thrift", StashPolicy("thrift", frozenset(), (Hold(Kind.F, Kind.B, little),)))
    for name in ("thrift", "offload+weights"):
        with pytest.raises(PlanError, match=re.escape(name)):
            solve(candidate([line(2)], 2, 2), EFFORT, Rules(policies=frozenset({"keep", name})))


def test_a_proven_bound_of_the_caller_is_used() -> None:
    """A plan at the caller's bound is optimal; and nothing is searched below it."""
    given = candidate([line(4)], 8, 4)
    found = solve(given, EFFORT, Rules(split=True), Known(270, 270))
    assert found.plan is None
    assert found.closed
    assert found.effort == 0


# ------------------------------------------------------------------ windows


def slow(given: Candidate) -> list[list[Op]]:
    """1F1B with every W at once after its I."""
    devices, batches = len(given.stages), given.problem.workload.micro_batches
    orders: list[list[Op]] = []
    for d in range(devices):
        ahead = min(batches, devices - d)
        ops = [Op(Kind.F, d, m) for m in range(ahead)]
        for m in range(batches):
            ops += [Op(Kind.I, d, m), Op(Kind.W, d, m)]
            ops += [Op(Kind.F, d, m + ahead)] if m + ahead < batches else []
        orders.append(ops)
    return orders


def test_a_window_over_the_whole_step_finds_the_optimum() -> None:
    """300 with W after each I, 270 when everything is free."""
    given = candidate([line(4)], 8, 4)
    start = slow(given)
    assert assemble(given, start).forecast.step_s == 300
    better, outcome = improve(given, start, 0, 1e9, EFFORT)
    assert better is not None
    assert outcome.optimal
    plan = assemble(given, better)
    assert plan.forecast.step_s == pytest.approx(270)
    assert not any(excess(plan))
    assert check(plan) == []


def test_windows_only_change_what_is_inside() -> None:
    """Ops that start outside the slice keep their places; a window never makes the step longer."""
    given = candidate([line(4)], 12, 4)
    orders, best = slow(given), assemble(given, slow(given)).forecast.step_s
    start = best
    for lo in range(0, 450, 75):
        better, outcome = improve(given, orders, lo, lo + 150, EFFORT)
        assert not outcome.interrupted
        if better is None:
            continue
        plan = assemble(given, better)
        assert plan.forecast.step_s < best
        assert not any(excess(plan))
        assert [sorted(a) for a in better] == [sorted(b) for b in orders]
        assert [order[0] for order in better] == [order[0] for order in orders] or lo == 0
        orders, best = better, plan.forecast.step_s
    assert best < start


def test_windows_leave_stashes_that_travel_alone() -> None:
    """Offloaded stashes are not understood: no answer. Orders that wait in a circle raise."""
    given = candidate([line(2)], 2, 4)
    away = Candidate(given.problem, given.stages, given.pipelines, (("offload", "keep"),))
    assert improve(away, slow(given), 0, 100, EFFORT)[0] is None
    with pytest.raises(PlanError):
        improve(given, [order[::-1] for order in slow(given)], 0, 100, EFFORT)


@pytest.mark.parametrize(("leaves", "comes"), [(Kind.SEND_S, Kind.RECV_S), (Kind.OFFLOAD, Kind.FETCH)])
@pytest.mark.parametrize("at", [1, 2])
def test_what_leaves_and_comes_home_at_once_leaves_first(leaves: Kind, comes: Kind, at: int) -> None:
    """On links that take no time both are at one instant, where others' arrivals stand before what leaves."""
    listed = List([Run(0, 1, Op(Kind.F, 0, 0)), Run(1, 2, Op(Kind.F, 0, 1))])
    listed.send(Op(leaves, 0, 0), at)
    if comes is Kind.FETCH:
        listed.fetch(Op(comes, 0, 0), at)
    else:
        listed.receive(Op(comes, 0, 0), at)
    listed.receive(Op(Kind.RECV_S, 1, 0), at)
    posted = [op for op in listed.ops() if op.kind is not Kind.F]
    assert posted == [Op(Kind.RECV_S, 1, 0), Op(leaves, 0, 0), Op(comes, 0, 0)]
