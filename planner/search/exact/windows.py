"""CP-SAT windows around an incumbent: free order inside a time slice of all devices, everything else fixed.

Ops before the slice keep their times; ops after it keep their order, and enter only as the longest path from each op
of the slice to the end of the step. So the model has only the ops of the slice, however long the schedule is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import accumulate
from typing import NamedTuple

from ortools.sat.python import cp_model

from ...basics import PlanError
from ...bounds import finish_seconds, message_seconds
from ...graph import Candidate, route, stash_policy
from ...lower import Orders, assemble
from ...plan import Kind, Op, Plan
from ...simulate import simulate
from ..common import TOLERANCE, excess, limits
from .instance import common_tick
from .resources import memories_suffice, one_at_a_time
from .solver import Effort, Outcome, run
from .timetable import Time, Timetable

_WORK = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R})
_NOTHING = Outcome(False, False, False, 0, 0.0)


def improve(
    candidate: Candidate, orders: Orders, lo_s: float, hi_s: float, effort: Effort, *, sideways: bool = False
) -> tuple[tuple[tuple[Op, ...], ...] | None, Outcome]:
    """Better compute orders (F, B, I, W, R per device) that differ only between lo_s and hi_s, or None.

    Ops whose start lies in [lo_s, hi_s) are free, those of one stage, kind and pipeline first in, first out.
    `sideways`: equally good orders are answers too. None also where stashes leave the device or a stage has two. The
    outcome is infeasible where the window has nothing better; a proof only as far as what a device holds besides
    stashes stays as in the incumbent. Messages are delays here, without contention for links: the answer is simulated,
    and must be shorter and exceed no limit more than the incumbent.
    Raises Deadlock or PlanError for orders that cannot run.
    """
    if any(stash_policy(name).leaves for row in candidate.stash for name in row):
        return None, _NOTHING
    if any(pipeline.forward != pipeline.backward for pipeline in candidate.pipelines):
        return None, _NOTHING
    plan = assemble(candidate, orders)
    window = _Window(candidate, plan, lo_s, hi_s, sideways)
    if not window.free or window.upper < window.lower:
        return None, Outcome(False, True, False, window.lower, 0.0)
    solver, outcome = run(window.build().model, effort, window.lower)
    if not outcome.found:
        return None, outcome
    found = window.read(solver)
    try:
        better = assemble(candidate, found)
    except PlanError:
        return None, outcome
    assert better.forecast is not None
    assert plan.forecast is not None
    allowed = plan.forecast.step_s * (1 + TOLERANCE.same if sideways else 1 - TOLERANCE.same)
    over = sum(excess(better)) > sum(excess(plan))
    return (None if over or better.forecast.step_s > allowed else found), outcome


class _Piece(NamedTuple):
    """What an op allocates at its start and another releases at its end, an R at its start."""

    made: Op
    freed: Op
    bytes: int


class _Window:
    """The ops of a slice with their earliest starts and the paths behind them, in ticks."""

    def __init__(self, candidate: Candidate, plan: Plan, lo_s: float, hi_s: float, sideways: bool) -> None:
        assert plan.forecast is not None
        self.candidate, self.plan = candidate, plan
        self.path = route(candidate)
        self.policies = [[stash_policy(name) for name in row] for row in candidate.stash]
        self.start: dict[Op, cp_model.IntVar] = {}
        timed = [[t for t in d.ops if t.op.kind in _WORK] for d in simulate(plan).devices]
        self.order = [[t.op for t in device] for device in timed]
        self.home = {op: d for d, listed in enumerate(self.order) for op in listed}
        self.seconds = {t.op: t.end_s - t.start_s for device in timed for t in device}
        self.tick = common_tick([*self._delays(), *self.seconds.values()], plan.forecast.step_s, len(self.home))
        self.size = {op: self.tick.down(seconds) for op, seconds in self.seconds.items()}
        self.begin = {t.op: self.tick.down(t.start_s) for device in timed for t in device}
        self.cut = [(sum(t.start_s < lo_s for t in device), sum(t.start_s < hi_s for t in device)) for device in timed]
        self.free = {op for listed, (i, j) in zip(self.order, self.cut, strict=True) for op in listed[i:j]}
        self.behind = {op for listed, (_, j) in zip(self.order, self.cut, strict=True) for op in listed[j:]}
        self.rest = self._rest()
        self.lower = self._lower()
        self.upper = self.tick.down(plan.forecast.step_s) - (0 if sideways or not self.tick.exact else 1)

    # ------------------------------------------------------------ the graph

    def _delays(self) -> Iterator[float]:
        for pipeline in self.candidate.pipelines:
            for a, b, size in self.candidate.costs.edges:
                for devices in (pipeline.forward, pipeline.backward):
                    yield message_seconds(self.candidate, devices[a], devices[b], size)
                    yield message_seconds(self.candidate, devices[b], devices[a], size)

    def _followers(self, op: Op) -> Iterator[tuple[Op, int]]:
        """Ops that wait for this one's end and tensors, with the delay in ticks; list order left out."""
        costs, (kind, s, m, _) = self.candidate.costs, op
        back = Op(Kind.I if Op(Kind.I, s, m) in self.home else Kind.B, s, m)
        if kind in (Kind.F, Kind.R):
            remake = Op(Kind.R, s, m)
            yield (remake if kind == Kind.F and remake in self.home else back), 0
        if kind == Kind.I:
            yield Op(Kind.W, s, m), 0
        ahead = kind == Kind.F
        for a, b, size in costs.edges if kind in (Kind.F, Kind.B, Kind.I) else ():
            if s == (a if ahead else b):
                peer = b if ahead else a
                after = Op(Kind.F if ahead else Kind.I, peer, m)
                after = after if after in self.home else Op(Kind.B, peer, m)
                yield after, self.tick.down(message_seconds(self.candidate, self.home[op], self.home[after], size))

    def _rest(self) -> dict[Op, int]:
        """Ticks from the end of an op to the end of the step at the least, through ops behind the window."""
        later: dict[Op, list[tuple[Op, int]]] = {}
        for device, (listed, (_, j)) in enumerate(zip(self.order, self.cut, strict=True)):
            for place, op in enumerate(listed):
                later[op] = [(after, delay) for after, delay in self._followers(op) if after in self.behind]
                following = max(place + 1, j)
                if following < len(listed):
                    later[op].append((self.order[device][following], 0))
        rest: dict[Op, int] = {}
        for op in TopologicalSorter({op: [x for x, _ in found] for op, found in later.items()}).static_order():
            ends = op.kind in (Kind.B, Kind.W)
            path = self.tick.down(finish_seconds(self.candidate, op.stage, self.home[op])) if ends else 0
            rest[op] = max([path, *(delay + self.size[x] + rest[x] for x, delay in later[op])])
        return rest

    def _lower(self) -> int:
        """Ticks of the step that no op of the window changes."""
        fixed = [op for op in self.home if op not in self.free and op not in self.behind]
        return max((self.begin[op] + self.size[op] + self.rest[op] for op in fixed), default=0)

    # ------------------------------------------------------------ the model

    def build(self) -> Timetable:
        """The model of the free ops: minimises the step."""
        table, earliest = Timetable(self.lower, self.upper), self._earliest()
        for op in self.free:
            start = self.start[op] = table.model.new_int_var(min(earliest[op], self.upper), self.upper, "")
            table.model.add_hint(start, self.begin[op])
            table.model.add(table.makespan >= start + self.size[op] + self.rest[op])
            table.occupy(("device", self.home[op], -1), start, self.size[op], True)
        for earlier, later, delay in self._arcs():
            table.model.add(self.start[later] >= self.start[earlier] + self.size[earlier] + delay)
        for device in range(len(self.order)):
            self._hold(table, device)
        one_at_a_time(table)
        memories_suffice(table)
        table.model.minimize(table.makespan)
        return table

    def _arcs(self) -> Iterator[tuple[Op, Op, int]]:
        """Free ops one of which waits for the other, with ticks between them: tensors, and first in, first out."""
        for op in self.free:
            yield from ((op, after, delay) for after, delay in self._followers(op) if after in self.free)
        for listed, (i, j) in zip(self.order, self.cut, strict=True):
            last: dict[tuple[Kind, int, int], Op] = {}
            for op in listed[i:j]:
                key = (op.kind, op.stage, self.path[op.micro_batch])
                if key in last:
                    yield last[key], op, 0
                last[key] = op

    def _earliest(self) -> dict[Op, int]:
        found: dict[Op, int] = defaultdict(int)
        for listed, (i, j) in zip(self.order, self.cut, strict=True):
            for op in listed[:i]:
                for after, delay in self._followers(op):
                    found[after] = max(found[after], self.begin[op] + self.size[op] + delay)
            for op in listed[i:j]:
                found[op] = max(found[op], self.begin[listed[i - 1]] + self.size[listed[i - 1]] if i else 0)
        return found

    # ------------------------------------------------------------ memory

    def _hold(self, table: Timetable, device: int) -> None:
        """The stashes that change inside the window, where the device may not hold them all."""
        held, room = self._changing(device)
        if sum(piece.bytes for piece in held) <= room:
            return
        unit = math.gcd(*(piece.bytes for piece in held)) or 1
        table.rooms["device", device] = max(0, room // unit)
        for piece in held:
            end: Time = self.upper
            if piece.freed in self.start:
                end = self.start[piece.freed] + (0 if piece.freed.kind is Kind.R else self.size[piece.freed])
            table.hold(("device", device), self.start.get(piece.made, 0), end, piece.bytes // unit, True)

    def _pieces(self, device: int) -> Iterator[_Piece]:
        """What the ops of a device allocate, as the table of stash policies has it; the half that W needs apart."""
        costs = self.candidate.costs
        for op in self.order[device]:
            if op.kind not in (Kind.B, Kind.I):
                continue
            _, s, m, _ = op
            *before, (kind, _, stash) = self.policies[self.path[m]][s].held_bytes(costs)
            for begin, end, size in before:
                yield _Piece(Op(begin, s, m), Op(end, s, m), int(size[s]))
            made, last, whole = Op(kind, s, m), op, int(stash[s])
            both = whole
            if op.kind is Kind.I:
                last, half = Op(Kind.W, s, m), int(costs.weight_stash_bytes[s])
                both = min(whole, half)
                yield _Piece(op, last, half - both)
            yield _Piece(made, op, whole - both)
            yield _Piece(made, last, both)

    def _changing(self, device: int) -> tuple[list[_Piece], int]:
        """Stashes that change inside the window, and bytes for them beside those that live all through.

        What a device holds besides stashes (parameters, messages, workspace) is taken from the incumbent's peak.
        """
        place = {op: k for k, op in enumerate(self.order[device])}
        i, j = self.cut[device]
        change = [0] * (len(place) + 1)
        held, constant = [], 0
        for piece in self._pieces(device):
            a, b = place[piece.made], place[piece.freed]
            change[a] += piece.bytes
            change[b + (piece.freed.kind is not Kind.R)] -= piece.bytes
            if piece.bytes and b >= i and a < j:
                if a < i and b >= j:
                    constant += piece.bytes
                else:
                    held.append(piece)
        peak = max(accumulate(change))
        assert self.plan.forecast is not None
        beside = self.plan.forecast.peak_bytes[device] - peak
        return held, limits(self.plan.problem)[device] - beside - constant

    def read(self, solver: cp_model.CpSolver) -> tuple[tuple[Op, ...], ...]:
        """The orders of the solver's solution."""
        found = []
        for listed, (i, j) in zip(self.order, self.cut, strict=True):
            inside = sorted(listed[i:j], key=lambda op: (solver.value(self.start[op]), self.size[op] > 0))
            found.append((*listed[:i], *inside, *listed[j:]))
        return tuple(found)
