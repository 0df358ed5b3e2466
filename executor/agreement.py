"""What ranks must agree on before they exchange anything: the programs of the stages that several of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .errors import ExecutionError
from .packing import View

if TYPE_CHECKING:
    from .replica import StageReplica
    from .transport import Transport


class Signature(NamedTuple):
    """What the programs of one stage have in common on all ranks that hold it.

    `parameters`: names and shapes; `stash`: how its tensors lie in the pieces (None: a buffer of the device).
    """

    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    output: str
    piece_bytes: tuple[int, ...]
    stash: tuple[View | None, ...]

    @classmethod
    def of(cls, replica: StageReplica) -> Signature:
        """The signature of a rank's replica."""
        program, weights = replica.program, replica.weights
        shapes = tuple((name, tuple(weights.parameters[name].shape)) for name in program.parameter_names)
        members = () if replica.arrival is None else replica.arrival.members
        views = tuple(member if isinstance(member, View) else None for member in members)
        return cls(shapes, repr(program.output_spec), program.stash_layout.piece_bytes, views)


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
    first: dict[int, tuple[int, Signature]] = {}
    for rank, theirs in enumerate(transport.all_gather_object(mine)):
        for stage, signature in theirs.items():
            other, known = first.setdefault(stage, (rank, signature))
            for field, a, b in zip(Signature._fields, known, signature, strict=True):
                if a != b:
                    raise ExecutionError(
                        f"stage {stage}: its program differs between ranks {other} and {rank} in {field}: {a} and {b}"
                    )
    return Agreement(
        {stage: signature.piece_bytes for stage, (_, signature) in first.items()},
        {stage: len(signature.parameters) for stage, (_, signature) in first.items()},
    )
