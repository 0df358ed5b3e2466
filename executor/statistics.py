"""BatchNorm statistics of a stage whose micro-batches are spread over replicas, as one process has them.

One process applies running = (1 - momentum) * running + momentum * statistic per micro-batch, in order. So
every F here runs on zeroed running statistics, which leaves momentum * statistic in them; after the last
micro-batch the replicas exchange what they have and everybody applies it in micro-batch order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .errors import ExecutionError


@dataclass(frozen=True)
class _Running:
    """One running statistic: its buffer's name, its place in a row, BatchNorm's momentum (None: average)."""

    name: str
    start: int
    size: int
    momentum: float | None


class StatisticsExchange:
    """The running statistics of a stage's BatchNorm layers, one row per micro-batch of the step.

    Args:
        modules: the stage's layers by layer id.
        buffers: the replica's live buffers by "<layer id>.<name>".
        micro_batches: micro-batches a step, over all pipelines.
        layer_names: for errors.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        buffers: Mapping[str, Tensor],
        micro_batches: int,
        layer_names: tuple[str, ...],
    ) -> None:
        self._buffers = buffers
        self._layer_names = layer_names
        self._running: list[_Running] = []
        self._counters: list[str] = []
        width = 0
        for name, module in _batch_norms(modules):
            self._counters.append(f"{name}num_batches_tracked")
            for statistic in ("running_mean", "running_var"):
                size = buffers[name + statistic].numel()
                self._running.append(_Running(name + statistic, width, size, module.momentum))
                width += size
        like = buffers[self._running[0].name] if self._running else torch.empty(0)
        self.rows = torch.zeros(micro_batches, width, dtype=like.dtype, device=like.device)
        self._scratch = {name: buffers[name].clone() for name in self._counters}
        self._versions: dict[str, int] | None = None

    def reset(self) -> None:
        """Forgets the rows; at the start of a step."""
        self.rows.zero_()

    def for_forward(self, micro_batch: int) -> dict[str, Tensor]:
        """The buffers F of this micro-batch runs on: its own row in place of the running statistics."""
        row = self.rows[micro_batch]
        values = dict(self._buffers)
        for r in self._running:
            values[r.name] = row[r.start : r.start + r.size].view(self._buffers[r.name].shape)
        for name, counter in self._scratch.items():
            values[name] = counter.zero_()
        if self._versions is None:
            self._versions = {name: tensor._version for name, tensor in self._buffers.items()}
        return values

    def check_untouched(self) -> None:
        """Raises ExecutionError when a forward changed a buffer that has no rule for replicas."""
        for name, version in (self._versions or {}).items():
            if self._buffers[name]._version != version:
                layer_id, _, rest = name.partition(".")
                raise ExecutionError(
                    f"layer {self._layer_names[int(layer_id)]!r} changes its buffer {rest!r} in forward; in "
                    "a stage with replicas only BatchNorm's running statistics may change"
                )
        self._versions = None

    def apply(self) -> None:
        """Applies all rows, in micro-batch order, to the live buffers; after the exchange."""
        for r in self._running:
            running = self._buffers[r.name].view(-1)
            seen = int(self._buffers[r.name.rpartition(".")[0] + ".num_batches_tracked"])
            for row in self.rows[:, r.start : r.start + r.size]:
                seen += 1
                kept = 1 - (1 / seen if r.momentum is None else r.momentum)
                running.mul_(kept).add_(row, alpha=1 / seen if r.momentum is None else 1.0)
        for name in self._counters:
            self._buffers[name].add_(len(self.rows))


def _batch_norms(modules: Mapping[int, nn.Module]) -> list[tuple[str, _BatchNorm]]:
    """BatchNorm modules that track statistics, each with the prefix of its buffers' names."""
    return [
        (f"{layer_id}.{path}." if path else f"{layer_id}.", module)
        for layer_id, layer in modules.items()
        for path, module in layer.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
