"""Stashes that leave a rank's device and come back: copied to the host, or shipped to another rank.

Nothing here blocks the rank but `take` (a backward needs its stash) and `free`. A stash moves as its storages, one
message or copy each, so that a move needs no memory beside the stash itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...planner.graph import StashPolicy
from ...planner.plan import Kind, Op
from ..place import Lanes, OpRecord, Place
from ..stage import PackedStash, Stash, StashLayout
from ..state import Agreement, Packed, StageReplica, leaving
from ..wires import Handle, Transport
from .copies import HostCopy, moves_of
from .step_state import Key, StepState, Transfer

Tags = Callable[[Op, int], int]
"""(op, piece) -> a number for the message, the same at both ends."""


class Layouts(NamedTuple):
    """How stashes come apart, by stage.

    `own`: of those the rank holds; `arrivals`: how one from another rank is put together; `piece_bytes`: of all stages.
    """

    own: Mapping[int, StashLayout]
    arrivals: Mapping[int, PackedStash | None]
    piece_bytes: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, replicas: Mapping[int, StageReplica], agreed: Agreement) -> Layouts:
        """Those of a rank's replicas."""
        own = {stage: replica.program.stash_layout for stage, replica in replicas.items()}
        return cls(own, {stage: replica.arrival for stage, replica in replicas.items()}, agreed.piece_bytes)


@dataclass
class _Away:
    """A stash of this device that is elsewhere: what stayed, and the pieces at the host or back again.

    `weights`: names of the parameters that went with it, of which a stage may have none; they are the last pieces.
    None: it went alone. `bytes`: of what is away, weights apart.
    """

    packed: Packed
    stored: HostCopy = field(default_factory=HostCopy)
    back: Transfer | None = None
    weights: tuple[str, ...] | None = None
    bytes: int = 0


class Stashes:
    """All that one rank moves.

    Args:
        layouts: by the samples of a micro-batch.
        track: told about every tensor that another thread allocates on the device.
        place: where the rank computes.
        finish: how the rank waits for a transfer.
        hosted: told about every stash that is in the host's memory.
    """

    def __init__(
        self,
        transport: Transport,
        layouts: Mapping[int, Layouts],
        tags: Tags,
        track: Callable[[Tensor], None],
        place: Place,
        finish: Callable[[StepState, Transfer], None],
        hosted: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        self._hosted = hosted
        self._finish = finish
        self._transport = transport
        self._layouts = layouts
        self._tags = tags
        self._place = place
        self._moves = moves_of(place, f"rank {transport.seat.number}", track, not transport.queues, hosted)
        self._away: dict[Key, _Away] = {}
        self._host_copies = Lanes(place, f"rank {transport.seat.number} host copies")
        self._handing_over: list[Future[None]] = []
        self._handed_over: list[Transfer] = []

    def reset(self) -> None:
        """At the start of a step."""
        self._away.clear()

    def settle(self) -> None:
        """At the end of a step: host copies that other ranks take have been taken."""
        for done in self._handing_over:
            done.result()
        for transfer in self._handed_over:
            transfer.finish(lambda _: None)
        self._handing_over.clear()
        self._handed_over.clear()

    def _layout(self, state: StepState, op: Op) -> Layouts:
        return self._layouts[state.samples(op.micro_batch)]

    def _arrival(self, state: StepState, op: Op) -> PackedStash:
        arrival = self._layout(state, op).arrivals[op.stage]
        assert arrival is not None, "the plan has the stage on two devices"
        return arrival

    def close(self) -> None:
        """Ends what is going on."""
        self._moves.close()
        self._host_copies.close()

    # ------------------------------------------------------------ host copies

    def offload(
        self,
        state: StepState,
        op: Op,
        record: OpRecord,
        policy: StashPolicy,
        reader: int | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Transfer:
        """OFFLOAD: starts copying what leaves to the host; its memory is released when the copy has ended.

        `reader`: the rank that will fetch it, if it is another one; it is sent the host's copy. `weights`: go with it,
        and stay as they are until they have left.
        """
        key = (op.stage, op.micro_batch)
        pieces, packed = leaving(policy.name)(state, key, self._layout(state, op).own[op.stage])
        size = sum(piece.nbytes for piece in pieces)
        away = _Away(packed, HostCopy.of(pieces), weights=None if weights is None else tuple(weights), bytes=size)
        read = list((weights or {}).values())
        record.moved_bytes = size + sum(tensor.nbytes for tensor in read)
        transfer = self._moves.offload(pieces, read, away.stored, state.times, record)
        transfer.op = op
        if reader is None:
            self._away[key] = away
            return transfer

        def hand_over() -> None:
            transfer.block()
            host = self._transport.host
            sent = away.stored.tensors
            handles = [host.post_send(tensor, reader, self._tags(op, k)) for k, tensor in enumerate(sent)]
            self._handed_over.append(Transfer(sent, handles, None))

        self._handing_over.append(self._host_copies[str(reader)].put(hand_over))
        return transfer

    def expect_host_copy(self, state: StepState, op: Op, source: int) -> Transfer:
        """Posts, into host memory, for what another rank of the node has offloaded; `fetch` goes on from there."""
        sizes = list(self._layout(state, op).piece_bytes[op.stage])
        with _disable_current_modes():  # the host's memory, not the device's
            pieces = [torch.empty(sum(sizes), dtype=torch.uint8)] if sizes else []
        for piece in pieces:
            self._hosted(piece)
        host = self._transport.host
        handles = [host.post_receive(piece, source, self._tags(op, k)) for k, piece in enumerate(pieces)]
        stored, size = HostCopy(sizes, pieces), sum(sizes)
        self._away[op.stage, op.micro_batch] = _Away(self._arrival(state, op), stored, bytes=size)
        return Transfer([], handles, None, op=op)

    def fetch(self, state: StepState, op: Op, record: OpRecord, first: Sequence[Transfer], arrived: Transfer) -> None:
        """FETCH: starts copying a stash back; allocates once the transfers `first` have ended.

        `arrived`: its own OFFLOAD, or the message that brought it to this host.
        """
        key = (op.stage, op.micro_batch)
        away = self._away[key]
        record.moved_bytes = away.bytes
        away.back = self._moves.fetch(away.stored, arrived, first, state.times, record)
        away.back.op = op

    # ------------------------------------------------------------ shipping

    def send(self, state: StepState, op: Op, record: OpRecord) -> Transfer:
        """SEND_S on the device that made the stash: posts its pieces; their memory is released when they have left."""
        key = (op.stage, op.micro_batch)
        pieces, packed = self._layout(state, op).own[op.stage].pack(state.stashes.pop(key))
        self._away[key] = _Away(packed)
        handles = [
            self._transport.post_send(piece, op.peer, self._tags(op, number)) for number, piece in enumerate(pieces)
        ]
        return Transfer(pieces, handles, record)

    def receive(self, state: StepState, op: Op, record: OpRecord, home: int) -> None:
        """RECV_S: allocates the pieces and posts for them, on the visited device or at home again."""
        pieces, arriving = self._arriving(state, op, record)
        key = (op.stage, op.micro_batch)
        if home == self._transport.rank:
            away = self._away[key]
            away.stored, away.back = HostCopy(tensors=pieces), arriving
        else:
            state.received[Kind.RECV_S, op.stage, op.micro_batch, -1] = arriving

    def receive_for_good(self, state: StepState, op: Op, record: OpRecord) -> None:
        """RECV_S on the device that runs the backward of another one's forward."""
        pieces, arriving = self._arriving(state, op, record)
        self._away[op.stage, op.micro_batch] = _Away(self._arrival(state, op), HostCopy(tensors=pieces), arriving)

    def _arriving(self, state: StepState, op: Op, record: OpRecord) -> tuple[list[Tensor], Transfer]:
        sizes, device = self._layout(state, op).piece_bytes[op.stage], self._place.device
        pieces = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
        handles = [self._transport.post_receive(p, op.peer, self._tags(op, k)) for k, p in enumerate(pieces)]
        return pieces, Transfer(pieces, handles, record, receives=True)

    def send_back(self, state: StepState, op: Op, record: OpRecord) -> Transfer:
        """SEND_S on the visited device: goes out when the stash has arrived, in list order per device."""
        arriving = state.received.pop((Kind.RECV_S, op.stage, op.micro_batch, -1))
        pieces, handles = arriving.tensors, list[Handle]()

        def forward() -> None:
            arriving.finish(state.times.end)
            for number, piece in enumerate(pieces):
                handles.append(self._transport.post_send(piece, op.peer, self._tags(op, number)))

        posted = self._moves.later(op.peer, forward)
        return Transfer(pieces, [_Forwarded(posted, handles)], record)

    # ------------------------------------------------------------ both

    def take(self, state: StepState, stage: int, micro_batch: int) -> Stash:
        """The stash for its backward, waited for if it was away; weights that went with it are in `state.returned`."""
        key = (stage, micro_batch)
        if key not in self._away:
            return state.stashes.pop(key)
        found: Stash = self._taken(state, key)
        return found

    def take_inputs(self, state: StepState, stage: int, micro_batch: int) -> list[Tensor]:
        """What an R makes the stash from, waited for if it was away."""
        key = (stage, micro_batch)
        if key not in self._away:
            return state.inputs.pop(key)
        found: list[Tensor] = self._taken(state, key)
        return found

    def _taken(self, state: StepState, key: Key) -> Any:
        away = self._away.pop(key)
        assert away.back is not None, "the list has a backward before its FETCH or RECV_S"
        self._finish(state, away.back)
        pieces = away.stored.tensors
        if away.weights is not None:
            state.returned[key] = {name: pieces.pop() for name in reversed(away.weights)}
        found = away.packed.unpack(pieces)
        pieces.clear()
        return found


class _Forwarded:
    """Messages that another thread posts: complete when it has posted them and they have left."""

    def __init__(self, posted: Handle, handles: list[Handle]) -> None:
        self._posted = posted
        self._handles = handles

    def wait(self) -> None:
        self._posted.wait()
        for handle in self._handles:
            handle.wait()

    def done(self) -> bool:
        return self._posted.done() and all(handle.done() for handle in self._handles)
