"""A row of the search benchmark: what peers reach, what the search reaches, and whether its plan holds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import search_cases as cases
from search_cases import Case
from tables import origin

from contraflow.planner import InputError, Plan, Progress, check, evaluate, plan
from contraflow.planner.plan import Kind
from contraflow.planner.schedules import SCHEDULES

GOOD = 1e-6


@dataclass
class Row:
    """One line of the table; steps in the case's time unit, `seconds` of planning."""

    case: int
    name: str
    limit: str
    peer: str = ""
    peer_step: float | None = None
    goal: float | None = None
    ours: float | None = None
    bound: float | None = None
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
    """How long to search, and with what."""

    seconds: float
    named_seconds: float
    seed: int
    workers: int
    quick: bool
    pipelines: tuple[int, ...]
    solver: str


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
        events.append(event)
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


# ------------------------------------------------------------------ the table

COLUMNS = (
    "case",
    "instance",
    "limit",
    "best peer",
    "its step",
    "goal",
    "ours",
    "bound",
    "gap",
    "peak",
    "s",
    "",
    "note",
)


def cells(row: Row) -> list[str]:
    """A row as the table shows it."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.5g}" if value < 100 else f"{value:.1f}".removesuffix(".0")

    gap = "-" if row.gap is None else f"{max(0.0, row.gap):.2%}"
    steps = [number(row.peer_step), number(row.goal), number(row.ours), number(row.bound), gap]
    return [
        str(row.case), row.name, row.limit, row.peer or "-", *steps, row.peak or "-", f"{row.seconds:.1f}", row.verdict,
        row.note,
    ]  # fmt: skip


def table(found: list[Row], markdown: bool) -> str:
    """Aligned text, or a Markdown table."""
    lines = [list(COLUMNS), *map(cells, found)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(COLUMNS))]
    if not markdown:
        return "\n".join("  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip() for line in lines)
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) + " |" for line in lines)


def print_rows(rows: Iterable[Row], markdown: bool, target: Path | None) -> int:
    """Prints rows as they come, on stderr, and the table in the end; also to a JSON file. 1 when a row has a fault."""
    found: list[Row] = []
    made = asdict(origin())
    for row in rows:
        found.append(row)
        print("  ".join(cells(row)), file=sys.stderr, flush=True)
        if target is not None:
            target.write_text(json.dumps({"origin": made, "rows": [asdict(x) for x in found]}, indent=1))
    print(table(found, markdown))
    return 1 if any(row.faults for row in found) else 0
