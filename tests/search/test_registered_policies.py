"""A stash policy that a user registers is chosen by plan() where it is best, and no claim leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from instances import step_of

from contraflow.planner import bounds
from contraflow.planner.basics import PlanError
from contraflow.planner.check import check
from contraflow.planner.graph import INCOMING, POLICIES, STASH, Candidate, Content, Hold, StashPolicy, Where, register
from contraflow.planner.plan import COPIES, Kind, Pipeline, Plan, Problem
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, NodeGroup, SearchSpace, Workload
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search import plan
from contraflow.planner.search.common import fits, registered
from contraflow.planner.search.orders import Arm, simulated

TO_HOST = StashPolicy(
    "offload+recompute",
    COPIES | {Kind.R},
    (
        Hold(Kind.F, Kind.OFFLOAD, INCOMING),
        Hold(Kind.OFFLOAD, Kind.FETCH, INCOMING, Where.HOST),
        Hold(Kind.FETCH, Kind.R, INCOMING),
        Hold(Kind.R, Kind.B, STASH),
    ),
)
PART = Content("a part of the stash", "stashes", lambda costs: costs.stash_bytes // 4)
PARTLY = StashPolicy(
    "partly",
    frozenset({Kind.R}),
    (Hold(Kind.F, Kind.R, INCOMING), Hold(Kind.F, Kind.R, PART), Hold(Kind.R, Kind.B, STASH)),
)


@pytest.fixture(params=[TO_HOST, PARTLY], ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Iterator[StashPolicy]:
    """A policy of a user, in the table during one test."""
    added: StashPolicy = request.param
    register(added)
    yield added
    del POLICIES[added.name]


def problem(room: int = 165, forward_s: float = 10) -> Problem:
    """Four equal stages of 100 bytes of stashes and 30 of incoming tensors; stashes are made sooner than copied."""
    layers = [
        Layer(f"l{k}", forward_s, 10, 10, stash_bytes=100, weight_stash_bytes=50, input_bytes=30) for k in range(4)
    ]
    cluster = Cluster((NodeGroup(1, 4, DeviceType("x", room), host_link=Link(100 / 60)),))
    return Problem(ModelGraph.chain(layers), cluster, Workload(8))


def planned(asked: Problem, space: SearchSpace) -> tuple[Plan, float]:
    """The plan of a short search, which the checker accepts, and its bound."""
    found = plan(asked.model, asked.cluster, asked.workload, space, 20, deterministic_limit=0.3)
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.bound_s <= step_of(found) * (1 + 1e-9)
    return found.plan, found.bound_s


@pytest.mark.long
@pytest.mark.parametrize("row", [TO_HOST], ids=[TO_HOST.name], indirect=True)
def test_plan_chooses_it_where_it_is_best(row: StashPolicy) -> None:
    space = SearchSpace(pipelines=1, separate_backward=False)
    asked = problem(150, 30)
    with_it, bound_s = planned(asked, space)
    assert row.name in {policy for line in with_it.stash for policy in line}
    assert bound_s == bounds.any_plan(asked)
    assert row.name in with_it.provenance.space
    saved = POLICIES.pop(row.name)
    try:
        without, _ = planned(asked, space)
    finally:
        POLICIES[row.name] = saved
    assert with_it.forecast is not None
    assert without.forecast is not None
    assert with_it.forecast.step_s < without.forecast.step_s


def test_flags_forbid_it_like_ours(row: StashPolicy) -> None:
    asked = problem()
    assert registered(asked, SearchSpace()) == [row.name]
    assert registered(asked, SearchSpace(recompute=False)) == []
    assert registered(asked, SearchSpace(offload=False)) == [] if row.hosted else [row.name]
    roomy = replace(asked, workload=replace(asked.workload), cluster=Cluster.uniform(4, 1 << 40, Link(1.0)))
    assert registered(roomy, SearchSpace()) == []


def test_orders_are_annealed_with_what_stays_on_its_device(row: StashPolicy) -> None:
    """The arrays hold what the row says: the arm's order takes as long when it is simulated, and fits."""
    asked = problem(300)
    line = Pipeline((0, 1, 2, 3), (0, 1, 2, 3), tuple(range(8)))
    candidate = Candidate(asked, tuple((x.name,) for x in asked.model.layers), (line,), ((row.name,) * 4,))
    if row.leaves:
        with pytest.raises(PlanError, match="leaves its device"):
            Arm(candidate, True, False, 0)
        return
    arm = Arm(candidate, True, False, 0)
    arm.start(4, 0.0, np.zeros(1, dtype=np.int64))
    made = simulated(arm)
    assert made is not None
    assert made.forecast is not None
    assert made.forecast.step_s == pytest.approx(arm.seconds)
    assert arm.arrays.delta.reshape(-1, 4)[:4].tolist() == [[55] * 4, [-50] * 4, [-50] * 4, [45] * 4]
    assert check(made) == []
    assert fits(made)
