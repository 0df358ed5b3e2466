"""Layers that a team of ranks holds together: tensor parallelism as in Megatron-LM (arXiv:1909.08053), and sequence
parallelism between its parts (arXiv:2205.05198).

A module here computes what torch's own does until it is divided; then every lane has a part of its parameters. The
output features of a `Column` and the input features of a `Row` are cut, so that what comes between them needs no
message: `entered` stands before the first, and a `Row` sums what the lanes have. With `Lane.sequence` what flows
between such pairs is cut by position (dimension 1), and parameters that all lanes have see a part of the positions
each, so their gradients are summed (`on_shards`). With `Lane.experts` none of these is cut: every lane computes samples
of its own (dimension 0), from the embedding to the loss (`loss_of_samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .collectives import copied, gathered_for_all, gathered_for_parts, scattered, summed
from .lanes import Lane, NoParallelForm, Shard


class Divisible(nn.Module):
    """A module that can be one lane's part of itself.

    Attributes:
        lane: whose part it is; None: whole. shards: how its own parameters have been cut.
    """

    lane: Lane | None = None
    shards: Mapping[str, Shard] = {}

    def divide(self, lane: Lane) -> None:
        """Becomes the part of a lane; modules in it do so by themselves. Raises NoParallelForm."""
        self.lane = lane

    def _own(self, name: str) -> Tensor:
        """A parameter of its own; gradients of one that is not cut are those of all that flows."""
        parameter: Tensor = getattr(self, name)
        return parameter if name in self.shards else on_shards(parameter, self.lane)

    def _cut(self, lane: Lane, shards: Mapping[str, Shard]) -> None:
        for name, shard in shards.items():
            whole = self.get_parameter(name)
            setattr(self, name, nn.Parameter(shard.part(whole.detach(), lane), whole.requires_grad))
        self.shards = dict(shards)


def divide(module: nn.Module, lane: Lane) -> None:
    """Makes a layer the part of a lane. Raises NoParallelForm: it is not made of what can be."""
    if not isinstance(module, Divisible):
        raise NoParallelForm(f"{type(module).__name__} has no parallel form, and no parallel plan comes with it")
    for part in list(module.modules()):
        if isinstance(part, Divisible):
            part.divide(lane)


def entered(x: Tensor, lane: Lane | None) -> Tensor:
    """What stands before `Column`s: x on all lanes, gradients summed."""
    if lane is None or lane.experts:
        return x
    return gathered_for_parts(x, 1, lane) if lane.sequence else copied(x)


def left(x: Tensor, lane: Lane) -> Tensor:
    """What stands behind a `Row`: the lanes' sum, or this lane's positions of it."""
    if not lane.sequence:
        return summed(x)
    require_multiple(x.shape[1], "positions", lane)
    return scattered(x, 1, lane)


def on_shards(parameter: Tensor, lane: Lane | None) -> Tensor:
    """A parameter that every lane has whole: where each sees its own positions or samples, gradients are summed."""
    return parameter if lane is None or not lane.apart else copied(parameter)


def own_positions(table: Tensor, lane: Lane | None) -> Tensor:
    """The rows of the positions that flow through this lane."""
    if lane is None or not lane.sequence:
        return table
    require_multiple(table.shape[0], "positions", lane)
    size = table.shape[0] // lane.size
    return table[lane.number * size : (lane.number + 1) * size]


def own_samples(x: Tensor, lane: Lane) -> Tensor:
    """The samples that this lane computes. Raises NoParallelForm."""
    require_multiple(x.shape[0], "samples", lane)
    size = x.shape[0] // lane.size
    return x.narrow(0, lane.number * size, size)


def loss_of_samples(loss: Callable[[Tensor, Tensor], Tensor], lane: Lane, output: Tensor, target: Tensor) -> Tensor:
    """The loss of a micro-batch, a mean over samples, of which every lane has equally many: the mean over the lanes.

    `output`: of the lane's samples; `target`: of all.
    """
    return summed(loss(output, own_samples(target, lane)) / lane.size)


def require_multiple(count: int, what: str, lane: Lane) -> None:
    """Raises NoParallelForm."""
    if count % lane.size:
        raise NoParallelForm(f"{count} {what} cannot be divided among a team of {lane.size}")


class _Projection(nn.Linear, Divisible):
    """A projection of what flows between layers."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self._own("weight"), None if self.bias is None else self._own("bias"))


class Column(_Projection):
    """A projection whose output features are cut, in each of `blocks` that are fused."""

    blocks = 1

    def divide(self, lane: Lane) -> None:
        super().divide(lane)
        if lane.experts:
            return
        require_multiple(self.out_features // self.blocks, "output features", lane)
        self._cut_outputs(lane)

    def _cut_outputs(self, lane: Lane) -> None:
        names = ["weight"] if self.bias is None else ["weight", "bias"]
        self._cut(lane, {name: Shard(0, self.out_features, self.blocks) for name in names})
        self.out_features = self.weight.shape[0]


class FusedQKV(Column):
    """Queries, keys and values in one projection."""

    blocks = 3


class Classes(Column):
    """A projection to classes: every lane gets the logits of all. The last lane's part may be shorter.

    With `Lane.experts` it gets those of its own samples.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.classes = out_features

    def divide(self, lane: Lane) -> None:
        self.lane = lane
        if not lane.experts:
            self._cut_outputs(lane)

    def forward(self, input: Tensor) -> Tensor:
        logits = super().forward(input)
        if self.lane is None or self.lane.experts:
            return logits
        dim = logits.dim() - 1
        return gathered_for_all(logits, dim, self.lane).narrow(dim, 0, self.classes)


class Row(_Projection):
    """A projection whose input features are cut; all lanes get the sum, and add the bias once."""

    def divide(self, lane: Lane) -> None:
        super().divide(lane)
        if lane.experts:
            return
        require_multiple(self.in_features, "input features", lane)
        self._cut(lane, {"weight": Shard(1, self.in_features)})
        self.in_features = self.weight.shape[1]

    def forward(self, input: Tensor) -> Tensor:
        if self.lane is None or self.lane.experts:
            return super().forward(input)
        y = left(F.linear(input, self.weight), self.lane)
        return y if self.bias is None else y + on_shards(self.bias, self.lane)


class TokenEmbedding(nn.Embedding, Divisible):
    """An embedding whose rows are cut: a lane has zeros for the tokens of the others, and all lanes get the sum.

    With `Lane.experts` it is whole, and a lane gets its own samples.
    """

    def divide(self, lane: Lane) -> None:
        super().divide(lane)
        if lane.experts:
            return
        self._cut(lane, {"weight": Shard(0, self.num_embeddings)})
        self.num_embeddings = self.weight.shape[0]

    def forward(self, input: Tensor) -> Tensor:
        if self.lane is None:
            return super().forward(input)
        if self.lane.experts:
            return F.embedding(own_samples(input, self.lane), self._own("weight"))
        own = input - self.lane.number * self.num_embeddings
        others = (own < 0) | (own >= self.num_embeddings)
        found = F.embedding(own.masked_fill(others, 0), self.weight)
        return left(found.masked_fill(others.unsqueeze(-1), 0.0), self.lane)


class Table(nn.Embedding, Divisible):
    """A small embedding that every lane has whole."""

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, on_shards(self.weight, self.lane))


class LayerNorm(nn.LayerNorm, Divisible):
    """A LayerNorm of what flows between layers."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = (on_shards(parameter, self.lane) for parameter in (self.weight, self.bias))
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class Dropout(nn.Dropout, Divisible):
    """A dropout of what flows between layers: a lane drops what one device would."""

    def forward(self, input: Tensor) -> Tensor:
        if self.lane is None or not self.lane.sequence or not self.training or self.p == 0:
            return super().forward(input)
        return input * dropped(input, 1, self.p, self.lane)


def dropped(x: Tensor, dim: int, probability: float, lane: Lane) -> Tensor:
    """What this lane's part x is multiplied with by a dropout: its part along a dimension of what one device draws.

    So what is dropped follows from the seed and not from the team; each lane draws for all.
    """
    shape = list(x.shape)
    shape[dim] *= lane.size
    noise = F.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), probability)
    return noise.narrow(dim, lane.number * x.shape[dim], x.shape[dim]).clone(memory_format=torch.contiguous_format)
