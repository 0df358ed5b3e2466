"""In which order may the ops of a plan stand? What must come first in a list, message order, and circles.

These needs are the checker's own: more than those that the simulator waits for (`graph/needs.py`), which takes the
order of lists for granted. They share the names of reasons and the tables of homes, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Ints, StageCosts, Why, run_jobs
from ..plan import SENDS, Kind, Op
from ..problem import steps_sent
from .columns import Columns, Listed, Violation
from .ops import messages

if TYPE_CHECKING:
    import networkx


class Order:
    """The op lists of a plan whose op sets are right, with what each op needs before it.

    Everything is in places of `listed`: `send` and `receive` are the two ends of every message, `needs` the pairs
    (op, an op that must come before it) for every data dependency that is no message. The two are in one list, but
    for what another device's backward needs of a forward.
    """

    def __init__(self, costs: StageCosts, listed: Listed, stashed: bool = True) -> None:
        self.listed = listed
        self.homes = listed.homes
        self._stashed = stashed
        sends, receives = messages(costs, listed.homes)
        self.send, self.receive = listed.find(sends), listed.find(receives)
        self._pairs: list[tuple[Why, Ints, Ints]] = []
        self.backward = np.maximum(listed.table(Kind.B), listed.table(Kind.I))
        self._compute_needs()
        self._edge_needs(costs)
        self._stash_needs()
        step = self._update_ops(Kind.STEP)
        self._update_needs(step)
        self._tie_needs(costs, step)
        self._parameter_needs(costs)
        _, op, earlier = zip(*self._pairs, strict=True)
        self.needs = np.concatenate(op), np.concatenate(earlier)

    @property
    def whys(self) -> list[Why]:
        """The reason of each of `needs`."""
        return [why for why, op, _ in self._pairs for _ in range(len(op))]

    def _need(self, why: Why, op: Ints, earlier: Ints) -> None:
        """Notes that each op needs the other before it; -1 on either side: nothing to note."""
        op, earlier = np.broadcast_arrays(op, earlier)
        both = (op >= 0) & (earlier >= 0)
        self._pairs.append((why, op[both], earlier[both]))

    def _compute_needs(self) -> None:
        """Halves of a backward, and what makes the stash that it uses up."""
        listed, forward = self.listed, self.listed.table(Kind.F)
        remade = listed.table(Kind.R)
        self._need(Why.STASH, remade, forward)
        self._need(Why.STASH, listed.table(Kind.W), listed.table(Kind.I))
        self._need(Why.STASH, self.backward, np.where(self.homes.remade, remade, forward))

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
                self._need(Why.TENSOR, ops[target], np.where(home[source] == home[target], ops[source], arrival))
                self._need(Why.TENSOR, listed.find(Columns.of(send, source, m, home[source], target)), ops[source])

    def _stash_needs(self) -> None:
        """A stash leaves after its F and is there before its backward (or R); FREE waits for it to have left."""
        listed, homes = self.listed, self.homes
        forward, free = listed.table(Kind.F), listed.table(Kind.FREE)
        leaves, returns = listed.table(Kind.OFFLOAD), listed.table(Kind.FETCH)
        stage, m = np.nonzero(homes.shipped)
        home, away = homes.device[stage, m], homes.away[stage, m]
        leaves[stage, m] = listed.find(Columns.of(Kind.SEND_S, stage, m, home, away))
        returns[stage, m] = listed.find(Columns.of(Kind.RECV_S, stage, m, home, away))
        self._need(Why.STASH, returns, leaves)
        moved, m_moved = np.nonzero(homes.moved)
        source, target = homes.device[moved, m_moved], homes.back[moved, m_moved]
        leaves[moved, m_moved] = listed.find(Columns.of(Kind.SEND_S, moved, m_moved, source, target))
        returns[moved, m_moved] = listed.find(Columns.of(Kind.RECV_S, moved, m_moved, target, source))
        user = np.where(homes.where(lambda row: row.taken_back is Kind.R), listed.table(Kind.R), self.backward)
        for op, earlier in ((leaves, forward), (user, returns), (free, leaves)):
            self._need(Why.STASH, op, earlier)
        guest = [listed.find(Columns.of(kind, stage, m, away, home)) for kind in (Kind.SEND_S, Kind.RECV_S)]
        self._need(Why.STASH, guest[0], guest[1])

    def _update_ops(self, kind: Kind) -> Ints:
        """Places of REDUCEs, STEPs or GATHERs by [update, device, stage]; -1: none."""
        homes = self.homes
        table = np.full((len(homes.update_ends), *homes.held.shape), -1, dtype=np.int64)
        device, stage = np.nonzero(homes.held)
        those = Columns.of(kind, stage, homes.update_ends[:, None], device)
        table[:, device, stage] = self.listed.find(those).reshape(len(table), -1)
        return table

    def _update_needs(self, step: Ints) -> None:
        """REDUCE and STEP come after every backward of their stage and update, STEP after REDUCE, GATHER after STEP.

        The next update's REDUCE and backwards come after the STEP; an R too, where it reads the newest weights.
        """
        columns, homes, reduce = self.listed.columns, self.homes, self._update_ops(Kind.REDUCE)
        ends = np.flatnonzero((columns.kind == Kind.B) | (columns.kind == Kind.W))
        place = homes.update_of(columns.micro_batch[ends]), columns.device[ends], columns.stage[ends]
        for last in (reduce, step):
            self._need(Why.GRADIENTS, last[place], ends)
        self._need(Why.GRADIENTS, step, reduce)
        self._need(Why.WEIGHTS, self._update_ops(Kind.GATHER), step)
        self._need(Why.GRADIENTS, reduce[1:], step[:-1])
        if homes.update:
            kinds = (Kind.B, Kind.I, Kind.W) if self._stashed else (Kind.B, Kind.I, Kind.W, Kind.R)
            begins = np.flatnonzero(np.isin(columns.kind, kinds))
            begins = begins[columns.micro_batch[begins] >= homes.update]
            update = homes.update_of(columns.micro_batch[begins])
            self._need(Why.GRADIENTS, begins, step[update - 1, columns.device[begins], columns.stage[begins]])

    def _tie_needs(self, costs: StageCosts, step: Ints) -> None:
        """TIE and the STEPs of the member stages come after every backward of these, STEP after TIE."""
        listed, columns, homes = self.listed, self.listed.columns, self.homes
        ends = np.flatnonzero((columns.kind == Kind.B) | (columns.kind == Kind.W))
        owners = homes.owners if costs.ties else {}
        for tie in costs.ties:
            mine = ends[np.isin(columns.stage[ends], tie.stages)]
            for device, home in tie.copies(owners).items():
                here = mine[columns.device[mine] == device]
                update = homes.update_of(columns.micro_batch[here])
                summed = listed.find(Columns.of(Kind.TIE, home, homes.update_ends, device, tie.number))
                steps = step[:, device, tie.stages]
                self._need(Why.GRADIENTS, summed[update], here)
                self._need(Why.GRADIENTS, steps, summed[:, None])
                self._need(Why.GRADIENTS, steps[update], here[:, None])
                self._need(Why.GRADIENTS, summed[1:, None], steps[:-1])

    def _parameter_needs(self, costs: StageCosts) -> None:
        """New parameters leave after their STEP and GATHER. With a flush they replace those that every F of the stage
        has used; without, the next F of the stage waits for them.
        """
        listed, homes = self.listed, self.homes
        stage, source, target = homes.returned
        some = (costs.trained_bytes[stage] > 0) | bool(homes.update)
        forward = listed.table(Kind.F)
        for s, a, b in zip(stage[some].tolist(), source[some].tolist(), target[some].tolist(), strict=True):
            sent = listed.find(Columns.of(Kind.SEND_P, s, homes.update_ends, a, b))
            for writer in sorted(steps_sent(costs.ties, homes.owners, s, a, b)):
                self._need(Why.WEIGHTS, sent, listed.find(Columns.of(Kind.STEP, writer, homes.update_ends, a)))
            if homes.sharded:  # where parameters are sent, a rank waits until they are gathered
                self._need(Why.WEIGHTS, sent, listed.find(Columns.of(Kind.GATHER, s, homes.update_ends, a)))
                inside = np.flatnonzero(listed.in_line & (listed.columns.device == a))
                self._need(Why.WEIGHTS, sent, inside[-1:])
            used = np.sort(forward[s][homes.device[s] == b])
            arrived = listed.find(Columns.of(Kind.RECV_P, s, homes.update_ends, b, a))
            if homes.update:
                following = np.searchsorted(used, arrived)
                self._need(Why.WEIGHTS, np.append(used, -1)[following], arrived)
            else:
                self._need(Why.WEIGHTS, arrived, used)


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
    stage, peer = listed.columns.stage, listed.columns.peer
    for kind, number in ((Kind.REDUCE, stage), (Kind.TIE, peer), (Kind.GATHER, stage)):
        reduces = np.flatnonzero(listed.columns.kind == kind)
        update = listed.columns.micro_batch[reduces] + 1
        first = np.full((int(number[reduces].max(initial=-1)) + 1, int(update.max(initial=-1)) + 1), -1)
        first[number[reduces[::-1]], update[::-1]] = reduces[::-1]
        node[reduces] = first[number[reduces], update]
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
        return f"TIE of group {op.peer}{_of_update(op)}"
    if op.kind in (Kind.REDUCE, Kind.GATHER):
        return f"{op.kind.name} of stage {op.stage}{_of_update(op)}"
    return f"{op} on device {device[place]}"


def _of_update(op: Op) -> str:
    return f" after micro-batch {op.micro_batch}" if op.micro_batch >= 0 else ""
