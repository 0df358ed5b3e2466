"""Which tensors the layers of a model take: of the data, and of layers before them. A chain is the simplest case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor

DATA = -1
"""The layer that the data's inputs count as outputs of."""
INPUT = "input"
"""What layers call the data's inputs: all of them where they are one tensor, else "input.NAME" each."""

Inputs = Tensor | Mapping[str, Tensor]
"""Of a micro-batch, as a data set gives them: one tensor, or several by name."""
Carried = Tensor | tuple[Tensor, ...]
"""What passes between stages: one tensor, or several in a known order."""


class Wired(Protocol):
    """A layer as far as it says what it takes and gives (see `LayerSpec`)."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> tuple[str, ...] | str | None: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...


class Value(NamedTuple):
    """A tensor of a model: output `number` of a layer, by its position; of DATA, one of the wiring's inputs."""

    layer: int
    number: int


def tensors_of(carried: Carried) -> tuple[Tensor, ...]:
    """As a tuple, be it one tensor."""
    return (carried,) if isinstance(carried, Tensor) else carried


def carried(tensors: Sequence[Tensor]) -> Carried:
    """A tuple of tensors, or the only one."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def each(inputs: Inputs, what: Callable[[Tensor], Tensor]) -> Inputs:
    """The same done to every tensor."""
    return what(inputs) if isinstance(inputs, Tensor) else {name: what(tensor) for name, tensor in inputs.items()}


def named(inputs: Inputs) -> dict[str, Tensor]:
    """Every tensor by its name; one alone has none."""
    return {"": inputs} if isinstance(inputs, Tensor) else dict(inputs)


@dataclass(frozen=True)
class Part:
    """Some layers of a model, in its order, and what passes between them and the rest.

    Attributes:
        ids: their positions in the model.
        takes: what comes from outside: of the data first, then by layers. gives: what layers outside take.
        arguments: of every layer. outputs: names of what every layer returns, none where it is one tensor.
        wanted: of `takes`, those whose gradient somebody wants. returned: of `gives`, those whose gradient comes.
    """

    ids: tuple[int, ...]
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]
    arguments: tuple[tuple[Value, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    wanted: tuple[bool, ...]
    returned: tuple[bool, ...]

    @staticmethod
    def chain(ids: Sequence[int], wants: bool) -> Part:
        """Layers of which each takes what the one before it gives."""
        takes = tuple(Value(index - 1, 0) for index in ids)
        last = Value(ids[-1], 0)
        return Part(tuple(ids), takes[:1], (last,), tuple((v,) for v in takes), ((),) * len(ids), (wants,), (True,))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Positions in `takes` of what a recomputed stage keeps: data that other layers than first ones take is read
        again."""
        first = {value for values in self.arguments if all(v.layer == DATA for v in values) for value in values}
        return tuple(k for k, value in enumerate(self.takes) if value.layer != DATA or value in first)

    @cached_property
    def form(self) -> tuple[object, ...]:
        """Equal for parts that are wired alike, wherever they are in the model."""
        first, outside = self.ids[0], {value: k for k, value in enumerate(self.takes)}

        def relative(values: Iterable[Value]) -> tuple[object, ...]:
            return tuple(outside[v] if v in outside else (v.layer - first, v.number) for v in values)

        return tuple(map(relative, (*self.arguments, self.gives))), self.outputs, self.wanted, self.returned

    @cached_property
    def over(self) -> tuple[tuple[Value, ...], ...]:
        """By layer, what nobody takes after it."""
        last: dict[Value, int] = {}
        for place, values in enumerate(self.arguments):
            last |= dict.fromkeys(values, place)
        ends: list[list[Value]] = [[] for _ in self.ids]
        for value, place in last.items():
            if value not in self.gives:
                ends[place].append(value)
        return tuple(map(tuple, ends))


@dataclass(frozen=True)
class Wiring:
    """Of a model.

    Attributes:
        takes: the arguments of every layer. outputs: see `Part`.
        inputs: names of what is taken of the data; "" is its only tensor.
    """

    takes: tuple[tuple[Value, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...]

    @staticmethod
    def of(layers: Sequence[Wired]) -> Wiring:
        """Raises ValueError naming the layer: it takes what there is not before it, or nobody takes what it gives."""
        known: dict[str, Value] = {}
        inputs: dict[str, int] = {}
        takes = []
        for index, spec in enumerate(layers):
            if spec.inputs is None:
                wanted = [_before(layers, index)]
            else:
                wanted = [spec.inputs] if isinstance(spec.inputs, str) else list(spec.inputs)
            if not wanted:
                raise ValueError(f"layer {spec.name!r} takes nothing")
            takes.append(tuple(_found(spec.name, name, known, inputs) for name in wanted))
            for number, name in enumerate(spec.outputs or ("",)):
                full = f"{spec.name}.{name}" if name else spec.name
                if full in known:
                    raise ValueError(f"layer {spec.name!r}: {full!r} is the name of two tensors")
                known[full] = Value(index, number)
        taken = {value.layer for values in takes for value in values}
        for index, spec in enumerate(layers[:-1]):
            if index not in taken:
                raise ValueError(f"layer {spec.name!r}: no layer takes what it gives")
        return Wiring(tuple(takes), tuple(tuple(spec.outputs) for spec in layers), tuple(inputs))

    @cached_property
    def chained(self) -> bool:
        """Whether every layer takes one tensor, what the one before it gives."""
        return all(values == (Value(index - 1, 0),) for index, values in enumerate(self.takes)) and not any(
            self.outputs[:-1]
        )

    def name(self, value: Value, layers: Sequence[Wired]) -> str:
        """Of a tensor, as layers call it."""
        if value.layer == DATA:
            name = self.inputs[value.number]
            return f"{INPUT}.{name}" if name else INPUT
        spec = layers[value.layer]
        return f"{spec.name}.{spec.outputs[value.number]}" if spec.outputs else spec.name

    def given(self, inputs: Inputs, values: Iterable[Value]) -> dict[Value, Tensor]:
        """The tensors of the data among these; the only one, whatever its name. Raises ValueError: it gives others."""
        there = named(inputs)
        if self.inputs == ("",) and len(there) == 1:
            there = dict(zip(self.inputs, there.values(), strict=True))
        found = {}
        for value in values:
            if value.layer == DATA:
                name = self.inputs[value.number]
                if name not in there:
                    gives = "one tensor" if "" in there else ", ".join(there)
                    raise ValueError(f"layers take {repr(name) if name else 'one tensor'}, the data gives {gives}")
                found[value] = there[name]
        return found

    def consumers(self, value: Value) -> tuple[int, ...]:
        """The layers that take it."""
        return tuple(index for index, values in enumerate(self.takes) if value in values)

    def part(self, ids: Iterable[int], differentiable: Collection[Value] | None = None) -> Part:
        """These layers; `differentiable`: the tensors that have gradients, None: none has."""
        mine = tuple(sorted(ids))
        inside, has = set(mine), differentiable or ()
        takes = sorted({v for index in mine for v in self.takes[index] if v.layer not in inside})
        gives = sorted(
            {v for index, values in enumerate(self.takes) if index not in inside for v in values if v.layer in inside}
        )
        return Part(
            mine,
            tuple(takes),
            tuple(gives),
            tuple(self.takes[index] for index in mine),
            tuple(self.outputs[index] for index in mine),
            tuple(value in has for value in takes),
            tuple(value in has for value in gives),
        )

    def edges(self, pieces: Sequence[Collection[int]]) -> dict[tuple[int, int], tuple[Value, ...]]:
        """Between pieces of the model, by their numbers: what passes, in the order of who takes it."""
        home = {index: number for number, ids in enumerate(pieces) for index in ids}
        found: dict[tuple[int, int], set[Value]] = {}
        for index, values in enumerate(self.takes):
            for value in values:
                if value.layer != DATA and home[value.layer] != home[index]:
                    found.setdefault((home[value.layer], home[index]), set()).add(value)
        return {key: tuple(sorted(found[key])) for key in sorted(found, key=lambda key: (key[1], key[0]))}


def _before(layers: Sequence[Wired], index: int) -> str:
    if index == 0:
        return INPUT
    spec = layers[index - 1]
    if spec.outputs:
        raise ValueError(
            f"layer {layers[index].name!r} says nothing of its inputs, and {spec.name!r} before it gives "
            f"{', '.join(spec.outputs)}"
        )
    return spec.name


def _found(layer: str, name: str, known: Mapping[str, Value], inputs: dict[str, int]) -> Value:
    if name in known:
        return known[name]
    head, _, rest = name.partition(".")
    if head != INPUT:
        raise ValueError(f"layer {layer!r} takes {name!r}, which no layer before it gives")
    if inputs and ("" in inputs) != (not rest):
        raise ValueError(f"layer {layer!r} takes {name!r}: the data's inputs are one tensor or have names, not both")
    return Value(DATA, inputs.setdefault(rest, len(inputs)))


class Flow:
    """Tensors on their way through the layers of a part; what nobody takes any more is let go of."""

    def __init__(self, part: Part, x: Carried) -> None:
        self._part = part
        self._there = dict(zip(part.takes, tensors_of(x), strict=True))

    def arguments(self, place: int) -> tuple[Tensor, ...]:
        """What the layer at this place of the part takes. What it alone still needs is left to it."""
        found = tuple(self._there[value] for value in self._part.arguments[place])
        for value in self._part.over[place]:
            del self._there[value]
        return found

    def returned(self, place: int, result: Any) -> None:
        """What the layer has given. Raises ValueError: not what it says."""
        index, names = self._part.ids[place], self._part.outputs[place]
        for number, tensor in enumerate(outputs_of(result, names)):
            self._there[Value(index, number)] = tensor

    @property
    def waiting(self) -> Iterable[Tensor]:
        """What layers to come take, or others outside."""
        return self._there.values()

    def given(self) -> Carried:
        """What leaves the part."""
        return carried([self._there[value] for value in self._part.gives])


def outputs_of(result: Any, names: Sequence[str]) -> tuple[Tensor, ...]:
    """The tensors that a layer returns: one, or those of these names. Raises ValueError: it returns something else."""
    if not names:
        found: Sequence[Any] = (result,)
    elif isinstance(result, Mapping):
        if missing := [name for name in names if name not in result]:
            raise ValueError(f"returns no {missing[0]!r}")
        found = [result[name] for name in names]
    elif isinstance(result, tuple | list) and len(result) == len(names):
        found = result
    else:
        count = f" of {len(result)}" if isinstance(result, tuple | list) else ""
        raise ValueError(f"returns a {type(result).__name__}{count}, not {', '.join(names)}")
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise ValueError(f"returns a {type(tensor).__name__}, not a tensor")
    return tuple(found)
