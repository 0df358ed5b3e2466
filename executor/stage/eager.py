"""Eager stage programs: stages that no graph can hold, run by torch's own autograd with an explicit stash.

Every forward runs the layers' Python code and is recorded on a tape (see `tape`), so a stage may take another path
for every micro-batch, use custom autograd functions, or read numbers out of its tensors. What torch would save is in
the stash, which may leave the device; the tape stays, so F and B of a micro-batch run in one process.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...models.wiring import Carried, carried, tensors_of
from ..place import unique_bytes
from .eager_probe import isolated, probe
from .packing import PackedStash, Stash, StashLayout, TensorSpec, pieces
from .protocol import Gradients, WeightStash, require_alike
from .random_state import own_random_state, reseed
from .selfcheck import WAYS, check_program
from .tape import Recording, Tape, run_backward
from .tape_halves import Cut, cut, run_input, run_weight
from .tracing import StageLayers


@dataclass
class TapeWeightStash(WeightStash):
    """A weight stash with what W has to do: `tensors` are those of the slots it holds, then gradients."""

    parts: Cut | None


@dataclass(frozen=True)
class EagerLayout(StashLayout):
    """How a stash comes apart, if its micro-batch took the path that the stage was checked with.

    Attributes:
        tensors: how many a stash has. hidden_bytes: what the layers keep outside the stash.
    """

    tensors: int
    hidden_bytes: int

    def pack(self, stash: Stash) -> tuple[list[Tensor], PackedStash]:
        """As `StashLayout.pack`.

        Raises:
            ValueError: the micro-batch left another stash than was known before, or one that is not all there is.
        """
        if self.hidden_bytes:
            raise ValueError(
                f"{self.label}: a layer keeps {self.hidden_bytes} bytes outside save_for_backward, so its stash of "
                f"{stash.nbytes} bytes cannot leave its device"
            )
        if stash.tensors and len(stash.tensors) != self.tensors:
            raise ValueError(
                f"{self.label}: a stash of {len(stash.tensors)} tensors, {stash.nbytes} bytes, was known to have "
                f"{self.tensors}, {sum(self.piece_bytes)} bytes, so it cannot leave its device"
            )
        return super().pack(stash)


class EagerProgram:
    """One stage, run eagerly; attributes and methods are those of `StageProgram`.

    What is known before anything runs (`stash_bytes`, `accumulator_names`, ...) is taken from one forward and
    backward of the example, on copies of the layers' Python state. A micro-batch that leaves more bytes than
    `stash_limit` is an error. Between I and W, `weight_stash_bytes` are held: what the nodes that a parameter enters
    have saved, and the gradients that enter them; every dW is computed in W, and only there.

    It costs more than a graph: Python's time in F, and intermediates that live as long as the layers' local variables.
    Python state of the layers advances with every F and R, in the order in which this copy of the stage runs them.

    Attributes:
        stash_limit: bytes a stash may have; not below `stash_bytes`.
        hidden_bytes: part of `stash_bytes` that custom functions keep outside `save_for_backward`. It stays on the
            device until B or W has run, so such a stash cannot leave.
    """

    def __init__(
        self, layers: StageLayers, example_input: Carried, example_target: Tensor | None, stash_limit: int = 0
    ) -> None:
        """Raises TraceError: the stage cannot be run on the example."""
        facts = probe(layers, example_input, example_target)
        self.label, self.loss = layers.label, layers.loss
        self.layer_ids = tuple(layers.layer_ids)
        self.parameter_names, self.buffer_names = facts.parameter_names, facts.buffer_names
        self.accumulator_names = facts.reached
        self.needs_input_grad = facts.input_reached
        self.has_random, self.has_state, self.can_remake = facts.has_random, facts.has_state, facts.can_remake
        self.saves_input, self.one_process = facts.saves_input, True
        self.output_specs, self.stash_specs = facts.output_specs, facts.stash_specs
        self.stash_bytes, self.weight_stash_bytes = facts.stash_bytes, facts.weight_stash_bytes
        self.hidden_bytes, self.selective_bytes = facts.hidden_bytes, 0
        self.code = ""
        self.stash_limit = max(stash_limit, facts.stash_bytes)
        tensors = len(facts.stash_specs)
        self.stash_layout = EagerLayout(self.label, facts.groups, facts.piece_bytes, tensors, facts.hidden_bytes)
        self._layers = layers
        self._trained = facts.trained
        self._input_specs = facts.input_specs
        self._has_target = example_target is not None

    @property
    def output_spec(self) -> TensorSpec:
        """Of the first output."""
        return self.output_specs[0]

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Carried, Stash]:
        """As `StageProgram.forward`. Raises ValueError, too, where the stash is larger than its limit."""
        return self._record(parameters, buffers, x, target, seed, remake=False)

    def forward_only(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Carried:
        """As `StageProgram.forward_only`."""
        self._require(x, target)
        values = {**self._own(parameters), **buffers}
        xs = tensors_of(x)
        versions = [tensor._version for tensor in xs]
        entered = carried([tensor.detach() for tensor in xs])
        with torch.no_grad(), self._random_state(xs[0].device):
            output = self._layers.run(values, entered, target, lambda layer, _: self._before(layer, seed))
        if [tensor._version for tensor in xs] != versions:
            raise ValueError(f"{self.label}: its first layer changes its input in place")
        return carried([tensor.detach() for tensor in tensors_of(output)])

    def remake(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Stash:
        """As `StageProgram.remake`; it runs all of F, the last layer too."""
        if not self.can_remake:
            raise ValueError(f"{self.label}: cannot be recomputed, its forward changes what it reads")
        return self._record(parameters, buffers, x, target, seed, remake=True)[1]

    def forward_part(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Carried, Stash]:
        """As `forward`: without a graph nothing is known of what follows from what."""
        return self.forward(parameters, buffers, x, target, seed)

    def remake_part(self, kept: Stash, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Stash:
        """Nothing was dropped."""
        return kept

    def _record(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None,
        seed: int,
        remake: bool,
    ) -> tuple[Carried, Stash]:
        self._require(x, target)
        recording = Recording(self._own(parameters), self._trained)
        with self._random_state(tensors_of(x)[0].device):
            output, tape = recording.run(
                self._layers, buffers, x, target, lambda layer: self._before(layer, seed), remake
            )
        given = [*tensors_of(x)] if target is None else [*tensors_of(x), target]
        nbytes = sum(pieces(recording.tensors, tape.staying, given)[1]) + self.hidden_bytes
        if nbytes > self.stash_limit:
            raise ValueError(
                f"{self.label}: this micro-batch leaves a stash of {nbytes} bytes, the plan has {self.stash_limit}"
            )
        return output, Stash(recording.tensors, nbytes, tape)

    def _require(self, x: Carried, target: Tensor | None) -> None:
        if self._has_target != (target is not None):
            raise ValueError(f"{self.label}: {'needs a' if self._has_target else 'takes no'} target")
        require_alike(self.label, x, self._input_specs, "built")

    def _own(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: parameters[name] for name in self.parameter_names}

    def _before(self, layer: int, seed: int) -> None:
        if self.has_random:
            reseed(seed, layer)

    def _random_state(self, device: torch.device) -> AbstractContextManager[None]:
        return own_random_state(device) if self.has_random else nullcontext()

    def backward(
        self,
        stash: Stash,
        parameters: Mapping[str, Tensor],
        grad_output: Carried,
        accumulators: Mapping[str, Tensor],
    ) -> Gradients:
        """As `StageProgram.backward`. Raises ValueError, too: a parameter that got no gradient in the check has one."""
        return run_backward(self._loaded(stash, parameters), grad_output, accumulators)

    def backward_input(
        self, stash: Stash, parameters: Mapping[str, Tensor], grad_output: Carried
    ) -> tuple[Gradients, WeightStash]:
        """As `StageProgram.backward_input`."""
        tape = self._loaded(stash, parameters)
        parts = cut(tape)
        grad, gradients = run_input(tape, parts, grad_output)
        held = [slot.tensor for slot in parts.held if slot.tensor is not None]
        for slot in tape.slots:
            slot.tensor = None
        tensors = [*held, *gradients]
        nbytes = unique_bytes(t for t in tensors if t.untyped_storage()._cdata not in tape.staying)
        return grad, TapeWeightStash(tensors, [], nbytes + self.hidden_bytes, parts)

    def backward_weight(self, weight_stash: WeightStash, accumulators: Mapping[str, Tensor]) -> None:
        """As `StageProgram.backward_weight`."""
        parts = weight_stash.parts if isinstance(weight_stash, TapeWeightStash) else None
        if not isinstance(weight_stash, TapeWeightStash) or parts is None:
            raise ValueError(f"{self.label}: the weight stash was consumed already, or is another stage's")
        weight_stash.parts = None
        gradients = weight_stash.tensors[len(parts.held) :]
        weight_stash.tensors[len(parts.held) :] = []
        while parts.held:
            parts.held.pop().tensor = weight_stash.tensors.pop()
        run_weight(parts, gradients, accumulators)

    def self_check(self, modules: Sequence[nn.Module], x: Carried, target: Tensor | None = None, seed: int = 0) -> None:
        """As `StageProgram.self_check`; every way of running it starts from copies of the layers' Python state."""
        for way in WAYS:
            fresh = copy.copy(self)
            fresh._layers = isolated(self._layers)
            check_program(fresh, isolated(replace(self._layers, modules=tuple(modules))), x, target, seed, (way,))

    def _loaded(self, stash: Stash, parameters: Mapping[str, Tensor]) -> Tape:
        tape = stash.tape
        if not isinstance(tape, Tape) or len(tape.slots) != len(stash.tensors):
            raise ValueError(f"{self.label}: the stash was consumed already, or is another stage's")
        stash.tape = None
        tape.load(stash.tensors, parameters)
        return tape
