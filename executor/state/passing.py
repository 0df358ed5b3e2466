"""What passes between the stages of a plan: which tensors of the model go from which stage to which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...models import LayeredModel, Piece
from ...models.wiring import DATA, Part, Value
from ...planner.plan import Plan


class PlannedEdge(NamedTuple):
    """An edge of model.json: names of the tensors that it carries, where these are not all that its source gives."""

    source: str
    target: str
    tensors: tuple[str, ...] | None


def given(model: LayeredModel, piece: Piece) -> tuple[Value, ...]:
    """The tensors of a piece that others take."""
    return model.wiring.part(piece.ids).gives


def planned_edges(model: LayeredModel, pieces: Sequence[Piece]) -> list[PlannedEdge]:
    """The edges between the pieces of a model, as model.json has them."""
    gives = [given(model, piece) for piece in pieces]
    found = []
    for (source, target), values in model.wiring.edges([piece.ids for piece in pieces]).items():
        names = tuple(model.wiring.name(value, model.layers) for value in values)
        some = names if len(values) < len(gives[source]) else None
        found.append(PlannedEdge(pieces[source].name, pieces[target].name, some))
    return found


def stage_ids(plan: Plan, pieces: Sequence[Piece]) -> list[tuple[int, ...]]:
    """By stage, the positions in the model of its layers."""
    made_of = {layer.name: piece.ids for layer, piece in zip(plan.problem.model.layers, pieces, strict=True)}
    return [tuple(sorted(index for name in stage for index in made_of[name])) for stage in plan.stages]


def trained_behind(plan: Plan, model: LayeredModel, pieces: Sequence[Piece]) -> list[bool]:
    """By layer of the model, whether something that is trained decides what it gives."""
    planned = zip(plan.problem.model.layers, pieces, strict=True)
    found = [False] * len(model.layers)
    for layer, piece in planned:
        for index in piece.ids:
            found[index] = bool(layer.trained_bytes)
    for index, values in enumerate(model.wiring.takes):
        found[index] |= any(found[value.layer] for value in values if value.layer != DATA)
    return found


@dataclass(frozen=True)
class Passing:
    """Of a plan; `parts`: its stages."""

    parts: tuple[Part, ...]

    @cached_property
    def _edges(self) -> Mapping[tuple[int, int], tuple[Value, ...]]:
        home = {index: stage for stage, part in enumerate(self.parts) for index in part.ids}
        found: dict[tuple[int, int], list[Value]] = {}
        for stage, part in enumerate(self.parts):
            for value in part.takes:
                if value.layer != DATA:
                    found.setdefault((home[value.layer], stage), []).append(value)
        return {key: tuple(values) for key, values in found.items()}

    @cached_property
    def _wanted(self) -> tuple[frozenset[Value], ...]:
        return tuple(
            frozenset(value for value, wanted in zip(part.takes, part.wanted, strict=True) if wanted)
            for part in self.parts
        )

    @cached_property
    def _gradients(self) -> Mapping[tuple[int, int], tuple[Value, ...]]:
        return {
            (a, b): tuple(value for value in values if value in self._wanted[b])
            for (a, b), values in self._edges.items()
        }

    @cached_property
    def _neighbours(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """By stage, those that it takes from, and those that take from it."""
        return tuple(
            (tuple(sorted(a for a, b in self._edges if b == s)), tuple(sorted(b for a, b in self._edges if a == s)))
            for s in range(len(self.parts))
        )

    @cached_property
    def _handed(self) -> tuple[tuple[tuple[Value, ...], tuple[Value, ...]], ...]:
        """By stage, what its backward hands back the gradients of, and what gradients come for."""
        return tuple(
            (
                tuple(value for value in part.takes if value in wanted),
                tuple(value for value, flag in zip(part.gives, part.returned, strict=True) if flag),
            )
            for part, wanted in zip(self.parts, self._wanted, strict=True)
        )

    def edge(self, producer: int, consumer: int, gradients: bool = False) -> tuple[Value, ...]:
        """The tensors that go from stage to stage, or those whose gradients come back."""
        return (self._gradients if gradients else self._edges)[producer, consumer]

    def producers(self, stage: int) -> tuple[int, ...]:
        """The stages that it takes from."""
        return self._neighbours[stage][0]

    def consumers(self, stage: int) -> tuple[int, ...]:
        """The stages that take from it."""
        return self._neighbours[stage][1]

    @cached_property
    def widest(self) -> int:
        """The most tensors between two stages."""
        return max(map(len, self._edges.values()), default=1)

    def reads(self, stage: int) -> bool:
        """Whether it takes something of the data's inputs."""
        return any(value.layer == DATA for value in self.parts[stage].takes)

    def wanted(self, stage: int) -> tuple[Value, ...]:
        """What a backward of the stage hands back the gradients of, in its order."""
        return self._handed[stage][0]

    def returned(self, stage: int) -> tuple[Value, ...]:
        """What gradients come for, in the order in which a backward takes them."""
        return self._handed[stage][1]
