"""A stash policy that is none, or one that a table has no column for, is refused: never taken for another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instances import one_layer_a_stage, uniform

from contraflow.planner import Cluster, Link, SearchSpace, Workload, bounds, plan
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate
from contraflow.planner.partition import StashChoice, choices
from contraflow.planner.plan import Kind, Pipeline, Problem
from contraflow.planner.search.exact.instance import Rules, Stash
from contraflow.planner.search.exact.search import solve
from contraflow.planner.search.exact.solver import Effort
from contraflow.planner.search.orders.arrays import build
from contraflow.planner.search.steady.alternatives import alternatives

UNKNOWN = ("zip", "ship>", "ship>x", "Keep", "offload+", "")
MODEL = uniform(2, 1.0, 2.0, output_bytes=1)
PROBLEM = Problem(MODEL, Cluster.uniform(2, 100, Link(10.0)), Workload(4))
LINE = Pipeline((0, 1), (0, 1), (0, 1, 2, 3))
EFFORT = Effort(5, 1)


def candidate(policy: str = "keep", back: tuple[int, int] = (0, 1)) -> Candidate:
    """Two stages, the first with a policy."""
    pipeline = Pipeline(LINE.forward, back, LINE.micro_batches)
    return Candidate(PROBLEM, one_layer_a_stage(MODEL), (pipeline,), ((policy, "keep"),))


def unchecked(policy: str) -> Candidate:
    """A candidate whose policy nobody has looked at."""
    found = candidate()
    object.__setattr__(found, "stash", ((policy, "keep"),))
    return found


ENTRIES: dict[str, Callable[[str], object]] = {
    "candidate": candidate,
    "bound of a candidate": lambda name: bounds.candidate(unchecked(name)),
    "arrays": lambda name: build(unchecked(name)),
    "exact search": lambda name: solve(candidate(), EFFORT, Rules(policies=frozenset({"keep", name}))),
    "exact search over devices": lambda name: solve(
        candidate(), EFFORT, Rules(policies=frozenset({"keep", name}), open=True)
    ),
    "cuts with choices": lambda name: choices(["recompute", name]),
    "search without a flush": lambda name: alternatives(PROBLEM, SearchSpace(asynchronous=("stash",)))[0].programme(
        stashes=("keep", name)
    ),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_policies_are_refused(entry: str, name: str) -> None:
    with pytest.raises(PlanError):
        ENTRIES[entry](name)


def test_a_hint_with_an_unknown_policy_is_refused() -> None:
    found = plan(MODEL, PROBLEM.cluster, PROBLEM.workload, time_limit=1).plan
    assert found is not None
    object.__setattr__(found, "stash", tuple(("zip",) * len(row) for row in found.stash))
    with pytest.raises(PlanError, match="zip"):
        plan(MODEL, PROBLEM.cluster, PROBLEM.workload, time_limit=1, hint=found)


def test_arrays_refuse_what_they_have_no_columns_for() -> None:
    with pytest.raises(PlanError, match="order search"):
        build(candidate("offload+weights"))
    with pytest.raises(PlanError, match="one device"):
        build(candidate("keep", (1, 0)))


def test_tables_by_kind_refuse_other_kinds() -> None:
    stash = Stash(1, 1, 1, 1, 1)
    for kind in Kind:
        if kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R):
            assert stash.running(kind) == 1
        else:
            with pytest.raises(KeyError):
                stash.running(kind)


@pytest.mark.parametrize(("name", "quarters", "depth"), [("recompute", 5, 0), ("recompute", 1, 1), ("offload", 4, 0)])
def test_what_is_no_choice_is_refused(name: str, quarters: int, depth: int) -> None:
    with pytest.raises(PlanError, match="no stash choice"):
        StashChoice(name, quarters, depth)
