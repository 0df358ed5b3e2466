"""Layers with parallel plans of every style, on a team of processes and on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from kept_ranks import kept
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from contraflow.models import LayerSpec, build_layer
from contraflow.models.collectives import member_of
from contraflow.models.lanes import Lane, shards_of

TEAM = 2
WIDTH = 8
Plan = Mapping[str, ParallelStyle]
Compared = dict[str, tuple[Tensor, Tensor]]


class Words(nn.Module):
    """An embedding whose last row is not trained, and a table whose columns are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind = nn.Embedding(11, WIDTH, padding_idx=10), nn.Embedding(4, WIDTH)
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x[..., 0] * 7).long().abs() % 11
        y: Tensor = self.out(self.word(tokens) + self.kind(tokens % 4)) + x.mean()
        return y


class Pair(nn.Module):
    """Two projections in a row, and a module with two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.mix = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), Mix()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.mix(x, other=torch.tanh(x))
        y: Tensor = self.down(torch.relu(self.up(a))) * b
        return y


class Mix(nn.Module):
    """(x, other) -> two sums, one of them weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.weight + other, x - other


class Normed(nn.Module):
    """Norms and a dropout on positions of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.drop = nn.Identity(), nn.LayerNorm(WIDTH), nn.Dropout(0.5)
        self.one, self.two, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.drop(self.norm(self.enter(x)))
        y: Tensor = self.out(self.one(normal) * self.two(normal))
        return y


WHOLE: dict[str, tuple[Callable[[], nn.Module], Plan]] = {
    "rows and columns of embeddings": (
        Words,
        {
            "word": RowwiseParallel(input_layouts=Replicate()),
            "kind": ColwiseParallel(output_layouts=Replicate()),
            "out": ColwiseParallel(output_layouts=Replicate()),
        },
    ),
    "a whole input to a row, a whole output of a column": (
        Pair,
        {"up": ColwiseParallel(output_layouts=Replicate()), "down": RowwiseParallel(input_layouts=Replicate())},
    ),
    "other dimensions": (
        Pair,
        {
            "up": ColwiseParallel(output_layouts=Shard(0)),
            "down": RowwiseParallel(input_layouts=Shard(0), output_layouts=Shard(1)),
            "": PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()),
            "mix": PrepareModuleOutput(
                output_layouts=(Replicate(), Replicate()), desired_output_layouts=(Replicate(), Shard(1))
            ),
        },
    ),
    "inputs by position and by name, there and back": (
        Pair,
        {
            "": PrepareModuleInputOutput(
                input_layouts=Replicate(),
                desired_input_layouts=Shard(1),
                output_layouts=Shard(1),
                desired_output_layouts=Replicate(),
            ),
            "mix": PrepareModuleInputOutput(
                input_layouts=(Shard(1),),
                desired_input_layouts=(Replicate(),),
                input_kwarg_layouts={"other": Shard(1)},
                desired_input_kwarg_layouts={"other": Replicate()},
                output_layouts=(Replicate(), Replicate()),
                desired_output_layouts=(Replicate(), Shard(1)),
            ),
            "u?": ColwiseParallel(),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        },
    ),
    "norms and dropouts of positions": (
        Normed,
        {
            "enter": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "drop": SequenceParallel(),
            "one": ColwiseParallel(),  # knows how its input lies
            "two": ColwiseParallel(),
            "out": RowwiseParallel(),
        },
    ),
}


def run(folder: Path) -> list[dict[str, Compared]]:
    """What every lane finds, by the name of the case: (one device's, its own) tensors by name."""
    kept(TEAM).run(_lane, str(folder))
    return [torch.load(folder / f"lane{number}.pt") for number in range(TEAM)]


def _lane(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/meet", TEAM)
    dist.init_process_group("gloo", store=store, rank=number, world_size=TEAM)
    found = {}
    with member_of(dist.group.WORLD):
        for name, (build, plan) in WHOLE.items():
            found[name] = _compared(LayerSpec(name, build, parallel_plan=plan), Lane(TEAM, number))
    torch.save(found, f"{folder}/lane{number}.pt")
    dist.destroy_process_group()


def _compared(spec: LayerSpec, lane: Lane) -> Compared:
    """(one device's, the lane's) output and gradients; what is cut, cut alike."""
    alone, mine = (_run(spec, of) for of in (None, lane))
    shards = shards_of(build_layer(spec, 0, 0, lane=lane))
    assert shards
    return {
        name: (shards[name].part(value, lane) if name in shards else value, mine[name]) for name, value in alone.items()
    }


def _run(spec: LayerSpec, lane: Lane | None) -> dict[str, Tensor]:
    layer = build_layer(spec, 0, 0, torch.float64, lane)
    torch.manual_seed(1)
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    output = layer(x)
    output.backward(torch.randn(output.shape, dtype=output.dtype))
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return {"output": output.detach(), "input": x.grad, **gradients}
