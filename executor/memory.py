"""Counts the bytes of tensors one thread creates: the truth that planned peaks are compared with."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that follows every storage that comes out of an operator on this thread.

    Storages that existed before are unknown to it until an operator returns them; pass those that must
    never count (parameters, the caller's tensors) as `external`; with `device`, only storages there count. Scratch
    memory that an operator allocates and frees inside itself is not seen. Tensors may outlive the context, and other
    threads may `track` and release them: both are counted.

    Attributes:
        current_bytes: live bytes of the storages seen so far.
        peak_bytes: the most `current_bytes` has been since the start or the last `reset_peak`.
    """

    def __init__(self, external: Iterable[Tensor] = (), device: torch.device | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.current_bytes = 0
        self.peak_bytes = 0
        self._lock = threading.RLock()  # a release may come in the middle of anything, on this very thread
        self._live: dict[int, int] = {}
        # Holding the external tensors keeps their storages' addresses from being reused.
        self._external = {tensor.untyped_storage()._cdata: tensor for tensor in external}

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        self.peak_bytes = self.current_bytes

    def take_peak(self) -> int:
        """The peak so far; starts a new one from what is live now, losing nothing that other threads track."""
        with self._lock:
            peak, self.peak_bytes = self.peak_bytes, self.current_bytes
        return peak

    def track(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now on, once, until it is freed."""
        if self._device is not None and tensor.device != self._device:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        with self._lock:
            if key in self._live or key in self._external:
                return
            self._live[key] = storage.nbytes()
            weakref.finalize(storage, _release, weakref.ref(self), key).atexit = False
            self.current_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor) and not value.is_meta:
                self.track(value)
        return result


def _release(tracker: weakref.ref[StorageTracker], key: int) -> None:
    owner = tracker()
    if owner is not None:
        with owner._lock:
            owner.current_bytes -= owner._live.pop(key, 0)


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind the tensors, each storage once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())
