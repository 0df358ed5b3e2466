"""What leaves a device by each stash policy, and how it is put together again: one handler a policy.

A policy of your own needs a row in the planner's table (`planner.graph.register`) and, if something of it goes to the
host, a handler here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from ...planner.basics import shown
from ...planner.graph import OFFLOAD, OFFLOAD_WEIGHTS
from ..basics import RunError
from ..stage import Stash, StashLayout

Key = tuple[int, int]
"""(stage, micro-batch)."""


class Alive(Protocol):
    """What a rank holds within a step: stashes, and inputs that stashes are made from again."""

    stashes: dict[Key, Stash]
    inputs: dict[Key, list[Tensor]]


class Packed(Protocol):
    """What stays of something that was taken apart."""

    def unpack(self, pieces: list[Tensor]) -> Any:
        """Puts it together again, for the op that needs it."""


Leaving = Callable[[Alive, Key, StashLayout], tuple[list[Tensor], Packed]]
"""Takes what leaves from what is alive: its pieces, which go one by one, and what stays of it."""


def _stash(alive: Alive, key: Key, layout: StashLayout) -> tuple[list[Tensor], Packed]:
    return layout.pack(alive.stashes.pop(key))


_HANDLERS: dict[str, Leaving] = {OFFLOAD: _stash, OFFLOAD_WEIGHTS: _stash}


def leaving(policy: str) -> Leaving:
    """The handler of a policy by which something goes to the host. Raises RunError where there is none."""
    if policy not in _HANDLERS:
        raise RunError(f"stash policy {shown(policy)} is not executed: nothing says what of it goes to the host")
    return _HANDLERS[policy]


def register_leaving(policy: str, handler: Leaving) -> None:
    """Says how what leaves by a policy of your own is taken apart. Raises RunError where that is said already."""
    if policy in _HANDLERS:
        raise RunError(f"there is a handler of stash policy {shown(policy)} already")
    _HANDLERS[policy] = handler
