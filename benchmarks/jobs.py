"""Whole training jobs: plan() in everything that people choose, against uniform grids and against its own parts.

Players: `grid`, the best uniform grid (jobs_grid.py); `plain grid`, of whole blocks without teams, with micro-batches
of one sample and whole optimizers; `joint`, plan_family() with everything allowed; `no ...`, the same with one
technique forbidden; the published schedule where there is one. Each has the same time, but for grids, which are tried
to the end. Every plan goes through the checker. Exit code 1 when a grid or a part is better than the joint space, or
for a fault.

    python benchmarks/jobs.py --only 13B --time-limit 60 --save        what is not saved yet, player by player
    python benchmarks/jobs.py --random 20 --seed 7 --costs kernels     jobs that nobody was shown
    python benchmarks/jobs_cases.py                                    makes the costs of the table's jobs
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import jobs_cases
import tables
from jobs_cases import SORTS, Job
from jobs_grid import best_grid

from contraflow.planner import Effort, InputError, ModelFamily, Plan, SearchSpace, check, plan_family
from contraflow.planner.search import warm
from contraflow.planner.search.common import fits

SAME = 1e-6
"""Steps that differ by a smaller share are equal."""
RUNS = ["run", "s a step", "bound", "gap", "status", "s", "cpu, s", "limit, s", "plan", "faults"]
SECONDS, BOUND, LIMIT, PLAN, FAULTS = 1, 2, 7, 8, 9
TABLE = [
    "job, costs", "plan(), s", "bound", "gap", "goal", "best grid, s", "over plan()", "plain grid, s",
    "best part, s", "plan() over it", "which", "published, s", "plan", "grid",
]  # fmt: skip
SWITCHES = {
    "no sharing": "shard_optimizer", "no recompute": "recompute", "no offload": "offload",
    "no split": "split_backward", "no separate": "separate_backward",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a player found: seconds of its step, None without a plan; and what is proven of its space.

    took_s: of the clock, and of the processor: other work on the machine lets a search have less of it.
    """

    name: str
    seconds: float | None = None
    bound_s: float | None = None
    gap: float | None = None
    status: str = ""
    took_s: tuple[float, float] = (0.0, 0.0)
    limit_s: float | None = None
    plan: str = ""
    faults: str = ""

    @property
    def cells(self) -> list[str]:
        """As the table of runs has them."""
        gap = "-" if self.gap is None else f"{100 * self.gap:.1f} %"
        limit = "-" if self.limit_s is None else f"{self.limit_s:g}"
        return [
            self.name, _number(self.seconds), _number(self.bound_s), gap, self.status,
            *(f"{took:.0f}" for took in self.took_s), limit, self.plan, self.faults,
        ]  # fmt: skip


def _number(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.6g}"


def _seconds(cell: str) -> float | None:
    return None if cell == "-" else float(cell)


def shape(found: Plan) -> str:
    """A plan in a few words."""
    model, cluster = found.problem.model, found.problem.cluster
    used = {text.partition(">")[0] for row in found.stash for text in row} - {"keep"}
    if found.problem.workload.sharded:
        used.add("optimizers shared")
    held = [len({p.forward[s] for p in found.pipelines}) for s in range(len(found.stages))]
    replicas = str(held[0]) if len(set(held)) == 1 else "-".join(map(str, held))
    said = f"team {cluster.team}, size {model.micro_batch_size}, {len(found.stages)} stages x {replicas}"
    return ", ".join([said, found.provenance.source, *sorted(used)])


# ------------------------------------------------------------------ players


@dataclass(frozen=True)
class Match:
    """A job in one sort of costs, and everyone who plays."""

    job: Job
    sort: str
    time_limit: float
    seed: int

    @property
    def name(self) -> str:
        """Of the row."""
        return f"{self.job.name}, {self.sort}"

    @cached_property
    def parts(self) -> ModelFamily:
        """Costs of half blocks."""
        return self.job.family(self.sort, "parts")

    @cached_property
    def blocks(self) -> ModelFamily:
        """Costs of whole blocks."""
        return self.job.family(self.sort, "block")

    def players(self) -> dict[str, Callable[[], Run]]:
        """Everyone by name, joint first."""
        found: dict[str, Callable[[], Run]] = {"joint": lambda: self.planned("joint")}
        found["grid"] = lambda: self.gridded("grid", (self.parts, self.blocks))
        if self.job.grid_s is not None:
            found["plain grid"] = lambda: self.gridded("plain grid", (self.plain,), False)
        if len(self.parts.ways) > 1:
            found["no teams"] = lambda: self.planned("no teams", teams=(1,))
        if len(self.parts.sizes(())) > 1:
            found["no sizes"] = lambda: self.planned("no sizes", sizes=(1,))
        found["no half blocks"] = lambda: self.planned("no half blocks", blocks=True)
        for name, field in SWITCHES.items():
            space = SearchSpace(**{field: False})  # type: ignore[arg-type]
            found[name] = lambda name=name, space=space: self.planned(name, space)  # type: ignore[misc]
        if self.job.published is not None:
            space = SearchSpace(schedule=self.job.published)
            found["published"] = lambda: self.planned("published", space)
        return found

    @property
    def plain(self) -> ModelFamily:
        """Whole blocks on single devices, one sample a micro-batch."""
        return ModelFamily(tuple(x for x in self.blocks.members if x.team == 1 and x.micro_batch_size == 1))

    def planned(
        self,
        who: str,
        space: SearchSpace = SearchSpace(),  # noqa: B008 - immutable
        teams: tuple[int, ...] | None = None,
        sizes: tuple[int, ...] | None = None,
        blocks: bool = False,
    ) -> Run:
        """plan_family() in a space, judged by the checker."""
        choice = replace(self.job.choice, teams=teams, micro_batch_sizes=sizes)
        family = self.blocks if blocks else self.parts
        warm()
        began = _now()
        try:
            effort = Effort(self.time_limit, self.seed, 1)
            found = plan_family(family, self.job.cluster, self.job.workload, choice, space, effort)
        except InputError as error:
            return Run(f"{self.name}: {who}", status=str(error), limit_s=self.time_limit)
        took_s, faults = _since(began), []
        if found.plan is not None:
            faults = [str(wrong) for wrong in check(found.plan)[:2]]
            faults += [] if fits(found.plan) else ["does not fit"]
        return Run(
            f"{self.name}: {who}", found.seconds, found.bound_s, found.gap, found.status, took_s, self.time_limit,
            "" if found.plan is None else shape(found.plan), "; ".join(faults),
        )  # fmt: skip

    def gridded(self, who: str, families: tuple[ModelFamily, ...], sharing: bool = True) -> Run:
        """The best uniform grid of these families."""
        began = _now()
        best = best_grid(self.job, families, sharing)
        took_s = _since(began)
        said = f"{best.said} ({best.simulated} of {best.points} points simulated)"
        if best.plan is None:
            return Run(f"{self.name}: {who}", status="does not fit", took_s=took_s, plan=said)
        return Run(f"{self.name}: {who}", best.seconds, None, None, "grid", took_s, None, said, "; ".join(best.faults))


def _now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    now = _now()
    return now[0] - began[0], now[1] - began[1]


# ------------------------------------------------------------------ the table of jobs


def line(match: Match, runs: dict[str, list[str]]) -> list[str]:
    """A job's row, of the runs that there are: by player, as `RUNS`."""
    joint = runs["joint"]
    best_s = _seconds(joint[SECONDS])
    grid, plain, published = (_of(runs, who) for who in ("grid", "plain grid", "published"))
    which, part_s = best_part(runs)
    return [
        match.name, *joint[SECONDS : BOUND + 2], goal(match, runs), _number(grid), _ratio(grid, best_s),
        _number(plain) + ("" if plain is None else f" (issue: {match.job.grid_s:g})"),
        _number(part_s), _ratio(best_s, part_s), which, _number(published), joint[PLAN],
        runs["grid"][PLAN] if "grid" in runs else "",
    ]  # fmt: skip


def best_part(runs: dict[str, list[str]]) -> tuple[str, float | None]:
    """Who of the joint space's parts has the shortest step."""
    known = {who: seconds for who in runs if who.startswith("no ") and (seconds := _of(runs, who)) is not None}
    who = min(known, key=lambda one: known[one], default="")
    return who or "-", known.get(who)


def goal(match: Match, runs: dict[str, list[str]]) -> str:
    """Whether the issue's figure is reached."""
    (most_s, most_gap), found = match.job.goals, _of(runs, "joint")
    if match.sort != "half" or most_s is None or found is None:
        return "-"
    gap = found / (_seconds(runs["joint"][BOUND]) or math.inf) - 1
    said = f"{most_s:g}" + ("" if most_gap is None else f", {100 * most_gap:g} %")
    met = found <= most_s * (1 + SAME) and (most_gap is None or gap <= most_gap)
    return f"{said}: {'reached' if met else 'MISSED'}"


def _of(runs: dict[str, list[str]], who: str) -> float | None:
    return _seconds(runs[who][SECONDS]) if who in runs else None


def _ratio(one: float | None, other: float | None) -> str:
    return "-" if one is None or other is None else f"{one / other:.4f}"


def losses(name: str, runs: dict[str, list[str]]) -> Iterator[str]:
    """Everything that a job's runs must not show."""
    joint, (which, part_s) = _of(runs, "joint"), best_part(runs)
    rivals = {"the grid": _of(runs, "grid"), which: part_s, "published": _of(runs, "published")}
    for who, seconds in rivals.items():
        if seconds is not None and (joint is None or joint > seconds * (1 + SAME)):
            yield f"{name}: {_number(joint)} loses to {who}: {_number(seconds)}"
    least_s = None if "joint" not in runs else _seconds(runs["joint"][BOUND])
    for who, cells in runs.items():
        seconds = _seconds(cells[SECONDS])
        if cells[FAULTS]:
            yield f"{name}: {who}: {cells[FAULTS]}"
        if seconds is not None and least_s is not None and least_s > seconds * (1 + SAME):
            yield f"{name}: bound {_number(least_s)} above {who}: {_number(seconds)}"


# ------------------------------------------------------------------ everything


def saved(name: str) -> dict[str, tuple[list[str], tables.Origin]]:
    """The runs that have been saved, by name, and where each comes from."""
    if not (tables.RESULTS / f"{name}.json").exists():
        return {}
    table = tables.load(name)
    return {row[0]: (row, table.origins[k]) for row, k in zip(table.rows, table.of, strict=True)}


def played(match: Match, given: argparse.Namespace, table: str) -> dict[str, list[str]]:
    """All players that are asked for: those that are not saved play now."""
    known = saved(table) if given.save and not given.again else {}
    found: dict[str, list[str]] = {}
    for who, play in match.players().items():
        before, _ = known.get(f"{match.name}: {who}", (None, None))
        if before is not None and (before[LIMIT] in ("-", f"{given.time_limit:g}") or not _wanted(who, given.players)):
            found[who] = before
        elif _wanted(who, given.players):
            found[who] = play().cells
            print(" | ".join(found[who]), file=sys.stderr, flush=True)
            if given.save:
                tables.Table.made(given.origin, RUNS, [found[who]]).save(table)
    return found


def _wanted(who: str, players: Iterable[str]) -> bool:
    return any(text in who for text in players)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, metavar="N", help="so many random jobs instead of the table")
    parser.add_argument("--seed", type=int, default=0, help="of the random jobs, and of every search")
    parser.add_argument("--only", nargs="+", default=[""], help="jobs whose name contains one of these texts")
    parser.add_argument("--players", nargs="+", default=[""], help="players whose name contains one of these texts")
    parser.add_argument("--costs", nargs="+", choices=tuple(SORTS), default=tuple(SORTS), help="sorts of costs")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of every plan_family()")
    parser.add_argument("--processor", action="store_true", help="seconds of the processor, not the clock")
    parser.add_argument("--again", action="store_true", help="also what has been saved")
    tables.savable(parser)
    return parser.parse_args()


def main() -> int:
    """Plays all matches."""
    given = arguments()
    given.origin = tables.origin()
    if given.processor:
        warm()  # waits for processes, whose seconds are not ours
        time.monotonic = time.process_time
    name = "table" if given.random is None else "random"
    jobs = jobs_cases.table() if given.random is None else jobs_cases.drawn(given.seed, given.random)
    rows, lost = [], []
    for job in jobs:
        for sort in given.costs:
            match = Match(job, sort, given.time_limit, given.seed)
            if not any(text in match.name for text in given.only):
                continue
            runs = played(match, given, f"jobs/{name}-runs")
            if "joint" in runs:
                rows.append(line(match, runs))
                lost += losses(match.name, runs)
                if given.save:
                    _, origin = saved(f"jobs/{name}-runs")[f"{match.name}: joint"]
                    tables.Table.made(origin, TABLE, rows[-1:]).save(f"jobs/{name}")
    if rows:
        print(tables.Table.made(given.origin, TABLE, rows).markdown())
    print("\n".join(lost))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
