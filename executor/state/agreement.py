"""What ranks must agree on before they exchange anything: the programs of the stages that several of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ..basics import ExecutionError
from ..stage import View

if TYPE_CHECKING:
    from ..wires import Transport
    from .replica import StageReplica


Kinds = tuple[tuple[str, tuple[int, ...], str], ...]
"""Names, shapes and types of tensors, in the order in which ranks pair them."""


class Signature(NamedTuple):
    """What one stage has in common on all ranks that hold it; None: this rank takes no part in exchanging it.

    `gradients`: of the flat buffers that REDUCE sums. `code`, `stash`: of a stash that comes or goes for good, the
    programs that make and take it, and how its tensors lie in the pieces (None: a buffer of the device).
    """

    parameters: Kinds
    buffers: Kinds
    gradients: Kinds | None
    output: str
    piece_bytes: tuple[int, ...]
    stash: tuple[View | None, ...] | None
    code: str | None

    @classmethod
    def of(cls, replica: StageReplica) -> Signature:
        """The signature of a rank's replica."""
        program, weights, arrival = replica.program, replica.weights, replica.arrival
        views = (
            None
            if arrival is None
            else tuple(member if isinstance(member, View) else None for member in arrival.members)
        )
        return cls(
            _kinds(weights.parameters),
            _kinds(weights.buffers),
            _kinds(weights.summed) if replica.owner else None,
            repr(program.output_specs),
            program.stash_layout.piece_bytes,
            views,
            None if arrival is None else program.code,
        )


def _kinds(named: Mapping[str, Tensor]) -> Kinds:
    return tuple((name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named.items())


@dataclass(frozen=True)
class Agreement:
    """By stage, of all ranks: bytes of the pieces that its stash comes apart into, and parameter tensors."""

    piece_bytes: Mapping[int, tuple[int, ...]]
    parameters: Mapping[int, int]

    @property
    def widest(self) -> int:
        """The most pieces that any stash has."""
        return max(map(len, self.piece_bytes.values()), default=0)

    @property
    def most_parameters(self) -> int:
        """The most parameter tensors that any stage has."""
        return max(self.parameters.values(), default=0)


def agree(transport: Transport, replicas: Mapping[int, StageReplica]) -> Agreement:
    """Compares signatures; collective. Raises ExecutionError naming stage, both ranks and what differs."""
    mine = {stage: Signature.of(replica) for stage, replica in replicas.items()}
    first: dict[tuple[int, str], tuple[int, object]] = {}
    sizes: dict[int, Signature] = {}
    for rank, theirs in enumerate(transport.all_gather_object(mine)):
        for stage, signature in theirs.items():
            sizes.setdefault(stage, signature)
            for field, found in zip(Signature._fields, signature, strict=True):
                other, known = first.setdefault((stage, field), (rank, found)) if found is not None else (rank, found)
                if known != found:
                    raise ExecutionError(
                        f"stage {stage}: its {field} {_DIFFER[field]} between ranks {other} and {rank}: "
                        f"{_unlike(known, found)}"
                    )
    return Agreement(
        {stage: signature.piece_bytes for stage, signature in sizes.items()},
        {stage: len(signature.parameters) for stage, signature in sizes.items()},
    )


_DIFFER = {field: "differs" if field in ("output", "stash", "code") else "differ" for field in Signature._fields}


def _unlike(a: object, b: object) -> str:
    """The first entries that two signatures' fields do not share."""
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return f"{a} and {b}"
    x, y = next((x, y) for x, y in zip_longest(a, b, fillvalue="nothing") if x != y)
    return f"{x} and {y}"
