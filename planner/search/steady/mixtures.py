"""Forward and backward devices, stash choices and cuts annealed together for the least period, on one pipeline.

What the programmes cannot mix (two forwards on one device, the backward of one of them on another, a third recomputed)
the compiled timetable of `modulo` prices: every pass has a time within the period, and what devices hold is added up
over it. The simulation has the last word; what it finds missing is taken off the limits.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from ...basics import check_time
from ...graph import KEEP
from ...lower import Assembled, period_seconds
from ...plan import Plan
from ...problem import WEIGHT_POLICIES
from .. import modulo
from ..common import MIXTURE, SECONDS, TOLERANCE, Session, balanced, priced
from .alternatives import orders
from .build import excess_for_long
from .chains import Crossing, Terms, refined
from .mixture_plans import CODES, Method, built, case_of
from .own_cuts import rules_of
from .separate import without_limits
from .tables import Split

Take = Callable[[Assembled], bool]
Described = list[tuple[int, int, int, int]]


@dataclass(eq=False)
class Line:
    """An arm, its weight policy, how it anneals, and what it may decide.

    offered_s: the least period that was promised of a plan of it that fits; simulated_s: what that plan's is.
    """

    method: Method
    arm: modulo.Arm
    heat: modulo.Heat
    allowed: modulo.Allowed
    offered_s: float = math.inf
    simulated_s: float = 0.0

    @property
    def worth_s(self) -> float:
        """The period of its decisions: what the timetable says, or the simulation where that was longer."""
        offered = self.arm.period_s >= self.offered_s * (1 - TOLERANCE.same)
        return max(self.arm.period_s, self.simulated_s) if offered else self.arm.period_s


def _promising(lines: list[Line], most: int) -> list[Line]:
    """So many of sorted lines: the best of every kind, some of which are slower to show, then the others."""
    first = list({(line.heat, line.allowed): line for line in reversed(lines)}.values())
    first.sort(key=lambda line: line.worth_s)
    return [*first, *(line for line in lines if line not in first)][:most]


@dataclass
class Mixtures:
    """The search among mixtures.

    take: is given every plan that fits, with its period; says whether it is the best. turn: how often all of this was
    done before: other random numbers. _promised: the most that the timetable has said so far of what a plan takes.
    """

    session: Session
    take: Take
    turn: int = 0
    simulated: int = 0
    found_s: float | None = None
    _promised: float = 1.0
    _moves_s: float = 0.0
    _stop: modulo.Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def __post_init__(self) -> None:
        problem, space = self.session.problem, self.session.space
        self.split = Split(problem, (tuple(range(len(problem.cluster))),))
        self.chain = self.split.chain
        menu = tuple(CODES[policy] for policy in (KEEP, *priced(problem, space)))
        apart = space.separate_backward
        self.allowed = modulo.Allowed((*menu, modulo.LATE) if apart else menu, apart)
        self.methods = [m for m in map(self._method, space.asynchronous) if m is not None]
        self.cases = {method: case_of(self.split, method, space.split_backward) for method in self.methods}

    def _method(self, name: str) -> Method | None:
        """A weight policy; None where its updates do not come out."""
        workload, policy = self.session.problem.workload, WEIGHT_POLICIES[name]
        used = min(len(self.session.problem.cluster), len(self.chain))
        update = workload.update_every or policy.least_update(used)
        if workload.micro_batches % update or workload.micro_batches // update < 2:
            return None
        most = min(len(self.chain), max(MIXTURE.chunks * used, MIXTURE.stages))
        while policy.least_update(most) > update:
            most -= 1
        return Method(name, update, most)

    # ---------------------------------------------------------------- starts

    def run(self) -> None:
        """Anneals from the best plan, and from plain ones, in rounds; the most promising go on. Raises OutOfTime."""
        lines = [line for line in self._starts() if line.arm.evaluate(line.allowed) < modulo.NEVER]
        lines.sort(key=lambda line: line.arm.period_s)
        for most, share, moves in MIXTURE.rounds:
            lines = self._round(_promising(lines, most), share, moves)
        patience = MIXTURE.patience
        while lines and patience and not self._over():
            before_s = self.session.best_s
            lines = self._round(lines, *MIXTURE.rounds[-1][1:])
            patience = MIXTURE.patience if self.session.best_s < before_s else patience - 1

    def _starts(self) -> Iterator[Line]:
        seed, best = (self.session.seed + self.turn * 104_729) * 7919, self.session.best
        for method in self.methods:
            known = [] if best is None else [stages for stages in (self.described(best),) if stages is not None]
            if not self.turn:
                known += self._whatever_fits(method)
            known += [waiting for stages in known if (waiting := self._waiting(stages)) != stages]
            for n, stages in enumerate([*known, *self._plain(method)]):
                if len(stages) <= method.stages:
                    arm = modulo.Arm.of(self.cases[method], stages, method.stages, self._cap_s, seed + n)
                    hot, even = MIXTURE.heats[n % len(MIXTURE.heats)]
                    allowed = self._allowed_of(stages, n // len(MIXTURE.heats) + self.turn, plain=n >= len(known))
                    yield Line(method, arm, modulo.Heat(hot, hot * MIXTURE.cooled, even), allowed)

    def _allowed_of(self, stages: Described, number: int, plain: bool) -> modulo.Allowed:
        """What a line may decide that begins with these stages: some may do less, and are sooner annealed.

        Every other one whose stages have one device each keeps it so; every other time that all begins anew, `plain`
        lines keep to the stash choices that they begin with.
        """
        menu, apart = self.allowed.menu, self.allowed.apart
        if all(front == rear for _, front, rear, _ in stages) and number % 2 == 0:
            apart = False
        if plain and self.turn % 2 == 0:
            used = {modulo.KEEP, modulo.LATE, *(code for *_, code in stages)}
            menu = tuple(code for code in menu if code in used)
        return modulo.Allowed(menu if apart else tuple(code for code in menu if code != modulo.LATE), apart)

    def _whatever_fits(self, method: Method) -> Iterator[Described]:
        """The best pairs of cuts for any amount of memory: what they take too much of may wait, or go, elsewhere."""
        problem = self.session.problem
        count = min(len(problem.cluster), 2 * len(self.chain))
        rules = rules_of(problem, method.name, 1, count) if self.allowed.apart else None
        for order, shared in product(orders(problem, count) if rules is not None else (), (False, True)):
            assert rules is not None
            terms = Terms(self.split, order, rules, (Crossing(KEEP, 1.0),), shared)
            found = without_limits(terms, min(self.session.best_s * (1 - TOLERANCE.same), self._cap_s))
            if found is not None:
                cuts, forward, backward = refined(found.pieces, len(self.chain))
                ends = (*cuts, len(self.chain))
                yield [
                    (end, a.device, b.device, modulo.KEEP) for end, a, b in zip(ends, forward, backward, strict=True)
                ]

    @property
    def _cap_s(self) -> float:
        """No plan needs a longer period: everything in a row, recomputed, twice."""
        costs, problem = self.chain.costs, self.session.problem
        slowest = min(device.kind.speed for device in problem.cluster.devices)
        work = float(2 * costs.forward_s.sum() + costs.backward_s.sum()) / slowest
        steps = max(float(self.chain.step_s(d)[-1]) for d in range(len(problem.cluster)))
        return max(2 * (work + steps), SECONDS.shortest)

    def described(self, plan: Plan) -> Described | None:
        """The decisions of a plan with one route on this order of layers; None of another."""
        routes = {(p.forward, p.backward) for p in plan.pipelines if p.micro_batches}
        if len(routes) > 1 or not self.chain.cuts_into(plan.stages):
            return None
        forward, backward = routes.pop()
        found, end = Described(), 0
        for s, names in enumerate(plan.stages):
            end += len(names)
            texts = Counter[str]()
            for pipeline, row in zip(plan.pipelines, plan.stash, strict=True):
                texts[row[s]] += len(pipeline.micro_batches)
            found.append((end, forward[s], backward[s], CODES.get(texts.most_common(1)[0][0], modulo.KEEP)))
        return found

    def _waiting(self, stages: Described) -> Described:
        """The same with stashes that wait on their forward's device for a part of their time."""
        late = modulo.LATE in self.allowed.menu
        return [
            (end, a, b, modulo.LATE if late and a != b and code == modulo.KEEP else code) for end, a, b, code in stages
        ]

    def _plain(self, method: Method) -> Iterator[Described]:
        """Stages of even load: one a device or several, there and back or round and round, backwards elsewhere."""
        devices = len(self.session.problem.cluster)
        used = min(devices, len(self.chain))
        for count in dict.fromkeys((used, 2 * used, 3 * used, (used + 1) // 2)):
            if not 1 <= count <= method.stages:
                continue
            lap = tuple(range(min(count, used)))
            for turn in (lap, lap[::-1]) if count > used else (lap,):
                route = (lap + turn + lap)[:count]
                cuts = balanced(self.chain, route)
                if cuts is None:
                    continue
                ends = (*cuts, len(self.chain))
                mirrored = tuple(devices - 1 - d for d in route)
                for back in dict.fromkeys((route, mirrored)) if self.allowed.apart else (route,):
                    for code in self.allowed.menu:
                        if code != modulo.LATE:
                            rows = zip(ends, route, back, strict=True)
                            yield [(end, a, b, code) for end, a, b in rows]

    # ---------------------------------------------------------------- rounds

    def _round(self, lines: list[Line], share: float, most: int) -> list[Line]:
        """Every line is annealed with an equal part of a share of the time, or effort, that is left, and offered."""
        budget, size = self.session.clock.budget(share), len(self.chain) * len(self.session.problem.cluster)
        most = max(MIXTURE.least_moves, int(most * size * MIXTURE.longer**self.turn))
        until_s = min(budget.deadline, time.monotonic() + share * max(0.0, self.session.remaining_s))
        for n, line in enumerate(lines):
            if self._over():
                break
            check_time()
            moves = min(most, self._moves(line, budget.effort, until_s, len(lines) - n, len(lines)))
            began = time.monotonic()
            self._improve(line, moves)
            self._moves_s = (time.monotonic() - began) / moves
            self._offer(line)
        self.session.clock.spend(share)
        return sorted(lines, key=lambda line: line.worth_s)

    def _improve(self, line: Line, moves: int) -> None:
        """One annealing on a thread of its own: it ends when time is up or Ctrl-C comes, whatever is left of it."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(line.arm.improve, line.allowed, moves, line.heat, self._stop)
            try:
                while wait([running], timeout=SECONDS.progress).not_done:
                    if self.session.over:
                        self._stop[0] = 1
            except KeyboardInterrupt:
                self._stop[0] = 1
                self.session.clock.interrupt()
            running.result()

    def _moves(self, line: Line, effort: float, until_s: float, left: int, lines: int) -> int:
        """How many moves a line gets."""
        if self.session.clock.fixed:
            return max(MIXTURE.least_moves, int(effort / lines * MIXTURE.rate / line.arm.count))
        if not self._moves_s:
            began = time.monotonic()
            line.arm.improve(line.allowed, MIXTURE.least_moves, line.heat, self._stop)
            self._moves_s = max((time.monotonic() - began) / MIXTURE.least_moves, SECONDS.shortest)
        offered_s = self.session.clock.longest_s + SECONDS.progress  # what is found has to be simulated
        each_s = max(0.0, until_s - offered_s - time.monotonic()) / left
        return max(MIXTURE.least_moves, int(each_s / self._moves_s))

    def _over(self) -> bool:
        best_s, proof = self.session.best_s, self.session.proof
        return self.session.over or best_s <= proof.asked_s * (1 + TOLERANCE.proven)

    # ---------------------------------------------------------------- plans

    def _offer(self, line: Line) -> None:
        """Simulates what promises to beat the best plan; where it does not fit, the line gets less memory."""
        for _ in range(MIXTURE.fitted):
            least_s = min(self.session.best_s * self._promised, line.offered_s) * (1 - TOLERANCE.same)
            if line.arm.period_s >= least_s or self._over():
                return
            with self.session.clock.simulating():
                found = built(self.split, line.method, line.arm)
                if found is None:
                    return
                self.simulated += 1
                excess = excess_for_long(found.plan)
                if not excess.total:
                    line.offered_s = line.arm.period_s
                    found = replace(found, forecast=replace(found.forecast, period_s=period_seconds(found.plan)))
                    line.simulated_s = found.forecast.objective_s
                    if line.simulated_s:
                        self._promised = max(self._promised, line.offered_s / line.simulated_s)
                    if self.take(found):
                        self.found_s = line.simulated_s
                    return
            if not any(excess.devices):
                return
            line.arm.lower(list(excess.devices))
            line.arm.improve(line.allowed, MIXTURE.least_moves, modulo.Heat(MIXTURE.cold, MIXTURE.cold), self._stop)
