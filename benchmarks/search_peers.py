"""The search on random instances against every named schedule that fits: ratios, gaps, wins, ties and losses.

A peer is a named schedule with one pipeline and all stashes kept, its orders made for the costs, on its best cut,
simulated; it has as many stages a device as is best for it, and its own time, which is not the search's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

from search_cases import Case
from search_random import MEMORY, Drawn
from search_rows import GOOD, Effort, allowed, faults, named, number
from tables import Origin, Table

from contraflow.planner import InputError, evaluate, plan
from contraflow.planner.schedules import SCHEDULES, build

COLUMNS = ["instance", "best peer", "its step", "ours", "bound", "ours / peer", "gap", "spread", "found by"]
SUMMARY = ["memory", "instances", "wins", "ties", "losses", "no peer", "median ratio", "worst", "median gap"]


@dataclass
class Match:
    """One instance: the best peer's step and ours, one for every seed; infinite bounds are none."""

    number: str
    drawn: Drawn
    peer: str = ""
    peer_s: float | None = None
    ours_s: list[float | None] = field(default_factory=list)
    bound_s: float = 0.0
    source: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def worst_s(self) -> float | None:
        """Of all seeds; None where one has no plan."""
        steps = [step for step in self.ours_s if step is not None]
        return max(steps) if steps and len(steps) == len(self.ours_s) else None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's, the worst seed's."""
        return None if self.worst_s is None or self.peer_s is None else self.worst_s / self.peer_s

    @property
    def gap(self) -> float | None:
        """Ours over the bound, less one."""
        return None if self.worst_s is None or not self.bound_s else max(0.0, self.worst_s / self.bound_s - 1)

    @property
    def result(self) -> str:
        """Win, tie or loss; empty without a peer."""
        if self.peer_s is None:
            return ""
        if self.ratio is None or self.ratio > 1 + GOOD:
            return "loss"
        return "tie" if self.ratio > 1 - GOOD else "win"

    def cells(self) -> list[str]:
        """As the table has it."""
        steps = [step for step in self.ours_s if step is not None]
        spread = f"{max(steps) / min(steps) - 1:.2%}" if len(self.ours_s) > 1 and steps else ""
        ratio = "" if self.ratio is None else f"{self.ratio:.4f}"
        gap = "" if self.gap is None else f"{self.gap:.1%}"
        known = [number(self.peer_s), number(self.worst_s), number(self.bound_s or None)]
        return [f"{self.number}: {self.drawn.name}", self.peer or "-", *known, ratio, gap, spread, self.source]


def schemes(case: Case) -> list[str]:
    """The named schedules with one pipeline that exist for a case."""
    devices, batches = len(case.cluster), case.workload.micro_batches
    found = []
    for name in SCHEDULES:
        try:
            if len(build(name, devices, batches).pipelines) == 1:
                found.append(name)
        except InputError:
            continue
    return found


def meet(match: Match, effort: Effort, seeds: int, deterministic: float | None) -> Match:
    """Plays one match; faults are what the checker finds, and a bound above anybody's plan."""
    case = match.drawn.case()
    for name in schemes(case):
        peer = named(case, name, effort)
        if peer is None or not allowed(case, peer) or faults(peer):
            continue
        step = evaluate(peer).step_s
        if match.peer_s is None or step < match.peer_s:
            match.peer, match.peer_s = peer.provenance.source, step
    for seed in range(effort.seed, effort.seed + seeds):
        seconds = effort.seconds if deterministic is None else 100 * deterministic
        given = case.model, case.cluster, case.workload, case.space, seconds, seed, effort.workers, deterministic
        found = plan(*given)
        match.bound_s = max(match.bound_s, found.bound_s)
        if found.plan is None:
            match.ours_s.append(None)
            match.source = found.status
            continue
        match.ours_s.append(evaluate(found.plan).step_s)
        match.source = f"{found.plan.provenance.source}, {len(found.plan.stages)} stages"
        match.faults += faults(found.plan)
    for who, step in ((match.peer, match.peer_s), *(("ours", step) for step in match.ours_s)):
        if step is not None and match.bound_s > step * (1 + GOOD):
            match.faults.append(f"bound {match.bound_s:g} above {who}: {step:g}")
    return match


def played(drawn: list[Drawn], seed: int, only: str, minutes: float, play: Callable[[Match], Match]) -> Iterator[Match]:
    """The matches whose names contain `only`, until the minutes are over."""
    end = time.monotonic() + 60 * minutes
    for k, one in enumerate(drawn):
        match = Match(f"{seed}/{k}", one)
        if time.monotonic() < end and only in match.cells()[0]:
            yield play(match)


def table(found: Iterable[Match], made: Origin) -> Table:
    """A row an instance."""
    return Table.made(made, COLUMNS, [match.cells() for match in found])


def summary(found: list[Match], made: Origin) -> Table:
    """A row for every memory limit, and one for all."""
    groups = {name: [match for match in found if match.drawn.memory == name] for name in MEMORY} | {"all": found}
    return Table.made(made, SUMMARY, [_counted(name, ours) for name, ours in groups.items() if ours])


def _counted(name: str, found: list[Match]) -> list[str]:
    results = [match.result for match in found]
    ratios = [match.ratio for match in found if match.ratio is not None]
    gaps = [match.gap for match in found if match.gap is not None]
    counts = [str(results.count(result)) for result in ("win", "tie", "loss", "")]
    middle = [f"{median(ratios):.3f}", f"{max(ratios):.3f}"] if ratios else ["-", "-"]
    return [name, str(len(found)), *counts, *middle, f"{median(gaps):.1%}" if gaps else "-"]
