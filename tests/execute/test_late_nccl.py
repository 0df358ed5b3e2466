"""What ranks with a GPU each tell one another: the order of streams, on the CPU, with transfers as late as may be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from instances import shared as sharded
from late import FreedTooEarly, LatePlace
from late_nccl import LateNccl, late_nccl
from random_runs import RandomRun, plan_of
from runs import Case, assert_equals_reference, in_threads, planned, same_tensors, worst_excess
from trained import outcome

from contraflow.executor.basics.errors import ExecutionError
from contraflow.executor.run import rank
from contraflow.executor.step.step_state import Transfer
from contraflow.executor.wires import choice, nccl

CASES = [
    Case("1f1b", "mlp", 2, 4, stash="selective"),
    Case("chimera", "resnet-tiny", 2, 4),
    Case("interleaved", "mlp", 2, 4, "adam", halves=True),
    Case("gpipe", "mlp", 2, 4, stash="offload", halves=True),
    Case("gpipe", "mlp", 2, 4, stash="ship", halves=True),
]
MADE_AGAIN = RandomRun(
    11, "drop", 2, 1, "quick", 1, (2,), ((0, 1),), ((1, 0),), (0, 0, 0), (("keep", "recompute"),), "momentum"
)
"""R, and parameters that go back to another device."""
TIED = RandomRun(2, "gpt", 3, 1, "quick", 1, (2, 4), ((0, 1, 2),), ((0, 1, 2),), (0, 0, 0), (("keep",) * 3,))
MORE = {"parameters": MADE_AGAIN, "tied": TIED}
SHARED = Case("chimera", "mlp", 2, 4, "adam")


@pytest.fixture(autouse=True)
def wires(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateNccl]:
    """Every rank computes where copies run late, and has its own device."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(rank, "place_of", lambda device, local_rank: LatePlace())
    yield late_nccl(monkeypatch)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_late_messages_equal_single_process_within_the_planned_memory(case: Case, wires: LateNccl) -> None:
    """Losses, parameters and buffers after five steps, and every device's peak."""
    result = in_threads(case)
    assert {"send", "receive"} <= wires.ops
    assert_equals_reference(case, result)
    assert max(worst_excess(result).values()) <= 1.0


@pytest.mark.parametrize("name", MORE)
def test_other_plans_train_as_plain_torch(name: str) -> None:
    """Losses, every tensor, and every device's peak."""
    assert outcome(MORE[name], plan_of(MORE[name]), again=False).faults == []


def test_shared_optimizers_train_bit_by_bit_as_whole_ones(wires: LateNccl) -> None:
    """Parameters that are gathered are read by nobody before they are there."""
    plan = planned(SHARED)
    assert same_tensors(*(in_threads(each, dtype=SHARED.dtype) for each in (sharded(plan), plan)))
    assert wires.ops == {"send", "receive", "all_reduce", "scatter_sums", "all_gather"}


# ---------------------------------------------------------------- the double notices what it must


def test_a_send_that_is_let_go_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensor is read when the receiver waits, not when it is posted."""

    def careless(self: nccl.NcclTransport, tensor: torch.Tensor, peer: int, tag: int) -> nccl.Handle:
        return send(self, tensor.clone(), peer, tag)

    send = nccl.NcclTransport.post_send
    monkeypatch.setattr(nccl.NcclTransport, "post_send", careless)
    with pytest.raises(ExecutionError, match=FreedTooEarly.__name__):
        in_threads(CASES[0])


def test_an_arrival_that_is_not_waited_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read before then is whatever the memory held."""
    finish = Transfer.finish

    def careless(self: Transfer, end: object) -> None:
        if not self._receives:
            finish(self, end)  # type: ignore[arg-type]

    monkeypatch.setattr(Transfer, "finish", careless)
    with pytest.raises((AssertionError, ExecutionError)):
        assert_equals_reference(CASES[1], in_threads(CASES[1]))


def test_ends_in_another_order_are_noticed(wires: LateNccl) -> None:
    """NCCL has no tags: both ends of a pair must list its messages alike."""
    found, other = (wires.group_of(number, [0, 1], True) for number in (0, 1))
    small, large = torch.ones(2), torch.ones(3)
    wires.isend(small, 1, found)
    wires.isend(large, 1, found)
    into = torch.zeros(3)
    with pytest.raises(AssertionError, match=r"a message of 2 .* and a message of 3"):
        wires.irecv(into, 0, other).wait()


# ---------------------------------------------------------------- which transport, and why


HERE = [("a", "gpu-0", True), ("a", "gpu-1", True)]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (HERE, None),
        ([("a", "gpu-0", True), ("b", "gpu-0", True)], None),
        ([HERE[0], HERE[0]], "ranks 0 and 1 share a GPU, which NCCL refuses"),
        ([HERE[0], ("a", "gpu-1", False)], "this torch has no NCCL"),
    ],
)
def test_ranks_that_share_a_gpu_are_told_how_they_talk(devices: list[tuple[str, object, bool]], said: str) -> None:
    """NCCL refuses several ranks on one device."""
    assert choice.no_nccl(planned(CASES[1]), devices) == said


def test_more_communicators_than_streams_are_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair has one in each direction, replicas of a stage one: in Chimera's two stages four on each rank."""
    plan = planned(CASES[1])
    assert nccl.communicators(plan) == [4, 4]
    monkeypatch.setattr(nccl, "STREAMS", 3)
    assert "rank 0 would need 4 communicators, and torch has 3 streams" in str(choice.no_nccl(plan, HERE))


def test_messages_through_the_host_are_announced(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Once, before training starts."""
    monkeypatch.undo()
    monkeypatch.setattr(rank, "place_of", lambda device, local_rank: LatePlace())
    in_threads(CASES[2])
    told = [str(warning.message) for warning in recwarn if "pinned memory" in str(warning.message)]
    assert told == [
        "messages between GPUs go through pinned memory of the host, since ranks are threads of one process"
    ]
