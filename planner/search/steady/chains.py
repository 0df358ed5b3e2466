"""Two chains: one cut for the forwards, another one for the backwards, and who runs the pieces of both.

The layers are cut from the last to the first, a piece at a time, on the side that is behind: with forwards cut down to
layer i and backwards down to layer j, the next device takes forwards [i', i) where i >= j, backwards [j', j) where
j >= i, or a piece of both. So a piece of one side meets on the other side the piece that was cut last, and the tensors
that go between these two devices are known. Which (i, j) can be reached with d devices at a period of T seconds is a
table of booleans; the least T follows by bisection. On equal devices that is the least period of the heaviest piece
and the heaviest link over all pairs of cuts (Bellman's recursion for both sides at once).

How many micro-batches are on their way behind a layer is taken from T and the time that the passes behind it take.
Memory, copies of weights and stashes in flight follow: estimates, since the simulation has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...basics import check_time
from ...graph import KEEP, stash_policy
from ...partition import Cuts
from ..common import SECONDS, SIZE, TOLERANCE
from .rules import Rules
from .tables import Floats, Intervals, Ints, Split

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Crossing:
    """What becomes of stashes that cross: their policy, and which share of those on their way is sent at once.

    The others stay where their forward ran until their backwards are near: both devices' memory is used.
    """

    stash: str = KEEP
    early: float = 1.0


@dataclass(frozen=True)
class Piece:
    """What one device runs: forwards of layers forward[0]..forward[1]-1, backwards likewise, or both; None: neither.

    choice: what becomes of the stashes that its backwards take.
    """

    device: int
    forward: tuple[int, int] | None
    backward: tuple[int, int] | None
    choice: Crossing = Crossing()

    def with_side(self, side: str, layers: tuple[int, int]) -> Piece:
        """The same with other layers of one side."""
        return replace(self, forward=layers) if side == "forward" else replace(self, backward=layers)


Pieces = tuple[Piece, ...]
"""From the last layers to the first ones."""


@dataclass(frozen=True)
class Terms:
    """What may be cut and how.

    choices: what may become of stashes, the first preferred. shared: whether a device may run pieces of both sides.
    spare: bytes to leave free, by device.
    """

    split: Split
    order: tuple[int, ...]
    rules: Rules
    choices: tuple[Crossing, ...] = (Crossing(),)
    shared: bool = True
    spare: dict[int, int] = field(default_factory=dict)


class Chains:
    """The two chains of a problem, cut at some of its layers only."""

    def __init__(self, terms: Terms, at: Sequence[int]) -> None:
        self.terms, self.at = terms, np.array(at, dtype=np.int64)
        self.size = len(self.at)
        self.x: Intervals = terms.split.intervals
        self.chain, self.cluster = terms.split.chain, terms.split.small.cluster

    def _of(self, matrix: Floats) -> Floats:
        """The entries of a matrix over all layers at which these chains are cut."""
        return np.asarray(matrix[np.ix_(self.at, self.at)], dtype=np.float64)

    # ---------------------------------------------------------------- what does not depend on the period

    @cached_property
    def forward(self) -> Floats:
        """Seconds of forwards at speed 1."""
        return self._of(self.x.forward)

    @cached_property
    def backward(self) -> Floats:
        """Seconds of backwards at speed 1."""
        return self._of(self.x.backward)

    def steps(self, device: int) -> Floats:
        """Seconds a micro-batch of the STEPs on a device."""
        before = self.chain.step_s(device)[self.at]
        return np.asarray((before[None, :] - before[:, None]) / self.terms.rules.update, dtype=np.float64)

    def speed(self, device: int) -> float:
        """Speed of a device of the group."""
        return self.chain.speed(device)

    @cached_property
    def weights(self) -> Floats:
        """Bytes of parameters and buffers."""
        costs = self.chain.costs
        return self._before((costs.parameter_bytes + costs.buffer_bytes).astype(float))

    @cached_property
    def _sent(self) -> Floats:
        """Bytes of the tensors at both ends of an interval."""
        ends = self.x.crossing[self.at]
        return np.asarray(ends[:, None] + ends[None, :])

    @cached_property
    def mean_speed(self) -> float:
        """Of the devices in use."""
        return float(np.mean([self.speed(device) for device in self.terms.order]))

    @cached_property
    def bandwidth(self) -> float:
        """Of a link between two devices that come one after the other, at the median: pieces that meet lie close."""
        order = self.terms.order
        links = [self.cluster.link(a, b).bandwidth for a, b in zip(order, order[1:], strict=False)]
        return float(np.median(links)) if links else np.inf

    @cached_property
    def trip_s(self) -> Floats:
        """Seconds that a micro-batch is away from the start of each layer's forward, new parameters included."""
        order = self.terms.order
        links = [self.cluster.link(a, b) for a, b in zip(order, order[1:], strict=False)] or [self.cluster.link(0, 0)]
        latency = float(np.median([link.latency_s for link in links]))
        crossing = self.x.crossing[1:-1]
        hop = latency + (float(crossing.mean()) if len(crossing) else 0.0) / self.bandwidth
        behind = (self.x.forward[:, -1] + self.x.backward[:, -1]) / self.mean_speed
        share = behind / max(float(behind[0]), 1e-300)
        return np.asarray(behind + share * hop * len(order), dtype=np.float64)

    def rates(self, policy: str) -> Floats:
        """Seconds a micro-batch of what crosses from a forward's device to a backward's, and of new parameters."""
        row, back = stash_policy(policy), self._of(self.x.own) / self.terms.rules.update
        if not row.hosted:
            moved = self._of(self.x.incoming if row.remade else self.x.stash)
            return np.asarray(np.maximum(moved, back) / self.bandwidth, dtype=np.float64)
        node = self.cluster.node_groups[self.cluster.devices[self.terms.order[0]].node]
        shared = max(self.cluster.host_links.count(link) for link in self.cluster.host_links)
        copies = self._of(self.x.stash) * shared / node.host_link.bandwidth
        return np.asarray(np.maximum(copies, back / self.bandwidth), dtype=np.float64)

    @property
    def floor_s(self) -> float:
        """No period is shorter: all work over all devices' speed."""
        total = float(self.forward[0, -1] + self.backward[0, -1])
        shared = total / sum(self.speed(device) for device in self.terms.order)
        return max(shared * (1 - TOLERANCE.sums), SECONDS.shortest)

    # ---------------------------------------------------------------- at a period

    def in_flight(self, period: float) -> Floats:
        """Micro-batches between the forward and the backward of every layer."""
        waiting = self.terms.rules.update - 1  # for the others of their update
        return np.maximum(np.ceil(self.trip_s[:-1] / period - TOLERANCE.same), 1.0) + waiting

    def _before(self, of_layer: Floats) -> Floats:
        """Sums over intervals of what every layer takes."""
        before = np.concatenate([[0.0], np.cumsum(of_layer)])[self.at]
        return np.asarray(before[None, :] - before[:, None], dtype=np.float64)

    def _flying(self, period: float, choice: Crossing) -> tuple[Floats, Floats]:
        """Of every layer's stashes in flight, how many its forward's device holds, and its backward's."""
        flying = self.in_flight(period)
        there = np.minimum(np.maximum(np.round(choice.early * flying), 1.0) + 1, flying)
        return flying - there + 1, there

    def staying_bytes(self, period: float, choice: Crossing) -> Floats:
        """Memory that stashes of an interval take where its forwards run, weights included."""
        if math.isinf(period) or stash_policy(choice.stash).remade:
            return self.weights
        return np.asarray(self.weights + self._before(self._flying(period, choice)[0] * self.chain.stash.added))

    def _least_bytes(self) -> tuple[Floats, Floats]:
        """Memory that a device cannot do without that runs forwards only, or backwards: one layer at a time."""
        costs = self.chain.costs
        work = costs.workspaces
        used = work.forward.astype(float)
        made = (np.minimum(work.backward, work.inputs) + costs.stash_bytes).astype(float)
        stays = self._of(self.x.fixed) - self._of(self.x.workspace)
        return self.weights + self._largest(used), stays + self._largest(made)

    def _largest(self, of_layer: Floats) -> Floats:
        rows = np.maximum.accumulate(np.triu(np.broadcast_to(of_layer, (len(of_layer),) * 2)), axis=1)
        found = np.zeros((len(of_layer) + 1,) * 2)
        found[:-1, 1:] = rows
        return self._of(found)

    def _forward_bytes(self, period: float, choice: Crossing) -> Floats:
        """Memory of a device that only runs forwards, at least: parameters, those on their way, and stashes."""
        costs = self.chain.costs
        if math.isinf(period):
            return self._least_bytes()[0]
        if stash_policy(choice.stash).remade:
            left = self._of(self.x.incoming)
        elif choice.early >= 1:
            left = self._largest(costs.stash_bytes.astype(float))
        else:
            left = self._before(self._flying(period, choice)[0] * self.chain.stash.added)
        return np.asarray(self.weights + self._sent + self._of(self.x.held) + self._of(self.x.workspace) + left)

    def _backward_bytes(self, period: float, choice: Crossing) -> Floats:
        """Memory of a device that runs backwards: stashes in flight, and copies of the weights that they need."""
        if math.isinf(period):
            return self._least_bytes()[1]
        flying, costs, row = self.in_flight(period), self.chain.costs, stash_policy(choice.stash)
        alone = np.zeros(len(flying), dtype=np.bool_)
        stale = self.terms.rules.staleness(flying, alone)
        copies = self.terms.rules.at_entry(int(stale[0])).copies(flying, alone)
        held = self._before(copies * costs.own_trained_bytes)
        stash = self._of(self.x.stash)
        if row.hosted:
            kept = 2 * stash  # one that is used, one that comes
        elif row.remade:
            kept = np.append(flying, 1.0)[self.at][:, None] * self._of(self.x.incoming) + stash
        else:
            kept = self._before(self._flying(period, choice)[1] * self.chain.stash.added)
        return np.asarray(self._of(self.x.fixed) + self._sent + held + kept, dtype=np.float64)

    def reach(self, period: float) -> Reach | None:
        """What can be reached with at most this period in seconds, as far as estimates tell; None: not all layers."""
        rules, flying = self.terms.rules, self.in_flight(period)[:1]
        if rules.limit is not None and rules.staleness(flying, np.zeros(1, dtype=np.bool_))[0] > rules.limit:
            return None
        found = Reach(self, period)
        return found if found.extend() else None


class Reach:
    """What can be reached at one period: by devices used, [choice of the last backwards, forwards, backwards]."""

    def __init__(self, chains: Chains, period: float) -> None:
        self.c, self.period = chains, period * (1 + TOLERANCE.same)
        terms, n = chains.terms, chains.size
        self.order, self.choices, self.n = terms.order[::-1], terms.choices, n
        cut = np.where(chains.at > 0, chains.x.crossing[chains.at] / chains.bandwidth, 0.0) <= self.period
        self.cut = ~np.tri(n, dtype=np.bool_) & cut[:, None]
        meets = np.maximum(np.arange(n)[:, None, None], np.arange(n)[None, None, :])
        ends = np.arange(n)[None, :, None]
        most = max(self.limit(device) for device in self.order)
        fits = [
            (chains.rates(q.stash) <= self.period) & (chains.staying_bytes(period, q) <= most) for q in self.choices
        ]
        self.links = [fit[meets, ends] | (meets >= ends) for fit in fits]
        """[choice][new piece's first, its end, other side's first]: whether what crosses between the two fits."""
        behind = np.arange(n)[:, None] >= np.arange(n)[None, :]
        self.forward_next, self.backward_next = behind, behind.T
        self.bytes = [(chains._forward_bytes(period, q), chains._backward_bytes(period, q)) for q in self.choices]
        self._intervals: dict[tuple[float, float | None, int, int], tuple[Flags, Flags]] = {}
        self._pairs: dict[tuple[float, float | None, int, int], Flags] = {}
        self.states: list[Flags] = []

    # ---------------------------------------------------------------- what one device may run

    def _key(self, device: int, q: int) -> tuple[float, float | None, int, int]:
        kind = self.c.cluster.devices[device].kind
        return kind.speed, kind.memory_bandwidth, self.limit(device), q

    def seconds(self, device: int, q: int) -> tuple[Floats, Floats]:
        """Seconds of forwards and of backwards on a device, by interval."""
        c, speed = self.c, self.c.speed(device)
        again = c.forward if stash_policy(self.choices[q].stash).remade else 0.0
        return c.forward / speed, (c.backward + again) / speed + c.steps(device)

    def limit(self, device: int) -> int:
        """Bytes that a device may fill."""
        return self.c.chain.limit(device) - self.c.terms.spare.get(device, 0)

    def allowed(self, device: int, q: int) -> tuple[Flags, Flags]:
        """Which intervals a device may run forwards of, or backwards of, and nothing else."""
        key = self._key(device, q)
        if key not in self._intervals:
            forward, backward = self.seconds(device, q)
            ahead, back = self.bytes[q]
            self._intervals[key] = (
                self.cut & (forward <= self.period) & (ahead <= key[2]),
                self.cut & (backward <= self.period) & (back <= key[2]),
            )
        return self._intervals[key]

    def pairs(self, device: int, q: int) -> Flags:
        """[i', i, j', j]: whether a device may run forwards [i', i) and backwards [j', j)."""
        key = self._key(device, q)
        if key not in self._pairs:
            every = np.arange(self.n)
            self._pairs[key] = self.both(device, q, *np.ix_(every, every, every, every))
        return self._pairs[key]

    def both(self, device: int, q: int, a: Ints, b: Ints, c: Ints, d: Ints) -> Flags:
        """Whether a device may run forwards [a, b) and backwards [c, d); numbers of cuts, arrays that broadcast."""
        forward, backward = self.seconds(device, q)
        weights = self.c.weights
        # forwards whose backwards run elsewhere lie in front of the backwards' interval, or behind it
        more = weights[a, np.maximum(np.minimum(b, c), a)] + weights[np.minimum(np.maximum(a, d), b), b]
        fits = self.bytes[q][1][c, d] + more <= self.limit(device)
        return np.asarray(self.cut[a, b] & self.cut[c, d] & fits & (forward[a, b] + backward[c, d] <= self.period))

    # ---------------------------------------------------------------- one device more

    def extend(self) -> bool:
        """Fills `states`, one a device; whether they reach the first layer on both sides."""
        state = np.zeros((len(self.choices), self.n, self.n), dtype=np.bool_)
        state[0, -1, -1] = True
        self.states = [state]
        unequal = len({self._key(device, 0) for device in self.order}) > 1
        for device in self.order:
            check_time()
            state = self._after(state, device) | (state if unequal else False)
            self.states.append(state)
            if state[:, 0, 0].any():
                return True
            if not state.any():
                return False
        return False

    def _after(self, state: Flags, device: int) -> Flags:
        """What one device more reaches."""
        found = np.zeros_like(state)
        before = np.asarray((state & self.backward_next).any(axis=0))
        for q in range(len(self.choices)):
            forward, backward = self.allowed(device, q)
            here = state[q] & self.forward_next
            found[q] |= ((forward[:, :, None] & self.links[q]) & here[None]).any(axis=1)
            there = (backward[:, :, None] & self.links[q]) & before.T[None]
            found[q] |= there.any(axis=1).T
            if self.c.terms.shared:
                found[q] |= self._shared(state, device, q)
        return found

    def _meeting(self, state: Flags, q: int) -> tuple[Flags, Flags]:
        """[i', i, j] and [i, j', j]: what is reached and lets new pieces cross to those they meet, forwards in front
        of which backwards are, or the other way round."""
        ahead = np.zeros((self.n,) * 3, dtype=np.bool_)
        for old in range(len(self.choices)):
            ahead |= self.links[old] & (state[old] & self.forward_next & ~self.backward_next)[None]
        below = np.asarray((state & self.backward_next).any(axis=0))
        behind = self.links[q] & below.T[None]
        return ahead, np.asarray(behind.transpose(2, 0, 1))

    def _shared(self, state: Flags, device: int, q: int) -> Flags:
        """What is reached by a device that runs forwards and backwards of one interval, or of two."""
        n, some = self.n, np.asarray(state.any(axis=0))
        every = np.arange(n)
        if n <= SIZE.shared_cuts:
            ahead, behind = self._meeting(state, q)
            found = (self.pairs(device, q) & (ahead[:, :, None, :] | behind[None])).any(axis=(1, 3))
            return np.asarray(found)
        found = np.zeros((n, n), dtype=np.bool_)
        if some[-1, -1]:
            last = np.array(n - 1)
            found |= self.both(device, q, every[:, None], last, every[None, :], last)
        same = self.both(device, q, every[:, None], every[None, :], every[:, None], every[None, :])
        found[every, every] |= (same & some.diagonal()[None]).any(axis=1)
        ahead, behind = self._meeting(state, q)
        zero = np.array(0)
        ends = self.both(device, q, zero, every[:, None], zero, every[None, :])
        found[0, 0] |= bool((ends & (ahead[0] | behind[:, 0, :])).any())
        return found

    # ---------------------------------------------------------------- the way back

    def pieces(self) -> Pieces:
        """Pieces that reach the first layer on both sides."""
        q, i, j = int(np.flatnonzero(self.states[-1][:, 0, 0])[0]), 0, 0
        found: list[Piece] = []
        for step in reversed(range(len(self.states) - 1)):
            if self.states[step][q, i, j]:
                continue  # this device is left out
            piece, (q, i, j) = self._last(self.states[step], self.order[step], q, i, j)
            found.append(piece)
        return tuple(reversed(found))

    def _last(self, before: Flags, device: int, q: int, i: int, j: int) -> tuple[Piece, tuple[int, int, int]]:
        """The piece by which (q, i, j) was reached from what was reached before, and from where."""
        at, choice = self.c.at, self.choices[q]
        forward, backward = self.allowed(device, q)
        ends = np.flatnonzero(before[q, :, j] & self.forward_next[:, j] & forward[i] & self.links[q][i, :, j])
        if len(ends):
            end = int(ends[-1])
            return Piece(device, (int(at[i]), int(at[end])), None, choice), (q, end, j)
        sides = before & self.backward_next
        ends = np.flatnonzero(np.asarray(sides.any(axis=0))[i] & backward[j] & self.links[q][j, :, i])
        if len(ends):
            end = int(ends[-1])
            return Piece(device, None, (int(at[j]), int(at[end])), choice), (_first(sides[:, i, end]), i, end)
        every = np.arange(self.n)
        fits = self.both(device, q, np.array(i), every[:, None], np.array(j), every[None, :])
        ahead, behind = self._meeting(before, q)
        first, second = map(int, np.argwhere(fits & (ahead[i] | behind[:, j, :]))[0])
        ways = before[:, first, second].copy()
        if first > second:
            ways &= np.array([link[i, first, second] for link in self.links])
        both = Piece(device, (int(at[i]), int(at[first])), (int(at[j]), int(at[second])), choice)
        return both, (_first(ways), first, second)


def _first(flags: Flags) -> int:
    return int(np.flatnonzero(flags)[0])


@dataclass(frozen=True)
class Solution:
    """Pieces of a period of `period_s`; no pieces of these terms are known to do with `below_s` or less."""

    below_s: float
    period_s: float
    pieces: Pieces


def least_chains(terms: Terms, below_s: float, cap_s: float) -> Solution | None:
    """Pieces with the least period above `below_s`, which none goes below, and at most `cap_s`; None without any.

    Where the layers are many, cuts are first looked for at few of them, then near those that were found.
    Raises OutOfTime.
    """
    layers = len(terms.split.chain)
    found = _bisected(Chains(terms, spread(terms, layers)), below_s, cap_s)
    if found is None or layers < SIZE.chain_cuts:
        return found
    while True:
        check_time()
        closer = _bisected(Chains(terms, _near(found.pieces, layers)), below_s, found.period_s * (1 - TOLERANCE.chains))
        if closer is None or closer.period_s >= found.period_s * (1 - TOLERANCE.chains):
            return found
        found = closer


def _bisected(chains: Chains, below_s: float, cap_s: float) -> Solution | None:
    best = chains.reach(cap_s)
    if best is None:
        return None
    low, high = min(max(below_s, chains.floor_s), cap_s), cap_s
    first = low * (1 + TOLERANCE.same)
    if first < high:
        tried = chains.reach(first)
        if tried is not None:
            return Solution(low, first, tried.pieces())
    while high > low * (1 + TOLERANCE.chains):
        middle = (low + high) / 2
        tried = chains.reach(middle)
        if tried is None:
            low = middle
        else:
            high, best = middle, tried
    return Solution(low, high, best.pieces())


def spread(terms: Terms, layers: int) -> list[int]:
    """Layers to cut at: all of them, or the ends of equal shares of the work."""
    if layers < SIZE.chain_cuts:
        return list(range(layers + 1))
    x = terms.split.intervals
    work = x.forward[0] + x.backward[0]
    shares = np.searchsorted(work, np.linspace(0, work[-1], SIZE.chain_cuts)[1:-1])
    return sorted({0, layers, *np.clip(shares, 1, layers - 1).tolist()})


def _near(pieces: Pieces, layers: int) -> list[int]:
    """Layers to cut at: where these pieces are cut, and as many next to that as there may be."""
    ends: set[int] = {end for piece in pieces for side in (piece.forward, piece.backward) if side for end in side}
    found, away = set(ends), 1
    while len(found) < min(SIZE.chain_cuts, layers + 1):
        for end in sorted(ends):
            near = {end - away, end + away}
            found |= {at for at in near if 0 <= at <= layers and len(found) < SIZE.chain_cuts}
        away += 1
    return sorted({0, layers, *found})


def refined(pieces: Pieces, layers: int) -> tuple[Cuts, list[Piece], list[Piece]]:
    """The cuts of both chains together, and for every stage the pieces that run its forward and its backward."""
    ends = sorted({end for piece in pieces for side in (piece.forward, piece.backward) if side for end in side})
    forward, backward = [], []
    for first in ends[:-1]:
        forward.append(next(p for p in pieces if p.forward and p.forward[0] <= first < p.forward[1]))
        backward.append(next(p for p in pieces if p.backward and p.backward[0] <= first < p.backward[1]))
    return tuple(end for end in ends if 0 < end < layers), forward, backward
