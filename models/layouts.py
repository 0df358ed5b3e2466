"""How tensors lie on the lanes of a team while a layer runs, and what brings them from one layout to another.

Layouts are torch's placements: all of it on every lane (Replicate), a part of a dimension on each (Shard), or a term of
the sum on each (Partial).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from .collectives import copied, divided, gathered_for_all, gathered_for_both, gathered_for_parts, scattered, summed
from .lanes import Lane, NoParallelForm
from .parallel import require_multiple


def layout_named(layout: Placement) -> Placement:
    """The layout, if it is one that modules may take and give. Raises NoParallelForm."""
    if type(layout) not in (Replicate, Shard):
        raise NoParallelForm(f"a layout {layout} is not executed")
    return layout


def moved(x: Tensor, source: Placement, target: Placement, lane: Lane) -> Tensor:
    """x in another layout, for a computation in that layout: what is replicated, all lanes compute alike.

    Raises NoParallelForm: the team does not divide the dimension.
    """
    if isinstance(source, Partial):
        return _added(x, source, target, lane)
    have, want = _dim(source, x), _dim(target, x)
    if have == want:
        return x
    if have is not None:
        x = gathered_for_all(x, have, lane)
    if want is not None:
        _require_divisible(x, want, lane)
        x = divided(x, want, lane)
    return x


def _added(x: Tensor, source: Partial, target: Placement, lane: Lane) -> Tensor:
    if source.reduce_op != "sum":
        raise NoParallelForm(f"a layout {source} is not executed")
    dim = _dim(target, x)
    if dim is None:
        return summed(x)
    _require_divisible(x, dim, lane)
    return scattered(x, dim, lane)


def _dim(layout: Placement, x: Tensor) -> int | None:
    """The dimension that is cut; None: none is. Raises NoParallelForm."""
    if type(layout) is Replicate:
        return None
    if type(layout) is not Shard:
        raise NoParallelForm(f"a layout {layout} is not executed")
    if not -x.dim() <= layout.dim < x.dim():
        raise NoParallelForm(f"a tensor of shape {tuple(x.shape)} has no dimension {layout.dim} to be cut along")
    return layout.dim % x.dim()


def _require_divisible(x: Tensor, dim: int, lane: Lane) -> None:
    require_multiple(x.shape[dim], f"entries of dimension {dim}", lane)


_CURRENT: ContextVar[Flow | None] = ContextVar("flow", default=None)


class Flow:
    """What is known of the tensors of one pass through a layer.

    Where a style gives a DTensor, torch knows its layout at the next style, whatever is stated there: `noted`. What
    several modules take for parts of one computation is brought there once, so its gradients are summed once.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[Tensor, Placement]] = {}
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    @contextmanager
    def current(cls) -> Iterator[Flow]:
        """That of the pass that runs, or a new one."""
        flow = _CURRENT.get()
        if flow is not None:
            yield flow
            return
        token = _CURRENT.set(cls())
        try:
            yield _CURRENT.get() or cls()
        finally:
            _CURRENT.reset(token)

    def noted(self, x: Tensor, layout: Placement) -> Tensor:
        """x, whose layout is known from now on."""
        self._layouts[id(x)] = x, layout
        return x

    def layout_of(self, x: Tensor, stated: Placement) -> Placement:
        """What is known of it, or else what is stated."""
        known = self._layouts.get(id(x))
        return stated if known is None else known[1]

    def moved(self, x: Tensor, stated: Placement, target: Placement, lane: Lane) -> Tensor:
        """x in another layout; see `moved`."""
        return moved(x, self.layout_of(x, stated), target, lane)

    def for_parts(self, x: Tensor, stated: Placement, lane: Lane) -> Tensor:
        """All of x, for a computation of which each lane does its part: gradients are summed."""
        found = self._parts.get(id(x))
        if found is None:
            dim = _dim(self.layout_of(x, stated), x)
            found = self._parts[id(x)] = x, copied(x) if dim is None else gathered_for_parts(x, dim, lane)
        return found[1]

    @staticmethod
    def summed(x: Tensor, target: Placement, lane: Lane) -> Tensor:
        """The sum of the lanes' x in a layout."""
        return moved(x, Partial(), target, lane)

    def prepared(self, x: Any, stated: Placement | None, target: Placement | None, lane: Lane, *, known: bool) -> Any:
        """x in another layout, which is noted where it is `known`; as it is without a stated layout.

        What is gathered here is so for computations of either kind.
        """
        if stated is None or not isinstance(x, Tensor):
            return x
        source = self.layout_of(x, stated)
        wanted = source if target is None else target
        if type(source) is Shard and type(wanted) is Replicate:
            y, parts = gathered_for_both(x, source.dim % x.dim(), lane)
            self._parts[id(y)] = y, parts
        else:
            y = moved(x, source, wanted, lane)
        return self.noted(y, wanted) if known else y
