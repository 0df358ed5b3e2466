"""Llama (Touvron et al. 2023, arXiv:2302.13971 and 2307.09288): RMSNorm, rotary positions, SwiGLU, grouped queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import blocks, linear
from .lanes import Lane
from .loss import cross_entropy
from .parallel import Classes, Column, Divisible, Row, TokenEmbedding, entered, on_shards, require_multiple
from .protocol import LayeredModel, LayerSpec

ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class LlamaConfig:
    """Shapes of one Llama. `shared_heads`: heads of keys and values, each shared by heads / shared_heads queries."""

    blocks: int
    width: int
    heads: int
    shared_heads: int
    hidden: int
    sequence: int
    vocabulary: int = 256


class RootMeanSquare(torch.autograd.Function):
    """x / rms(x) * weight, in float32 inside. Keeps x and one number a token, as fused kernels do."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(the result in x's type, 1 / rms as (..., 1) float32)."""
        wide = x.to(_wide(x))
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * inverse).to(x.dtype) * weight, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Saves x, the weight and 1 / rms."""
        x, weight, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """With n = x / rms: dx = (g w - n mean(g w n)) / rms, dw = sum of g n over the tokens.

        Each makes n for itself, so that a split backward holds x in between, not a float32 copy.
        """
        x, weight, inverse = ctx.saved_tensors
        normal = x.to(inverse.dtype) * inverse
        scaled = (grads[0] * weight).to(inverse.dtype)
        grad_x = (scaled - normal * (scaled * normal).mean(-1, keepdim=True)) * inverse
        grad_weight = (grads[0] * (x.to(inverse.dtype) * inverse).to(x.dtype)).flatten(0, -2).sum(0)
        return grad_x.to(x.dtype), grad_weight, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


class RMSNorm(Divisible):
    """(..., width) -> the same, each token divided by its root mean square (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normal: Tensor = RootMeanSquare.apply(x, on_shards(self.weight, self.lane), self.eps)[0]  # type: ignore[no-untyped-call]
        return normal


class Attention(Divisible):
    """Causal self-attention with rotary positions (arXiv:2104.09864) and grouped queries (arXiv:2305.13245)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.size = config.width // config.heads
        shared = config.shared_heads * self.size
        self.heads, self.shared_heads = config.heads, config.shared_heads
        self.query = linear(config.width, config.width, bias=False, kind=Column)
        self.key = linear(config.width, shared, bias=False, kind=Column)
        self.value = linear(config.width, shared, bias=False, kind=Column)
        self.out = linear(config.width, config.width, residuals=2 * config.blocks, bias=False, kind=Row)

    def divide(self, lane: Lane) -> None:
        """Every lane has heads of its own, and the heads of keys and values that they share. Raises NoParallelForm."""
        super().divide(lane)
        if lane.experts:
            return
        require_multiple(self.heads, "heads", lane)
        require_multiple(self.shared_heads, "heads of keys and values", lane)

    def forward(self, x: Tensor) -> Tensor:
        x = entered(x, self.lane)
        turn = self._angles(x)
        q, k = (_rotate(self._heads(part(x)), *turn) for part in (self.query, self.key))
        q, k, v = (part.transpose(1, 2) for part in (q, k, self._heads(self.value(x))))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.size)

    def _angles(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every position's angles, made anew: kept tables would be held for every block."""
        half = torch.arange(0, self.size, 2, dtype=torch.float32, device=x.device)
        positions = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        angles = torch.outer(positions, ROTARY_BASE ** -(half / self.size))[:, None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(batch, time, heads, size): pairs (i, i + size / 2) are turned by position times rate i."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class SelfAttention(Divisible):
    """The first half of a block: attention behind an RMSNorm and around a skip."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width)
        self.attention = Attention(config)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.attention(self.norm(x))
        return y


class MLP(Divisible):
    """The second half of a block: a gated MLP behind an RMSNorm and around a skip."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width)
        self.gate = linear(config.width, config.hidden, bias=False, kind=Column)
        self.up = linear(config.width, config.hidden, bias=False, kind=Column)
        self.down = linear(config.hidden, config.width, residuals=2 * config.blocks, bias=False, kind=Row)

    def forward(self, x: Tensor) -> Tensor:
        normal = entered(self.norm(x), self.lane)
        y: Tensor = x + self.down(F.silu(self.gate(normal)) * self.up(normal))
        return y


class Head(Divisible):
    """Final RMSNorm and projection: (batch, time, width) -> (batch, time, vocabulary) logits."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width)
        self.out = linear(config.width, config.vocabulary, bias=False, kind=Classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(entered(self.norm(x), self.lane))
        return logits


def embedding(config: LlamaConfig) -> nn.Embedding:
    """(batch, time) tokens -> (batch, time, width)."""
    made = TokenEmbedding(config.vocabulary, config.width)
    nn.init.normal_(made.weight, std=0.02)
    return made


def llama(name: str, config: LlamaConfig, mlp: Callable[[], nn.Module] | None = None, experts: int = 0) -> LayeredModel:
    """The chain embedding, two layers a block, head, trained on bytes of source code.

    `mlp`: builds the second half of a block; None: an `MLP`. `experts`: how many it has.

    Raises:
        ValueError: the heads do not divide the width into pairs, or the shared heads not the heads.
    """
    if config.width % (2 * config.heads):
        raise ValueError(f"{name}: width {config.width} is not a multiple of 2 * {config.heads} heads")
    if config.heads % config.shared_heads:
        raise ValueError(f"{name}: {config.heads} heads cannot share {config.shared_heads} heads of keys and values")
    layers = (
        LayerSpec("embedding", partial(embedding, config)),
        *blocks(config.blocks, partial(SelfAttention, config), mlp or partial(MLP, config)),
        LayerSpec("head", partial(Head, config)),
    )
    return LayeredModel(name, layers, cross_entropy, f"stdlib:{config.sequence}", experts=experts)


CONFIGS = {
    "llama-tiny": LlamaConfig(blocks=4, width=64, heads=4, shared_heads=2, hidden=176, sequence=32),
    "llama-small": LlamaConfig(blocks=6, width=256, heads=8, shared_heads=2, hidden=688, sequence=128),
    # Llama 2 (arXiv:2307.09288), trained at sequence 4096.
    "llama-7b": LlamaConfig(32, 4096, 32, 32, hidden=11008, sequence=4096, vocabulary=32000),
    "llama-13b": LlamaConfig(40, 5120, 40, 40, hidden=13824, sequence=4096, vocabulary=32000),
    "llama-70b": LlamaConfig(80, 8192, 64, 8, hidden=28672, sequence=4096, vocabulary=32000),
}
PRESETS: dict[str, Callable[[], LayeredModel]] = {
    name: partial(llama, name, config) for name, config in CONFIGS.items()
}
