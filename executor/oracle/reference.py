"""Single-process training with gradient accumulation in plain eager torch: what a plan's run must equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ...models import Dataset, LayeredModel, derive_seed, held_out
from ...models.loaders import Feed, Source
from ...models.once import kept
from ...models.sampling import batch_of
from ...models.wiring import Inputs, Value, carried, outputs_of
from ..basics import DYNAMIC, INITIAL_SCALE, SKIP, Training, keywords_of
from ..stage import autocasting, build_lowered, half_of, layer_seed, run_dtype, wide
from ..state import MiniBatch, MiniBatches, as_dtype, counts_of, find_data, make_optimizer, set_rate, tie_modules
from ..step import evaluation_seed


@dataclass(frozen=True)
class ReferenceRun:
    """Mean losses a step, and final "parameters/<layer>/<name>" and "buffers/<layer>/<name>" tensors.

    A tied parameter appears once, under its tie's first member.

    Attributes:
        grad_norms: before clipping, where gradients are clipped or losses scaled dynamically.
        loss_scales: what each step ran with.
        evaluations: mean held-out losses by the number of steps taken before.
    """

    losses: tuple[float, ...]
    state: dict[str, Tensor]
    grad_norms: tuple[float, ...] = ()
    loss_scales: tuple[float, ...] = ()
    evaluations: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """What is trained in one process; parameters, data and random state are those of `execute` for the same seed.

    Attributes:
        micro_batches: of a step, in order; micro_batch_size: samples.
        precision: "mixed": layers hold 16-bit copies and run under autocast, gradients are summed in float32 and step
            float32 masters.
    """

    micro_batches: int
    micro_batch_size: int
    optimizer: str = "sgd"
    steps: int = 5
    seed: int = 0
    lr: float | None = None
    dtype: torch.dtype | None = None
    data: Source | str | None = None
    precision: str = "fp32"
    training: Training | None = None
    device: str = "cpu"


def train_alone(model: LayeredModel, of: Reference) -> ReferenceRun:
    """Trains on the micro-batches of every step in order, gradients averaged over samples; then one optimizer step."""
    chosen = of.training or Training()
    chosen = (chosen if of.lr is None else replace(chosen, lr=of.lr)).of_run(of.optimizer, of.steps)
    whole = chosen.mini_batch or of.micro_batches * of.micro_batch_size
    source = find_data(model, of.data, Feed(of.micro_batch_size, whole))
    trainer = _Trainer(model, source, of, chosen)
    counts = counts_of(model, source, of.seed)
    mini_batches = MiniBatches(of.micro_batches, of.micro_batch_size, chosen.mini_batch, source, counts)
    losses, norms, scales, evaluations = [], [], [], {}
    for step in range(of.steps):
        scales.append(trainer.scale)
        losses.append(trainer.accumulate(step, mini_batches.weighed(step)))
        norm = trainer.update(step)
        norms += [] if norm is None else [norm]
        if chosen.evaluate_every and (step + 1) % chosen.evaluate_every == 0:
            evaluations[step + 1] = trainer.evaluate(of.micro_batches, of.micro_batch_size)
    return ReferenceRun(tuple(losses), trainer.state(), tuple(norms), tuple(scales), evaluations)


train_reference = keywords_of(Reference)(train_alone)
"""`train_alone` as other programs call it: train_reference(model, micro_batches, micro_batch_size, ...)."""


class _Trainer:
    """The model, its masters and its optimizer; loss scaling is torch's own."""

    def __init__(self, model: LayeredModel, data: Dataset, of: Reference, training: Training) -> None:
        seed, dtype, device = of.seed, run_dtype(of.precision, of.dtype), torch.device(of.device)
        self.model, self.data, self.seed, self.dtype, self.training = model, data, seed, dtype, training
        self.device = device
        with kept():
            built = [build_lowered(spec, seed, index, dtype) for index, spec in enumerate(model.layers)]
        self.layers = [layer.to(device) for layer, _ in built]
        self.masters = [{name: tensor.to(device) for name, tensor in masters.items()} for _, masters in built]
        self.same = tie_modules(model, self.layers)
        self._tie_masters()
        parameters = (
            masters.get(name, p)
            for layer, masters in zip(self.layers, self.masters, strict=True)
            for name, p in layer.named_parameters()
            if p.requires_grad
        )
        self.stepped = list(dict.fromkeys(parameters))
        self.stepper = make_optimizer(of.optimizer, self.stepped, training, fused=False)
        dynamic = training.loss_scale == DYNAMIC
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=INITIAL_SCALE, growth_interval=training.scale_interval, enabled=dynamic
        )
        self._constant = 1.0 if dynamic else float(training.loss_scale)

    def _tie_masters(self) -> None:
        masters = dict(zip((spec.name for spec in self.model.layers), self.masters, strict=True))
        for other, first in self.same.items():
            (layer, _, name), (source, _, kept) = other.partition("/"), first.partition("/")
            if name in masters[layer]:
                masters[layer][name] = masters[source][kept]

    @property
    def scale(self) -> float:
        """What losses are multiplied by."""
        return self._constant * self.scaler.get_scale()

    def accumulate(self, step: int, mini_batch: MiniBatch) -> float:
        """The gradients of one step; returns the mean loss over its samples."""
        self.stepper.zero_grad()
        if self.training.on_nan == SKIP:
            self._buffers = [buffer.clone() for layer in self.layers for buffer in layer.buffers()]
        total = 0.0
        for m in range(mini_batch.micro_batches):
            size = mini_batch.size(m)
            share = mini_batch.weight(m) / mini_batch.micro_batches if mini_batch.counts else size / mini_batch.samples
            loss = self._loss(*batch_of(self.data, self.seed, step, m, size), derive_seed(self.seed, step, m))
            scaled = self.scaler.scale(loss * (self._constant * share))
            scaled.backward()  # type: ignore[no-untyped-call]
            self._sum_up()
            total += share * loss.item()
        self._finite = math.isfinite(total)
        return total

    def _loss(self, inputs: Inputs, targets: Tensor, random: int) -> Tensor:
        half, wiring = half_of(self.dtype), self.model.wiring
        taken = wiring.given(inputs, {value for values in wiring.takes for value in values})
        there = {value: as_dtype(tensor, self.dtype).to(self.device) for value, tensor in taken.items()}
        with autocasting(half, self.device):
            for index, layer in enumerate(self.layers):
                torch.manual_seed(layer_seed(random, index))
                found = outputs_of(layer(*(there[value] for value in wiring.takes[index])), wiring.outputs[index])
                there |= {Value(index, number): tensor for number, tensor in enumerate(found)}
            torch.manual_seed(layer_seed(random, -1))
            wanted = as_dtype(targets, wide(self.dtype)).to(self.device)
            return self.model.loss(carried([t if half is None else t.float() for t in found]), wanted)

    def _sum_up(self) -> None:
        """Adds 16-bit gradients of one micro-batch to the masters' float32 ones."""
        for layer, masters in zip(self.layers, self.masters, strict=True):
            for name, p in layer.named_parameters():
                if name in masters and p.grad is not None:
                    master, grad = masters[name], p.grad.float()
                    master.grad = grad if master.grad is None else master.grad.add_(grad)
                    p.grad = None

    def update(self, step: int) -> float | None:
        """Unscales, clips and steps; returns the norm if it was needed."""
        set_rate(self.stepper, self.training.rate(step))
        self.scaler.unscale_(self.stepper)
        if self._constant != 1.0:
            for p in self.stepped:
                if p.grad is not None:
                    p.grad.mul_(1 / self._constant)
        norm = None
        if self.training.agrees:
            limit = self.training.clip_norm
            norm = clip_grad_norm_(self.stepped, float("inf") if limit is None else limit).item()
        if self.training.on_nan == SKIP and not (self._finite and math.isfinite(norm or 0.0)):
            self._leave_out()
            if not self.scaler.is_enabled():
                return norm if self._finite else math.nan
        self.scaler.step(self.stepper)
        self.scaler.update()
        for layer, masters in zip(self.layers, self.masters, strict=True):
            for name, p in layer.named_parameters():
                if name in masters:
                    p.data.copy_(masters[name])
        return norm

    def _leave_out(self) -> None:
        """The step has not been: neither for parameters nor for buffers."""
        with torch.no_grad():
            buffers = (buffer for layer in self.layers for buffer in layer.buffers())
            for buffer, kept in zip(buffers, self._buffers, strict=True):
                buffer.copy_(kept)

    def evaluate(self, micro_batches: int, size: int) -> float:
        """The mean held-out loss, in evaluation mode."""
        for layer in self.layers:
            layer.eval()
        data, seed = held_out(self.data), evaluation_seed(self.seed)
        batches = [(k, m) for k in range(self.training.evaluate_steps) for m in range(micro_batches)]
        with torch.no_grad():
            losses = [self._loss(*batch_of(data, seed, k, m, size), 0).item() for k, m in batches]
        if counts := counts_of(self.model, data, seed):
            full = MiniBatch(micro_batches, size, micro_batches * size)
            found = [count for k in range(self.training.evaluate_steps) for count in counts(k, full)]
            losses = [loss * count * len(found) / sum(found) for loss, count in zip(losses, found, strict=True)]
        for layer in self.layers:
            layer.train()
        return sum(losses) / len(losses)

    def state(self) -> dict[str, Tensor]:
        """Masters, or parameters where they are no copies, and buffers."""
        state: dict[str, Tensor] = {}
        for spec, layer, masters in zip(self.model.layers, self.layers, self.masters, strict=True):
            parameters = {name: masters.get(name, p) for name, p in layer.named_parameters()}
            state |= {
                f"parameters/{spec.name}/{name}": p.detach().to("cpu", copy=True) for name, p in parameters.items()
            }
            state |= {
                f"buffers/{spec.name}/{name}": b.detach().to("cpu", copy=True) for name, b in layer.named_buffers()
            }
        return {name: tensor for name, tensor in state.items() if name.partition("/")[2] not in self.same}
