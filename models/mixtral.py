"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama with a mixture of experts in the place of every MLP.

Every token goes to the experts that its router scores highest. Shapes must not follow from scores: as in GShard
(arXiv:2006.16668) and Switch (arXiv:2101.03961, section 2.2) every expert computes a fixed number of tokens, its
capacity; choices beyond it are dropped, first choices last. There is no loss for the balance of the experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .collectives import copied, exchanged
from .lanes import Lane, Shard
from .llama import LlamaConfig, RMSNorm, llama
from .parallel import Divisible, entered, left, require_multiple
from .protocol import LayeredModel


@dataclass(frozen=True)
class MixtralConfig(LlamaConfig):
    """Shapes of one Mixtral; `hidden` is an expert's.

    `chosen`: experts a token goes to. `capacity`: tokens that an expert computes, over its even share of all choices;
    experts / chosen drops none.
    """

    experts: int = 8
    chosen: int = 2
    capacity: float = 1.0

    def places(self, tokens: int) -> int:
        """Tokens that each expert computes of so many: capacity * chosen * tokens / experts, rounded up."""
        return min(tokens, math.ceil(self.capacity * self.chosen * tokens / self.experts))


class Routes(NamedTuple):
    """Which token is where.

    Attributes:
        tokens: (experts * places) numbers of the tokens that the experts compute; a place that nobody has chosen
            computes some token, and nobody reads it. places: (chosen, tokens) where each choice of a token is.
        weights: (chosen, tokens) of the choices; 0 for those that found no place.
    """

    tokens: Tensor
    places: Tensor
    weights: Tensor


class Router(Divisible):
    """(tokens, width) -> `Routes`: softmax over the scores of the chosen experts (arXiv:2401.04088, section 2.1)."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Routes:
        best, expert = F.linear(x, self._summed()).topk(self.config.chosen, dim=-1)
        weights = best.to(torch.promote_types(best.dtype, torch.float32)).softmax(-1).to(x.dtype).T
        expert, count = expert.T, self.config.places(len(x))
        everyone = torch.arange(self.config.experts, device=x.device)
        asking = (expert.flatten()[:, None] == everyone).to(torch.int64)
        queued = (asking.cumsum(0) * asking).sum(1).view_as(expert) - 1  # all first choices before all second ones
        found = queued < count
        places = torch.where(found, expert * count + queued, self.config.experts * count)
        numbers = torch.arange(len(x), device=x.device).repeat(self.config.chosen)
        tokens = numbers.new_zeros(self.config.experts * count + 1).scatter(0, places.flatten(), numbers)
        return Routes(tokens[:-1], places.clamp(max=self.config.experts * count - 1), weights * found)

    def _summed(self) -> Tensor:
        """Every lane has the weight; what reaches it on one is of its samples, or of its part of the experts."""
        return self.weight if self.lane is None else copied(self.weight)


class Experts(Divisible):
    """(experts * places, width) -> the same: a gated MLP for the places of each expert."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.config = config
        shape = (config.experts, config.width, config.hidden)
        self.gate, self.up = (nn.Parameter(torch.empty(shape).normal_(std=0.02)) for _ in range(2))
        std = 0.02 / math.sqrt(2 * config.blocks)
        self.down = nn.Parameter(torch.empty(shape[0], shape[2], shape[1]).normal_(std=std))

    def divide(self, lane: Lane) -> None:
        """A lane has some of the experts, or some of the hidden features of each. Raises NoParallelForm."""
        super().divide(lane)
        count, hidden = self.config.experts, self.config.hidden
        if lane.experts:
            require_multiple(count, "experts", lane)
            self._cut(lane, {name: Shard(0, count) for name in ("gate", "up", "down")})
        else:
            require_multiple(hidden, "hidden features", lane)
            self._cut(lane, {"gate": Shard(2, hidden), "up": Shard(2, hidden), "down": Shard(1, hidden)})

    def forward(self, x: Tensor) -> Tensor:
        lanes = self.lane.size if self.lane is not None and self.lane.experts else 1
        x = x.view(lanes, self.config.experts // lanes, -1, x.shape[-1])
        x = (x if lanes == 1 else exchanged(x)).transpose(0, 1).flatten(1, 2)
        y = torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)
        y = y.view(len(y), lanes, -1, y.shape[-1]).transpose(0, 1)
        return (y if lanes == 1 else exchanged(y.contiguous())).flatten(0, 2)


class Mixture(Divisible):
    """The second half of a block: experts behind an RMSNorm and around a skip."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width)
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        normal = entered(self.norm(x), self.lane)
        tokens = normal.flatten(0, 1)
        routes: Routes = self.router(tokens)
        computed = self.experts(tokens.index_select(0, routes.tokens))
        chosen = computed.index_select(0, routes.places.flatten()).view(*routes.places.shape, -1)
        mixed = (chosen * routes.weights.unsqueeze(-1)).sum(0).view_as(normal)
        y: Tensor = x + (mixed if self.lane is None or self.lane.experts else left(mixed, self.lane))
        return y


def mixtral(name: str, config: MixtralConfig) -> LayeredModel:
    """The chain of `llama` with experts. Raises ValueError: more experts chosen than there are; what `llama` raises."""
    if not 1 <= config.chosen <= config.experts:
        raise ValueError(f"{name}: {config.chosen} of {config.experts} experts cannot be chosen")
    return llama(name, config, partial(Mixture, config), config.experts)


CONFIGS = {
    "mixtral-tiny": MixtralConfig(2, 64, 4, 2, hidden=48, sequence=32, capacity=2.0),
    # Trained at sequence 32768 (arXiv:2401.04088, table 1); here at Llama 2's 4096.
    "mixtral-8x7b": MixtralConfig(32, 4096, 32, 8, hidden=14336, sequence=4096, vocabulary=32000),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {
    name: partial(mixtral, name, config) for name, config in CONFIGS.items()
}
