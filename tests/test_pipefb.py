"""PipeFB without a flush: forward nodes, backward nodes, and what its plans do where memory is tight."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, uniform
from steady_plans import passes, planned

from contraflow.planner import check
from contraflow.planner.cluster import Link
from contraflow.planner.errors import InputError
from contraflow.planner.plan import Kind
from contraflow.planner.repeat import repeat
from contraflow.planner.schedules import build
from contraflow.planner.simulate import evaluate, simulate
from contraflow.planner.versions import Versions
from contraflow.planner.workload import Workload

# ------------------------------------------------------------------ the schedule


def test_half_of_the_devices_run_forwards() -> None:
    """Stage s forward on device s, backward on device D - 1 - s, and its new parameters back for F(D - 2s)."""
    plan = planned("pipefb", 4, 6)
    assert (plan.pipelines[0].forward, plan.pipelines[0].backward) == ((0, 1), (3, 2))
    assert passes(plan, 0) == "F0 F1 F2 F3 F4 F5"
    assert passes(plan, 2) == "B0 STEP0 B1 STEP1 B2 STEP2 B3 STEP3 B4 STEP4 B5 STEP5"
    words = " ".join(str(op) for op in plan.orders[0] if op.kind in (Kind.F, Kind.RECV_P))
    assert words == "0F0 0F1 0F2 0F3 0RECV_P0<3 0F4 0RECV_P1<3 0F5 0RECV_P2<3 0RECV_P3<3 0RECV_P4<3 0RECV_P5<3"


@pytest.mark.parametrize("devices", [1, 3, 5])
def test_an_odd_number_of_devices_is_refused(devices: int) -> None:
    with pytest.raises(InputError, match=f"^pipefb: needs an even number of devices, got {devices}$"):
        build("pipefb", devices, 8)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.sampled_from([Link(), Link(5.0, 0.2)]))
def test_every_size_is_executable_and_as_stale_as_its_forwards_are_ahead(
    stages: int, update: int, updates: int, link: Link
) -> None:
    """D - 2s micro-batches ahead at stage s: ceil((D - 2s - 1) / m) updates, once so many have been made."""
    model = uniform(stages, 1.0, 2.0, parameter_bytes=3, output_bytes=1, stash_bytes=2)
    workload = Workload(update * updates, update_every=update)
    plan = named("pipefb", 2 * stages, update * updates, link=link, model=model, workload=workload)
    assert check(plan) == []
    most = Versions.of(plan).most_stale
    for stage in range(stages):
        ahead = 2 * (stages - stage)
        assert most[stage] == min(updates - 1, ceil((ahead - 1) / update))
        assert most[stage] <= ahead - 1
    longer = repeat(plan, update * (updates + 3)) if updates > 2 * stages + 2 else plan
    assert check(longer.with_forecast(evaluate(longer))) == []


@pytest.mark.parametrize("devices", [2, 4, 6])
def test_no_forward_runs_away(devices: int) -> None:
    """It starts once the STEP that it waits for has ended; the period is the backward's, twice as long."""
    plan = planned("pipefb", devices, 4 * devices)
    assert plan.forecast.period_s == pytest.approx(2.0, rel=1e-12)
    start = {t.op[:3]: t.start_s for d in simulate(plan).devices for t in d.ops}
    end = {t.op[:3]: t.end_s for d in simulate(plan).devices for t in d.ops}
    for stage in range(devices // 2):
        ahead = devices - 2 * stage
        for m in range(ahead, 4 * devices):
            assert start[Kind.F, stage, m] >= end[Kind.STEP, stage, m - ahead] - 1e-9
