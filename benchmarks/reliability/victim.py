"""A small model whose run fails where its environment says: what `faults.py` trains.

VICTIM: the rank that fails. FAULT: how ("raise", "exit", or the name of a signal). WHERE: "import" (of this file),
"build" (of a layer), "forward", "loss" or "data". AT: at which call there. MARK: a file that gets the moment of the
fault; where it is there already, as after a restart, nothing fails any more.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.process import current_process, parent_process
from pathlib import Path

import torch
from torch import Tensor, nn

from contraflow.models.loss import cross_entropy
from contraflow.models.protocol import LayeredModel, LayerSpec

WIDTH, CLASSES = 16, 4
LAYERS = 6
_calls: dict[str, int] = {}


def my_rank() -> str | None:
    """The rank of this process; None in the parent of ranks. With threads, which are no processes, rank 0's is all."""
    if "RANK" in os.environ:
        return os.environ["RANK"]
    if os.environ.get("THREADS"):
        return os.environ.get("VICTIM")
    name = current_process().name
    return name.removeprefix("rank ") if parent_process() is not None and name.startswith("rank ") else None


def perhaps(where: str) -> None:
    """Fails if this is the place and the time."""
    if os.environ.get("WHERE") != where or os.environ.get("VICTIM") != my_rank():
        return
    _calls[where] = _calls.get(where, 0) + 1
    mark = Path(os.environ["MARK"])
    if _calls[where] != int(os.environ.get("AT", "1")) or mark.exists():
        return
    mark.write_text(repr(time.time()))
    how = os.environ["FAULT"]
    if how == "raise":
        raise ValueError("out of luck\nsecond line")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.Signals[how])


perhaps("import")


@torch.library.custom_op("contraflow_faults::forward", mutates_args=())
def _forward(x: Tensor) -> Tensor:
    perhaps("forward")
    return x.clone()


@torch.library.custom_op("contraflow_faults::loss", mutates_args=())
def _loss(x: Tensor) -> Tensor:
    perhaps("loss")
    return x.clone()


for _op in (_forward, _loss):
    _op.register_fake(torch.empty_like)
    _op.register_autograd(lambda _, gradient: gradient)


class Block(nn.Module):
    """A linear layer after the identity that fails."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        perhaps("build")
        self.linear = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, WIDTH) -> (batch, outputs)."""
        found: Tensor = self.linear(_forward(x))
        return found


class Numbers:
    """Random inputs and targets."""

    name = "numbers"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """Inputs of WIDTH, and classes."""
        perhaps("data")
        generator = torch.Generator().manual_seed(hash((seed, step, micro_batch)) % 2**32)
        x = torch.randn(size, WIDTH, generator=generator)
        short = size - 1 if os.environ.get("SHORT") == str(step) else size
        return x[:short], torch.randint(0, CLASSES, (short,), generator=generator)


def loss(x: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy."""
    return cross_entropy(_loss(x), target)


def names() -> list[str]:
    """Of the layers."""
    return [f"block {k}" for k in range(LAYERS)]


def model() -> LayeredModel:
    """A chain of equal layers."""
    layers = [LayerSpec(name, lambda: Block(WIDTH)) for name in names()[:-1]]
    return LayeredModel("victim:model", (*layers, LayerSpec(names()[-1], lambda: Block(CLASSES))), loss, Numbers())
