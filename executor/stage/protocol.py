"""What every engine's stage programs are: F, B, I, W and R of a stage from an explicit stash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from ...models.protocol import Loss
from .packing import Stash, StashLayout, TensorSpec


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
    output_spec: TensorSpec
    needs_input_grad: bool
    saves_input: bool
    can_remake: bool
    has_random: bool
    has_state: bool
    one_process: bool
    code: str

    @property
    def stash_layout(self) -> StashLayout:
        """How a stash comes apart to leave the device."""

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Tensor,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Tensor, Stash]:
        """F."""

    def forward_only(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Tensor,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Tensor:
        """F without a stash."""

    def remake(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Tensor,
        target: Tensor | None = None,
        seed: int = 0,
    ) -> Stash:
        """R."""

    def backward(
        self,
        stash: Stash,
        parameters: Mapping[str, Tensor],
        grad_output: Tensor,
        accumulators: Mapping[str, Tensor],
    ) -> Tensor | None:
        """B."""

    def backward_input(
        self, stash: Stash, parameters: Mapping[str, Tensor], grad_output: Tensor
    ) -> tuple[Tensor | None, WeightStash]:
        """I."""

    def backward_weight(self, weight_stash: WeightStash, accumulators: Mapping[str, Tensor]) -> None:
        """W."""

    def self_check(self, modules: Sequence[nn.Module], x: Tensor, target: Tensor | None = None, seed: int = 0) -> None:
        """Compare with plain torch."""
