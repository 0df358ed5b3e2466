"""Split backwards, recomputed, offloaded and shipped stashes: exactly as in one process, within the planned memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from runs import (
    Case,
    assert_equals_reference,
    assert_within_plan,
    dealt_out,
    in_threads,
    planned,
    run_together,
    truth,
    worst_excess,
)
from torch import Tensor, nn

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.place import CPU, OpRecord, Times
from contraflow.executor.place.memory import StorageTracker
from contraflow.executor.run.launch import execute
from contraflow.executor.step import copies
from contraflow.executor.step.copies import HostCopy, ThreadMoves
from contraflow.executor.step.waits import waits
from contraflow.models import LayeredModel, LayerSpec
from contraflow.planner.check import check
from contraflow.planner.graph import regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import IN_LINE, RECEIVES, SENDS, Kind, Op, Pipeline, Plan
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.simulate import simulate

LEAVING = SENDS | {Kind.OFFLOAD}
IN_THREADS = [
    Case("1f1b", "gpt-tiny", 2, 4, halves=True),
    Case("interleaved", "mlp", 2, 4, "adam", halves=True),
    Case("1f1b", "gpt-tiny-dropout", 2, 4, stash="recompute"),
    Case("1f1b", "resnet-tiny", 2, 4, stash="odd recompute"),
    Case("1f1b", "gpt-tiny-dropout", 2, 4, stash="selective", halves=True),
    Case("interleaved", "llama-tiny", 2, 4, stash="odd selective"),
    Case("chimera", "resnet-tiny", 2, 4, stash="selective"),
    Case("chimera", "resnet-tiny", 2, 4, stash="recompute", halves=True),
    Case("gpipe", "gpt-tiny", 2, 4, stash="offload", halves=True),
    Case("1f1b", "resnet-tiny", 2, 4, stash="odd offload"),
    Case("chimera", "mlp-deep", 4, 4, stash="odd offload", halves=True),
    Case("gpipe", "gpt-tiny", 2, 4, stash="ship"),
    Case("1f1b", "mlp-deep", 4, 8, stash="ship", halves=True),
    Case("gpipe", "resnet-tiny", 2, 4, stash="odd ship"),
]


@pytest.mark.parametrize("case", IN_THREADS, ids=str)
def test_threads_equal_single_process_within_the_planned_memory(case: Case) -> None:
    """Losses, parameters and buffers after five steps, and every device's peak."""
    result = in_threads(case)
    assert_equals_reference(case, result)
    assert_within_plan(result)


TOGETHER = [
    [
        Case("gpipe", "gpt-tiny", 2, 4, stash="odd offload", halves=True),
        Case("1f1b", "mlp", 2, 4, stash="ship", halves=True),
    ],
    [
        Case("1f1b", "gpt-tiny-dropout", 2, 4, stash="recompute", halves=True),
        Case("1f1b", "mlp", 2, 4, stash="offload"),
        Case("1f1b", "gpt-tiny", 2, 4, stash="ship", halves=True),
    ],
]


@pytest.mark.parametrize(
    "cases", [TOGETHER[0], pytest.param(TOGETHER[1], marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_processes_equal_single_process_within_the_planned_memory(cases: list[Case], tmp_path: Path) -> None:
    """The same on gloo processes."""
    for case, result in zip(cases, run_together(cases, tmp_path), strict=True):
        assert_equals_reference(case, result)
        assert_within_plan(result)


# ---------------------------------------------------------------- what each policy saves


GPT = Case("gpipe", "gpt-tiny", 2, 4)


@pytest.mark.parametrize("stash", ["recompute", "offload"])
def test_a_stash_that_is_not_kept_is_not_there(stash: str) -> None:
    """Four stashes at once become one or two; the measured peak is near the plan's."""
    kept, lean = planned(GPT), planned(GPT._replace(stash=stash))
    assert kept.forecast is not None
    assert lean.forecast is not None
    assert lean.forecast.peak_bytes[0] < 0.8 * kept.forecast.peak_bytes[0]
    for share in worst_excess(in_threads(lean)).values():
        assert (0.9 if stash == "recompute" else 0.75) <= share <= 1.0


def test_the_trace_tells_when_copies_ran() -> None:
    """Every op of the plan is in the trace; a fetch runs after its offload and before its backward."""
    plan = planned(GPT._replace(stash="offload"))
    for order, device in zip(plan.orders, in_threads(plan).trace.devices, strict=True):
        records = {record.op: record for record in device.ops}
        assert tuple(records) == order
        for op, record in records.items():
            assert 0 <= record.start_s <= record.end_s
            if op.kind is Kind.FETCH:
                assert records[op._replace(kind=Kind.OFFLOAD)].end_s <= record.start_s
                assert record.end_s <= records[op._replace(kind=Kind.B)].start_s


# ---------------------------------------------------------------- copies that take their time


def _freeing() -> Plan:
    """One device, three forwards, memory for two stashes: each third F waits (FREE) for a copy to the host."""
    candidate = dealt_out(Case("gpipe", "gpt-tiny", 1, 4, stash="offload"))
    text = "F0 OFFLOAD0 F1 OFFLOAD1 FREE0 F2 OFFLOAD2 FREE1 F3 FREE2 OFFLOAD3 FETCH0 B0 FETCH1 B1 FETCH2 B2 FETCH3 B3"
    order = [Op(Kind[name[:-1]], 0, int(name[-1])) for name in text.split()]
    return assemble(candidate, [order])


@pytest.mark.parametrize("plan", [_freeing, partial(planned, GPT._replace(stash="offload"))], ids=["free", "waits"])
def test_slow_copies_delay_the_step_but_break_no_promise(plan: partial[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies a hundred times slower than forecast: still exact, still within the planned memory."""
    made = plan()
    assert check(made) == []
    copy = ThreadMoves._copy

    def slow(self: ThreadMoves, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        time.sleep(len(sources) * 1e-3)
        copy(self, sources, targets)

    monkeypatch.setattr(ThreadMoves, "_copy", slow)
    monkeypatch.setattr(copies, "AT_ONCE_BYTES", 0)
    result = in_threads(made)
    assert result.losses == pytest.approx(truth("gpt-tiny", 4, "momentum", torch.float32).losses, abs=1e-5)
    assert_within_plan(result)


@pytest.mark.parametrize("at_once", [0, 1 << 40])
def test_storages_are_one_block_at_the_host_and_all_else_stays_as_it_is(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And come back each on its own, so that a backward frees them one by one; nothing of it counts as the device's
    memory but these."""
    monkeypatch.setattr(copies, "AT_ONCE_BYTES", at_once)
    sizes, weight = (3, 0, 8, 129), torch.randn(4, 3).t()
    wanted = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    record, times = OpRecord(Op(Kind.OFFLOAD, 0, 0), 0.0, 0.0), Times()
    for plain in (True, False):
        pieces = [x.clone() if plain else x.float() for x in wanted]
        stored = HostCopy.of(pieces)
        with StorageTracker(device=torch.device("cpu")) as tracker:
            moves = ThreadMoves(CPU, "rank 0", tracker.track, lambda _: None)
            left = moves.offload(pieces, [weight], stored, times, record)
            left.finish(times.end)
            assert [x.numel() for x in stored.tensors] == [sum(sizes), 12] if plain else [*sizes, 12]
            assert not pieces
            assert tracker.current_bytes == 0
            moves.fetch(stored, left, [], times, record).finish(times.end)
            *back, there = stored.tensors
            assert len({x.untyped_storage()._cdata for x in back}) == len(sizes)
            assert tracker.current_bytes == (sum(sizes) if plain else 4 * sum(sizes)) + weight.nbytes
        moves.close()
        assert all(torch.equal(x.to(torch.uint8), y) for x, y in zip(back, wanted, strict=True))
        assert torch.equal(there, weight)
        assert there.stride() == weight.stride()


@pytest.mark.parametrize("at_once", [0, 1 << 40])
def test_a_failing_copy_is_one_line_that_names_the_op(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes out where the copy is waited for, or made."""

    def fail(self: ThreadMoves, *rest: object) -> None:
        raise RuntimeError("the host has no memory left")

    monkeypatch.setattr(ThreadMoves, "_copy", fail)
    monkeypatch.setattr(copies, "AT_ONCE_BYTES", at_once)
    with pytest.raises(ExecutionError, match=r"^rank \d, stage \d, op .*the host has no memory left$"):
        execute(planned(GPT._replace(stash="offload")), 1, transport="threads", self_check=False)


@pytest.mark.parametrize("stash", ["keep", "offload", "ship"])
def test_whatever_has_left_in_the_forecast_is_waited_for(stash: str) -> None:
    """Memory is never taken while something is still leaving that the forecast has gone by then."""
    plan = planned(Case("1f1b", "gpt-tiny", 2, 4, stash=stash, halves=True))
    jobs, offset = simulate(plan).jobs, 0
    for order, mine in zip(plan.orders, waits(plan), strict=True):
        gone: set[int] = set()
        moment, checked = 0.0, 0
        for place, op in enumerate(order):
            start, end = float(jobs.start[offset + place]), float(jobs.end[offset + place])
            if op.kind in IN_LINE or op.kind in RECEIVES:
                moment = start if op.kind in IN_LINE else moment
                gone |= set(mine.left[place])
                left = [s for s in range(place) if order[s].kind in LEAVING and jobs.end[offset + s] < moment]
                assert set(left) <= gone, f"{op} starts while a message may still be leaving"
                checked += len(left)
            moment = end if op.kind in IN_LINE else moment
        assert checked
        offset += len(order)


def test_a_fetch_waits_for_the_op_whose_memory_it_takes() -> None:
    """Every fetch has an op and copies to wait for, all of them before its backward."""
    plan = planned(GPT._replace(stash="offload"))
    for order, mine in zip(plan.orders, waits(plan), strict=True):
        assert set(mine.starts) == {place for place, op in enumerate(order) if op.kind is Kind.FETCH}
        for place, gate in mine.starts.items():
            backward = order.index(order[place]._replace(kind=Kind.B))
            assert gate < backward
            assert all(left < backward for left in mine.left[place])


# ---------------------------------------------------------------- what is refused


class Counting(nn.Module):
    """Scales by how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        scaled: Tensor = self.linear(x) * self.count
        return scaled


def _one_stage(policy: str, kinds: str, separable: bool = True) -> Plan:
    """One layer on one device, one micro-batch."""
    shapes = ((10, 64), (10,))
    layer = Layer("only", 1.0, 1.0, 0.0, separable, parameter_bytes=2600, parameter_shapes=shapes, stash_bytes=1 << 20)
    base = planned(Case("gpipe", "mlp-tiny", 1, 1)).problem
    problem = replace(base, model=replace(ModelGraph.chain([layer]), name="counting"))
    whole = regroup(problem, (("only",),), (Pipeline((0,), (0,), (0,)),), {0: (policy,)})
    return assemble(whole, [[Op(Kind[kind], 0, 0) for kind in kinds]])


def _execute(plan: Plan) -> None:
    model = LayeredModel("counting", (LayerSpec("only", Counting),), nn.functional.cross_entropy, "digits")
    execute(plan, 1, model=model, transport="threads")


def test_a_stage_that_cannot_be_recomputed_is_refused_before_training() -> None:
    """Its forward reads a buffer it changes: kept it runs, recomputed it is an error that names the way out."""
    _execute(_one_stage("keep", "FB"))
    with pytest.raises(RunError, match=r"stage 0: .*--no-recompute"):
        _execute(_one_stage("recompute", "FRB"))


def test_a_backward_that_cannot_be_split_is_refused_before_training() -> None:
    """The model file says so, and the error names the layer and the way out."""
    _execute(_one_stage("keep", "FIW"))
    with pytest.raises(RunError, match=r"0I0.*'only'.*--no-split-backward"):
        _execute(_one_stage("keep", "FIW", separable=False))


def test_equal_routes_are_no_replicas() -> None:
    """A choice for odd micro-batches is one more pipeline on the same devices: nothing is reduced."""
    plan = planned(GPT._replace(stash="odd recompute"))
    assert len(plan.pipelines) == 2
    assert plan.pipelines[0].forward == plan.pipelines[1].forward
    assert not any(op.kind is Kind.REDUCE for order in plan.orders for op in order)
