"""Plans without a flush with one cut for the forwards and another for the backwards: solved, built, made to fit.

The programme (`chains.py`) says which pieces the devices run, the timetable (`timetable.py`) in which order; the
simulation has the last word. Where a plan does not fit, the programme runs again with more room on the devices that
lack it, and the same pieces are tried with longer periods, which have fewer micro-batches on their way.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...basics import PlanError, check_time
from ...graph import Candidate, require_sound, stash_policy, static_bytes, step_seconds, update_size
from ...lower import Assembled, Orders, assembled, period_seconds
from ...plan import Pipeline
from ..common import COUNT, SECONDS, SIZE, TOLERANCE, Session, limits
from .build import LATE, NEVER, SOON, Excess, excess_for_long
from .chains import Chains, Crossing, Piece, Pieces, Solution, Terms, least_chains, refined, spread
from .timetable import Timetable, listed

Taken = Callable[[Assembled], bool]


@dataclass(frozen=True)
class Way:
    """Pieces as a plan. excess: of its devices, and of the hosts."""

    pieces: Pieces
    found: Assembled
    excess: Excess


@dataclass
class TwoChains:
    """The search among pairs of cuts on one order of devices, for one weight policy.

    Attributes:
        take: is given every plan that fits, with its period, and says whether it is the best.
        best_s: only shorter periods are of use. below_s: no plan has a shorter one.
        simulated, fit: numbers of plans. best, found_s: pieces of the best plan, and its period.
        least_bad: what lacks least memory.
    """

    session: Session
    terms: Terms
    method: str
    source: str
    take: Taken
    best_s: Callable[[], float]
    below_s: float = 0.0
    simulated: int = 0
    fit: int = 0
    best: Pieces | None = None
    found_s: float | None = None
    least_bad: Assembled | None = None
    _missing: float = math.inf
    _known: dict[tuple[object, ...], Way | None] = field(default_factory=dict)

    @property
    def cap_s(self) -> float:
        """Longer periods are of no use; of one group."""
        return min(self.best_s() * (1 - TOLERANCE.same), self._serial_s) * len(self.terms.split.groups)

    @property
    def _serial_s(self) -> float:
        """No pieces need a longer period: everything in a row, twice."""
        split, groups = self.terms.split, len(self.terms.split.groups)
        x, chain = split.intervals, split.chain
        slowest = min(chain.speed(device) for device in self.terms.order)
        links = [split.small.cluster.link(a, b) for a in self.terms.order for b in self.terms.order if a != b]
        slow = min((link.bandwidth for link in links), default=math.inf)
        hosts = [node.host_link for node in split.small.cluster.node_groups]
        host = min(min(link.bandwidth for link in hosts), slow) / max(1, len(self.terms.order))
        moved = float(x.stash[0, -1] + x.own[0, -1] + x.crossing.sum())
        work = float(2 * x.forward[0, -1] + x.backward[0, -1]) / slowest
        steps = max(float(chain.step_s(device)[-1]) for device in self.terms.order)
        return max(2 * (work + steps + moved / host), SECONDS.shortest) / groups

    # ---------------------------------------------------------------- solving and building

    def first(self) -> None:
        """The best pair of cuts with all stashes kept and sent at once, made to fit. Raises OutOfTime."""
        self._made_to_fit(replace(self.terms, choices=self.terms.choices[:1]))

    def run(self) -> None:
        """The same with every choice, then plans next to the best of them. Raises OutOfTime."""
        if len(self.terms.choices) > 1:
            self._made_to_fit(self.terms)
        if self.best is not None and not self._done:
            self.polish(self.best)

    def shortest_of_memory(self) -> None:
        """A plan to say what is missing, where nothing has been simulated."""
        found = None if self.simulated else without_limits(self.terms, self.cap_s)
        if found is not None:
            self.tried(found.pieces, found.period_s)

    @property
    def hopeless(self) -> bool:
        """Whether nothing fits, whatever the cuts, one micro-batch and one layer at a time."""
        layers = len(self.terms.split.chain)
        free = replace(self.terms, choices=self.terms.choices[:1], spare={})
        return layers < SIZE.chain_cuts and Chains(free, range(layers + 1)).reach(math.inf) is None

    @property
    def _done(self) -> bool:
        return self.session.over or self.best_s() <= self.below_s * (1 + TOLERANCE.proven)

    def solve(self, terms: Terms) -> Solution | None:
        """The least period of any pair of cuts that is of use, as far as estimates tell; of one group."""
        return least_chains(terms, self.below_s * len(terms.split.groups), self.cap_s)

    def _made_to_fit(self, terms: Terms) -> None:
        """Solves, builds, and leaves more room where memory is missing, until a plan fits or none is of use."""
        seen = set[Pieces]()
        if math.isinf(self.best_s()):
            self._lightest(terms)
        for _ in range(COUNT.roomier):
            found = self.solve(terms)
            if found is None or self._done:
                return
            way = self.tried(found.pieces, found.period_s)
            if way is None or not way.excess.total:
                return
            if found.pieces not in seen:
                self.slower(found.pieces, found.period_s)
            seen.add(found.pieces)
            spare = dict(terms.spare)
            for d in range(len(terms.split.groups[0])):
                lack = max(way.excess.devices[group[d]] for group in terms.split.groups)
                spare[d] = spare.get(d, 0) + lack
            if way.excess.hosts and not any(way.excess.devices):
                return
            terms = replace(terms, spare=spare)
            self.terms = replace(self.terms, spare=spare)

    def _lightest(self, terms: Terms) -> None:
        """A first plan: one micro-batch at a time, on the cuts that the most room is left for."""
        cap_s = self.cap_s
        found = Chains(terms, spread(terms, len(terms.split.chain))).reach(cap_s)
        if found is not None:
            self.tried(found.pieces(), cap_s)

    def slower(self, pieces: Pieces, period_s: float) -> None:
        """The same pieces with the least longer period at which they fit: fewer micro-batches are on their way."""
        low, high = period_s, self.cap_s
        if not math.isfinite(high) or high <= low:
            return
        for _ in range(COUNT.slower):
            if self._done or high <= low * (1 + TOLERANCE.chains):
                return
            middle = math.sqrt(low * high)
            way = self.tried(pieces, middle)
            if way is None:
                return
            if way.excess.total:
                low = middle
            else:
                high = min(middle, self.cap_s)

    # ---------------------------------------------------------------- one plan

    def candidate(self, pieces: Pieces) -> Candidate:
        """The stages, routes and stash policies of pieces. Raises PlanError where updates do not come out."""
        split = self.terms.split
        cuts, forward, backward = refined(pieces, len(split.chain))
        width, batches = len(split.groups), split.whole.workload.micro_batches
        pipelines = tuple(
            Pipeline(
                tuple(group[piece.device] for piece in forward),
                tuple(group[piece.device] for piece in backward),
                tuple(range(g, batches, width)),
            )
            for g, group in enumerate(split.groups)
        )
        row = tuple(piece.choice.stash for piece in backward)
        candidate = Candidate(split.whole, split.chain.stages(cuts), pipelines, (row,) * width, self.method)
        require_sound(candidate)
        require_runs(candidate)
        return candidate

    def leads(self, candidate: Candidate, period_s: float) -> list[int | None]:
        """How late stashes are sent where the devices of their backwards lack room, and those of their forwards do not.

        Estimates of both; what the simulation has found missing (terms.spare) is left free.
        """
        table, costs, first = Timetable.of(candidate, 0, period_s), candidate.costs, candidate.pipelines[0]
        allowed, waiting = limits(candidate.problem), self.terms.rules.update - 1
        flying = [ahead + waiting for ahead in table.ahead]
        static = static_bytes(candidate, costs)
        free = [limit - sum(parts.values()) for limit, parts in zip(allowed, static, strict=True)]
        for d, spare in self.terms.spare.items():
            free[self.terms.split.groups[0][d]] -= spare
        space = Counter[int]()
        for s, (here, there) in enumerate(zip(first.forward, first.backward, strict=True)):
            row, held = stash_policy(candidate.stash[0][s]), int(costs.trained_bytes[s])
            copies = self.terms.rules.at_entry(flying[0]).copies(np.array(float(flying[s])), np.array(False))
            free[there] -= held * int(copies)
            free[here] -= held + int(costs.stash_bytes[s]) if here != there else 0
            sizes = sum(edge.bytes for edge in costs.edges if s in (edge.producer, edge.consumer))
            free[here] -= 2 * sizes
            free[there] -= 2 * sizes
            space[here], space[there] = (max(space[d], int(costs.workspace_bytes[s])) for d in (here, there))
            stays = int(row.moved_bytes(costs)[s]) * (2 if row.hosted else flying[s])
            free[there] -= stays + (int(costs.stash_bytes[s]) if row.remade else 0)
        for d, size in space.items():
            free[d] -= size
        found: list[int | None] = [None] * len(flying)
        late = [s for s, may in enumerate(table.may_wait) if may and costs.stash_bytes[s]]
        for s in sorted(late, key=lambda s: -int(costs.stash_bytes[s])):
            here, there, size = first.forward[s], first.backward[s], int(costs.stash_bytes[s])
            back = min(flying[s] - 2, -(-max(0, -free[there]) // size), max(0, free[here]) // size)
            if back > 0:
                found[s] = flying[s] - back - 1
                free[there] += back * size
                free[here] -= back * size
        return found

    def tried(self, pieces: Pieces, period_s: float) -> Way | None:
        """The plan of these pieces with a timetable of this period; of its ways to leave room, the first that fits."""
        key = pieces, period_s, tuple(sorted(self.terms.spare.items()))
        if key not in self._known:
            self._known[key] = self._tried(pieces, period_s)
        return self._known[key]

    def _tried(self, pieces: Pieces, period_s: float) -> Way | None:
        best: Way | None = None
        try:
            candidate = self.candidate(pieces)
            if least_period(candidate) >= self.best_s() * (1 - TOLERANCE.same):
                return None
            leads = self.leads(candidate, period_s)
            hosted = any(stash_policy(policy).hosted for policy in candidate.stash[0])
            for waits in (False, True) if hosted else (False,):
                for leaving in (NEVER, LATE, SOON):
                    if self.session.over and best is not None:
                        return best
                    with self.session.clock.simulating():
                        way = self._simulated(pieces, candidate, listed(candidate, period_s, leads, leaving, waits))
                    if best is None or way.excess.total < best.excess.total:
                        best = way
                    if not best.excess.total:
                        return best
        except PlanError:
            return best
        return best

    def _simulated(self, pieces: Pieces, candidate: Candidate, orders: Orders) -> Way:
        check_time()
        self.simulated += 1
        found = assembled(candidate, orders, self.source, period=False)
        excess = excess_for_long(found.plan)
        if not excess.total:
            self.fit += 1
            forecast = replace(found.forecast, period_s=period_seconds(found.plan))
            found = replace(found, forecast=forecast)
            if self.take(found):
                self.best, self.found_s = pieces, found.forecast.objective_s
        elif excess.total < self._missing:
            self.least_bad, self._missing = found, excess.total
        return Way(pieces, found, excess)

    # ---------------------------------------------------------------- next to a plan

    def polish(self, pieces: Pieces) -> None:
        """From pieces to better ones next to them, as long as there are any and few have been simulated."""
        most = self.simulated + COUNT.near_cuts
        while True:
            for near in neighbours(pieces, self.terms.choices):
                if self._done or self.simulated >= most:
                    return
                before = self.best_s()
                self._fitted(near)
                if self.best_s() < before * (1 - TOLERANCE.same):
                    pieces = near
                    break
            else:
                return

    def _fitted(self, pieces: Pieces) -> None:
        try:
            least_s = least_period(self.candidate(pieces))
        except PlanError:
            return
        if least_s >= self.best_s() * (1 - TOLERANCE.same):
            return
        way = self.tried(pieces, least_s * len(self.terms.split.groups))
        if way is not None and way.excess.total:
            self.slower(pieces, least_s * len(self.terms.split.groups))


def without_limits(terms: Terms, cap_s: float) -> Solution | None:
    """The least period of any pair of cuts, up to a cap, with all the memory that there may be; of one group."""
    everything = 1 << 62
    return least_chains(replace(terms, spare=dict.fromkeys(terms.order, -everything)), 0.0, cap_s)


def require_runs(candidate: Candidate) -> None:
    """Raises PlanError where the executor, or the host, would not have it: the checker's reasons."""
    cluster = candidate.problem.cluster
    for pipeline, row in zip(candidate.pipelines, candidate.stash, strict=True):
        for here, there, policy in zip(pipeline.forward, pipeline.backward, row, strict=True):
            if stash_policy(policy).hosted and not cluster.same_node(here, there):
                raise PlanError(f"devices {here} and {there} have no host in common")
        for tie in candidate.costs.ties:
            for device in {*pipeline.forward, *pipeline.backward}:
                mine = [s for s in tie.stages if device in (pipeline.forward[s], pipeline.backward[s])]
                if len(mine) > 1:
                    raise PlanError(f"device {device} would run stages {mine}, which share parameters")


def least_period(candidate: Candidate) -> float:
    """Seconds a micro-batch of the busiest device, link, NIC or host link: no plan of a candidate is faster."""
    costs, cluster, update = candidate.costs, candidate.problem.cluster, update_size(candidate)
    busy: defaultdict[tuple[object, ...], float] = defaultdict(float)
    for pipeline, row in zip(candidate.pipelines, candidate.stash, strict=True):
        share = len(pipeline.micro_batches) / candidate.problem.workload.micro_batches

        def message(source: int, target: int, size: float, often: float) -> None:
            if source == target:
                return
            seconds = often * size / cluster.link(source, target).bandwidth
            ends: list[tuple[object, ...]] = [("link", source, target)]
            if not cluster.same_node(source, target):
                ends = [("out", source), ("in", target)]
            for end in ends:
                busy[end] += seconds

        for s, policy in enumerate(row):
            here, there, rule = pipeline.forward[s], pipeline.backward[s], stash_policy(policy)
            speeds = [cluster.devices[d].kind.speed for d in (here, there)]
            again = float(costs.forward_s[s]) if rule.remade else 0.0
            busy["device", here] += share * float(costs.forward_s[s]) / speeds[0]
            busy["device", there] += share * (float(costs.backward_s[s]) + again) / speeds[1]
            busy["device", there] += step_seconds(candidate, costs, s, there) / update
            moved = float(rule.moved_bytes(costs)[s])
            if rule.hosted:
                for d, way in ((here, "to"), (there, "from")):
                    node = cluster.node_groups[cluster.devices[d].node]
                    busy[way, cluster.host_links[d]] += share * moved / node.host_link.bandwidth
            else:
                message(here, there, moved, share)
            message(there, here, float(costs.own_trained_bytes[s]), 1 / update)
        for edge in costs.edges:
            message(pipeline.forward[edge.producer], pipeline.forward[edge.consumer], edge.bytes, share)
            message(pipeline.backward[edge.consumer], pipeline.backward[edge.producer], edge.bytes, share)
    return max(busy.values(), default=0.0)


def neighbours(pieces: Pieces, choices: Sequence[Crossing]) -> Iterator[Pieces]:
    """Pieces that differ in one layer between two devices of one side, or in what becomes of one's stashes."""
    for k, piece in enumerate(pieces):
        for choice in choices if piece.backward else ():
            if choice != piece.choice:
                yield (*pieces[:k], replace(piece, choice=choice), *pieces[k + 1 :])
    for side in ("forward", "backward"):
        mine = [k for k, piece in enumerate(pieces) if getattr(piece, side)]
        for later, earlier in zip(mine, mine[1:], strict=False):
            (a, b), (_, d) = getattr(pieces[earlier], side), getattr(pieces[later], side)
            for moved in (b - 1, b + 1):
                if a < moved < d:
                    found: list[Piece] = list(pieces)
                    found[earlier] = pieces[earlier].with_side(side, (a, moved))
                    found[later] = pieces[later].with_side(side, (moved, d))
                    yield tuple(found)
