"""What every engine's stage programs are: F, B, I, W and R of a stage from an explicit stash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ...models.protocol import Loss
from ...models.wiring import Carried, carried, tensors_of
from .packing import Stash, StashLayout, TensorSpec

Gradients = Tensor | tuple[Tensor | None, ...] | None
"""Of what a stage takes and wants the gradients of, None where there is none: of one tensor, or of several."""


def gradients_of(found: Gradients) -> tuple[Tensor | None, ...]:
    """As a tuple, be it one."""
    return found if isinstance(found, tuple) else (found,)


def ones_like(output: Carried, returned: Sequence[bool]) -> Carried:
    """Gradients of an output, for those of its tensors that have one."""
    pairs = zip(tensors_of(output), returned, strict=True)
    return carried([torch.ones_like(tensor) for tensor, flag in pairs if flag])


def require_alike(label: str, x: Carried, specs: Sequence[TensorSpec], built: str) -> None:
    """Raises ValueError: what a stage takes is not what its program was made for."""
    xs = tensors_of(x)
    if len(xs) != len(specs):
        raise ValueError(f"{label}: takes {len(specs)} tensors, got {len(xs)}")
    for tensor, spec in zip(xs, specs, strict=True):
        if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
            got, want = f"{tuple(tensor.shape)} {tensor.dtype}", f"{spec.shape} {spec.dtype}"
            raise ValueError(f"{label}: input is {got}, {built} for {want}")


@dataclass
class WeightStash:
    """What the input half of a backward leaves for the weight half.

    Attributes:
        tensors: saved activations the weight half reads, and gradients the input half computed.
        parameters: those the weight half reads, by reference; not counted in `nbytes`.
        nbytes: bytes of the storages of `tensors`, each once.
    """

    tensors: list[Tensor]
    parameters: list[Tensor]
    nbytes: int


class AnyProgram(Protocol):
    """What both engines' stage programs are; see `StageProgram`."""

    label: str
    layer_ids: tuple[int, ...]
    loss: Loss | None
    parameter_names: tuple[str, ...]
    buffer_names: tuple[str, ...]
    accumulator_names: tuple[str, ...]
    stash_specs: tuple[TensorSpec, ...]
    stash_bytes: int
    weight_stash_bytes: int
    selective_bytes: int
    output_specs: tuple[TensorSpec, ...]
    needs_input_grad: bool
    saves_input: bool
    can_remake: bool
    has_random: bool
    has_state: bool
    one_process: bool
    code: str

    @property
    def output_spec(self) -> TensorSpec:
        """Of the first output."""

    @property
    def stash_layout(self) -> StashLayout:
        """How a stash comes apart to leave the device."""

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Carried, Stash]:
        """F."""

    def forward_only(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Carried:
        """F without a stash."""

    def remake(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Stash:
        """R."""

    def forward_part(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Carried, Stash]:
        """F without `selective_bytes` of its stash."""

    def remake_part(self, kept: Stash, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Stash:
        """R of these."""

    def backward(
        self,
        stash: Stash,
        parameters: Mapping[str, Tensor],
        grad_output: Carried,
        accumulators: Mapping[str, Tensor],
    ) -> Gradients:
        """B."""

    def backward_input(
        self, stash: Stash, parameters: Mapping[str, Tensor], grad_output: Carried
    ) -> tuple[Gradients, WeightStash]:
        """I."""

    def backward_weight(self, weight_stash: WeightStash, accumulators: Mapping[str, Tensor]) -> None:
        """W."""

    def self_check(self, modules: Sequence[nn.Module], x: Carried, target: Tensor | None = None, seed: int = 0) -> None:
        """Compare with plain torch."""
