"""The integer programme of zero-bubble pipeline parallelism (Qi et al., arXiv:2401.10241, appendix), as a peer.

One stage a device, one direction, F, I and W per micro-batch. Per op a start time; per pair of ops of one device whose
order nothing decides yet, a Boolean, with big-M no-overlap; per F, the memory of everything ordered before it; the
makespan is minimised. As in the authors' implementation, ops of one kind run in micro-batch order, pairs that
precedences order need no Boolean, and a heuristic schedule (here 1F1B with every W after its I) can be the start. The
big M is that schedule's length: tighter than the sum of all durations, which only helps the peer.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import networkx
from ortools.math_opt.python import mathopt
from ortools.math_opt.solvers import highs_pb2

SOLVERS = {
    "highs": mathopt.SolverType.HIGHS,
    "scip": mathopt.SolverType.GSCIP,
    "cp-sat": mathopt.SolverType.CP_SAT,
}
_LOGGED = re.compile(r"^\s*[A-Za-z]?\s+\d+\s+\d+\s+\d+\s+[\d.]+%\s+\S+\s+(\d\S*)\s")
"""A progress line of HiGHS; the group is its best solution so far."""


class Pass(NamedTuple):
    """One op: its kind ("F", "I" or "W"), its stage, which is its device, and its micro-batch."""

    kind: str
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Instance:
    """Whole ticks and whole memory units: F leaves `stash` units, I releases all but `weight_stash`, W the rest."""

    stages: int
    micro_batches: int
    forward: int
    backward_input: int
    backward_weight: int
    latency: int
    limit: int
    stash: int = 2
    weight_stash: int = 1

    def ticks(self, op: Pass) -> int:
        """Duration of an op."""
        return {"F": self.forward, "I": self.backward_input, "W": self.backward_weight}[op.kind]

    def change(self, op: Pass) -> int:
        """Units of memory an op adds."""
        return {"F": self.stash, "I": self.weight_stash - self.stash, "W": -self.weight_stash}[op.kind]

    @cached_property
    def graph(self) -> networkx.DiGraph[Pass]:
        """Precedences; an edge's `delay` is the latency of the message between two devices."""
        graph: networkx.DiGraph[Pass] = networkx.DiGraph()
        for stage in range(self.stages):
            for m in range(self.micro_batches):
                f, i, w = (Pass(kind, stage, m) for kind in "FIW")
                graph.add_edge(f, i, delay=0)
                graph.add_edge(i, w, delay=0)
                if stage:
                    graph.add_edge(Pass("F", stage - 1, m), f, delay=self.latency)
                    graph.add_edge(i, Pass("I", stage - 1, m), delay=self.latency)
                if m:
                    for op in (f, i, w):
                        graph.add_edge(Pass(op.kind, stage, m - 1), op, delay=0)
        return graph

    def one_f_one_b(self) -> list[list[Pass]]:
        """The heuristic start: 1F1B within the limit, every W right after its I."""
        orders = []
        for stage in range(self.stages):
            warm = min(self.stages - stage, self.micro_batches, self.limit // self.stash)
            order = [Pass("F", stage, m) for m in range(warm)]
            for m in range(self.micro_batches):
                order += [Pass("I", stage, m), Pass("W", stage, m)]
                order += [Pass("F", stage, m + warm)] if m + warm < self.micro_batches else []
            orders.append(order)
        return orders

    def starts(self, orders: list[list[Pass]]) -> dict[Pass, int]:
        """Earliest start of every op when the devices run these orders."""
        graph = self.graph.copy()
        for order in orders:
            for before, after in zip(order, order[1:], strict=False):
                if not graph.has_edge(before, after):
                    graph.add_edge(before, after, delay=0)
        start: dict[Pass, int] = {}
        for op in networkx.topological_sort(graph):
            waits = (start[x] + self.ticks(x) + data["delay"] for x, _, data in graph.in_edges(op, data=True))
            start[op] = max(waits, default=0)
        return start

    def makespan(self, orders: list[list[Pass]]) -> int:
        """Ticks from the first op to the last."""
        return max(start + self.ticks(op) for op, start in self.starts(orders).items())


@dataclass(frozen=True)
class Answer:
    """What the solver found.

    Attributes:
        step: ticks of the best plan's orders, left-shifted; None without a plan.
        bound: the solver's own lower bound in ticks.
        proven: whether it proved its plan optimal.
        seconds: from building the model to the solver's return.
        incumbents: (seconds since the start, ticks) of every improvement.
        orders: per device the ops in order.
    """

    step: int | None
    bound: float
    proven: bool
    seconds: float
    incumbents: tuple[tuple[float, int], ...]
    orders: tuple[tuple[Pass, ...], ...] = ()

    @property
    def seconds_to_best(self) -> float | None:
        """Seconds until the best plan was first known; None without a plan."""
        if self.step is None:
            return None
        return next((at for at, step in self.incumbents if step <= self.step), self.seconds)


@dataclass
class _Model:
    instance: Instance
    start: dict[Pass, mathopt.Variable] = field(default_factory=dict)
    first: dict[tuple[Pass, Pass], mathopt.Variable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hint = self.instance.one_f_one_b()
        self.hint_starts = self.instance.starts(self.hint)
        self.horizon = self.instance.makespan(self.hint)
        self.model = mathopt.Model(name="zero-bubble")
        self.after = {op: networkx.descendants(self.instance.graph, op) for op in self.instance.graph}
        self.span = self.model.add_integer_variable(lb=0, ub=self.horizon, name="makespan")
        self._precedences()
        self._one_at_a_time()
        self._memory()
        self.model.minimize(self.span)

    def _precedences(self) -> None:
        of = self.instance
        for op in of.graph:
            self.start[op] = self.model.add_integer_variable(lb=0, ub=self.horizon - of.ticks(op))
            self.model.add_linear_constraint(self.start[op] + of.ticks(op) <= self.span)
        for before, after, delay in of.graph.edges(data="delay"):
            self.model.add_linear_constraint(self.start[before] + of.ticks(before) + delay <= self.start[after])

    def _one_at_a_time(self) -> None:
        of, big = self.instance, self.horizon
        for a, b in self._undecided():
            order = self.first[a, b] = self.model.add_binary_variable()
            self.model.add_linear_constraint(self.start[a] + of.ticks(a) <= self.start[b] + big * (1 - order))
            self.model.add_linear_constraint(self.start[b] + of.ticks(b) <= self.start[a] + big * order)

    def _undecided(self) -> Iterator[tuple[Pass, Pass]]:
        for stage in range(self.instance.stages):
            mine = [op for op in self.instance.graph if op.stage == stage]
            yield from ((a, b) for a, b in combinations(mine, 2) if b not in self.after[a] and a not in self.after[b])

    def _memory(self) -> None:
        of = self.instance
        for op in of.graph:
            if op.kind != "F":
                continue
            held = mathopt.LinearExpression(of.stash)
            for other in of.graph:
                if other.stage == op.stage and other != op:
                    held += of.change(other) * self._before(other, op)
            self.model.add_linear_constraint(held <= of.limit)

    def _before(self, a: Pass, b: Pass) -> mathopt.LinearExpression | mathopt.Variable | int:
        """1 when a runs before b."""
        if b in self.after[a]:
            return 1
        if a in self.after[b]:
            return 0
        return self.first[a, b] if (a, b) in self.first else 1 - self.first[b, a]

    def start_solution(self) -> mathopt.SolutionHint:
        """The heuristic schedule as values of all variables."""
        at = self.hint_starts
        values = {self.start[op]: float(at[op]) for op in self.start} | {self.span: float(self.horizon)}
        values |= {order: float(at[a] < at[b]) for (a, b), order in self.first.items()}
        return mathopt.SolutionHint(variable_values=values)


def solve(
    instance: Instance, time_limit: float = 60, solver: str = "highs", workers: int = 2, start: bool = True
) -> Answer:
    """Solves the integer programme; `start`: give the solver the heuristic schedule. Seconds; raises KeyError for
    an unknown solver."""
    began = time.perf_counter()
    kind = SOLVERS[solver]
    built = _Model(instance)
    found: list[tuple[float, int]] = [(time.perf_counter() - began, built.horizon)] if start else []

    def note(step: float) -> None:
        ticks = round(step)
        if not found or ticks < found[-1][1]:
            found.append((time.perf_counter() - began, ticks))

    def heard(data: mathopt.CallbackData) -> mathopt.CallbackResult:
        if data.solution is not None:
            note(data.solution[built.span])
        return mathopt.CallbackResult()

    def read(lines: list[str]) -> None:
        for line in "\n".join(lines).split("\n"):
            if match := _LOGGED.match(line):
                note(float(match.group(1)))

    hints = [built.start_solution()] if start else []
    told: dict[str, object] = {"msg_cb": read}
    if kind != mathopt.SolverType.HIGHS:  # HiGHS has no solution events: its log tells
        told = {"cb": heard, "callback_reg": mathopt.CallbackRegistration(events={mathopt.Event.MIP_SOLUTION})}
    left = max(0.1, time_limit - (time.perf_counter() - began))
    result = mathopt.solve(
        built.model,
        kind,
        params=_parameters(kind, left, workers),
        model_params=mathopt.ModelSolveParameters(solution_hints=hints),
        **told,
    )
    return _answer(built, result, time.perf_counter() - began, found)


def _parameters(kind: mathopt.SolverType, seconds: float, workers: int) -> mathopt.SolveParameters:
    limit = datetime.timedelta(seconds=seconds)
    if kind != mathopt.SolverType.HIGHS:
        return mathopt.SolveParameters(time_limit=limit, threads=workers)
    options = highs_pb2.HighsOptionsProto()
    options.int_options["threads"] = workers
    return mathopt.SolveParameters(time_limit=limit, highs=options)


def _answer(built: _Model, result: mathopt.SolveResult, seconds: float, found: list[tuple[float, int]]) -> Answer:
    bound = result.best_objective_bound()
    if not result.has_primal_feasible_solution():
        return Answer(None, bound, False, seconds, tuple(found))
    value = result.variable_values()
    orders: list[list[Pass]] = [[] for _ in range(built.instance.stages)]
    for op in sorted(built.start, key=lambda x: value[built.start[x]]):
        orders[op.stage].append(op)
    step = built.instance.makespan(orders)
    if not found or step < found[-1][1]:
        found.append((seconds, step))
    proven = result.termination.reason == mathopt.TerminationReason.OPTIMAL
    return Answer(step, bound, proven, seconds, tuple(found), tuple(map(tuple, orders)))
