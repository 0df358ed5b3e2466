"""A team of ranks that hold a layer together: which of them one is, and what part of a parameter it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EXECUTED = ("tensor", "sequence")
"""Ways of dividing layers among a team that are executed: Megatron-LM's tensor parallelism (arXiv:1909.08053), and
the same with activations between its parts divided by position (arXiv:2205.05198)."""
PLANNED = (*EXECUTED, "expert")
"""Ways of which costs are estimated: by experts too, as in GShard (arXiv:2006.16668)."""


@dataclass(frozen=True)
class Lane:
    """One of `size` ranks that hold a layer together. `sequence`: what flows between layers is divided by position.

    `experts`: experts are divided, and what flows between layers by samples; all other parameters every lane has whole.
    """

    size: int
    number: int = 0
    sequence: bool = False
    experts: bool = False

    @property
    def apart(self) -> bool:
        """Whether each lane has its own part of what flows between layers."""
        return self.sequence or self.experts

    @classmethod
    def of(cls, ways: Mapping[str, int], number: int = 0) -> Lane | None:
        """The lane of this number in a team that divides layers in these ways; None: alone.

        Raises ValueError naming a way that is not executed.
        """
        return cls._among(EXECUTED, "executed", ways, number)

    @classmethod
    def planned(cls, ways: Mapping[str, int]) -> Lane | None:
        """The first lane of such a team, also where it is not executed. Raises ValueError naming an unknown way."""
        return cls._among(PLANNED, "estimated", ways, 0)

    @classmethod
    def _among(cls, known: Sequence[str], what: str, ways: Mapping[str, int], number: int) -> Lane | None:
        wide = {name: count for name, count in ways.items() if count > 1}
        if not wide:
            return None
        if len(wide) > 1 or not wide.keys() <= set(known):
            given = ", ".join(f"{name} {count}" for name, count in wide.items())
            raise ValueError(f"a team that divides layers by {given} is not {what}; {' or '.join(known)} is")
        ((name, size),) = wide.items()
        return cls(size, number, name == "sequence", name == "expert")


class NoParallelForm(ValueError):
    """A layer that cannot be divided among a team; says why."""


@dataclass(frozen=True)
class Shard:
    """How a parameter is cut: along `dim` into `blocks` equal blocks (of fused parameters), each into a part a lane.

    `length`: of the whole dimension. Where it has no `size`-th part, the last lanes' parts end in rows of zeros that
    nothing reads and no gradient reaches.
    """

    dim: int
    length: int
    blocks: int = 1

    def part(self, whole: Tensor, lane: Lane) -> Tensor:
        """A lane's part of the whole, a new tensor."""
        own = -(-self.length // (self.blocks * lane.size))
        part = self._padded(whole, lane.size).narrow(self.dim + 1, lane.number * own, own)
        return part.flatten(self.dim, self.dim + 1).clone(memory_format=torch.contiguous_format)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """The parameter from the lanes' parts."""
        joined = torch.cat([self._in_blocks(part) for part in parts], self.dim + 1)
        unpadded = joined.narrow(self.dim + 1, 0, self.length // self.blocks)
        return unpadded.flatten(self.dim, self.dim + 1).contiguous()

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The parameter's shape from that of a part."""
        return (*shape[: self.dim], self.length, *shape[self.dim + 1 :])

    def _padded(self, whole: Tensor, size: int) -> Tensor:
        cut = self._in_blocks(whole)
        missing = -cut.shape[self.dim + 1] % size
        if not missing:
            return cut
        shape = [*cut.shape[: self.dim + 1], missing, *cut.shape[self.dim + 2 :]]
        return torch.cat([cut, cut.new_zeros(shape)], self.dim + 1)

    def _in_blocks(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(*tensor.shape[: self.dim], self.blocks, -1, *tensor.shape[self.dim + 1 :])


def shards_of(module: nn.Module) -> dict[str, Shard]:
    """How the parameters of a divided layer are cut, by name; those that are not here every lane has whole."""
    found: dict[str, Shard] = {}
    for path, part in module.named_modules():
        own: Mapping[str, Shard] = getattr(part, "shards", {})
        found.update({f"{path}.{name}" if path else name: shard for name, shard in own.items()})
    return found
