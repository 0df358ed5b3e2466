"""From a solution's start times to op lists: compute ops, and for offloaded stashes OFFLOAD, FETCH and FREE.

A list only says what comes before what. A FETCH stands after the ops that ended by its start, and so after the copies
to the host whose memory it may use. A FREE makes an op wait for a copy only where the op's memory depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ...graph import KEEP, RECOMPUTE
from ...plan import Kind, Op, Pipeline
from .instance import Instance
from .model_orders import Solution


class _Item(NamedTuple):
    """An op of a list with its ticks."""

    start: int
    end: int
    op: Op


def pipelines(instance: Instance, found: Solution) -> tuple[Pipeline, ...]:
    """One pipeline a way, with the micro-batches that take it."""
    batches = range(instance.micro_batches)
    return tuple(
        Pipeline(way.devices, way.devices, tuple(k for k in batches if found.ways[k] == w))
        for w, way in enumerate(instance.ways)
    )


def rows(instance: Instance, found: Solution) -> dict[int, tuple[str, ...]]:
    """What happens to the stashes of every micro-batch, stage by stage."""
    stages = range(instance.stages)
    return {k: tuple(found.policies.get((s, k), KEEP) for s in stages) for k in range(instance.micro_batches)}


def op_lists(instance: Instance, found: Solution) -> tuple[tuple[Op, ...], ...]:
    """Per device the ops of a solution in order: F, B, I, W, R, and the copies of offloaded stashes."""
    compute: dict[int, list[tuple[tuple[int, bool, int, int], _Item]]] = defaultdict(list)
    copies: dict[int, list[_Item]] = defaultdict(list)
    for (kind, s, k), start in found.starts.items():
        way = instance.ways[found.ways[k]]
        if kind in (Kind.OFFLOAD, Kind.FETCH):
            copies[way.devices[s]].append(_Item(start, start + way.copy[s][0], Op(kind, s, k)))
            continue
        size = way.ticks(kind, s)
        key = (start, size > 0, _depth(kind, s, instance.stages), k)
        compute[way.devices[s]].append((key, _Item(start, start + size, Op(kind, s, k))))
    lists = []
    for device in range(len(instance.capacity)):
        listed = [item for _, item in sorted(compute[device])]
        if copies[device]:
            lists.append(_Lister(instance, found, device, listed, copies[device]).run())
        else:
            lists.append(tuple(item.op for item in listed))
    return tuple(lists)


def _depth(kind: Kind, stage: int, stages: int) -> int:
    """Position on a micro-batch's way: breaks ties of ops that take no time."""
    return {Kind.F: stage, Kind.R: stages, Kind.W: 3 * stages}.get(kind, 2 * stages - stage)


class _Lister:
    """Merges one device's copies into its compute ops."""

    def __init__(
        self, instance: Instance, found: Solution, device: int, compute: Sequence[_Item], copies: Sequence[_Item]
    ) -> None:
        self.instance, self.found, self.compute = instance, found, compute
        self.capacity = instance.capacity[device]
        self.slots: dict[int, list[_Item]] = defaultdict(list)
        for item in sorted(copies, key=lambda item: (item.start, item.op.kind == Kind.OFFLOAD)):
            self.slots[self._slot(item.start)].append(item)
        self._untangle(sorted((x for x in copies if x.op.kind == Kind.OFFLOAD), key=lambda x: x.start))

    def _slot(self, start: int) -> int:
        """Number of compute ops that have ended by a time."""
        return sum(item.end <= start for item in self.compute)

    def _untangle(self, offloads: Sequence[_Item]) -> None:
        """Moves each FETCH that starts while an OFFLOAD runs before it: it must not wait for that one's end.

        That posts the FETCH earlier; only where no op in between releases memory that it may need.
        """
        for slot in sorted(self.slots):
            for item in [x for x in self.slots[slot] if x.op.kind == Kind.FETCH]:
                running = next((x for x in offloads if x.start < item.start < x.end), None)
                if running is None:
                    continue
                target = self._slot(running.start)
                if any(self._released(x.op) for x in self.compute[target:slot]):
                    continue
                self.slots[slot].remove(item)
                self.slots[target].insert(self.slots[target].index(running), item)

    # ------------------------------------------------------------ memory, as in planner.memory

    def _allocated(self, op: Op) -> int:
        stash, policy = self.instance.stash[op.stage], self.found.policies.get((op.stage, op.micro_batch), KEEP)
        if op.kind == Kind.F:
            return stash.kept if policy == RECOMPUTE else stash.bytes
        if op.kind == Kind.R:
            return stash.bytes - stash.kept
        if op.kind == Kind.I:
            return max(0, stash.held - stash.bytes)
        if op.kind in (Kind.B, Kind.W):
            return 0
        raise KeyError(f"{op.kind.name} is no compute op")

    def _released(self, op: Op) -> int:
        stash = self.instance.stash[op.stage]
        if op.kind == Kind.B:
            return stash.bytes
        if op.kind == Kind.I:
            return max(0, stash.bytes - stash.held)
        if op.kind == Kind.W:
            return stash.held
        if op.kind in (Kind.F, Kind.R):
            return 0
        raise KeyError(f"{op.kind.name} is no compute op")

    def run(self) -> tuple[Op, ...]:
        """The device's list."""
        listed: list[Op] = []
        level = 0  # without copies that may or may not have been made
        pending: list[_Item] = []  # OFFLOADs not waited for and FETCHes after them, in list order
        for place in range(len(self.compute) + 1):
            for item in self.slots.get(place, ()):
                listed.append(item.op)
                pending.append(item)
            if place == len(self.compute):
                break
            item = self.compute[place]
            op = item.op
            if op.kind in (Kind.B, Kind.I):  # a backward waits for its FETCH, and that for all copies before it
                done = next((n for n, x in enumerate(pending, 1) if x.op == op._replace(kind=Kind.FETCH)), 0)
                level, pending = level + sum(self._change(x.op) for x in pending[:done]), pending[done:]
            level += self._allocated(op)
            beside = self.instance.stash[op.stage].running(op.kind)
            wait = self._wait_for(pending, self.capacity - beside - level, item.start)
            if wait:
                listed.append(Op(Kind.FREE, *pending[wait - 1].op[1:]))
                level += sum(self._change(x.op) for x in pending[:wait])
                pending = pending[wait:]
            listed.append(op)
            level -= self._released(op)
        return tuple(listed)

    def _change(self, op: Op) -> int:
        size = self.instance.stash[op.stage].bytes
        return -size if op.kind == Kind.OFFLOAD else size

    def _wait_for(self, pending: Sequence[_Item], room: int, start: int) -> int:
        """How many pending copies must be over so that whatever happens with the others never exceeds the room.

        The others happen in order. The last to wait for is an OFFLOAD that has ended by `start` in the solution.
        """
        totals, total = [0], 0
        for item in pending:
            total += self._change(item.op)
            totals.append(total)
        wait = 0
        for place, total in enumerate(totals):
            if total > room:
                ahead = [k for k in range(place, len(pending)) if pending[k].op.kind == Kind.OFFLOAD]
                ended = [k for k in ahead if pending[k].end <= start]
                if not ended:
                    break
                wait = ended[0] + 1
        return wait
