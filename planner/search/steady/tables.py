"""What every interval of layers costs as a stage at one place of the pipeline: matrices over (first layer, end).

Lower estimates where a layer graph is not a chain: only the tensor of an edge over the cut itself is counted, so that
what follows from them is a bound. The simulator has the last word on what is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...graph import StageCosts, reduce_seconds, update_seconds
from ...partition import Chain
from ...plan import Problem
from ...problem import WeightPolicy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Groups = tuple[tuple[int, ...], ...]
_MANY = 1 << 30
"""Bytes by which a price that is linear in bytes is asked."""


@dataclass(frozen=True)
class Intervals:
    """What does not depend on devices; matrices [i, j] are of layers i..j-1, vectors of the cut before a layer.

    Attributes:
        load: seconds at speed 1 of the forward and of the backward.
        own: bytes of parameters that no other layer shares. held: bytes of all parameters.
        stash, workspace, incoming: bytes of one micro-batch;
            incoming is what recomputation keeps. fixed: bytes that stay, workspace included.
        crossing: bytes sent over a cut from its last layer to its first, at least.
        waits: whether the stage before a cut sends to the one behind it, wherever the other cuts are.
        late: whether an interval's gradients are summed with those of other stages, or of replicas.
    """

    chain: Chain
    forward: Floats
    backward: Floats
    own: Floats
    held: Floats
    stash: Floats
    workspace: Floats
    incoming: Floats
    fixed: Floats
    crossing: Floats
    waits: NDArray[np.bool_]
    late: NDArray[np.bool_]

    @classmethod
    def of(cls, chain: Chain, replicated: bool, passing: bool = False) -> Intervals:
        """Of a chain of layers; `replicated`: every stage has replicas elsewhere.

        `passing`: all tensors that cross a cut are sent over it, those for later stages too: nearer to what stages wait
        for than the least where the model is no chain, and no bound.
        """
        costs, least = chain.costs, least_workspace_bytes(chain)
        direct = {e.producer: e.bytes for e in costs.edges if e.consumer == e.producer + 1}
        ends = range(len(chain) + 1)
        crossing = np.array([float(direct.get(cut - 1, 0)) for cut in ends])
        waits = np.array([cut - 1 in direct for cut in ends])
        if passing:
            crossing = chain.boundary_bytes
            waits = crossing > 0
        return cls(
            chain,
            _sums(costs.forward_s) + chain.around_s,
            _sums(costs.backward_s) + chain.around_s,
            _sums(costs.own_trained_bytes.astype(float)),
            _held(chain),
            chain.stash.table,
            least,
            _incoming(chain.problem, costs, chain),
            chain.bytes(0, 0, 2 if replicated else 1) - chain.workspace_bytes + least,
            crossing,
            waits,
            np.full((len(chain) + 1,) * 2, replicated) | _tied(chain),
        )

    @property
    def size(self) -> int:
        """Cuts: layers and one."""
        return len(self.chain) + 1


def least_workspace_bytes(chain: Chain) -> Floats:
    """Workspace of every interval [i, j) of layers at the least, beside its stash and the tensors at its ends.

    Less than `Chain.workspace_bytes` where layers say what every kind of op takes (`StageCosts.workspaces`); of graphs
    that are no chains nothing then.
    """
    model = chain.problem.model
    layers = [model.layers[position] for position in model.topological]
    known = [layer.workspaces for layer in layers if layer.workspaces is not None]
    if len(known) < len(layers):
        return chain.workspace_bytes
    if set(model.edges) - set(pairwise(chain.names)):
        return np.zeros_like(chain.workspace_bytes)
    taken = np.array([max(own.forward, min(own.backward, own.inputs)) for own in known], dtype=float)
    ends, boundary, count = chain.stash.ends, chain.boundary_bytes, len(chain)
    rows = np.where(np.tri(count, k=-1, dtype=bool), -np.inf, (taken + ends[1:])[None, :])
    table = np.zeros((count + 1, count + 1))
    table[:count, 1:] = np.maximum.accumulate(rows, axis=1) - ends[1:]
    data = np.where(np.arange(count + 1) == 0, chain.costs.input_bytes.sum(), 0.0)
    return np.maximum(0.0, table - (boundary + data)[:, None] - boundary[None, :])


def _sums(values: Floats) -> Floats:
    before = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(before[None, :] - before[:, None], dtype=np.float64)


def _incoming(problem: Problem, costs: StageCosts, chain: Chain) -> Floats:
    """StageCosts.incoming_bytes of every interval."""
    count = len(chain)
    first = np.arange(count)
    for _, consumer, _ in costs.edges:
        first[consumer] = count
    for producer, consumer, _ in costs.edges:
        first[consumer] = min(first[consumer], producer)
    total = _sums(costs.input_bytes.astype(float))
    declared = costs.kept_input_bytes.astype(float)
    consumers: dict[int, list[int]] = {}
    for producer, consumer, _ in costs.edges:
        consumers.setdefault(producer, []).append(consumer)
    sizes: dict[int, float] = {}
    for producer, _, size in costs.edges:  # consumers may take different tensors of it
        sizes[producer] = min(sizes.get(producer, float(size)), float(size))
    for i in range(1, count):
        late = np.where((first < i) & (np.arange(count) >= i), declared, 0.0)
        for producer, targets in consumers.items():
            nearest = min((t for t in targets if t >= i), default=None)
            if producer < i and nearest is not None:
                late[nearest] += sizes[producer]
        total[i, i + 1 :] += np.cumsum(late[i:])
    return total


def _held(chain: Chain) -> Floats:
    """Bytes of trained parameters of every interval; what its layers share counts once."""
    total = _sums(chain.costs.own_trained_bytes.astype(float))
    for tie, (_, members) in zip(chain.costs.ties, chain.copies, strict=True):
        total = total + tie.trained_bytes * (members > 0)
    return total


def _tied(chain: Chain) -> NDArray[np.bool_]:
    """Whether an interval holds a layer whose parameters a layer outside shares."""
    found = np.zeros((len(chain) + 1,) * 2, dtype=np.bool_)
    for tie, (_, members) in zip(chain.costs.ties, chain.copies, strict=True):
        found |= (members > 0) & (members < len(tie.stages))
    return found


@dataclass(frozen=True)
class StageTables:
    """One place of the pipeline on its device: matrices [i, j] as of Intervals, in seconds and bytes.

    Attributes:
        there_and_back: seconds that a tensor takes to the next stage and its gradient back, by cut; 0 at the end.
        links: seconds a micro-batch on the busiest link, NIC or reduction of the device.
        copy, copy_weights, copy_latency: seconds of a stash, and of a version of the weights, one way on the host link.
        step, predict: seconds of an optimizer step, and of a prediction.
        reduce, reduce_latency: of adding up a stage's gradients between groups.
        host_share: devices of the pipeline on the same host link. limit: bytes the device may fill.
    """

    forward: Floats
    backward: Floats
    there_and_back: Floats
    links: Floats
    copy: Floats
    copy_weights: Floats
    copy_latency: float
    host_share: float
    step: Floats
    predict: Floats
    reduce: Floats
    reduce_latency: float
    limit: int
    last: bool


def places(
    intervals: Intervals, order: Sequence[int], whole: Problem, groups: Groups, update: int, policy: WeightPolicy
) -> list[StageTables]:
    """The places of a pipeline whose stages lie on these devices of the first group, in order.

    `update`: micro-batches of a group an update, over which a reduction's time on links is spread.
    """
    return [_place(intervals, order, k, whole, groups, update, policy) for k in range(len(order))]


def _place(
    intervals: Intervals,
    order: Sequence[int],
    k: int,
    whole: Problem,
    groups: Groups,
    update: int,
    policy: WeightPolicy,
) -> StageTables:
    problem, device = intervals.chain.problem, order[k]
    cluster, kind = problem.cluster, problem.cluster.devices[device].kind
    members = tuple(sorted(group[device] for group in groups))
    gradient = problem.workload.gradient_bytes(_MANY)
    rate, latency = reduce_seconds(whole.cluster, members, gradient)
    host = cluster.node_groups[cluster.devices[device].node]
    many = intervals.own / _MANY
    reduce = many * rate
    return StageTables(
        intervals.forward / kind.speed,
        intervals.backward / kind.speed,
        _there_and_back(intervals, order, k),
        _links(intervals, order, k, reduce / update if _on_network(whole, members) else np.zeros_like(reduce)),
        intervals.stash / host.host_link.bandwidth,
        intervals.held / host.host_link.bandwidth,
        host.host_link.latency_s,
        float(sum(cluster.host_links[d] == cluster.host_links[device] for d in order)),
        many * update_seconds(problem, device, _MANY),
        predict_seconds(problem, device, policy, intervals.held),
        reduce,
        latency,
        intervals.chain.limit(device),
        k == len(order) - 1,
    )


def predict_seconds(problem: Problem, device: int, policy: WeightPolicy, held: Floats) -> Floats:
    """Seconds of predicting so many bytes of parameters on a device; 0 where the policy predicts nothing."""
    bandwidth = problem.cluster.devices[device].kind.memory_bandwidth
    if bandwidth is None or not policy.predicts:
        return np.zeros_like(held)
    return held / _MANY * (problem.workload.predict_traffic_bytes(_MANY, policy.momentum_first) / bandwidth)


def _there_and_back(intervals: Intervals, order: Sequence[int], k: int) -> Floats:
    if k == len(order) - 1:
        return np.zeros(intervals.size)
    cluster = intervals.chain.problem.cluster
    there, back = cluster.link(order[k], order[k + 1]), cluster.link(order[k + 1], order[k])
    seconds = intervals.crossing / there.bandwidth + intervals.crossing / back.bandwidth
    return np.where(intervals.waits, seconds + there.latency_s + back.latency_s, 0.0)


def _links(intervals: Intervals, order: Sequence[int], k: int, on_network: Floats) -> Floats:
    """Seconds of the busiest way out of or into a device: a link each inside a node, a NIC each way between nodes.

    on_network: seconds that the NIC is busy besides.
    """
    cluster, nic, inside = intervals.chain.problem.cluster, on_network, np.zeros_like(on_network)
    for other in (k - 1, k + 1):
        if not 0 <= other < len(order):
            continue
        there, back = cluster.link(order[k], order[other]), cluster.link(order[other], order[k])
        seconds = intervals.crossing / min(there.bandwidth, back.bandwidth)
        side = seconds[:, None] if other < k else seconds[None, :]
        if cluster.same_node(order[k], order[other]):
            inside = np.maximum(inside, side)
        else:
            nic = nic + side
    return np.asarray(np.maximum(nic, inside), dtype=np.float64)


def _on_network(whole: Problem, members: tuple[int, ...]) -> bool:
    """Whether a ring over these devices goes over the NIC of each."""
    return len({whole.cluster.devices[d].node for d in members}) == len(members) > 1


@dataclass(frozen=True)
class Split:
    """Equal groups of devices, and the layers as the stages of one of them."""

    whole: Problem
    groups: Groups

    @cached_property
    def small(self) -> Problem:
        """The problem on the first group; it keeps the number of micro-batches, of which a group runs its part."""
        if len(self.groups) == 1:
            return self.whole
        return replace(self.whole, cluster=self.whole.cluster.part(self.groups[0]))

    @cached_property
    def chain(self) -> Chain:
        """The layers of the small problem."""
        return Chain.of(self.small)

    @cached_property
    def intervals(self) -> Intervals:
        """What its intervals of layers cost."""
        return Intervals.of(self.chain, len(self.groups) > 1)

    @cached_property
    def passing(self) -> Intervals:
        """The same where all tensors that cross a cut are sent over it."""
        return Intervals.of(self.chain, len(self.groups) > 1, passing=True)
