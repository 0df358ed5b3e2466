"""What passes between the layers of a model while they are profiled one by one, and the memory it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...models import LayeredModel, Piece
from ...models.wiring import DATA, Carried, Inputs, Part, Value, tensors_of

WORKSPACES = ("workspace_bytes", *(f"{op}_workspace_bytes" for op in ("forward", "remake", "backward", "input")))
"""What tensors that pass a layer by count in: for a W there are none any more."""


class Kept(NamedTuple):
    """Which of several tensors are in a layer's stash, whatever is dropped of it, and in what it holds from I to W."""

    stash: tuple[bool, ...]
    weight_stash: tuple[bool, ...]


class Handed(NamedTuple):
    """What a layer gives, whether it saves all it takes, and its workspace if nobody saves what it gives beside it.

    takes, gives: what of these it keeps. back: strides of the gradient that it hands back, None: contiguous.
    """

    output: Carried
    saves_input: bool
    dropped_workspace: int
    takes: Kept
    gives: Kept
    back: tuple[int, ...] | None = None


Twice = dict[tuple[str, str], tuple[int, int]]
"""By the names of two layers: bytes that both keep, and those that both hold from I to W."""


class Between:
    """The tensors on their way, those of the data first. Raises ValueError: the data gives other tensors."""

    def __init__(self, model: LayeredModel, pieces: Sequence[Piece], inputs: Inputs) -> None:
        self._model, self._wiring = model, model.wiring
        values = {value for taken in self._wiring.takes for value in taken}
        self._there: dict[Value, Tensor] = self._wiring.given(inputs, values)
        self._home = {index: number for number, piece in enumerate(pieces) for index in piece.ids}
        self._with_gradients: set[Value] = set()
        self._entries: list[dict[str, Any]] = []
        self._handed: list[Handed] = []
        self._bytes = {value: tensor.nbytes for value, tensor in self._there.items()}
        self._keepers: tuple[dict[Value, str], ...] = ({}, {})  # who gives it and has it: in a stash, from I to W
        self.twice: Twice = {}

    def part(self, piece: Piece, trained: bool) -> Part:
        """The next piece; `trained`: whether some of it is."""
        own = self._wiring.part(piece.ids)
        self._trained = trained or not self._with_gradients.isdisjoint(own.takes)
        return self._wiring.part(piece.ids, self._with_gradients | (set(own.gives) if self._trained else set()))

    def taken(self, part: Part) -> list[Tensor]:
        """What it takes."""
        return [self._there[value] for value in part.takes]

    def add(self, part: Part, entry: dict[str, Any], handed: Handed) -> None:
        """The piece has been run: its entry in model.json says from now on which tensors it gives."""
        number = len(self._entries)
        self._entries.append(entry)
        self._handed.append(handed)
        taken = self._kept_again(part, entry["name"], handed.takes)
        if not handed.saves_input:
            taken |= {value for value in part.takes if value.layer != DATA}
        for source in {self._home[value.layer] for value in taken}:
            before = self._entries[source]
            before["workspace_bytes"] = max(before["workspace_bytes"], self._handed[source].dropped_workspace)
        given = dict(zip(part.gives, tensors_of(handed.output), strict=False))  # a loss is nobody's
        sharing = Counter(tensor.untyped_storage()._cdata for tensor in given.values())
        for value, tensor in given.items():
            storage = tensor.untyped_storage()
            self._bytes[value] = max(tensor.nbytes, -(-storage.nbytes() // sharing[storage._cdata]))
            if self._trained and tensor.is_floating_point():
                self._with_gradients.add(value)
        for keepers, kept in zip(self._keepers, handed.gives, strict=True):
            alone = (value for value, tensor in given.items() if sharing[tensor.untyped_storage()._cdata] == 1)
            keepers |= {value: entry["name"] for value in alone if kept[part.gives.index(value)]}
        self._there |= given
        self._forget(number)
        plain = len(given) == 1 and self._with_gradients.issuperset(given)
        if given and not plain and not self._wiring.chained:
            self._name(entry, part)

    def _kept_again(self, part: Part, name: str, takes: Kept) -> set[Value]:
        """Of what a piece takes and keeps, what who gives it keeps, too; notes who, and how much."""
        storages = Counter(tensor.untyped_storage()._cdata for tensor in self.taken(part))
        found = set()
        for which, (keepers, kept) in enumerate(zip(self._keepers, takes, strict=True)):
            for value, tensor, mine in zip(part.takes, self.taken(part), kept, strict=True):
                if mine and value in keepers and storages[tensor.untyped_storage()._cdata] == 1:
                    sizes = list(self.twice.get((keepers[value], name), (0, 0)))
                    sizes[which] += tensor.untyped_storage().nbytes()
                    self.twice[keepers[value], name] = sizes[0], sizes[1]
                    found.add(value)
        return found

    def _name(self, entry: dict[str, Any], part: Part) -> None:
        entry["outputs"] = [
            {
                "name": self._wiring.name(value, self._model.layers),
                "bytes": self._bytes[value],
                **({} if value in self._with_gradients else {"gradient": False}),
            }
            for value in part.gives
        ]
        entry["output_bytes"] = sum(output["bytes"] for output in entry["outputs"])

    def _forget(self, number: int) -> None:
        """What no piece to come takes."""
        for value in [v for v in self._there if max(self._takers(v), default=-1) <= number]:
            del self._there[value]

    def _takers(self, value: Value) -> list[int]:
        return [self._home[index] for index in self._wiring.consumers(value)]

    def count_passing(self) -> None:
        """Adds to the workspace of every piece what passes it by: inside a stage nobody else counts it.

        Data that first layers take is counted by the stage.
        """
        first = {v for taken in self._wiring.takes if all(v.layer == DATA for v in taken) for v in taken}
        for value, size in self._bytes.items():
            start = -1 if value.layer == DATA else self._home[value.layer]
            takers = [taker for taker in self._takers(value) if taker != start]
            for number in range(start + 1, max(takers, default=0)):
                own = value.layer == DATA and (value in first or number in takers)
                for key in WORKSPACES:
                    self._entries[number][key] += 0 if own else size
