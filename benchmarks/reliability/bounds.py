"""Whether a bound lies above a plan that the checker accepts, or what is called optimal is beaten by one.

python benchmarks/reliability/bounds.py --cases 200 --seed 1 --json benchmarks/results/reliability/bounds.json

A case is a random problem with plans from all over its space (`whole_space.py`, `random_plans.py` in tests/kit): any
stages, devices, pipelines, policies, shipping included, random orders. Every plan is held against the bound of every
space that has it, under no limit and under limits that it just keeps; every fourth problem is searched as well, with
hints and without. Half of the cases are larger: up to 4 devices and 9 micro-batches. A case that has taken its
processor time is left at the next comparison, and counted; Ctrl-C or SIGTERM ends the run with what was counted so far.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "kit"))

from random_plans import plans_of, random_candidate
from record import Row, arguments, finish
from whole_space import SPACES, allowed, limited, plans, seconds, small_problem

from contraflow.planner import Plan, SearchSpace, check, plan
from contraflow.planner.plan import Problem
from contraflow.planner.search.proofs import asked

CLOSE = 1e-9
SEARCHED = 4
"""One in so many problems is searched."""


def drawn(rng: random.Random, seed: int) -> tuple[Problem, list[Plan]]:
    """A problem and plans of it, whatever memory they take."""
    if seed % 2:
        problem = small_problem(rng)
        return problem, plans(problem, rng, 30)
    candidate = random_candidate(seed, apart=rng.random() < 0.5)
    found = [p for p in plans_of(candidate, seed, 6, True) if check(p) == []]
    return candidate.problem, [*found, *plans(candidate.problem, rng, 10)]


def refuted(problem: Problem, found: Sequence[Plan], space: SearchSpace) -> list[str]:
    """What plans of the space say against its bound."""
    bound_s = asked(problem, space).bound_s
    best_s = min(map(seconds, found))
    return [f"bound {bound_s} above {best_s}: {space}"] if bound_s > best_s * (1 + CLOSE) else []


def beaten(problem: Problem, found: Sequence[Plan], space: SearchSpace, rng: random.Random) -> list[str]:
    """What is wrong with the search's answers, on its own, from the best plan, and from any."""
    wrong, best = [], min(found, key=seconds)
    for hint in (None, best, rng.choice(found)):
        answer = plan(
            problem.model, problem.cluster, problem.workload, space, 20, 0, 1, deterministic_limit=0.02, hint=hint
        )
        if answer.bound_s > seconds(best) * (1 + CLOSE):
            wrong.append(f"bound {answer.bound_s} above {seconds(best)}: {space}")
        if answer.status == "infeasible" or (hint is not None and answer.plan is None):
            wrong.append(f"{answer.status} though there is a plan: {space}")
        if answer.plan is None:
            continue
        if check(answer.plan):
            wrong.append(f"not executable: {check(answer.plan)[:1]}")
        if answer.status == "optimal" and seconds(answer.plan) > seconds(best) * (1 + 1e-6):
            wrong.append(f"optimal {seconds(answer.plan)} above {seconds(best)}: {space}")
        if hint is not None and seconds(answer.plan) > seconds(hint) * (1 + CLOSE):
            wrong.append(f"worse than its hint: {space}")
    return wrong


def run(seed: int, most_s: float, row: Row) -> None:
    """One case: its plans against all bounds and some searches, for `most_s` of processor time."""
    rng, end = random.Random(seed), time.process_time() + most_s
    problem, found = drawn(rng, seed)
    row.cases += len(found)
    peaks = sorted({max(p.forecast.peak_bytes) for p in found if p.forecast})
    for limit in [None, *(peaks[len(peaks) // part] for part in (8, 3) if peaks)]:
        tight, fit = limited(problem, found, limit)
        for space in SPACES:
            if time.process_time() > end:
                add(row, "cut short", 1)
                return
            mine = allowed(space, fit)
            wrong = refuted(tight, mine, space) if mine else []
            add(row, "comparisons with a bound", len(mine))
            if mine and seed % SEARCHED == 0 and rng.random() < 0.2:
                wrong += beaten(tight, mine, space, rng)
                add(row, "searches", 3)
            for text in wrong:
                row.count("different")
                print(f"seed {seed}, limit {limit}: {text}", file=sys.stderr)


def add(row: Row, figure: str, number: int) -> None:
    """Counts one of the row's figures."""
    row.figures[figure] = int(row.figures[figure]) + number


def main() -> int:
    """All cases; 1 where a claim was refuted."""
    parser = arguments(__doc__, 200)
    parser.add_argument("--only", type=int, metavar="SEED", help="the case with this seed alone")
    parser.add_argument("--most", type=float, default=20.0, metavar="S", help="processor time of a case [%(default)s]")
    options = parser.parse_args()
    started = time.monotonic()
    command = f"python benchmarks/reliability/bounds.py --cases {options.cases} --seed {options.seed}"
    row = Row("plans of any kind against bounds and optima", command, faults={"different": 0})
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    row.figures |= {"comparisons with a bound": 0, "searches": 0, "cut short": 0}
    seeds = range(options.seed * 100_000, options.seed * 100_000 + options.cases)
    try:
        for seed in seeds if options.only is None else [options.only]:
            run(seed, options.most, row)
    except KeyboardInterrupt:
        print(f"ended before seed {seed + 1}", file=sys.stderr)
    return finish(row, started, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
