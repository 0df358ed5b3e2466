"""A row of the search benchmark: what peers reach, what the search reaches, and whether its plan holds."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from unittest import mock

import search_cases as cases
from search_cases import Case
from tables import Origin, Table, origin, savable

from contraflow.planner import InputError, Plan, Progress, check, evaluate, plan
from contraflow.planner.plan import PROVEN_GAP, Kind
from contraflow.planner.schedules import SCHEDULES

GOOD = 1e-6


@dataclass
class Row:
    """One line of the table; steps in the case's time unit, `seconds` of planning.

    shapes_bound: the bound of that part of the space of which more is proven, where there is one.
    """

    case: int
    name: str
    limit: str
    peer: str = ""
    peer_step: float | None = None
    goal: float | None = None
    ours: float | None = None
    bound: float | None = None
    shapes_bound: float | None = None
    gap: float | None = None
    peak: str = ""
    seconds: float = 0.0
    verdict: str = ""
    note: str = ""
    faults: list[str] = field(default_factory=list)

    def peers_above_bound(self, peers: list[tuple[str, float]]) -> None:
        """Notes a fault for every (who, step) below our bound: they are plans of the same space."""
        for who, step in peers:
            if self.bound is not None and self.bound > step * (1 + GOOD):
                self.faults.append(f"bound {self.bound:g} above {who}: {step:g}")

    def judge(self) -> Row:
        """Sets the verdict: a fault, or how ours compares with the goal."""
        if self.faults:
            self.verdict, self.note = "FAULT", "; ".join([*self.faults, self.note])
        elif self.ours is None:
            self.verdict = self.verdict or "no plan"
        elif self.goal:
            ratio = self.ours / self.goal
            self.verdict = f"{'reached' if ratio <= 1 + GOOD else 'MISSED'} {ratio:.3f}"
        return self


@dataclass(frozen=True)
class Effort:
    """How long to search, and with what; processor: in seconds that this process computes."""

    seconds: float
    named_seconds: float
    seed: int
    workers: int
    quick: bool
    pipelines: tuple[int, ...] = (1,)
    solver: str = "cp-sat"
    processor: bool = False

    @classmethod
    def of(cls, given: argparse.Namespace) -> Effort:
        """What `effort_options` have been given."""
        seconds = given.time_limit if given.time_limit is not None else (5 if given.quick else 60)
        processor = bool(getattr(given, "processor_time", False))
        return cls(seconds, given.named_limit, given.seed, given.workers, given.quick, processor=processor)

    def clock(self) -> AbstractContextManager[object]:
        """In it, seconds are those that this process computes, where that was asked for."""
        return mock.patch("time.monotonic", time.process_time) if self.processor else nullcontext()


def effort_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every benchmark of the search."""
    parser.add_argument("--time-limit", type=float, help="seconds a plan (60; quick: 5)")
    parser.add_argument("--named-limit", type=float, default=10, help="seconds a named schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small instances only")
    savable(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also writes the rows there, one by one")


# ------------------------------------------------------------------ one row


def faults(found: Plan) -> list[str]:
    """Why a plan is not what it claims to be: the checker's violations, and devices above the limit."""
    named = [str(violation) for violation in check(found)]
    problem = found.problem
    for device, peak in enumerate(evaluate(found).peak_bytes):
        allowed = problem.workload.memory_limit(problem.cluster.devices[device].kind.memory_bytes)
        if peak > allowed:
            named.append(f"device {device} peaks at {peak} of {allowed} bytes")
    return named[:3]


def best_named(case: Case, effort: Effort) -> tuple[str, float] | None:
    """The fastest named schedule that fits the case's limit and its space, simulated on its best cut."""
    best: tuple[str, float] | None = None
    for name in SCHEDULES:
        found = named(case, name, effort)
        if found is None or not allowed(case, found):
            continue
        step = evaluate(found).step_s
        if best is None or step < best[1]:
            best = (found.provenance.source or name, step)
    return best


def named(case: Case, name: str, effort: Effort) -> Plan | None:
    """A named schedule on its best cut; None where it does not exist for these numbers or does not fit."""
    space = replace(case.space, schedule=name, pipelines=None)
    try:
        return plan(case.model, case.cluster, case.workload, space, effort.named_seconds, effort.seed, 1).plan
    except InputError:
        return None


def allowed(case: Case, found: Plan) -> bool:
    """Whether a named plan lies in the case's space."""
    most = case.space.pipelines
    split = any(op.kind == Kind.W for order in found.orders for op in order)
    return (most is None or cases.routes(found) <= most) and (case.space.split_backward or not split)


def measured_limit(case: Case, effort: Effort) -> Case | None:
    """The case under the peak of the schedule it names; None where that schedule is not there."""
    if case.peak_of is None:
        return case
    if case.peak_of not in SCHEDULES:
        return None
    free = replace(case, workload=replace(case.workload, memory_limit_bytes=None))
    found = named(free, case.peak_of, effort)
    if found is None:
        return None
    peak = max(evaluate(found).peak_bytes)
    return case.limited(peak, f"{peak / case.unit_bytes:.3g} {case.unit}")


def solve(case: Case, effort: Effort, row: Row, on_progress: Callable[[Progress], None] | None = None) -> Plan | None:
    """Plans a case and fills in what is ours in its row."""
    events: list[Progress] = []

    def heard(event: Progress) -> None:
        events.append(replace(event, plan=None))  # plans are large, and the memory of a call is shown
        if on_progress is not None:
            on_progress(event)

    began = time.perf_counter()
    result = plan(
        case.model, case.cluster, case.workload, case.space, effort.seconds, effort.seed, effort.workers,
        on_progress=heard,
    )  # fmt: skip
    row.seconds, row.bound = time.perf_counter() - began, result.bound_s
    if result.plan is None:
        row.verdict = result.status
        return None
    forecast = evaluate(result.plan)
    row.shapes_bound = None if result.among is None else result.among.bound_s
    row.ours, row.gap = forecast.step_s, forecast.step_s / result.bound_s - 1 if result.bound_s else None
    row.peak = f"{max(forecast.peak_bytes) / case.unit_bytes:.4g} {case.unit}"
    row.faults += faults(result.plan)
    if result.bound_s > forecast.step_s * (1 + GOOD):
        row.faults.append(f"bound {result.bound_s:g} above our step")
    best_at = next((e.seconds for e in events if e.best_step_s and e.best_step_s <= row.ours * (1 + GOOD)), None)
    shape = f"{result.plan.provenance.source}, {len(result.plan.stages)} stages, {cases.routes(result.plan)} routes"
    row.note = shape + ("" if best_at is None else f", best at {best_at:.1f} s")
    return result.plan


def versus(case: Case, effort: Effort) -> Row:
    """A case's row: the best of the published and the simulated peers, then our plan."""
    row = Row(case.number, case.name, case.limit)
    ready = measured_limit(case, effort)
    if ready is None:
        row.verdict = f"skipped: no schedule {case.peak_of}"
        return row
    row.limit = ready.limit
    simulated = best_named(ready, effort)
    peers = [*ready.published, *([simulated] if simulated else [])]
    if peers:
        row.peer, row.peer_step = min(peers, key=lambda peer: peer[1])
    row.goal = ready.goal if ready.goal is not None else row.peer_step
    solve(ready, effort, row)
    row.peers_above_bound(peers)
    return row.judge()


# ------------------------------------------------------------------ the tables

COLUMNS = [
    "case", "instance", "limit", "best peer", "its step", "goal", "ours", "bound", "gap", "peak", "s", "", "note",
]  # fmt: skip
PEERS = ["instance", "best peer", "step", "ours", "bound", "ours / peer", "s", "plan"]
"""Of documents: one row an instance."""


def number(value: float | None) -> str:
    """Five digits; whole ones in full."""
    return "-" if value is None else f"{value:.5g}" if value < 100 else f"{value:.1f}".removesuffix(".0")


def cells(row: Row) -> list[str]:
    """A row as it is printed."""
    gap = "-" if row.gap is None else f"{max(0.0, row.gap):.2%}"
    steps = [number(row.peer_step), number(row.goal), number(row.ours), number(row.bound), gap]
    return [
        str(row.case), row.name, row.limit, row.peer or "-", *steps, row.peak or "-", f"{row.seconds:.1f}", row.verdict,
        row.note,
    ]  # fmt: skip


def reached(row: Row) -> str:
    """Our step, whether it is proven to be the least, or why there is none."""
    if row.ours is None:
        return row.verdict
    return number(row.ours) + (" (optimal)" if row.gap is not None and row.gap <= PROVEN_GAP else "")


def proven(row: Row) -> str:
    """What no plan asked for is below, and what none of the shapes of which all were looked at is."""
    if row.shapes_bound is None or row.bound is None or row.shapes_bound <= row.bound * (1 + GOOD):
        return number(row.bound)
    return f"{number(row.bound)}; {number(row.shapes_bound)} of its shapes"


def against_peers(found: Iterable[Row], made: Origin) -> Table:
    """One row an instance, ours beside the best peer."""

    def line(row: Row) -> list[str]:
        ratio = "" if row.ours is None or not row.peer_step else f"{row.ours / row.peer_step:.3f}"
        steps = [number(row.peer_step), reached(row), proven(row), ratio]
        return [f"{row.name}; {row.limit}", row.peer or "-", *steps, f"{row.seconds:.1f}", row.note]

    return Table.made(made, PEERS, [line(row) for row in found])


def side_by_side(found: Iterable[Row], made: Origin) -> Table:
    """Rows called "instance: way" as one row an instance with a column for every way, the last one over the others."""
    instances: dict[str, dict[str, Row]] = {}
    for row in found:
        instance, _, way = row.name.rpartition(": ")
        instances.setdefault(f"{instance}; {row.limit}", {})[way] = row
    ways = list(dict.fromkeys(way for ours in instances.values() for way in ours))
    lines = []
    for name, ours in instances.items():
        last = ours.get(ways[-1])
        others = [row.ours for way, row in ours.items() if row is not last and row.ours is not None]
        ratio = f"{last.ours / min(others):.3f}" if last is not None and last.ours is not None and others else ""
        steps = [reached(ours[way]) if way in ours else "" for way in ways]
        lines.append([name, *steps, "" if last is None else proven(last), ratio])
    return Table.made(made, ["instance", *ways, "bound", f"{ways[-1]} / best other"], lines)


def table(found: list[Row], made: Origin) -> Table:
    """Everything about all rows, for people at a terminal."""
    return Table.made(made, COLUMNS, [cells(row) for row in found])


def print_rows(rows: Iterable[Row], target: Path | None, document: str | None) -> int:
    """Prints rows as they come, on stderr, and the table in the end; 1 when a row has a fault.

    target: JSON of the rows, written one by one. document: whose tables are saved, one for every case, rows of several
    ways beside each other apart.
    """
    found: list[Row] = []
    made = origin()
    for row in rows:
        found.append(row)
        print("  ".join(cells(row)), file=sys.stderr, flush=True)
        if target is not None:
            target.write_text(json.dumps({"origin": asdict(made), "rows": [asdict(x) for x in found]}, indent=1))
    print(table(found, made).text())
    for case in sorted({row.case for row in found}) if document is not None else ():
        for shape, several in ((against_peers, False), (side_by_side, True)):
            ours = [row for row in found if row.case == case and (": " in row.name) is several]
            if ours:
                shape(ours, made).save(f"{document}/case-{case}{'-ways' if several else ''}")
    return 1 if any(row.faults for row in found) else 0
