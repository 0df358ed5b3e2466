"""Periodic start times of a pipeline whose stages have a forward and a backward device each, and the lists they give.

Every pass of micro-batch i starts i periods after that of micro-batch 0. A device that runs forwards and backwards
leaves each their part of the period: its backwards wait until they lie between two rounds of its forwards. Lists are
the passes of all micro-batches sorted by these times, so none can wait for another in a circle, while the pipeline
fills and drains too; and new parameters stand where the times say that they arrive.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...graph import Candidate, reduce_seconds, stash_policy, step_seconds, update_size, with_returns
from ...lower import Orders
from ...plan import Kind, Op, Pipeline
from ...problem import Cluster, Link
from ..common import TOLERANCE

Row = tuple[str, ...]


@dataclass
class Timetable:
    """Start times in seconds of micro-batch 0's passes, by stage.

    leads: of every stage, how many backwards before its own a stash is sent to the backward's device; None: at once.
    backward: of R where the stash is recomputed, else of B. ahead: micro-batches that forwards are ahead of STEPs.
    """

    candidate: Candidate
    pipeline: Pipeline
    row: Row
    period_s: float
    leads: Sequence[int | None] = ()
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, candidate: Candidate, number: int, period_s: float, leads: Sequence[int | None] = ()) -> Timetable:
        """Of one pipeline of a candidate, `number`, whose micro-batches come a period after one another."""
        found = cls(candidate, candidate.pipelines[number], candidate.stash[number], period_s, leads)
        found._run_forwards()
        found._run_backwards()
        found._count_ahead()
        return found

    # ---------------------------------------------------------------- what passes take

    @property
    def _cluster(self) -> Cluster:
        return self.candidate.problem.cluster

    def forward_s(self, stage: int) -> float:
        """Seconds of a forward."""
        return float(self.candidate.costs.forward_s[stage]) / self._speed(self.pipeline.forward[stage])

    def backward_s(self, stage: int) -> float:
        """Seconds of a backward, recomputation and what an update takes of it included."""
        costs, there = self.candidate.costs, self.pipeline.backward[stage]
        again = float(costs.forward_s[stage]) if stash_policy(self.row[stage]).remade else 0.0
        step = step_seconds(self.candidate, costs, stage, there) / update_size(self.candidate)
        return (float(costs.backward_s[stage]) + again) / self._speed(there) + step

    def _speed(self, device: int) -> float:
        return self._cluster.devices[device].kind.speed

    def _message_s(self, source: int, target: int, size: int) -> float:
        return 0.0 if source == target else arrival_s(self._cluster.link(source, target), size)

    def _crossing_s(self, stage: int) -> float:
        """Seconds from the end of F to where B has its stash (recompute: what it is made of)."""
        here, there = self.pipeline.forward[stage], self.pipeline.backward[stage]
        policy = stash_policy(self.row[stage])
        size = int(policy.moved_bytes(self.candidate.costs)[stage])
        if policy.hosted:
            nodes = (self._cluster.node_groups[self._cluster.devices[device].node] for device in (here, there))
            return sum(arrival_s(node.host_link, size) for node in nodes)
        return self._message_s(here, there, size)

    # ---------------------------------------------------------------- the times

    def _run_forwards(self) -> None:
        route, busy = self.pipeline.forward, dict[int, float]()
        sizes = {(edge.producer, edge.consumer): int(edge.bytes) for edge in self.candidate.costs.edges}
        for stage, device in enumerate(route):
            arrivals = [
                self.forward[p] + self.forward_s(p) + self._message_s(route[p], device, sizes[p, stage])
                for p in self.candidate.costs.producers[stage]
            ]
            self.forward.append(max([0.0, busy.get(device, 0.0), *arrivals]))
            busy[device] = self.forward[stage] + self.forward_s(stage)

    def _run_backwards(self) -> None:
        route, busy, count = self.pipeline.backward, dict[int, float](), len(self.candidate.stages)
        sizes = {(edge.producer, edge.consumer): int(edge.bytes) for edge in self.candidate.costs.edges}
        found = [0.0] * count
        for stage in reversed(range(count)):
            device = route[stage]
            arrivals = [
                found[c] + self.backward_s(c) + self._message_s(route[c], device, sizes[stage, c])
                for c in self.candidate.costs.consumers[stage]
            ]
            arrivals.append(self.forward[stage] + self.forward_s(stage) + self._crossing_s(stage))
            asked = max(arrivals)
            found[stage] = max(asked, busy[device]) if device in busy else self._between(device, asked)
            busy[device] = found[stage] + self.backward_s(stage)
        self.backward = found

    def _between(self, device: int, asked: float) -> float:
        """When a device's first backward starts, from `asked` on, so that its backwards lie between its forwards."""
        mine = [stage for stage, on in enumerate(self.pipeline.forward) if on == device]
        if not mine or self.period_s <= 0:
            return asked
        begins, ends = self.forward[mine[0]], self.forward[mine[-1]] + self.forward_s(mine[-1])
        work = sum(self.backward_s(stage) for stage, on in enumerate(self.pipeline.backward) if on == device)
        room = self.period_s - (ends - begins)
        since = (asked - ends) % self.period_s
        slack = TOLERANCE.chains * self.period_s
        if since >= self.period_s - slack:
            return asked
        return asked if since + work <= room + slack else asked + self.period_s - since

    def _count_ahead(self) -> None:
        """Micro-batches from a forward to the end of the STEP whose parameters it finds, one stage no fewer than the
        next: what an earlier stage has seen, a later one has too."""
        costs, most = self.candidate.costs, 1
        for stage in reversed(range(len(self.candidate.stages))):
            here, there = self.pipeline.forward[stage], self.pipeline.backward[stage]
            end = self.backward[stage] + self.backward_s(stage)
            holders = tuple(sorted({p.backward[stage] for p in self.candidate.pipelines}))
            if len(holders) > 1:  # gradients are added up first, and the STEP waits for the next backward
                rate, latency = reduce_seconds(self._cluster, holders, int(costs.own_trained_bytes[stage]))
                end = max(end + rate + latency, self.backward[stage] + self.period_s)
            end += step_seconds(self.candidate, costs, stage, there)
            end += self._message_s(there, here, int(costs.own_trained_bytes[stage]))
            trip = end - self.forward[stage]
            most = max(most, math.ceil(trip / self.period_s - TOLERANCE.same) if self.period_s > 0 else 1)
            self.ahead.append(most)
        self.ahead.reverse()

    # ---------------------------------------------------------------- the lists

    def orders(self, leaving: int | None = None, waits: bool = False) -> Orders:
        """The lists of the pipeline's micro-batches, devices that are not its own left empty.

        leaving: forwards wait until at most so many stashes of their stage are still leaving. waits: a stash comes from
        the host when the backward before its own has ended, not while it runs.
        """
        stages, batches = range(len(self.candidate.stages)), self.pipeline.micro_batches
        lines: list[list[tuple[float, int, int, Op]]] = [[] for _ in self._cluster.devices]
        lead = self._led()
        for stage in stages:
            here, there, policy = self.pipeline.forward[stage], self.pipeline.backward[stage], self.row[stage]
            for i, m in enumerate(batches):
                start, back = self.forward[stage] + i * self.period_s, self.backward[stage] + i * self.period_s
                lines[here].append((start, i, stage, Op(Kind.F, stage, m)))
                behind = 3 * (2 * len(stages) - stage)
                if (before := lead[stage]) is not None:
                    came = self.backward[stage] + (i - before) * self.period_s
                    lines[there].append((came, i - before, behind - 2, Op(Kind.RECV_S, stage, m, here)))
                if waits and stash_policy(policy).hosted:
                    lines[there].append((back, i, behind - 2, Op(Kind.FETCH, stage, m)))
                if stash_policy(policy).remade:
                    lines[there].append((back, i, behind - 1, Op(Kind.R, stage, m)))
                lines[there].append((back, i, behind, Op(Kind.B, stage, m)))
        found = [[op for *_, op in sorted(line)] for line in lines]
        if leaving is not None:
            found = [self._freed(line, leaving) for line in found]
        return found

    def on_their_way(self, stage: int) -> int:
        """Stashes between the forward and the backward of a stage."""
        way = self.backward[stage] + self.backward_s(stage) - self.forward[stage]
        return math.ceil(way / self.period_s) if self.period_s > 0 else 1

    @property
    def may_wait(self) -> list[bool]:
        """Of which stages a stash may be sent late: it goes to another device, and no other kind of message does.

        Messages between two devices come in one order.
        """
        route, back, edges = self.pipeline.forward, self.pipeline.backward, self.candidate.costs.edges
        others = {(route[edge.producer], route[edge.consumer]) for edge in edges}
        others |= {(back[edge.consumer], back[edge.producer]) for edge in edges}
        pairs = list(zip(route, back, strict=True))
        others |= {pair[::-1] for pair in pairs} | {pair for pair in pairs if pairs.count(pair) > 1}
        kept = [stash_policy(text).crosses and not stash_policy(text).remade for text in self.row]
        return [keeps and a != b and (a, b) not in others for (a, b), keeps in zip(pairs, kept, strict=True)]

    def _led(self) -> list[int | None]:
        if not self.leads:
            return [None] * len(self.row)
        return [
            lead if lead is not None and may and lead < self.on_their_way(stage) else None
            for stage, (lead, may) in enumerate(zip(self.leads, self.may_wait, strict=True))
        ]

    def _freed(self, line: Sequence[Op], leaving: int) -> list[Op]:
        """A list whose forwards wait for stashes of their stage that leave."""
        found, lead = list[Op](), self._led()
        position = {m: i for i, m in enumerate(self.pipeline.micro_batches)}
        for op in line:
            apart = self.pipeline.forward[op.stage] != self.pipeline.backward[op.stage]
            policy = stash_policy(self.row[op.stage])
            away = (apart and not policy.remade and lead[op.stage] is None) or policy.hosted
            if op.kind is Kind.F and away and position[op.micro_batch] > leaving:
                gone = self.pipeline.micro_batches[position[op.micro_batch] - 1 - leaving]
                found.append(Op(Kind.FREE, op.stage, gone))
            found.append(op)
        return found


def arrival_s(link: Link, size: int) -> float:
    """Seconds from the start of a message to its arrival."""
    return link.occupation_s(size) + link.latency_s


def listed(
    candidate: Candidate,
    period_s: float,
    leads: Sequence[int | None] = (),
    leaving: int | None = None,
    waits: bool = False,
) -> Orders:
    """Compute orders of all pipelines of a candidate, which share no device, new parameters included."""
    tables = [Timetable.of(candidate, number, period_s, leads) for number in range(len(candidate.pipelines))]
    each_of = [table.orders(leaving, waits) for table in tables]
    merged = [[op for part in parts for op in part] for parts in zip(*each_of, strict=True)]
    ahead = [max(each) * len(tables) for each in zip(*(table.ahead for table in tables), strict=True)]
    return [_posted_early(line) for line in with_returns(candidate, merged, ahead)]


def _posted_early(line: Sequence[Op]) -> list[Op]:
    """A list whose new parameters are asked for right after the stage's forward before the one that takes them.

    So they travel while other stages run; which forwards find them stays the same.
    """
    last: dict[int, int] = {}
    moved: defaultdict[int, list[Op]] = defaultdict(list)
    for place, op in enumerate(line):
        if op.kind is Kind.F:
            last[op.stage] = place
        elif op.kind is Kind.RECV_P:
            moved[last.get(op.stage, -1)].append(op)
    found = moved[-1]
    for place, op in enumerate(line):
        if op.kind is not Kind.RECV_P:
            found.append(op)
        found += moved[place]
    return found
