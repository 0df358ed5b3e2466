"""Lower bounds on the step, in seconds. None uses more than is certain of every plan it speaks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .operations import Candidate, holders, reduce_seconds, step_seconds
from .partition.chain import Chain, Floats, bottleneck
from .plan import Pipeline, Problem


def load(problem: Problem) -> float:
    """Valid for every plan: all F and B of all layers and micro-batches, spread over all speeds.

    Device d works off at most step_s * speed_d seconds of layer time, and all of it must be worked off.
    """
    work = sum(layer.forward_s + layer.backward_s for layer in problem.model.layers)
    speeds = sum(device.kind.speed for device in problem.cluster.devices)
    return problem.workload.micro_batches * work / speeds


def critical_path(problem: Problem) -> float:
    """Valid for every plan: one micro-batch takes the longest path forward and back at the highest speed."""
    chain = Chain.of(problem)
    before, _ = _ancestors(chain)
    own = chain.costs.forward_s + chain.costs.backward_s
    return float((before + own).max()) / max(device.kind.speed for device in problem.cluster.devices)


def any_plan(problem: Problem) -> float:
    """The larger of the bounds that hold for every plan, whatever its stages, pipelines and devices."""
    return max(load(problem), critical_path(problem))


def _ancestors(chain: Chain) -> tuple[Floats, Floats]:
    """Per layer: F and B seconds of the heaviest path of layers into it (itself left out), and its own."""
    own = chain.costs.forward_s + chain.costs.backward_s
    before = np.zeros(len(chain))
    for producer, consumer, _ in chain.costs.edges:
        before[consumer] = max(before[consumer], before[producer] + own[producer])
    return before, own


def one_direction(chain: Chain, devices: tuple[int, ...]) -> float:
    """Valid for one pipeline with stage s on devices[s], whatever the cut: the minimum over all partitions.

    Before the first F on a device that starts with layer i, the layers on a path into i have run forward;
    after its last B, they run backward. Between, it runs N times F and B of its own. Hence step_s >= N * load +
    head(i); head is the heaviest path of F + B into layer i at the highest speed. The dynamic programme
    minimises the maximum over the stages, and forbids intervals that cannot hold one stash.
    """
    fastest = max(chain.speed(d) for d in devices)
    head = np.append(_ancestors(chain)[0], 0.0) / fastest
    memory = chain.bytes(1, 0) - chain.shared_bytes
    batches = chain.problem.workload.micro_batches

    def tables() -> Iterator[Floats]:
        for device in devices:
            table = batches * chain.seconds / chain.speed(device) + head[:, None]
            yield np.where(memory > chain.limit(device), np.inf, table)

    return bottleneck(tables(), len(chain) + 1)[0]


def two_directions(chain: Chain, devices: tuple[int, ...]) -> float:
    """Valid for stage s on devices[s] or devices[D-1-s], whatever the cut and the shares of the directions.

    As `load` and `critical_path`, with the devices that the stages use.
    """
    before, own = _ancestors(chain)
    speeds = [chain.speed(d) for d in devices]
    total = chain.problem.workload.micro_batches * float(chain.load_s[-1]) / sum(speeds)
    return max(total, float((before + own).max()) / max(speeds))


# ------------------------------------------------------------------ one candidate


@dataclass(frozen=True)
class Route:
    """Times of one pipeline of a candidate, seconds per stage.

    head_s: from the start of the step to the first F of a stage at the earliest. tail_s: from the last B of
    a stage to the end of the step at the least, its own optimizer step included. load_s: F and B of one
    micro-batch.
    """

    head_s: Floats
    tail_s: Floats
    load_s: Floats


def route(candidate: Candidate, pipeline: Pipeline) -> Route:
    """Heads and tails along the messages between stages: durations, link occupations and latencies add up."""
    costs, cluster = candidate.costs, candidate.problem.cluster
    speed = [cluster.devices[d].kind.speed for d in pipeline.forward]
    forward_s, backward_s = costs.forward_s / speed, costs.backward_s / speed
    head = np.zeros(len(speed))
    tail = np.array([finish_seconds(candidate, s, d) for s, d in enumerate(pipeline.backward)])
    for producer, consumer, size in sorted(costs.edges, key=lambda edge: edge.consumer):
        a, b = pipeline.forward[producer], pipeline.forward[consumer]
        there, back = message_seconds(candidate, a, b, size), message_seconds(candidate, b, a, size)
        head[consumer] = max(head[consumer], head[producer] + forward_s[producer] + there)
        tail[consumer] = max(tail[consumer], back + backward_s[producer] + tail[producer])
    return Route(head, tail, forward_s + backward_s)


def message_seconds(candidate: Candidate, source: int, target: int, size: int) -> float:
    """Seconds from the start of a message to its arrival; 0 on one device."""
    if source == target:
        return 0.0
    link = candidate.problem.cluster.link(source, target)
    return link.occupation_s(size) + link.latency_s


def finish_seconds(candidate: Candidate, stage: int, device: int) -> float:
    """Seconds after a stage's last B on a device at the least: its reduction between replicas, then its step."""
    devices = holders(candidate)[stage]
    count = candidate.problem.workload.gradient_bytes(int(candidate.costs.parameter_bytes[stage]))
    reduce_s = sum(reduce_seconds(candidate, stage, devices, count))
    return reduce_s + step_seconds(candidate, candidate.costs, stage, device)


def candidate(candidate: Candidate, shares: tuple[int, ...] | None = None) -> float:
    """Valid for every order of ops of a candidate whose pipelines take `shares` micro-batches each.

    `shares` None: the best of all shares (with at least one micro-batch each; two pipelines at most). A device
    with stages in several pipelines starts no earlier than the earliest head and ends no earlier than the
    smallest tail among them after its last op; between, it is busy for all its loads. Also a pipeline's own
    round trip: head + load + tail of every stage.
    """
    routes = [route(candidate, p) for p in candidate.pipelines]
    batches = candidate.problem.workload.micro_batches
    if shares is not None:
        return _shared_out(candidate, routes, shares)
    if len(routes) == 1:
        return _shared_out(candidate, routes, (batches,))
    return min(_shared_out(candidate, routes, (k, batches - k)) for k in range(1, batches))


def _shared_out(candidate: Candidate, routes: list[Route], shares: tuple[int, ...]) -> float:
    devices = len(candidate.problem.cluster)
    busy, head, tail = np.zeros(devices), np.full(devices, np.inf), np.full(devices, np.inf)
    longest = 0.0
    for pipeline, found, count in zip(candidate.pipelines, routes, shares, strict=True):
        place = list(pipeline.forward)
        np.add.at(busy, place, count * found.load_s)
        np.minimum.at(head, place, found.head_s)
        np.minimum.at(tail, place, found.tail_s)
        longest = max(longest, float((found.head_s + found.load_s + found.tail_s).max()))
    used = np.isfinite(head)
    return max(longest, float((busy + head + tail)[used].max()))
