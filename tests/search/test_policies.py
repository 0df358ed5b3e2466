"""What plan() does with stashes besides keeping them: known answers, tight limits, and what has no price.

F = I = W = 10 a device, half of a stash held for the weights, messages of 0 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from instances import nothing_better, step_of

from contraflow.planner.check import check
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.common.fit import excess
from contraflow.planner.search.common.shapes import policies
from contraflow.planner.search.driver import Result, plan

STASH = 16
SIX = Link(STASH / 6)
"""A host link over which a stash takes 6 s."""
KEEP_ALL = SearchSpace(pipelines=1, offload=False, recompute=False)


def problem(
    devices: int, batches: int, limit: float, host: Link, inputs: int | None, layers: int | None = None
) -> Problem:
    """A uniform chain, `limit` stashes a device; every layer's input, of so many bytes, is what recompute keeps."""
    per_device = (layers or devices) // devices
    size, seconds = STASH // per_device, 10 / per_device
    chain = [
        Layer(f"l{k}", seconds, seconds, seconds, stash_bytes=size, weight_stash_bytes=size // 2, input_bytes=inputs)
        for k in range(devices * per_device)
    ]
    cluster = Cluster((NodeGroup(1, devices, DeviceType("x", int(STASH * limit)), host_link=host),))
    return Problem(ModelGraph.chain(chain), cluster, Workload(batches))


def solve(asked: Problem, space: SearchSpace, seconds: float = 30, effort: float | None = None) -> Result:
    """plan(), whose plan, where there is one, is valid, fits, and is not below the bound."""
    found = plan(asked.model, asked.cluster, asked.workload, space, seconds, deterministic_limit=effort)
    if found.plan is not None:
        assert check(found.plan) == []
        assert not any(excess(found.plan))
        assert found.bound_s <= step_of(found) * (1 + 1e-9)
    return found


def used(found: Plan | None) -> set[str]:
    """The policies of a plan's stashes."""
    assert found is not None
    return {policy for row in found.stash for policy in row}


# ------------------------------------------------------------------ what is allowed


@pytest.mark.parametrize(
    ("host", "inputs", "space", "expected"),
    [
        (Link(), None, SearchSpace(), []),
        (SIX, None, SearchSpace(), ["offload"]),
        (Link(), 2, SearchSpace(), ["recompute"]),
        (SIX, 2, SearchSpace(), ["recompute", "offload"]),
        (SIX, 2, SearchSpace(offload=False), ["recompute"]),
        (SIX, 2, SearchSpace(recompute=False), ["offload"]),
        (SIX, 2, SearchSpace(offload=False, recompute=False), []),
        (Link(latency_s=1), 0, SearchSpace(), []),
    ],
)
def test_only_what_has_a_price_is_used(
    host: Link, inputs: int | None, space: SearchSpace, expected: Sequence[str]
) -> None:
    """Offload where the host link's bandwidth is known, recompute where tensors between layers have sizes."""
    assert policies(problem(4, 8, 2, host, inputs), space) == list(expected)


def test_nothing_but_keeping_where_memory_holds_all() -> None:
    """Two devices, four micro-batches: eight stashes and their inputs fit one device."""
    assert policies(problem(2, 4, 9, SIX, 2), SearchSpace()) == []
    assert policies(problem(2, 4, 2, SIX, 2), SearchSpace()) == ["recompute", "offload"]


def test_a_host_link_without_a_price_anywhere_is_enough_to_stay() -> None:
    """A cluster whose second node says nothing of its host links offloads nowhere."""
    given = problem(4, 8, 2, SIX, None)
    group = replace(given.cluster.nodes[0], devices=2)
    mixed = Cluster((group, replace(group, host_link=Link())))
    assert policies(replace(given, cluster=mixed), SearchSpace()) == []


# ------------------------------------------------------------------ known answers


@pytest.mark.parametrize(
    ("limit", "host", "inputs", "expected", "policy"),
    [
        (2, Link(), None, 410, "keep"),
        (2, SIX, None, 280, "offload"),
        (2, Link(), STASH // 8, 310, "recompute"),
        (3, Link(), None, 310, "keep"),
        (3, SIX, None, 270, "offload"),
        (3, Link(), STASH // 8, 290, "recompute"),
    ],
)
def test_known_answers(limit: int, host: Link, inputs: int | None, expected: float, policy: str) -> None:
    """Four devices, eight micro-batches, one pipeline: proven optimal among plans with one device a stage.

    Links without a price are free: shipped over them, stashes would need no waiting.
    """
    found = solve(problem(4, 8, limit, host, inputs), SearchSpace(pipelines=1), 60)
    assert nothing_better(found)
    assert step_of(found) == pytest.approx(expected)
    assert used(found.plan) == {"keep", policy}


@pytest.mark.parametrize("space", [KEEP_ALL, SearchSpace(pipelines=1, offload=False)])
def test_flags_switch_policies_off(space: SearchSpace) -> None:
    """With everything priced, only what is allowed is used: 410 and 310 as if there were no host links."""
    found = solve(problem(4, 8, 2, SIX, STASH // 8), space, 60)
    assert step_of(found) == pytest.approx(310 if space.recompute else 410)
    assert used(found.plan) <= {"keep", "recompute"} if space.recompute else {"keep"}


# ------------------------------------------------------------------ where keeping is not possible


@pytest.mark.long
@pytest.mark.parametrize(("host", "inputs", "policy"), [(SIX, None, "offload"), (Link(), 1, "recompute")])
def test_plans_where_keeping_is_infeasible(host: Link, inputs: int | None, policy: str) -> None:
    """Three quarters of a device's share: one micro-batch has all its stashes at once, which do not fit."""
    given = problem(2, 3, 0.75, host, inputs, layers=8)
    kept = solve(given, replace(KEEP_ALL, pipelines=None), 5)
    assert (kept.status, kept.plan) == ("infeasible", None)
    assert all(lack.over_bytes > 0 for lack in kept.violations)
    found = solve(given, SearchSpace(), 60, 0.5)
    assert policy in used(found.plan)
    assert kept.bound_s >= found.bound_s * (1 - 1e-9)


def test_no_policy_holds_less_than_one_layer_needs() -> None:
    """A limit below one layer's stash is infeasible whatever is allowed."""
    found = solve(problem(2, 3, 0.2, SIX, 1, layers=8), SearchSpace(), 5)
    assert (found.status, found.plan) == ("infeasible", None)


@pytest.mark.long
@pytest.mark.parametrize(("host", "inputs"), [pytest.param(SIX, None, marks=pytest.mark.slow), (Link(), STASH // 8)])
def test_a_policy_more_is_never_worse(host: Link, inputs: int | None) -> None:
    """With memory for a third of the micro-batches in flight, policies pay."""
    given = problem(6, 12, 2, host, inputs)
    kept = solve(given, KEEP_ALL, 60, 0.2)
    free = solve(given, SearchSpace(pipelines=1), 60, 1)
    assert step_of(free) < step_of(kept) * 0.95
    assert free.bound_s <= kept.bound_s * (1 + 1e-9)
    assert used(free.plan) - {"keep"} <= {"recompute", "offload"}
