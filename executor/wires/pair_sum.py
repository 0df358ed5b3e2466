"""A sum of two ranks' small tensors over gloo: they exchange them, and each adds what it has got.

An all-reduce of gloo's goes in steps, with threads to wake at each: between two ranks of a computer it took 360 to 650
us for 4 to 64 KB, and 210 to 390 us of either's cores, where an exchange takes 90 to 110, and 60. Two numbers have one
sum in either order, so both ranks come to the same bits.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

MOST_BYTES = 1 << 20
"""Beyond it an all-reduce is as fast, and the copy that is exchanged would be memory to speak of."""


def exchanged(tensor: Tensor, ranks: int) -> bool:
    """Whether a tensor is summed so among so many ranks."""
    return ranks == 2 and 0 < tensor.nbytes <= MOST_BYTES


class PairSum:
    """The sum of a contiguous tensor of the host's memory, in place, over the two ranks of a process group of gloo's.

    Both post those of one group in the same order. What comes from the other rank is kept in the wires' memory, as
    gloo keeps its own.
    """

    def __init__(self, tensor: Tensor, group: Any) -> None:
        peer = 1 - group.rank()
        with _disable_current_modes():
            self._other: Tensor | None = torch.empty_like(tensor)
            self._works = group.recv([self._other], peer, 0), group.send([tensor], peer, 0)
        self._tensor, self._lock = tensor, threading.Lock()

    def wait(self) -> None:
        """Blocks until the sum is there."""
        with self._lock:
            if self._other is None:
                return
            for work in self._works:
                work.wait()
            self._tensor.add_(self._other)
            self._other = None

    def done(self) -> bool:
        """Whether somebody has waited for it: it is added up by who does."""
        return self._other is None
