"""Blocks for every structure, the best of them annealed, and repeated with all micro-batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from ... import bounds
from ...basics import PlanError
from ...graph import Candidate
from ...lower import Assembled, assembled
from ..common import BLOCK, COUNT, SECONDS, TOLERANCE, Session, missing, structures
from ..named import Order, not_split
from .block import Block
from .kernel import NEVER
from .ready import KERNELS


def search_blocks(session: Session, orders: list[Order]) -> None:
    """Offers the best blocks of every structure, unrolled; in later rounds it goes on where it ended."""
    if session.done or not KERNELS.ready(session.clock, session.remaining_s):
        return
    blocks = session.rounds.goes_on("periodic blocks", lambda: Blocks(session, orders))
    assert isinstance(blocks, Blocks)
    blocks.run()


class Blocks:
    """Structures that compete for rounds of effort, in units of deterministic time as in `Races`."""

    def __init__(self, session: Session, orders: list[Order]) -> None:
        self.session = session
        self.stop = np.zeros(1, dtype=np.int64)
        self.began = self.deadline = 0.0
        self.spent = self.saved = 0.0
        self.calls = 0
        self.settled = False
        self.starts = list(self._lines(orders))
        self.lines: list[Block] = []
        largest = max((self._ops(line.candidate, 1) for line in self.starts), default=0)
        self.more = min(BLOCK.most_more, max(1.0, largest / BLOCK.usual_ops))

    def _lines(self, orders: list[Order]) -> Iterator[Block]:
        session, last = self.session, len(BLOCK.rounds)
        found = structures(session.problem, session.space, session.chain, orders, BLOCK.chunks)
        for n, candidate in enumerate(found):
            least_s = bounds.candidate(candidate, None, session.space.split_backward)
            if self._ops(candidate, last) <= BLOCK.ops and least_s < session.best_s * (1 - TOLERANCE.same):
                whole = not_split(session.space, candidate)
                yield Block(candidate, whole, self._few(0), 31 * n + session.seed, least_s)

    def _ops(self, candidate: Candidate, number: int) -> int:
        """Ops that are scheduled in a round."""
        return 3 * len(candidate.stages) * self._few(number)

    def _few(self, number: int) -> int:
        """Micro-batches that are scheduled in a round; 0: of blocks at random."""
        batches, devices = self.session.problem.workload.micro_batches, len(self.session.problem.cluster)
        return min(batches, max(BLOCK.fewest, BLOCK.few[number] * devices))

    def run(self) -> None:
        """A turn. The first, where it takes less than half of its time and leaves a block near the best plan, is
        followed by one with others: chance decides where they end, by more than what a race brings. Later ones know of
        no block where the one before ended before its time was up, but with a deterministic limit.
        """
        session, clock, first = self.session, self.session.clock, self.calls == 0
        began, most_s = time.monotonic(), BLOCK.share * max(0.0, session.remaining_s)
        if self.settled and not clock.fixed:
            self._anew()
            return
        self._turn(self.starts, self.lines)
        left_s = most_s - (time.monotonic() - began)
        if not first or clock.fixed or session.done or left_s < most_s / 2 or not self.promising:
            return
        with clock.hurried(min(1.0, left_s / max(SECONDS.tick, session.remaining_s)), 0.0):
            self._anew()

    def _anew(self) -> None:
        """A turn that knows of no block."""
        known = self.lines
        self._turn([line.anew(self.calls) for line in self._open(self.starts)], [])
        self.lines = best_of([*known, *self.lines], max(len(known), len(self.lines)))

    def _turn(self, starts: list[Block], lines: list[Block]) -> None:
        """All rounds, from blocks at random and these, as long as there is time; with a deterministic limit once enough
        effort is saved up for them.
        """
        clock, part = self.session.clock, 1.0
        if clock.effort is not None:
            self.saved += BLOCK.share * clock.effort
            clock.spend(BLOCK.share)
            if self.saved < BLOCK.least or not clock.meter.go():
                return
            part, self.saved = self.saved / (BLOCK.hunt + sum(effort for _, effort in BLOCK.rounds)), 0.0
        self.stop[0], self.spent, self.began = 0, 0.0, time.monotonic()
        seconds = (BLOCK.share if self.calls == 0 else 1.0) * max(0.0, self.session.remaining_s)
        self.deadline = self.began + BLOCK.hunting * seconds
        starts = self._hunted(starts, part * BLOCK.hunt)
        self._offer(best_of(starts, 1))
        self.stop[0], self.deadline = 0, self.began + seconds
        lines = [*starts, *lines]
        for number in range(len(BLOCK.rounds)):
            if not self._over and lines:
                lines = self._annealed(lines, number, part * self._affordable(number))
        self._go_on(seconds)
        self.settled = not self._over
        self._remember()
        self.calls += 1
        clock.meter.count(self.spent)

    def _hunted(self, starts: list[Block], effort: float) -> list[Block]:
        """The structures with their best blocks at random; with many devices more of those that come near to the best.

        A block takes long there, few are any good, and it shows on fewer devices which may be.
        """
        devices = len(self.session.problem.cluster)
        if devices < BLOCK.many:
            self._round(self._hunt, starts, effort)
            return starts
        first = BLOCK.sketching * effort
        self._round(self._sketch, starts, first)
        least = min((line.step_s for line in starts), default=NEVER)
        near = [line for line in starts if line.step_s <= BLOCK.likely * least and line.step_s < NEVER]
        again = [line.anew(n) for n in range(1, BLOCK.kinds) for line in near]
        self._round(self._sketch, [*near, *again], effort - first)
        return [*starts, *again]

    @property
    def promising(self) -> bool:
        """Whether a block comes so near to the best plan that it may get shorter than this."""
        return any(line.step_s < self.session.best_s * BLOCK.promising for line in self._open(self.lines))

    def _annealed(self, lines: list[Block], number: int, part: float) -> list[Block]:
        """The best of these and their variations after a round, or a part of it; what is better is offered."""
        most, effort = BLOCK.rounds[number]
        kept = best_of(self._open(lines), most)
        found = [again for line in kept for again in self._variations(line, number)]
        self._round(partial(self._anneal, number), found, part * effort)
        self._offer(best_of(found, BLOCK.offered))
        self.lines = found or self.lines
        return found

    def _go_on(self, seconds: float) -> None:
        """More rounds like the last one, for as long as each finds a plan that is shorter by what is worth its time."""
        before_s, last = math.inf, len(BLOCK.rounds) - 1
        if self.session.clock.effort is not None:
            return
        self.deadline += BLOCK.longer * seconds
        while not self._over and self.promising and self.session.best_s <= before_s * (1 - BLOCK.worth):
            before_s = self.session.best_s
            self.calls += 1
            self._annealed(self.lines, last, 1.0)

    def _affordable(self, number: int) -> float:
        """The part of a round's effort for which there is time, at the pace so far."""
        now = time.monotonic()
        if self.session.clock.fixed or not self.spent or now - self.began < SECONDS.tick:
            return 1.0
        units = self.more * sum(effort for _, effort in BLOCK.rounds[number:])
        return min(1.0, (self.deadline - now) * self.spent / (now - self.began) / units)

    def _open(self, lines: list[Block]) -> list[Block]:
        """Those that can still get shorter, and shorter than the best plan."""
        under_s = self.session.best_s
        return [line for line in lines if line.least_s < min(line.step_s, under_s) * (1 - TOLERANCE.same)]

    def _variations(self, line: Block, number: int) -> list[Block]:
        """A block, the same with other random numbers, and in a later round with more passes in a period."""
        other = number + len(BLOCK.rounds) * self.calls
        few = self._few(number + 1)
        others = [line.again(other, line.together, few)]
        if number and line.together == 1:
            others += [line.again(other, together, few) for together in BLOCK.together]
        return [line if few == line.few else line.again(-1, line.together, few), *others]

    def _hunt(self, line: Block, effort: float) -> float:
        tries = min(BLOCK.most_tries, max(BLOCK.least_tries, int(effort * BLOCK.rate / line.ops)))
        line.improve(tries, 0, 1.0, self.stop)
        return tries * line.ops / BLOCK.rate

    def _sketch(self, line: Block, effort: float) -> float:
        """Blocks at random on few devices, the best of them with all: so many times as there is effort for."""
        spent, tries = 0.0, 0
        while line.in_legs and not self.stop[0] and (spent < effort or tries < BLOCK.least_tries):
            tries += 1
            few = line.on_few(len(line.case.room) // BLOCK.fewer)
            few.improve(BLOCK.sketched, 0, 1.0, self.stop)
            line.follow(few, self.stop)
            spent += (BLOCK.sketched * few.ops + line.ops) / BLOCK.rate
        return spent if line.in_legs else self._hunt(line, effort)

    def _anneal(self, number: int, line: Block, effort: float) -> float:
        moves = max(1, min(BLOCK.most_moves, int(effort * BLOCK.rate / line.ops)))
        line.improve(0, moves, BLOCK.hot[number], self.stop)
        return moves * line.ops / BLOCK.rate

    @property
    def _over(self) -> bool:
        return self.session.done or time.monotonic() >= self.deadline or self.stop[0] != 0

    def _round(self, task: Callable[[Block, float], float], lines: list[Block], effort: float) -> None:
        """Every line gets an equal part of the effort, on the session's threads, until time is up."""
        share = effort * (1.0 if self.session.clock.fixed else self.more) / max(1, len(lines))
        self.session.report("periodic blocks")
        with ThreadPoolExecutor(self.session.workers) as pool:
            futures = [pool.submit(task, line, share) for line in lines]
            try:
                while wait(futures, timeout=SECONDS.progress).not_done:
                    self.session.report("periodic blocks")
                    if self.session.over or time.monotonic() >= self.deadline:
                        self.stop[0] = 1
            except KeyboardInterrupt:
                self.stop[0] = 1
                self.session.clock.interrupt()
                wait(futures)
            self.spent += sum(future.result() for future in futures)

    # ------------------------------------------------------------ offers

    def _offer(self, lines: list[Block]) -> None:
        for line in lines:
            if not self.session.over and line.step_s < self.session.best_s * (1 - TOLERANCE.same):
                self._unroll(line, self.session.best_s)

    def _remember(self) -> None:
        """The best block of every structure that comes near to the best plan, for those who search from there."""
        first: dict[int, Block] = {}
        for line in best_of([*self.lines, *self.starts], len(self.lines) + len(self.starts)):
            first.setdefault(id(line.candidate), line)
        session = self.session
        for line in list(first.values())[: BLOCK.remembered]:
            near, what = line.step_s < session.best_s * BLOCK.near, (line.candidate.pipelines, line.step_s)
            if near and not session.over and not session.rounds.tried_before("block", *what):
                self._unroll(line, session.best_s * BLOCK.near)

    def _unroll(self, line: Block, under_s: float) -> None:
        """The plan of a block with all micro-batches; where messages and workspace do not fit, with less room."""
        less = line.less or (0,) * len(line.case.room)
        for _ in range(COUNT.fitted):
            with self.session.clock.simulating():
                found = self._simulated(line.complete(less), under_s)
            if found is None:
                return
            self.session.remember(found)
            over = missing(found)
            if not any(over):
                if found.forecast.step_s < self.session.best_s:
                    self.session.offer(found.plan, "periodic blocks")
                return
            less = tuple(a + b for a, b in zip(less, over, strict=True))

    def _simulated(self, full: Block, under_s: float) -> Assembled | None:
        """A block's orders with their forecast; None where it runs into a deadlock, or takes as long as `under_s`."""
        orders = full.orders()
        if orders is None or full.step_s >= under_s * (1 - TOLERANCE.same):
            return None
        try:
            return assembled(full.candidate, orders, "search")
        except PlanError:
            return None


def best_of(lines: list[Block], count: int) -> list[Block]:
    """The blocks that promise most, of equal ones one; no more than half of one structure where others are near."""
    distinct: dict[tuple[int, float], Block] = {}
    for line in sorted(lines, key=lambda line: line.step_s):
        if line.step_s < NEVER:
            distinct.setdefault((id(line.candidate), line.step_s), line)
    ranked = list(distinct.values())
    first, others = list[Block](), list[Block]()
    for line in ranked:
        same = sum(line.candidate is one.candidate for one in first)
        near = line.step_s <= BLOCK.near * ranked[0].step_s
        (first if near and same < (count + 1) // 2 else others).append(line)
    return [*first, *others][:count]
