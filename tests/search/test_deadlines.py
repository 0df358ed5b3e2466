"""What keeps plan() within its time limit: work that looks at the deadline, and that is not done again and again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from instances import uniform

from contraflow.planner import Cluster, Plan, SearchSpace, Workload
from contraflow.planner import plan as search
from contraflow.planner.basics import OutOfTime, PlanError, until
from contraflow.planner.basics.garbage import OBJECTS
from contraflow.planner.graph import Versions
from contraflow.planner.lower import period_seconds, repeat
from contraflow.planner.plan import Kind
from contraflow.planner.search.common import Progress
from contraflow.planner.search.named.portfolio import named_layouts
from contraflow.planner.search.steady.build import excess_for_long


def pipefb(micro_batches: int) -> Plan:
    """Forwards on one device, backwards on another."""
    found = search(uniform(4, 1, 2), Cluster.uniform(4), Workload(micro_batches), SearchSpace("pipefb"), 20).plan
    assert found is not None
    return found


def test_a_shorter_run_reads_its_versions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a device, which took seconds where 64 of them send new parameters."""
    calls, of = [], Versions.of

    def counted(plan: Plan) -> Versions:
        calls.append(plan)
        return of(plan)

    plan = pipefb(16)
    monkeypatch.setattr(Versions, "of", counted)
    short = repeat(plan, 8)
    assert any(op.kind is Kind.SEND_P for order in short.orders for op in order)
    assert len(calls) == 1


@pytest.mark.parametrize("work", [excess_for_long, period_seconds])
def test_what_is_not_done_in_time_is_not_answered(work: Callable[[Plan], object]) -> None:
    """As if the plan had no longer run: a period or a peak that is not that of its steady state."""
    plan = pipefb(4)
    with until(time.monotonic() - 1), pytest.raises(OutOfTime):
        work(plan)
    assert not issubclass(OutOfTime, PlanError)


@pytest.mark.parametrize("name", ["search", "chimera"])
def test_layouts_are_made_while_there_is_time(name: str) -> None:
    with until(time.monotonic() - 1), pytest.raises(OutOfTime):
        next(named_layouts(SearchSpace(name), 8, 16, 8))


def test_garbage_is_collected_seldom_while_it_searches() -> None:
    """And as often as before at its end, whatever that was."""
    before, seen = gc.get_threshold(), list[int]()

    def heard(_: Progress) -> None:
        seen.append(gc.get_threshold()[0])

    for youngest in (before[0], 2 * OBJECTS, 0):
        try:
            gc.set_threshold(youngest, *before[1:])
            search(uniform(4, 1, 2), Cluster.uniform(2), Workload(4), SearchSpace("1f1b"), 20, on_progress=heard)
            assert gc.get_threshold() == (youngest, *before[1:])
        finally:
            gc.set_threshold(*before)
    assert set(seen) == {OBJECTS, 2 * OBJECTS, 0}
