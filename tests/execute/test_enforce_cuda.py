"""What an enforced run asks of CUDA's allocator, told by a `torch.cuda` that only writes down; no device is needed."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from contraflow.executor.place import cuda
from contraflow.executor.place.cuda import ROUNDING, WORKSPACE_BYTES, CudaPlace, allowed_bytes
from contraflow.executor.place.place import CPU
from contraflow.executor.step.enforcement import cap_device
from contraflow.executor.wires.threads import Hub

GIB = 1 << 30


class FakeCuda:
    """Two devices of 80 GiB, of which something is in use already."""

    class Stream:
        """Of no device."""

        def __init__(self, device: torch.device) -> None:
            self.device = device

    def __init__(self, in_use: int = 0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._in_use = in_use

    def memory_allocated(self, device: torch.device) -> int:
        """Before the run."""
        return self._in_use

    def memory_reserved(self, device: torch.device) -> int:
        """That, without gaps."""
        return self._in_use

    def max_memory_allocated(self, device: torch.device) -> int:
        """At the run's peak: 3 GiB more than before."""
        return self._in_use + 3 * GIB

    def max_memory_reserved(self, device: torch.device) -> int:
        """For that, and a GiB of gaps."""
        return self._in_use + 4 * GIB

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Nothing is counted."""

    def empty_cache(self) -> None:
        """Comes before the limit, or cached memory counts."""
        self.calls.append(("empty",))

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        """Its size."""
        return SimpleNamespace(total_memory=80 * GIB, uuid=f"gpu-{device.index}")

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        """As torch has it: an error outside of 0 to 1."""
        assert 0 <= fraction <= 1
        self.calls.append((round(fraction * 80 * GIB), device.index))


def faked(monkeypatch: pytest.MonkeyPatch, in_use: int = 0) -> FakeCuda:
    """In place of torch's, for `CudaPlace`."""
    fake = FakeCuda(in_use)
    monkeypatch.setattr(cuda, "torch", SimpleNamespace(cuda=fake, device=torch.device))
    return fake


def test_gaps_are_what_is_reserved_beside_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process held before is nobody's part; a CPU counts neither."""
    faked(monkeypatch, 2 * GIB)
    place = CudaPlace(torch.device("cuda", 0))
    place.start_measuring()
    assert (place.allocated_bytes(), place.reserved_bytes()) == (3 * GIB, 4 * GIB)
    assert (CPU.allocated_bytes(), CPU.reserved_bytes()) == (None, None)


def test_the_allowance() -> None:
    """A share for rounding, and a constant for workspaces."""
    assert allowed_bytes(8 * GIB) == 9 * GIB + WORKSPACE_BYTES
    assert allowed_bytes(0) == WORKSPACE_BYTES
    assert 0 < ROUNDING < 1


@pytest.mark.parametrize(("planned", "in_use"), [(8 * GIB, 0), (1000, 3 * GIB), (79 * GIB, 0)])
def test_the_share_of_a_device(planned: int, in_use: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's, the allowance, and what was there before; at most all of it, and all of it at the end."""
    fake = faked(monkeypatch, in_use)
    place = CudaPlace(torch.device("cuda", 1))
    place.start_measuring()
    place.cap(planned)
    place.cap(0)
    wanted = min(80 * GIB, in_use + allowed_bytes(planned))
    assert fake.calls == [("empty",), ("empty",), (wanted, 1), (80 * GIB, 1)]


def test_ranks_of_one_process_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads on two devices: the limit of a device is that of both ranks on it."""
    fake = faked(monkeypatch)
    hub = Hub(3, {"all": range(3)})
    places = [CudaPlace(torch.device("cuda", rank % 2)) for rank in range(3)]
    ranks = [
        threading.Thread(target=cap_device, args=(place, (rank + 1) * GIB, hub.transport(rank)))
        for rank, place in enumerate(places)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    asked = sorted(call for call in fake.calls if call != ("empty",))
    assert asked == sorted([(allowed_bytes(4 * GIB), 0), (allowed_bytes(4 * GIB), 0), (allowed_bytes(2 * GIB), 1)])


def test_the_cpu_has_no_limit_to_set() -> None:
    """There every tensor is followed, and that is all."""
    CPU.cap(1000)
