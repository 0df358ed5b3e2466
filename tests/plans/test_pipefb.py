"""PipeFB without a flush: forward nodes, backward nodes, and what its plans do where memory is tight."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, passes, steady, uniform

from contraflow.planner import check
from contraflow.planner.basics.errors import InputError
from contraflow.planner.graph.candidate import Candidate
from contraflow.planner.graph.kept import kept_versions
from contraflow.planner.graph.updates import with_returns
from contraflow.planner.graph.versions import Versions
from contraflow.planner.lower.plans import assemble
from contraflow.planner.lower.repetition import repeat
from contraflow.planner.plan import Kind, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import build
from contraflow.planner.search.driver import Result
from contraflow.planner.search.driver import plan as search
from contraflow.planner.simulate import evaluate, simulate

# ------------------------------------------------------------------ the schedule


def test_half_of_the_devices_run_forwards() -> None:
    """Stage s forward on device s, backward on device D - 1 - s, and its new parameters back for F(D - 2s)."""
    plan = steady("pipefb", 4, 6)
    assert (plan.pipelines[0].forward, plan.pipelines[0].backward) == ((0, 1), (3, 2))
    assert passes(plan, 0) == "F0 F1 F2 F3 F4 F5"
    assert passes(plan, 2) == "B0 STEP0 B1 STEP1 B2 STEP2 B3 STEP3 B4 STEP4 B5 STEP5"
    words = " ".join(str(op) for op in plan.orders[0] if op.kind in (Kind.F, Kind.RECV_P))
    assert words == "0F0 0F1 0F2 0F3 0RECV_P0<3 0F4 0RECV_P1<3 0F5 0RECV_P2<3 0RECV_P3<3 0RECV_P4<3 0RECV_P5<3"


@pytest.mark.parametrize("devices", [1, 3, 5])
def test_an_odd_number_of_devices_is_refused(devices: int) -> None:
    with pytest.raises(InputError, match=rf"^pipefb: needs an even number of devices, got {devices}$"):
        build("pipefb", devices, 8)


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.sampled_from([Link(), Link(5.0, 0.2)]))
def test_every_size_is_executable_and_as_stale_as_its_forwards_are_ahead(
    stages: int, update: int, updates: int, link: Link
) -> None:
    """D - 2s micro-batches ahead at stage s: ceil((D - 2s - 1) / m) updates, once so many have been made."""
    model = uniform(stages, 1.0, 2.0, parameter_bytes=3, output_bytes=1, stash_bytes=2)
    workload = Workload(update * updates, update_every=update)
    cluster = Cluster.uniform(2 * stages, link=link)
    plan = named("pipefb", 2 * stages, update * updates, model=model, workload=workload, cluster=cluster)
    assert check(plan) == []
    most = Versions.of(plan).most_stale
    for stage in range(stages):
        ahead = 2 * (stages - stage)
        assert most[stage] == min(updates - 1, ceil((ahead - 1) / update))
        assert most[stage] <= ahead - 1
    longer = repeat(plan, update * (updates + 3)) if updates > 2 * stages + 2 else plan
    assert check(longer.with_forecast(evaluate(longer))) == []


@pytest.mark.parametrize(("devices", "update"), [(2, 4), (4, 4), (4, 7), (6, 6)])
def test_versions_that_last_an_update_come_in_between_updates(devices: int, update: int) -> None:
    """With 2BW's versions a device of forwards never holds a version beside the one in use and the one coming in."""
    stages, updates = devices // 2, 5
    model = uniform(stages, 1.0, 2.0, parameter_bytes=3, output_bytes=1, stash_bytes=2)
    problem = Problem(model, Cluster.uniform(devices), Workload(update * updates, update_every=update))
    layout = build("pipefb", devices, update * updates)
    names = tuple((layer.name,) for layer in model.layers)
    candidate = Candidate(problem, names, layout.pipelines, (), "2bw")
    orders = with_returns(candidate, layout.orders, [2 * (stages - s) for s in range(stages)])
    plan = assemble(candidate, orders)
    assert check(plan) == []
    for stage in range(stages):
        line = [op for op in plan.orders[stage] if op.kind in (Kind.F, Kind.RECV_P)]
        taken = [after for op, after in pairwise(line) if op.kind is Kind.RECV_P and after.kind is Kind.F]
        assert taken
        assert all(op.micro_batch % update == 0 for op in taken)
        assert not any(kept.stage == stage for kept in kept_versions(plan)[stage])


@pytest.mark.parametrize("devices", [2, 4, 6])
def test_no_forward_runs_away(devices: int) -> None:
    """It starts once the STEP that it waits for has ended; the period is the backward's, twice as long."""
    plan = steady("pipefb", devices, 4 * devices)
    assert plan.forecast.period_s == pytest.approx(2.0, rel=1e-12)
    start = {t.op[:3]: t.start_s for d in simulate(plan).devices for t in d.ops}
    end = {t.op[:3]: t.end_s for d in simulate(plan).devices for t in d.ops}
    for stage in range(devices // 2):
        ahead = devices - 2 * stage
        for m in range(ahead, 4 * devices):
            assert start[Kind.F, stage, m] >= end[Kind.STEP, stage, m - ahead] - 1e-9


# ------------------------------------------------------------------ plans within a limit


def tight(limit: int | None, space: SearchSpace, update: int | None = None, layers: int = 8) -> Result:
    """Equal layers with stashes of 40 bytes and parameters of 4, four devices, a host link as good as any."""
    model = uniform(layers, 1.0, 2.0, parameter_bytes=4, stash_bytes=40, output_bytes=2)
    node = NodeGroup(1, 4, DeviceType("device", 1 << 30, 1.0, None), Link(100.0, 0.01), None, Link(80.0, 0.01))
    workload = Workload(12, "momentum", memory_limit_bytes=limit, update_every=update)
    return search(model, Cluster((node,)), workload, space, 300, workers=1, deterministic_limit=0.1)


def peak(found: Result) -> int:
    """After the checker has seen the plan."""
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.plan.forecast is not None
    assert found.plan.forecast.objective_s >= found.bound_s
    return max(found.plan.forecast.peak_bytes)


@pytest.mark.slow
def test_what_pipedream_exceeds_on_every_cut_is_met_with_offload() -> None:
    """Below the least that it takes it is refused; the search keeps up the pace there through the host."""
    kept = SearchSpace("pipedream", offload=False, recompute=False)
    fits, fails = peak(tight(None, kept, layers=4)), 0
    while fits - fails > 16:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if tight(middle, kept, layers=4).plan is not None else (fits, middle)
    refused = tight(fails, kept, layers=4)
    assert (refused.status, refused.plan) == ("infeasible", None)
    assert refused.violations
    limit = fits * 9 // 10
    spaces = [SearchSpace(asynchronous=("stash",), offload=offload, recompute=False) for offload in (True, False)]
    away, slow = (tight(limit, space, layers=4) for space in spaces)
    assert max(peak(away), peak(slow)) <= limit
    assert away.plan is not None
    assert slow.plan is not None
    assert any("offload" in row for row in away.plan.stash)
    assert away.plan.forecast.period_s < slow.plan.forecast.period_s


@pytest.mark.parametrize(
    ("limit", "offload", "recompute", "policies", "period_s"),
    [
        (None, False, False, {"keep"}, 8.0),  # four layers' backwards
        (600, True, True, {"offload", "keep"}, 8.0),
        (300, False, True, {"recompute"}, 9.0),  # three layers a backward device, whose forwards it repeats
    ],
)
def test_pipefb_does_what_a_limit_asks_for(
    limit: int | None, offload: bool, recompute: bool, policies: set[str], period_s: float
) -> None:
    found = tight(limit, SearchSpace("pipefb", offload=offload, recompute=recompute))
    assert peak(found) <= (limit or 1 << 30)
    assert found.plan is not None
    assert {policy for row in found.plan.stash for policy in row} == policies
    assert found.plan.forecast.period_s == pytest.approx(period_s, rel=1e-9)


@pytest.mark.slow
def test_with_stashes_kept_fewer_are_on_their_way() -> None:
    """It fits and waits; with updates of two micro-batches too."""
    space, limit = SearchSpace("pipefb", offload=False, recompute=False), 220
    for update in (None, 2):
        found, free = tight(limit, space, update, layers=6), tight(None, space, update, layers=6)
        assert peak(found) <= limit < peak(free)
        assert found.plan.forecast.period_s > free.plan.forecast.period_s


def test_what_does_not_fit_says_how_many_bytes_are_missing() -> None:
    """Three layers' weights, gradients and momentum, and a stash: 36 and 40 bytes on one of three backward devices."""
    found = tight(75, SearchSpace("pipefb"))
    assert (found.status, found.plan) == ("infeasible", None)
    assert max(lack.over_bytes for lack in found.violations) >= 1


def test_devices_need_not_be_even() -> None:
    """Five layers on one forward device and two backward devices: three layers' backwards, or the forwards of all."""
    model, workload = uniform(5, 1.0, 2.0), Workload(16)
    found = search(model, Cluster.uniform(3), workload, SearchSpace("pipefb"))
    assert found.plan is not None
    assert check(found.plan) == []
    assert (found.status, found.plan.forecast.period_s) == ("optimal", pytest.approx(6.0, rel=1e-9))
    with pytest.raises(InputError, match=r"^pipefb: needs an even number of devices, got 1$"):
        search(model, Cluster.uniform(1), workload, SearchSpace("pipefb"))
    assert search(uniform(2), Cluster.uniform(5), workload, SearchSpace("pipefb")).plan is not None


def test_it_pays_where_devices_outnumber_layers() -> None:
    """Two layers on four devices: PipeDream leaves two idle and takes F + B, PipeFB the longer of both."""
    model, workload = uniform(2, 1.0, 2.0), Workload(16)
    for space, period_s in ((SearchSpace("pipedream"), 3.0), (SearchSpace("pipefb"), 2.0)):
        found = search(model, Cluster.uniform(4), workload, space).plan
        assert found is not None
        assert found.forecast.period_s == pytest.approx(period_s, rel=1e-9)


@pytest.mark.long
def test_a_longer_run_waits_for_room_as_the_plan_does() -> None:
    """A FETCH that stands behind the backward before its own stands there in every run."""
    found = tight(200, SearchSpace("pipefb", recompute=False), layers=4)
    assert peak(found) <= 200
    assert any(op.kind is Kind.FETCH for order in found.plan.orders for op in order)
    longer = repeat(found.plan, 60)
    assert max(evaluate(longer).peak_bytes) <= 200


def test_stashes_are_kept_where_copies_gain_nothing() -> None:
    """Equal periods but for round-off: the shorter run, without copies."""
    layers = [
        Layer(f"l{k}", 1.0, 2.0, separable=False, stash_bytes=10, output_bytes=1, parameter_bytes=4) for k in range(4)
    ]
    cluster = Cluster((NodeGroup(1, 4, DeviceType("toy", 1 << 20), Link(100.0), host_link=Link(50.0)),))
    found = search(ModelGraph.chain(layers), cluster, Workload(8), SearchSpace("pipefb"), 5).plan
    assert found is not None
    assert found.stash == (("keep", "keep"),)
