"""Whole tensors of what a team divides: put together where they are saved, cut where they are loaded.

So a checkpoint is the same whatever team wrote it, and any other team, or none, goes on from it. Where replicas that
are teams share out an optimizer, a lane's pieces are put together first. Of what a rank reads, one file's tensors are
whole at a time, in the host's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...models.lanes import Lane, Shard
from ..state import Blueprint, Piece, StageReplica, piece_of
from ..wires import Transport


@dataclass(frozen=True)
class Wholes:
    """One rank's part in it.

    Attributes:
        shards: how its tensors are cut, by checkpoint key; the others every lane has whole.
        pieces: where replicas that are teams share out a tensor, which piece of a lane's part each device has, by
            checkpoint key without the piece. Pieces of devices that are one rank are saved as they are.
    """

    transport: Transport
    lane: Lane | None
    shards: Mapping[str, Shard]
    pieces: Mapping[str, Mapping[int, Piece]] = field(default_factory=dict)

    @classmethod
    def of(cls, transport: Transport, blueprint: Blueprint, replicas: Collection[StageReplica]) -> Wholes:
        """That of a rank with these replicas; collective where teams share out optimizers."""
        named = (replica.weights.named_shards(blueprint.layer_names) for replica in replicas)
        shards = {key: shard for found in named for key, shard in found.items()}
        pieces: dict[str, dict[int, Piece]] = {}
        if blueprint.lane is not None and blueprint.plan.problem.workload.sharded:
            mine = [piece_of(k) for one in replicas for k in one.weights.named_state(blueprint.layer_names)]
            for device, theirs in enumerate(transport.all_gather_object([x for x in mine if x[1] is not None])):
                for name, piece in theirs:
                    pieces.setdefault(name, {})[device] = piece
        return cls(transport, blueprint.lane, shards, pieces)

    def name(self, key: str) -> str:
        """The checkpoint key that a tensor of the rank's state is saved under."""
        return key if self.lane is None else piece_of(key)[0]

    def shape(self, key: str, tensor: Tensor) -> tuple[int, ...]:
        """Of what is saved."""
        name, piece = self.name(key), None if self.lane is None else piece_of(key)[1]
        own, shard = tuple(tensor.shape) if piece is None else piece.shape, self.shards.get(name)
        return own if shard is None else shard.whole_shape(own)

    def made(self, name: str, tensor: Tensor, rank: int) -> Tensor | None:
        """A copy of the whole in the host's memory, on that rank alone.

        Collective among the rank's team, and among those that have pieces of it: they all make what they make in one
        order. `tensor`: what this rank has of it.
        """
        seat, shard = self.transport.seat, self.shards.get(name)
        device, lane = divmod(rank, seat.size)
        if shard is None and lane != seat.lane:
            return None
        with _disable_current_modes():  # the host's memory, not the device's
            own: Tensor | None = tensor.detach().to("cpu", copy=True).contiguous()
            if name in self.pieces:
                own = self._pieced(self.pieces[name], tensor.detach().cpu(), device)
            if own is None or device != self.transport.rank:
                return None
            if shard is None:
                return own
            parts = self.transport.host.gather_parts(own, rank)
            return None if parts is None else shard.whole(parts)

    def _pieced(self, pieces: Mapping[int, Piece], own: Tensor, device: int) -> Tensor | None:
        """A lane's part of all pieces of it, on that device; the others send theirs."""
        wires = self.transport.host
        if device != self.transport.rank:
            wires.post_send(own.contiguous(), device, 0).wait()
            return None
        whole = torch.empty(pieces[device].shape, dtype=own.dtype)
        for other, piece in pieces.items():
            values = own if other == device else torch.empty(piece.stop - piece.first, dtype=own.dtype)
            if other != device:
                wires.post_receive(values, other, 0).wait()
            whole.view(-1)[piece.first : piece.stop] = values.view(-1)
        return whole

    def targets(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Where to read these tensors to: what is cut or shared out gets memory of its own."""
        with _disable_current_modes():
            return {
                self.name(key): torch.empty(self.shape(key, tensor), dtype=tensor.dtype)
                if self._divided(key)
                else tensor
                for key, tensor in wanted.items()
            }

    def keep(self, wanted: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> None:
        """Takes this lane's part of what was read, or its piece of that."""
        with _disable_current_modes():
            for key in filter(self._divided, wanted):
                name, piece = piece_of(key)
                value = read[name]
                if self.lane is not None and name in self.shards:
                    value = self.shards[name].part(value, self.lane)
                if piece is not None:
                    value = value.reshape(-1)[piece.first : piece.stop]
                wanted[key].copy_(value)

    def _divided(self, key: str) -> bool:
        name = self.name(key)
        return name in self.shards or name in self.pieces
