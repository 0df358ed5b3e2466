"""Random candidates of every kind, and plans of them in random orders."""

from __future__ import annotations

import random
from dataclasses import replace

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph, SharedParameters
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload


def random_model(rng: random.Random, layers: int) -> ModelGraph:
    """Uneven layers; some cannot be split, some hold more for W than for I, some cost nothing."""
    uniform = rng.random() < 0.3
    found: list[Layer] = []
    for k in range(layers):
        stash = rng.randint(1, 12)
        layer = Layer(
            f"layer{k}",
            rng.choice([1.0, 2.0, rng.uniform(0.5, 3)]),
            rng.choice([1.0, 2.0, rng.uniform(0.5, 3)]),
            rng.choice([1.0, 1.0, 0.0, rng.uniform(0.5, 3)]),
            separable=rng.random() < 0.85,
            parameter_bytes=rng.choice([0, 0, 0, 5]),
            stash_bytes=stash,
            weight_stash_bytes=rng.choice([stash, stash // 2, 0, stash + 3]),
            output_bytes=min(stash, rng.choice([0, 0, 1, 3])),
            input_bytes=rng.choice([None, 1]) if k == 0 else None,
            workspace_bytes=rng.choice([0, 0, 2]),
        )
        if not layer.separable:
            total = layer.backward_input_s + layer.backward_weight_s
            layer = replace(layer, backward_input_s=total, backward_weight_s=0.0)
        found.append(replace(found[0], name=layer.name, input_bytes=None) if uniform and found else layer)
    return ModelGraph(tuple(found), random_edges(rng, layers))


def random_edges(rng: random.Random, layers: int) -> tuple[tuple[str, str], ...]:
    """Mostly a chain, some with an edge more, some with branches."""
    pairs = [(k, k + 1) for k in range(layers - 1)]
    kind = rng.random()
    if layers > 2 and kind < 0.2:
        pairs.append((0, layers - 1))
    elif kind < 0.35:
        pairs = sorted({(rng.randrange(k), k) for k in range(1, layers) for _ in range(2)})
    return tuple((f"layer{a}", f"layer{b}") for a, b in pairs)


def random_cluster(rng: random.Random, devices: int) -> Cluster:
    """Equal or unequal devices in one node or two."""
    link = rng.choice([Link(), Link(latency_s=0.3), Link(4.0, 0.1)])
    memory, bandwidth = 1 << 20, rng.choice([None, 50.0])
    if devices > 1 and rng.random() < 0.4:
        fast = NodeGroup(1, 1, DeviceType("fast", memory, 2.0, bandwidth), link)
        slow = NodeGroup(1, devices - 1, DeviceType("slow", memory, 1.0, bandwidth), link)
        return Cluster((fast, slow), rng.choice([link, Link(2.0, 0.2)]))
    host = rng.choice([Link(), Link(8.0, 0.1)])
    shared = 2 if devices % 2 == 0 else 1
    return Cluster((NodeGroup(1, devices, DeviceType("even", memory, 1.0, bandwidth), link, None, host, shared),), link)


def random_routes(rng: random.Random, devices: int) -> list[tuple[int, ...]]:
    """One or more routes: straight, folded, interleaved, both ways, or any."""
    straight = tuple(range(devices))
    back = straight[::-1]
    if rng.random() < 0.15:
        stages = rng.randint(1, 2 * devices)
        return [tuple(rng.randrange(devices) for _ in range(stages)) for _ in range(rng.choice([1, 2, 3]))]
    return rng.choice(
        [[straight], [straight + back], [straight * 2], [straight, back], [straight + back + straight], [straight] * 3]
    )


def policy(rng: random.Random, other: list[str], device: int, back: int, cluster: Cluster) -> str:
    """Keep, or one of the others, for a stage with these forward and backward devices."""
    name = rng.choice(["keep", *other])
    if name == "ship":
        return f"ship>{(device + 1) % len(cluster)}" if len(cluster) > 1 and device == back else "keep"
    return "keep" if name == "offload" and not cluster.same_node(device, back) else name


def backwards(rng: random.Random, route: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Backward devices for a route: the same, shifted, reversed, or any."""
    shifted = tuple((device + 1) % devices for device in route)
    any_other = tuple(rng.randrange(devices) for _ in route)
    mixed = tuple(rng.choice(pair) for pair in zip(route, any_other, strict=True))
    return rng.choice([shifted, route[::-1], any_other, mixed, mixed])


def random_candidate(seed: int, apart: bool = False) -> Candidate:
    """A small random candidate; layers may be put together to stages. `apart`: with backward devices of their own."""
    rng = random.Random(seed)
    devices = rng.randint(1, 4)
    routes = random_routes(rng, devices)
    stages = len(routes[0])
    extra = rng.choice([0, 0, rng.randint(0, 2)])
    model = random_model(rng, stages + extra)
    cuts = [0, *sorted(rng.sample(range(1, stages + extra), stages - 1)), stages + extra]
    names = [layer.name for layer in model.layers]
    batches = rng.randint(len(routes), 9)
    owner = [*range(len(routes)), *(rng.randrange(len(routes)) for _ in range(batches - len(routes)))]
    taken = [tuple(m for m in range(batches) if owner[m] == k) for k in range(len(routes))]
    back = [backwards(rng, r, devices) if apart else r for r in routes]
    pipelines = tuple(Pipeline(*route) for route in zip(routes, back, taken, strict=True))
    other = rng.choice([["keep"], ["keep"], ["recompute"], ["recompute", "offload"], ["offload"], ["ship"]])
    cluster = random_cluster(rng, devices)
    stash = tuple(
        tuple(policy(rng, other, *pair, cluster) for pair in zip(p.forward, p.backward, strict=True)) for p in pipelines
    )
    problem = Problem(model, cluster, Workload(batches, rng.choice(["sgd", "adam"])))
    return Candidate(problem, tuple(tuple(names[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)), pipelines, stash)


def tied(candidate: Candidate, seed: int) -> Candidate:
    """The candidate with some layers tied: up to three groups, whose bytes come on top of the layers' own."""
    rng, model = random.Random(seed), candidate.problem.model
    names = [layer.name for layer in model.layers]
    groups = [
        SharedParameters(tuple(rng.sample(names, rng.randint(2, min(3, len(names))))), rng.choice([0, 3, 8]))
        for _ in range(rng.randint(1, 3) if len(names) > 1 else 0)
    ]
    known = rng.random() < 0.5
    layers = []
    for layer in model.layers:
        mine = [group.bytes for group in groups if layer.name in group.layers]
        shapes = ((2, 2),) * (len(mine) + rng.randint(0, 2)) if known else None
        layers.append(replace(layer, parameter_bytes=layer.parameter_bytes + sum(mine), parameter_shapes=shapes))
    problem = replace(candidate.problem, model=replace(model, layers=tuple(layers), shared=tuple(groups)))
    return replace(candidate, problem=problem)


def halved(layer: Layer, draw: random.Random) -> Layer:
    """Part of the backward is for the weights, and holds less or more than the stash; or it cannot be split."""
    share, stash = draw.choice([0.5, 0.5, 0.3, 0.7]), layer.stash_bytes
    if draw.random() < 0.2:
        return replace(layer, separable=False)
    total, held = layer.backward_input_s, draw.choice([stash, stash // 2, 0, stash + 3])
    return replace(
        layer, backward_input_s=total * (1 - share), backward_weight_s=total * share, weight_stash_bytes=held
    )


def random_problem(seed: int) -> tuple[ModelGraph, Cluster, Workload]:
    """A small problem with uneven layers, sometimes unequal devices, tight memory, slow links, halved backwards."""
    rng, draw = random.Random(seed), random.Random(-1 - seed)
    halves = draw.random() < 0.7
    count = rng.randint(1, 7)
    layers = [
        Layer(
            f"layer{k}",
            rng.choice([1.0, 2.0, rng.uniform(0.5, 3)]),
            rng.choice([2.0, 1.0, rng.uniform(0.5, 4)]),
            parameter_bytes=rng.choice([0, 0, 5, 40]),
            stash_bytes=(stash := rng.randint(1, 30)),
            weight_stash_bytes=stash,
            output_bytes=min(stash, rng.choice([0, 1, 5])),
            workspace_bytes=rng.choice([0, 0, 7]),
        )
        for k in range(count)
    ]
    layers = [halved(layer, draw) for layer in layers] if halves else layers
    link = rng.choice([Link(), Link(10.0, 0.05), Link(2.0, 0.5)])
    memory = rng.randint(40, 400)
    devices = rng.randint(1, 4)
    bandwidth = rng.choice([None, 100.0])
    if rng.random() < 0.7:
        cluster = Cluster((NodeGroup(1, devices, DeviceType("even", memory, 1.0, bandwidth), link),), link)
    else:
        fast = NodeGroup(1, devices, DeviceType("fast", memory, 2.0, bandwidth), link)
        slow = NodeGroup(1, 1, DeviceType("slow", memory * 2, 1.0, bandwidth), link)
        cluster = Cluster((fast, slow), link)
    workload = Workload(rng.randint(1, 6), rng.choice(["sgd", "adam"]))
    return ModelGraph.chain(layers), cluster, workload


# ------------------------------------------------------------------ a list scheduler


class Greedy:
    """Picks ready ops at random, with a bias, and at most `most` stashes a device at once: orders of all kinds."""

    def __init__(self, candidate: Candidate, rng: random.Random, split: bool) -> None:
        self.candidate, self.rng = candidate, rng
        self.route = {m: k for k, p in enumerate(candidate.pipelines) for m in p.micro_batches}
        self.rank = {kind: rng.random() for kind in Kind if kind <= Kind.RECV_P}
        self.most = rng.choice([99, 1, 2, 3, 5])
        self.late_weights, self.patience = rng.random() < 0.5, rng.random()
        self.halves = [split and s and rng.random() < 0.8 for s in candidate.costs.separable]
        self.before: dict[Op, set[Op]] = {}
        self.alive: dict[int, int] = {}
        self.where: dict[Op, int] = {}
        for m, k in self.route.items():
            for s in range(len(candidate.stages)):
                self._add(s, m, k)

    def _back(self, s: int, m: int) -> Op:
        return Op(Kind.I if self.halves[s] else Kind.B, s, m)

    def _add(self, s: int, m: int, k: int) -> None:
        costs, forward, back = self.candidate.costs, Op(Kind.F, s, m), self._back(s, m)
        needs = {forward}
        self.before[forward] = {Op(Kind.F, p, m) for p in costs.producers[s]}
        if self.candidate.stash[k][s] == "recompute":
            self.before[Op(Kind.R, s, m)] = {forward}
            needs = {Op(Kind.R, s, m)}
        self.before[back] = needs | {self._back(c, m) for c in costs.consumers[s]}
        if self.halves[s]:
            self.before[Op(Kind.W, s, m)] = {back}
        for op in [o for o in self.before if o.stage == s and o.micro_batch == m]:
            pipeline = self.candidate.pipelines[k]
            self.where[op] = (pipeline.forward if op.kind == Kind.F else pipeline.backward)[s]

    def seconds(self, op: Op) -> float:
        costs = self.candidate.costs
        table = {
            Kind.F: costs.forward_s,
            Kind.R: costs.forward_s,
            Kind.I: costs.backward_input_s,
            Kind.W: costs.backward_weight_s,
            Kind.B: costs.backward_s,
        }
        return float(table[op.kind][op.stage]) / self.candidate.problem.cluster.devices[self.where[op]].kind.speed

    def _allowed(self, op: Op) -> bool:
        if op.kind != Kind.F:
            return True
        last = max(s for s, d in enumerate(self._path(op)) if d == self.where[op])
        reserve = 0 if op.stage == last else 1
        return self.alive.get(self.where[op], 0) + reserve < max(self.most, 1 + reserve) or op.stage == last

    def _path(self, op: Op) -> tuple[int, ...]:
        return self.candidate.pipelines[self.route[op.micro_batch]].forward

    def orders(self) -> list[list[Op]]:
        devices = len(self.candidate.problem.cluster)
        lists: list[list[Op]] = [[] for _ in range(devices)]
        free = [0.0] * devices
        end: dict[Op, float] = {}
        left = set(self.before)
        while left:
            ready = [op for op in left if self.before[op] <= end.keys() and self._allowed(op)]
            if not ready:
                self.most += 1
                continue
            start = {op: max([free[self.where[op]], *(end[b] for b in self.before[op])]) for op in ready}
            chosen = min(ready, key=lambda op: self._key(op, start[op]))
            device = self.where[chosen]
            end[chosen] = free[device] = start[chosen] + self.seconds(chosen)
            lists[device].append(chosen)
            left.remove(chosen)
            if chosen.kind == Kind.F:
                self.alive[device] = self.alive.get(device, 0) + 1
            if chosen.kind in (Kind.B, Kind.W) or (chosen.kind == Kind.I and self.late_weights):
                self.alive[self._path(chosen)[chosen.stage]] -= 0 if chosen.kind == Kind.W and self.late_weights else 1
        return lists

    def _key(self, op: Op, start: float) -> tuple[float, float, int, int]:
        late = 2.0 * (op.kind == Kind.W and self.late_weights)
        return (start + self.patience * (self.rank[op.kind] + late), self.rng.random() * 0.1, op.micro_batch, op.stage)


def plans_of(candidate: Candidate, seed: int, count: int, split: bool) -> list[Plan]:
    """Plans of random orders; those that deadlock are left out."""
    found = []
    for k in range(count):
        try:
            found.append(assemble(candidate, Greedy(candidate, random.Random(1000 * seed + k), split).orders()))
        except PlanError:
            continue
    return found
