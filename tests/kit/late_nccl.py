"""NCCL between threads, as late as it may be: the executor's own `NcclTransport` on a `torch.distributed` of ours.

Every communicator has a stream a rank, and runs what is posted there in order, without tags: the k-th send of an
ordered pair meets the k-th receive, a group's k-th collectives meet. Nothing runs before somebody waits for it, and
what is posted holds no tensor. So messages listed in another order at the two ends, a missing wait, or memory that is
let go of too early leave wrong shapes, wrong numbers, or an error behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from late import LateMark, LatePlace, _here, _Memory, queued_so_far
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from contraflow.executor.place.place import Place
from contraflow.executor.wires import choice, nccl
from contraflow.executor.wires.threads import Hub, ThreadTransport
from contraflow.executor.wires.transport import Transport, part_of
from contraflow.planner.plan import Plan


@dataclass
class _Posted:
    """One end of a message or collective: its memory, and what its stream ran before."""

    memory: _Memory
    after: LateMark | None
    form: str


@dataclass
class _Communicator:
    """What its ranks have posted, in order; `ran`: so many of them have met and run."""

    ranks: tuple[int, ...]
    run: Callable[[list[Tensor], str], None]
    hub: Hub
    ends: dict[int, list[_Posted]] = field(default_factory=dict)
    ran: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def post(self, rank: int, tensor: Tensor, form: str) -> _Work:
        with self.hub._changed:
            mine = self.ends.setdefault(rank, [])
            mine.append(_Posted(_Memory.of(tensor), queued_so_far(), form))
            self.hub._changed.notify_all()
            return _Work(self, len(mine))

    def reach(self, number: int) -> None:
        """Runs all up to this one, when all of its ends have been posted."""
        self.hub.wait(lambda: all(len(self.ends.get(rank, ())) >= number for rank in self.ranks))
        with self.lock, _disable_current_modes():
            while self.ran < number:
                ends = [self.ends[rank][self.ran] for rank in self.ranks]
                self.ran += 1
                for end in ends:
                    if end.after is not None:
                        end.after.block()
                forms = {end.form for end in ends}
                assert len(forms) == 1, f"ranks {self.ranks}: transfer {self.ran - 1} is {' and '.join(sorted(forms))}"
                self.run([end.memory.tensor() for end in ends], forms.pop())


@dataclass(frozen=True)
class _Work:
    """Like NCCL's: `wait` is queued where it is called, and blocks a thread only where nothing is queued."""

    of: _Communicator
    number: int

    def wait(self) -> None:
        side = getattr(_here, "side", None)
        if side is None:
            self.of.reach(self.number)
        else:
            side.queue.append(lambda: self.of.reach(self.number))

    def is_completed(self) -> bool:
        return False


@dataclass(frozen=True)
class _Group:
    """A rank's end of a communicator; `rank` may be none of its ranks."""

    of: _Communicator
    rank: int


class LateNccl:
    """All communicators of one run, and what of `torch.distributed` a transport asks for."""

    GroupMember = SimpleNamespace(NON_GROUP_MEMBER=object())

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.made: list[_Communicator] = []
        self.counts: dict[int, int] = {}
        self.lock = threading.Lock()
        self.ops: set[str] = set()

    def group(self, ranks: Sequence[int], timeout: object, blocks: int | None = None) -> _Group:
        """The next communicator of the thread's rank."""
        return self.group_of(_here.rank, ranks, blocks is not None)

    def group_of(self, rank: int, ranks: Sequence[int], pair: bool) -> _Group:
        """The next communicator of a rank: every rank makes all, in one order."""
        with self.lock:
            number = self.counts[rank] = self.counts.get(rank, 0) + 1
            if len(self.made) < number:
                self.made.append(_Communicator(tuple(ranks), _message if pair else _collective, self.hub))
            found = self.made[number - 1]
        assert found.ranks == tuple(ranks), f"communicator {number}: {found.ranks} on one rank, {ranks} on {rank}"
        return _Group(found, rank)

    def _post(self, kind: str, tensor: Tensor, group: _Group, form: str) -> _Work:
        assert tensor.is_contiguous()
        self.ops.add(kind)
        return group.of.post(group.rank, tensor, f"{form} of {tensor.numel()} {tensor.dtype}")

    def isend(self, tensor: Tensor, peer: int, group: _Group) -> _Work:
        """The first of its ranks sends, the second receives."""
        assert (group.rank, peer) == group.of.ranks
        return self._post("send", tensor, group, "a message")

    def irecv(self, tensor: Tensor, peer: int, group: _Group) -> _Work:
        """Of the pair's other end."""
        assert (peer, group.rank) == group.of.ranks
        return self._post("receive", tensor, group, "a message")

    def all_reduce(self, tensor: Tensor, group: _Group, async_op: bool = False) -> _Work:
        """In place, in the order of ranks."""
        work = self._post("all_reduce", tensor, group, "sum")
        if not async_op:
            work.wait()
        return work

    def scatter_sums(self, part: Tensor, tensor: Tensor, group: _Group, async_op: bool) -> _Work:
        """Every rank gets its part of the sum; what the others hold is overwritten, as it may be."""
        return self._post("scatter_sums", tensor, group, "parts")

    def all_gather(self, tensor: Tensor, part: Tensor, group: _Group, async_op: bool) -> _Work:
        """Every rank gives its part."""
        return self._post("all_gather", tensor, group, "gather")

    def get_rank(self, group: _Group) -> int:
        return group.of.ranks.index(group.rank)

    def get_world_size(self, group: _Group) -> int:
        return len(group.of.ranks)

    def destroy_process_group(self, group: _Group) -> None:
        """All that was posted has been waited for by somebody."""


def _message(ends: list[Tensor], form: str) -> None:
    ends[1].copy_(ends[0])


def _collective(ends: list[Tensor], form: str) -> None:
    kind, count = form.partition(" ")[0], len(ends)
    if kind == "gather":
        whole = torch.cat([part_of(tensor, number, count) for number, tensor in enumerate(ends)])
        for tensor in ends:
            tensor.copy_(whole)
        return
    total = torch.stack(ends).sum(0) if count > 2 else ends[0] + ends[-1]
    for number, tensor in enumerate(ends):
        if kind == "sum":
            tensor.copy_(total)
        else:
            tensor.fill_(float("nan"))
            part_of(tensor, number, count).copy_(part_of(total, number, count))


def late_nccl(patch: pytest.MonkeyPatch) -> LateNccl:
    """Makes ranks that are threads on `LatePlace`s talk by it, as ranks with a GPU each would."""
    late = LateNccl(Hub(2, {}))
    patch.setattr(nccl, "dist", late)
    patch.setattr(nccl, "_group", late.group)
    patch.setattr(nccl, "_scatter_sums", late.scatter_sums)
    patch.setattr(nccl, "all_gather_flat", late.all_gather)

    def transport(plan: Plan, wires: Transport, place: Place) -> Transport:
        assert isinstance(place, LatePlace)
        assert isinstance(wires, ThreadTransport)
        _here.rank, late.hub = wires.rank, wires._hub
        return nccl.NcclTransport(wires, plan, place)

    patch.setattr(choice, "_for_cuda", transport)
    return late
