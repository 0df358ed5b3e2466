"""A model of your own on teams of ranks: it brings the plan that torch's `parallelize_module` would take.

From the folder of this file:

    contraflow profile parallel_model:build --device A100-80GB --micro-batch-size 4 \\
        --team 2 --link 300GB/s,3us -o model.json
    contraflow plan model.json --cluster cluster-4gpu.toml --micro-batches 8 --team 2 -o plan.json
    contraflow execute plan.json --model parallel_model:build --steps 20

Paths in a plan begin with a layer's name, and each of their parts may be a pattern. Modules that no path names run on
every rank of a team. A rank has a part of a divided projection's features, so shapes count heads as they come: `-1`.
"""

import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

WIDTH, HEAD, WORDS, POSITIONS, BLOCKS = 32, 8, 256, 16, 2


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (part(x).view(batch, time, -1, HEAD).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, -1))


class GatedMLP(nn.Module):
    """Two projections up, one down."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Residual(nn.Module):
    """One half of a block: a norm, attention or MLP, dropout, and a skip around them."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.norm, self.inner, self.drop = nn.LayerNorm(WIDTH), inner, nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.inner(self.norm(x)))


class Head(nn.Module):
    """Logits of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        return self.out(self.norm(x))


def build():
    """Bytes in, logits of the next ones out; divided by features."""
    halves = [(Attention, "attention"), (GatedMLP, "mlp")]
    blocks = [(f"block{k}.{name}", Residual(kind())) for k in range(BLOCKS) for kind, name in halves]
    return [("words", nn.Embedding(WORDS, WIDTH)), *blocks, ("head", Head())]


build.data = f"stdlib:{POSITIONS}"
build.parallel_plan = {
    "words": RowwiseParallel(input_layouts=Replicate()),
    "block*.attention.inner.[qkv]*": ColwiseParallel(),
    "block*.attention.inner.out": RowwiseParallel(),
    "block*.mlp.inner.gate": ColwiseParallel(),
    "block*.mlp.inner.up": ColwiseParallel(),
    "block*.mlp.inner.down": RowwiseParallel(),
    "head.out": ColwiseParallel(output_layouts=Replicate()),
}


def build_sequence():
    """The same model; what flows between attention and MLP is divided by positions."""
    return build()


build_sequence.data = build.data
build_sequence.parallel_plan = {
    **build.parallel_plan,
    "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "block*.*.norm": SequenceParallel(),
    "block*.*.inner": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "block*.*.drop": SequenceParallel(),
    "block*.attention.inner.out": RowwiseParallel(output_layouts=Shard(1)),
    "block*.mlp.inner.down": RowwiseParallel(output_layouts=Shard(1)),
    "head.norm": SequenceParallel(),
    "head.out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
