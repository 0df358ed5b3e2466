"""A plain training loop of torch on a GPU: what one device of ours is held against."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from contraflow.executor.state.validate import find_data
from contraflow.models import Dataset, LayeredModel, build_layer

WARMUPS = 2


@dataclass(frozen=True)
class PlainLoop:
    """As a user of torch writes it: fused Adam, where `half` under autocast to bfloat16, the loss read once a step.

    Data are drawn within the step, as ours are.
    """

    model: LayeredModel
    samples: int
    micro_batches: int
    half: bool
    compiled: bool
    device: str

    def step_s(self, steps: int) -> float:
        """The median seconds of a step, the first ones left out."""
        layers = (build_layer(spec, 0, index, torch.float32) for index, spec in enumerate(self.model.layers))
        whole = nn.Sequential(*layers).to(self.device)
        forward = torch.compile(whole) if self.compiled else whole
        optimizer = torch.optim.Adam(whole.parameters(), fused=True)
        data = find_data(self.model, None)
        return median([self._timed(forward, optimizer, data, step) for step in range(steps + WARMUPS)][WARMUPS:])

    def _timed(self, forward: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset, step: int) -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for m in range(self.micro_batches):
            x, y = (tensor.to(self.device) for tensor in data.batch(0, step, m, self.samples))
            loss = self._loss(forward, x, y)
            (loss / self.micro_batches).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        optimizer.step()
        total.item()  # waits for the device
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def _loss(self, forward: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            return self.model.loss(forward(x).float(), y)
