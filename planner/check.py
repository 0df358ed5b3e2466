"""Is this plan executable? All violations, each named; knows no solver and no schedule.

A plan that passes runs without deadlock on an executor that posts sends and receives in list order and never
blocks a compute op on a send, and no device exceeds its memory limit in the forecast.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import InputError
from .operations import (
    RECOMPUTE,
    STASH_POLICIES,
    StageCosts,
    holders,
    messages,
    route,
)
from .plan import COMPUTE, RECEIVES, SENDS, Forecast, Kind, Op, Plan
from .simulate import simulate
from .units import format_bytes

_TOLERANCE = 1e-6
_STATUSES = ("optimal", "feasible")


@dataclass(frozen=True)
class Violation:
    """One reason why a plan cannot run as promised: a stable code, where, and one line for people."""

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.where}: {self.message}"


def check(plan: Plan) -> list[Violation]:
    """All violations of a plan; an empty list means it is executable.

    Faults of structure hide the op lists' faults, and those hide deadlocks, memory and forecast: each group is
    looked at only where the ones before it are clean.
    """
    found = list(_structure(plan))
    if found:
        return found
    try:
        costs = StageCosts.of(plan.problem.model, plan.stages)
    except InputError as error:
        return [Violation("stages", "stages", str(error))]
    found = [*_op_sets(plan, costs)]
    if not found:
        found = [*_local_order(plan, costs), *_message_order(plan, costs)]
    if not found:
        found = [*_deadlock(plan, costs)]
    return found or [*_memory_and_forecast(plan)]


def _structure(plan: Plan) -> Iterator[Violation]:
    devices, stages = len(plan.problem.cluster), len(plan.stages)
    if plan.weights != "flush":
        yield Violation("weights", "plan", f"unknown weight policy {plan.weights!r}")
    if len(plan.orders) != devices:
        yield Violation("devices", "plan", f"{len(plan.orders)} op lists for {devices} devices")
    if len(plan.stash) != len(plan.pipelines):
        yield Violation("stash", "plan", f"{len(plan.stash)} stash rows for {len(plan.pipelines)} pipelines")
    if not plan.pipelines:
        yield Violation("pipelines", "plan", "there is no pipeline")
    for number, pipeline in enumerate(plan.pipelines):
        where = f"pipeline {number}"
        for name in ("forward", "backward"):
            route_ = getattr(pipeline, name)
            if len(route_) != stages:
                yield Violation("pipelines", where, f"{name} names {len(route_)} devices for {stages} stages")
            for stage, device in enumerate(route_):
                if not 0 <= device < devices:
                    yield Violation(
                        "device", where, f"stage {stage} {name} on device {device}, the cluster has {devices}"
                    )
        if pipeline.forward != pipeline.backward:
            yield Violation("pipelines", where, "forward and backward devices that differ are not supported yet")
    for number, row in enumerate(plan.stash):
        if len(row) != stages or any(policy not in STASH_POLICIES for policy in row):
            yield Violation("stash", f"pipeline {number}", f"needs one of {STASH_POLICIES} for every stage: {row}")
    yield from _micro_batches(plan)


def _micro_batches(plan: Plan) -> Iterator[Violation]:
    count = plan.problem.workload.micro_batches
    taken = Counter(m for pipeline in plan.pipelines for m in pipeline.micro_batches)
    for m in range(count):
        if taken[m] != 1:
            yield Violation("micro-batches", f"micro-batch {m}", f"takes {taken[m]} pipelines, must take 1")
    for m in taken:
        if not 0 <= m < count:
            yield Violation("micro-batches", f"micro-batch {m}", f"does not exist: there are {count}")


def _required(plan: Plan, costs: StageCosts) -> list[Counter[Op]]:
    """Every op each device must have exactly once, backwards apart (those may be B, or I and W)."""
    required: list[Counter[Op]] = [Counter() for _ in plan.orders]
    for number, pipeline in enumerate(plan.pipelines):
        for stage, device in enumerate(pipeline.forward):
            required[device].update(Op(Kind.F, stage, m) for m in pipeline.micro_batches)
            if plan.stash[number][stage] == RECOMPUTE:
                required[pipeline.backward[stage]].update(Op(Kind.R, stage, m) for m in pipeline.micro_batches)
    for message in messages(plan, costs):
        required[message.source][message.send] += 1
        required[message.target][message.receive] += 1
    for stage, devices in holders(plan).items():
        for device in devices:
            required[device][Op(Kind.STEP, stage)] += 1
            if len(devices) > 1:
                required[device][Op(Kind.REDUCE, stage)] += 1
    return required


def _op_sets(plan: Plan, costs: StageCosts) -> Iterator[Violation]:
    required = _required(plan, costs)
    for device, order in enumerate(plan.orders):
        where = f"device {device}"
        present = Counter(order)
        backwards = {op: n for op, n in present.items() if op.kind in (Kind.B, Kind.I, Kind.W)}
        for op, count in present.items():
            if count > 1:
                yield Violation("repeated-op", where, f"{op} appears {count} times")
            if op not in backwards and op not in required[device]:
                yield Violation("unexpected-op", where, f"{op} does not belong here")
        for op in required[device]:
            if op not in present:
                yield Violation("missing-op", where, f"{op} is missing")
        yield from _backward_set(plan, costs, device, set(backwards))


def _backward_set(plan: Plan, costs: StageCosts, device: int, present: set[Op]) -> Iterator[Violation]:
    where = f"device {device}"
    wanted: set[tuple[int, int]] = {
        (stage, m)
        for pipeline in plan.pipelines
        for stage, owner in enumerate(pipeline.backward)
        if owner == device
        for m in pipeline.micro_batches
    }
    for stage, m in sorted(wanted):
        whole, halves = Op(Kind.B, stage, m) in present, [Op(kind, stage, m) for kind in (Kind.I, Kind.W)]
        split = [op in present for op in halves]
        if whole and any(split):
            yield Violation("repeated-op", where, f"{Op(Kind.B, stage, m)} stands beside its halves")
        elif not whole and not all(split):
            lacking = [str(op) for op, has in zip(halves, split, strict=True) if not has]
            name = str(Op(Kind.B, stage, m)) if not any(split) else lacking[0]
            yield Violation("missing-op", where, f"{name} is missing")
        elif split[0] and not costs.separable[stage]:
            yield Violation("unexpected-op", where, f"{halves[0]}: the backward of stage {stage} cannot be split")
    for op in sorted(present):
        if (op.stage, op.micro_batch) not in wanted:
            yield Violation("unexpected-op", where, f"{op} does not belong here")


def _waits_for(plan: Plan, costs: StageCosts) -> Iterator[tuple[int, Op, Op]]:
    """(device, op, an op of the same list that must come before it), for every data dependency in a device."""
    path = route(plan)
    producers, consumers = costs.producers, costs.consumers
    for device, order in enumerate(plan.orders):
        have = set(order)

        def grad(stage: int, m: int, have: set[Op] = have) -> Op:
            whole = Op(Kind.B, stage, m)
            return whole if whole in have else Op(Kind.I, stage, m)

        for op in order:
            kind, stage, m, _ = op
            if kind == Kind.F:
                pipeline = plan.pipelines[path[m]]
                for p in producers[stage]:
                    local = pipeline.forward[p] == device
                    yield device, op, Op(Kind.F, p, m) if local else Op(Kind.RECV_F, stage, m, p)
            elif kind in (Kind.B, Kind.I):
                pipeline = plan.pipelines[path[m]]
                remade = plan.stash[path[m]][stage] == RECOMPUTE
                yield device, op, Op(Kind.R if remade else Kind.F, stage, m)
                for c in consumers[stage]:
                    local = pipeline.backward[c] == device
                    yield device, op, grad(c, m) if local else Op(Kind.RECV_B, stage, m, c)
            elif kind == Kind.W:
                yield device, op, Op(Kind.I, stage, m)
            elif kind == Kind.R or kind == Kind.SEND_F:
                yield device, op, Op(Kind.F, stage, m)
            elif kind == Kind.SEND_B:
                yield device, op, grad(stage, m)
        yield from _closing(device, order)


def _closing(device: int, order: tuple[Op, ...]) -> Iterator[tuple[int, Op, Op]]:
    """REDUCE and STEP come after every backward of their stage, STEP after REDUCE."""
    closing = [op for op in order if op.kind in (Kind.REDUCE, Kind.STEP)]
    ended: dict[int, list[Op]] = defaultdict(list)
    for op in order:
        if op.kind in (Kind.B, Kind.W, Kind.REDUCE):
            ended[op.stage].append(op)
    for op in closing:
        for earlier in ended[op.stage]:
            if earlier != op:
                yield device, op, earlier


def _local_order(plan: Plan, costs: StageCosts) -> Iterator[Violation]:
    place = [{op: k for k, op in enumerate(order)} for order in plan.orders]
    for device, op, earlier in _waits_for(plan, costs):
        if place[device][earlier] > place[device][op]:
            yield Violation("dependency", f"device {device}", f"{op} comes before {earlier}, which it needs")


def _message_order(plan: Plan, costs: StageCosts) -> Iterator[Violation]:
    """Both ends of every device pair must post its messages in the same order (NCCL has no tags)."""
    place = [{op: k for k, op in enumerate(order)} for order in plan.orders]
    pairs: dict[tuple[int, int], list[tuple[int, int, Op, Op]]] = defaultdict(list)
    for source, send, target, receive, _ in messages(plan, costs):
        pairs[source, target].append((place[source][send], place[target][receive], send, receive))
    for (source, target), ends in pairs.items():
        ends.sort()
        for (_, before, first, _), (_, after, second, _) in zip(ends, ends[1:], strict=False):
            if after < before:
                yield Violation(
                    "message-order",
                    f"devices {source} -> {target}",
                    f"{first} is sent before {second}, but device {target} receives them the other way round",
                )


def _deadlock(plan: Plan, costs: StageCosts) -> Iterator[Violation]:
    """A cycle in the union of device order, data dependencies and per-pair message order."""
    import networkx

    graph: networkx.DiGraph[tuple[object, ...]] = networkx.DiGraph()
    node: list[dict[Op, tuple[object, ...]]] = []
    for device, order in enumerate(plan.orders):
        node.append({op: (device, op) for op in order})
    for number, message in enumerate(messages(plan, costs)):
        joined = ("message", number, message.source, message.target, message.send)
        node[message.source][message.send] = node[message.target][message.receive] = joined
    for stage, devices in holders(plan).items():
        for device in devices:
            if Op(Kind.REDUCE, stage) in node[device]:
                node[device][Op(Kind.REDUCE, stage)] = ("reduce", stage)
    last: dict[tuple[object, ...], tuple[object, ...]] = {}
    for device, order in enumerate(plan.orders):
        previous = None
        for op in order:
            here = node[device][op]
            if previous is not None:
                graph.add_edge(previous, here)
            if op.kind in COMPUTE:
                previous = here
            if op.kind in SENDS | RECEIVES:
                pair = (here[2], here[3], device)
                if pair in last:
                    graph.add_edge(last[pair], here)
                last[pair] = here
    for device, op, earlier in _waits_for(plan, costs):
        graph.add_edge(node[device][earlier], node[device][op])
    if not networkx.is_directed_acyclic_graph(graph):
        names = [_name(edge[0]) for edge in networkx.find_cycle(graph)]
        yield Violation("deadlock", "plan", f"these wait for each other: {' -> '.join([*names, names[0]])}")


def _name(node: tuple[object, ...]) -> str:
    if node[0] == "message":
        return f"message {node[4]} (device {node[2]} to {node[3]})"
    return f"REDUCE of stage {node[1]}" if node[0] == "reduce" else f"{node[1]} on device {node[0]}"


def _memory_and_forecast(plan: Plan) -> Iterator[Violation]:
    forecast = simulate(plan).forecast()
    workload = plan.problem.workload
    for device, found in enumerate(forecast.devices):
        limit = workload.memory_limit(plan.problem.cluster.devices[device].kind.memory_bytes)
        if found.peak_bytes > limit:
            parts = ", ".join(f"{name} {format_bytes(count)}" for name, count in found.peak_parts)
            yield Violation(
                "memory",
                f"device {device}",
                f"peaks at {found.peak_bytes} bytes, the limit is {limit} ({parts})",
            )
    if plan.forecast is None:
        yield Violation("forecast", "plan", "has no forecast")
    else:
        yield from _tampered(plan.forecast, forecast)


def _differ(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-12)


def _tampered(said: Forecast, true: Forecast) -> Iterator[Violation]:
    if _differ(said.step_s, true.step_s):
        yield Violation("forecast", "step_s", f"says {said.step_s}, the simulation gives {true.step_s}")
    if len(said.devices) != len(true.devices):
        yield Violation("forecast", "devices", f"names {len(said.devices)} of {len(true.devices)} devices")
        return
    for device, (a, b) in enumerate(zip(said.devices, true.devices, strict=True)):
        for key in ("busy_s", "bubble", "peak_bytes"):
            if _differ(getattr(a, key), getattr(b, key)):
                yield Violation(
                    "forecast",
                    f"device {device}",
                    f"{key} says {getattr(a, key)}, the simulation gives {getattr(b, key)}",
                )
    if said.bound_s > true.step_s * (1 + _TOLERANCE) or said.bound_s < 0:
        yield Violation("forecast", "bound_s", f"bound {said.bound_s} against a step of {true.step_s}")
    elif said.bound_s > 0:
        gap = true.step_s / said.bound_s - 1
        if said.gap is None or abs(said.gap - gap) > 10 * _TOLERANCE * (1 + gap):
            yield Violation("forecast", "gap", f"says {said.gap}, step and bound give {gap}")
        if said.status == "optimal" and gap > _TOLERANCE:
            yield Violation("forecast", "status", f"says optimal with a gap of {gap}")
    if said.status not in _STATUSES:
        yield Violation("forecast", "status", f"unknown status {said.status!r}")
