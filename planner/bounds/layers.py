"""A problem as the bounds over a space of plans see it: its layers, its machines, and the least waits.

Refinement: whatever the stages, running the layers of a stage one after the other in their order, each with its own
stash from its own F to its own I, needs no more memory at any instant and delays nothing. So only plans whose
stages are single layers matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd

import numpy as np

from ..partition import Chain, Floats
from ..plan import Problem
from ..problem import SearchSpace
from .whole import update_work


@dataclass(frozen=True)
class IdleTimes:
    """Seconds at the least in a plan of some step, for the device of rank 0, 1, ... in each respect.

    head: before its first op, and tail: after its last one (both ranked by the lowest layer). first: before its first
    I, and last: after its last F (both ranked by the highest layer). stay: of every layer's stash, from F to I.
    """

    head: Floats
    tail: Floats
    first: Floats
    last: Floats
    stay: Floats


class Layers:
    """Costs of every layer (seconds at speed 1, bytes), speeds and limits of every device.

    With `split` backwards a layer's backward is I and W, otherwise an I of the whole length.
    """

    def __init__(self, problem: Problem, space: SearchSpace) -> None:
        chain = Chain.of(problem)
        costs, self.count = chain.costs, len(chain)
        self.batches = problem.workload.micro_batches
        halves = np.array(costs.separable, dtype=bool) & space.split_backward
        self.forward = np.asarray(costs.forward_s, dtype=float)
        self.inputs = np.where(halves, costs.backward_input_s, costs.backward_s)
        self.weights = np.where(halves, costs.backward_weight_s, 0.0)
        self.work = self.forward + self.inputs + self.weights
        self.updates = update_work(problem)
        """Seconds at speed 1 of all optimizer steps at the least, behind all backwards of their layers."""
        self.stash = chain.stash.added
        """Of every layer's stash, what no layer before it keeps: a stage keeps these together at the least."""
        self.after = np.where(self.weights > 0, np.minimum(self.stash, chain.weight_stash(halves).added), 0.0)
        dropped = costs.selective_bytes if space.recompute else 0 * costs.selective_bytes
        self.rest = self.stash - dropped
        """Bytes of every layer's stash that selective recomputation keeps; all where it is not allowed."""
        self.again = np.where(dropped > 0, costs.selective_s, 0.0)
        """Seconds in which it makes the others again."""
        most = space.pipelines or self.count * len(problem.cluster)
        self.routes = min(most, self.batches)
        self.static = chain.static_bytes[0].astype(float)
        self.light = self._light(chain)
        """Bytes of every layer that stay on each device that trains it, at the least: what replicas share once."""
        self.edges = {(edge.producer, edge.consumer): edge.bytes for edge in costs.edges}
        self.straight = all((k, k + 1) in self.edges for k in range(self.count - 1))
        self.cluster = problem.cluster
        self.speeds = np.array([device.kind.speed for device in problem.cluster.devices])
        self.fastest = float(self.speeds.max())
        self.limits = self._whole(np.array([chain.limit(d) for d in range(len(self.speeds))]) + chain.shared_bytes)
        self.owned = self.routes == 1 and not space.separate_backward
        self.together = not space.separate_backward
        self.local = not (space.separate_backward or space.offload)

    def _light(self, chain: Chain) -> Floats:
        replicas = max(1, min(self.routes, len(chain.problem.cluster)))
        return np.asarray(np.maximum(0.0, self.static - np.ceil(chain.optimizer_bytes * (1 - 1 / replicas))))

    def _whole(self, limits: Floats) -> Floats:
        """Limits rounded down to what sums of stashes and static bytes can reach."""
        if (self.light < self.static).any():  # parts are of any size
            return limits
        sizes = np.concatenate([self.stash, self.after, self.static])
        unit = gcd(*sizes.astype(np.int64).tolist()) if np.array_equal(sizes, np.rint(sizes)) else 0
        return limits // unit * unit if unit else limits

    @cached_property
    def equal(self) -> bool:
        """Whether all devices are alike."""
        return bool((self.speeds == self.speeds[0]).all() and (self.limits == self.limits[0]).all())

    @property
    def pieces(self) -> Floats:
        """Of a micro-batch, what one device does all of on a route: a layer's work, or its forward and its backward."""
        return self.work if self.together else np.concatenate([self.forward, self.inputs + self.weights])

    def most(self, capacity: Floats) -> float:
        """No matching of devices (rows; one where all are alike) with ranks (columns) has more capacity in all."""
        if self.equal:
            return float(capacity[0].sum())
        return float(min(capacity.max(axis=0).sum(), capacity.max(axis=1).sum()))

    def most_of_each(self, capacities: Floats) -> Floats:
        """The same for each of several tables."""
        if self.equal:
            return np.asarray(capacities[:, 0].sum(axis=1))
        return np.asarray(np.minimum(capacities.max(axis=1).sum(axis=1), capacities.max(axis=2).sum(axis=1)))

    @cached_property
    def hop_s(self) -> float:
        """Seconds of a message between two devices at the least."""
        cluster = self.cluster
        links = [g.link for g in cluster.nodes if g.devices > 1]
        if len(cluster.node_groups) > 1:
            links.append(cluster.network)
        size = min((self.edges.get((k, k + 1), 0) for k in range(self.count - 1)), default=0)
        return min((link.occupation_s(size) + link.latency_s for link in links), default=0.0)

    @cached_property
    def host_bandwidth(self) -> float:
        """Bytes a second that all stashes together can leave the devices with."""
        total = 0.0
        for group in self.cluster.nodes:
            total += group.count * ceil(group.devices / group.host_link_shared_by) * group.host_link.bandwidth
        return total

    def _suffix(self, values: Floats) -> Floats:
        """Per layer, the heaviest path of layers behind it, itself left out."""
        found = np.zeros(self.count)
        for a, b in sorted(self.edges, reverse=True):
            found[a] = max(found[a], found[b] + values[b])
        return found

    @cached_property
    def _behind(self) -> Floats:
        """Per layer, F + I behind it."""
        return self._suffix(self.forward + self.inputs)

    @cached_property
    def _first_path(self) -> float:
        """F of every path into the layer whose I can be the first: one that nothing follows."""
        own, follows = self.forward.copy(), {a for a, _ in self.edges}
        for a, b in sorted(self.edges, key=lambda edge: edge[1]):
            own[b] = max(own[b], own[a] + self.forward[b])
        return float(min(own[k] for k in range(self.count) if k not in follows))

    @cached_property
    def _last_path(self) -> float:
        """What follows the last F of a device at the least, its own way on left out: the way back, and a W.

        In a chain all I, and the W of the first layer; otherwise the least of all layers.
        """
        if self.straight:
            return float(self.inputs.sum() + self.weights[0])
        rest = self.weights.copy()
        for a, b in sorted(self.edges, key=lambda edge: edge[1]):
            rest[b] = max(rest[b], self.inputs[a] + rest[a])
        return float((self._behind + self.inputs + rest).min())

    @cached_property
    def _reach(self) -> Floats:
        """Seconds of work that one, two, .. devices do in a second, the fastest first."""
        return np.cumsum(np.sort(self.speeds)[::-1])

    def changes(self, step_s: float) -> int:
        """How often one route changes devices at the least when every device has time for `step_s` only."""
        if not (self.owned and self.straight):
            return 0
        short = self._reach * step_s < self.batches * self.work.sum() * (1 - 1e-9)
        return min(int(short.sum()), len(self.speeds) - 1)

    def idle_times(self, step_s: float) -> IdleTimes:
        """The least waits in plans of this step.

        On a route, devices have different lowest layers and different highest ones: with K routes, before the
        j-th device's lowest layer lie at least j // K layers, and as many behind the highest. Its first I waits
        for a whole way forward and the way back to its highest layer; after its last F, of its highest layer,
        come the rest of the way forward, the whole way back, and a W. A device without forwards starts later still,
        and one without backwards ends earlier still. Nothing follows a W that may be put off to the end.
        """
        if step_s not in self._at_step:
            self._at_step[step_s] = self._idle(self.changes(step_s), self._devices_behind(step_s))
        return self._at_step[step_s]

    @cached_property
    def _at_step(self) -> dict[float, IdleTimes]:
        return {}

    def _idle(self, changes: int, behind: tuple[float, ...]) -> IdleTimes:
        """The same where a route changes devices so often, and so many hold what is behind every layer."""
        known = self._known.get((changes, behind))
        if known is None:
            known = self._known[changes, behind] = self._waits(self.hop_s * changes, behind)
        return known

    @cached_property
    def _known(self) -> dict[tuple[int, tuple[float, ...]], IdleTimes]:
        return {}

    def _waits(self, all_hops: float, behind: tuple[float, ...]) -> IdleTimes:
        ranks = np.arange(len(self.speeds)) // self.routes
        ranks = np.minimum(ranks, self.count - 1)
        if not self.straight:
            ranks = np.zeros_like(ranks)
        hops = self.hop_s * ranks if self.owned else 0.0 * ranks
        before = np.concatenate([[0.0], np.cumsum(self.forward)])[ranks] / self.fastest + hops
        ahead = np.concatenate([[0.0], np.cumsum(self.forward[::-1])])[ranks] / self.fastest + hops
        home = np.concatenate([[0.0], np.cumsum(self.inputs[::-1])])[ranks] / self.fastest + hops
        stay = (self._behind + self.forward + self.inputs) / self.fastest
        if behind:
            stay = stay + 2 * self.hop_s * np.maximum(0.0, np.array(behind) - 1)
        first = self._first_path / self.fastest + all_hops + home
        after = np.concatenate([[0.0], np.cumsum(self.inputs)])[ranks] / self.fastest + hops
        tail = after if not self.weights.any() else 0.0 * after
        return IdleTimes(before, tail, first, ahead + self._last_path / self.fastest + all_hops, stay)

    @cached_property
    def _work_behind(self) -> Floats:
        """Per layer, its work and all behind it."""
        return np.cumsum(self.work[::-1])[::-1]

    def _devices_behind(self, step_s: float) -> tuple[float, ...]:
        """Per layer, the devices that hold it and what is behind it at the least, or all; none where no hop counts."""
        if not (self.owned and self.straight) or self.hop_s == 0:
            return ()
        largest = self.fastest * step_s / self.batches
        devices = np.ceil(self._work_behind / largest * (1 - 1e-9)) if largest > 0 else np.ones(self.count)
        return tuple(np.minimum(devices, len(self.speeds)).tolist())
