"""Why a plan takes as long as it does: what its devices wait for, and what its op lists take on faster machines.

Facts as data, by simulation alone. `explanation.py` adds what is planned again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from typing import Any

from ..forecast import Cause, IdleSpan, Timeline, idle_spans, seconds_by_cause
from ..plan import Plan
from ..problem import FLUSH, Cluster, Link, NodeGroup
from ..simulate import evaluate, simulate
from .common import COUNT

FASTER = 11 / 10
"""What is 10 % faster takes 1 / 1.1 of the time."""
FASTER_BY = " 10 % faster"
"""Ends the words of what is simulated again."""


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
        what: in words. device: the one that is faster, where it is one alone.
        step_s: of the plan there, or of the plan found there.
        change: against this plan's, -0.1: a tenth less; with another number of micro-batches, of the time of each.
        searched_s: None: the same op lists simulated again; else so many seconds were searched, from this plan on: what
            is found is no limit of what there is.
        plan: what was found.
    """

    what: str
    step_s: float
    change: float
    searched_s: float | None = None
    device: int | None = None
    plan: Plan | None = None

    def to_dict(self) -> dict[str, Any]:
        """For machines; without the plan."""
        return {key: getattr(self, key) for key in ("what", "step_s", "change", "searched_s", "device")}


@dataclass(frozen=True)
class Explanation:
    """Facts about a plan, times in seconds.

    Attributes:
        step_s, bound_s: of the plan. spans: what every device waits for, when.
        gap: None without a bound, or without a flush (the bound is then of the period).
        what_ifs: the largest gain first; none where they were not asked for.
        overhead_s: by device, of its computing, what ops cost beside their layers.
        orders_s: no order of these ops on these devices takes less; None where that was not asked for.
    """

    step_s: float
    bound_s: float | None
    spans: tuple[IdleSpan, ...]
    gap: Gap | None
    what_ifs: tuple[WhatIf, ...]
    overhead_s: tuple[float, ...] = ()
    orders_s: float | None = None

    def idle_s(self, device: int | None = None) -> dict[Cause, float]:
        """Seconds by cause, of one device or of all together."""
        return seconds_by_cause(self.spans, lambda span: device is None or span.device == device)

    def to_dict(self, devices: int) -> dict[str, Any]:
        """For machines."""
        idle = [{cause.name.lower(): s for cause, s in self.idle_s(d).items()} for d in range(devices)]
        gap = None if self.gap is None else asdict(self.gap)
        told = {"what_if": [one.to_dict() for one in self.what_ifs]} if self.what_ifs else {}
        around = {"overhead_s": list(self.overhead_s)} if any(self.overhead_s) else {}
        least = {} if self.orders_s is None else {"orders_bound_s": self.orders_s}
        return {"idle_s": idle, "gap_parts": gap} | around | least | told


def facts(plan: Plan, faster: bool = True) -> Explanation:
    """What the devices of a plan wait for, where its gap comes from; with `faster`, what faster machines would give.

    Raises PlanError for a plan that cannot run.
    """
    timeline = simulate(plan)
    problem = plan.problem
    limits = [problem.workload.memory_limit(device.kind.memory_bytes) for device in problem.cluster.devices]
    spans = idle_spans(plan, timeline, limits)
    forecast = plan.forecast
    bound_s = None if forecast is None or plan.weights != FLUSH else forecast.bound_s or None
    gap = None if bound_s is None or not timeline.busy_s else _gap(timeline, spans, bound_s)
    what_ifs = ordered(_faster(plan, timeline)) if faster else ()
    return Explanation(timeline.step_s, bound_s, spans, gap, what_ifs, timeline.overhead_s)


def ordered(found: Iterable[WhatIf]) -> tuple[WhatIf, ...]:
    """The largest gain first."""
    return tuple(sorted(found, key=lambda what: what.change))


def _gap(timeline: Timeline, spans: tuple[IdleSpan, ...], bound_s: float) -> Gap:
    device = max(range(len(timeline.busy_s)), key=timeline.busy_s.__getitem__)
    idle = seconds_by_cause(spans, lambda span: span.device == device)
    filling_s, draining_s, memory_s = (idle.pop(cause, 0.0) for cause in (Cause.FILLING, Cause.DRAINING, Cause.MEMORY))
    load_s = timeline.busy_s[device] - bound_s
    return Gap(device, load_s, filling_s, draining_s, memory_s, math.fsum(idle.values()))


# ---------------------------------------------------------------- faster machines


def _faster(plan: Plan, timeline: Timeline) -> Iterator[WhatIf]:
    """The same op lists on links, host links and devices that are 10 % faster, one sort at a time, and each device of
    those that compute longest."""
    before = timeline.step_s
    for what, cluster in faster_clusters(plan.problem.cluster):
        again = evaluate(plan, cluster=cluster).step_s
        yield WhatIf(what, again, changed_by(again, before))
    busiest = sorted(range(len(timeline.busy_s)), key=lambda d: -timeline.busy_s[d])
    for device in busiest[: COUNT.alone] if len(busiest) > 1 else ():
        again = evaluate(plan, faster={device: FASTER}).step_s
        yield WhatIf(f"device {device} alone{FASTER_BY}", again, changed_by(again, before), device=device)


def changed_by(again: float, before: float) -> float:
    """Share by which a step differs from what it was."""
    return again / before - 1 if before > 0 else 0.0


def faster_clusters(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """What is faster, and the cluster with it: all of a sort, and each part where there are several.

    Links that take no time are left out.
    """
    sorts = {"links": _links(cluster), "host links": _host_links(cluster), "devices": _devices(cluster)}
    for sort, parts in sorts.items():
        if parts:
            yield f"all {sort}{FASTER_BY}", reduce(lambda made, part: part[1](made), parts, cluster)
        if len(parts) > 1:
            for what, quicken in parts:
                yield f"{what}{FASTER_BY}", quicken(cluster)


_Quicken = Callable[[Cluster], Cluster]


def _links(cluster: Cluster) -> list[tuple[str, _Quicken]]:
    found: list[tuple[str, _Quicken]] = []
    if len(cluster.node_groups) > 1 and _takes_time(cluster.network):
        found.append(("network", lambda made: replace(made, network=_quicker(made.network))))
    for k, group in enumerate(cluster.nodes):
        if group.devices > 1 and _takes_time(group.link):
            found.append((f"links {_where(k, group)}", partial(_in_group, k, _with_quicker_link)))
    return found


def _with_quicker_link(group: NodeGroup) -> NodeGroup:
    return replace(group, link=_quicker(group.link))


def _host_links(cluster: Cluster) -> list[tuple[str, _Quicken]]:
    def quicken(group: NodeGroup) -> NodeGroup:
        return replace(group, host_link=_quicker(group.host_link))

    slow = [(k, group) for k, group in enumerate(cluster.nodes) if _takes_time(group.host_link)]
    return [(f"host links {_where(k, group)}", partial(_in_group, k, quicken)) for k, group in slow]


def _devices(cluster: Cluster) -> list[tuple[str, _Quicken]]:
    def quicken(group: NodeGroup) -> NodeGroup:
        return replace(group, device=replace(group.device, speed=group.device.speed * FASTER))

    return [(f"devices {_where(k, group)}", partial(_in_group, k, quicken)) for k, group in enumerate(cluster.nodes)]


def _where(k: int, group: NodeGroup) -> str:
    return f"of nodes[{k}] ({group.count} x {group.devices} {group.device.name})"


def _in_group(k: int, quicken: Callable[[NodeGroup], NodeGroup], cluster: Cluster) -> Cluster:
    return with_group(cluster, k, quicken(cluster.nodes[k]))


def _takes_time(link: Link) -> bool:
    return not math.isinf(link.bandwidth) or link.latency_s > 0


def _quicker(link: Link) -> Link:
    reduce_bandwidth = None if link.reduce_bandwidth is None else link.reduce_bandwidth * FASTER
    quicker = replace(link, bandwidth=link.bandwidth * FASTER, latency_s=link.latency_s / FASTER)
    return replace(quicker, reduce_bandwidth=reduce_bandwidth)


def with_group(cluster: Cluster, k: int, group: NodeGroup) -> Cluster:
    """The cluster with another k-th group."""
    return replace(cluster, nodes=(*cluster.nodes[:k], group, *cluster.nodes[k + 1 :]))
