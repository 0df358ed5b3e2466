"""Why a plan takes as long as it does: facts as data. `plan --explain` prints them, pictures may draw them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..basics import InputError, PlanError
from ..forecast import Cause, IdleSpan, Timeline, idle_spans, seconds_by_cause
from ..plan import Plan, Problem
from ..problem import FLUSH, Cluster, Link, NodeGroup, SearchSpace
from ..simulate import evaluate, simulate
from .common import SECONDS
from .driver import plan as search

GIB = 1024**3
FASTER = 11 / 10
"""What is 10 % faster takes 1 / 1.1 of the time."""


@dataclass(frozen=True)
class Gap:
    """Where the seconds between bound and step are: of the device that computes longest; they add up to the gap.

    Attributes:
        device: which one. load_s: that it computes beyond the bound; below 0 where the bound knows of idling.
        filling_s, draining_s: that it is idle before its first op and after its last one.
        memory_s: that a forward is ready, but memory is full. waiting_s: everything else that it waits for.
    """

    device: int
    load_s: float
    filling_s: float
    draining_s: float
    memory_s: float
    waiting_s: float


@dataclass(frozen=True)
class WhatIf:
    """What the step would be on another machine.

    Attributes:
        what: in words. step_s: of the plan there, or of the plan found there.
        change: against this plan's, -0.1: a tenth less.
        searched_s: None: the same op lists simulated again; else so many seconds were searched, from this plan on: what
            is found is no limit of what there is.
    """

    what: str
    step_s: float
    change: float
    searched_s: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Facts about a plan, times in seconds.

    Attributes:
        step_s, bound_s: of the plan. spans: what every device waits for, when.
        gap: None without a bound, or without a flush (the bound is then of the period).
        what_ifs: the largest gain first.
    """

    step_s: float
    bound_s: float | None
    spans: tuple[IdleSpan, ...]
    gap: Gap | None
    what_ifs: tuple[WhatIf, ...]

    def idle_s(self, device: int | None = None) -> dict[Cause, float]:
        """Seconds by cause, of one device or of all together."""
        return seconds_by_cause(self.spans, lambda span: device is None or span.device == device)

    def to_dict(self, devices: int) -> dict[str, Any]:
        """For machines."""
        idle = [{cause.name.lower(): s for cause, s in self.idle_s(d).items()} for d in range(devices)]
        gap = None if self.gap is None else asdict(self.gap)
        return {"idle_s": idle, "gap_parts": gap, "what_if": [asdict(found) for found in self.what_ifs]}


def explain(
    plan: Plan,
    space: SearchSpace | None = None,
    time_limit: float = 0.0,
    seed: int = 0,
    workers: int = 2,
    deterministic_limit: float | None = None,
) -> Explanation:
    """What the devices of a plan wait for, where its gap comes from, and what other machines would give.

    More memory and one more device are planned for again, from this plan as hint, at most `time_limit` seconds each and
    SECONDS.explained; 0: not at all. Raises PlanError for a plan that cannot run.
    """
    timeline = simulate(plan)
    problem = plan.problem
    limits = [problem.workload.memory_limit(device.kind.memory_bytes) for device in problem.cluster.devices]
    spans = idle_spans(plan, timeline, limits)
    forecast = plan.forecast
    bound_s = None if forecast is None or plan.weights != FLUSH else forecast.bound_s
    gap = None if bound_s is None or not timeline.busy_s else _gap(timeline, spans, bound_s)
    found = [*_faster(plan, timeline.step_s)]
    seconds = min(time_limit, SECONDS.explained)
    if seconds > 0 and plan.weights == FLUSH:
        effort = {"time_limit": seconds, "seed": seed, "workers": workers, "deterministic_limit": deterministic_limit}
        found += _planned_again(plan, timeline.step_s, space or SearchSpace(), effort)
    ordered = tuple(sorted(found, key=lambda what: what.step_s))
    return Explanation(timeline.step_s, bound_s, spans, gap, ordered)


def _gap(timeline: Timeline, spans: tuple[IdleSpan, ...], bound_s: float) -> Gap:
    device = max(range(len(timeline.busy_s)), key=timeline.busy_s.__getitem__)
    idle = seconds_by_cause(spans, lambda span: span.device == device)
    filling_s, draining_s, memory_s = (idle.pop(cause, 0.0) for cause in (Cause.FILLING, Cause.DRAINING, Cause.MEMORY))
    load_s = timeline.busy_s[device] - bound_s
    return Gap(device, load_s, filling_s, draining_s, memory_s, math.fsum(idle.values()))


# ---------------------------------------------------------------- other machines


def _faster(plan: Plan, step_s: float) -> Iterator[WhatIf]:
    """The same op lists on links, host links and devices that are 10 % faster, one sort at a time."""
    for what, cluster in faster_clusters(plan.problem.cluster):
        again = evaluate(plan, cluster=cluster).step_s
        yield WhatIf(what, again, again / step_s - 1 if step_s > 0 else 0.0)


def faster_clusters(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """What is faster, and the cluster with it; links that take no time are left out."""
    if len(cluster.node_groups) > 1 and _takes_time(cluster.network):
        yield "network 10 % faster", replace(cluster, network=_quicker(cluster.network))
    for k, group in enumerate(cluster.nodes):
        where = f"of nodes[{k}] ({group.count} x {group.devices} {group.device.name})"
        if group.devices > 1 and _takes_time(group.link):
            yield f"links {where} 10 % faster", _with(cluster, k, replace(group, link=_quicker(group.link)))
        if _takes_time(group.host_link):
            quicker = replace(group, host_link=_quicker(group.host_link))
            yield f"host links {where} 10 % faster", _with(cluster, k, quicker)
        device = replace(group.device, speed=group.device.speed * FASTER)
        yield f"devices {where} 10 % faster", _with(cluster, k, replace(group, device=device))


def _takes_time(link: Link) -> bool:
    return not math.isinf(link.bandwidth) or link.latency_s > 0


def _quicker(link: Link) -> Link:
    reduce_bandwidth = None if link.reduce_bandwidth is None else link.reduce_bandwidth * FASTER
    return Link(link.bandwidth * FASTER, link.latency_s / FASTER, reduce_bandwidth)


def _with(cluster: Cluster, k: int, group: NodeGroup) -> Cluster:
    return replace(cluster, nodes=(*cluster.nodes[:k], group, *cluster.nodes[k + 1 :]))


def _planned_again(plan: Plan, step_s: float, space: SearchSpace, effort: dict[str, Any]) -> Iterator[WhatIf]:
    """Problems with more memory, and with one more device, searched from this plan on; left out without a plan."""
    for what, problem, hint in _larger(plan):
        try:
            result = search(problem.model, problem.cluster, problem.workload, space=space, hint=hint, **effort)
        except (InputError, PlanError):
            continue
        if result.plan is not None and result.plan.forecast is not None:
            again = result.plan.forecast.step_s
            yield WhatIf(what, again, again / step_s - 1 if step_s > 0 else 0.0, effort["time_limit"])


def _larger(plan: Plan) -> Iterator[tuple[str, Problem, Plan]]:
    """In words, the problem, and this plan as one of it."""
    problem, cluster, workload = plan.problem, plan.problem.cluster, plan.problem.workload
    groups = tuple(
        replace(g, device=replace(g.device, memory_bytes=g.device.memory_bytes + GIB)) for g in cluster.nodes
    )
    limit = workload.memory_limit_bytes
    more = replace(workload, memory_limit_bytes=None if limit is None else limit + GIB)
    roomy = replace(problem, cluster=replace(cluster, nodes=groups), workload=more)
    yield "one more GiB on every device", roomy, replace(plan, problem=roomy)
    last = cluster.nodes[-1]
    grown = replace(last, devices=last.devices + 1) if last.count == 1 else replace(last, count=last.count + 1)
    wider = replace(problem, cluster=_with(cluster, len(cluster.nodes) - 1, grown))
    count = len(wider.cluster) - len(cluster)
    what = "one more device" if count == 1 else f"one more node of {count} devices"
    yield what, wider, replace(plan, problem=wider, orders=(*plan.orders, *((),) * count))
