"""The in-process transport: ranks are threads of one process. For a single device, embedding and tests."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..basics import Aborted
from .seat import Seat
from .transport import BACKSTOP_S, Handle, Transport, part_of

_Key = tuple[int, int, int]


class Hub:
    """What the threads of one run share. `groups`: ranks per group name."""

    def __init__(self, world_size: int, groups: Mapping[str, Sequence[int]], timeout_s: float = BACKSTOP_S) -> None:
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.groups = {name: tuple(ranks) for name, ranks in groups.items()}
        self._changed = threading.Condition()
        self._aborted = False
        self._sends: dict[_Key, deque[_Transfer]] = defaultdict(deque)
        self._receives: dict[_Key, deque[_Transfer]] = defaultdict(deque)
        self._collectives: dict[tuple[str, int], _Collective] = {}

    def transport(self, rank: int) -> ThreadTransport:
        """The end of thread `rank`."""
        return ThreadTransport(self, rank)

    def abort(self) -> None:
        """Makes every wait, present and future, raise Aborted."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Blocks until `ready`; raises Aborted, or TimeoutError after `timeout_s`."""
        deadline = time.monotonic() + self.timeout_s
        with self._changed:
            while not ready():
                if self._aborted:
                    raise Aborted("another rank failed")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"nothing arrived for {self.timeout_s:g} s")

    def post(self, key: _Key, tensor: Tensor, sending: bool) -> Handle:
        """Posts one side of a transfer; the side that comes second copies."""
        mine = _Transfer(self, tensor)
        with self._changed:
            others = (self._receives if sending else self._sends)[key]
            if not others:
                (self._sends if sending else self._receives)[key].append(mine)
                return mine
            other = others.popleft()
        source, target = (mine, other) if sending else (other, mine)
        target.take(source)
        with self._changed:
            mine.finished = other.finished = True
            self._changed.notify_all()
        return mine

    def join(self, group: str, turn: int, rank: int, value: Any, combine: Callable[[list[Any]], Any]) -> _Collective:
        """Adds a value to collective `turn` of a group; the last runs `combine` on all, in rank order."""
        with self._changed:
            collective = self._collectives.setdefault((group, turn), _Collective(self))
            collective.values[rank] = value
            if len(collective.values) < len(self.groups[group]):
                return collective
            del self._collectives[group, turn]
        collective.result = combine([collective.values[r] for r in sorted(collective.values)])
        with self._changed:
            collective.values.clear()
            collective.finished = True
            self._changed.notify_all()
        return collective


class _Transfer:
    def __init__(self, hub: Hub, tensor: Tensor) -> None:
        self._hub = hub
        self._tensor: Tensor | None = tensor
        self.finished = False

    def take(self, source: _Transfer) -> None:
        """Copies from `source` and forgets both tensors."""
        if self._tensor is not None and source._tensor is not None:
            with _disable_current_modes():  # this thread's storage tracker must not see the other's tensor
                self._tensor.copy_(source._tensor)
        self._tensor = source._tensor = None

    def wait(self) -> None:
        self._hub.wait(lambda: self.finished)

    def done(self) -> bool:
        return self.finished


class _Collective:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.values: dict[int, Any] = {}
        self.result: Any = None
        self.finished = False

    def wait(self) -> None:
        self._hub.wait(lambda: self.finished)

    def done(self) -> bool:
        return self.finished


class ThreadTransport:
    """One thread's end of a `Hub` (see `Transport`)."""

    queues, pauses = False, False

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank, self.seat = rank, Seat(rank)
        self.world_size = hub.world_size
        self._hub = hub
        self._turns: dict[str, int] = defaultdict(int)

    @property
    def host(self) -> Transport:
        return self

    def post_send(self, tensor: Tensor, peer: int, tag: int) -> Handle:
        return self._hub.post((self.rank, peer, tag), tensor, sending=True)

    def post_receive(self, buffer: Tensor, peer: int, tag: int) -> Handle:
        return self._hub.post((peer, self.rank, tag), buffer, sending=False)

    def all_reduce(self, tensor: Tensor, group: str) -> Handle:
        return self._join(group, tensor, _sum_in_place)

    def reduce_scatter(self, tensor: Tensor, group: str) -> Handle:
        return self.all_reduce(tensor, group)

    def all_gather(self, tensor: Tensor, group: str) -> Handle:
        return self._join(group, tensor, _gather_in_place)

    def all_gather_object(self, value: Any) -> list[Any]:
        collective = self._join("all", value, list)
        collective.wait()
        gathered: list[Any] = collective.result
        return gathered

    @property
    def team(self) -> None:
        return None

    def gather_team(self, value: Any) -> list[Any]:
        return [value]

    def gather_parts(self, tensor: Tensor, rank: int) -> list[Tensor] | None:
        return [tensor]

    def barrier(self) -> None:
        self.all_gather_object(None)

    def close(self) -> None:
        pass

    def _join(self, group: str, value: Any, combine: Callable[[list[Any]], Any]) -> _Collective:
        turn = self._turns[group]
        self._turns[group] += 1
        return self._hub.join(group, turn, self.rank, value, combine)


def _sum_in_place(tensors: list[Tensor]) -> None:
    """Sums in rank order, without a temporary, and gives everyone the sum."""
    first, *others = tensors
    with _disable_current_modes():
        for other in others:
            first.add_(other)
        for other in others:
            other.copy_(first)


def _gather_in_place(tensors: list[Tensor]) -> None:
    """Gives everyone the parts of all, each as its own rank has it."""
    with _disable_current_modes():
        for number, source in enumerate(tensors):
            for target in tensors:
                if target is not source:
                    part_of(target, number, len(tensors)).copy_(part_of(source, number, len(tensors)))
