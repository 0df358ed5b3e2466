"""In which order may the ops of a plan stand? What must come first in a list, message order, and circles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .check_columns import RECOMPUTE, SHIP, Columns, Ints, Listed, Violation
from .check_ops import messages
from .kernel import run_jobs
from .operations import StageCosts
from .plan import SENDS, Kind

if TYPE_CHECKING:
    import networkx


class Order:
    """The op lists of a plan whose op sets are right, with what each op needs before it.

    Everything is in places of `listed`: `send` and `receive` are the two ends of every message, `needs` the pairs
    (op, an op that must come before it) for every data dependency that is no message. The two are in one list, but
    for what another device's backward needs of a forward.
    """

    def __init__(self, costs: StageCosts, listed: Listed) -> None:
        self.listed = listed
        self.homes = listed.homes
        sends, receives = messages(costs, listed.homes)
        self.send, self.receive = listed.find(sends), listed.find(receives)
        self._pairs: list[tuple[Ints, Ints]] = []
        self.backward = np.maximum(listed.table(Kind.B), listed.table(Kind.I))
        self._compute_needs()
        self._edge_needs(costs)
        self._stash_needs()
        self._closing_needs()
        self._tie_needs(costs)
        self._parameter_needs(costs)
        op, earlier = zip(*self._pairs, strict=True)
        self.needs = np.concatenate(op), np.concatenate(earlier)

    def _need(self, op: Ints, earlier: Ints) -> None:
        """Notes that each op needs the other before it; -1 on either side: nothing to note."""
        op, earlier = np.broadcast_arrays(op, earlier)
        both = (op >= 0) & (earlier >= 0)
        self._pairs.append((op[both], earlier[both]))

    def _compute_needs(self) -> None:
        """Halves of a backward, and what makes the stash that it uses up."""
        listed, forward = self.listed, self.listed.table(Kind.F)
        remade = listed.table(Kind.R)
        self._need(remade, forward)
        self._need(listed.table(Kind.W), listed.table(Kind.I))
        self._need(self.backward, np.where(self.homes.policy == RECOMPUTE, remade, forward))

    def _edge_needs(self, costs: StageCosts) -> None:
        """Activations and gradients, handed on inside a device or as messages."""
        listed, forward = self.listed, self.listed.table(Kind.F)
        for producer, consumer, _ in costs.edges:
            for send, receive, home, ops, source, target in (
                (Kind.SEND_F, Kind.RECV_F, self.homes.device, forward, producer, consumer),
                (Kind.SEND_B, Kind.RECV_B, self.homes.back, self.backward, consumer, producer),
            ):
                m = np.arange(home.shape[1])
                arrival = listed.find(Columns.of(receive, target, m, home[target], source))
                self._need(ops[target], np.where(home[source] == home[target], ops[source], arrival))
                self._need(listed.find(Columns.of(send, source, m, home[source], target)), ops[source])

    def _stash_needs(self) -> None:
        """A stash leaves after its F and is there before its backward (or R); FREE waits for it to have left."""
        listed, homes = self.listed, self.homes
        forward, free = listed.table(Kind.F), listed.table(Kind.FREE)
        leaves, returns = listed.table(Kind.OFFLOAD), listed.table(Kind.FETCH)
        stage, m = np.nonzero(homes.policy == SHIP)
        home, away = homes.device[stage, m], homes.away[stage, m]
        leaves[stage, m] = listed.find(Columns.of(Kind.SEND_S, stage, m, home, away))
        returns[stage, m] = listed.find(Columns.of(Kind.RECV_S, stage, m, home, away))
        self._need(returns, leaves)
        moved, m_moved = np.nonzero(homes.moved)
        source, target = homes.device[moved, m_moved], homes.back[moved, m_moved]
        leaves[moved, m_moved] = listed.find(Columns.of(Kind.SEND_S, moved, m_moved, source, target))
        returns[moved, m_moved] = listed.find(Columns.of(Kind.RECV_S, moved, m_moved, target, source))
        user = np.where(homes.policy == RECOMPUTE, listed.table(Kind.R), self.backward)
        for op, earlier in ((leaves, forward), (user, returns), (free, leaves)):
            self._need(op, earlier)
        guest = [listed.find(Columns.of(kind, stage, m, away, home)) for kind in (Kind.SEND_S, Kind.RECV_S)]
        self._need(guest[0], guest[1])

    def _closing_needs(self) -> None:
        """REDUCE and STEP come after every backward of their stage, STEP after REDUCE."""
        listed, columns = self.listed, self.listed.columns
        device, stage = np.indices((self.homes.devices, len(self.homes.device)))
        reduce, step = (
            listed.find(Columns.of(kind, stage, -1, device)).reshape(device.shape) for kind in (Kind.REDUCE, Kind.STEP)
        )
        ends = np.flatnonzero((columns.kind == Kind.B) | (columns.kind == Kind.W))
        for closing in (reduce, step):
            self._need(closing[columns.device[ends], columns.stage[ends]], ends)
        self._need(step, reduce)

    def _tie_needs(self, costs: StageCosts) -> None:
        """TIE and the STEPs of the member stages come after every backward of these, STEP after TIE."""
        listed, columns = self.listed, self.listed.columns
        ends = np.flatnonzero((columns.kind == Kind.B) | (columns.kind == Kind.W))
        owners = self.homes.owners if costs.ties else {}
        for tie in costs.ties:
            mine = ends[np.isin(columns.stage[ends], tie.stages)]
            for device, home in tie.copies(owners).items():
                here = mine[columns.device[mine] == device]
                summed = listed.find(Columns.of(Kind.TIE, home, -1, device, tie.number))
                steps = listed.find(Columns.of(Kind.STEP, np.array(tie.stages), -1, device))
                self._need(summed, here)
                self._need(steps, summed)
                self._need(steps[:, None], here[None, :])

    def _parameter_needs(self, costs: StageCosts) -> None:
        """New parameters leave after their stage's STEP, and replace those that every F of the stage has used."""
        listed = self.listed
        stage, source, target = self.homes.returned
        some = costs.parameter_bytes[stage] > 0
        for s, a, b in zip(stage[some].tolist(), source[some].tolist(), target[some].tolist(), strict=True):
            sent = listed.find(Columns.of(Kind.SEND_P, s, -1, a, b))
            self._need(sent, listed.find(Columns.of(Kind.STEP, s, -1, a)))
            used = np.where(self.homes.device[s] == b, listed.table(Kind.F)[s], -1)
            self._need(listed.find(Columns.of(Kind.RECV_P, s, -1, b, a)), used)


def local_order(order: Order) -> Iterator[Violation]:
    """Every op that comes before one of its own list that it needs."""
    listed = order.listed
    op, earlier = order.needs
    device = listed.columns.device
    wrong = np.flatnonzero((earlier > op) & (device[op] == device[earlier]))
    for k in wrong[np.lexsort((earlier[wrong], op[wrong]))].tolist():
        where = f"device {listed.columns.device[op[k]]}"
        message = f"{listed.op(int(op[k]))} comes before {listed.op(int(earlier[k]))}, which it needs"
        yield Violation("dependency", where, message)


def _by_pair(order: Order) -> tuple[Ints, Ints, Ints]:
    """Device pair, SEND and RECV of every message, pair after pair in the sender's order."""
    device = order.listed.columns.device
    pair = device[order.send] * order.homes.devices + device[order.receive]
    rows = np.lexsort((order.send, pair))
    return pair[rows], order.send[rows], order.receive[rows]


def message_order(order: Order) -> Iterator[Violation]:
    """Both ends of every device pair must post its messages in the same order (NCCL has no tags)."""
    listed = order.listed
    pair, send, receive = _by_pair(order)
    for k in np.flatnonzero((pair[1:] == pair[:-1]) & (receive[1:] < receive[:-1])).tolist():
        source, target = divmod(int(pair[k]), order.homes.devices)
        first, second = listed.op(int(send[k])), listed.op(int(send[k + 1]))
        yield Violation(
            "message-order",
            f"devices {source} -> {target}",
            f"{first} is sent before {second}, but device {target} receives them the other way round",
        )


def _copy_edges(order: Order) -> list[tuple[Ints, Ints]]:
    """OFFLOADs and FETCHes of a device follow one another; a FETCH also waits for all that left before its place."""
    listed = order.listed
    kind, device = listed.columns.kind, listed.columns.device
    edges = []
    for one in (Kind.OFFLOAD, Kind.FETCH):
        mine = np.flatnonzero(kind == one)
        same = device[mine][1:] == device[mine][:-1]
        edges.append((mine[:-1][same], mine[1:][same]))
    fetches = np.flatnonzero(kind == Kind.FETCH)
    leaving = np.flatnonzero((kind == Kind.OFFLOAD) | (kind == Kind.SEND_S))
    following = np.searchsorted(fetches, leaving)
    inside = following < len(fetches)
    leaving, following = leaving[inside], fetches[following[inside]]
    same = device[leaving] == device[following]
    edges.append((leaving[same], following[same]))
    return edges


def deadlock(order: Order) -> Iterator[Violation]:
    """Circles in the union of list order, data dependencies, message order and the order of copies.

    One violation for every set of ops that all wait for each other: the shortest circle through its first op.
    """
    listed = order.listed
    count = len(listed)
    node = np.arange(count)
    node[order.receive] = order.send  # the two ends of a message are one event, and so is a reduction
    for kind, number in ((Kind.REDUCE, listed.columns.stage), (Kind.TIE, listed.columns.peer)):
        reduces = np.flatnonzero(listed.columns.kind == kind)
        first = np.full(int(number[reduces].max(initial=-1)) + 1, -1)
        first[number[reduces[::-1]]] = reduces[::-1]
        node[reduces] = first[number[reduces]]
    pair, send, _ = _by_pair(order)
    same = pair[1:] == pair[:-1]
    op, earlier = order.needs
    edges = [(listed.previous, np.arange(count)), (earlier, op), (send[:-1][same], send[1:][same]), *_copy_edges(order)]
    before, after = (np.concatenate(column) for column in zip(*edges, strict=True))
    both = before >= 0
    before, after = node[before[both]], node[after[both]]
    zero = np.zeros(count)
    no_resources = np.zeros(count + 1, dtype=np.int64)
    _, rank, served = run_jobs(
        zero, before, after, np.zeros(len(before)), no_resources, no_resources[:0], 0, no_resources[:0]
    )
    if served == count:
        return
    stuck = (rank[before] < 0) & (rank[after] < 0)
    for circle in _circles(before[stuck], after[stuck]):
        names = _names(order, circle)
        yield Violation("deadlock", "plan", f"these wait for each other: {' -> '.join([*names, names[0]])}")


def _circles(before: Ints, after: Ints) -> Iterator[list[int]]:
    """For every strongly connected part of the graph, the shortest circle through its first node."""
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph(zip(before.tolist(), after.tolist(), strict=True))
    for part in sorted(map(sorted, networkx.strongly_connected_components(graph))):
        start = part[0]
        if graph.has_edge(start, start):
            yield [start]
        elif len(part) > 1:
            inside = graph.subgraph(part)
            back = networkx.single_target_shortest_path(inside, start)
            yield [start, *min((back[successor] for successor in inside[start]), key=len)[:-1]]


def _names(order: Order, circle: list[int]) -> list[str]:
    """Names of the ops on a circle; of a device's run of ops in list order only the two ends."""
    listed = order.listed
    alone = [(listed.columns.device[k], bool(listed.in_line[k])) for k in circle]
    named = []
    for k, place in enumerate(circle):
        around = (alone[k - 1], alone[k], alone[(k + 1) % len(circle)])
        if len(set(around)) > 1 or not around[0][1]:
            named.append(_name(order, place))
    return named


def _name(order: Order, place: int) -> str:
    op, device = order.listed.op(place), order.listed.columns.device
    if op.kind in SENDS:
        target = device[order.receive[order.send == place]][0]
        return f"message {op} (device {device[place]} to {target})"
    if op.kind == Kind.TIE:
        return f"TIE of group {op.peer}"
    return f"REDUCE of stage {op.stage}" if op.kind == Kind.REDUCE else f"{op} on device {device[place]}"
