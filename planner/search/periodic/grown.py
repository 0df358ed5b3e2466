"""Rules of the dispatcher: those that are best on few devices, grown to twice as many again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ... import bounds
from ...basics import PlanError, drop_stale
from ...graph import Candidate
from ...lower import assemble
from ...plan import Plan
from ..common import BLOCK, COUNT, GROWTH, SIZE, TOLERANCE, Session, excess, structures
from ..jit import SOURCES
from ..named import Order, not_split
from . import dispatch, kernel, tables
from .cases import case_of, compute_orders
from .coarse import Legs, coarse, in_legs, legs_of
from .dispatch import FIRST
from .kernel import NEVER
from .ready import KERNELS
from .rules import improve_rules
from .tables import Case, Floats, Work, scratch

_GOLDEN = 0x9E3779B97F4A7C15

drop_stale((improve_rules,), (tables, kernel, dispatch, *SOURCES))


@dataclass(eq=False)
class Way:
    """A structure, and the same on fewer and fewer devices, the fewest first."""

    candidate: Candidate
    whole: frozenset[int]
    cases: list[Case]

    @property
    def visits(self) -> int:
        """Stages of a device."""
        return (len(self.cases[0].legs) - 1) // 2

    def ops(self, size: int) -> int:
        """Ops of that size, all kinds."""
        case = self.cases[size]
        return len(case.device) // 2 * 3 * int(case.batches[0])


@dataclass(eq=False)
class Line:
    """Rules for one way, and their step at some size, as a share of what its busiest device computes."""

    way: Way
    seed: int
    size: int = 0
    value: float = NEVER
    rules: Floats = field(init=False)
    state: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.rules = np.zeros(FIRST + 5 * self.way.visits - 1)
        self.rules[0], self.rules[1] = 1.0, 0.5
        self.rules[FIRST + 4 * self.way.visits :] = 1.0
        self.state = np.array([(self.seed + 1) * _GOLDEN % 2**64 | 1], dtype=np.uint64)

    def improve(self, tries: int, moves: int, heat: tuple[float, float], scratched: tuple[Work, Legs]) -> None:
        """So many rules at random, then so many moves from one temperature to another."""
        case = self.way.cases[self.size]
        work, legs = scratched
        much = 1.0 if self.size == 0 else GROWTH.finer
        known = self.value * _busiest(case)
        step = improve_rules(case, work, legs, self.rules, known, tries, moves, *heat, much, self.state)
        self.value = float(step) / _busiest(case) if step < NEVER else NEVER

    def scratched(self) -> tuple[Work, Legs]:
        """What a run at this size writes on."""
        case = self.way.cases[self.size]
        return scratch(case, 1), legs_of(case)

    def grow(self) -> None:
        """Takes the same rules to the next size."""
        self.size, self.value = self.size + 1, NEVER
        self.improve(0, 0, (1.0, 1.0), self.scratched())


def _busiest(case: Case) -> float:
    return case.load * int(case.batches[0])


def search_grown(session: Session, orders: list[Order]) -> bool:
    """Offers what rules of the dispatcher come to; whether that became the best plan."""
    if session.done or not orders or not KERNELS.ready(session.clock, session.remaining_s):
        return False
    grown = session.rounds.goes_on("grown", lambda: Grown(session, orders[0]))
    assert isinstance(grown, Grown)
    return grown.run()


class Grown:
    """Lines that compete at one size after the other. Effort in units of deterministic time, as in `Races`."""

    def __init__(self, session: Session, order: Order) -> None:
        self.session = session
        large = session.ops > SIZE.one_cut
        self.share = GROWTH.share if large else GROWTH.small_share
        self.most_ways, self.chunks = (GROWTH.ways, SIZE.chunks) if large else (GROWTH.small_ways, BLOCK.chunks)
        self.ways = list(self._ways(order))
        self.lines: list[Line] = []
        self.calls, self.saved, self.hopeless = 0, 0.0, not self.ways

    def _ways(self, order: Order) -> Iterator[Way]:
        """The structures with the least bounds, of those that can be had on fewer devices."""
        session = self.session
        found = []
        for candidate in structures(session.problem, session.space, session.chain, [order], self.chunks):
            ops = 3 * len(candidate.stages) * session.problem.workload.micro_batches
            if len(candidate.pipelines) == 1 and ops <= GROWTH.ops and self._simulated_s(ops) <= self._least_left_s():
                found.append((bounds.candidate(candidate, None, session.space.split_backward), candidate))
        found.sort(key=lambda one: one[0])
        for least_s, candidate in found[: self.most_ways]:
            whole = not_split(session.space, candidate)
            case = case_of(candidate, whole, [session.problem.workload.micro_batches])
            if least_s < session.best_s * (1 - TOLERANCE.same) and in_legs(case):
                yield Way(candidate, whole, [*(coarse(case, few) for few in sizes(len(case.room))), case])

    def _simulated_s(self, ops: int) -> float:
        """Seconds that the plan of so many ops takes, judged by the longest simulation so far, of 1F1B."""
        clock = self.session.clock
        return 0.0 if clock.fixed else GROWTH.simulations * clock.longest_s * ops / self.session.ops

    def _least_left_s(self) -> float:
        """Seconds that may be left for the plan, once there is one."""
        return GROWTH.left * self.session.remaining_s

    def run(self) -> bool:
        """All sizes, as long as there is time; with a deterministic limit once enough effort is saved up."""
        clock = self.session.clock
        seconds = self.share * max(0.0, self.session.remaining_s)
        if clock.effort is not None:
            self.saved += self.share * clock.effort
            clock.spend(self.share)
            if self.saved < GROWTH.least or self.hopeless or not clock.meter.go():
                return False
            seconds, self.saved = self.saved, 0.0
        if self.hopeless:
            return False
        self._hunt(min(GROWTH.most, seconds))
        for size in range(1, len(self.ways[0].cases)):
            if self.session.done or self.hopeless:
                break
            self._grow(size, min(GROWTH.most, seconds))
        clock.meter.count(seconds)
        self.calls += 1
        return not self.hopeless and not self.session.over and self._offer()

    def _hunt(self, units: float) -> None:
        """Rules at random on the fewest devices, the best of them annealed; lines of an earlier call compete."""
        first = 1_000_003 * self.calls + self.session.seed
        lines = [
            Line(way, 104_729 * n + first)
            for n, way in enumerate(self.ways * (GROWTH.starts // len(self.ways)))  # time may end before the last ones
        ]
        for number, (most, tries, share) in enumerate(GROWTH.rounds):
            lines = best_of(lines, most) if number else lines
            heat = (GROWTH.hot / (number + 1), GROWTH.cold)
            self._round(lines, tries, heat, share * units)
            self.lines = best_of(lines, GROWTH.kept)
            self.hopeless = not self.lines or self._promise() >= self.session.best_s * GROWTH.hope[number]
            if self.hopeless:
                return

    def _promise(self) -> float:
        best = self.lines[0]
        return best.value * _busiest(best.way.cases[-1])

    def _grow(self, size: int, units: float) -> None:
        """The same rules at the next size, and the best of them annealed there."""
        before = list(self.lines)
        with ThreadPoolExecutor(self.session.workers) as pool:
            list(pool.map(Line.grow, before))
        self.lines = best_of(before, max(1, GROWTH.kept >> (size - 1)))
        if self.lines:
            sizes_left = len(self.ways[0].cases) - 1
            units *= GROWTH.growing / sizes_left
            self._round(self.lines, 0.0, (GROWTH.hot / 3, GROWTH.cold), units)
            self.lines = best_of(self.lines, len(self.lines))
        self.hopeless = not self.lines

    def _round(self, lines: list[Line], tries: float, heat: tuple[float, float], units: float) -> None:
        """Every line gets an equal part of so many units, a share of it for tries, on the session's threads; where
        effort is not limited, until the seconds that they were to take are over."""
        until = math.inf if self.session.clock.fixed else time.monotonic() + units
        self.session.report("periodic rules")
        with ThreadPoolExecutor(self.session.workers) as pool:
            task = partial(self._task, units=units / max(1, len(lines)), share=tries, heat=heat, until=until)
            list(pool.map(task, lines))

    def _task(self, line: Line, units: float, share: float, heat: tuple[float, float], until: float) -> None:
        """One line's part, in pieces between which the clock is looked at; `share`: for tries."""
        runs = units * GROWTH.rate / line.way.ops(line.size)
        tries, moves = int(share * runs), int((1 - share) * runs)
        scratched, piece = line.scratched(), max(1, int(GROWTH.piece / line.way.ops(line.size)))
        if tries:
            line.improve(tries, 0, heat, scratched)
        hot, cold = heat
        for done in range(0, moves, piece):
            if self.session.over or time.monotonic() >= until:
                return
            ahead = min(moves, done + piece)
            between = [hot * (cold / hot) ** (n / moves) for n in (done, ahead)]
            line.improve(0, ahead - done, (between[0], between[1]), scratched)

    def _offer(self) -> bool:
        """The plan of the best line; where messages and workspace do not fit, with less room."""
        session, line = self.session, self.lines[0]
        less = (0,) * len(line.way.cases[-1].room)
        for _ in range(COUNT.fitted):
            if session.over:
                return False
            with session.clock.simulating():
                plan = self._plan(line, less)
            if plan is None:
                return False
            if session.offer(plan, "periodic rules"):
                return session.best is plan
            less = tuple(a + b for a, b in zip(less, excess(plan), strict=True))
        return False

    def _plan(self, line: Line, less: tuple[int, ...]) -> Plan | None:
        """The simulated plan of a line; None where it gets stuck, or is no shorter than the best."""
        way = line.way
        case = way.cases[-1]
        case = case._replace(room=case.room - np.array(less, dtype=np.float64))
        work = scratch(case, 1)
        step = float(dispatch.dispatch(case, work, legs_of(case), line.rules, NEVER))
        if step >= self.session.best_s * (1 - TOLERANCE.same):
            return None
        orders = compute_orders(way.candidate, case, work, way.whole)
        try:
            return assemble(way.candidate, orders, "search")
        except PlanError:
            return None


def sizes(devices: int) -> list[int]:
    """Fewer devices, each size half of the next one, the fewest first."""
    found, few = [], devices
    while few // 2 >= GROWTH.devices:
        few //= 2
        found.append(few)
    return found[::-1]


def best_of(lines: list[Line], count: int) -> list[Line]:
    """The lines that promise most."""
    return sorted((line for line in lines if line.value < NEVER), key=lambda line: line.value)[:count]
