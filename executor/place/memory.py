"""Counts the bytes of tensors one thread creates: the truth that planned peaks are compared with.

What was there before is somebody else's: views of it, and what is changed in place, are no new storages.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that follows every storage that an operator makes on this thread.

    Storages that existed before are unknown to it: `track` those that shall count all the same. What is `external`
    never counts; with `device`, only storages there do. Scratch memory that an operator allocates and frees inside
    itself is not seen. Tensors may outlive the context, and other threads may `track` and release them: both are
    counted. What is given to `track` after it is not: nobody asks for it.

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
        self._over = False

    def __exit__(self, *error: Any) -> None:
        self._over = True
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        self.peak_bytes = self.current_bytes

    def take_peak(self) -> int:
        """The peak so far; starts a new one from what is live now, losing nothing that other threads track."""
        with self._lock:
            peak, self.peak_bytes = self.peak_bytes, self.current_bytes
        return peak

    def bring_in(self, make: Callable[[], Tensor]) -> Tensor:
        """What a data set's code returns, with what counts of it.

        Tensors that were there before are the data set's own, and so is what it needs while it makes a batch. What it
        leaves behind counts: the batch, and whatever else does not go away.
        """
        before = self.take_peak()
        try:
            made = make()
        finally:
            with self._lock:
                self.peak_bytes = max(before, self.current_bytes)
        storage = made.untyped_storage()
        if not storage.resizable() and storage.nbytes() == made.nbytes:  # numpy's memory, which no operator has made
            self.track(made)
        return made

    def track(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now on, once, until it is freed."""
        if self._over or (self._device is not None and tensor.device != self._device):
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
        if not _returns_its_arguments(func):
            for value in tree_iter(result):
                if isinstance(value, Tensor) and not value.is_meta:
                    self.track(value)
        return result


@cache
def _returns_its_arguments(operator: Any) -> bool:
    """Whether every result is an argument or a view of one. A new tensor's numbers are lifted once they are there."""
    returns = operator._schema.returns
    return operator is not torch.ops.aten.lift_fresh.default and bool(returns) and all(r.alias_info for r in returns)


def _release(tracker: weakref.ref[StorageTracker], key: int) -> None:
    owner = tracker()
    if owner is not None:
        with owner._lock:
            owner.current_bytes -= owner._live.pop(key, 0)


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind the tensors, each storage once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())
