"""A stash that leaves its device: taken apart into storages, each as plain bytes, and put together again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorSpec:
    """Shape, strides and type of a tensor in a stash: what a receiver must allocate."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Stash:
    """What one forward leaves for its backward, which consumes it.

    Attributes:
        tensors: activations, and where the backward reads them the stage's input, target and buffers;
            never parameters. In the order of `StageProgram.stash_specs`.
        nbytes: bytes of their storages, each once, buffers excluded.
        tape: what an eager program keeps in this process beside the tensors.
    """

    tensors: list[Tensor]
    nbytes: int
    tape: object = None


class View(NamedTuple):
    """A tensor of a stash as a view of one of its pieces; the offset in elements."""

    piece: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class PackedStash:
    """What is needed besides the pieces to have the stash again; holds no memory of its own, only buffers."""

    members: tuple[View | Tensor, ...]
    nbytes: int
    tape: object = None

    def unpack(self, pieces: list[Tensor]) -> Stash:
        """The stash on these pieces, which are not copied."""
        storages = [piece.untyped_storage() for piece in pieces]
        tensors = [
            member
            if isinstance(member, Tensor)
            else torch.empty(0, dtype=member.dtype, device=pieces[member.piece].device).set_(
                storages[member.piece], member.offset, member.shape, member.stride
            )
            for member in self.members
        ]
        return Stash(tensors, self.nbytes, self.tape)


@dataclass(frozen=True)
class StashLayout:
    """How every stash of a stage comes apart.

    Attributes:
        label: how errors call the stage.
        groups: for every piece, the positions in the stash of the tensors that share its storage. Tensors in no
            group are the device's buffers and stay where they are.
        piece_bytes: bytes of every piece, known before anything runs.
    """

    label: str
    groups: tuple[tuple[int, ...], ...]
    piece_bytes: tuple[int, ...]

    def pack(self, stash: Stash) -> tuple[list[Tensor], PackedStash]:
        """(pieces, the rest). Consumes the stash; a piece is its storage's bytes, not a copy of them.

        A tensor that is part of something larger (a slice of a data set) is copied, so that only it travels.

        Raises:
            ValueError: the stash was consumed already, or is not as large as was known before.
        """
        if not stash.tensors and self.groups:
            raise ValueError(f"{self.label}: the stash was consumed already")
        members: list[View | Tensor] = list(stash.tensors)
        pieces = []
        for number, (group, size) in enumerate(zip(self.groups, self.piece_bytes, strict=True)):
            tensors = [stash.tensors[position] for position in group]
            storage = tensors[0].untyped_storage()
            if len(tensors) > 1 or storage.nbytes() != size:
                tensors = self._of_one_storage(tensors, size)
                storage = tensors[0].untyped_storage()
            for position, t in zip(group, tensors, strict=True):
                members[position] = View(number, int(t.storage_offset()), t.shape, t.stride(), t.dtype)
            pieces.append(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        stash.tensors.clear()
        return pieces, PackedStash(tuple(members), stash.nbytes, stash.tape)

    def _of_one_storage(self, tensors: list[Tensor], size: int) -> list[Tensor]:
        """Tensors that are known to share a storage of so many bytes; one that is part of a larger one, by itself."""
        if len(tensors) == 1:
            (t,) = tensors
            tensors = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        if list(storages.values()) != [size]:
            raise ValueError(
                f"{self.label}: {sum(storages.values())} bytes of the stash were known to be {size}, so it cannot "
                "leave its device"
            )
        return tensors


def pieces(
    tensors: Sequence[Tensor], staying: Collection[int], given: Sequence[Tensor]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """(for every storage, the positions of its tensors; its bytes). Of the given ones, which may be part of something
    larger, their own bytes; storages that stay belong to no piece."""
    own = {tensor.untyped_storage()._cdata: tensor.nbytes for tensor in given}
    groups: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for position, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in staying:
            groups.setdefault(key, []).append(position)
            sizes[key] = min(storage.nbytes(), own.get(key, storage.nbytes()))
    return tuple(map(tuple, groups.values())), tuple(sizes.values())


def spec(tensor: Tensor) -> TensorSpec:
    """What a receiver of the tensor must allocate."""
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
