"""Stages on a cluster as the arrays that the dispatcher reads."""

from __future__ import annotations

import numpy as np

from ...graph import Candidate, Machine, around_step_s, step_seconds, training_bytes
from ...plan import Pipeline, Problem
from ..common import limits
from .tables import HALF, REMADE_F, TYPES, B, Case, F, Floats, Ints, R, W

Stages = tuple[tuple[str, ...], ...]


def case_of(problem: Problem, stages: Stages) -> Case:
    """The arrays of these stages."""
    route = (0,) * len(stages)
    candidate = Candidate(problem, stages, (Pipeline(route, route, tuple(range(problem.workload.micro_batches))),))
    costs, cluster, devices = candidate.costs, problem.cluster, range(len(problem.cluster))
    machine = Machine.of(cluster)
    links = [[cluster.link(a, b) for b in devices] for a in devices]
    groups = [cluster.node_groups[device.node] for device in cluster.devices]
    take, drop = _bytes(candidate)
    owned, lent = _owned(candidate)
    member = np.zeros((len(costs.ties), len(stages)), dtype=np.bool_)
    for n, tie in enumerate(costs.ties):
        member[n, list(tie.stages)] = True
    train = problem.workload
    tied = [sum(training_bytes(train, tie.bytes, tie.tensors, tie.trained_bytes).values()) for tie in costs.ties]
    return Case(
        batches=train.micro_batches,
        seconds=_seconds(candidate),
        take=take,
        drop=drop,
        moved=np.array([costs.stash_bytes, costs.incoming_bytes], dtype=np.int64),
        **_edges(candidate),
        owned=owned,
        lent=lent,
        member=member,
        tied_owned=np.array(tied, dtype=np.int64),
        tied_lent=np.array([tie.bytes for tie in costs.ties], dtype=np.int64),
        trained=costs.trained_bytes.astype(np.int64),
        step=np.array([[_finish_s(candidate, s, d) for d in devices] for s in range(len(stages))]),
        speed=machine.speed.astype(np.float64),
        limit=np.array(limits(problem), dtype=np.int64),
        node=machine.node.astype(np.int64),
        host=machine.host_link.astype(np.int64),
        host_pace=np.array([group.host_link.occupation_s(1) for group in groups]),
        host_lag=np.array([group.host_link.latency_s for group in groups], dtype=np.float64),
        pace=np.array([[link.occupation_s(1) for link in row] for row in links]),
        lag=np.array([[link.latency_s for link in row] for row in links], dtype=np.float64),
    )


def _finish_s(candidate: Candidate, stage: int, device: int) -> float:
    """A stage's step on a device that alone trains it, sums with other groups of devices included."""
    own = int(candidate.costs.own_trained_bytes[stage])
    return step_seconds(candidate, candidate.costs, stage, device) + around_step_s(candidate.problem, (device,), own)


def _seconds(candidate: Candidate) -> Floats:
    costs = candidate.costs
    found = np.zeros((TYPES, len(candidate.stages)))
    found[F] = found[REMADE_F] = found[R] = costs.forward_s
    found[B], found[HALF], found[W] = costs.backward_s, costs.backward_input_s, costs.backward_weight_s
    return found


def _bytes(candidate: Candidate) -> tuple[Ints, Ints]:
    """What ops of every type take at their start, and change at their end (`forecast/memory.py`)."""
    costs, count = candidate.costs, len(candidate.stages)
    stash, later, work, fed = costs.stash_bytes, costs.weight_stash_bytes, costs.workspaces, costs.input_bytes
    leaving, coming, inside, rest = (np.zeros(count, dtype=np.int64) for _ in range(4))
    for producer, consumer, size in costs.edges:
        leaving[producer] += size
        coming[consumer] += size
        inside[consumer] += min(size, int(stash[consumer]))
        rest[consumer] += size - min(size, int(stash[consumer]))
    inside, rest = inside + np.minimum(fed, stash), rest + fed - np.minimum(fed, stash)
    take, drop = np.zeros((TYPES, count), dtype=np.int64), np.zeros((TYPES, count), dtype=np.int64)
    take[F], drop[F] = stash + work.forward + leaving + fed - inside, -work.forward - rest
    alone = costs.inner_bytes + costs.workspace_bytes
    take[REMADE_F], drop[REMADE_F] = costs.kept_input_bytes + alone + leaving + fed, -alone
    take[R], drop[R] = stash + work.remake - costs.kept_input_bytes - inside, -work.remake - rest
    take[B], drop[B] = work.backward + coming, -work.backward - stash - leaving
    take[HALF] = work.inputs + coming + np.maximum(later - stash, 0)
    drop[HALF] = -work.inputs - leaving + np.minimum(later - stash, 0)
    take[W], drop[W] = work.weights, -work.weights - later
    return take, drop


def _owned(candidate: Candidate) -> tuple[Ints, Ints]:
    """Bytes that stay where a stage's backward runs, and where only its forward does; tied parameters apart."""
    costs, train = candidate.costs, candidate.problem.workload
    rows = zip(costs.own_bytes, costs.parameter_tensors, costs.own_trained_bytes, strict=True)
    parts = train.parts(1)
    owned = [sum(training_bytes(train, int(p), int(n), int(t), parts).values()) for p, n, t in rows]
    return (
        np.asarray(np.array(owned, dtype=np.int64) + costs.buffer_bytes, dtype=np.int64),
        np.asarray(costs.own_bytes + costs.buffer_bytes, dtype=np.int64),
    )


def _edges(candidate: Candidate) -> dict[str, Ints]:
    """Edges by consumer (in) and by producer (out), in CSR form."""
    count, found = len(candidate.stages), {}
    edges = np.array(candidate.costs.edges, dtype=np.int64).reshape(-1, 3)
    for name, mine, other in (("in", 1, 0), ("out", 0, 1)):
        order = np.argsort(edges[:, mine], kind="stable")
        counts = np.bincount(edges[:, mine], minlength=count)
        found[f"{name}_first"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        found[f"{name}_stage"] = np.ascontiguousarray(edges[order, other])
        found[f"{name}_bytes"] = np.ascontiguousarray(edges[order, 2])
    return found
