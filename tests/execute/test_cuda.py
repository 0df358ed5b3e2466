"""Plans on a CUDA device: equal to plain torch there, within the planned memory, copies beside the work.

Several ranks share the device, so messages are staged through the host. What can be tested without a device is in
test_late_device.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from runs import SAMPLES, STEPS, Case, assert_same, planned

from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.models import resolve
from contraflow.planner.plan import COMPUTE, Kind

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")

ALLOCATOR_BYTES = 64 << 20
"""What torch's allocator holds beyond the plan: 512-byte rounding, and cuBLAS's workspace on each stream."""
CASES = [
    Case("1f1b", "gpt-tiny", 2, 4),
    Case("chimera", "resnet-tiny", 2, 4),
    Case("gems", "gpt-tiny", 2, 4, "adam"),
    Case("gpipe", "gpt-tiny", 2, 4, stash="offload", halves=True),
    Case("1f1b", "resnet-tiny", 2, 4, stash="odd recompute"),
    Case("1f1b", "gpt-tiny", 2, 4, stash="selective", halves=True),
    Case("1f1b", "mlp-deep", 4, 8, stash="ship", halves=True),
    Case("chimera", "gpt-tiny-dropout", 2, 4),
]


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No TF32 and no choice of algorithms by speed: see docs/cuda.md."""
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def run(case: Case, transport: str) -> RunResult:
    return execute(
        planned(case, "cuda"), STEPS, dtype=case.dtype, transport=transport, device="cuda", return_state=True
    )


@pytest.mark.parametrize("transport", ["threads", "processes"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_ranks_that_share_a_device_equal_single_process(case: Case, transport: str) -> None:
    """Losses, parameters and buffers after five steps, and every rank's peak by its own account."""
    result = run(case, transport)
    model = resolve(case.model)
    expected = train_reference(
        model, case.micro_batches, SAMPLES, case.optimizer, STEPS, dtype=case.dtype, device="cuda"
    )
    assert result.losses == pytest.approx(expected.losses, abs=1e-5)
    assert result.state is not None
    for name, reference in expected.state.items():
        assert_same(name, result.state[name], reference)
    for measured, forecast in zip(result.peak_bytes, result.forecast_peak_bytes, strict=True):
        assert measured <= forecast


def test_the_allocator_holds_what_was_planned() -> None:
    """A process a rank: what CUDA's allocator gave it, beside rounding and workspaces."""
    result = run(Case("gpipe", "gpt-tiny", 2, 4, stash="offload"), "processes")
    assert result.allocated_bytes is not None
    for allocated, forecast in zip(result.allocated_bytes, result.forecast_peak_bytes, strict=True):
        assert 0 < allocated <= forecast + ALLOCATOR_BYTES
    assert result.reserved_bytes is not None
    assert all(a <= r for a, r in zip(result.allocated_bytes, result.reserved_bytes, strict=True))


def test_offloads_run_beside_compute() -> None:
    """In the trace, whose times are the device's own, some copy to the host overlaps an op."""
    case = Case("gpipe", "gpt-small", 1, 8, stash="offload")  # large enough that the host is ahead of the device
    (device,) = execute(planned(case, "cuda", 32), STEPS, transport="threads", device="cuda").trace.devices
    copies = [r for r in device.ops if r.op.kind is Kind.OFFLOAD]
    ops = [r for r in device.ops if r.op.kind in COMPUTE]
    assert all(record.end_s >= record.start_s >= 0 for record in device.ops)
    assert any(min(c.end_s, r.end_s) > max(c.start_s, r.start_s) for c in copies for r in ops)


@pytest.mark.slow
def test_compiled_programs_on_cuda() -> None:
    """Triton's kernels instead of torch's."""
    pytest.importorskip("triton")
    case = Case("1f1b", "gpt-tiny", 2, 4)
    result = execute(planned(case, "cuda"), STEPS, transport="threads", device="cuda", compiled=True)
    expected = train_reference(resolve(case.model), 4, SAMPLES, case.optimizer, STEPS, device="cuda")
    assert result.losses == pytest.approx(expected.losses, abs=1e-4)
