"""The logic of CUDA execution without CUDA: queues that run late, and messages staged through the host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from editing import forecast_anew
from instances import shared as sharded
from late import FreedTooEarly, LatePlace
from late_ranks import run_late_rank_of
from random_runs import RandomRun, plan_of
from runs import Case, assert_equals_reference, in_threads, planned, run_together, same_tensors, worst_excess
from trained import outcome

from contraflow.executor.basics.errors import ExecutionError
from contraflow.executor.place.place import Times
from contraflow.executor.place.records import OpRecord
from contraflow.executor.run import rank
from contraflow.executor.step import copies
from contraflow.executor.step.step_state import Transfer
from contraflow.executor.wires.nccl import pairs
from contraflow.planner.plan import RECEIVES, SENDS, Kind, Op, Plan

OFFLOADED = Case("gpipe", "gpt-tiny", 2, 4, stash="offload", halves=True)
CASES = [
    Case("1f1b", "gpt-tiny", 2, 4),
    Case("chimera", "resnet-tiny", 2, 4),
    Case("interleaved", "mlp", 2, 4, "adam", halves=True),
    OFFLOADED,
    Case("1f1b", "gpt-tiny", 2, 4, stash="offload"),
    Case("chimera", "mlp-deep", 4, 4, stash="odd offload", halves=True),
    Case("gpipe", "gpt-tiny", 2, 4, stash="ship"),
    Case("1f1b", "mlp-deep", 4, 8, stash="ship", halves=True),
]
MADE_AGAIN = RandomRun(
    11, "drop", 2, 1, "quick", 1, (2,), ((0, 1),), ((1, 0),), (0, 0, 0), (("keep", "recompute"),), "momentum"
)
"""R, and parameters that go back to another device."""
TIED = RandomRun(2, "gpt", 3, 1, "quick", 1, (2, 4), ((0, 1, 2),), ((0, 1, 2),), (0, 0, 0), (("keep",) * 3,))
PREDICTED = RandomRun(
    150, "mlp", 3, 1, "slow", 1, (1, 3), ((0, 1, 2),), ((0, 1, 2),), (0, 0, 0, 0), (("keep", "keep", "recompute"),),
    "momentum", "spectrain", 2, runs=1, options=(("lr", 0.05),),
)  # fmt: skip
LEAVING = RandomRun(5, "drop", 1, 1, "quick", 1, (), ((0,),), ((0,),), (0, 0, 0), (("offload",),))
MORE = {"recompute": MADE_AGAIN, "tied": TIED, "predicted": PREDICTED, "free": LEAVING}
SHARED = Case("chimera", "gpt-tiny", 2, 4, "adam")


def plan_for(name: str) -> Plan:
    """Of one of `MORE`; a FREE before the forward that needs what its stash has left."""
    plan = plan_of(MORE[name])
    if name != "free":
        return plan
    order = list(plan.orders[0])
    gone = next(k for k, op in enumerate(order) if op.kind is Kind.OFFLOAD)
    order.insert(gone + 1, order[gone]._replace(kind=Kind.FREE))
    return forecast_anew(replace(plan, orders=(tuple(order),)))


@pytest.fixture(autouse=True)
def late_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every rank computes where copies run late; as on a shared GPU, messages are staged through the host."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(rank, "place_of", lambda device, local_rank: LatePlace())
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_late_copies_equal_single_process_within_the_planned_memory(case: Case) -> None:
    """Losses, parameters and buffers after five steps, and every device's peak."""
    result = in_threads(case)
    assert_equals_reference(case, result)
    assert max(worst_excess(result).values()) <= 1.0


@pytest.mark.parametrize("name", MORE)
def test_other_plans_train_as_plain_torch_on_late_devices(name: str) -> None:
    """Losses, every tensor, and every device's peak."""
    assert outcome(MORE[name], plan_for(name), again=False).faults == []


def test_shared_optimizers_on_late_devices_train_bit_by_bit_as_whole_ones() -> None:
    """Parameters that are gathered are read by nobody before they are there."""
    plan = planned(SHARED)
    assert same_tensors(*(in_threads(each, dtype=SHARED.dtype) for each in (sharded(plan), plan)))


def test_every_kind_of_op_runs_on_late_devices() -> None:
    """In some plan of this module: a new kind is none of CUDA's before it is here."""
    plans = [*map(planned, CASES), sharded(planned(SHARED)), *map(plan_for, MORE)]
    assert {op.kind for plan in plans for order in plan.orders for op in order} == set(Kind)


@pytest.mark.slow
def test_messages_staged_over_gloo_equal_single_process(tmp_path: Path) -> None:
    """Two processes that share a device, as far as they know."""
    cases = [Case("1f1b", "gpt-tiny", 2, 4), Case("gems", "mlp-tiny", 2, 4), OFFLOADED]
    for case, result in zip(cases, run_together(cases, tmp_path, rank=run_late_rank_of), strict=True):
        assert_equals_reference(case, result)


# ---------------------------------------------------------------- the double notices what it must


def test_memory_that_is_let_go_of_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OFFLOAD that frees its stash when the copy is queued."""

    def careless(self: copies.QueuedMoves, pieces: list[torch.Tensor], *rest: object) -> Transfer:
        transfer = offload(self, pieces, *rest)  # type: ignore[arg-type]
        transfer.tensors.clear()
        return transfer

    offload = copies.QueuedMoves.offload
    monkeypatch.setattr(copies.QueuedMoves, "offload", careless)
    with pytest.raises(ExecutionError, match=FreedTooEarly.__name__):
        in_threads(OFFLOADED)


def test_a_backward_that_does_not_wait_for_its_stash_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FETCH of which nobody knows that it is under way."""

    def careless(self: copies.QueuedMoves, *rest: object) -> Transfer:
        transfer = fetch(self, *rest)  # type: ignore[arg-type]
        return Transfer(transfer.tensors, [], None)

    fetch = copies.QueuedMoves.fetch
    monkeypatch.setattr(copies.QueuedMoves, "fetch", careless)
    with pytest.raises((AssertionError, ExecutionError), match=r"differs|loss of step|freed|out of bounds|not finite"):
        assert_equals_reference(OFFLOADED, in_threads(OFFLOADED))


def test_a_fetch_takes_over_memory_that_is_leaving_and_nobody_else_has() -> None:
    """Then only the fetch waits for the copy that still reads it; memory that others refer to is never taken."""
    place, times, record = LatePlace(), Times(), OpRecord(Op(Kind.OFFLOAD, 0, 0), 0.0, 0.0)
    moves = copies.QueuedMoves(place, "rank 0", messages_block=False)
    for shared in (False, True):
        first, second = torch.full((64,), 1, dtype=torch.uint8), torch.full((64,), 2, dtype=torch.uint8)
        others = [second.view(8, 8)] if shared else []
        stored = copies.HostCopy.of([first])
        there = moves.offload([first], [], stored, times, record)
        there.finish(times.end)
        address = second.data_ptr()
        leaving_store = copies.HostCopy.of([second])
        leaving = moves.offload([second], [], leaving_store, times, record)
        del second
        back = moves.fetch(stored, there, [leaving], times, record)
        assert (stored.tensors[0].data_ptr() == address) is not shared
        back.finish(times.end)
        assert stored.tensors[0].eq(1).all()
        leaving.finish(times.end)
        assert leaving_store.tensors[0].eq(2).all()
        assert all(view.eq(2).all() for view in others)


def test_a_fetch_takes_over_neither_weights_nor_activations() -> None:
    """They look like nobody else's, but the rank goes on with the weights, and a stash may be the activation."""
    place, times, record = LatePlace(), Times(), OpRecord(Op(Kind.OFFLOAD, 0, 0), 0.0, 0.0)
    moves = copies.QueuedMoves(place, "rank 0", messages_block=False)
    weight, piece = torch.full((4, 4), 1.0), torch.full((64,), 2, dtype=torch.uint8)
    stored = copies.HostCopy.of([piece])
    leaving = moves.offload([piece], [weight], stored, times, record)
    del piece
    activation = torch.full_like(weight, 4.0)
    back = moves.fetch(stored, leaving, [leaving, Transfer([activation], [], None)], times, record)
    assert stored.tensors[1].data_ptr() not in (weight.data_ptr(), activation.data_ptr())
    weight.fill_(3)  # a step
    back.finish(times.end)
    assert stored.tensors[0].eq(2).all()
    assert stored.tensors[1].eq(1).all()


def test_a_fetch_that_waits_for_a_message_holds_up_no_other_queue() -> None:
    """A stash that is sent on is lent once a thread has posted it, which queues copies of its own."""
    place, times, record = LatePlace(), Times(), OpRecord(Op(Kind.OFFLOAD, 0, 0), 0.0, 0.0)
    moves = copies.QueuedMoves(place, "rank 0", messages_block=True)
    stored, staged = copies.HostCopy([], [torch.full((64,), 1, dtype=torch.uint8)]), torch.zeros(64, dtype=torch.uint8)
    leaving = [torch.full((64,), 2, dtype=torch.uint8)]
    message = _Posted(place, leaving[0], staged)
    first = Transfer(leaving, [message], None)
    del leaving
    back = moves.fetch(stored, Transfer([], [], None), [first], times, record)
    message.source = None
    back.finish(times.end)
    assert message.posted
    assert staged.eq(2).all()
    assert stored.tensors[0].eq(1).all()


class _Posted:
    """A message that another thread queues only when it is waited for."""

    def __init__(self, place: LatePlace, source: torch.Tensor, target: torch.Tensor) -> None:
        self.source: torch.Tensor | None = source
        self._side, self._target = place.side(), target
        self.posted = False

    def wait(self) -> None:
        """Blocks until the thread has copied, or for some seconds."""
        thread = threading.Thread(target=self._post, daemon=True)
        thread.start()
        thread.join(timeout=20)
        self.posted = not thread.is_alive()

    def _post(self) -> None:
        source = self.source
        assert source is not None
        self._side.put(lambda: self._target.copy_(source)).block()

    def done(self) -> bool:
        """Nobody has waited for it."""
        return self.posted


# ---------------------------------------------------------------- NCCL


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_messages_of_a_pair_are_listed_in_one_order_at_both_ends(case: Case) -> None:
    """NCCL knows no tags: of every ordered pair of ranks, the n-th message sent is the n-th received."""
    plan = planned(case)
    route = {m: pipeline for pipeline in plan.pipelines for m in pipeline.micro_batches}

    def other_end(op: Op) -> int:
        return op.peer if op.kind in (Kind.SEND_S, Kind.RECV_S) else route[op.micro_batch].forward[op.peer]

    def message(op: Op) -> tuple[str, int, int]:
        stages = sorted((op.stage, op.stage if op.kind in (Kind.SEND_S, Kind.RECV_S) else op.peer))
        return op.kind.name[5:], stages[0], op.micro_batch

    used = set()
    for source, sent in enumerate(plan.orders):
        for target, received in enumerate(plan.orders):
            out = [message(op) for op in sent if op.kind in SENDS and other_end(op) == target]
            into = [message(op) for op in received if op.kind in RECEIVES and other_end(op) == source]
            assert out == into
            used |= {(source, target)} if out else set()
    assert pairs(plan) == sorted(used)
