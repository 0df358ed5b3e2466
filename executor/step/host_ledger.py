"""What the ranks of one node hold in their host's memory of offloaded stashes, counted together.

Every rank writes its own number into memory that they share, whoever started them; pinned or not, bytes are those of
the tensors. Ranks of one node of the plan that are on different machines count by themselves.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
import weakref

from torch import Tensor

from ...planner.forecast import copied_to_host, most_host_bytes
from ...planner.graph import stash_policy
from ...planner.plan import Kind, Plan
from ..basics import SharedFile
from ..wires import Transport
from .enforcement import MemoryExceeded

_SLOT = struct.Struct("=q")


class HostLedger:
    """One rank's page of its node's ledger.

    Attributes:
        node: of the plan. limit_bytes: what its ranks may hold together: the node's host memory, or where the cluster
            says nothing of it the most that their lists can hold there.
    """

    def __init__(self, plan: Plan, rank: int, memory: mmap.mmap) -> None:
        devices = plan.problem.cluster.devices
        self.node = devices[rank].node
        self.limit_bytes = 0
        self._rank = rank
        self._mates = _mates(plan, rank)
        self._memory, self._position = memory, self._mates.index(rank) * _SLOT.size
        self._declared: dict[int, int] = {}
        self._own = 0
        self._most = 0
        self._lock = threading.RLock()  # a release may come in the middle of anything, on this very thread

    def follow(self, plan: Plan) -> None:
        """The rank runs its list of this plan from now on: the same one, as long as the run."""
        room = plan.problem.cluster.node_groups[self.node].host_memory_bytes
        self.limit_bytes = sum(most_host_bytes(plan, mate) for mate in self._mates) if room is None else room
        order, copied = plan.orders[self._rank], copied_to_host(plan, self._rank)
        self._declared = {position: count for position, count in copied.items() if order[position].kind is Kind.OFFLOAD}

    def track(self, tensor: Tensor) -> None:
        """Counts a copy in the host's memory until it is freed. Any thread may call it."""
        storage = tensor.untyped_storage()
        weakref.finalize(storage, _release, weakref.ref(self), storage.nbytes()).atexit = False
        self._add(storage.nbytes())

    def _add(self, count: int) -> None:
        with self._lock:
            self._own += count
            _SLOT.pack_into(self._memory, self._position, self._own)
            self._most = max(self._most, self._total())

    def _total(self) -> int:
        return sum(count for (count,) in _SLOT.iter_unpack(self._memory[:]))

    def hold(self) -> None:
        """Raises MemoryExceeded where the node has held too much since the last call."""
        with self._lock:
            most, self._most = self._most, 0
        if most > self.limit_bytes:
            raise MemoryExceeded(f"the host of node {self.node} held {most} bytes, {self.limit_bytes} may be")

    def admit(self, position: int) -> None:
        """Before the op at this position of the list. Raises MemoryExceeded."""
        needed, total = self._declared.get(position, 0), self._total()
        if needed and total + needed > self.limit_bytes:
            raise MemoryExceeded(
                f"not run: {total} bytes held and {needed} declared are {total + needed} bytes at the host of node "
                f"{self.node}, {self.limit_bytes} may be"
            )


def _release(ledger: weakref.ref[HostLedger], count: int) -> None:
    owner = ledger()
    if owner is not None:
        owner._add(-count)


def open_ledger(plan: Plan, transport: Transport) -> HostLedger | None:
    """The rank's page; collective over all ranks of the run. None where nothing is offloaded."""
    if not any(stash_policy(policy).hosted for row in set(plan.stash) for policy in row):
        return None
    mates = _mates(plan, transport.rank)
    size = len(mates) * _SLOT.size
    file = SharedFile(size)
    try:
        told = transport.all_gather_object((socket.gethostname(), _path(file)))
        here, path = told[mates[0]]
        shared = _mapped(path, size) if here == socket.gethostname() else None
        transport.barrier()
        return HostLedger(plan, transport.rank, shared or file.memory())
    finally:
        file.close()


def _mates(plan: Plan, rank: int) -> list[int]:
    """The ranks of its node."""
    nodes = [device.node for device in plan.problem.cluster.devices]
    return [other for other, node in enumerate(nodes) if node == nodes[rank]]


def _path(file: SharedFile) -> str:
    """Under which other processes of the user can open it while this one has it open."""
    return file.path.replace("/proc/self/", f"/proc/{os.getpid()}/")


def _mapped(path: str, size: int) -> mmap.mmap | None:
    """The file of another rank; None where it cannot be opened."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return mmap.mmap(handle, size)
    finally:
        os.close(handle)
