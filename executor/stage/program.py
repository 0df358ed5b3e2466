"""Stage programs: forward and backward as pure functions of parameters, inputs and an explicit stash.

The forward may run on one device and the backward on another, against any weight version: nothing hides in an
autograd graph. Bytes of the stash are known before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode

from ...models.wiring import Carried, carried, tensors_of
from .calls import shorten_calls
from .packing import Stash, StashLayout, TensorSpec, pieces, spec
from .pauses import note_pauses
from .protocol import Gradients, WeightStash, ones_like, require_alike
from .random_state import layer_seed, own_random_state, reseed
from .selfcheck import ProgramMismatch, check_program
from .split import GraphPart, Split, split, storages
from .tracing import JointGraph, StageLayers, TraceError, named_buffers, named_parameters, trace_joint

_Program = Callable[[list[Any]], tuple[Tensor, ...]]  # empties the list it is given
_PARTS = {
    "F": "_forward",
    "F without a stash": "_forward_only",
    "R": "_remake",
    "F without a part of its stash": "_forward_part",
    "R of that part": "_remake_part",
    "B": "_backward",
    "I": "_backward_input",
    "W": "_backward_weight",
}

__all__ = [
    "ProgramMismatch",
    "StageProgram",
    "Stash",
    "TensorSpec",
    "TraceError",
    "WeightStash",
    "layer_seed",
    "named_buffers",
    "named_parameters",
]


class StageProgram:
    """One stage, traced for one micro-batch shape. Immutable; threads may share it.

    Attributes:
        label: how errors call the stage.
        layer_ids: the layers' positions in the model; `loss`: the model's, on its last stage; `half`: of autocast.
        parameter_names, buffer_names: "<layer id>.<name>", the keys of the mappings that `forward` takes.
        accumulator_names: parameters that receive a gradient, the keys `backward` needs of `accumulators`.
        stash_specs: the tensors of every stash; `stash_bytes`: their storages' bytes.
        stash_layout: how a stash comes apart to leave the device.
        weight_stash_bytes: the same between the two halves of the backward.
        selective_bytes: of the stash, what `forward_part` drops and `remake_part` makes again (see `selective`).
        output_specs: what it gives, or the loss; gradients that come back have the same shapes.
        needs_input_grad: whether `backward` returns any input's gradient.
        saves_input: whether the stash holds all that the stage takes.
        can_remake: whether `remake` can run: no buffer that F changes decides what the stash holds.
        has_random: whether a layer draws random numbers; `forward` then holds a process-wide lock.
        one_process: whether B must run in the process of its F.
        has_state: whether what it computes depends on how often it ran before, buffers apart.
        code: hash of the programs of F and B.
    """

    def __init__(self, layers: StageLayers, joint: JointGraph) -> None:
        parts = split(joint, reseed)
        self.label = layers.label
        self.layer_ids = tuple(layers.layer_ids)
        self.loss = layers.loss
        self.half = layers.half
        self.parameter_names = tuple(joint.parameters)
        self.buffer_names = tuple(joint.buffers)
        self.accumulator_names = parts.accumulated
        self.needs_input_grad = bool(joint.boundary)
        self._needs_grad, self._part = layers.needs_input_grad, layers.part
        self._grads = tuple(node is not None for node in joint.input_grads)
        self._entering = len(joint.grad_outputs)
        self.has_random, self.has_state = bool(parts.random_layers), False
        self.one_process = False
        self.output_specs = tuple(_spec(node, self.label) for node in joint.outputs)
        self._input_specs = tuple(_spec(node, self.label) for node in joint.inputs)
        self._returned = layers.returned
        self._has_target = joint.target is not None
        self._read(joint, parts)

    @property
    def output_spec(self) -> TensorSpec:
        """Of the first output."""
        return self.output_specs[0]

    @staticmethod
    def of(layers: StageLayers, example_input: Carried, example_target: Tensor | None) -> StageProgram:
        """Trace layers on fake tensors: nothing is computed, unless a layer is a fused recurrent one.

        `example_input`, `example_target`: tensors of the micro-batch's shapes; the target where the stage has the loss.
        Raises TraceError: the stage cannot be traced.
        """
        program = StageProgram(layers, trace_joint(layers, example_input, example_target))
        if program._needs_grad_mode and detect_fake_mode(list(tensors_of(example_input))) is None:
            program._measure(layers, example_input, example_target)
        return program

    def _measure(self, layers: StageLayers, x: Carried, target: Tensor | None) -> None:
        """Take bytes and shapes from a real run: fake kernels of fused recurrent layers know of no workspace."""
        own = named_parameters(layers.modules, layers.layer_ids)
        parameters = {name: tensor.detach() for name, tensor in own.items()}
        kept = named_buffers(layers.modules, layers.layer_ids)
        buffers = {name: tensor.detach().clone() for name, tensor in kept.items()}
        staying = {tensor.untyped_storage()._cdata for tensor in (*parameters.values(), *buffers.values())}
        given = [*tensors_of(x)] if target is None else [*tensors_of(x), target]
        output, stash = self.forward(parameters, buffers, x, target)
        groups, sizes = pieces(stash.tensors, staying, given)
        self.stash_specs = tuple(map(spec, stash.tensors))
        self.stash_layout = StashLayout(self.label, groups, sizes)
        self.stash_bytes = sum(sizes)
        weight_stash = self.backward_input(stash, parameters, ones_like(output, self._returned))[1]
        self.weight_stash_bytes = sum(pieces(weight_stash.tensors, staying, given)[1])

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Carried, Stash]:
        """Run F: (outputs or mean loss, stash). Buffers are updated in place.

        `seed` sets every random layer's state; the caller's random state is left as it was.

        Raises:
            ValueError: no target for a stage with a loss, or an input of another shape or type.
        """
        computed = self._run(self._forward, parameters, buffers, x, target, seed)
        count = len(self.output_specs)
        return carried(computed[:count]), self._stash(computed[count:], buffers, x, target)

    def forward_only(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Carried:
        """Run F as `forward` does, without leaving a stash: every intermediate dies at its last use."""
        return carried(self._run(self._forward_only, parameters, buffers, x, target, seed))

    def remake(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Stash:
        """Run R: the stash that `forward` left or would have left for the same arguments.

        No buffer changes, and the output is not computed where the stash does not need it. Random layers draw
        what they drew. Raises ValueError when not `can_remake`, and as `forward`.
        """
        if self._remake is None:
            raise ValueError(f"{self.label}: cannot be recomputed, its forward changes a buffer that it reads")
        computed = self._run(self._remake, parameters, buffers, x, target, seed)
        return self._stash(computed, buffers, x, target)

    def forward_part(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Carried, Stash]:
        """Run F as `forward` does; the stash has only what `remake_part` makes the rest from again."""
        if self._forward_part is None:
            return self.forward(parameters, buffers, x, target, seed)
        computed = self._run(self._forward_part, parameters, buffers, x, target, seed)
        count = len(self.output_specs)
        stashed = [key for key, again in zip(self._stashed, self._dropped, strict=True) if not again]
        nbytes = self.stash_bytes - self.selective_bytes
        return carried(computed[:count]), self._stash(computed[count:], buffers, x, target, stashed, nbytes)

    def remake_part(self, kept: Stash, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Stash:
        """Run R of a part: the stash that `forward` would have left, from what `forward_part` left, which it consumes.

        No buffer changes. Raises ValueError: that was consumed already, or is another stage's.
        """
        if self._remake_part is None:
            return kept
        if len(kept.tensors) != len(self._dropped) - sum(self._dropped):
            raise ValueError(f"{self.label}: the stash was consumed already, or is another stage's")
        arguments = [parameters[name] for name in self.parameter_names]
        arguments += [buffers[name] for name in self.buffer_names]
        arguments += [t for t, key in zip(kept.tensors, self._kept_keys, strict=True) if key not in buffers]
        with torch.no_grad():
            made = iter([tensor.detach() for tensor in self._remake_part(arguments)])
        there = iter(kept.tensors)
        tensors = [next(made if again else there) for again in self._dropped]
        kept.tensors = []
        return Stash(tensors, self.stash_bytes)

    def _run(
        self,
        program: _Program,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None,
        seed: int,
    ) -> list[Tensor]:
        if self._has_target != (target is not None):
            raise ValueError(f"{self.label}: {'needs a' if self._has_target else 'takes no'} target")
        require_alike(self.label, x, self._input_specs, "traced")
        xs = tensors_of(x)
        arguments = [parameters[name] for name in self.parameter_names]
        arguments += [buffers[name] for name in self.buffer_names]
        arguments += xs if target is None else [*xs, target]
        with torch.set_grad_enabled(self._needs_grad_mode), self._random_state(xs[0].device):
            return [tensor.detach() for tensor in program([*arguments, seed])]

    def _stash(
        self,
        computed: list[Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None,
        stashed: Sequence[str | None] | None = None,
        nbytes: int | None = None,
    ) -> Stash:
        given = {**buffers, **{f"input {k}": tensor for k, tensor in enumerate(tensors_of(x))}}
        if target is not None:
            given["target"] = target
        shipped = iter(computed)
        keys = self._stashed if stashed is None else stashed
        size = self.stash_bytes if nbytes is None else nbytes
        return Stash([next(shipped) if key is None else given[key] for key in keys], size)

    def backward(
        self,
        stash: Stash,
        parameters: Mapping[str, Tensor],
        grad_output: Carried,
        accumulators: Mapping[str, Tensor],
    ) -> Gradients:
        """Run B: add every parameter's gradient to its accumulator, return the inputs' gradients.

        Consumes the stash: each of its tensors is freed after its last use. `parameters` are the version
        the forward ran with, unless the method says otherwise. For a stage with a loss, `grad_output` is
        the scalar by which the micro-batch's mean counts. Accumulators may be of a wider type.
        """
        arguments = self._saved(stash, parameters, grad_output)
        arguments += [accumulators[name] for name in self.accumulator_names]
        del grad_output
        with torch.no_grad():
            return self._handed_back(self._backward(arguments))

    def _handed_back(self, found: Sequence[Tensor]) -> Gradients:
        """A gradient, or None, for everything that wants one."""
        grads = iter(found)
        all_of_them = tuple(next(grads) if there else None for there in self._grads)
        return all_of_them if len(all_of_them) > 1 else all_of_them[0] if all_of_them else None

    def backward_input(
        self, stash: Stash, parameters: Mapping[str, Tensor], grad_output: Carried
    ) -> tuple[Gradients, WeightStash]:
        """Run I: (the inputs' gradients, what `backward_weight` needs). Consumes the stash."""
        arguments = self._saved(stash, parameters, grad_output)
        kept = [arguments[index] for index in self._held_arguments]
        with torch.no_grad():
            results = list(self._backward_input(arguments))
        count = sum(self._grads)
        grad = self._handed_back(results[:count])
        tensors = [*kept, *results[count:]]
        del results
        return grad, WeightStash(
            [tensors[index] for index in self._held_tensors],
            [tensors[index] for index in self._held_parameters],
            self.weight_stash_bytes,
        )

    def backward_weight(self, weight_stash: WeightStash, accumulators: Mapping[str, Tensor]) -> None:
        """Run W: add every parameter's gradient to its accumulator. Consumes the weight stash."""
        arguments = self._held(weight_stash)
        arguments += [accumulators[name] for name in self.accumulator_names]
        with torch.no_grad():
            self._backward_weight(arguments)

    def self_check(self, modules: Sequence[nn.Module], x: Carried, target: Tensor | None = None, seed: int = 0) -> None:
        """Compare F, B, I and W with plain eager autograd on `modules`, which are left as they were.

        Run once on fresh data before training: it finds what tracing misses, Python side effects and
        values baked into the graph.

        Raises:
            ProgramMismatch: names the stage, the first differing tensor and both its numbers.
        """
        layers = StageLayers(modules, self.layer_ids, self.loss, self._needs_grad, self.label, self.half, self._part)
        check_program(self, layers, x, target, seed)

    @property
    def needs_grad_mode(self) -> bool:
        """Whether F runs operators that leave what their backward needs only where gradients are recorded."""
        return self._needs_grad_mode

    def replace_parts(self, make: Callable[[str, _Program], _Program]) -> None:
        """Runs `make(name, program)` instead of every program; before anything else uses this one."""
        for name, attribute in _PARTS.items():
            part: _Program | None = getattr(self, attribute)
            setattr(self, attribute, None if part is None else make(name, part))

    def _saved(self, stash: Stash, parameters: Mapping[str, Tensor], grad_output: Carried) -> list[Tensor]:
        if len(stash.tensors) != len(self._stashed):
            raise ValueError(f"{self.label}: the stash was consumed already, or is another stage's")
        tensors = iter(stash.tensors)
        saved = [next(tensors) if name is None else parameters[name] for name in self._saved_parameters]
        stash.tensors.clear()
        entering = tensors_of(grad_output)
        if len(entering) != self._entering:
            raise ValueError(f"{self.label}: {len(entering)} gradients came, {self._entering} tensors have one")
        return [*saved, *entering]

    def _held(self, weight_stash: WeightStash) -> list[Tensor]:
        if len(weight_stash.tensors) != len(self._held_tensors):
            raise ValueError(f"{self.label}: the weight stash was consumed already, or is another stage's")
        tensors, parameters = iter(weight_stash.tensors), iter(weight_stash.parameters)
        count = len(self._held_tensors) + len(self._held_parameters)
        by_reference = set(self._held_parameters)
        held = [next(parameters if index in by_reference else tensors) for index in range(count)]
        weight_stash.tensors.clear()
        return held

    def _random_state(self, device: torch.device) -> AbstractContextManager[None]:
        return own_random_state(device) if self.has_random else nullcontext()

    def _read(self, joint: JointGraph, parts: Split) -> None:
        """Keep what running needs: programs, where their arguments come from, bytes. Drop the graphs."""
        parameter_of = {node: name for name, node in joint.parameters.items()}
        given = {node: name for name, node in joint.buffers.items()}
        given |= {node: f"input {k}" for k, node in enumerate(joint.inputs)}
        if joint.target is not None:
            given[joint.target] = "target"
        stashed = [node for node in parts.saved if node not in parameter_of]
        self._saved_parameters = [parameter_of.get(node) for node in parts.saved]
        self._stashed = [given.get(node) for node in stashed]
        self._dropped = [node in parts.dropped for node in stashed]
        self._kept_keys = [key for key, again in zip(self._stashed, self._dropped, strict=True) if not again]
        self.stash_specs = tuple(_spec(node, self.label) for node in stashed)
        self.saves_input = set(joint.inputs) <= set(parts.saved)
        persistent = [*joint.parameters.values(), *joint.buffers.values()]
        self.stash_bytes = _bytes(stashed, persistent)
        kept = [node for node in stashed if node not in parts.dropped]
        self.selective_bytes = self.stash_bytes - _bytes(kept, persistent)
        self.stash_layout = _layout(self.label, stashed, joint.buffers.values())
        self.weight_stash_bytes = _bytes(parts.held, persistent)

        arguments = [*parts.saved, *joint.grad_outputs]
        self._held_arguments = [arguments.index(node) for node in parts.held if node in arguments]
        self._held_parameters = [i for i, node in enumerate(parts.held) if node in parameter_of]
        self._held_tensors = [i for i, node in enumerate(parts.held) if node not in parameter_of]
        self.code = sha256("".join(part.program.code for part in (parts.forward, parts.backward)).encode()).hexdigest()
        self._needs_grad_mode = any("rnn" in str(node.target) for node in parts.forward.program.graph.nodes)
        self._forward = _runnable(parts.forward)
        self._forward_only = _runnable(parts.forward_only)
        self._remake = None if parts.remake is None else _runnable(parts.remake)
        self.can_remake = self._remake is not None
        self._forward_part = None if parts.forward_part is None else _runnable(parts.forward_part)
        self._remake_part = None if parts.remake_part is None else _runnable(parts.remake_part)
        self._backward = _runnable(parts.backward)
        self._backward_input = _runnable(parts.backward_input)
        self._backward_weight = _runnable(parts.backward_weight)


def _runnable(part: GraphPart) -> _Program:
    """The program without its fake tensors, callable with one list of arguments."""
    shorten_calls(part.program)
    note_pauses(part.program)
    program: _Program = part.program.forward
    return program


def _spec(node: fx.Node, label: str) -> TensorSpec:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        raise TraceError(f"{label}: {node.name} crosses the stage's programs but is a {type(value).__name__}")
    return TensorSpec(tuple(value.shape), tuple(value.stride()), value.dtype)


def _layout(label: str, stashed: Sequence[fx.Node], buffers: Iterable[fx.Node]) -> StashLayout:
    staying = {key for node in buffers for key in storages(node.meta["val"])}
    groups: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for position, node in enumerate(stashed):
        for key, size in storages(node.meta["val"]).items():
            if key not in staying:
                groups.setdefault(key, []).append(position)
                sizes[key] = size
    return StashLayout(label, tuple(map(tuple, groups.values())), tuple(sizes[key] for key in groups))


def _bytes(nodes: Sequence[fx.Node], persistent: Sequence[fx.Node]) -> int:
    """Bytes of the storages behind the nodes, each once, without the persistent ones'."""
    skipped = {key for node in persistent for key in storages(node.meta["val"])}
    sizes = {key: size for node in nodes for key, size in storages(node.meta["val"]).items()}
    return sum(size for key, size in sizes.items() if key not in skipped)
