"""plan() against everyone: the mechanisms that this project is named for must be found, and nothing may be lost.

Rows with a step to reach, and random problems. On each plan() plays against every named schedule in all its stash
choices, simulated by hand; against what it answers itself when a schedule is named; against a random search of the same
time over forward devices, backward devices and stash choices; and against itself with each mechanism forbidden.

Every plan goes through the checker; a bound above anybody's plan, and "optimal" where somebody has a better one, are
faults. Exit code 1 when something was lost, a step was not reached, or there is a fault.

    python benchmarks/mechanisms.py                           the rows of the table, plan() alone
    python benchmarks/mechanisms.py --opponents               and everyone against it
    python benchmarks/mechanisms.py --random 40 --seed 7      random problems
    python benchmarks/mechanisms.py --random 40 --seed 7 --only "7/12:"
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import mechanisms_cases as cases
import mechanisms_opponents as opponents
import mechanisms_random
import tables
from mechanisms_cases import Case
from mechanisms_opponents import Best

from contraflow.planner import Plan, check, plan
from contraflow.planner.search import warm
from contraflow.planner.search.common import fits

SAME = 1e-6
"""Steps that differ by a smaller share are a tie."""
PLAYERS = ("by hand", "by name", "random", "forbidden")


@dataclass
class Match:
    """One problem: our plan, and the best of every opponent."""

    name: str
    target: str = ""
    source: str = ""
    unit_s: float = 1.0
    reached: bool | None = None
    seconds: float | None = None
    bound: float | None = None
    status: str = ""
    found_by: str = ""
    others: dict[str, list[object]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def meet(self, opponent: str, best: Best) -> None:
        """Notes an opponent's best plan, and what it contradicts."""
        self.faults += best.faults
        if best.plan is None:
            return
        known = self.others.get(opponent)
        if known is None or best.seconds < known[1]:  # type: ignore[operator]
            self.others[opponent] = [best.who, best.seconds]
        if self.bound is not None and self.bound > best.seconds * (1 + SAME):
            self.faults.append(f"bound {self.bound:g} above {best.who}: {best.seconds:g}")
        if self.status == "optimal" and self.seconds is not None and self.seconds > best.seconds * (1 + SAME):
            self.faults.append(f"{self.seconds:g} is no optimum, {best.who}: {best.seconds:g}")
        if self.status == "infeasible":
            self.faults.append(f"not infeasible, {best.who}: {best.seconds:g}")

    def result(self, opponent: str) -> str:
        """Of plan(): win, tie or loss; empty where neither has a plan."""
        if opponent not in self.others:
            return "" if self.seconds is None else "win"
        theirs: float = self.others[opponent][1]  # type: ignore[assignment]
        if self.seconds is None or self.seconds > theirs * (1 + SAME):
            return "loss"
        return "tie" if theirs <= self.seconds * (1 + SAME) else "win"

    def ratio(self, opponent: str) -> float | None:
        """Their step over ours; None where one is missing."""
        if opponent not in self.others or not self.seconds:
            return None
        return float(self.others[opponent][1]) / self.seconds  # type: ignore[arg-type]

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, missed or wrong."""
        lost = any(self.result(who) == "loss" for who in self.others)
        return not (lost or self.faults or self.reached is False)


def shape(found: Plan) -> str:
    """Who found a plan, and which mechanisms it uses."""
    used = {text.partition(">")[0] for row in found.stash for text in row} - {"keep"}
    if any(p.forward != p.backward for p in found.pipelines):
        used.add("separate devices")
    shared = [{p.forward[s] for p in found.pipelines} for s in range(len(found.stages))]
    if len({len(devices) for devices in shared}) > 1:
        used.add("replicas " + "-".join(str(len(devices)) for devices in shared))
    return ", ".join([found.provenance.source, *([] if found.weights == "flush" else [found.weights]), *sorted(used)])


def ours(case: Case, given: argparse.Namespace) -> Match:
    """plan() on a case, judged by the checker."""
    match = Match(case.name, case.target, case.source, case.unit_s)
    found = plan(case.model, case.cluster, case.workload, case.space, given.time_limit, given.seed, given.workers)
    match.status, match.bound = found.status, found.bound_s
    if found.plan is not None:
        assert found.plan.forecast is not None
        match.seconds, match.found_by = found.plan.forecast.objective_s, shape(found.plan)
        match.faults += [str(wrong) for wrong in check(found.plan)[:2]]
        if not fits(found.plan):
            match.faults.append(f"peaks of {max(found.plan.forecast.peak_bytes)} bytes do not fit")
        if found.bound_s > match.seconds * (1 + SAME):
            match.faults.append(f"bound {found.bound_s:g} above its own step")
    if case.goal_s is not None:
        match.reached = match.seconds is not None and match.seconds <= case.goal_s
    return match


def played(case: Case, given: argparse.Namespace, players: Iterable[str]) -> Match:
    """plan(), then everyone who plays, each with the time that it has."""
    match = ours(case, given)
    if "by hand" in players:
        match.meet("by hand", opponents.by_hand(case, given.named_limit))
    if "by name" in players:
        match.meet("by name", opponents.by_name(case, given.time_limit / 4, given.seed))
    if "random" in players:
        match.meet("random", mechanisms_random.searched(case, given.time_limit, given.seed))
    if "forbidden" in players:
        for who, space in opponents.forbidden(case):
            match.meet("forbidden", opponents.restricted(case, space, who, given.time_limit, given.seed))
    return match


# ------------------------------------------------------------------ tables


def number(seconds: float | None, unit_s: float = 1.0) -> str:
    """Seconds in the row's unit, four digits or two decimals."""
    if seconds is None:
        return "-"
    value = seconds / unit_s
    return f"{value:.4g}" if value < 10 else f"{value:.2f}"


def line(match: Match, players: Iterable[str]) -> list[str]:
    """A match as the table shows it."""
    mark = "" if match.reached is None else "reached" if match.reached else "MISSED"
    cells = [match.name, match.target, number(match.seconds, match.unit_s), mark, match.status]
    cells.append(number(match.bound, match.unit_s))
    for who in players:
        other = match.others.get(who)
        text = "none" if other is None else f"{number(other[1], match.unit_s)} ({other[0]})"  # type: ignore[arg-type]
        cells.append(f"{match.result(who) or 'tie'}: {text}")
    return [*cells, match.found_by, "; ".join(match.faults)]


def titles(players: Iterable[str]) -> list[str]:
    """Of the columns."""
    return ["case", "to reach", "plan()", "", "status", "bound", *players, "found by", "faults"]


def summary(matches: list[Match], players: Iterable[str]) -> Iterator[list[str]]:
    """A row for every opponent: how often plan() won, tied and lost, and by how much."""
    for who in players:
        results = [match.result(who) for match in matches]
        ratios = [r for r in (match.ratio(who) for match in matches) if r is not None]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        worst = min(ratios, default=math.nan)
        alone = sum(who not in match.others and match.seconds is not None for match in matches)
        yield [
            who, str(results.count("win")), str(results.count("tie") + results.count("")), str(results.count("loss")),
            f"{mean:.3f}", f"{worst:.4f}", str(alone),
        ]  # fmt: skip


SUMMARY = ["opponent", "wins", "ties", "losses", "its step / ours, mean", "least", "it had no plan"]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, metavar="N", help="so many random problems instead of the table")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems, and of every search")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name contains one of these texts")
    parser.add_argument("--flush", choices=("with", "without"), help="random problems of one sort only")
    parser.add_argument("--opponents", action="store_true", help="let everyone play on the table, too")
    parser.add_argument("--players", nargs="+", choices=PLAYERS, default=PLAYERS)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of plan(), and of each opponent")
    parser.add_argument("--named-limit", type=float, default=120.0, help="seconds of all named schedules by hand")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no case begins after so many")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--processor-time", action="store_true", help="seconds that this process computes, where others do, too"
    )
    tables.savable(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also writes everything there, case by case")
    return parser.parse_args()


def main() -> int:
    """Plays all matches."""
    given = arguments()
    players = tuple(who for who in PLAYERS if who in given.players) if given.opponents or given.random else ()
    asked: Iterable[Case] = cases.table()
    if given.random is not None:
        flush = None if given.flush is None else given.flush == "with"
        asked = cases.randomly(given.seed, given.random, flush)
    warm()
    if given.processor_time:
        time.monotonic = time.process_time
    until = time.monotonic() + 60 * given.minutes
    origin, matches = tables.origin(), []
    for case in asked:
        if not any(text in case.name for text in given.only):
            continue
        began = time.monotonic()
        if began > until:
            break
        matches.append(played(case, given, players))
        print(" | ".join(line(matches[-1], players)), f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if given.json is not None:
            content = {"origin": asdict(origin), "matches": [asdict(match) for match in matches]}
            given.json.write_text(json.dumps(content, indent=1) + "\n")
    table = tables.Table.made(origin, titles(players), [line(match, players) for match in matches])
    score = tables.Table.made(origin, SUMMARY, list(summary(matches, players)))
    print(table.markdown())
    if players:
        print(score.markdown())
    if given.save:
        name = "mechanisms/random" if given.random else "mechanisms/opponents" if players else "mechanisms/table"
        table.save(name)
        if players:
            score.save(f"{name}-score")
    return 0 if all(match.sound for match in matches) else 1


if __name__ == "__main__":
    sys.exit(main())
