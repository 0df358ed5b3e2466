"""From a solution to pipelines and op lists: compute ops, and where stashes leave, arrive and are waited for.

A list only says what comes before what. What is posted stands behind the ops that have ended by then. A RECV_S stands
where its message starts, or before the op that runs at that time; a FREE before the first op that starts when its
stash has left.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ...graph import stash_hops, stash_policy
from ...plan import Kind, Op, Pipeline
from .instance import Instance
from .variables import Solution

_MAKES = frozenset({Kind.F, Kind.R, Kind.RECV_S})
_LEAVES = frozenset({Kind.OFFLOAD, Kind.SEND_S})
_FREES = frozenset({Kind.B, Kind.I, Kind.W})
_GONE, _IN, _OUT, _HOME = range(4)
"""Turns of what is posted at one time: what has left, what arrives, what leaves, and what comes home at once."""


class _Run(NamedTuple):
    """A compute op with its ticks."""

    start: int
    end: int
    op: Op


class _Posted(NamedTuple):
    """An op between compute ops: the number of those before it, and what orders it among its like."""

    slot: int
    time: int
    turn: int
    op: Op


def pipelines(instance: Instance, found: Solution) -> tuple[Pipeline, ...]:
    """One pipeline a route, with the micro-batches that take it."""
    taken: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for k in range(instance.micro_batches):
        pairs = [_devices(instance, found, s, k) for s in range(len(instance.stages))]
        forward, backward = zip(*pairs, strict=True)
        taken[forward, backward].append(k)
    return tuple(Pipeline(*route, tuple(batches)) for route, batches in taken.items())


def rows(instance: Instance, found: Solution) -> dict[int, tuple[str, ...]]:
    """What happens to the stashes of every micro-batch, stage by stage."""
    stages = range(len(instance.stages))
    return {k: tuple(found.policy(s, k) for s in stages) for k in range(instance.micro_batches)}


def op_lists(instance: Instance, found: Solution) -> tuple[tuple[Op, ...], ...]:
    """Per device the ops of a solution in order; boundary tensors, reductions and optimizer steps left out."""
    lists = [_List(line) for line in _compute(instance, found)]
    for route in pipelines(instance, found):
        for s in range(len(instance.stages)):
            for k in route.micro_batches:
                _post(found, lists, route, s, k)
    return tuple(line.ops() for line in lists)


def _devices(instance: Instance, found: Solution, s: int, k: int) -> tuple[int, int]:
    front, rear = found.sites[s, k]
    return instance.stages[s].sites[front].device, instance.stages[s].sites[rear].device


def _compute(instance: Instance, found: Solution) -> list[list[_Run]]:
    """The compute ops of every device in order."""
    lines: dict[int, list[tuple[tuple[int, bool, int, int], _Run]]] = defaultdict(list)
    for (kind, s, k), start in found.starts.items():
        site = instance.stages[s].sites[found.sites[s, k][kind is not Kind.F]]
        size = site.ticks[kind]
        key = (start, size > 0, _depth(kind, s, len(instance.stages)), k)
        lines[site.device].append((key, _Run(start, start + size, Op(kind, s, k))))
    return [[run for _, run in sorted(lines[d])] for d in range(len(instance.capacity))]


def _depth(kind: Kind, stage: int, stages: int) -> int:
    """Position on a micro-batch's way: breaks ties of ops that take no time."""
    return {Kind.F: stage, Kind.R: stages, Kind.W: 3 * stages}.get(kind, 2 * stages - stage)


def _post(found: Solution, lists: list[_List], route: Pipeline, s: int, k: int) -> None:
    """Puts the transfers of one stash on the lists of its devices."""
    policy, a, b = found.policy(s, k), route.forward[s], route.backward[s]
    row = stash_policy(policy)
    if not row.leaves and a == b:
        return
    out, back, gone = (found.times[name][s, k] for name in ("out", "back", "gone"))
    for start, (source, target) in zip((out, back), stash_hops(route, s, policy), strict=False):
        lists[source].send(Op(Kind.SEND_S, s, k, target), start)
        lists[target].receive(Op(Kind.RECV_S, s, k, source), start)
    if row.hosted:
        lists[a].send(Op(Kind.OFFLOAD, s, k), out)
        lists[b].fetch(Op(Kind.FETCH, s, k), back)
    lists[a].free(Op(Kind.FREE, s, k), out, gone)


class _List:
    """One device's compute ops, and what is posted between them."""

    def __init__(self, compute: list[_Run]) -> None:
        self.compute = compute
        self.posted: list[_Posted] = []
        self.fetches: list[tuple[int, Op]] = []
        self.leaving: list[tuple[int, int]] = []  # start and end of what leaves

    def _ended(self, time: int) -> int:
        return sum(run.end <= time for run in self.compute)

    def send(self, op: Op, time: int) -> None:
        """What leaves at a time."""
        self.posted.append(_Posted(self._ended(time), time, _OUT, op))

    def receive(self, op: Op, time: int) -> None:
        """What starts to arrive at a time: its memory is taken when no op runs."""
        posted = min([time, *(run.start for run in self.compute if run.start < time < run.end)])
        self._arrive(op, posted, Kind.SEND_S)

    def _arrive(self, op: Op, time: int, sent: Kind) -> None:
        """What arrives at a time: before what leaves then, but behind its own way out, which may take none."""
        own = [(x.slot, x.time, _HOME) for x in self.posted if x.op.kind is sent and x.op[1:3] == op[1:3]]
        slot, time, turn = max([(self._ended(time), time, _IN), *own])
        self.posted.append(_Posted(slot, time, turn, op))

    def fetch(self, op: Op, time: int) -> None:
        """What comes from the host at a time."""
        self.fetches.append((time, op))

    def free(self, op: Op, out: int, gone: int) -> None:
        """What has left at a time: ops that start later may use its memory. Behind its way out, which may take none."""
        self.leaving.append((out, gone))
        own = [(x.slot, x.time, _HOME) for x in self.posted if x.op.kind in _LEAVES and x.op[1:3] == op[1:3]]
        slot, time, turn = max([(sum(run.start < gone for run in self.compute), gone, _GONE), *own])
        self.posted.append(_Posted(slot, time, turn, op))

    def ops(self) -> tuple[Op, ...]:
        """The list. A FETCH that starts while something leaves stands before it, so as not to wait for its end, unless
        an op between them releases memory that it may need."""
        for time, op in sorted(self.fetches):
            first, slot = min([time, *(out for out, gone in self.leaving if out < time < gone)]), self._ended(time)
            if any(run.op.kind in _FREES for run in self.compute[self._ended(first) : slot]):
                first = time
            self._arrive(op, first, Kind.OFFLOAD)
        listed: list[Op] = []
        between: dict[int, list[_Posted]] = defaultdict(list)
        for item in sorted(self.posted, key=lambda item: (item.slot, item.time, item.turn, item.op.micro_batch)):
            between[item.slot].append(item)
        for place in range(len(self.compute) + 1):
            listed += [item.op for item in between[place]]
            listed += [run.op for run in self.compute[place : place + 1]]
        last = max((n for n, op in enumerate(listed) if op.kind in _MAKES), default=-1)
        return tuple(op for n, op in enumerate(listed) if op.kind != Kind.FREE or n < last)
