"""Replicas of single stages without a flush: PipeDream's recursion, and its 1F1B with micro-batches dealt round robin.

A stage of w replicas sums its gradients once an update, between the last backward of one and the first of the next.
Equal groups of devices are solved exactly by `programme.py`; here periods are estimated, built and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TypeVar

import numpy as np

from ...basics import OutOfTime, PlanError, check_time, until
from ...graph import KEEP, regroup, stash_policy
from ...lower import assembled
from ...partition import QUARTERS, Block, Blocks, Floats, OnBlocks, StashChoice, choices, cut_replicated, deal, sloping
from ...plan import Kind, Op, Pipeline, Plan
from ...problem import WEIGHT_POLICIES
from ..common import COUNT, HOPE, SHARE, TOLERANCE, Session, priced
from ..named import Order, device_rounds, most_stages, replicable, widths_of
from .build import Excess, excess_for_long, first_that_fits, one_stage, ways_to_leave, with_period
from .programme import Stage
from .rules import Rules

Take = Callable[[Plan, str], None]


@dataclass(frozen=True)
class Way:
    """Stages on blocks of an order of devices.

    grouped: by stage, whether an update's backwards run one after the other, so that the forwards behind them hide the
    sum of its gradients.
    """

    stages: tuple[Stage, ...]
    blocks: Blocks
    grouped: tuple[bool, ...]

    @property
    def name(self) -> str:
        """In words, for those who ask what was looked at."""
        return "-".join(str(block.width) for block in self.blocks)


@dataclass(frozen=True)
class Tried:
    """A way as a plan with its period, or what it lacks."""

    way: Way
    plan: Plan
    excess: Excess

    @property
    def score(self) -> tuple[int, float]:
        """Missing bytes first, then the period."""
        assert self.plan.forecast is not None
        return self.excess.total, self.plan.forecast.objective_s


class Replicas:
    """A search without a flush for stages with replicas, of one weight policy on one order of devices.

    hosted: whether stashes may go to the host.
    """

    def __init__(self, session: Session, take: Take, method: str, order: Order, update: int, hosted: bool) -> None:
        self.session, self.problem, self.take = session, session.problem, take
        self.method, self.order, self.update = method, order, update
        self.on = OnBlocks(session.chain, order)
        self.policy = WEIGHT_POLICIES[method]
        found = [c for c in choices((KEEP, *priced(self.problem, session.space))) if c.share in (0.0, 1.0)]
        self.options = [c for c in found if hosted or not stash_policy(c.policy).hosted]
        self.known: dict[Way, Tried | None] = {}

    # ---------------------------------------------------------------- estimates

    def rules(self, width: int) -> Rules:
        """What the weight policy asks of a stage with so many replicas."""
        return Rules(self.policy, self.update, width > 1)

    def lag(self, flying: int, width: int) -> int:
        """Versions besides the newest that a stage keeps with so many in flight on each replica."""
        if not self.policy.stashed:
            return 0
        return math.ceil((flying * width - (width == 1)) / self.update)

    def table(self, at: int, width: int) -> Floats:
        """Seconds a micro-batch of every interval of layers on a block of devices; infinite where none fits."""
        found = np.full_like(self.on.own_bytes, np.inf)
        for flying in self.on.numbers_in_flight(at, width, self.most(width)):
            found = np.minimum(found, self._with_flying(at, width, flying, self.options)[0])
        return found

    def most(self, width: int) -> int:
        """Micro-batches in flight on a replica at the most: those of a run without one update."""
        return max(1, (self.problem.workload.micro_batches - self.update) // width)

    def _with_flying(self, at: int, width: int, flying: int, options: Sequence[StashChoice]) -> tuple[Floats, Floats]:
        """The same with so many in flight and these choices, and the seconds that a micro-batch takes a replica."""
        on = self.on
        busy = on.busy_s(at, width, flying, options, self.lag(flying, width) * on.own_bytes)
        finite = np.where(np.isfinite(busy), busy, 0.0)
        period = np.maximum(self.period_s(finite, at, width), on.stay_s() / (flying * width))
        return np.where(np.isfinite(busy), period, np.inf), busy

    def period_s(self, busy: Floats, at: int, width: int) -> Floats:
        """The period that computing, links and gradient sums allow: work of a micro-batch given."""
        on, update, turns = self.on, self.update, -(-self.update // width)
        step, reduce = on.step_s(at, width), on.reduce_s(at, width)
        summing = turns * (busy - on.forward_s / on.speed(at, width)) + reduce + step if width > 1 else 0.0 * step
        links = on.links_s(at, width) / width + (reduce / update if self.networked(at, width) else 0.0)
        return np.asarray(np.maximum(np.maximum(busy / width + step / update, summing / update), links))

    def networked(self, at: int, width: int) -> bool:
        """Whether replicas sum their gradients over the NICs that activations take."""
        devices = self.problem.cluster.devices
        return len({devices[d].node for d in self.on.devices(at, width)}) == width > 1

    # ---------------------------------------------------------------- ways

    def ways(self) -> Iterator[tuple[float, Blocks]]:
        """The best blocks for every number of stages, with the period that is expected of them."""
        size, devices = len(self.on.chain) + 1, len(self.order)
        for widths in widths_of(devices, devices, self.session.space.pipelines):
            stages = most_stages(size, devices, len(widths))
            for cost, blocks in cut_replicated(self.table, size, devices, widths, stages).values():
                if any(block.width > 1 for block in blocks):
                    yield cost, blocks

    def fewer(self, blocks: Blocks) -> Iterator[Way]:
        """The stages on these blocks with as many in flight as the recursion has seen fit, and with every number."""
        for rank in (None, *range(COUNT.numbers_in_flight)):
            chosen = [self._stash(block, rank) for block in blocks]
            stages = tuple(Stage(b.first, b.end, policy, n) for b, (policy, _, n) in zip(blocks, chosen, strict=True))
            yield self._sloped(Way(stages, blocks, (False,) * len(blocks)))

    def way(self, blocks: Blocks, period_s: float, more: int = 0, alternating: bool = False) -> Way:
        """The stages on these blocks: in flight what a micro-batch's way there and back takes at this period.

        `more`: so many more on every replica. `alternating`: no stage has its backwards in a row.
        """
        found: list[Stage] = []
        grouped, trip_s = [], 0.0
        for k in reversed(range(len(blocks))):
            block = blocks[k]
            stash, busy_s, _ = self._stash(block)
            turns, summing_s = self.update / block.width, self._summing_s(block)
            own_s = block.width * period_s
            asked_s = busy_s + (trip_s + self._messages_s(block, blocks[k + 1]) if k + 1 < len(blocks) else 0.0)
            hidden_s = float(self.on.forward_s[block.first, block.end]) / self.on.speed(block.at, block.width)
            grouped.append(not alternating and turns >= 2 and summing_s > hidden_s)
            flying = max(1, math.ceil(asked_s / own_s - TOLERANCE.same)) + (block.width > 1) + more
            flying += math.ceil(turns) - 1 if grouped[-1] else 0
            trip_s = max(asked_s, (flying - 1) * own_s + busy_s)
            found.append(Stage(block.first, block.end, stash, min(flying, self.most(block.width))))
        return self._sloped(Way(tuple(found[::-1]), blocks, tuple(grouped[::-1])))

    def _sloped(self, way: Way) -> Way:
        widths = [block.width for block in way.blocks]
        # where some replica has no backward in an update, all wait for the forward that it runs before the next one
        flights = sloping([stage.in_flight for stage in way.stages], widths, [w > self.update for w in widths])
        stages = tuple(replace(stage, in_flight=n) for stage, n in zip(way.stages, flights, strict=True))
        return replace(way, stages=stages)

    def _stash(self, block: Block, rank: int | None = None) -> tuple[str, float, int]:
        """The policy and number in flight of the shortest period that fits, and the seconds of a micro-batch so.

        `rank`: of the numbers in flight worth looking at, the most that is allowed.
        """
        at = block.at, block.width
        found = []
        numbers = self.on.numbers_in_flight(*at, self.most(block.width))
        for flying in numbers if rank is None else numbers[: rank + 1][-1:]:
            for choice in self.options:
                period, busy = self._with_flying(*at, flying, [choice])
                found.append((self._entry(period, block), self._entry(busy, block), flying, choice.policy))
        period_s, busy_s, flying, policy = min(found, key=lambda one: one[:3])
        if math.isinf(period_s):
            work = (self.on.forward_s + self.on.backward_s) / self.on.speed(*at)
            return KEEP, self._entry(work, block), flying
        return policy, busy_s, flying

    @staticmethod
    def _entry(table: Floats, block: Block) -> float:
        return float(table[block.first, block.end])

    def _summing_s(self, block: Block) -> float:
        if block.width == 1:
            return 0.0
        at = block.at, block.width
        return self._entry(self.on.reduce_s(*at) + self.on.step_s(*at), block)

    def _messages_s(self, block: Block, after: Block) -> float:
        """Seconds of a tensor to the next stage and of its gradient back."""
        cluster = self.problem.cluster
        a, b = self.order[block.at + block.width - 1], self.order[after.at]
        size = int(self.on.chain.boundary_bytes[block.end])
        return sum(x.occupation_s(size) + x.latency_s for x in (cluster.link(a, b), cluster.link(b, a)))

    def least_s(self, way: Way) -> float:
        """No plan of this way has a shorter period: work, gradient sums, and what is in flight."""
        return max(starmap(self._least_s, zip(way.stages, way.blocks, way.grouped, strict=True)))

    def _least_s(self, stage: Stage, block: Block, grouped: bool) -> float:
        at, width, speed = block.at, block.width, self.on.speed(block.at, block.width)
        forward_s, backward_s = (self._entry(t, block) / speed for t in (self.on.forward_s, self.on.backward_s))
        remade = forward_s * stage.quarters / QUARTERS if stash_policy(stage.stash).remade else 0.0
        step_s, summing_s = self._entry(self.on.step_s(at, width), block), self._summing_s(block)
        busy_s = (forward_s + remade + backward_s) / width + step_s / self.update
        turns = -(-self.update // width)
        summed_s = (turns * backward_s + summing_s) / self.update
        flying = max(stage.in_flight, turns) if grouped else stage.in_flight
        return max(busy_s, summed_s, float(self.on.stay_s()[block.first, 0]) / (flying * width))

    # ---------------------------------------------------------------- plans

    def tried(self, way: Way, whole: bool = True) -> Tried | None:
        """The way as a plan, simulated once, and offered where it fits.

        `whole`: whether all that is missing is of interest (`excess_for_long`).
        """
        if way not in self.known:
            with self.session.clock.simulating():
                made = (self._made(way, leaving, whole) for leaving in ways_to_leave(way.stages))
                self.known[way] = first_that_fits(made)
            best = self.known[way]
            if best is not None and not best.excess.total:
                self.take(best.plan, "replicas of stages")
        return self.known[way]

    def _made(self, way: Way, leaving: int | None, whole: bool) -> Tried | None:
        check_time()
        names = tuple(self.on.chain.names[stage.first : stage.end] for stage in way.stages)
        batches, pairs = self.problem.workload.micro_batches, list(zip(way.stages, way.blocks, strict=True))
        dealt = deal(way.blocks, self.order, batches)
        pipelines = [Pipeline(route, route, tuple(ms)) for route, ms in dealt.items()]
        rows = {m: tuple(stage.policy(m // block.width) for stage, block in pairs) for m in range(batches)}
        orders: list[list[Op]] = [[] for _ in self.problem.cluster.devices]
        for s, ((stage, block), grouped) in enumerate(zip(pairs, way.grouped, strict=True)):
            for r, device in enumerate(self.on.devices(block.at, block.width)):
                mine = range(r, batches, block.width)
                orders[device] = list(
                    updates_in_a_row(s, stage, mine, self.update) if grouped else one_stage(s, stage, mine, leaving)
                )
        try:
            candidate = regroup(self.problem, names, pipelines, rows, self.method)
            plan = assembled(candidate, orders, "search", period=False).plan
            excess = excess_for_long(plan, whole=whole)
            return Tried(way, plan if excess.total else with_period(plan), excess)
        except PlanError:
            return None

    def fitted(self, way: Way) -> Tried | None:
        """The way as a plan, with fewer in flight on the stages that do not fit, until they do.

        None, or what still exceeds, where a bound says that it would take far longer than the best plan.
        """
        tried = None
        for _ in range(1 + COUNT.fitted):
            if self.session.over or self.least_s(way) > HOPE.replicated * self.session.best_s:
                break
            tried = self.tried(way)
            if tried is None or not tried.excess.total:
                break
            way, before = self._lighter(tried), tried.way
            if way == before:
                break
        return tried

    def _lighter(self, tried: Tried) -> Way:
        """With one in flight less on the stages that exceed."""
        way = tried.way
        over = [max(tried.excess.devices[d] for d in self.on.devices(b.at, b.width)) for b in way.blocks]
        less = tuple(
            replace(stage, in_flight=max(1, stage.in_flight - (bytes_over > 0)))
            for stage, bytes_over in zip(way.stages, over, strict=True)
        )
        return self._sloped(replace(way, stages=less))

    # ---------------------------------------------------------------- improvement

    def improve(self, start: Tried) -> None:
        """From a way to better ones next to it, as long as there are any."""
        here: Tried | None = start
        while here is not None:
            start = here
            found = (self._unless_over(way, start) for way in self.neighbours(start.way))
            here = next((t for t in found if self._nearer(t, start)), None)

    def _unless_over(self, way: Way, start: Tried) -> Tried | None:
        """The way as a plan; None where time is up, or a bound says that it comes to no better score than the start."""
        fits = not start.excess.total
        if reached(self.session) or (fits and self.least_s(way) >= start.score[1] * (1 - TOLERANCE.same)):
            return None
        return self.tried(way, whole=not fits)

    @staticmethod
    def _nearer(found: Tried | None, old: Tried) -> bool:
        return found is not None and found.score < (old.score[0], old.score[1] * (1 - TOLERANCE.same))

    def neighbours(self, way: Way) -> Iterator[Way]:
        """Ways that differ in one number in flight, one layer or device between two stages, one policy, one order."""
        for k, stage in enumerate(way.stages):
            for n in (stage.in_flight + 1, stage.in_flight - 1):
                for choice in self.options if n >= 1 else ():
                    changed = replace(stage, in_flight=n, stash=choice.policy)
                    yield self._sloped(replace(way, stages=_with(way.stages, k, changed)))
        for k in range(len(way.blocks) - 1):
            for by in (-1, 1):
                yield from self._moved_layer(way, k, by)
                yield from self._moved_device(way, k, by)
        for k in range(len(way.blocks)):
            yield from self._resized(way, k)
        for k, stage in enumerate(way.stages):
            for choice in self.options:
                if choice.policy != stage.stash:
                    yield replace(way, stages=_with(way.stages, k, replace(stage, stash=choice.policy)))
            for quarters in (stage.quarters - 1, stage.quarters + 1) if stage.stash != KEEP else ():
                if 1 <= quarters <= QUARTERS:
                    yield replace(way, stages=_with(way.stages, k, replace(stage, quarters=quarters)))
            if way.blocks[k].width > 1 and self.update > way.blocks[k].width:
                yield replace(way, grouped=_with(way.grouped, k, not way.grouped[k]))

    def _moved_layer(self, way: Way, k: int, by: int) -> Iterator[Way]:
        a, b = way.stages[k : k + 2]
        cut = a.end + by
        if a.first < cut < b.end:
            stages = _with(_with(way.stages, k, replace(a, end=cut)), k + 1, replace(b, first=cut))
            x, y = way.blocks[k : k + 2]
            blocks = _with(_with(way.blocks, k, replace(x, end=cut)), k + 1, replace(y, first=cut))
            yield replace(way, stages=stages, blocks=blocks)

    def _moved_device(self, way: Way, k: int, by: int) -> Iterator[Way]:
        x, y = way.blocks[k : k + 2]
        if x.width + by >= 1 and y.width - by >= 1:
            moved = replace(x, width=x.width + by), replace(y, at=y.at + by, width=y.width - by)
            yield self._sloped(replace(way, blocks=_with(_with(way.blocks, k, moved[0]), k + 1, moved[1])))

    def _resized(self, way: Way, k: int) -> Iterator[Way]:
        """With one device more for a stage, where one is left over, or one less."""
        for by in (1, -1):
            blocks = tuple(
                replace(b, at=b.at - by * (j <= k), width=b.width + by * (j == k)) for j, b in enumerate(way.blocks)
            )
            if blocks[0].at >= 0 and blocks[k].width >= 1:
                yield self._sloped(replace(way, blocks=blocks))


_T = TypeVar("_T")


def _with(items: tuple[_T, ...], k: int, item: _T) -> tuple[_T, ...]:
    return (*items[:k], item, *items[k + 1 :])


def updates_in_a_row(s: int, stage: Stage, micro_batches: Sequence[int], update: int) -> Iterator[Op]:
    """F, B and R of one replica: all backwards of an update, then as many forwards."""
    count = len(micro_batches)
    started = min(stage.in_flight, count)
    yield from (Op(Kind.F, s, m) for m in micro_batches[:started])
    ended = 0
    while ended < count:
        same = [k for k in range(ended, count) if micro_batches[k] // update == micro_batches[ended] // update]
        for k in same:
            while started <= k:
                yield Op(Kind.F, s, micro_batches[started])
                started += 1
            if stash_policy(stage.policy(k)).remade:
                yield Op(Kind.R, s, micro_batches[k])
            yield Op(Kind.B, s, micro_batches[k])
        ended += len(same)
        while started < min(count, ended + stage.in_flight):
            yield Op(Kind.F, s, micro_batches[started])
            started += 1


def reached(session: Session) -> bool:
    """Whether time is up, or no plan of the space asked for is better than the best plan."""
    return session.over or session.best_s <= session.proof.asked_s * (1 + TOLERANCE.proven)


def run_replicas(session: Session, take: Take) -> None:
    """Stages with replicas of their own: what is expected to be shortest first, then what is next to the best.

    `take`: called with every plan that fits.
    """
    if reached(session) or not replicable(session.problem, session.space):
        return
    with suppress(OutOfTime), session.part(session, SHARE.steady_spreads), until(session.clock.deadline):
        _run(session, take)
    check_time()


def _run(session: Session, take: Take) -> None:
    """Plans with copies to the host often take longer than is expected of them: ways without any are tried as well."""
    best: list[tuple[tuple[int, float], int, Replicas, Tried]] = []
    copies = any(stash_policy(policy).hosted for policy in priced(session.problem, session.space))
    for hosted in (True, False) if copies else (False,):
        for expected_s, number, part, blocks in _expected(session, take, hosted)[: COUNT.spreads]:
            if reached(session) or expected_s >= session.best_s * (1 - TOLERANCE.same):
                break
            ways = [part.way(blocks, expected_s, more, alike) for alike in (False, True) for more in (0, 1)]
            tries = [part.fitted(way) for way in dict.fromkeys([*ways, *part.fewer(blocks)])]
            best += [(one.score, number, part, one) for one in tries if one is not None]
    for score, _, part, one in sorted(best, key=lambda entry: entry[:2])[: COUNT.polished_spreads]:
        if score[1] <= HOPE.replicated * session.best_s:
            part.improve(one)


def _expected(session: Session, take: Take, hosted: bool) -> list[tuple[float, int, Replicas, Blocks]]:
    """Blocks of all weight policies and orders of devices with the period that is expected of them, the least first.

    hosted: whether stashes may go to the host.
    """
    workload, found = session.problem.workload, list[tuple[float, int, Replicas, Blocks]]()
    for method in session.space.asynchronous:
        least = WEIGHT_POLICIES[method].least_update
        for order in device_rounds(session.problem):
            update = workload.update_every or least(min(len(session.chain), len(order)))
            if workload.micro_batches % update or workload.micro_batches < 2 * update:
                continue
            part = Replicas(session, take, method, order, update, hosted)
            found += [(s, len(found), part, blocks) for s, blocks in part.ways() if update >= least(len(blocks))]
    return sorted(found, key=lambda entry: entry[:2])
