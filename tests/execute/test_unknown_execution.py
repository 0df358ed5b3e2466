"""What the executor does not know it refuses; nothing is taken for something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from runs import Case, planned

from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.emulation import emulate
from contraflow.executor.run.launch import execute
from contraflow.executor.state.prediction import Predictor
from contraflow.planner.basics.errors import InputError
from contraflow.planner.plan import Plan

RUNS: dict[str, Callable[[Plan], object]] = {
    "execute": lambda plan: execute(plan, 1, transport="threads"),
    "emulate": lambda plan: emulate(plan, [1]),
}


def _with_kind(plan: Plan, kind: int) -> Plan:
    first, *others = plan.orders[0]
    return replace(plan, orders=((first._replace(kind=kind), *others), *plan.orders[1:]))  # type: ignore[arg-type]


PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "stash policy": (lambda plan: replace(plan, stash=(("keep", "burn"),)), "'burn'"),
    "ship target": (lambda plan: replace(plan, stash=(("keep", "ship>x"),)), "'ship>x'"),
    "weight policy": (lambda plan: replace(plan, weights="frosh"), "'frosh'"),
    "op kind": (lambda plan: _with_kind(plan, 99), "kind 99"),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("what", PLANS)
def test_unknown_names_in_a_plan_are_refused(run: str, what: str) -> None:
    """One line that names them."""
    change, says = PLANS[what]
    with pytest.raises(InputError, match=says) as caught:
        RUNS[run](change(planned(Case("1f1b", "mlp-tiny", 2, 4))))
    assert "\n" not in str(caught.value)


def test_an_unknown_optimizer_has_no_prediction() -> None:
    """It is not Adam."""
    with pytest.raises(RunError, match="'lion'"):
        Predictor("lion", Training())
