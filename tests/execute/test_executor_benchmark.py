"""The executor benchmark: torch's schedules train as ours do, idle time is told apart, tables tell what is wrong."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import profiled

from contraflow.executor.place.records import OpRecord
from contraflow.planner import Cluster, Workload, check
from contraflow.planner.plan import Kind, Op
from contraflow.planner.problem.cluster import DeviceType, Link, NodeGroup

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
contender: Any = importlib.import_module("executor_contender")
rows: Any = importlib.import_module("executor_rows")
plans: Any = importlib.import_module("executor_plans")
benchmark: Any = importlib.import_module("executor")

LINK = Link(1e9, 1e-4)
CLUSTER = Cluster((NodeGroup(1, 2, DeviceType("custom", 1 << 32), LINK, host_link=LINK),))


def made(*names: str) -> dict[str, Any]:
    graph = profiled("mlp-tiny", torch.float32)
    return dict(plans.plans(graph, CLUSTER, Workload(4, "adam"), names, 1))


@pytest.mark.slow
def test_torchs_schedules_and_ours_train_to_the_same_losses() -> None:
    """Each of the three that both have, for the three rounds that a spent time leaves; every table has its rows."""
    ours = made("1f1b", "interleaved", "zb-v", "1f1b recompute")
    found = contender.compete(list(benchmark.entries(ours)), contender.Pacing(0, 4, 0.0), lambda _: None)
    assert {len(rounds) for rounds in found.values()} == {contender.LEAST}
    assert {f"torch {peer}" for peer in plans.PEERS.values()} < set(found)
    result = benchmark.compared(ours, found)
    assert result.faults == []
    assert [row.plan for row in result.speed] == ["1f1b", "interleaved", "zb-v"]
    assert [row.plan for row in result.forecast] == list(ours)
    for row in result.overhead:
        assert row.step_s >= row.ops_s > 0
    made_by = rows.Origin("python benchmarks/executor.py", "1", "a machine", "2026-11-22")
    speed, overhead = rows.speed_table(result.speed, made_by), rows.overhead_table(result.overhead, made_by)
    forecast = rows.forecast_table(result.forecast, made_by)
    for table, count in ((speed, 3), (overhead, 4), (forecast, 5)):
        assert len(table.rows) == count
        assert len(table.text().splitlines()) == count + 1
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_plans_with_moving_stashes_pass_the_checker() -> None:
    """Every backward with its R; a FETCH for every stash but the last stage's."""
    found = made("1f1b recompute", "1f1b offload")
    kinds = {name: [op.kind for order in p.orders for op in order] for name, p in found.items()}
    assert all(check(p) == [] for p in found.values())
    assert kinds["1f1b recompute"].count(Kind.R) == kinds["1f1b recompute"].count(Kind.B) == 8
    assert kinds["1f1b offload"].count(Kind.FETCH) == 4


def record(kind: Kind, stage: int, m: int, start: float, end: float) -> OpRecord:
    return OpRecord(Op(kind, stage, m), start, end)


def test_idle_time_has_three_causes() -> None:
    """Device 1 waits until 2 for device 0's forward, 0.5 for the message, and 0.25 for nothing between B and STEP."""
    first = contender.Outcome(6.0, ops=[record(Kind.F, 0, 0, 0, 2)])
    ops = [
        record(Kind.RECV_F, 1, 0, 0, 2.5),
        record(Kind.F, 1, 0, 2.5, 3.5),
        record(Kind.B, 1, 0, 3.5, 5),
        record(Kind.STEP, 1, -1, 5.25, 5.75),
    ]
    found = rows.Overhead.of("some", [[first, contender.Outcome(6.0, ops=ops)]])
    assert (found.ops_s, found.waited_s, found.messages_s, found.own_s) == (3.0, 2.0, 0.5, 0.5)
    assert found.ops_s + found.waited_s + found.messages_s + found.own_s == found.step_s == 6.0
    assert found.over == 2.0
    assert found.beyond_plan == pytest.approx(4 / 3)


def test_other_losses_are_a_fault() -> None:
    """A ratio of times means nothing when the two do different things."""
    one, two = ([[contender.Outcome(s, losses={0: loss})]] for s, loss in ((1.0, 3.0), (2.0, 3.1)))
    row = rows.Speed.of("ours", one, "theirs", two)
    assert row.ratio == 2.0
    assert row.faults == ["ours, round 0: loss 3, theirs 3.1"]
    assert rows.wrong_losses({"a": one, "b": two}) == ["b trains to other losses than a: 3.1 and 3"]
    assert rows.wrong_losses({"a": one, "b": one}) == []
