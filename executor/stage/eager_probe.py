"""What is known of an eager stage before it runs: found out on an example, on copies of its layers' Python state."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from ...models.wiring import Carried, tensors_of
from ..place import StorageTracker, unique_bytes
from .packing import TensorSpec, pieces, spec
from .protocol import Gradients, gradients_of, ones_like
from .random_state import own_random_state, reseed
from .selfcheck import ProgramMismatch, compare
from .tape import Recording, Tape, run_backward
from .tape_halves import cut, leads_to, run_input, run_weight
from .tracing import StageLayers, TraceError, named_buffers, named_parameters


@dataclass(frozen=True)
class Facts:
    """Of one forward and backward of the example. Bytes are those of storages, each once.

    Attributes:
        trained: parameters that want a gradient; reached: those that get one. input_reached: whether an input does.
        groups, piece_bytes: as of a `StashLayout`.
        stash_bytes, weight_stash_bytes: hidden ones included.
        hidden_bytes: alive after F beside its output and the stash.
        has_state: whether a second run on the same input gives something else because of the layers' Python state.
    """

    parameter_names: tuple[str, ...]
    buffer_names: tuple[str, ...]
    trained: frozenset[str]
    reached: tuple[str, ...]
    input_reached: bool
    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]
    stash_specs: tuple[TensorSpec, ...]
    groups: tuple[tuple[int, ...], ...]
    piece_bytes: tuple[int, ...]
    saves_input: bool
    has_random: bool
    can_remake: bool
    has_state: bool
    stash_bytes: int
    weight_stash_bytes: int
    hidden_bytes: int


def isolated(layers: StageLayers) -> StageLayers:
    """The layers with Python state of their own on the same tensors, where their Python state can be copied."""
    kept: dict[int, object] = {}
    for module in layers.modules:
        kept |= {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}
    try:
        return replace(layers, modules=tuple(copy.deepcopy(module, kept) for module in layers.modules))
    except Exception:  # a module may hold anything: a lock, an open file
        return layers


def probe(layers: StageLayers, x: Carried, target: Tensor | None) -> Facts:
    """Run the stage once forwards and backwards, and once more as R; on fake tensors if the example is fake.

    Raises TraceError: it cannot be run eagerly, or not on tensors without memory.
    """
    try:
        with detect_fake_mode(list(tensors_of(x))) or nullcontext():
            return _Probe(layers, x, target).facts()
    except TraceError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TraceError(f"{layers.label} cannot be run eagerly: {reason}") from error


class _Probe:
    def __init__(self, layers: StageLayers, x: Carried, target: Tensor | None) -> None:
        self.layers, self.untouched = isolated(layers), isolated(layers)
        self.x, self.target = x, target
        own = named_parameters(layers.modules, layers.layer_ids)
        self.parameters = {name: tensor.detach() for name, tensor in own.items()}
        self.trained = frozenset(name for name, tensor in own.items() if tensor.requires_grad)
        kept = named_buffers(layers.modules, layers.layer_ids)
        self.buffers = {name: tensor.detach().clone() for name, tensor in kept.items()}
        self.xs = tensors_of(x)
        self.given = [*self.xs] + ([] if target is None else [target])
        self.is_fake = detect_fake_mode(list(self.xs)) is not None
        self.device = self.xs[0].device
        self.has_random = False

    def facts(self) -> Facts:
        external = [*self.parameters.values(), *self.buffers.values(), *self.given]
        with StorageTracker(external) as tracker:
            output, tensors, tape = self._record(remake=False)
            kept = [*external, *tensors, *tensors_of(output)]
            hidden = tracker.current_bytes - (unique_bytes(kept) - unique_bytes(external))
            del kept
        groups, sizes = pieces(tensors, tape.staying, self.given)
        specs = tuple(map(spec, tensors))
        saved = {tensor.untyped_storage()._cdata for tensor in tensors}
        reached, input_reached = leads_to(tape)
        gradient = ones_like(output, self.layers.returned)
        weight_stash, gradients = self._halves(tape, tensors, gradient)
        can_remake = self.is_fake or self._repeats(gradient, gradients)
        self.layers = self.untouched
        has_state = not can_remake and self._repeats(gradient, gradients)
        return Facts(
            parameter_names=tuple(self.parameters),
            buffer_names=tuple(self.buffers),
            trained=self.trained,
            reached=reached,
            input_reached=input_reached,
            input_specs=tuple(map(spec, self.xs)),
            output_specs=tuple(map(spec, tensors_of(output))),
            stash_specs=specs,
            groups=groups,
            piece_bytes=sizes,
            saves_input=all(x.untyped_storage()._cdata in saved for x in self.xs),
            has_random=self.has_random,
            can_remake=can_remake,
            has_state=has_state,
            stash_bytes=sum(sizes) + hidden,
            weight_stash_bytes=weight_stash + hidden,
            hidden_bytes=hidden,
        )

    def _record(self, remake: bool) -> tuple[Carried, list[Tensor], Tape]:
        recording = Recording(self.parameters, self.trained)
        before: list[list[Tensor]] = []

        def watch(layer: int) -> None:
            if not self.is_fake:
                self._watch(before)
                reseed(0, layer)
                before[:] = [_random_state(self.device)]

        with own_random_state(self.device):
            output, tape = recording.run(self.layers, self.buffers, self.x, self.target, watch, remake)
            self._watch(before)
        return output, recording.tensors, tape

    def _watch(self, before: list[list[Tensor]]) -> None:
        """Notes whether the random state has moved on since the layer began."""
        for states in before:
            now = _random_state(self.device)
            self.has_random |= not all(map(torch.equal, states, now))

    def _halves(self, tape: Tape, tensors: list[Tensor], gradient: Carried) -> tuple[int, dict[str, Tensor]]:
        """Run I and W: (bytes between them, gradients by name)."""
        tape.load(tensors, self.parameters)
        parts = cut(tape)
        grad, entering = run_input(tape, parts, gradient)
        held = [slot.tensor for slot in parts.held if slot.tensor is not None]
        _, sizes = pieces([*held, *entering], tape.staying, self.given)
        sums = {name: torch.zeros_like(self.parameters[name]) for name in self.trained}
        run_weight(parts, entering, sums)
        return sum(sizes), sums | _by_name(grad)

    def _repeats(self, gradient: Carried, expected: dict[str, Tensor]) -> bool:
        """Whether the backward of an R gives what that of F gave."""
        _, tensors, tape = self._record(remake=True)
        tape.load(tensors, self.parameters)
        sums = {name: torch.zeros_like(self.parameters[name]) for name in self.trained}
        grad = run_backward(tape, gradient, sums)
        try:
            compare(self.layers.label, expected, sums | _by_name(grad))
        except ProgramMismatch:
            return False
        return True


def _by_name(found: Gradients) -> dict[str, Tensor]:
    """Of inputs."""
    return {f"input {k}": grad for k, grad in enumerate(gradients_of(found)) if grad is not None}


def _random_state(device: torch.device) -> list[Tensor]:
    """Of the generators that a layer on this device may draw from."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
