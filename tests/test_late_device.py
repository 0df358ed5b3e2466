"""The logic of CUDA execution without CUDA: queues that run late, and messages staged through the host."""

from __future__ import annotations

import pytest
import torch
from late import LatePlace
from runs import STEPS, Case, assert_equals_reference, planned, worst_excess

from contraflow.executor import rank
from contraflow.executor.launch import RunResult, execute

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


@pytest.fixture(autouse=True)
def late_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank computes where copies run late; as on a shared GPU, messages are staged through the host."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(rank, "place_of", lambda device, local_rank: LatePlace())
    yield
    torch.set_num_threads(threads)


def run(case: Case) -> RunResult:
    return execute(planned(case), STEPS, dtype=case.dtype, transport="threads", self_check=False, return_state=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_late_copies_equal_single_process_within_the_planned_memory(case: Case) -> None:
    """Losses, parameters and buffers after five steps, and every device's peak."""
    result = run(case)
    assert_equals_reference(case, result)
    assert max(worst_excess(result).values()) <= 1.0
