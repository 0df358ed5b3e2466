"""Who plays against plan() in benchmarks/mechanisms.py, beside the random search of mechanisms_random.py.

Every named schedule in all its stash choices, by hand: on cuts of least load and of equally many layers, with stashes
of all, of the leading, or of a share of the micro-batches recomputed, offloaded or shipped to the device of the mirror
stage. Then the planner's own answer for each name, and its answer with each mechanism forbidden.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise

from mechanisms_cases import Case

from contraflow.planner import InputError, ModelGraph, Plan, SearchSpace, check, plan
from contraflow.planner.graph import KEEP, SHIP, Candidate, regroup, stash_policy
from contraflow.planner.lower import assembled
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.schedules import ASYNCHRONOUS, SCHEDULES, WEIGHTS, Layout, build, variants
from contraflow.planner.search.common import fits, missing, priced
from contraflow.planner.search.named import place

Choice = Callable[[int, int], str]
"""The policy of a stage and of the how manieth micro-batch of its pipeline."""


@dataclass
class Best:
    """The best plan that somebody has for a case."""

    who: str = ""
    seconds: float = math.inf
    plan: Plan | None = None
    tried: int = 0
    faults: list[str] = field(default_factory=list)

    def offer(self, who: str, made: Plan) -> None:
        """Takes a plan that fits its devices and is better than the one so far; the checker must agree."""
        assert made.forecast is not None
        seconds = made.forecast.objective_s
        if seconds < self.seconds and fits(made):
            wrong = check(made)
            if wrong:
                self.faults.append(f"{who}: {wrong[0]}")
                return
            self.who, self.seconds, self.plan = who, seconds, made


def simulated(candidate: Candidate, orders: Sequence[Sequence[Op]], who: str, best: Best) -> None:
    """Simulates compute orders and offers what comes of them; orders that cannot be run are nothing."""
    best.tried += 1
    try:
        made = assembled(candidate, orders, who)
    except InputError:
        return
    if made.forecast.objective_s < best.seconds:
        best.offer(who, made.plan)


# ------------------------------------------------------------------ cuts


def cut(loads: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Where stages end, one for each speed, so that the slowest takes least: every stage has at least one layer."""
    before = [0.0, *accumulate(loads)]
    count = len(loads)
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(math.inf, 0)] * count]
    for k, speed in enumerate(speeds):
        row = [(math.inf, 0)] * (count + 1)
        for end in range(k + 1, count + 1):
            row[end] = min((max(best[k][a][0], (before[end] - before[a]) / speed), a) for a in range(k, end))
        best.append(row)
    ends = [count]
    for k in range(len(speeds), 0, -1):
        ends.append(best[k][ends[-1]][1])
    return ends[::-1]


def stages_of(model: ModelGraph, ends: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Names of the layers between these ends, in the model's topological order."""
    names = [model.layers[k].name for k in model.topological]
    return tuple(tuple(names[a:b]) for a, b in pairwise(ends))


def cuts(case: Case, route: Sequence[int]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Stages for a route: of least load, then of equally many layers."""
    layers = [case.model.layers[k] for k in case.model.topological]
    speeds = [case.cluster.devices[d].kind.speed for d in route]
    whole, more = divmod(len(layers), len(route))
    equal = list(accumulate((whole + (s < more) for s in range(len(route))), initial=0))
    balanced = cut([x.forward_s + x.backward_s for x in layers], speeds)
    for ends in (balanced, equal) if balanced != equal else (equal,):
        yield stages_of(case.model, ends)


# ------------------------------------------------------------------ stash choices


def _some(most: int, parts: int, policy: str, of_parts: int = 4) -> Choice:
    """The policy on the stages below `most`, for `parts` of every four micro-batches."""
    return lambda s, n: policy if s < most and (n * parts) // of_parts != ((n + 1) * parts) // of_parts else KEEP


def choices(case: Case, layout: Layout) -> Iterator[tuple[str, Choice]]:
    """Every stash choice that the case's space allows, by name."""
    yield KEEP, lambda s, n: KEEP
    stages = layout.stages
    leading = sorted({stages, *(max(1, stages * q // 4) for q in (1, 2, 3))})
    problem = Problem(case.model, case.cluster, case.workload)
    for policy in priced(problem, case.space):
        for most in leading:
            for parts in (4, 3, 2, 1):
                yield f"{policy} {most} stages, {parts}/4", _some(most, parts, policy)
    if layout.weights == "flush":
        for most in sorted({max(1, stages * q // 8) for q in (1, 2, 3, 4)}):
            for parts in (1, 2, 3, 4):
                yield f"ship {most} stages, {parts}/4", _some(most, parts, SHIP)


def _to_mirror(policy: str, pipeline: Pipeline, stage: int) -> str:
    """A shipped stash goes to the device of the mirror stage; where that is the same device it is kept."""
    if policy != SHIP:
        return policy
    target = pipeline.forward[len(pipeline.forward) - 1 - stage]
    return KEEP if target == pipeline.backward[stage] else f"{SHIP}>{target}"


def chosen(
    case: Case, stages: tuple[tuple[str, ...], ...], layout: Layout, choice: Choice
) -> tuple[Candidate, list[list[Op]]]:
    """The candidate of a placed layout with these stashes, and its orders with the recomputations."""
    rows = {
        m: tuple(_to_mirror(choice(s, n), p, s) for s in range(len(stages)))
        for p in layout.pipelines
        for n, m in enumerate(p.micro_batches)
    }
    problem = Problem(case.model, case.cluster, case.workload)
    candidate = regroup(problem, stages, layout.pipelines, rows, layout.weights)
    whole = {s for s, can in enumerate(candidate.costs.separable) if not (can and case.space.split_backward)}
    return candidate, [list(_remade(order, whole, rows)) for order in layout.orders]


def _remade(order: Sequence[Op], whole: set[int], rows: dict[int, tuple[str, ...]]) -> Iterator[Op]:
    for op in order:
        if op.stage in whole and op.kind is Kind.W:
            continue
        if op.kind in (Kind.B, Kind.I) and stash_policy(rows[op.micro_batch][op.stage]).remade:
            yield Op(Kind.R, op.stage, op.micro_batch)
        yield op._replace(kind=Kind.B) if op.stage in whole and op.kind is Kind.I else op


# ------------------------------------------------------------------ named schedules


def layouts(case: Case) -> Iterator[Layout]:
    """Every named schedule that the case allows, on all devices, or on as many as there are layers, and fewer."""
    layers, batches = len(case.model.layers), case.workload.micro_batches
    count = min(len(case.cluster), layers)
    if not case.space.asynchronous:
        for _, layout in variants(count, batches, layers):
            if case.space.pipelines is None or len(layout.pipelines) <= case.space.pipelines:
                yield layout
        return
    for name, weights in WEIGHTS.items():
        if weights in case.space.asynchronous and name != "pipefb":
            yield build(name, count, batches)


def by_hand(case: Case, seconds: float) -> Best:
    """The best of all named schedules in all their stash choices, of those that can be faster than the best so far."""
    best, until = Best(), time.monotonic() + seconds
    for layout in layouts(case):
        count = 1 + max(max(p.forward) for p in layout.pipelines)
        placed = place(layout, tuple(range(count)), len(case.cluster))
        for stages in cuts(case, layout.pipelines[0].forward):
            for what, choice in choices(case, layout):
                if time.monotonic() > until and best.plan is not None:
                    return best
                candidate, orders = chosen(case, stages, placed, choice)
                if least_s(candidate, orders) < best.seconds:
                    simulated(candidate, orders, f"{layout.name}, {what}", best)
            as_needed(case, stages, placed, best)
    return best


def as_needed(case: Case, stages: tuple[tuple[str, ...], ...], placed: Layout, best: Best) -> None:
    """Quarters of the micro-batches, stage by stage, until every device fits: least of a policy, and of no other."""
    problem = Problem(case.model, case.cluster, case.workload)
    ways = [*priced(problem, case.space), *([SHIP] if placed.weights == "flush" else [])]
    for policy in ways:
        parts = [0] * len(stages)
        for _ in range(4 * len(stages)):
            candidate, orders = chosen(
                case, stages, placed, lambda s, n, p=parts, x=policy: _some(len(p), p[s], x)(s, n)
            )  # type: ignore[misc]
            if least_s(candidate, orders) >= best.seconds:
                break
            try:
                made = assembled(candidate, orders, f"{placed.name}, {policy} as needed", period=False)
            except InputError:
                break
            full = {d for d, over in enumerate(missing(made)) if over}
            if not full:
                simulated(candidate, orders, f"{placed.name}, {policy} as needed", best)
                break
            grown = [s for s in range(len(stages)) if parts[s] < 4 and _devices(placed, s) & full]
            for s in grown[:1]:
                parts[s] += 1
            if not grown:
                break


def _devices(placed: Layout, stage: int) -> set[int]:
    """Where a stage runs."""
    return {p.backward[stage] for p in placed.pipelines}


def least_s(candidate: Candidate, orders: Sequence[Sequence[Op]]) -> float:
    """Seconds of the busiest device's compute ops, a micro-batch's share of them where there is no flush."""
    costs, devices = candidate.costs, candidate.problem.cluster.devices
    each = {
        Kind.F: costs.forward_s, Kind.R: costs.forward_s, Kind.I: costs.backward_input_s,
        Kind.W: costs.backward_weight_s, Kind.B: costs.backward_s,
    }  # fmt: skip
    most = 0.0
    for d, order in enumerate(orders):
        most = max(most, sum(each[op.kind][op.stage] for op in order if op.kind in each) / devices[d].kind.speed)
    return most if candidate.weights == "flush" else most / candidate.problem.workload.micro_batches


def by_name(case: Case, seconds: float, seed: int) -> Best:
    """The best of what plan() answers when a schedule is named, with everything allowed that the case allows."""
    best = Best()
    names = list(SCHEDULES) if not case.space.asynchronous else []
    names += [name for name in ASYNCHRONOUS if WEIGHTS[name] in case.space.asynchronous]
    for name in names:
        space = replace(case.space, schedule=name, asynchronous=(), pipelines=None)
        try:
            found = plan(case.model, case.cluster, case.workload, space, seconds, seed, 1).plan
        except InputError:
            continue
        best.tried += 1
        if found is not None and _allowed(case.space, found):
            best.offer(f"--schedule {name}", found)
    return best


def _allowed(space: SearchSpace, found: Plan) -> bool:
    """Whether a named schedule's plan has no more routes than the case allows."""
    routes = len({(p.forward, p.backward) for p in found.pipelines})
    return space.pipelines is None or routes <= space.pipelines


# ------------------------------------------------------------------ plan() with a mechanism forbidden

SWITCHES = {f.name: False for f in fields(SearchSpace) if f.default is True}
"""Everything that a SearchSpace allows and a flag forbids."""


def forbidden(case: Case) -> Iterator[tuple[str, SearchSpace]]:
    """The case's space without each mechanism that it allows."""
    for name, value in {**SWITCHES, "pipelines": 1, "replicas": 1}.items():
        if getattr(case.space, name) in (True, None):
            yield f"without {name}" if value is False else f"{name} = 1", replace(case.space, **{name: value})


def restricted(case: Case, space: SearchSpace, who: str, seconds: float, seed: int) -> Best:
    """plan() in a part of the space, with the same time."""
    best = Best(tried=1)
    found = plan(case.model, case.cluster, case.workload, space, seconds, seed, 1).plan
    if found is not None:
        best.offer(who, found)
    return best
