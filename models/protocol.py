"""What a model is to Contraflow: layers in order, a loss and a data set; and how its layers are built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .lanes import Lane, NoParallelForm
from .once import PartOf
from .parallel import divide
from .seeding import RANDOM_LOCK as RANDOM_LOCK
from .seeding import derive_seed as derive_seed
from .seeding import seeded
from .wiring import Inputs, Wiring

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.utils.data import Dataset as TorchDataset

Loss = Callable[[Any, Tensor], Tensor]


@runtime_checkable
class Dataset(Protocol):
    """Micro-batches by position: the same arguments give the same tensors in every process."""

    @property
    def name(self) -> str:
        """The name under which `data.load` finds it again."""

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Inputs, Tensor]:
        """Inputs and targets of one micro-batch of `size` samples, batch dimension first, on the CPU.

        Inputs are one tensor, or several by name.
        """


@runtime_checkable
class TargetedDataset(Dataset, Protocol):
    """A data set that gives targets alone: whoever holds the last stage need not have the inputs in memory."""

    def targets(self, seed: int, step: int, micro_batch: int, size: int) -> Tensor:
        """The second part of `batch`."""


@runtime_checkable
class EndingDataset(Dataset, Protocol):
    """A data set that has fewer samples for some steps: where an epoch ends within a mini-batch."""

    def samples(self, step: int, most: int) -> int:
        """How many of at most `most` samples step `step` has. The last micro-batch is then asked for fewer."""


def held_out(data: Dataset) -> Dataset:
    """What to measure a model on that was trained on `data`: its attribute `held_out`, or itself where it has none."""
    kept: Dataset = getattr(data, "held_out", data)
    return kept


@dataclass(frozen=True)
class LayerSpec:
    """One layer: the smallest piece the planner may cut between.

    It takes one tensor, what the layer before it gives (the first: the data's), and returns one, unless it says so:
    `inputs` are the names of what it takes, in the order of its arguments: layers before it, and "input" or, where the
    data has several, "input.NAME". `outputs` are names of the tensors that it returns, as a tuple or by name; layer "a"
    with outputs "x" and "y" gives "a.x" and "a.y". Tensors may be of integers or Booleans; gradients are of others.

    `build` returns a fresh module; whatever it draws comes from the default generators of torch, numpy and Python.
    It travels to other processes, and everything in the module is made when it is called: a module's function or a
    `partial` of one or of a class, of numbers and strings; no lambda, no module made before. Layers of one `block`
    follow one another, and may be planned as one layer of that name (see `granularity`).

    `parallel_plan`: how a team divides the layer, as torch's `parallelize_module` takes it for the module: styles by
    paths in it, "" being itself. What it does not name, all ranks of the team do alike; None: only layers that are made
    for it are divided (see `parallel`).
    """

    name: str
    build: Callable[[], nn.Module]
    block: str | None = None
    parallel_plan: Mapping[str, ParallelStyle] | None = field(default=None, hash=False)
    inputs: tuple[str, ...] | str | None = None
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tie:
    """One parameter that several layers use: (layer name, parameter name in the layer) of every member.

    All members have one shape and one type. The first member's initial value is everybody's.
    """

    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LayeredModel:
    """Layers with a loss and data.

    Attributes:
        name: registry name, or "package.module:function".
        layers: in an order in which the data flows; names are unique. What each gives some layer takes, but the last.
        loss: (output of the last layer, target) -> scalar, the mean over the micro-batch; a tuple, if it has several.
        data: a data set, the name of one (see `data.load`), a loader or data set of torch's (see `loaders`), or None
            when the user brings it later.
        ties: parameters that layers share, as GPT-2's embedding and head do.
        experts: how many every mixture of experts in it has; 0: there is none.
        counted: how many of a micro-batch's targets the loss is the mean of, where padding is left out; None: its
            samples. A step's loss and gradients are then the mean over the step's.

    Raises:
        ValueError: no layers, two layers of one name, a block that is interrupted or has a layer's name, or a tie that
            names one layer twice or an unknown one; or a layer that takes what there is not.
    """

    name: str
    layers: tuple[LayerSpec, ...]
    loss: Loss
    data: str | Dataset | Iterable[Any] | TorchDataset[Any] | None = None
    ties: tuple[Tie, ...] = ()
    experts: int = 0
    counted: Callable[[Tensor], Tensor | float] | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f"model {self.name!r} has no layers")
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise ValueError(f"model {self.name!r} has two layers named {layer.name!r}")
            seen.add(layer.name)
        self._check_blocks(seen)
        self._check_ties(seen)
        self._check_wiring()

    @cached_property
    def wiring(self) -> Wiring:
        """Which tensors every layer takes."""
        return Wiring.of(self.layers)

    def _check_wiring(self) -> None:
        try:
            self.wiring  # noqa: B018
        except ValueError as error:
            raise ValueError(f"model {self.name!r}: {error}") from None

    def _check_blocks(self, layers: set[str]) -> None:
        runs = Counter(block for block, _ in groupby(spec.block for spec in self.layers) if block is not None)
        for block, count in runs.items():
            if count > 1:
                raise ValueError(f"model {self.name!r}: the layers of block {block!r} do not follow one another")
            if block in layers:
                raise ValueError(f"model {self.name!r} has a layer and a block named {block!r}")

    def _check_ties(self, layers: set[str]) -> None:
        taken: set[tuple[str, str]] = set()
        for tie in self.ties:
            names = [layer for layer, _ in tie.members]
            if len(names) < 2 or len(set(names)) < len(names):
                raise ValueError(f"model {self.name!r}: a tie needs two or more different layers, got {names}")
            for layer, parameter in tie.members:
                if layer not in layers:
                    raise ValueError(f"model {self.name!r} ties a parameter of layer {layer!r}, which does not exist")
                if (layer, parameter) in taken:
                    raise ValueError(f"model {self.name!r}: parameter {parameter!r} of layer {layer!r} is tied twice")
                taken.add((layer, parameter))


def build_layer(
    spec: LayerSpec, seed: int, index: int, dtype: torch.dtype = torch.float32, lane: Lane | None = None
) -> nn.Module:
    """Build layer `index` of a model in training mode, on the CPU.

    The parameters depend on (seed, index) alone, never on which stage the layer ends up in (those of a function that
    makes all layers are what one call draws from the seed: see `once`), and the default
    generators of torch, numpy and Python are left as they were. Floating-point parameters and buffers are converted to
    `dtype` after they were drawn in the default dtype, so float64 starts from the float32 values. A lane of a team gets
    its part of the layer that one device would have. Raises NoParallelForm naming a layer that has no such parts.
    """
    if isinstance(spec.build, PartOf):
        module = spec.build.under(seed)
    else:
        with seeded("parameters", seed, index):
            module = spec.build()
    return _part(spec, module.to(dtype).train(), lane)


def build_shapes(spec: LayerSpec, lane: Lane | None = None) -> nn.Module:
    """A layer, or a lane's part of it, without memory (on the meta device) where its builder allows it.

    Raises NoParallelForm naming the layer.
    """
    with seeded("shapes"), torch.device("meta"):
        module = spec.build.shapes() if isinstance(spec.build, PartOf) else spec.build()
        return _part(spec, module, lane)


def _part(spec: LayerSpec, module: nn.Module, lane: Lane | None) -> nn.Module:
    if lane is not None:
        try:
            if spec.parallel_plan is None:
                divide(module, lane)
            elif lane.experts:
                raise NoParallelForm("a parallel plan says nothing of experts")
            else:
                from .styles import parallelize  # takes a second to import

                parallelize(module, lane, spec.parallel_plan)
        except NoParallelForm as error:
            raise NoParallelForm(f"layer {spec.name!r}: {error}") from None
    return module
