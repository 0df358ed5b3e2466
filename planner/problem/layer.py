"""Layer: the smallest piece of a model, with its cost, and its part of model.json."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from ..basics import MOST_BYTES, MOST_NAME, MOST_SECONDS, ModelError, listed, reading, refusing, shown


class Output(NamedTuple):
    """One of several tensors that a layer gives; `gradient`: whether it has one."""

    name: str
    bytes: int
    gradient: bool = True


class Workspaces(NamedTuple):
    """By kind of op: bytes of F that leaves a whole stash, R that makes one, B, I and W beside what stays there.

    unsaved: of what it takes, what its stash does not keep, which is there in F and R as well.
    """

    forward: int
    remake: int
    backward: int
    inputs: int
    weights: int
    unsaved: int


@dataclass(frozen=True)
class Layer:
    """The smallest piece the planner may cut between, with its cost for one micro-batch.

    Times are seconds on the device the model was profiled on, sizes are bytes.

    Attributes:
        backward_input_s, backward_weight_s: the two halves of the backward; `separable` is False when only
            their sum is known (it is then kept in `backward_input_s`).
        stash_bytes: what one forward leaves for its backward, the saved input included, parameters excluded.
        weight_stash_bytes: what is held between the input half and the weight half of the backward.
        output_bytes: the tensor sent on, or all of `outputs`; its gradient has the same size.
        input_bytes: what recompute keeps and what a first stage receives; None: the predecessors' output.
        workspace_bytes: transient memory of the running op beyond stash, received and sent tensors.
        forward_workspace_bytes, remake_workspace_bytes, backward_workspace_bytes, input_workspace_bytes,
            weight_workspace_bytes: all that F (where the whole stash is left), R (of all of it), B and I take beside
            the stash, and W beside what is left for it: outputs and gradients on both sides as well, but not what it
            takes.
        unsaved_input_bytes: of what it takes, what is in no stash. All of these or none; without, `workspace_bytes`
            speaks for every op.
        buffer_bytes: persistent state that is not trained (BatchNorm statistics, masks).
        parameter_shapes: shapes of the parameter tensors where known, for the fingerprint.
        trainable_bytes: of the parameters, those that are trained; the others are frozen and have neither gradients nor
            optimizer state. None: all of them.
        outputs: the tensors that it gives, where edges name them; empty: one without a name.
        selective_bytes: of `stash_bytes`, what selective recomputation drops and makes again from the rest; 0: nothing.
        selective_s: the seconds in which it does.
        compiled: whether its times are those of torch's compiler, which stages of such layers then go through.
    """

    name: str
    forward_s: float = 0.0
    backward_input_s: float = 0.0
    backward_weight_s: float = 0.0
    separable: bool = True
    parameter_bytes: int = 0
    stash_bytes: int = 0
    weight_stash_bytes: int = 0
    output_bytes: int = 0
    input_bytes: int | None = None
    workspace_bytes: int = 0
    buffer_bytes: int = 0
    parameter_shapes: tuple[tuple[int, ...], ...] | None = None
    trainable_bytes: int | None = None
    outputs: tuple[Output, ...] = ()
    selective_bytes: int = 0
    selective_s: float = 0.0
    compiled: bool = False
    forward_workspace_bytes: int | None = None
    remake_workspace_bytes: int | None = None
    backward_workspace_bytes: int | None = None
    input_workspace_bytes: int | None = None
    weight_workspace_bytes: int | None = None
    unsaved_input_bytes: int | None = None

    @property
    def trained_bytes(self) -> int:
        """Bytes of the parameters that are trained."""
        return self.parameter_bytes if self.trainable_bytes is None else self.trainable_bytes

    @cached_property
    def workspaces(self) -> Workspaces | None:
        """Of every kind of op, where it is known."""
        found = [getattr(self, key) for key in WORKSPACES]
        return None if None in found else Workspaces(*found)

    @property
    def total_bytes(self) -> int:
        """All its sizes added up."""
        return sum(int(getattr(self, key)) for key in _SIZES) + (self.input_bytes or 0)

    @property
    def backward_s(self) -> float:
        """Seconds of the whole backward."""
        return self.backward_input_s + self.backward_weight_s

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"layer name must be a non-empty string, got {shown(self.name)}")
        where = f"layer {shown(self.name)}"
        with refusing(ModelError):
            reading.text(self.name, "name", where)
            for key in _TIMES:
                reading.number(getattr(self, key), key, where, MOST_SECONDS)
            for key in _SIZES:
                reading.whole(getattr(self, key), key, where, most=MOST_BYTES)
            if self.input_bytes is not None:
                reading.whole(self.input_bytes, "input_bytes", where, most=MOST_BYTES)
            if self.trainable_bytes is not None:
                reading.whole(self.trainable_bytes, "trainable_bytes", where, most=MOST_BYTES)
            reading.whole(self.selective_bytes, "selective_bytes", where, most=MOST_BYTES)
            for key in WORKSPACES:
                if getattr(self, key) is not None:
                    reading.whole(getattr(self, key), key, where, most=MOST_BYTES)
            reading.number(self.selective_s, "selective_s", where, MOST_SECONDS)
            self._check_outputs(where)
        if not isinstance(self.compiled, bool):
            raise ModelError(f"{where}: compiled must be true or false, got {shown(self.compiled)}")
        if self.trained_bytes > self.parameter_bytes:
            raise ModelError(
                f"{where}: trainable_bytes must be at most parameter_bytes, {self.parameter_bytes}, "
                f"got {self.trained_bytes}"
            )
        absent = [key for key in WORKSPACES if getattr(self, key) is None]
        if 0 < len(absent) < len(WORKSPACES):
            raise ModelError(f"{where}: has no {absent[0]}, but others: all of {listed(list(WORKSPACES))}, or none")
        if self.selective_bytes > self.stash_bytes:
            raise ModelError(
                f"{where}: selective_bytes must be at most stash_bytes, {self.stash_bytes}, got {self.selective_bytes}"
            )

    def _check_outputs(self, where: str) -> None:
        if not isinstance(self.outputs, tuple) or not all(isinstance(output, Output) for output in self.outputs):
            raise ModelError(f"{where}: outputs must be Outputs, got {shown(self.outputs)}")
        names = [reading.text(output.name, "the name of an output", where) for output in self.outputs]
        if len(set(names)) < len(names):
            raise ModelError(f"{where} has two outputs of one name")
        total = sum(reading.whole(o.bytes, "bytes of an output", where, most=MOST_BYTES) for o in self.outputs)
        if self.outputs and total != self.output_bytes:
            raise ModelError(f"{where}: its outputs have {total} bytes, output_bytes says {self.output_bytes}")


WORKSPACES = (
    "forward_workspace_bytes",
    "remake_workspace_bytes",
    "backward_workspace_bytes",
    "input_workspace_bytes",
    "weight_workspace_bytes",
    "unsaved_input_bytes",
)
_MOST_DIMENSIONS = 64  # of a tensor, in torch
_TIMES = ("forward_s", "backward_input_s", "backward_weight_s")
_SIZES = (
    "parameter_bytes",
    "stash_bytes",
    "weight_stash_bytes",
    "output_bytes",
    "workspace_bytes",
    "buffer_bytes",
)
_LAYER_KEYS = {f.name for f in fields(Layer)} - {"separable"} | {"backward_s"}


def layer_to_dict(layer: Layer) -> dict[str, Any]:
    """As model.json has it."""
    content: dict[str, Any] = {"name": layer.name, "forward_s": layer.forward_s}
    if layer.separable:
        content |= {
            "backward_input_s": layer.backward_input_s,
            "backward_weight_s": layer.backward_weight_s,
        }
    else:
        content["backward_s"] = layer.backward_s
    content |= {key: getattr(layer, key) for key in _SIZES}
    if layer.input_bytes is not None:
        content["input_bytes"] = layer.input_bytes
    if layer.parameter_shapes is not None:
        content["parameter_shapes"] = [list(shape) for shape in layer.parameter_shapes]
    if layer.trainable_bytes is not None:
        content["trainable_bytes"] = layer.trainable_bytes
    if layer.selective_bytes or layer.selective_s:
        content |= {"selective_bytes": layer.selective_bytes, "selective_s": layer.selective_s}
    if layer.workspaces is not None:
        content |= dict(zip(WORKSPACES, layer.workspaces, strict=True))
    if layer.compiled:
        content["compiled"] = True
    if layer.outputs:
        content["outputs"] = [
            {"name": output.name, "bytes": output.bytes, **({} if output.gradient else {"gradient": False})}
            for output in layer.outputs
        ]
    return content


def layer_from_dict(entry: object, position: int) -> Layer:
    """Entry `position` of model.json's layers; raises ModelError naming the layer and the key."""
    values = dict(reading.mapping(entry, f"layers[{position}]"))
    where = f"layer {shown(values.get('name', position))}"
    reading.mapping(values, where, _LAYER_KEYS)
    if "name" not in values:
        raise ModelError(f"layers[{position}] has no name")
    if "backward_s" in values:
        if "backward_input_s" in values or "backward_weight_s" in values:
            raise ModelError(f"{where}: give backward_s or its two halves, not both")
        reading.number(values["backward_s"], "backward_s", where, MOST_SECONDS)
        values["backward_input_s"] = values.pop("backward_s")
        values["separable"] = False
    if "weight_stash_bytes" not in values:
        values["weight_stash_bytes"] = values.get("stash_bytes", 0)
    if values.get("parameter_shapes") is not None:
        values["parameter_shapes"] = _shapes_from(values["parameter_shapes"], where)
    if "outputs" in values:
        values["outputs"] = _outputs_from(values["outputs"], where)
        values.setdefault("output_bytes", sum(output.bytes for output in values["outputs"]))
    layer = Layer(**values)
    optional = ("input_bytes", "trainable_bytes", "selective_bytes", *WORKSPACES)
    whole = {k: int(getattr(layer, k)) for k in (*_SIZES, *optional) if getattr(layer, k) is not None}
    return Layer(**(values | whole))


def _outputs_from(content: object, where: str) -> tuple[Output, ...]:
    found = []
    for number, entry in enumerate(reading.sequence(content, f"{where}: outputs", MOST_NAME)):
        place = f"{where}: outputs[{number}]"
        values = reading.mapping(entry, place, {"name", "bytes", "gradient"})
        gradient = values.get("gradient", True)
        if not isinstance(gradient, bool):
            raise ModelError(f"{place}: gradient must be true or false, got {shown(gradient)}")
        size = reading.whole(reading.required(values, "bytes", place), "bytes", place, most=MOST_BYTES)
        found.append(Output(reading.text(reading.required(values, "name", place), "name", place), int(size), gradient))
    return tuple(found)


def _shapes_from(content: object, where: str) -> tuple[tuple[int, ...], ...]:
    """At most so many numbers as a name has letters: nobody's layer has more."""
    shapes = reading.sequence(content, f"{where}: parameter_shapes", MOST_NAME)
    found = []
    for shape in shapes:
        sizes = reading.sequence(shape, f"{where}: parameter_shapes: a shape", _MOST_DIMENSIONS)
        found.append(tuple(reading.whole(n, "parameter_shapes", where, most=MOST_BYTES) for n in sizes))
        if prod(found[-1]) > MOST_BYTES:
            raise ModelError(f"{where}: a parameter of shape {shown(shape)} has more than {MOST_BYTES} numbers")
    return tuple(found)
