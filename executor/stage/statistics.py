"""BatchNorm statistics of a stage whose micro-batches do not run in order on one device, as one process has them.

One process applies running = (1 - momentum) * running + momentum * statistic per micro-batch, in order. So an F runs
on zeroed running statistics, a row, which leaves momentum * statistic in them. Replicas exchange all rows after the
last micro-batch, and everybody applies them in micro-batch order; a device that runs all forwards applies a row as
soon as it is its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..basics import ExecutionError


@dataclass(frozen=True)
class _Running:
    """One running statistic: its buffer's name, its place in a row, BatchNorm's momentum (None: average)."""

    name: str
    start: int
    size: int
    momentum: float | None


class StandIns(dict[str, Tensor]):
    """What one forward runs on in place of the `live` buffers, by the same names; it may be gone before the backward.

    Nothing that a backward reads is in it: BatchNorm keeps its running statistics for that, but does not look at them.
    """

    def __init__(self, values: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
        super().__init__(values)
        self.live = live


class Statistics:
    """The running statistics of a stage's BatchNorm layers, as rows: one for every micro-batch that is not in them yet.

    Args:
        modules: the stage's layers by layer id.
        buffers: the replica's live buffers by "<layer id>.<name>".
        layer_names: for errors.

    Attributes:
        rows: what replicas sum, if anything.
    """

    rows: Tensor | None = None

    def __init__(
        self, modules: Mapping[int, nn.Module], buffers: Mapping[str, Tensor], layer_names: tuple[str, ...]
    ) -> None:
        self._buffers = buffers
        self._layer_names = layer_names
        self._running: list[_Running] = []
        self._counters: list[str] = []
        self._width = 0
        for name, module in _batch_norms(modules):
            self._counters.append(f"{name}num_batches_tracked")
            for statistic in ("running_mean", "running_var"):
                size = buffers[name + statistic].numel()
                self._running.append(_Running(name + statistic, self._width, size, module.momentum))
                self._width += size
        self._versions: dict[str, int] | None = None

    def _counts(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(self._buffers[name]) for name in self._counters}

    def reset(self) -> None:
        """At the start of a step."""

    def for_forward(self, micro_batch: int) -> Mapping[str, Tensor]:
        """The buffers F of this micro-batch runs on."""
        raise NotImplementedError

    def forwarded(self, micro_batch: int) -> None:
        """After its F. Raises ExecutionError when it changed a buffer that has no rule for replicas."""
        raise NotImplementedError

    def apply(self) -> None:
        """After the exchange."""

    def _on(self, row: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The live buffers, but a zeroed row in place of the running statistics; what must not change is noted."""
        if self._versions is None:
            self._versions = {name: tensor._version for name, tensor in self._buffers.items()}
        return {**self._buffers, **row, **counts}

    def _check_untouched(self) -> None:
        for name, version in (self._versions or {}).items():
            if self._buffers[name]._version != version:
                layer_id, _, rest = name.partition(".")
                raise ExecutionError(
                    f"layer {self._layer_names[int(layer_id)]!r} changes its buffer {rest!r} in forward; in "
                    "a stage with replicas only BatchNorm's running statistics may change"
                )
        self._versions = None

    def _apply(self, rows: Iterable[Mapping[str, Tensor]]) -> None:
        """Applies rows of micro-batches that follow one another to the live buffers."""
        for row in rows:
            for r in self._running:
                running, alpha, kept = self._buffers[r.name].view(-1), 1.0, 1 - (r.momentum or 0.0)
                if r.momentum is None:
                    alpha = 1 / (int(self._buffers[r.name.rpartition(".")[0] + ".num_batches_tracked"]) + 1)
                    kept = 1 - alpha
                running.mul_(kept).add_(row[r.name].view(-1), alpha=alpha)
            for name in self._counters:
                self._buffers[name].add_(1)


class StatisticsExchange(Statistics):
    """Of a stage whose forwards run on several devices: they exchange the rows of all micro-batches of the step.

    `micro_batches`: of a step, over all pipelines.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        buffers: Mapping[str, Tensor],
        micro_batches: int,
        layer_names: tuple[str, ...],
    ) -> None:
        super().__init__(modules, buffers, layer_names)
        like = buffers[self._running[0].name] if self._running else torch.empty(0)
        self.rows = torch.zeros(micro_batches, self._width, dtype=like.dtype, device=like.device)
        self._scratch = self._counts()
        self._by_name = [self._named(row) for row in self.rows]

    def reset(self) -> None:
        """Forgets the rows."""
        assert self.rows is not None
        self.rows.zero_()

    def for_forward(self, micro_batch: int) -> Mapping[str, Tensor]:
        """Its own row in place of the running statistics."""
        if self._scratch:
            torch._foreach_zero_(list(self._scratch.values()))
        return self._on(self._by_name[micro_batch], self._scratch)

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        """A row by the names of the buffers that it stands for."""
        return {r.name: row[r.start : r.start + r.size].view(self._buffers[r.name].shape) for r in self._running}

    def forwarded(self, micro_batch: int) -> None:
        self._check_untouched()

    def apply(self) -> None:
        """Applies all rows, in micro-batch order, to the live buffers; after the exchange."""
        assert self.rows is not None
        live = [self._buffers[r.name].view(-1) for r in self._running]
        momentum = self._running[0].momentum if self._running else None
        alike = all(r.momentum == momentum for r in self._running)
        if momentum is None or not alike or any(buffer.dtype != self.rows.dtype for buffer in live):
            self._apply(self._by_name)
            return
        together = torch.cat(live)
        for row in self.rows:
            together.mul_(1 - momentum).add_(row)
        torch._foreach_copy_(live, torch.split(together, [r.size for r in self._running]))
        torch._foreach_add_([self._buffers[name] for name in self._counters], len(self.rows))


class StatisticsQueue(Statistics):
    """Of a stage whose forwards all run here, but in another order than the micro-batches'.

    One that comes too early runs on a row of its own, which is kept until all before it have run.
    """

    def __init__(
        self, modules: Mapping[int, nn.Module], buffers: Mapping[str, Tensor], layer_names: tuple[str, ...]
    ) -> None:
        super().__init__(modules, buffers, layer_names)
        self.reset()

    def reset(self) -> None:
        """Nothing has run."""
        self._next = 0
        self._early: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def for_forward(self, micro_batch: int) -> Mapping[str, Tensor]:
        """The live buffers if it is the micro-batch's turn, else a row."""
        if micro_batch == self._next:
            return self._buffers
        row, counts = {r.name: torch.zeros_like(self._buffers[r.name]) for r in self._running}, self._counts()
        self._early[micro_batch] = row, counts
        return StandIns(self._on(row, counts), self._buffers)

    def forwarded(self, micro_batch: int) -> None:
        self._check_untouched()
        if micro_batch != self._next:
            return
        self._next += 1
        while self._next in self._early:
            row, _ = self._early.pop(self._next)
            self._apply([row])
            self._next += 1


def _batch_norms(modules: Mapping[int, nn.Module]) -> list[tuple[str, _BatchNorm]]:
    """BatchNorm modules that track statistics, each with the prefix of its buffers' names, in the order of these."""
    found = [
        (f"{layer_id}.{path}." if path else f"{layer_id}.", module)
        for layer_id, layer in modules.items()
        for path, module in layer.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
    return sorted(found, key=lambda item: (int(item[0].partition(".")[0]), item[0]))
