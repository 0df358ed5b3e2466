"""Blocks for every structure, the best of them annealed, and repeated with all micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from ... import bounds
from ...basics import PlanError
from ...lower import assemble
from ...plan import Plan
from ..common import BLOCK, COUNT, SECONDS, TOLERANCE, Session, excess, structures
from ..named import Order, not_split
from .block import Block
from .kernel import NEVER
from .ready import KERNELS


def search_blocks(session: Session, orders: list[Order]) -> None:
    """Offers the best blocks of every structure, unrolled; in later rounds it goes on where it ended."""
    if session.done or not KERNELS.ready(session.clock, session.remaining_s):
        return
    blocks = session.rounds.repeats(lambda: Blocks(session, orders))
    assert isinstance(blocks, Blocks)
    blocks.run()


class Blocks:
    """Structures that compete for rounds of effort, in units of deterministic time as in `Races`."""

    def __init__(self, session: Session, orders: list[Order]) -> None:
        self.session = session
        self.stop = np.zeros(1, dtype=np.int64)
        self.deadline = 0.0
        self.spent = self.saved = 0.0
        self.calls = 0
        self.starts = list(self._lines(orders))
        self.lines: list[Block] = []
        largest = max((line.ops for line in self.starts), default=0)
        self.more = min(BLOCK.most_more, max(1.0, largest / BLOCK.usual_ops))

    def _lines(self, orders: list[Order]) -> Iterator[Block]:
        session, batches = self.session, self.session.problem.workload.micro_batches
        few = min(batches, max(BLOCK.fewest, BLOCK.few * session.stages))
        found = structures(session.problem, session.space, session.chain, orders, BLOCK.chunks)
        for n, candidate in enumerate(found):
            ops = 3 * len(candidate.stages) * few
            least_s = bounds.candidate(candidate, None, session.space.split_backward)
            if ops <= BLOCK.ops and least_s < session.best_s * (1 - TOLERANCE.same):
                yield Block(candidate, not_split(session.space, candidate), few, 31 * n + session.seed)

    def run(self) -> None:
        """All rounds, as long as there is time; with a deterministic limit once enough effort is saved up for them."""
        clock, part = self.session.clock, 1.0
        if clock.effort is not None:
            self.saved += BLOCK.share * clock.effort
            clock.spend(BLOCK.share)
            if self.saved < BLOCK.least or not clock.meter.go():
                return
            part, self.saved = self.saved / (BLOCK.hunt + sum(effort for _, effort in BLOCK.rounds)), 0.0
        self.stop[0], self.spent = 0, 0.0
        seconds = BLOCK.share * max(0.0, self.session.remaining_s)
        self.deadline = time.monotonic() + BLOCK.hunting * seconds
        self._round(self._hunt, self.starts, part * BLOCK.hunt)
        self._offer(best_of(self.starts, 1))
        self.stop[0], self.deadline = 0, self.deadline + (1 - BLOCK.hunting) * seconds
        for number, (most, effort) in enumerate(BLOCK.rounds):
            if self._over:
                break
            known = self.lines if number else [*self.starts, *self.lines]
            self.lines = [again for line in best_of(known, most) for again in self._variations(line, number)]
            self._round(partial(self._anneal, number), self.lines, part * effort)
            self._offer(best_of(self.lines, BLOCK.offered))
        self.calls += 1
        clock.meter.count(self.spent)

    def _variations(self, line: Block, number: int) -> list[Block]:
        """A block, the same with other random numbers, and in a later round with more passes in a period."""
        other = number + len(BLOCK.rounds) * self.calls
        others = [line.again(other, line.together)]
        if number and line.together == 1:
            others += [line.again(other, together) for together in BLOCK.together]
        return [line, *others]

    def _hunt(self, line: Block, effort: float) -> float:
        tries = min(BLOCK.most_tries, max(BLOCK.least_tries, int(effort * BLOCK.rate / line.ops)))
        line.improve(tries, 0, 1.0, self.stop)
        return tries * line.ops / BLOCK.rate

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
                self._unroll(line)

    def _unroll(self, line: Block) -> None:
        """The plan of a block with all micro-batches; where messages and workspace do not fit, with less room."""
        less = line.less or (0,) * len(line.case.room)
        for _ in range(COUNT.fitted):
            with self.session.clock.simulating():
                plan = self._plan(line.complete(less))
            if plan is None or self.session.offer(plan, "periodic blocks"):
                return
            less = tuple(a + b for a, b in zip(less, excess(plan), strict=True))

    def _plan(self, full: Block) -> Plan | None:
        """The simulated plan of a block; None where it runs into a deadlock, or is no shorter than the best."""
        orders = full.orders()
        if orders is None or full.step_s >= self.session.best_s * (1 - TOLERANCE.same):
            return None
        try:
            return assemble(full.candidate, orders, "search")
        except PlanError:
            return None


def best_of(lines: list[Block], count: int) -> list[Block]:
    """The blocks that promise most."""
    return sorted((line for line in lines if line.step_s < NEVER), key=lambda line: line.step_s)[:count]
