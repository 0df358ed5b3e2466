"""What is not known is refused wherever a plan is read: no policy and no kind of op is ever taken for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from instances import uniform
from pictures import two_device_plan

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.forecast.jobs import build
from contraflow.planner.forecast.timeline import simulate_orders
from contraflow.planner.graph import (  # fmt: skip
    Candidate,
    Homes,
    costs_of,
    messages,
    regroup,
    ship_target,
    stash_hops,
    stash_policy,
    update_size,
)
from contraflow.planner.graph.columns import Ops
from contraflow.planner.graph.versions import Versions
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build as schedule
from contraflow.planner.simulate import evaluate, simulate
from contraflow.planner.view import html
from contraflow.planner.view.palette import paint

STRANGE = ["burn", "Keep", "keep ", "", "ship>", "ship>-1", "ship>01", "ship>1 ", "ship>٣", "offload+", "recompute>1"]


def with_stash(policy: str) -> Plan:
    plan = two_device_plan()
    return replace(plan, stash=((policy, "keep"),))


READS: dict[str, Callable[[Plan], Any]] = {
    "simulate": simulate,
    "evaluate": evaluate,
    "html": html,
    "simulate_orders": lambda plan: simulate_orders(plan, costs_of(plan), plan.orders),
    "messages": lambda plan: list(messages(plan, costs_of(plan))),
    "homes": lambda plan: Homes.of(plan, 4),
}


@pytest.mark.parametrize("policy", STRANGE)
def test_a_stash_policy_that_is_none_is_refused(policy: str) -> None:
    """By whoever takes it apart, and by the checker with its place."""
    for read in (stash_policy, ship_target, lambda text: stash_hops(Pipeline((0,), (0,), (0,)), 0, text)):
        with pytest.raises(PlanError, match="unknown stash policy"):
            read(policy)
    assert [violation.code for violation in check(with_stash(policy))] == ["stash"]


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_plan_with_a_policy_that_is_none_is_not_read_as_another(read: Callable[[Plan], Any]) -> None:
    with pytest.raises((PlanError, ValueError), match="stash policy 'burn'"):
        read(with_stash("burn"))


def test_a_candidate_with_a_policy_that_is_none_is_not_made() -> None:
    """Neither of stashes nor of weights."""
    problem, layout = Problem(uniform(2), Cluster.uniform(2), Workload(2)), schedule("1f1b", 2, 2)
    stages = (("layer0",), ("layer1",))
    with pytest.raises(PlanError, match="unknown stash policy 'burn'"):
        assemble(Candidate(problem, stages, layout.pipelines, (("keep", "burn"),)), layout.orders)
    with pytest.raises(PlanError, match="unknown stash policy 'burn'"):
        regroup(problem, stages, layout.pipelines, {0: ("burn", "keep")})
    with pytest.raises(PlanError, match="unknown weight policy 'magic'"):
        Candidate(problem, stages, layout.pipelines, weights="magic")


@pytest.mark.parametrize("read", [simulate, evaluate, update_size, Versions.of])
def test_a_weight_policy_that_is_none_is_refused(read: Callable[[Plan], Any]) -> None:
    plan = replace(two_device_plan(), weights="magic")
    with pytest.raises(PlanError, match="unknown weight policy 'magic'"):
        read(plan)
    assert check(plan)[0].code == "weights"


@pytest.mark.parametrize("kind", [-1, len(Kind), 10**9, 10**30])
def test_an_op_of_no_kind_is_refused(kind: int) -> None:
    plan = two_device_plan()
    strange = Op(kind, 0, 0)  # type: ignore[arg-type]
    broken = replace(plan, orders=((*plan.orders[0], strange), plan.orders[1]))
    assert [violation.code for violation in check(broken)] == ["unexpected-op"]
    with pytest.raises(PlanError):
        simulate(broken)
    with pytest.raises(PlanError):
        build(plan, costs_of(plan), broken.orders)
    with pytest.raises(PlanError):
        Ops.of(broken.orders, 2)


@pytest.mark.parametrize("kind", [kind for kind in Kind if "_" in kind.name or kind is Kind.FREE])
def test_what_has_no_colour_gets_none(kind: Kind) -> None:
    """A message is an arrow."""
    with pytest.raises(KeyError):
        paint(kind, 0, 0.0)


@pytest.mark.parametrize(
    "broken",
    [{"stash": ()}, {"stash": (("keep",),)}, {"pipelines": ()}, {"stash": (("burn", "keep"),)}, {"weights": "magic"}],
    ids=str,
)
def test_the_executor_refuses_what_is_no_plan_before_it_reads_any_of_it(broken: dict[str, Any]) -> None:
    """Rows that are missing, and policies that are none."""
    from contraflow.executor.basics.errors import RunError
    from contraflow.executor.state.validate import require_executable

    with pytest.raises(RunError, match="the plan fails its check"):
        require_executable(replace(two_device_plan(), **broken))
