"""One layer as a stage of its own: runs its programs, times them and counts their bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...models import LayeredModel, Piece
from ...models.wiring import Carried, Part, carried, tensors_of
from ..basics import Engine
from ..place import StorageTracker, unique_bytes
from ..stage import (
    AnyProgram,
    Building,
    EagerProgram,
    StageLayers,
    build_program,
    gradients_of,
    half_of,
    named_buffers,
    named_parameters,
    ones_like,
    warn,
    wide,
)
from .between import Kept
from .companions import Pace, alone
from .team import Seconds, Team

Clock = Callable[[], float]
"""Seconds since some start."""
Recall = Callable[[Sequence[Tensor]], None]
Modules = Sequence[nn.Module]
"""What one layer of model.json is made of."""
BY_ITSELF = Team()


def nothing(arrived: Sequence[Tensor]) -> None:
    """Leaves the cache as it is."""


@dataclass(frozen=True)
class Timing:
    """How a layer's ops are timed.

    Attributes:
        clock: says seconds. rounds, warmups: repetitions whose median counts, and those before.
        pace: called before every repetition. recall: before every timed op, with what has just arrived.
        less: seconds of F, B, I and W that are taken off: those of calling a program.
    """

    clock: Clock
    rounds: int = 1
    warmups: int = 0
    pace: Pace = alone
    recall: Recall = nothing
    team: Team = BY_ITSELF
    less: Seconds = (0.0, 0.0, 0.0, 0.0)


@dataclass
class _Bytes:
    """One real run's bytes: the stash, and peaks that count neither parameters nor the layer's input."""

    stash: int
    borrowed: int  # part of the stash that existed before: the layer's input and target
    output: int
    weight_stash: int
    forward_peak: int
    forward_only_peak: int
    remake_peak: int
    backward_peak: int
    input_peak: int
    weight_peak: int
    part_peak: int  # of R of a part


@dataclass(frozen=True)
class Example:
    """A layer of model.json as it is in the model: its name, the positions of what it is made of, what passes between
    that and the rest, what it takes, and the target where it is the last one; `compiled`: by torch's compiler;
    `strides`: of the gradient of its only output, as the layer behind it hands that back in one stage; None: as one
    that has been received."""

    piece: Piece
    part: Part
    x: Carried
    target: Tensor | None
    compiled: bool = False
    strides: tuple[int, ...] | None = None


def trace_layer(
    model: LayeredModel,
    modules: Modules,
    on: Example,
    dtype: torch.dtype,
    engine: Engine = "auto",
    check: bool = True,
    team: Team = BY_ITSELF,
) -> AnyProgram:
    """The program of a layer in this dtype, with the model's loss if there is a target, on a stage's engine.

    `check` compares it with plain torch, on real tensors. All ranks of a team run one engine. Raises TraceError or
    ProgramMismatch; an EngineNotice is a warning.
    """
    loss = None if on.target is None else model.loss
    label = f"layer {on.piece.name}"
    layers = StageLayers(
        tuple(modules), on.part.ids, loss, any(on.part.wanted), label, half_of(dtype), on.part, on.strides
    )
    how = Building(engine, 0 if check else None, compiled=on.compiled, among_team=team.said)
    program, notice = build_program(layers, on.x, on.target, how)
    if notice is not None:
        warn(notice)
    return program


class LayerRun:
    """One layer's program with everything it runs on: real tensors, or fake ones under their FakeTensorMode.

    Attributes:
        output: of the layer, or its loss.
        awaiting: bytes of the target, which is there while any layer of a last stage runs.
        dropped_workspace: what F and R take if the layer that gets the output saves nothing more for it. kept: of the
            tensors that it takes, and gives, what it keeps. handed_back: strides of the gradient of the only tensor
            that it takes, if that has one and is not contiguous. All once bytes are known.
    """

    def __init__(self, program: AnyProgram, modules: Modules, on: Example, awaiting: int = 0) -> None:
        self.program = program
        own = named_parameters(modules, on.piece.ids)
        self.parameters = {name: tensor.detach() for name, tensor in own.items()}
        self.trained = [tensor.detach() for tensor in own.values() if tensor.requires_grad]
        self.buffers = named_buffers(modules, on.piece.ids)
        summed = {name: self.parameters[name] for name in program.accumulator_names}
        self.sums = {name: torch.zeros_like(tensor, dtype=wide(tensor.dtype)) for name, tensor in summed.items()}
        self.x, self.target = on.x, on.target
        self.awaiting = awaiting if on.target is None else on.target.nbytes
        self.xs = tensors_of(on.x)
        self.output = self._forward()[0]
        self.outputs = tensors_of(self.output)
        self.dropped_workspace = 0
        self.kept: tuple[Kept, Kept] | None = None
        self.handed_back: tuple[int, ...] | None = None
        ones = ones_like(self.output, (True,) if on.target is not None else on.part.returned)
        self.grad_outputs = [_laid(tensor, on.strides) for tensor in tensors_of(ones)]
        self.grad_output = carried(self.grad_outputs)

    def _kept(self) -> tuple[Kept, Kept]:
        """Of the tensors that it takes, and of those that it gives, which it keeps."""
        output, part = self.program.forward_part(self.parameters, self.buffers, self.x, self.target)
        takes, gives = [_among(self.xs, part.tensors)], [_among(tensors_of(output), part.tensors)]
        del output, part
        output, stash = self._forward()
        found, weight_stash = self.program.backward_input(stash, self.parameters, self.grad_output)
        held, back = weight_stash.tensors, gradients_of(found)
        if len(back) == 1 and back[0] is not None and not back[0].is_contiguous():
            self.handed_back = back[0].stride()
        takes.append(_among(self.xs, held))
        gives.append(_among(tensors_of(output), held))
        return Kept(*takes), Kept(*gives)

    def costs(self, timing: Timing) -> dict[str, Any]:
        """A layer's entry in model.json, without its name."""
        return {**self.seconds(timing), **self.sizes(timing.team.samples)}

    def seconds(self, timing: Timing) -> dict[str, float]:
        """Medians, each of the team's slowest rank; the halves of the backward are the time of the whole, divided as
        the halves took alone."""
        laps = zip(self.laps(timing), timing.less, strict=True)
        forward_s, backward_s, input_s, weight_s = (max(0.0, seconds - less) for seconds, less in laps)
        halves_s = input_s + weight_s
        share = input_s / halves_s if self.program.needs_input_grad and halves_s > 0 else 0.0
        if not self.program.accumulator_names:  # what W took is Python's
            share = 1.0
        return {
            "forward_s": forward_s,
            "backward_input_s": backward_s * share,
            "backward_weight_s": backward_s * (1 - share),
            **({"selective_s": self._part_s(timing)} if self.program.selective_bytes else {}),
        }

    def _part_s(self, timing: Timing) -> float:
        """Median seconds of making again what selective recomputation drops."""
        laps: list[float] = []
        for lap in range(timing.warmups + timing.rounds):
            timing.pace()
            kept = self.program.forward_part(self.parameters, self.buffers, self.x, self.target)[1]
            (timing.recall if lap >= timing.warmups else nothing)(())
            timing.team.meet()
            start = timing.clock()
            self.program.remake_part(kept, self.parameters, self.buffers)
            laps += timing.team.slowest((timing.clock() - start,))
        return max(0.0, float(statistics.median(laps[timing.warmups :])) - timing.less[0])

    def sizes(self, samples: int = 1) -> dict[str, Any]:
        """Bytes and shapes; `samples`: counts, of which the least are right."""
        sizes = _Bytes(*map(min, zip(*(astuple(self._bytes()) for _ in range(samples)), strict=True)))
        self.kept = self._kept()
        parameters = list(self.parameters.values())
        size, trained = unique_bytes(parameters), unique_bytes(self.trained)
        return {
            "parameter_bytes": size,
            **({"trainable_bytes": trained} if trained < size else {}),
            "stash_bytes": sizes.stash,
            "weight_stash_bytes": sizes.weight_stash,
            **({"selective_bytes": self.program.selective_bytes} if self.program.selective_bytes else {}),
            "output_bytes": sizes.output,
            "input_bytes": sum(x.nbytes for x in self.xs),
            **self._workspaces(sizes),
            "buffer_bytes": unique_bytes(self.buffers.values()),
            "parameter_shapes": [list(tensor.shape) for tensor in parameters],
        }

    def _workspaces(self, sizes: _Bytes) -> dict[str, int]:
        """Transient bytes: of F beyond output and stash, if it leaves one; of R beyond the stash; of B, I and W
        beyond what they consume or leave; and the same of each with what `workspace_bytes` leaves out for the stage.

        Inside a stage nobody else counts the tensors between layers: an unsaved input, and the target beside it,
        count in F and R, any input, and the target, in an F that saves nothing, the gradients on both sides of the
        layer in B and I.
        """
        own_stash = sizes.stash - sizes.borrowed
        given = sum(x.nbytes for x in self.xs) + self.awaiting
        unsaved = 0 if self.program.saves_input else given
        forward = sizes.forward_peak - own_stash - sizes.output + unsaved
        self.dropped_workspace = forward + sizes.output
        forward_only = sizes.forward_only_peak - sizes.output + given
        remake = max(sizes.remake_peak, sizes.part_peak) - own_stash + unsaved
        gradients = sum(gradient.nbytes for gradient in self.grad_outputs)
        backward = sizes.backward_peak - own_stash + gradients
        own_held = sizes.weight_stash - sizes.borrowed
        halves = [sizes.input_peak - max(own_stash, own_held) + gradients, sizes.weight_peak - sizes.weight_stash]
        alone, most = self.awaiting - own_stash, max(forward, forward_only, remake, backward, *halves, 0)
        eager = isinstance(self.program, EagerProgram)  # a W of several layers has gradients of more than one at once
        return {
            "workspace_bytes": most,
            "forward_workspace_bytes": max(0, sizes.forward_peak + alone),
            "remake_workspace_bytes": max(0, sizes.remake_peak + alone),
            "backward_workspace_bytes": max(0, backward),
            "input_workspace_bytes": max(0, sizes.input_peak - own_stash + gradients),
            "weight_workspace_bytes": most if eager else max(0, halves[1]),
            "unsaved_input_bytes": 0 if self.program.saves_input else given - self.awaiting,
        }

    def _forward(self) -> tuple[Carried, Any]:
        return self.program.forward(self.parameters, self.buffers, self.x, self.target, seed=0)

    def laps(self, timing: Timing) -> Seconds:
        """Median seconds of F, B, I, W. An op finds what just arrived in the cache, and nothing else."""
        program, team, laps = self.program, timing.team, []

        def timed(work: Callable[[], Any], arrived: Carried, recall: Recall) -> tuple[float, Any]:
            recall(tensors_of(arrived))
            team.meet()
            start = timing.clock()
            result = work()
            return timing.clock() - start, result

        for lap in range(timing.warmups + timing.rounds):
            ready = timing.recall if lap >= timing.warmups else nothing
            timing.pace()
            self._forward()  # whoever has waited finds nothing in the caches
            forward_s, (_, stash) = timed(self._forward, self.x, ready)
            whole = partial(program.backward, stash, self.parameters, self.grad_output, self.sums)
            backward_s, _ = timed(whole, self.grad_output, ready)
            _, stash = self._forward()
            half = partial(program.backward_input, stash, self.parameters, self.grad_output)
            input_s, (_, weight_stash) = timed(half, self.grad_output, ready)
            weight_s, _ = timed(partial(program.backward_weight, weight_stash, self.sums), self.grad_output, ready)
            laps.append(team.slowest((forward_s, backward_s, input_s, weight_s)))
        return tuple(map(statistics.median, zip(*laps[timing.warmups :], strict=True)))

    def _bytes(self) -> _Bytes:
        program, buffers = self.program, list(self.buffers.values())
        given = [*self.xs, *self.grad_outputs] + ([] if self.target is None else [self.target])
        external = [*self.parameters.values(), *buffers, *self.sums.values(), *given]
        with StorageTracker(external) as tracker:
            output, stash = self._forward()
            forward_peak = tracker.peak_bytes
            named = _bytes_beyond([*buffers, *given], stash.tensors)
            borrowed = _bytes_beyond(buffers, stash.tensors) - named
            output_bytes = 0 if self.target is not None else unique_bytes(tensors_of(output))
            del output
            own = tracker.current_bytes  # with what custom functions keep outside the stash
            tracker.reset_peak()
            program.backward(stash, self.parameters, self.grad_output, self.sums)
            backward_peak = tracker.peak_bytes
            tracker.reset_peak()
            program.forward_only(self.parameters, self.buffers, self.x, self.target)
            forward_only_peak, remake_peak = tracker.peak_bytes, own
            if program.can_remake:
                tracker.reset_peak()
                program.remake(self.parameters, self.buffers, self.x, self.target)
                remake_peak = tracker.peak_bytes
            kept = program.forward_part(self.parameters, self.buffers, self.x, self.target)[1]
            tracker.reset_peak()
            stash = program.remake_part(kept, self.parameters, self.buffers)
            part_peak = tracker.peak_bytes
            del stash, kept
            stash = self._forward()[1]
            tracker.reset_peak()
            weight_stash = program.backward_input(stash, self.parameters, self.grad_output)[1]
            input_peak = tracker.peak_bytes
            held = weight_stash.nbytes
            own_held = _bytes_beyond([*buffers, *given], weight_stash.tensors) + own - named
            tracker.reset_peak()
            program.backward_weight(weight_stash, self.sums)
            weight_peak = tracker.peak_bytes + held - own_held
        return _Bytes(
            stash=own + borrowed,
            borrowed=borrowed,
            output=output_bytes,
            weight_stash=held,
            forward_peak=forward_peak,
            forward_only_peak=forward_only_peak,
            remake_peak=remake_peak,
            backward_peak=backward_peak,
            input_peak=input_peak,
            weight_peak=weight_peak,
            part_peak=part_peak,
        )


def _laid(tensor: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """The same ones with these strides; None: contiguous."""
    if strides is None:
        return tensor.contiguous()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _among(tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> tuple[bool, ...]:
    """Which of them have their storage in common with a kept one."""
    storages = {tensor.untyped_storage()._cdata for tensor in kept}
    return tuple(tensor.untyped_storage()._cdata in storages for tensor in tensors)


def _bytes_beyond(known: list[Tensor], tensors: list[Tensor]) -> int:
    """Bytes of the storages behind `tensors` that are not behind `known`."""
    return unique_bytes([*known, *tensors]) - unique_bytes(known)
