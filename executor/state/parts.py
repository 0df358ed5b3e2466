"""What replicas share out among them of a stage's optimizer (ZeRO-1): flat buffers in equal parts, one a replica.

Gradients and parameters of one type lie in two flat buffers alike, padded to equal parts. REDUCE leaves each replica
the sum of its part, STEP updates that part, GATHER brings all parts to all. What a part has of a parameter is a piece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...planner.problem import part_bytes


class Part(NamedTuple):
    """Which one of how many parts a replica has."""

    number: int
    of: int


ALL = Part(0, 1)


class Piece(NamedTuple):
    """Elements `first` up to `stop` of a tensor of this shape, in order: what a replica steps of a parameter."""

    first: int
    stop: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"#{self.first}:{self.stop}@{'x'.join(map(str, self.shape))}"


_PIECE = re.compile(r"(.*)#(\d{1,18}):(\d{1,18})@(\d{1,18}(?:x\d{1,18})*)?", re.DOTALL)


def piece_of(key: str) -> tuple[str, Piece | None]:
    """The name of a tensor, and which piece of it is meant: what `str(Piece)` says at the end of a key."""
    found = _PIECE.fullmatch(key)
    if found is None:
        return key, None
    name, first, stop, shape = found.groups()
    return name, Piece(int(first), int(stop), tuple(map(int, shape.split("x"))) if shape else ())


def put_together(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, with the pieces of one tensor made one again."""
    whole: dict[str, Tensor] = {}
    for key, tensor in state.items():
        name, piece = piece_of(key)
        if piece is None:
            whole[name] = tensor
        else:
            target = whole.setdefault(name, torch.empty(piece.shape, dtype=tensor.dtype, device=tensor.device))
            target.view(-1)[piece.first : piece.stop] = tensor
    return whole


@dataclass
class Shares:
    """One replica's part of the parameters that its stage's replicas train together.

    Attributes:
        gradients, values: flat buffers, padded, one pair for every combination of types.
        accumulators, parameters: by name, the whole tensors in them.
        stepped: by name, what this replica steps: a view of `values`, or a piece of a float32 master; with its `.grad`.
        pieces: by name, which elements these are. copies: of masters, the 16-bit elements that follow them.
        mastered: names of those that have a master, on whichever replica.
    """

    part: Part
    gradients: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    accumulators: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    stepped: dict[str, Tensor] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    copies: dict[str, Tensor] = field(default_factory=dict)
    mastered: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, part: Part, parameters: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> Shares:
        """The replica's part of `trained` (parameters, or their masters), in the order that all replicas have."""
        found = cls(part)
        types = {name: (parameters[name].dtype, value.dtype) for name, value in trained.items()}
        for kinds in dict.fromkeys(types.values()):
            names = [name for name in trained if types[name] == kinds]
            found.mastered |= {name for name in names if trained[name] is not parameters[name]}
            found._lay({name: parameters[name] for name in names}, {name: trained[name] for name in names})
        return found

    def _lay(self, parameters: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> None:
        """Puts parameters of one type, and what is stepped for them, into two flat buffers."""
        first = next(iter(parameters.values()))
        count, number = sum(value.numel() for value in parameters.values()), self.part.number
        size = part_bytes(count * first.element_size(), self.part.of) // first.element_size()
        dtype = next(iter(trained.values())).dtype
        values = torch.zeros(size * self.part.of, dtype=first.dtype, device=first.device)
        gradients = torch.zeros(size * self.part.of, dtype=dtype, device=first.device)
        begin = 0
        for name, parameter in parameters.items():
            end = begin + parameter.numel()
            values[begin:end].copy_(parameter.reshape(-1))
            self.parameters[name] = values[begin:end].view(parameter.shape)
            self.accumulators[name] = gradients[begin:end].view(parameter.shape)
            low, high = max(begin, number * size), min(end, (number + 1) * size)
            if low < high:
                self._take(name, parameter, trained[name], (low - begin, high - begin), values[low:high])
                self.stepped[name].grad = gradients[low:high]
            begin = end
        self.gradients.append(gradients)
        self.values.append(values)

    def _take(self, name: str, parameter: Tensor, value: Tensor, span: tuple[int, int], mine: Tensor) -> None:
        self.pieces[name] = Piece(*span, tuple(parameter.shape))
        if value is parameter:
            self.stepped[name] = mine
        else:
            self.stepped[name] = value.reshape(-1)[slice(*span)].clone()
            self.copies[name] = mine

    @property
    def own_gradients(self) -> list[Tensor]:
        """This replica's part of the gradients: their sums, once they are reduced."""
        return [flat.chunk(self.part.of)[self.part.number] for flat in self.gradients if flat.numel()]

    def follow(self) -> None:
        """Masters become what their copies are where these differ: a copy was another replica's, by its values."""
        with torch.no_grad():
            for name, copy in self.copies.items():
                master = self.stepped[name]
                other = master.to(copy.dtype) != copy
                master[other] = copy[other].to(master.dtype)
