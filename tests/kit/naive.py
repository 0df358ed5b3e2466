"""A step's times and memory, spelled out op by op: the oracle that simulator, bounds and checker are held against.

Written from the words of docs/architecture.md ("A plan is op lists", "Memory is accounted, not estimated"), and of
layers' and stages' costs alone: it reads neither `planner/forecast` nor `planner/rules`. It looks at every op again
and again until it knows all times, and walks every device's list for its memory. For sound plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, product
from typing import Any, NamedTuple

from contraflow.planner.plan import COLLECTIVES, COMPUTE, COPIES, IN_LINE, Kind, Op, Plan
from contraflow.planner.problem.layer import Layer
from contraflow.planner.problem.stage_costs import StageCosts
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import STEP_COUNTERS
from contraflow.planner.simulate import simulate

CLOSE = 1e-9
"""Times closer than this share of the step are equal."""
BACK = (Kind.B, Kind.I)
SENDS = {
    Kind.SEND_F: Kind.RECV_F, Kind.SEND_B: Kind.RECV_B, Kind.SEND_S: Kind.RECV_S, Kind.SEND_P: Kind.RECV_P,
}  # fmt: skip

Key = tuple[int, int]
"""Device and place of an op in its list; sums of gradients are numbered behind all devices."""


class Wait(NamedTuple):
    """Something ends, and so many seconds later (an arrival's latency) the other may start."""

    before: Key
    lag_s: float = 0.0


@dataclass
class Task:
    """What takes time: an op in line, a message (by its SEND), a copy, or a sum of gradients."""

    seconds: float
    waits: list[Wait] = field(default_factory=list)
    lanes: list[object] = field(default_factory=list)
    start_s: float = -1.0

    @property
    def end_s(self) -> float:
        """When its resources are free again."""
        return self.start_s + self.seconds


class Account:
    """The times of a plan's step, and the memory of its devices and hosts."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.cluster, self.workload = plan, plan.problem.cluster, plan.problem.workload
        self.costs = StageCosts.of(plan.problem.model, plan.stages)
        self.route = {m: k for k, p in enumerate(plan.pipelines) for m in p.micro_batches}
        self.ops = {(d, k): op for d, line in enumerate(plan.orders) for k, op in enumerate(line)}
        self.place = {(d, op): (d, k) for (d, k), op in self.ops.items()}
        self.owners = [sorted({p.backward[s] for p in plan.pipelines}) for s in range(len(plan.stages))]
        self.tasks: dict[Key, Task] = {}
        self.sums: dict[tuple[Kind, int, int], Key] = {}
        self.reach: dict[Key, float] = {}  # of every message, its latency
        self.gathered: dict[Key, float] = {}  # of every GATHER's ring, its latency
        for key, op in self.ops.items():
            if op.kind in IN_LINE or op.kind in (Kind.OFFLOAD, Kind.FETCH) or op.kind in SENDS:
                self.tasks[key] = self._task(key, op)
        self._add_sums()
        self._run()

    # -------------------------------------------------------------- where things are

    def home(self, op: Op) -> int:
        """The device of the forward of an op's stage and micro-batch."""
        return self.plan.pipelines[self.route[op.micro_batch]].forward[op.stage]

    def policy(self, op: Op) -> str:
        """Of the stash of an op's stage and micro-batch."""
        return self.plan.stash[self.route[op.micro_batch]][op.stage]

    def remade(self, op: Op) -> bool:
        """Whether its stash is made again from what its stage takes in."""
        return self.policy(op) in ("recompute", "offload+recompute")

    def dropped(self, op: Op) -> int:
        """Bytes of its stash that an R makes again from the others."""
        return int(self.costs.selective_bytes[op.stage]) if self.policy(op) == "selective" else 0

    def moved(self, op: Op) -> int:
        """Bytes of its stash, or of what that is made from, that leave the device; "half": one half, rounded down."""
        stash = int(self.costs.stash_bytes[op.stage])
        if self.remade(op):
            return int(self.costs.incoming_bytes[op.stage])
        return stash // 2 if self.policy(op) == "half" else stash

    def find(self, device: int, stage: int, micro_batch: int, *kinds: Kind) -> Key | None:
        """One of these ops on a device."""
        found = (self.place.get((device, Op(kind, stage, micro_batch))) for kind in kinds)
        return next((key for key in found if key is not None), None)

    def _posted(self, key: Key) -> list[Wait]:
        """The op in line before it."""
        device, place = key
        before = [k for k in range(place) if self.ops[device, k].kind in IN_LINE]
        return [Wait((device, before[-1]))] if before else []

    def _earlier(self, key: Key, *kinds: Kind) -> list[Key]:
        """Of the device's list, what stands before a place."""
        return [(key[0], k) for k in range(key[1]) if self.ops[key[0], k].kind in kinds]

    # -------------------------------------------------------------- what each waits for

    def _task(self, key: Key, op: Op) -> Task:
        device = key[0]
        if op.kind in SENDS:
            return self._message(key, op)
        if op.kind in (Kind.OFFLOAD, Kind.FETCH):
            return self._copy(key, op)
        found = Task(self._seconds(device, op), self._posted(key))
        s, m = op.stage, op.micro_batch
        for other, came in self._of_stage[device, s]:
            for_forward = op.kind is Kind.F and came.kind is Kind.RECV_F
            for_backward = op.kind in BACK and came.kind is Kind.RECV_B
            stash = came.kind is Kind.RECV_S and self._last_hop(device, came) and op.kind in self._users(came)
            if came.micro_batch == m and (for_forward or for_backward or stash):
                found.waits.append(self._arrival(other))
            if op.kind is Kind.F and came.kind is Kind.RECV_P and self._next(other, Kind.F) == key:
                found.waits.append(self._arrival(other))
            if came.kind is Kind.FETCH and came.micro_batch == m and op.kind in self._users(came):
                found.waits.append(Wait(other, self._host(device).latency_s))
            if op.kind is Kind.FREE and came.micro_batch == m and came.kind in (Kind.OFFLOAD, Kind.SEND_S):
                found.waits.append(Wait(other))
            carried = came.kind is Kind.OFFLOAD and self.policy(came) == "offload+weights"
            if op.kind is Kind.STEP and carried and self._next(other, Kind.STEP) == key:
                found.waits.append(Wait(other))
        return found

    def _users(self, came: Op) -> tuple[Kind, ...]:
        """What reads a stash that has come to where its backward runs."""
        return (Kind.R,) if self.remade(came) else BACK

    def _last_hop(self, device: int, came: Op) -> bool:
        """Whether a stash received here stays, and does not go on."""
        return self.plan.pipelines[self.route[came.micro_batch]].backward[came.stage] == device

    def _next(self, key: Key, kind: Kind) -> Key | None:
        """The next op of this kind and of the op's stage behind it in the list."""
        device, place = key
        behind = range(place + 1, len(self.plan.orders[device]))
        stage = self.ops[key].stage
        return next(((device, k) for k in behind if self.ops[device, k][:2] == (kind, stage)), None)

    def _arrival(self, receive: Key) -> Wait:
        """Of what a RECV waits for."""
        sent = self.sender(receive)
        return Wait(sent, self.reach[sent] if sent in self.reach else self._way(sent, receive).latency_s)

    def sender(self, receive: Key) -> Key:
        """The SEND of a RECV."""
        return self._senders[receive]

    @cached_property
    def _senders(self) -> dict[Key, Key]:
        return {self.receiver(key): key for key, op in self.ops.items() if op.kind in SENDS}

    @cached_property
    def _of_stage(self) -> dict[tuple[int, int], list[tuple[Key, Op]]]:
        found: dict[tuple[int, int], list[tuple[Key, Op]]] = defaultdict(list)
        for key, op in self.ops.items():
            found[key[0], op.stage].append((key, op))
        return found

    def receiver(self, sent: Key) -> Key:
        """The RECV of a SEND."""
        device, op = sent[0], self.ops[sent]
        if op.kind in (Kind.SEND_S, Kind.SEND_P):
            return self.place[op.peer, Op(SENDS[op.kind], op.stage, op.micro_batch, device)]
        pipeline = self.plan.pipelines[self.route[op.micro_batch]]
        target = (pipeline.forward if op.kind is Kind.SEND_F else pipeline.backward)[op.peer]
        return self.place[target, Op(SENDS[op.kind], op.peer, op.micro_batch, op.stage)]

    def _way(self, sent: Key, receive: Key) -> Any:
        return self.cluster.link(sent[0], receive[0])

    def size(self, op: Op) -> int:
        """Bytes of a message, or of a copy to or from the host."""
        costs, s = self.costs, op.stage
        if op.kind in (Kind.SEND_F, Kind.SEND_B):
            edge = (s, op.peer) if op.kind is Kind.SEND_F else (op.peer, s)
            return sum(e.bytes for e in costs.edges if (e.producer, e.consumer) == edge)
        if op.kind is Kind.SEND_P:
            mine = [tie for tie in costs.ties if s in tie.stages]
            own = [tie for tie in mine if any(op.peer in self.owners[t] for t in tie.stages)]
            return int(costs.trained_bytes[s]) - sum(tie.trained_bytes for tie in own)
        version = int(costs.trained_bytes[s]) if self.policy(op) == "offload+weights" else 0
        return self.moved(op) + version

    def _message(self, key: Key, op: Op) -> Task:
        """Posted at both ends, behind the message before it between the two, and behind what it carries."""
        receive = self.receiver(key)
        link = self._way(key, receive)
        self.reach[key] = link.latency_s
        waits = [*self._posted(key), *self._posted(receive)]
        before = [k for k in self._earlier(key, *SENDS) if self.receiver(k)[0] == receive[0]]
        waits += [Wait(k) for k in before[-1:]]
        if op.kind is Kind.SEND_S and key[0] != self.home(op):  # on its way back
            came = self.place[key[0], Op(Kind.RECV_S, op.stage, op.micro_batch, self.home(op))]
            waits.append(self._arrival(came))
        return Task(link.occupation_s(self.size(op)), waits, self._lanes(key[0], receive[0]))

    def _lanes(self, source: int, target: int) -> list[object]:
        """A link inside a node; between nodes the two network cards."""
        if self.cluster.same_node(source, target):
            return [(source, target)]
        return [("out", source), ("in", target)]

    def _host(self, device: int) -> Any:
        return self.cluster.node_groups[self.cluster.devices[device].node].host_link

    def _copy(self, key: Key, op: Op) -> Task:
        device = key[0]
        waits = self._posted(key) + [Wait(k) for k in self._earlier(key, op.kind)]
        if op.kind is Kind.FETCH:
            left = self.place[self.home(op), op._replace(kind=Kind.OFFLOAD)]
            waits.append(Wait(left, self._host(device).latency_s))
            waits += [Wait(k) for k in self._earlier(key, Kind.OFFLOAD, Kind.SEND_S)]
        lane = ("host", self.cluster.host_links[device], op.kind)
        return Task(self.size(op) / self._host(device).bandwidth, waits, [lane])

    def _seconds(self, device: int, op: Op) -> float:
        costs, kind, s = self.costs, self.cluster.devices[device].kind, op.stage
        table = {
            Kind.F: costs.forward_s, Kind.R: costs.forward_s, Kind.B: costs.backward_s,
            Kind.I: costs.backward_input_s, Kind.W: costs.backward_weight_s,
        }  # fmt: skip
        if op.kind is Kind.R and self.policy(op) == "selective":
            table[Kind.R] = costs.selective_s
        if op.kind in table:
            return (float(table[op.kind][s]) + self._around(device, op)) / kind.speed
        around = self.cluster.around.step_s if op.kind is Kind.STEP and costs.trained_bytes[s] else 0.0
        if op.kind is Kind.FREE or kind.memory_bandwidth is None:
            return around
        if op.kind is Kind.PREDICT:
            first = WEIGHT_POLICIES[self.plan.weights].momentum_first
            return self.workload.predict_traffic_bytes(int(costs.trained_bytes[s]), first) / kind.memory_bandwidth
        trained = self.part(s)
        for tie in costs.ties:  # the lowest member stage that a device trains updates its copy
            if s == min((t for t in tie.stages if device in self.owners[t]), default=-1):
                trained += tie.trained_bytes
        return around + self.workload.step_traffic_bytes(trained) / kind.memory_bandwidth

    def _around(self, device: int, op: Op) -> float:
        """What an op costs beside its layers: its own overhead, that of its stage's messages but for W, and that of
        the stash that its device sees off or gets back."""
        said = self.cluster.overhead
        if said is None:
            return 0.0
        tensors = 0 if op.kind is Kind.W else sum(op.stage in edge[:2] for edge in self.costs.edges)
        moves = {Kind.F: (Kind.OFFLOAD, Kind.SEND_S), Kind.B: (Kind.FETCH, Kind.RECV_S)}
        moves[Kind.I] = moves[Kind.B]
        mine = (other for other in self.plan.orders[device] if other[1:3] == op[1:3])
        tensors += sum(other.kind in moves.get(op.kind, ()) for other in mine)
        return said.op_s + tensors * said.message_s

    def part(self, s: int) -> int:
        """Bytes of parameters of a stage that each of its replicas steps."""
        trained, replicas = int(self.costs.own_trained_bytes[s]), len(self.owners[s])
        if not self.workload.sharded or not trained:
            return trained
        unit = max(n for n in (1, 2, 4, 8, 16, 32, 64) if trained % n == 0)
        return next(size for size in count(0, unit) if size * replicas >= trained)

    def _add_sums(self) -> None:
        """REDUCE and GATHER over a stage's replicas, TIE over all copies of a tied parameter: rings of equal rounds."""
        posted: dict[tuple[Kind, int, int], list[Key]] = defaultdict(list)
        for key, op in self.ops.items():
            if op.kind in (Kind.REDUCE, Kind.TIE, Kind.GATHER):
                posted[op.collective].append(key)
        for number, (of, posts) in enumerate(sorted(posted.items())):
            kind, subject, m = of
            self.sums[of] = key = len(self.plan.orders), number
            if kind is not Kind.TIE:
                members, trained = [subject], int(self.costs.own_trained_bytes[subject])
            else:
                tie = next(tie for tie in self.costs.ties if tie.number == subject)
                members, trained = list(tie.stages), tie.trained_bytes
            devices, sharded = sorted(d for d, _ in posts), self.workload.sharded and kind is not Kind.TIE
            if sharded:  # half a ring each, of equal parts
                trained = len(devices) * self.part(subject)
            size = trained if kind is Kind.GATHER else self.workload.gradient_bytes(trained)
            pairs = list(zip(devices, devices[1:] + devices[:1], strict=True)) if size else []
            rounds, links = (1 if sharded else 2) * (len(devices) - 1), [self.cluster.link(*pair) for pair in pairs]
            seconds = rounds * max((x.reduce_occupation_s(size) / len(devices) for x in links), default=0.0)
            latency = rounds * max((x.latency_s for x in links), default=0.0)
            latency += self.cluster.overhead.collective_s if links and self.cluster.overhead is not None else 0.0
            lanes = [lane for pair in pairs for lane in self._lanes(*pair)]
            self.tasks[key] = Task(seconds, [wait for post in posts for wait in self._posted(post)], lanes)
            if kind is Kind.GATHER:
                self.gathered[key] = latency
            waits_for_it = Kind.SEND_P if kind is Kind.GATHER else Kind.STEP
            for step, op in self.ops.items():
                if op.kind is waits_for_it and op.stage in members and op.micro_batch == m:
                    self.tasks[step].waits.append(Wait(key, latency))

    # -------------------------------------------------------------- times

    def _run(self) -> None:
        """First come, first served: of what is ready, what nobody else can come before starts."""
        free = defaultdict[object, float](float)
        followers: dict[Key, list[Key]] = defaultdict(list)
        for key, task in self.tasks.items():
            for wait in task.waits:
                followers[wait.before].append(key)
        left = {key: len(task.waits) for key, task in self.tasks.items()}
        ready = {key: 0.0 for key, count in left.items() if not count}
        while ready:
            alone = (key for key in ready if not self.tasks[key].lanes)
            key = next(alone, None) or min(ready, key=lambda key: (ready[key], key))
            task = self.tasks[key]
            task.start_s = max([ready.pop(key), *(free[lane] for lane in task.lanes)])
            free.update(dict.fromkeys(task.lanes, task.end_s))
            for other in followers[key]:
                left[other] -= 1
                if not left[other]:
                    ready[other] = max(self.tasks[w.before].end_s + w.lag_s for w in self.tasks[other].waits)
        assert not any(left.values()), "the lists wait for each other"

    @cached_property
    def step_s(self) -> float:
        """Until everything has ended, and arrived."""
        later = self.reach | self.gathered
        return max((task.end_s + later.get(key, 0.0) for key, task in self.tasks.items()), default=0.0)

    def times(self, key: Key) -> tuple[float, float]:
        """Start and end of an op; of a REDUCE, TIE or GATHER, of its ring."""
        task = self.tasks.get(key) or self.tasks[self.sums[self.ops[key].collective]]
        return task.start_s, task.end_s

    @cached_property
    def sudden(self) -> bool:
        """Whether some message has bytes and takes no time."""
        return any(not self.tasks[key].seconds and self.size(self.ops[key]) for key in self.reach)

    # -------------------------------------------------------------- memory

    def peaks(self) -> list[int]:
        """Most bytes of every device."""
        return [self._peak(device) for device in range(len(self.plan.orders))]

    def static_bytes(self, device: int) -> int:
        """Parameters wherever a stage runs; gradients and optimizer state where its backward does. Ties count once."""
        costs, workload, total = self.costs, self.workload, 0
        assert not costs.buffer_bytes.any(), "not accounted for: statistics"
        forward = {s for p in self.plan.pipelines for s, d in enumerate(p.forward) if d == device}
        trained = {s for s, owners in enumerate(self.owners) if device in owners}

        def training(size: int, tensors: int, part: int | None = None, parts: int = 1) -> int:
            counters = 4 * tensors if workload.optimizer in STEP_COUNTERS else 0
            part = size if part is None else part
            padding = parts * part - size
            return workload.gradient_bytes(size + padding) + workload.optimizer_bytes(part) + counters + padding

        for s in forward | trained:
            total += int(costs.own_bytes[s])
        for s in trained:
            size, tensors = int(costs.own_trained_bytes[s]), int(costs.parameter_tensors[s])
            parts = len(self.owners[s]) if workload.sharded else 1
            total += training(size, tensors, self.part(s), parts)
        for tie in costs.ties:
            total += tie.bytes * bool((forward | trained) & set(tie.stages))
            total += training(tie.trained_bytes, tie.tensors) * bool(trained & set(tie.stages))
        return total

    def _peak(self, device: int) -> int:
        """Walks the list: ops in line have a start and an end, what is posted stands where the op before has ended.

        What leaves a device makes room for what is listed behind it, from then on. A FETCH takes room when it starts:
        behind what has ended by then, and before its backward.
        """
        assert self.plan.weights == FLUSH, "not accounted for: versions of weights"
        changes: dict[tuple[int, int], int] = defaultdict(int)
        loose: list[tuple[int, float, int, int]] = []  # place, time, bytes, place of its user
        for place, when, size, user in self._changes(device):
            if isinstance(when, int):
                changes[place, when] += size
            elif size:
                loose.append((place, when, size, user))
        loose.sort(key=lambda x: (x[1], x[2]))
        close, clock = CLOSE * self.step_s, 0.0
        total = peak = static = self.static_bytes(device)
        line = self.plan.orders[device]
        ends = [self.tasks[device, k].end_s for k, op in enumerate(line) if op.kind in IN_LINE]
        for place, end in product(range(len(line)), (0, 1)):
            if line[place].kind in IN_LINE:
                clock = (self.tasks[device, place].start_s, self.tasks[device, place].end_s)[end]
            for change in list(loose):
                at, time, size, user = change
                passed = time <= clock + close
                if size > 0:
                    passed = at < place and (place >= user or (passed and not (ends and ends[0] <= time + close)))
                if passed and (at, 0) < (place, end):
                    total += size
                    peak = max(peak, total)
                    loose.remove(change)
            total += changes[place, end]
            peak = max(peak, total)
            if end and line[place].kind in IN_LINE:
                del ends[0]
        total += sum(size for _, _, size, _ in loose)
        assert total == static, "not everything is given back"
        return peak

    def _changes(self, device: int) -> Iterator[tuple[int, int | float, int, int]]:
        """Place, instant (0: start, 1: end of the op; or a time in seconds), bytes, and who needs a FETCH."""
        costs = self.costs
        for place, op in enumerate(self.plan.orders[device]):
            s, m, key = op.stage, op.micro_batch, (device, place)
            if op.kind in SENDS and op.kind is not Kind.SEND_P:
                yield place, self.tasks[key].end_s, -self.size(op), -1
                continue
            if op.kind in SENDS.values() and op.kind is not Kind.RECV_P:
                yield place, 0, self.size(self.ops[self.sender(key)]), -1
            elif op.kind is Kind.OFFLOAD:
                yield place, self.tasks[key].end_s, -self.moved(op), -1
            elif op.kind is Kind.FETCH:
                user = self.find(device, s, m, *self._users(op))
                assert user is not None
                yield place, self.tasks[key].start_s, self.moved(op), user[1]
            elif op.kind in (Kind.F, Kind.R, Kind.B, Kind.I, Kind.W):
                work = self._workspace(op)
                inner = int(costs.inner_bytes[s]) if op.kind is Kind.F and self.remade(op) else 0
                if op.kind is Kind.F and self.policy(op) == "selective":  # until its layer has run
                    inner = max(self.plan.problem.model.layers[k].selective_bytes for k in self._layers(s))
                yield place, 0, work + inner, -1
                yield place, 1, -work - inner, -1
                for end, size in self._pass(op):
                    yield place, end, size, -1

    def _workspace(self, op: Op) -> int:
        """The largest of the stage's layers'. Of any op, where they say more and all is stashed: what is there
        while a layer runs, beyond the whole stash and the tensors at the stage's ends."""
        model, policy = self.plan.problem.model, self.policy(op)
        order = sorted(self._layers(op.stage), key=model.topological.index)
        layers = [model.layers[k] for k in order]
        known = all(layer.forward_workspace_bytes is not None for layer in layers)
        part = policy == "selective" and op.kind in (Kind.F, Kind.R)
        if not known or part or (op.kind is Kind.F and self.remade(op)):
            return max(layer.workspace_bytes for layer in layers)
        into, out = (sum(e.bytes for e in self.costs.edges if e[end] == op.stage) for end in (1, 0))
        stash, held = int(self.costs.stash_bytes[op.stage]), int(self.costs.weight_stash_bytes[op.stage])
        arriving = [self._arriving(layer, {x.name for x in layers}) for layer in layers]
        entering = sum(min(x, layer.unsaved_input_bytes or 0) for x, layer in zip(arriving, layers, strict=True))
        sizes = [e.bytes for e in self.costs.edges if e[1] == op.stage] + [int(self.costs.input_bytes[op.stage])]
        entering -= sum(size - min(size, stash) for size in sizes)
        names = [layer.name for layer in layers]
        tied = sum(g.bytes for g in model.shared if sum(name in g.layers for name in names) > 1)
        most = 0
        for ran in range(1, len(layers) + 1):
            own, there = layers[ran - 1], self._kept(layers[:ran], "stash_bytes", "bytes")
            between = max(0, own.unsaved_input_bytes - arriving[ran - 1])
            ending = out if ran == len(layers) else 0 if out else -8  # of a loss's gradient
            if op.kind is Kind.F:
                needed = there + own.forward_workspace_bytes + between + entering - out
            elif op.kind is Kind.R:
                given = own.forward_workspace_bytes if ran < len(layers) else 0
                needed = there + max(given, own.remake_workspace_bytes) + between + entering
            elif op.kind is Kind.B:
                needed = there + own.backward_workspace_bytes + tied - into - ending
            elif op.kind is Kind.W:
                needed = stash + own.weight_workspace_bytes + tied
            else:
                later = held - self._kept(layers[:ran], "weight_stash_bytes", "weight_bytes")
                needed = there + later + own.input_workspace_bytes - into - ending - max(0, held - stash)
            most = max(most, needed - stash)
        return most

    def _arriving(self, layer: Layer, stage: set[str]) -> int:
        """Bytes of what a layer takes from beyond its stage."""
        model = self.plan.problem.model
        sizes = {a: model.carried_bytes(a, [layer.name]) for a, b in model.edges if b == layer.name}
        data = max(0, (layer.input_bytes or 0) - sum(sizes.values()))
        return data + sum(size for source, size in sizes.items() if source not in stage)

    def _kept(self, layers: list[Layer], key: str, twice: str) -> int:
        """Bytes that these layers keep of a micro-batch, every tensor once."""
        names = {layer.name for layer in layers}
        pairs = (p for p in self.plan.problem.model.kept_twice if {p.first, p.second} <= names)
        return int(sum(getattr(layer, key) for layer in layers) - sum(getattr(pair, twice) for pair in pairs))

    def _layers(self, s: int) -> list[int]:
        return [self.plan.problem.model.index[name] for name in self.plan.stages[s]]

    def _pass(self, op: Op) -> Iterator[tuple[int, int]]:
        """Tensors and stashes that a compute op makes at its start and uses up."""
        costs, s = self.costs, op.stage
        stash, kept = int(costs.stash_bytes[s]), int(costs.weight_stash_bytes[s])
        into = [(e.producer, e.bytes) for e in costs.edges if e.consumer == s]
        out = [(e.consumer, e.bytes) for e in costs.edges if e.producer == s]
        again, kept_input = self.remade(op), int(costs.kept_input_bytes[s])
        if op.kind is Kind.F:
            yield 0, int(costs.input_bytes[s]) + sum(size for _, size in out) + (kept_input if again else 0)
        if op.kind is Kind.R and self.policy(op) == "selective":
            yield 0, self.dropped(op)
            return
        if op.kind is Kind.R or (op.kind is Kind.F and not again):
            yield 0, stash - self.dropped(op)
            for size in [size for _, size in into] + [int(costs.input_bytes[s])]:
                yield 0, -min(size, stash)  # what comes in goes into the stash
                yield 1, min(size, stash) - size
        if op.kind is Kind.R:
            yield 0, -kept_input
        if op.kind in BACK:
            yield 0, sum(size for _, size in into)  # gradients for the stages before
            yield 1, -sum(size for _, size in out)  # those from the stages behind are used up
        if op.kind is Kind.B:
            yield 1, -stash
        if op.kind is Kind.I:
            yield 0, max(kept - stash, 0)
            yield 1, min(kept - stash, 0)
        if op.kind is Kind.W:
            yield 1, -kept

    def host_peaks(self) -> list[int]:
        """Most bytes at every node's host: a stash is there from the start of its OFFLOAD to the end of its FETCH."""
        events: list[list[tuple[float, int]]] = [[] for _ in self.cluster.node_groups]
        for key, op in self.ops.items():
            mine = events[self.cluster.devices[key[0]].node]
            if op.kind is Kind.OFFLOAD:
                mine.append((self.tasks[key].start_s, self.size(op)))
            if op.kind is Kind.FETCH:
                mine.append((self.tasks[key].end_s, -self.size(op)))
        return [highest(mine, CLOSE * self.step_s) for mine in events]


def highest(events: list[tuple[float, int]], close: float) -> int:
    """The highest total of changes at these times; of equal times, what is given back comes first."""
    total = peak = 0
    for _, size in sorted((round(time / close) if close else 0, size) for time, size in events):
        total += size
        peak = max(peak, total)
    return peak


def assert_forecast(plan: Plan) -> None:
    """The simulator says the same of a plan: every time, and every peak.

    Where messages take no time and two devices exchange them, one waits for the other: the simulator says which, and
    here neither does.
    """
    timeline, account = simulate(plan), Account(plan)
    close = CLOSE * timeline.step_s
    assert abs(timeline.step_s - account.step_s) <= close
    computed = [timed for line in timeline.devices for timed in line.ops]
    copied = [timed for line in timeline.copies for timed in line]
    for timed_ops, kinds in ((computed, COMPUTE | COLLECTIVES), (copied, COPIES), (timeline.messages, set(SENDS))):
        keys = [key for key, op in account.ops.items() if op.kind in kinds]
        for key, timed in zip(keys, timed_ops, strict=True):
            start, end = account.times(key)
            assert account.ops[key] == timed.op
            assert abs(timed.start_s - start) <= close, (key, timed, start)
            assert abs(timed.end_s - end) <= close, (key, timed, end)
    assert [memory.peak_bytes for memory in timeline.host_memory] == account.host_peaks()
    if plan.weights == FLUSH:
        said, found = [memory.peak_bytes for memory in timeline.device_memory], account.peaks()
        assert said == found or (account.sudden and all(a >= b for a, b in zip(said, found, strict=True))), (
            said,
            found,
        )
