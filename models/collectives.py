"""What the ranks of a team tell each other inside a layer: collectives, each the backward of another or of itself.

They are operators of their own, so that a stage's graph holds them, fake tensors have their shapes, and B, I and W
run them where the gradients are made. A process is a member of at most one team.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .lanes import Lane


class _Membership(NamedTuple):
    group: Any
    waiting: Callable[[], AbstractContextManager[object]]


_MEMBERSHIPS: list[_Membership] = []


@contextmanager
def member_of(group: Any, waiting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """While it lasts, this process's collectives are those of a process group, in whose order the lanes are.

    `waiting`: makes what each of them runs in.
    """
    _MEMBERSHIPS.append(_Membership(group, waiting))
    try:
        yield
    finally:
        _MEMBERSHIPS.pop()


@contextmanager
def _team() -> Iterator[Any]:
    if not _MEMBERSHIPS:
        raise RuntimeError("a layer of a team runs in a process that is in no team")
    with _MEMBERSHIPS[-1].waiting():
        yield _MEMBERSHIPS[-1].group


def _at(tensor: Tensor, group: Any) -> Tensor:
    """Where the group takes it: gloo sums on a GPU, but neither gathers nor scatters there."""
    return tensor.cpu() if tensor.is_cuda and dist.get_backend(group) == "gloo" else tensor.contiguous()


_PATIENCE_S = 0.25


@contextmanager
def _lent(*tensors: Tensor) -> Iterator[None]:
    """Ends when whoever was given these tensors meanwhile holds them no more, or soon.

    gloo says that a collective has ended before its thread lets go of what it moved: under load, often an op later.
    """
    storages = [tensor.untyped_storage() for tensor in tensors]
    before = [_references(storage) for storage in storages]
    yield
    until = time.monotonic() + _PATIENCE_S
    while any(_references(s) > n for s, n in zip(storages, before, strict=True)) and time.monotonic() < until:
        time.sleep(0)


def _references(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


@torch.library.custom_op("contraflow::team_sum", mutates_args=())
def team_sum(x: Tensor) -> Tensor:
    """The sum of the lanes' tensors, on every lane."""
    total = x.clone(memory_format=torch.contiguous_format)
    with _team() as group, _lent(total):
        dist.all_reduce(total, group=group)
    return total


@torch.library.custom_op("contraflow::team_gather", mutates_args=())
def team_gather(x: Tensor, size: int) -> Tensor:
    """The tensors of all `size` lanes one behind the other, in a new first dimension."""
    with _team() as group:
        source = _at(x, group)
        gathered = torch.empty((size, *x.shape), dtype=x.dtype, device=source.device)
        with _lent(source, gathered):
            dist.all_gather(list(gathered.unbind(0)), source, group=group)
    return gathered.to(x.device)


@torch.library.custom_op("contraflow::team_scatter", mutates_args=())
def team_scatter(x: Tensor) -> Tensor:
    """Of the sum of the lanes' tensors, this lane's entry of the first dimension."""
    with _team() as group:
        source = _at(x, group)
        mine = torch.empty(x.shape[1:], dtype=x.dtype, device=source.device)
        with _lent(source, mine):
            dist.reduce_scatter(mine, list(source.unbind(0)), group=group)
    return mine.to(x.device)


@torch.library.custom_op("contraflow::team_exchange", mutates_args=())
def team_exchange(x: Tensor) -> Tensor:
    """An all-to-all: entry k of the first dimension is what lane k has there for this lane."""
    with _team() as group:
        source = _at(x, group)
        got = torch.empty_like(source)
        with _lent(source, got):
            dist.all_to_all_single(got, source, group=group)
    return got.to(x.device)


@team_sum.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@team_exchange.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@team_gather.register_fake
def _(x: Tensor, size: int) -> Tensor:
    return x.new_empty((size, *x.shape))


@team_scatter.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1:])


def _joined(x: Tensor, dim: int, lane: Lane) -> Tensor:
    """The lanes' parts along a dimension as one tensor."""
    gathered: Tensor = team_gather(x, lane.size)
    return gathered.movedim(0, dim).flatten(dim, dim + 1)


def _summed_part(x: Tensor, dim: int, lane: Lane) -> Tensor:
    """This lane's part along a dimension of the lanes' sum."""
    part: Tensor = team_scatter(
        x.reshape(*x.shape[:dim], lane.size, -1, *x.shape[dim + 1 :]).movedim(dim, 0).contiguous()
    )
    return part


def _own_part(x: Tensor, dim: int, lane: Lane) -> Tensor:
    size = x.shape[dim] // lane.size
    return x.narrow(dim, lane.number * size, size).clone(memory_format=torch.contiguous_format)


class _Copied(torch.autograd.Function):
    """What every lane has, on its way into parts of which each lane computes its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total: Tensor = team_sum(grads[0])
        return total


class _Summed(torch.autograd.Function):
    """Each lane's part of a sum, on its way to what every lane has."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total: Tensor = team_sum(x)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Exchanged(torch.autograd.Function):
    """What lanes have for each other, on its way there: its gradients go back."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        got: Tensor = team_exchange(x)
        return got

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        got: Tensor = team_exchange(grads[0].contiguous())
        return got


class _Along(torch.autograd.Function):
    """What the collectives along a dimension share: (x, dim, lane), of which only x has a gradient."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Remembers dimension and lane."""
        ctx.along = inputs[1:]


class _GatheredForParts(_Along):
    """Sequence shards, on their way into parts: the gradients that come back are summed and cut again."""

    @staticmethod
    def forward(x: Tensor, dim: int, lane: Lane) -> Tensor:
        return _joined(x, dim, lane)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _summed_part(grads[0], *ctx.along), None, None


class _GatheredForAll(_Along):
    """Parts, on their way to what all lanes compute alike: each takes its own part of the gradient, which all have."""

    @staticmethod
    def forward(x: Tensor, dim: int, lane: Lane) -> Tensor:
        return _joined(x, dim, lane)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _own_part(grads[0], *ctx.along), None, None


class _Scattered(_Along):
    """Each lane's part of a sum, on its way to shards of it."""

    @staticmethod
    def forward(x: Tensor, dim: int, lane: Lane) -> Tensor:
        return _summed_part(x, dim, lane)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _joined(grads[0].contiguous(), *ctx.along), None, None


def copied(x: Tensor) -> Tensor:
    """x, which all lanes have alike, for a computation of which each lane does its part: gradients are summed."""
    y: Tensor = _Copied.apply(x)  # type: ignore[no-untyped-call]
    return y


def summed(x: Tensor) -> Tensor:
    """The sum of the lanes' x, for a computation that all do alike."""
    y: Tensor = _Summed.apply(x)  # type: ignore[no-untyped-call]
    return y


def exchanged(x: Tensor) -> Tensor:
    """Entry k of the first dimension is what lane k has there for this lane."""
    y: Tensor = _Exchanged.apply(x)  # type: ignore[no-untyped-call]
    return y


def gathered_for_parts(x: Tensor, dim: int, lane: Lane) -> Tensor:
    """The lanes' shards as one tensor, for a computation of which each lane does its part."""
    y: Tensor = _GatheredForParts.apply(x, dim, lane)  # type: ignore[no-untyped-call]
    return y


def gathered_for_all(x: Tensor, dim: int, lane: Lane) -> Tensor:
    """The lanes' parts as one tensor, for a computation that all do alike."""
    y: Tensor = _GatheredForAll.apply(x, dim, lane)  # type: ignore[no-untyped-call]
    return y


def scattered(x: Tensor, dim: int, lane: Lane) -> Tensor:
    """This lane's shard of the sum of the lanes' x."""
    y: Tensor = _Scattered.apply(x, dim, lane)  # type: ignore[no-untyped-call]
    return y


class _Divided(_Along):
    """What every lane has, on its way to parts along a dimension: the parts' gradients are joined."""

    @staticmethod
    def forward(x: Tensor, dim: int, lane: Lane) -> Tensor:
        return _own_part(x, dim, lane)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _joined(grads[0].contiguous(), *ctx.along), None, None


class _HadByAll(torch.autograd.Function):
    """(x, what has been gathered of it, dim, lane): the latter, for a computation that all do alike."""

    @staticmethod
    def forward(x: Tensor, gathered: Tensor, dim: int, lane: Lane) -> Tensor:
        return gathered.view_as(gathered)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Remembers dimension and lane."""
        ctx.along = inputs[2:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _own_part(grads[0], *ctx.along), None, None, None


def divided(x: Tensor, dim: int, lane: Lane) -> Tensor:
    """This lane's part along a dimension of what all lanes have."""
    y: Tensor = _Divided.apply(x, dim, lane)  # type: ignore[no-untyped-call]
    return y


def gathered_for_both(x: Tensor, dim: int, lane: Lane) -> tuple[Tensor, Tensor]:
    """The lanes' parts as one tensor, gathered once: (as `gathered_for_all`, as `gathered_for_parts`)."""
    parts = gathered_for_parts(x, dim, lane)
    everybodys: Tensor = _HadByAll.apply(x, parts.detach(), dim, lane)  # type: ignore[no-untyped-call]
    return everybodys, parts
