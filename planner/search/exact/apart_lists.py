"""From a solution of `apart_model` to op lists: compute ops, and where stashes leave, arrive and are waited for.

What is posted stands behind the ops that have ended by then. A RECV_S stands where its message starts, or before the
op that runs at that time; a FREE before the first op that starts when its stash has left.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ...graph import OFFLOAD, RECOMPUTE, ship_target, stash_hops
from ...plan import Kind, Op, Pipeline
from .apart_instance import ApartInstance
from .apart_model import ApartSolution

_MAKES = frozenset({Kind.F, Kind.R, Kind.RECV_S})


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


def pipeline(instance: ApartInstance, found: ApartSolution) -> Pipeline:
    """The one route."""
    return Pipeline(found.forward, found.backward, tuple(range(instance.micro_batches)))


def op_lists(instance: ApartInstance, found: ApartSolution) -> tuple[tuple[Op, ...], ...]:
    """Per device the ops of a solution in order; boundary tensors, reductions and optimizer steps left out."""
    lists = [_List(line) for line in _compute(instance, found)]
    for s, policy in enumerate(found.policies):
        for k in range(instance.micro_batches):
            _post(instance, found, lists, s, k, policy)
    return tuple(line.ops() for line in lists)


def _compute(instance: ApartInstance, found: ApartSolution) -> list[list[_Run]]:
    """The compute ops of every device in order."""
    depth = {Kind.F: 0, Kind.R: 1, Kind.W: 3}
    lines: dict[int, list[tuple[tuple[int, bool, int, int, int], _Run]]] = defaultdict(list)
    for (kind, s, k), start in found.starts.items():
        device = (found.forward if kind == Kind.F else found.backward)[s]
        size = instance.stages[s].ticks[Kind.F if kind == Kind.R else kind][device]
        key = (start, size > 0, depth.get(kind, 2), s if kind == Kind.F else -s, k)
        lines[device].append((key, _Run(start, start + size, Op(kind, s, k))))
    return [[run for _, run in sorted(lines[d])] for d in range(instance.devices)]


def _post(instance: ApartInstance, found: ApartSolution, lists: list[_List], s: int, k: int, policy: str) -> None:
    """Puts the transfers of one stash on the lists of its devices."""
    a, b = found.forward[s], found.backward[s]
    out, back, gone = (found.times[name][s, k] for name in ("out", "back", "gone"))
    route = Pipeline(found.forward, found.backward, ())
    for start, (source, target) in zip((out, back), stash_hops(route, s, policy), strict=False):
        lists[source].send(Op(Kind.SEND_S, s, k, target), start)
        lists[target].receive(Op(Kind.RECV_S, s, k, source), start)
    if policy == OFFLOAD:
        lists[a].send(Op(Kind.OFFLOAD, s, k), out)
        lists[b].fetch(Op(Kind.FETCH, s, k), back)
    if policy == OFFLOAD or ship_target(policy) is not None or a != b:
        lists[a].free(Op(Kind.FREE, s, k), out, gone)
    assert policy != RECOMPUTE or (Kind.R, s, k) in found.starts


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
        self.posted.append(_Posted(self._ended(time), time, 2, op))

    def receive(self, op: Op, time: int) -> None:
        """What starts to arrive at a time: its memory is taken when no op runs."""
        posted = min([time, *(run.start for run in self.compute if run.start < time < run.end)])
        self.posted.append(_Posted(self._ended(posted), posted, 1, op))

    def fetch(self, op: Op, time: int) -> None:
        """What comes from the host at a time."""
        self.fetches.append((time, op))

    def free(self, op: Op, out: int, gone: int) -> None:
        """What has left at a time: ops that start later may use its memory."""
        self.leaving.append((out, gone))
        self.posted.append(_Posted(sum(run.start < gone for run in self.compute), gone, 0, op))

    def ops(self) -> tuple[Op, ...]:
        """The list. A FETCH that starts while something leaves stands before it, so as not to wait for its end."""
        for time, op in sorted(self.fetches):
            first = min([time, *(out for out, gone in self.leaving if out < time < gone)])
            self.posted.append(_Posted(self._ended(first), first, 1, op))
        listed: list[Op] = []
        between: dict[int, list[_Posted]] = defaultdict(list)
        for item in sorted(self.posted, key=lambda item: (item.slot, item.time, item.turn, item.op.micro_batch)):
            between[item.slot].append(item)
        for place in range(len(self.compute) + 1):
            listed += [item.op for item in between[place]]
            listed += [run.op for run in self.compute[place : place + 1]]
        last = max((n for n, op in enumerate(listed) if op.kind in _MAKES), default=-1)
        return tuple(op for n, op in enumerate(listed) if op.kind != Kind.FREE or n < last)
