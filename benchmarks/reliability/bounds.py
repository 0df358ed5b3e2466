"""Whether a bound lies above a plan that the checker accepts, or what is called optimal is beaten by one.

python benchmarks/reliability/bounds.py --cases 200 --seed 1 --json benchmarks/results/reliability/bounds.json

A case is a random problem with plans from all over its space (`whole_space.py`, `random_plans.py`, `varied.py` in
tests/kit), by turns: any stages, devices, pipelines, policies and orders, shipping included; the same of up to 4
devices and 9 micro-batches; named schedules on any cut with any policies, or shipping as BPipe does; and plans without
a flush, whose periods count. Problems have ties, layers and links that cost nothing, several nodes, and updates that
take time. Every plan is held against the bound of every space that has it, under no limit and under limits that it
just keeps; a fourth of the problems are searched as well, with hints and without. A case that has taken its processor
time is left at the next comparison, and counted; Ctrl-C or SIGTERM ends the run with what was counted so far.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "kit"))

from random_plans import plans_of, random_candidate
from record import Row, arguments, finish
from varied import ALIKE, POLICIES, endless, named_steady, shaped, steady, varied
from whole_space import SPACES, allowed, limited, plans, seconds, small_problem

from contraflow.planner import Plan, Result, SearchSpace, bounds, check, plan
from contraflow.planner.basics.errors import InputError
from contraflow.planner.plan import Problem
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.search.proofs import asked
from contraflow.planner.search.steady.build import excess_for_long

CLOSE = 1e-9
SEARCHED = 4
"""One in so many problems is searched."""
STEADY_SPACES = tuple(
    replace(space, asynchronous=methods)
    for methods in (POLICIES, ("stash",), ("stash", "2bw"))
    for space in (
        SearchSpace(),
        SearchSpace(pipelines=1),
        SearchSpace(pipelines=1, recompute=False, offload=False, separate_backward=False),
    )
)
"""What callers ask for who want no flush."""
KINDS = ("small", "larger", "shaped", "steady")


def drawn(rng: random.Random, seed: int) -> tuple[Problem, list[Plan]]:
    """A problem and plans of it, whatever memory they take; a kind after the other."""
    kind = KINDS[seed % len(KINDS)]
    if kind == "small":
        problem = varied(small_problem(rng), rng)
        return problem, plans(problem, rng, 30)
    if kind == "steady":
        problem = endless(varied(small_problem(rng), rng), rng)
        return problem, steady(problem, rng, 24)
    candidate = random_candidate(seed, apart=rng.random() < 0.5)
    if kind == "shaped":
        problem = varied(candidate.problem, rng)
        return problem, shaped(problem, rng, 25)
    found = [p for p in plans_of(candidate, seed, 6, True) if check(p) == []]
    return candidate.problem, [*found, *plans(candidate.problem, rng, 10)]


def asked_s(problem: Problem, space: SearchSpace) -> float:
    """What is said to be the least that a plan of the space takes (seconds)."""
    return bounds.period(problem, space) if space.asynchronous else asked(problem, space).bound_s


def refuted(problem: Problem, found: Sequence[Plan], space: SearchSpace) -> list[str]:
    """What plans of the space say against its bound."""
    bound_s, best_s = asked_s(problem, space), min(map(seconds, found))
    return [f"bound {bound_s} above {best_s}: {space}"] if bound_s > best_s * (1 + CLOSE) else []


def lasting(plan: Plan) -> bool:
    """Whether a plan fits in its steady state too, which the search without a flush asks for."""
    return plan.weights == FLUSH or not excess_for_long(plan).total


def answered(problem: Problem, space: SearchSpace, hint: Plan | None, row: Row) -> Result | None:
    """A short search; None where it refuses what does not apply to so many micro-batches."""
    parts = problem.model, problem.cluster, problem.workload, space, 20, 0, 1
    try:
        answer = plan(*parts, deterministic_limit=0.02, hint=hint)
    except InputError:
        add(row, "refused", 1)
        return None
    add(row, "searches", 1)
    return answer


def beaten(problem: Problem, found: Sequence[Plan], space: SearchSpace, row: Row, rng: random.Random) -> list[str]:
    """What is wrong with the search's answers, on its own, from the best plan, and from any."""
    wrong, best = [], min(found, key=seconds)
    slower = space.quality_within if len(space.asynchronous) > 1 else 0.0  # a method of better quality may be taken
    for hint in (None, best, rng.choice(found)):
        answer = answered(problem, space, hint, row)
        if answer is None:
            return []
        wrong += refuted_answer(answer, found, str(space))
        if hint is not None and lasting(hint):
            if answer.plan is None:
                wrong.append(f"its hint is lost: {space}")
            elif seconds(answer.plan) > seconds(hint) * (1 + CLOSE) * (1 + slower):
                wrong.append(f"worse than its hint: {space}")
    return wrong


def refuted_answer(answer: Result, found: Sequence[Plan], asked_for: str) -> list[str]:
    """What plans of the space say against an answer."""
    wrong, best_s = [], min(map(seconds, found))
    if answer.bound_s > best_s * (1 + CLOSE):
        wrong.append(f"bound {answer.bound_s} above {best_s}: {asked_for}")
    if answer.status == "infeasible" and any(map(lasting, found)):
        wrong.append(f"infeasible though there is a plan: {asked_for}")
    if answer.plan is None:
        return wrong
    if violations := check(answer.plan):
        wrong.append(f"not executable: {violations[:1]}: {asked_for}")
    if answer.status == "optimal" and seconds(answer.plan) > best_s * (1 + 1e-6):
        wrong.append(f"optimal {seconds(answer.plan)} above {best_s}: {asked_for}")
    return wrong


def misnamed(problem: Problem, row: Row) -> list[str]:
    """What plans of named schedules without a flush, on all cuts, say against the answer of each."""
    wrong = []
    for name in ALIKE:
        _, found = limited(problem, list(named_steady(problem, name)), problem.workload.memory_limit_bytes)
        answer = answered(problem, SearchSpace(name), None, row) if found else None
        wrong += refuted_answer(answer, found, name) if answer is not None else []
    return wrong


def run(seed: int, most_s: float, row: Row) -> None:
    """One case: its plans against all bounds and some searches, for `most_s` of processor time."""
    rng, end = random.Random(seed), time.process_time() + most_s
    problem, found = drawn(rng, seed)
    row.cases += len(found)
    add(row, KINDS[seed % len(KINDS)], len(found))
    searched = seed // len(KINDS) % SEARCHED == 0
    endless_ = KINDS[seed % len(KINDS)] == "steady"
    peaks = sorted({max(p.forecast.peak_bytes) for p in found if p.forecast})
    for limit in [None, *(peaks[len(peaks) // part] for part in (8, 3) if peaks)]:
        tight, fit = limited(problem, found, limit)
        wrong = misnamed(tight, row) if endless_ and searched else []
        for space in STEADY_SPACES if endless_ else SPACES:
            if time.process_time() > end:
                add(row, "cut short", 1)
                break
            mine = allowed(space, fit)
            wrong += refuted(tight, mine, space) if mine else []
            add(row, "comparisons with a bound", len(mine))
            if mine and searched and rng.random() < 0.2:
                wrong += beaten(tight, mine, space, row, rng)
        for text in wrong:
            row.count("different")
            print(f"seed {seed}, limit {limit}: {text}", file=sys.stderr)


def add(row: Row, figure: str, number: int) -> None:
    """Counts one of the row's figures."""
    row.figures[figure] = int(row.figures[figure]) + number


class Ending:
    """SIGINT and SIGTERM end the run; plan() takes what they raise for its own end, so they are remembered."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
            signal.signal(number, self._come)

    def _come(self, _: int, __: object) -> None:
        self.asked = True
        raise KeyboardInterrupt


def main() -> int:
    """All cases; 1 where a claim was refuted."""
    parser = arguments(__doc__, 200)
    parser.add_argument("--only", type=int, metavar="SEED", help="the case with this seed alone")
    parser.add_argument("--most", type=float, default=20.0, metavar="S", help="processor time of a case [%(default)s]")
    options = parser.parse_args()
    started = time.monotonic()
    command = f"python benchmarks/reliability/bounds.py --cases {options.cases} --seed {options.seed}"
    row = Row("plans of any kind against bounds and optima", command, faults={"different": 0})
    ending = Ending()
    row.figures |= dict.fromkeys([*KINDS, "comparisons with a bound", "searches", "refused", "cut short"], 0)
    seeds = range(options.seed * 100_000, options.seed * 100_000 + options.cases)
    try:
        for seed in seeds if options.only is None else [options.only]:
            run(seed, options.most, row)
            if ending.asked:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        print(f"ended before seed {seed + 1}", file=sys.stderr)
    return finish(row, started, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
