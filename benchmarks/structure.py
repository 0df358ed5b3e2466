"""Stages, devices, directions and stashes decided together: the tables of benchmarks/results/structure.md.

Every plan is simulated again by `evaluate` and judged by `check`. Exit code 1 when one fails the checker, exceeds its
limit, or when a bound lies above a plan of its space. Cases: 1 single techniques and the joint search; 2 forward and
backward of a stage on two devices; 3 unequal devices and links; 5 how many directions; 6 many nodes, each scheme at its
own best width; 7 planning end to end. Case 4, published graphs, is `contraflow partition`.

    python benchmarks/structure.py                 all of it: hours
    python benchmarks/structure.py --quick         small instances
    python benchmarks/structure.py --case 6 --only "2048 nodes" --time-limit 60
    python benchmarks/structure.py --case 6 --scheme chimera pipedream pipedream-2bw
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import search_cases
import structure_cases as cases
import structure_steady as steady
from search_cases import Case
from search_rows import Effort, Row, best_named, effort_options, faults, named, print_rows, solve

from contraflow.planner import ModelGraph, Plan, SearchSpace, evaluate, plan
from contraflow.planner.basics.errors import InputError
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Problem
from contraflow.planner.schedules import variants
from contraflow.planner.search import warm
from contraflow.planner.search.common.fit import fits
from contraflow.planner.search.named.portfolio import not_split, whole_backwards

# ------------------------------------------------------------------ 1: single techniques


def techniques(effort: Effort) -> Iterator[Row]:
    """A GPT at shares of 1F1B's memory: the best named schedule, every technique alone, and all together."""
    free = search_cases.gpt(blocks=8) if effort.quick else search_cases.gpt()
    usual = named(replace(free, space=search_cases.KEEP_ALL), "1f1b", effort)
    if usual is None:
        return
    peak = max(evaluate(usual).peak_bytes)
    for share in (1.0, 0.5) if effort.quick else search_cases.FRACTIONS:
        case = free.limited(int(share * peak), f"{share:.0%} = {share * peak / free.unit_bytes:.2f} GiB")
        yield from _compared(replace(case, name="GPT, 8 devices, N=32"), effort)


def _compared(case: Case, effort: Effort) -> Iterator[Row]:
    """A row for every technique; the last one, of all together, is judged by the best of the others.

    It has the time of the others together: so long it takes to try them one by one.
    """
    rivals: list[tuple[float, str]] = []
    peer = best_named(replace(case, space=search_cases.KEEP_ALL), effort)
    if peer is not None:
        rivals.append((peer[1], peer[0]))
    for name, space in cases.TECHNIQUES.items():
        row = Row(1, f"{case.name}: {name}", case.limit)
        allowed = effort
        if name == "joint" and rivals:
            row.peer_step, row.peer = min(rivals)
            row.goal = row.peer_step
            allowed = replace(effort, seconds=effort.seconds * (len(cases.TECHNIQUES) - 1))
        solve(replace(case, space=space), allowed, row)
        if row.ours is not None:
            rivals.append((row.ours, name))
        yield row.judge()


def vgg(effort: Effort) -> Iterator[Row]:
    """VGG-16 on four devices: seconds a mini-batch, with 16 of them in a step."""
    batches = 16
    for memory in (None, 16 * 10**9):
        for name, space in cases.TECHNIQUES.items():
            if memory is None and name != "keep":
                continue
            row = Row(1, f"VGG-16, 4 devices, a mini-batch: {name}", "")
            case = cases.vgg(batches, memory, replace(space, pipelines=1))
            row.limit = case.limit
            found = solve(case, effort, row)
            row.judge()
            if found is not None and row.ours is not None and row.bound is not None:
                row.ours, row.bound = row.ours / batches, row.bound / batches
            yield row


# ------------------------------------------------------------------ 2: forward and backward apart


def separate(effort: Effort) -> Iterator[Row]:
    """One device a stage, then two; free links first, then honest prices."""
    limits = (4, 2) if effort.quick else (4, 3, 2, 1)
    for limit in limits:
        for apart in (False, True):
            case = cases.apart(limit, apart)
            row = Row(2, f"{case.name}: {'two devices' if apart else 'one device'} a stage", case.limit)
            row.goal = cases.APART[limit][apart]
            solve(case, effort, row)
            yield row.judge()
    for bandwidth in () if effort.quick else (1.0, 0.25):
        for weights in (0, 100):
            for limit in limits:
                steps = {}
                for apart in (False, True):
                    case = cases.apart(limit, apart, bandwidth, True, weights)
                    row = Row(2, f"{case.name}: {'two devices' if apart else 'one device'} a stage", case.limit)
                    solve(case, effort, row)
                    steps[apart] = row.ours
                    if apart and steps[False] is not None:
                        row.goal = row.peer_step = steps[False]
                        row.peer = "one device a stage"
                    yield row.judge()


# ------------------------------------------------------------------ 3: unequal devices and links


def uniform_named(case: Case) -> tuple[str, float] | None:
    """The fastest named schedule on stages of equally many layers that fits."""
    problem = Problem(case.model, case.cluster, case.workload)
    names = [layer.name for layer in case.model.layers]
    best: tuple[str, float] | None = None
    for _, layout in variants(len(case.cluster), case.workload.micro_batches, len(names)):
        whole, more = divmod(len(names), layout.stages)
        ends = [0]
        for s in range(layout.stages):
            ends.append(ends[-1] + whole + (s < more))
        stages = tuple(tuple(names[a:b]) for a, b in zip(ends, ends[1:], strict=False))
        candidate = Candidate(problem, stages, layout.pipelines)
        kept = not_split(SearchSpace(), candidate)
        try:
            found = assemble(candidate, [whole_backwards(order, kept) for order in layout.orders], layout.name)
        except InputError:
            continue
        assert found.forecast is not None
        if fits(found) and (best is None or found.forecast.step_s < best[1]):
            best = (layout.name, found.forecast.step_s)
    return best


def unequal(only: str, effort: Effort) -> Iterator[Row]:
    """The search against the best named schedule on a uniform split; the goal is 10 % less."""
    for case in (case for case in cases.unequal() if only in case.name):
        row = Row(3, case.name, "its own")
        peer = uniform_named(case)
        if peer is not None:
            row.peer, row.peer_step = peer
            row.goal = 0.9 * peer[1]
        solve(case, effort, row)
        yield row.judge()


# ------------------------------------------------------------------ 5: how many directions


def directions(found: Plan) -> str:
    """How many distinct routes, and whether they are one direction, two, or replicas on devices of their own."""
    routes = {p.forward for p in found.pipelines}
    groups = {frozenset(route) for route in routes}
    if len(groups) == 1:
        return f"{len(routes)} on all devices"
    return f"{len(groups)} groups of devices, {len(routes) // len(groups)} each"


def mixes(only: str, effort: Effort) -> Iterator[Row]:
    """What the search chooses when it may choose, against the best named schedule on any cut."""
    for case in (case for case in cases.mixes((4,) if effort.quick else (4, 8)) if only in case.name):
        row = Row(5, case.name, case.limit)
        peer = best_named(case, effort)
        if peer is not None:
            row.peer, row.peer_step = peer
            row.goal = peer[1]
        found = solve(case, effort, row)
        if found is not None:
            row.note = f"{directions(found)}; {row.note}"
        yield row.judge()


# ------------------------------------------------------------------ 6: many nodes

SCHEMES = {"gpipe": 1.42, "gems": 2.34, "1f1b": 1.38, "chimera": 1.0}
"""Schemes of the table, and how much longer than Chimera's their steps are at 2,048 nodes (published)."""


def widths(only: str, schemes: Sequence[str], effort: Effort) -> Iterator[Row]:
    """Steps of schemes at their own best width and micro-batch size, and of the search's choice."""
    for name, nodes, mini_batch, sizes in cases.evaluation(effort.quick):
        if only not in f"{name} on {nodes} nodes":
            continue
        models = {size: cases.analytic(name, size, cases.P100, "fp32") for size in sizes}
        steps: dict[str, float] = {}
        for scheme in (s for s in (*SCHEMES, "search") if s in schemes):
            row = Row(6, f"{name} on {nodes} nodes, mini-batch {mini_batch}: {scheme}", "16 GiB")
            best: Plan | None = None
            for size, model in models.items():
                found = _at_best_width(cases.spread(model, size, nodes, mini_batch), scheme, effort, row)
                if found is not None and (best is None or _step(found) < _step(best)):
                    best, row.note = found, f"micro-batches of {size}, {_shape(found)}"
            if best is not None:
                row.ours, row.peak = _step(best), f"{max(evaluate(best).peak_bytes) / 2**30:.4g} GiB"
                row.faults += faults(best)
                steps[scheme] = row.ours
            if scheme == "search" and steps.keys() - {"search"}:
                row.peer_step, row.peer = min((s, who) for who, s in steps.items() if who != "search")
                row.goal = row.peer_step
            row.judge()
            if scheme in steps and "chimera" in steps and scheme != "search":
                row.note += f"; x{steps[scheme] / steps['chimera']:.2f} of chimera's"
            yield row
        for scheme in (s for s in steady.METHODS if s in schemes):
            yield _without_flush(name, nodes, mini_batch, scheme, models, steps, effort)
        if {"chimera", "search"} <= steps.keys():
            print("over the search's step: " + ", ".join(
                f"{who} {steps[who] / steps['search']:.2f}" for who in SCHEMES if who in steps
            ), file=sys.stderr)  # fmt: skip


def _without_flush(
    name: str,
    nodes: int,
    mini_batch: int,
    scheme: str,
    models: dict[int, ModelGraph],
    steps: dict[str, float],
    effort: Effort,
) -> Row:
    """An asynchronous scheme of the table: seconds a mini-batch in steady state."""
    row = Row(6, f"{name} on {nodes} nodes, mini-batch {mini_batch}: {scheme}", "16 GiB")
    for size, model in models.items():
        found = steady.at_best_width(cases.spread(model, size, nodes, mini_batch), scheme, effort, row)
        if found is not None and (row.ours is None or found[0] < row.ours):
            row.ours, plan, width = found
            row.peak = f"{max(evaluate(plan).peak_bytes) / 2**30:.4g} GiB"
            row.note = f"micro-batches of {size}, {width} x {len(plan.stages)}"
    if row.ours is not None and "chimera" in steps:
        row.note += (
            f"; x{row.ours / steps['chimera']:.2f} of chimera's (2,048 nodes, published: {steady.PUBLISHED[scheme]})"
        )
    return row.judge()


def _at_best_width(case: Case, scheme: str, effort: Effort, row: Row) -> Plan | None:
    nodes = len(case.cluster)
    space = SearchSpace() if scheme == "search" else SearchSpace(schedule=scheme, pipelines=2 * nodes)
    seconds = effort.seconds if scheme == "search" else max(effort.named_seconds, 30)
    began = time.perf_counter()
    result = plan(case.model, case.cluster, case.workload, space, seconds, effort.seed, effort.workers)
    row.seconds += time.perf_counter() - began
    if scheme == "search":
        row.bound = result.bound_s if row.bound is None else min(row.bound, result.bound_s)
    return result.plan


def _step(found: Plan) -> float:
    assert found.forecast is not None
    return found.forecast.step_s


def _shape(found: Plan) -> str:
    used = {d for p in found.pipelines for d in p.forward}
    groups = {frozenset(p.forward) for p in found.pipelines}
    return f"{found.provenance.source}: {len(groups)} x {len(used) // len(groups)}, {len(found.stages)} stages"


# ------------------------------------------------------------------ 7: end to end


def giants(only: str, effort: Effort) -> Iterator[Row]:
    """Large models on many devices, from costs to a plan."""
    for case in (case for case in cases.giants(effort.quick) if only in case.name):
        row = Row(7, case.name, case.limit)
        found = solve(case, effort, row)
        if found is not None:
            row.note = f"{_shape(found)}; {row.note}"
        yield row.judge()


# ------------------------------------------------------------------ all rows


def rows(wanted: list[int], only: str, schemes: Sequence[str], effort: Effort) -> Iterator[Row]:
    """The rows of these cases; in cases 3, 5, 6 and 7 those whose instances contain `only`."""
    usual = {
        2: separate,
        3: partial(unequal, only),
        5: partial(mixes, only),
        6: partial(widths, only, schemes),
        7: partial(giants, only),
    }
    for number in wanted:
        if number == 1:
            yield from techniques(effort)
            if not effort.quick and cases.WORKLOADS.exists():
                yield from vgg(effort)
        elif number in usual:
            yield from usual[number](effort)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, nargs="+", choices=(1, 2, 3, 5, 6, 7), default=[1, 2, 3, 5, 6, 7])
    parser.add_argument("--only", default="", help="instances of cases 3, 5, 6 and 7 that contain this text")
    every = [*SCHEMES, "search", *steady.METHODS]
    parser.add_argument("--scheme", nargs="+", choices=every, default=every, help="rows of case 6; all by default")
    effort_options(parser)
    return parser.parse_args()


def main() -> int:
    """Prints the table; 1 when a plan or a bound is wrong."""
    given = arguments()
    warm()
    found = rows(sorted(set(given.case)), given.only, given.scheme, Effort.of(given))
    return print_rows(found, given.json, "structure" if given.save else None)


if __name__ == "__main__":
    sys.exit(main())
