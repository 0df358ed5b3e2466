"""One structure in the race: its arrays, its best order so far, and the tasks that improve it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ... import bounds
from ...basics import drop_stale
from ...graph import KEEP, OFFLOAD, SHIP, Candidate, stash_policy
from ...partition import QUARTERS
from ...plan import Op
from ..common import ANNEALING, SECONDS, nearby_cuts
from ..jit import SOURCES, draw
from . import anneal, follow, greedy, kernels, local
from .arrays import build, mirror, scratch
from .kernels import NEVER, Arrays, Ints
from .stretch import stretch, windows
from .translate import from_ops, remade, to_ops, weave

_GOLDEN = 0x9E3779B97F4A7C15


drop_stale((anneal.anneal, greedy.hunt, local.tails, follow.follow), (kernels, local, follow, *SOURCES))


@dataclass(eq=False)
class Arm:
    """A structure, searched with its own random numbers.

    seconds: makespan of `order`, NEVER without one. bound_s: no order of the structure takes less. known: the order it
    was given, to go back to. offered_s: makespan of the order that was simulated last.
    """

    candidate: Candidate
    split: bool
    folded: bool
    seed: int
    lowered: tuple[int, ...] = ()
    order: Ints | None = None
    seconds: float = NEVER
    rounds: int = 0
    bound_s: float = 0.0
    known: Ints | None = None
    offered_s: float = NEVER
    arrays: Arrays = field(init=False)
    state: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = build(self.candidate, self.split, self.lowered, self.folded)
        self.state = np.array([(self.seed + 1) * _GOLDEN % 2**64 | 1], dtype=np.uint64)

    @property
    def ops(self) -> int:
        """Ops of the order: what one evaluation costs."""
        return int(self.arrays.first[-1])

    @property
    def route(self) -> tuple[tuple[int, ...], ...]:
        """The devices of every pipeline's stages, forwards and backwards."""
        return tuple(row for pipe in self.candidate.pipelines for row in (pipe.forward, pipe.backward))

    def ops_by_device(self) -> list[list[Op]]:
        """The best order as compute orders of the whole cluster."""
        assert self.order is not None
        return to_ops(self.candidate, self.arrays, self.order, self.folded)

    # ------------------------------------------------------------ starts

    def accept(self, order: Ints, worst_s: float = NEVER) -> None:
        """Takes an order if it runs, fits, and is better, and takes no more than this."""
        if len(order) != self.ops:
            return
        seconds = self._run(order, worst_s)
        if seconds < self.seconds:
            self.order, self.seconds = order, seconds

    def _run(self, order: Ints, worst_s: float = NEVER) -> float:
        work, first = scratch(self.arrays), self.arrays.first
        return float(kernels.run(self.arrays, work, order, first[:-1].copy(), first[1:].copy(), -1.0, worst_s))

    def seed_with(self, orders: Sequence[Sequence[Op]]) -> None:
        """Starts from known compute orders of the same stages and routes, whatever becomes of their stashes."""
        found = remade(self.arrays, from_ops(self.candidate, self.arrays, orders))
        for known in chain([found], self._woven(found) if self.arrays.away.any() else ()):
            before = self.order
            self.accept(known)
            if self.known is None or self.order is not before:
                self.known = known

    def seeded(self, orders: Sequence[Sequence[Op]]) -> Arm:
        """The arm started from a plan's orders; with more memory, where the plan's ships fit only in truth.

        Arrays count the most that a device holds for others beside the most of its own, whenever these are. What they
        find then is simulated, and gets less memory where it does not fit.
        """
        self.seed_with(orders)
        if self.order is not None or not (self.arrays.lent >= 0).any():
            return self
        for more in ANNEALING.guests:
            roomy = replace(self, lowered=tuple(-int(more * max(0, x)) for x in self.arrays.limit))
            roomy.seed_with(orders)
            if roomy.order is not None:
                return roomy
        return self

    def _woven(self, order: Ints) -> Iterator[Ints]:
        """An order with the places at which stashes that leave are gone, and are asked for."""
        for lead in ANNEALING.leads:
            woven = weave(self.arrays, order, lead)
            if woven is not None:
                yield woven

    def start(self, tries: int, target_s: float, stop: Ints) -> None:
        """Greedy orders by random rules; with offloaded stashes, woven into orders that have more memory."""
        if not self.arrays.away.any():
            found = self._greedy(self.arrays, tries, target_s, stop)
            if found is not None:
                self.accept(found)
            return
        for more in ANNEALING.raised:
            base = self._relaxed(more)
            found = self._greedy(base, max(1, tries // len(ANNEALING.raised)), 0.0, stop)
            if found is None:
                continue
            for woven in self._woven(found):
                self.accept(woven)

    def _greedy(self, arrays: Arrays, tries: int, target_s: float, stop: Ints) -> Ints | None:
        order, rules = np.zeros(int(arrays.first[-1]), dtype=np.int64), np.zeros(greedy.PARAMETERS)
        value = greedy.hunt(arrays, scratch(arrays), tries, target_s, self.state, order, rules, stop)
        return order if value < NEVER else None

    def _relaxed(self, more: float) -> Arrays:
        """The arrays as if every stash stayed on a device with more memory."""
        kept = tuple(tuple(KEEP if stash_policy(p).leaves else p for p in row) for row in self.candidate.stash)
        extra = [-int(more * max(0, x)) for x in self.arrays.limit]
        return build(replace(self.candidate, stash=kept), self.split, extra, self.folded)

    # ------------------------------------------------------------ improvement

    def improve(self, moves: int, target_s: float, stop: Ints) -> None:
        """One annealing from the best order, with the effort of so many runs of it; cooler in later rounds."""
        if self.order is not None:
            self.anneal(moves * self.ops, ANNEALING.hot[min(self.rounds, len(ANNEALING.hot) - 1)], target_s, stop)
            self.rounds += 1

    def anneal(self, effort: int, hot: float, target_s: float, stop: Ints) -> None:
        """One annealing from the best order, in runs of one op; hot: in ops of mean length."""
        if self.order is None:
            return
        fill = (
            ANNEALING.fills[(self.seed + self.rounds) % len(ANNEALING.fills)] if not anneal.alone(self.arrays) else -1.0
        )
        first_s = hot * max(float(self.arrays.load.sum()) / max(1, self.ops), SECONDS.tick)
        order, last_s = self.order.copy(), first_s * ANNEALING.cooled
        seconds = anneal.anneal(
            self.arrays, scratch(self.arrays), scratch(self.arrays), order, effort, first_s, last_s, target_s, fill,
            self.state, stop,
        )  # fmt: skip
        if seconds < self.seconds:
            self.order, self.seconds = order, float(seconds)

    def mutated(self, allowed: Sequence[str], split: bool) -> Arm | None:
        """The arm with the stashes of some neighbouring stages kept, or treated as allowed; None without an order."""
        if self.order is None:
            return None
        stages = len(self.candidate.stages)
        first, count = int(self._draw() * stages), 1 + int(self._draw() ** 2 * stages / 2)
        choices = [KEEP, *allowed]
        policy = choices[int(self._draw() * len(choices))]
        changed = range(first, min(stages, first + count))
        if policy in (SHIP, OFFLOAD) or self.arrays.away.any():
            return self._reshipped(policy, changed, split)
        rows = tuple(
            tuple(policy if s in changed else old for s, old in enumerate(row)) for row in self.candidate.stash
        )
        if rows == self.candidate.stash:
            return None
        candidate = replace(self.candidate, stash=rows)
        other = replace(
            self, candidate=candidate, order=None, seconds=NEVER, seed=self.seed + 15485863,
            bound_s=bound(candidate, split),
        )  # fmt: skip
        other.known = remade(other.arrays, self.order)
        other.accept(other.known)
        return other if other.order is not None else None

    def cut_elsewhere(self, worth_s: float) -> Arm | None:
        """The arm's order on a cut nearby that promises to take less than this; None where there is none."""
        if self.order is None or self.folded:
            return None
        cuts = nearby_cuts(self.candidate, worth_s)
        if not cuts:
            return None
        return self.cut_as(cuts[int(self._draw() * len(cuts))], worth_s)

    def cut_as(self, stages: tuple[tuple[str, ...], ...], worth_s: float) -> Arm | None:
        """The arm's order on another cut; None where it does not run or fit there, or the bound leaves no hope."""
        candidate = replace(self.candidate, stages=stages)
        least_s = bound(candidate, self.split)
        if self.order is None or least_s >= worth_s:
            return None
        other = replace(
            self, candidate=candidate, order=None, seconds=NEVER, seed=self.seed + 32452843, bound_s=least_s,
        )  # fmt: skip
        other.known = self.order
        other.accept(self.order)
        return other if other.order is not None else None

    def move(self, candidate: Candidate, order: Ints) -> None:
        """Becomes another structure with the same ops and this order, if that is better there."""
        other = replace(self, candidate=candidate, order=None, seconds=NEVER, known=order)
        other.accept(order)
        if other.seconds < self.seconds:
            self.candidate, self.arrays, self.known = candidate, other.arrays, order
            self.order, self.seconds, self.bound_s = other.order, other.seconds, bound(candidate, self.split)

    def _reshipped(self, policy: str, changed: Sequence[int], split: bool) -> Arm | None:
        """The arm with another choice for these stages of one part of the micro-batches, or of all."""
        plain = quartered(self.candidate)
        part = int(self._draw() * (len(plain.pipelines) + 1))
        rows = list(map(list, plain.stash))
        for p, pipeline in enumerate(plain.pipelines):
            for s in changed if part in (p, len(plain.pipelines)) else ():
                rows[p][s] = self._shipping(pipeline.forward, s) if policy == SHIP else policy
        candidate = replace(plain, stash=tuple(map(tuple, rows)))
        if candidate.stash == plain.stash:
            return None
        other = Arm(
            candidate, self.split, False, self.seed + 15485863, self.lowered, bound_s=bound(candidate, split)
        )  # fmt: skip
        other.seed_with(self.ops_by_device())
        return other if other.order is not None else None

    def _shipping(self, route: Sequence[int], stage: int) -> str:
        """To the stage's mirror, or by chance to another device; kept where there is none."""
        devices = len(self.candidate.problem.cluster)
        target = route[len(route) - 1 - stage]
        if target == route[stage] or self._draw() < ANNEALING.elsewhere:
            target = (route[stage] + 1 + int(self._draw() * (devices - 1))) % devices
        return KEEP if target == route[stage] else f"{SHIP}>{target}"

    def _draw(self) -> float:
        return float(draw(self.state))

    def tightened(self, lowered: tuple[int, ...]) -> Arm:
        """The same structure with bytes taken off its limits: for tensors in transit that the arrays leave out.

        Its order is the arm's where that still fits, or the one that the arm began with.
        """
        found = replace(self, lowered=lowered, order=None, seconds=NEVER)
        for order in (self.order, self.known):
            if found.order is None and order is not None:
                found.accept(order)
        return found

    def again(self, number: int) -> Arm:
        """The same structure with other random numbers."""
        return replace(self, seed=self.seed + 104729 * (number + 1), order=None, seconds=NEVER, rounds=0, known=None)

    def reseeded(self, number: int) -> Arm:
        """The same order with other random numbers."""
        return replace(self, seed=self.seed + 104729 * (number + 1))

    def stretched(self, longer: Arm) -> Arm:
        """The arm of a structure with more micro-batches, its order the best repetition of this one's."""
        arm = longer.again(self.seed)
        if self.order is None:
            return arm
        work, first = scratch(self.arrays), self.arrays.first
        kernels.run(self.arrays, work, self.order, first[:-1].copy(), first[1:].copy(), -1.0, NEVER)
        more = int(arm.arrays.batches.max() - self.arrays.batches.max())
        for window in windows(self.arrays, self.order, work.start, more)[: ANNEALING.repetitions]:
            arm.accept(stretch(self.arrays, self.order, work.start, window, more))
        return arm


def quartered(candidate: Candidate) -> Candidate:
    """The candidate with pipelines of its routes for every quarter of their micro-batches, if it has none yet."""
    if len(candidate.pipelines) > len({pipeline.forward for pipeline in candidate.pipelines}):
        return candidate
    parts = [
        (replace(pipeline, micro_batches=pipeline.micro_batches[k::QUARTERS]), row)
        for pipeline, row in zip(candidate.pipelines, candidate.stash, strict=True)
        for k in range(min(QUARTERS, len(pipeline.micro_batches)))
    ]
    return replace(candidate, pipelines=tuple(p for p, _ in parts), stash=tuple(row for _, row in parts))


def bound(candidate: Candidate, split: bool) -> float:
    """No order of a candidate takes less, with its own shares of the micro-batches (seconds)."""
    return bounds.candidate(candidate, tuple(len(p.micro_batches) for p in candidate.pipelines), split)


def halved(candidate: Candidate, split: bool) -> tuple[bool, ...]:
    """Whether backwards are split: where they may be, always, but both ways where two ops cost more than one."""
    return (True, False) if split and candidate.costs.overhead.op_s > 0 else (split,)


def arms_of(candidate: Candidate, split: bool, seed: int) -> list[Arm]:
    """The arms of a structure: with folded ones where it is mirrored."""
    bound_s = bound(candidate, split)
    kinds = [False] + ([True] if mirror(candidate) is not None else [])
    return [
        Arm(candidate, halves, folded, seed * 1009 + folded, bound_s=bound_s)
        for halves in halved(candidate, split)
        for folded in kinds
    ]
