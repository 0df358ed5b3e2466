"""The search against its peers: case, memory limit, best peer and its step, ours, bound, gap, seconds.

Every plan is simulated again by `evaluate` and judged by `check`. Exit code 1 when one fails the checker, exceeds its
limit, or when a bound lies above a plan of its space. Cases: 1 the memory of 1F1B; 2 half of it and less; 3 two
pipelines in opposite directions; 4 stash decisions; 5 scale; 6 the integer programme of zero-bubble; 7 a published
profile with its step. With --peers:
random instances, one pipeline, against every named schedule that fits.

    python benchmarks/search.py                               all of it: hours
    python benchmarks/search.py --quick                       small instances, 5 s each
    python benchmarks/search.py --case 2 --only "p=8 m=16"    some rows
    python benchmarks/search.py --peers --random 60 --seed 7  random instances, 30 s each
    python benchmarks/search.py --peers --seed 7 --only 7/12: --seeds 3
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import search_cases as cases
import search_peers
import search_profiles
from peers import zero_bubble_ilp
from search_cases import Case
from search_random import instances
from search_rows import GOOD, Effort, Row, effort_options, faults, named, print_rows, solve, versus
from tables import origin

from contraflow.planner import InputError, Plan, Progress, evaluate
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import COMPUTE, Kind, Op, Pipeline, Problem
from contraflow.planner.schedules import SCHEDULES
from contraflow.planner.search import warm

# ------------------------------------------------------------------ 4: a GPT whose stashes may go


GPT = "GPT 8 devices m=32"


def everything(found: Plan, problem: Problem, policy: str, lead: int | None) -> Plan:
    """A named plan's order with every stash under one policy; `lead`: F waits until the copy of the stash `lead` Fs
    before it has left the device (None: nothing waits)."""
    orders = []
    for order in found.orders:
        listed: list[Op] = []
        live: list[Op] = []
        for op in order:
            if op.kind not in COMPUTE or op.kind == Kind.STEP:
                continue
            if op.kind in (Kind.B, Kind.I):
                if policy == "recompute":
                    listed.append(Op(Kind.R, op.stage, op.micro_batch))
                live = [x for x in live if x[1:3] != op[1:3]]
            if op.kind == Kind.F and policy == "offload" and lead is not None:
                if len(live) >= lead:
                    waits = live.pop(0)
                    listed.append(Op(Kind.FREE, waits.stage, waits.micro_batch))
                live.append(op)
            listed.append(op)
        orders.append(listed)
    rows = tuple((policy,) * len(found.stages) for _ in found.pipelines)
    return assemble(Candidate(problem, found.stages, found.pipelines, rows), orders, f"{found.provenance.source}")


def best_everything(case: Case, orders: list[Plan], policy: str, row: Row) -> None:
    """The fastest named order that fits with every stash under one policy; else the smallest peak."""
    problem = Problem(case.model, case.cluster, case.workload)
    allowed_bytes, least = case.workload.memory_limit_bytes or cases.PLENTY, None
    for found in orders:
        for lead in (None, 3, 2, 1) if policy == "offload" else (None,):
            try:
                made = everything(found, problem, policy, lead)
            except (InputError, KeyError, IndexError) as error:
                row.note = f"{policy}: {error}"
                continue
            forecast = evaluate(made)
            peak = max(forecast.peak_bytes)
            least = peak if least is None else min(least, peak)
            if peak > allowed_bytes or (row.ours is not None and forecast.step_s >= row.ours):
                continue
            row.ours, row.peak = forecast.step_s, f"{peak / case.unit_bytes:.4g} {case.unit}"
            row.faults, row.note = (
                faults(made),
                f"{made.provenance.source}, lead {lead}" if lead else made.provenance.source,
            )
    if row.ours is None and least is not None:
        row.verdict = f"does not fit: needs {least / case.unit_bytes:.4g} {case.unit}"


def gpt(effort: Effort) -> Iterator[Row]:
    """Keep, recompute everything, offload everything and the search's choice, at shares of 1F1B's peak."""
    free = cases.gpt(blocks=8) if effort.quick else cases.gpt()
    orders = [x for name in SCHEDULES if (x := named(replace(free, space=cases.KEEP_ALL), name, effort)) is not None]
    usual = named(free, "1f1b", effort)
    if usual is None:
        yield Row(4, GPT, "", verdict="no plan: 1F1B does not fit the device")
        return
    peak = max(evaluate(usual).peak_bytes)
    for share in cases.FRACTIONS[:2] if effort.quick else cases.FRACTIONS:
        case = free.limited(int(share * peak), f"{share:.0%} = {share * peak / free.unit_bytes:.2f} GiB")
        rows = [Row(4, f"{GPT}: {kind}", case.limit) for kind in ("keep", "recompute all", "offload all", "search")]
        solve(replace(case, space=cases.KEEP_ALL), effort, rows[0])
        best_everything(case, orders, "recompute", rows[1])
        best_everything(case, orders, "offload", rows[2])
        solve(case, effort, rows[3])
        rivals = [(row.ours, row.name) for row in rows[:3] if row.ours is not None]
        if rivals:
            rows[3].peer_step, rows[3].peer = min(rivals)
            rows[3].goal = rows[3].peer_step
        yield from (row.judge() for row in rows)


# ------------------------------------------------------------------ 5: scale


def large(case: Case, effort: Effort) -> Row:
    """One large case: planning, evaluation and memory of a process that does nothing else."""
    row = Row(case.number, case.name, case.limit)
    if case.published:
        row.peer, row.peer_step = case.published[0]
        row.goal = row.peer_step
    near, first = list[float](), list[float]()

    def heard(event: Progress) -> None:
        if event.best_step_s:
            first.append(event.seconds)
        if event.best_step_s and event.best_step_s <= 1.03 * event.bound_s:
            near.append(event.seconds)

    with effort.clock():
        found = solve(case, effort, row, heard)
    if found is None:
        return row.judge()
    seconds = min(_seconds(found) for _ in range(3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    within = f"within 3 % after {near[0]:.1f} s" if near else "never within 3 %"
    row.peers_above_bound([*case.published])
    row.note = (
        f"first plan after {first[0]:.1f} s, {within}, evaluate {seconds:.2f} s, peak RSS {peak:.2f} GiB, {row.note}"
    )
    return row.judge()


def _seconds(found: Plan) -> float:
    began = time.perf_counter()
    evaluate(found)
    return time.perf_counter() - began


def scale(only: str, effort: Effort) -> Iterator[Row]:
    """Each size in a process of its own, so that its peak memory is its own."""
    for case in cases.scale(16, (16, 32, 64), more=False) if effort.quick else cases.scale():
        if only not in case.name:
            continue
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            yield pool.submit(large, case, effort).result()


# ------------------------------------------------------------------ 6: the integer programme


def ilp_plan(case: Case, answer: zero_bubble_ilp.Answer) -> Plan:
    """The peer's orders as a plan of ours, so that the simulator and the checker judge it too."""
    stages = tuple((layer.name,) for layer in case.model.layers)
    route = tuple(range(len(stages)))
    pipeline = Pipeline(route, route, tuple(range(case.workload.micro_batches)))
    orders = [[Op(Kind[x.kind], x.stage, x.micro_batch) for x in order] for order in answer.orders]
    return assemble(Candidate(Problem(case.model, case.cluster, case.workload), stages, (pipeline,)), orders, "ILP")


def against_ilp(case: Case, costs: cases.Costs, devices: int, batches: int, effort: Effort) -> Row:
    """The peer's seconds to its best plan over ours to a plan at least as good."""
    instance = zero_bubble_ilp.Instance(
        devices, batches, costs.forward, costs.backward_input, costs.backward_weight, costs.latency, 2 * devices
    )
    answer = zero_bubble_ilp.solve(instance, effort.seconds, effort.solver, effort.workers)
    row = Row(6, case.name, case.limit, f"ILP, {effort.solver}")
    if answer.step is None or answer.seconds_to_best is None:
        solve(case, effort, row)
        row.note = f"the peer found no plan in {answer.seconds:.0f} s"
        return row.judge()
    peer = ilp_plan(case, answer)
    row.peer_step = row.goal = evaluate(peer).step_s
    row.faults += [f"peer: {fault}" for fault in faults(peer)]
    reached: list[float] = []

    def heard(event: Progress) -> None:
        if event.best_step_s and event.best_step_s <= row.goal * (1 + GOOD):
            reached.append(event.seconds)

    solve(case, effort, row, heard)
    row.peers_above_bound([(row.peer, row.goal)])
    theirs = f"peer {answer.seconds_to_best:.2f} s{', proven' if answer.proven else ''}"
    row.note = f"{theirs}, ours " + (
        "never" if not reached else f"{reached[0]:.2f} s: x{answer.seconds_to_best / reached[0]:.1f}"
    )
    return row.judge()


# ------------------------------------------------------------------ all rows


def rows(wanted: Iterable[int], only: str, effort: Effort) -> Iterator[Row]:
    """The rows of these cases whose names contain `only`."""
    usual = {
        1: lambda: (case for k in effort.pipelines for case in cases.full_memory(k)),
        2: lambda: (case for k in effort.pipelines for case in cases.tight_memory(k)),
        3: cases.two_directions,
        4: cases.stash_decisions,
        7: search_profiles.profiles,
    }
    for number in wanted:
        for case in usual[number]() if number in usual else ():
            if only in case.name and (case.small or not effort.quick):
                yield versus(case, effort)
        if number == 4 and only in GPT:
            yield from gpt(effort)
        if number == 5:
            yield from scale(only, effort)
        if number == 6:
            for costs, p, m, case in cases.against_ilp(((4, 8),) if effort.quick else cases.ILP_SIZES):
                if only in case.name:
                    yield against_ilp(case, costs, p, m, effort)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, nargs="+", choices=range(1, 8), default=list(range(1, 8)))
    parser.add_argument("--only", default="", help="rows whose instance contains this text")
    parser.add_argument("--pipelines", type=int, nargs="+", default=[1], help="cases 1 and 2 with so many pipelines")
    parser.add_argument("--solver", choices=zero_bubble_ilp.SOLVERS, default="cp-sat", help="of the peer in case 6")
    against = parser.add_argument_group("random instances")
    against.add_argument("--peers", action="store_true", help="random instances against named schedules that fit")
    against.add_argument("--random", type=int, default=60, metavar="N", help="how many; --seed says which")
    against.add_argument("--seeds", type=int, default=1, metavar="N", help="searches of each, the worst counts")
    against.add_argument("--minutes", type=float, default=float("inf"), help="begins no instance after so long")
    against.add_argument("--deterministic-limit", type=float, help="effort of a search instead of its seconds")
    against.add_argument(
        "--processor-time",
        action="store_true",
        help="seconds that this process computes, where others do, too; of case 5 as well",
    )
    effort_options(parser)
    return parser.parse_args()


def against_peers(given: argparse.Namespace) -> int:
    """Random instances; 1 when one is lost, or a plan or a bound is wrong."""
    effort = replace(Effort.of(given), seconds=given.time_limit or 30)
    made, found = origin(), []

    def play(match: search_peers.Match) -> search_peers.Match:
        return search_peers.meet(match, replace(effort, seed=0), given.seeds, given.deterministic_limit)

    drawn = instances(given.random, given.seed)
    with effort.clock():
        for match in search_peers.played(drawn, given.seed, given.only, given.minutes, play):
            found.append(match)
            print("  ".join([match.result, *match.cells(), *match.faults]), file=sys.stderr, flush=True)
    tables = {"peers": search_peers.table(found, made), "peers-summary": search_peers.summary(found, made)}
    for name, one in tables.items():
        print(one.text(), end="\n\n")
        if given.save and found:
            one.save(f"search/{name}")
    return 1 if any(match.faults or match.result == "loss" for match in found) else 0


def main() -> int:
    """Prints the table; 1 when a plan or a bound is wrong."""
    given = arguments()
    effort = replace(Effort.of(given), pipelines=tuple(given.pipelines), solver=given.solver)
    warm()  # compiled once, cached on disk: not part of any row's seconds
    if given.peers:
        return against_peers(given)
    return print_rows(rows(sorted(set(given.case)), given.only, effort), given.json, "search" if given.save else None)


if __name__ == "__main__":
    sys.exit(main())
