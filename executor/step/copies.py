"""Copies between a device and its host, and what waits for messages, beside the rank's own work.

`ThreadMoves`: threads that block, one for each direction, and what is small at once; a copy is a copy into a second
buffer (the CPU).
`QueuedMoves`: queues beside the rank's own; nothing blocks, and memory changes hands in queue order (CUDA).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..place import Lanes, Mark, OpRecord, Place, Side, Times
from ..wires import Handle
from .step_state import FutureHandle, Transfer

AT_ONCE_BYTES = 1 << 19
"""A copy of no more bytes is made at once: a thread that is woken up takes Python's lock, and a core that a rank needs.
Measured, 1F1B with the stashes of the first of two stages copied, two processes on two cores, 16 copies a step: an
MLP's of 10 KB take 0.3 ms at once and 1.3 in a thread, a ResNet's of 330 KB 1.0 and 1.35, a GPT's of 1.06 MB 1.3 and
1.9. That much a core that is free would copy meanwhile."""


@dataclass
class HostCopy:
    """What is at the host of a stash, later what has come back of it: its many small storages are one block there.

    Attributes:
        sizes: bytes of the storages that lie one behind the other in the first tensor; empty where none do.
        tensors: that one, and behind it all else, each as it is on the device. Once it is back: all on their own.
    """

    sizes: list[int] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Sequence[Tensor]) -> HostCopy:
        """For pieces that are going to leave."""
        plain = all(piece.dtype is torch.uint8 and piece.dim() == 1 for piece in pieces)
        return cls([piece.nbytes for piece in pieces] if plain else [])

    def allocate(self, place: Place, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Memory at the host for pieces, the first of which have these sizes; where each of them belongs there."""
        count = len(self.sizes)
        self.tensors[:] = [place.host_bytes(sum(self.sizes))] if count else []
        self.tensors += [place.host_buffer(piece) for piece in pieces[count:]]
        return self.parts

    @property
    def parts(self) -> list[Tensor]:
        """Views of what is at the host, one for every piece."""
        if not self.sizes:
            return list(self.tensors)
        together, *others = self.tensors
        return [*torch.split(together, self.sizes), *others]

    def returned(self, tensors: Sequence[Tensor]) -> None:
        """It is on the device again: these."""
        self.sizes, self.tensors = [], list(tensors)


class Moves(Protocol):
    """What one rank has going on beside its own work."""

    def offload(
        self, pieces: list[Tensor], read: Sequence[Tensor], stored: HostCopy, times: Times, record: OpRecord
    ) -> Transfer:
        """Starts copying to the host: pieces, which it takes and frees when they have left, and behind them what it
        only reads, since others use it too."""

    def fetch(
        self, stored: HostCopy, after: Transfer, first: Sequence[Transfer], times: Times, record: OpRecord
    ) -> Transfer:
        """Starts copying what `after` stored back to the device, in place.

        It allocates when the transfers `first` have ended: their memory may be what it needs.
        """

    def later(self, peer: int, work: Callable[[], None]) -> Handle:
        """Does work that waits for messages, in the order in which it is given for each peer."""

    def close(self) -> None:
        """Ends it."""


def moves_of(
    place: Place, name: str, track: Callable[[Tensor], None], messages_block: bool, hosted: Callable[[Tensor], None]
) -> Moves:
    """How a rank moves things. `track` is told what another thread allocates on the device, `hosted` what is copied to
    the host.

    `messages_block`: whether waiting for a message blocks the thread that waits.
    """
    return QueuedMoves(place, name, messages_block, hosted) if place.queues else ThreadMoves(place, name, track, hosted)


class ThreadMoves:
    """Copies that block, in threads of their own (see `Moves`)."""

    def __init__(
        self, place: Place, name: str, track: Callable[[Tensor], None], hosted: Callable[[Tensor], None]
    ) -> None:
        self._place = place
        self._hosted = hosted
        self._lanes = Lanes(place, name)
        self._track = track

    def offload(
        self, pieces: list[Tensor], read: Sequence[Tensor], stored: HostCopy, times: Times, record: OpRecord
    ) -> Transfer:
        pieces.extend(read)

        def copy() -> None:
            times.begin(record)
            targets = stored.allocate(self._place, pieces)
            for tensor in stored.tensors:
                self._hosted(tensor)
            self._copy(pieces, targets)
            pieces.clear()
            times.end(record)

        return self._started("out", copy, sum(piece.nbytes for piece in pieces))

    def fetch(
        self, stored: HostCopy, after: Transfer, first: Sequence[Transfer], times: Times, record: OpRecord
    ) -> Transfer:
        def copy() -> None:
            for transfer in (*first, after):
                transfer.finish(times.end)
            times.begin(record)
            sources = stored.parts
            targets = [torch.empty_like(source, device=self._place.device) for source in sources]
            for target in targets:
                self._track(target)
            self._copy(sources, targets)
            stored.returned(targets)
            times.end(record)

        ready = all(transfer.done() for transfer in (*first, after))
        if not ready:
            return self._in_a_thread("in", copy)
        return self._started("in", copy, sum(tensor.nbytes for tensor in stored.tensors))

    def _in_a_thread(self, lane: str, copy: Callable[[], None]) -> Transfer:
        return Transfer([], [FutureHandle(self._lanes[lane].put(copy))], None)

    def _started(self, lane: str, copy: Callable[[], None], size: int) -> Transfer:
        """A copy of so many bytes in a thread, or at once where that takes no longer than to wake one up."""
        if size > AT_ONCE_BYTES:
            return self._in_a_thread(lane, copy)
        with _disable_current_modes():  # the host's memory is not the device's; what is, `track` is told of
            copy()
        return Transfer([], [], None)

    def later(self, peer: int, work: Callable[[], None]) -> Handle:
        return FutureHandle(self._lanes[str(peer)].put(work))

    def close(self) -> None:
        self._lanes.close()

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """At once: called one by one, many small ones would cost the rank's thread more than their bytes do."""
        if sources:
            torch._foreach_copy_(list(targets), list(sources))


class QueuedMoves:
    """Copies that are queued, called by the rank's own thread alone (see `Moves`).

    Everything is allocated and freed in the order of the rank's own queue. So memory that a copy reads is let go of
    only after that queue waits for the copy (`Transfer.finish`), and a fetch may fill whatever it is given after what
    that queue holds so far.
    """

    def __init__(
        self, place: Place, name: str, messages_block: bool, hosted: Callable[[Tensor], None] = lambda _: None
    ) -> None:
        self._place = place
        self._hosted = hosted
        self._out, self._in = place.side(), place.side()
        self._lanes = Lanes(place, name) if messages_block else None
        self._sides: dict[int, Side] = defaultdict(place.side)

    def offload(
        self, pieces: list[Tensor], read: Sequence[Tensor], stored: HostCopy, times: Times, record: OpRecord
    ) -> Transfer:
        targets = stored.allocate(self._place, (*pieces, *read))
        for tensor in stored.tensors:
            self._hosted(tensor)

        def copy() -> None:
            times.begin(record)
            for piece, target in zip((*pieces, *read), targets, strict=True):
                target.copy_(piece, non_blocking=True)
            times.end(record)

        return Transfer(pieces, [self._out.put(copy)], None, read=read)

    def fetch(
        self, stored: HostCopy, after: Transfer, first: Sequence[Transfer], times: Times, record: OpRecord
    ) -> Transfer:
        sources = stored.parts
        targets, lenders = self._targets(sources, first, times)

        def copy() -> None:
            for transfer in (after, *lenders):
                transfer.order()
            times.begin(record)
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
            times.end(record)

        ended = self._in.put(copy)
        stored.returned(targets)
        return Transfer(sources, [ended], None)

    def _targets(
        self, stored: Sequence[Tensor], first: Sequence[Transfer], times: Times
    ) -> tuple[list[Tensor], list[Transfer]]:
        """Memory for a fetch, and the transfers that still read some of it.

        Memory of equal size that is leaving is taken over, the last to leave first, so that only the fetch waits for
        it to have left, and what leaves earlier is free earlier. Where that is not enough, the rank's own queue waits
        too.
        """
        leaving = [
            (transfer, piece) for transfer in reversed(first) for piece in transfer.tensors if _is_all_of_a_stash(piece)
        ]
        targets: list[Tensor | None] = []
        lenders: list[Transfer] = []
        for piece in stored:
            fits = (k for k, (_, it) in enumerate(leaving) if (it.dtype, it.shape) == (piece.dtype, piece.shape))
            place = next(fits, None)
            if place is None:
                targets.append(None)
                continue
            transfer, taken = leaving.pop(place)
            transfer.give_up(taken)
            targets.append(taken)
            lenders.append(transfer)
        leaving.clear()
        if any(target is None for target in targets):
            for transfer in first:
                transfer.finish(times.end)
        device = self._place.device
        made = [torch.empty_like(p, device=device) if t is None else t for p, t in zip(stored, targets, strict=True)]
        return made, lenders

    def later(self, peer: int, work: Callable[[], None]) -> Handle:
        if self._lanes is None:
            return self._sides[peer].put(work)
        asked: Mark = self._place.mark()

        def ordered() -> None:
            asked.wait()
            work()

        return FutureHandle(self._lanes[str(peer)].put(ordered))

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()


def _is_all_of_a_stash(tensor: Tensor) -> bool:
    """Whether it is bytes of a stash (see `packing`) and nothing else refers to them: it does, and who asks."""
    alone = int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) <= 2
    return tensor.dtype is torch.uint8 and tensor.dim() == 1 and alone
