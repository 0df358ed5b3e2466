"""Seconds of everything that takes time in an exact model, by stage and site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...basics import PlanError
from ...bounds import finish_seconds
from ...graph import Candidate, StageCosts, StashPolicy, around_step_s, beside_step_s, tie_seconds, update_seconds
from ...plan import Kind
from ...problem import part_bytes
from ..common import TOLERANCE
from .instance import Rules


def distinct_routes(candidate: Candidate) -> list[tuple[int, ...]]:
    """The routes of a candidate's pipelines, each once."""
    return list(dict.fromkeys(pipeline.forward for pipeline in candidate.pipelines))


def _kept_bytes(rows: Iterable[StashPolicy], costs: StageCosts) -> dict[str, list[int]]:
    """By policy that makes the stash again, bytes of every stage that it keeps until R.

    Raises PlanError for a policy that leaves something else than the whole stash for its backward, or takes more than
    that elsewhere: the model knows none such.
    """
    found = {}
    for row in rows:
        *before, (_, _, left) = row.held_bytes(costs)
        elsewhere = row.leaves and (row.remade or row.versioned or (before[0][2] != left).any() or before[1][2].any())
        if (left != costs.stash_bytes).any() or elsewhere:
            raise PlanError(f"the exact search knows no stash policy that holds what {row.name!r} does")
        if row.remade:
            found[row.name] = [int(size) for size in before[0][2]]
    return found


class Durations:
    """What the ops, messages and copies of a candidate take.

    `sites`: by stage, the devices where it may run: those of its routes in order, or all where the rules open them.
    `pairs`: the numbers of sites that may go together, of a forward and a backward or of a sender and a receiver.
    `kept`: by policy that makes the stash again, bytes of every stage that it keeps until then. `hosted`: some policy
    copies stashes to the host.
    """

    def __init__(self, candidate: Candidate, rules: Rules) -> None:
        self.candidate, self.costs, self.rules = candidate, candidate.costs, rules
        self.problem, self.cluster = candidate.problem, candidate.problem.cluster
        self.split = [rules.split and bool(can) for can in self.costs.separable]
        self.hosted = any(row.hosted for row in rules.rows)
        self.kept = _kept_bytes(rules.rows, self.costs)
        stages, routes = len(candidate.stages), distinct_routes(candidate)
        devices = tuple(range(len(self.cluster)))
        self.sites = [devices] * stages if rules.open else list(zip(*routes, strict=True))
        ways = range(len(self.sites[0]))
        self.pairs = [(a, b) for a in ways for b in ways if rules.open or a == b]

    def compute(self, s: int, device: int) -> dict[Kind, float]:
        """Of F and R, and of the backward, whole or split, which here takes no longer."""
        costs, speed = self.costs, self.cluster.devices[device].kind.speed
        back = {Kind.I: costs.backward_input_s, Kind.W: costs.least_weight_s}
        tables = {Kind.F: costs.forward_s, Kind.R: costs.forward_s} | (
            back if self.split[s] else {Kind.B: costs.backward_s}
        )
        return {kind: float(table[s]) / speed for kind, table in tables.items()}

    def copy(self, s: int, device: int) -> tuple[float, float]:
        """On the host link of a device, and its latency, of a stage's stash."""
        link = self.cluster.node_groups[self.cluster.devices[device].node].host_link
        return link.occupation_s(int(self.costs.stash_bytes[s])), link.latency_s

    def finish(self, s: int, front: int, rear: int) -> tuple[float, ...]:
        """Parts of what follows a stage's last op on the devices of its forward and its backward."""
        if not self.rules.open:
            return (finish_seconds(self.candidate, s, rear),)
        own = int(self.costs.own_trained_bytes[s])
        home = self.message(rear, front, own) if self.costs.trained_bytes[s] else (0.0, 0.0)
        stepped = part_bytes(own, self.problem.workload.parts(1))
        around_s = beside_step_s(self.problem, self.costs, s)
        around_s += around_step_s(self.problem, (rear,), own)
        return around_s + update_seconds(self.problem, rear, stepped), *home

    def message(self, source: int, target: int, size: int) -> tuple[float, float]:
        """On the link, and its latency, of a message between devices; (0, 0) on one device."""
        if source == target:
            return 0.0, 0.0
        link = self.cluster.link(source, target)
        return link.occupation_s(size), link.latency_s

    def _messages(self) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
        """Bytes that may go from a site of one stage to one of another or the same: (bytes, devices, devices)."""
        for producer, consumer, size in self.costs.edges:
            yield size, self.sites[producer], self.sites[consumer]
            yield size, self.sites[consumer], self.sites[producer]
        for s in range(len(self.sites)):
            for size in self._moved(s):
                yield size, self.sites[s], self.sites[s]

    def _moved(self, s: int) -> list[int]:
        """Bytes of a stage's stash, and of what is kept until an R, that may go to another device."""
        return [int(self.costs.stash_bytes[s]), *(size[s] for size in self.kept.values())] if self.rules.open else []

    def all(self) -> Iterator[float]:
        """Seconds of everything that takes time in the model."""
        for s in range(len(self.sites)):
            for device in self.sites[s]:
                yield from self.compute(s, device).values()
                yield from self.copy(s, device) if self.hosted else ()
            for a, b in self.pairs:
                yield from self.finish(s, self.sites[s][a], self.sites[s][b])
        for size, sources, targets in self._messages():
            for a, b in self.pairs:
                yield from self.message(sources[a], targets[b], size)

    def serial(self) -> float:
        """A step in which one op, message or copy runs at a time, at the slowest sites: no best plan is longer."""
        stages, batches = range(len(self.sites)), self.problem.workload.micro_batches
        one = 0.0
        for s in stages:
            one += max(sum(self.compute(s, d).values()) for d in self.sites[s])
            one += 2 * max(sum(self.copy(s, d)) for d in self.sites[s])
        moved = [(size, self.sites[s], self.sites[s]) for s in stages for size in self._moved(s)]
        for size, sources, targets in (*self._messages(), *moved):
            one += max(sum(self.message(sources[a], targets[b], size)) for a, b in self.pairs)
        ends = [[sum(self.finish(s, self.sites[s][a], self.sites[s][b])) for a, b in self.pairs] for s in stages]
        finish = sum(map(max, ends)) + self._tied() if self.rules.open else sum(map(sum, ends))
        return (batches * one + finish) * (1 + TOLERANCE.serial)

    def _tied(self) -> float:
        """In which all sums of tied gradients, and the steps that they lead to, end on any devices."""
        problem, workload, devices = self.problem, self.problem.workload, range(len(self.cluster))
        return sum(
            tie_seconds(self.cluster, len(tie.stages), workload.gradient_bytes(tie.trained_bytes))
            + max(update_seconds(problem, d, tie.trained_bytes) for d in devices)
            for tie in self.costs.ties
        )
