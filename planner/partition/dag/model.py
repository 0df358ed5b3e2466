"""CP-SAT model of a partition: Booleans "group g is in the first s + 1 stages", monotone in s and along the order.

All whole-number costs are rounded down, so the solver's bound holds for the problem; what it finds is priced anew.

A question with yes or no (is there a partition within the cap?) is answered many times faster than the best partition
is found, so a proof asks that. Every solver has one thread; two differ in whether they use linear relaxation.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from ...basics import end_asked
from .problem import Block, GraphProblem, Partition, Tensor
from .windows import Ticks, WindowRule, byte_ticks

_Linear = cp_model.LinearExpr | int
_SHRINK = 0.9
"""The solver starts anew when an improvement leaves less than this share of the decisions."""
_POLL_S = 0.005


@dataclass(frozen=True)
class Found:
    """What one solve says: a partition of at most the cap, if any; `done`: the solver has proven its answer.

    `bound`: no partition of at most the cap takes less, in ticks; None: there is none. `effort`: deterministic seconds.
    """

    partition: Partition | None
    bound: int | None
    done: bool
    effort: float = 0.0


class StageModel:
    """Partitions whose every stage takes at most `cap` ticks: the best one, or (`decide`) any."""

    def __init__(
        self, problem: GraphProblem, ticks: Ticks, rule: WindowRule, cap: int, lower: int, *, decide: bool = False
    ) -> None:
        self.problem, self.ticks, self.rule, self.cap = problem, ticks, rule, cap
        self.windows = rule.at(cap)
        self.possible = not self.windows.empty and lower <= cap
        self.model = cp_model.CpModel()
        if not self.possible:
            return
        self.stages = range(problem.stages)
        self.decide = decide
        self.longest = self.model.new_int_var(cap if decide else max(lower, 0), cap, "longest")
        self.add_variables()
        self.add_order()
        self.add_loads()
        self.add_memory()
        self.add_totals()
        if not decide:
            self.model.minimize(self.longest)

    # ---------------------------------------------------------------- variables

    def add_variables(self) -> None:
        """The Booleans, constants outside the windows; which stages are CPUs; which groups run lean where."""
        model, problem = self.model, self.problem
        no, yes = model.new_constant(0), model.new_constant(1)
        self.within = []
        for g in range(len(problem)):
            first, last = int(self.windows.first[g]), int(self.windows.last[g])
            row = [no if s < first else yes if s >= last else model.new_bool_var(f"y{g}_{s}") for s in self.stages]
            self.within.append(row)
        self.cpu = [model.new_bool_var(f"cpu{s}") for s in self.stages] if problem.cpus else []
        self.lean = {
            (g, s): model.new_bool_var(f"lean{g}_{s}")
            for g, group in enumerate(problem.groups)
            if group.lean is not None
            for s in self.range(g)
        }

    def range(self, g: int) -> range:
        """The stages that group g can be in."""
        return range(int(self.windows.first[g]), int(self.windows.last[g]) + 1)

    def at(self, g: int, s: int) -> _Linear:
        """1 when group g is in stage s."""
        if s not in self.range(g):
            return 0
        return self.within[g][s] - self.within[g][s - 1] if s > self.windows.first[g] else self.within[g][s]

    # ---------------------------------------------------------------- constraints

    def add_order(self) -> None:
        """Stages follow one another; with a group all its predecessors; no empty stage where none may be."""
        model = self.model
        for g, row in enumerate(self.within):
            for s in self.range(g)[:-1]:
                model.add_implication(row[s], row[s + 1])
        for a, b in self.problem.graph.edges:
            for s in range(int(self.windows.first[b]), int(self.windows.last[a])):
                model.add_implication(self.within[b][s], self.within[a][s])
        if self.problem.every:
            for s in self.stages:
                model.add(sum(self.at(g, s) for g in range(len(self.problem))) >= 1)
        if self.cpu:
            model.add(sum(self.cpu) == self.problem.cpus)

    def add_loads(self) -> None:
        """Every stage takes at most the longest."""
        for (g, s), lean in self.lean.items():
            self.model.add(lean <= self.at(g, s))
        for s in self.stages:
            if self.problem.overlap:
                self.model.add(self.ticks.grain * self.grains(s) <= self.longest)
                if s:
                    self.model.add(self.crossing(s - 1) <= self.longest)
            elif self.cpu:
                cpu = sum(t * self.at(g, s) for g, t in enumerate(self.ticks.cpu_work) if t)
                self.model.add(cpu <= self.longest).only_enforce_if(self.cpu[s])
                self.model.add(self.work(s) + self.moved(s) <= self.longest).only_enforce_if(~self.cpu[s])
            else:
                self.model.add(self.work(s) + self.moved(s) <= self.longest)

    def grains(self, s: int) -> _Linear:
        """Work of a stage as a variable in grains, so that it moves by whole grains."""
        most = self.cap // self.ticks.grain
        count = self.model.new_int_var(0, most, f"grains{s}")
        self.model.add(self.work(s) <= count)
        return count

    def work(self, s: int) -> _Linear:
        """Grains of work of an accelerator with stage s; keeps away what cannot run there."""
        terms: list[_Linear] = []
        for g, grains in enumerate(self.ticks.work):
            if grains > 0:
                terms.append(grains * self.at(g, s))
            elif grains < 0 and s in self.range(g):
                self.model.add(self.at(g, s) <= (self.cpu[s] if self.cpu else 0))
            if (g, s) in self.lean:
                terms.append((self.ticks.lean_work[g] - grains) * self.lean[g, s])
        return sum(terms)

    def crossing(self, s: int) -> _Linear:
        """Ticks of the tensors from the first s + 1 stages to the others."""
        terms = []
        for tensor, ticks in zip(self.problem.tensors, self.ticks.costs, strict=True):
            if not ticks or s < self.windows.first[tensor.source]:
                continue
            crosses = self.model.new_bool_var("")
            for target in tensor.targets:
                if s < self.windows.last[target]:
                    self.model.add_bool_or(crosses, ~self.within[tensor.source][s], self.within[target][s])
            terms.append(ticks * crosses)
        return sum(terms)

    def moved(self, s: int) -> _Linear:
        """Ticks of the tensors that enter or leave stage s."""
        terms = []
        for tensor, ticks in zip(self.problem.tensors, self.ticks.costs, strict=True):
            near = [g for g in (tensor.source, *tensor.targets) if s in self.range(g)]
            if ticks and near:
                terms.append(ticks * self._is_split(tensor, s))
        return sum(terms)

    def _is_split(self, tensor: Tensor, s: int) -> cp_model.IntVar:
        """Has stage s the tensor's source without a target, or a target without the source?

        The same twice: linear for the relaxation, clauses for propagation.
        """
        split = self.model.new_bool_var("")
        for target in tensor.targets:
            for here, there in ((tensor.source, target), (target, tensor.source)):
                self.model.add(split >= self.at(here, s) - self.at(there, s))
                inside = [~self.within[here][s], *([self.within[here][s - 1]] if s else [])]
                self.model.add_bool_or(split, *inside, self.within[there][s])
                if s:
                    self.model.add_bool_or(split, *inside, ~self.within[there][s - 1])
        return split

    def add_memory(self) -> None:
        """What an accelerator holds is within its limit; stage s has a micro-batch in flight for each from s on."""
        problem = self.problem
        if not math.isfinite(problem.limit_bytes):
            return
        ways = [(g, g.lean if g.lean is not None else g) for g in problem.groups]
        sizes = [v for g, w in ways for v in (g.static_bytes, w.static_bytes, g.in_flight_bytes, w.in_flight_bytes)]
        counts, limit = byte_ticks(sizes, problem.limit_bytes)
        for s in self.stages:
            flying = problem.stages - s
            terms: list[_Linear] = []
            for g in range(len(problem)):
                static, lean_static, flight, lean_flight = counts[4 * g : 4 * g + 4]
                plain = static + flying * flight
                if plain:
                    terms.append(plain * self.at(g, s))
                if (g, s) in self.lean:
                    terms.append((lean_static + flying * lean_flight - plain) * self.lean[g, s])
            held = self.model.add(sum(terms) <= limit)
            if self.cpu:
                held.only_enforce_if(~self.cpu[s])

    def add_totals(self) -> None:
        """What the first stages do fits their number, and what the others do theirs: implied, and it guides."""
        least = [int(t) for t in self.ticks.least]
        total, count = sum(least), len(self.stages)
        for s in self.stages[:-1]:
            done = sum(t * self.within[g][s] for g, t in enumerate(least) if t)
            self.model.add(done <= (s + 1) * self.longest)
            self.model.add(total - done <= (count - 1 - s) * self.longest)

    # ---------------------------------------------------------------- solving

    def hint(self, partition: Partition) -> None:
        """Starts the search near a partition."""
        if not self.possible:
            return
        shift = len(self.stages) - len(partition) if not self.cpu else 0
        for s, block in enumerate(partition, start=shift):
            for g in block.groups:
                for t in self.range(g)[:-1]:
                    self.model.add_hint(self.within[g][t], int(s <= t))

    def solve(self, seconds: float, workers: int, seed: int, deterministic: float | None = None) -> Found:
        """Runs the solver; ends early when an improvement makes a smaller model possible."""
        if not self.possible:
            return Found(None, None, True)
        limits = (seconds, deterministic)
        race = [_Run(self, limits, seed + number, number) for number in range(min(2, max(1, workers)))]
        first = _race(race)
        return replace(self._found(first, race), effort=first.solver.response_proto.deterministic_time)

    def _found(self, first: _Run, race: Sequence[_Run]) -> Found:
        if first.status == cp_model.INFEASIBLE:
            return Found(None, None, True)
        bound = None if self.decide else max(math.ceil(run.solver.best_objective_bound - 1e-6) for run in race)
        if not first.found:
            return Found(None, bound, False)
        return Found(self._partition(first.solver), bound, not self.decide and first.status == cp_model.OPTIMAL)

    def worth_restart(self, longest: float) -> bool:
        """Does a partition with this longest stage leave a much smaller model?"""
        return self.rule.at(int(longest) - 1).free < _SHRINK * self.windows.free

    def _partition(self, solver: cp_model.CpSolver) -> Partition:
        place = [next(s for s in self.stages if solver.value(row[s])) for row in self.within]
        lean = {(g, s) for (g, s), literal in self.lean.items() if solver.value(literal)}
        blocks = []
        for s in self.stages:
            groups = tuple(g for g in range(len(self.problem)) if place[g] == s)
            if groups:
                cpu = bool(self.cpu) and bool(solver.value(self.cpu[s]))
                blocks.append(Block(groups, cpu, frozenset(g for g in groups if (g, s) in lean)))
        return tuple(blocks)


class _Run:
    """One single-threaded solve in a thread of its own."""

    def __init__(self, model: StageModel, limits: tuple[float, float | None], seed: int, number: int) -> None:
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.max_time_in_seconds = max(limits[0], 0.01)
        if limits[1] is not None:
            parameters.max_deterministic_time = limits[1]
        parameters.num_workers = 1
        parameters.random_seed = seed
        parameters.linearization_level = 1 - number
        parameters.catch_sigint_signal = False
        # OR-Tools 9.15 drops enforcement literals of rows that total more than 2^31 here: wrongly infeasible
        # (google/or-tools issue 5293).
        parameters.presolve_inclusion_work_limit = 0
        self.status: object = cp_model.UNKNOWN
        watch = None if model.decide else _Restart(model.worth_restart)
        self.thread = threading.Thread(target=self._solve, args=(model.model, watch), daemon=True)

    def _solve(self, model: cp_model.CpModel, watch: cp_model.CpSolverSolutionCallback | None) -> None:
        self.status = self.solver.solve(model, watch)

    @property
    def found(self) -> bool:
        """Is there a solution?"""
        return self.status in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def _race(runs: Sequence[_Run]) -> _Run:
    """Runs all until one has ended, or Ctrl-C, stops the others, and returns the one that knows most."""
    for run in runs:
        run.thread.start()
    try:
        while all(run.thread.is_alive() for run in runs) and not end_asked():
            time.sleep(_POLL_S)
    finally:
        for run in runs:
            run.solver.stop_search()
        for run in runs:
            run.thread.join()
    decided = [run for run in runs if run.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)]
    found = sorted((run for run in runs if run.found), key=lambda run: run.solver.objective_value)
    return [*decided, *found, *runs][0]


class _Restart(cp_model.CpSolverSolutionCallback):
    """Stops the solver at a solution after which it is worth starting anew."""

    def __init__(self, worth: Callable[[float], bool]) -> None:
        super().__init__()
        self.worth = worth

    def on_solution_callback(self) -> None:
        """Called by the solver at every better solution."""
        if self.worth(self.objective_value):
            self.stop_search()
