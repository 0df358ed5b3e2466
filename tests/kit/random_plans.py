"""Random candidates of every kind, and plans of them in random orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from contraflow.planner.basics.errors import PlanError
from contraflow.planner.graph import Candidate, regroup, stash_policy
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.kept_twice import KeptTwice
from contraflow.planner.problem.layer import WORKSPACES
from contraflow.planner.problem.model_graph import Layer, ModelGraph, SharedParameters
from contraflow.planner.problem.overhead import Overhead
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload

Pick = Sequence[Any] | Callable[[random.Random], Any]
"""Values of which one is drawn, or what draws one."""
WHOLE = (1.0, 2.0, 3.0, 4.0)
"""Seconds that an exact model can count."""


def pick(rng: random.Random, values: Pick) -> Any:
    """One of the values; where there is but one, nothing is drawn."""
    if callable(values):
        return values(rng)
    return values[0] if len(values) == 1 else rng.choice(values)


def some_seconds(rng: random.Random) -> float:
    """One or two, or anything between half a second and three."""
    return rng.choice([1.0, 2.0, rng.uniform(0.5, 3)])


def some_weight_seconds(rng: random.Random) -> float:
    """The same, and at times nothing."""
    return rng.choice([1.0, 1.0, 0.0, rng.uniform(0.5, 3)])


@dataclass(frozen=True)
class Costs:
    """What a random layer's costs are drawn from.

    `halves`: how often its backward can be split. `held`: of stash bytes, what is held for W, at most `held_more` bytes
    more than the stash. Outputs are no larger than stashes.
    """

    seconds: Pick = some_seconds
    weight_seconds: Pick = some_weight_seconds
    halves: float = 0.85
    stash: Pick = range(1, 13)
    held: Sequence[float] = (1, 0.5, 0, 1)
    held_more: int = 3
    output: Pick = (0, 0, 1, 3)
    parameters: Pick = (0, 0, 0, 5)
    workspace: Pick = (0, 0, 2)
    input: Pick = (None, 1)


def random_layer(rng: random.Random, k: int, costs: Costs = Costs()) -> Layer:
    """Layer k; only the first takes data."""
    stash = pick(rng, costs.stash)
    halves = [pick(rng, costs.seconds), pick(rng, costs.seconds), pick(rng, costs.weight_seconds)]
    separable = bool(costs.halves) and (costs.halves == 1 or rng.random() < costs.halves)
    if not separable:
        halves[1:] = [halves[1] + halves[2], 0.0]
    held = [int(share * stash) for share in costs.held]
    held[-1] += costs.held_more
    return Layer(
        f"layer{k}", *halves, separable=separable, parameter_bytes=pick(rng, costs.parameters), stash_bytes=stash,
        weight_stash_bytes=pick(rng, held), output_bytes=min(stash, pick(rng, costs.output)),
        input_bytes=pick(rng, costs.input) if k == 0 else None, workspace_bytes=pick(rng, costs.workspace),
    )  # fmt: skip


def random_layers(rng: random.Random, count: int, costs: Costs = Costs()) -> list[Layer]:
    """Uneven layers."""
    return [random_layer(rng, k, costs) for k in range(count)]


def alike(first: Layer, count: int) -> list[Layer]:
    """A layer, and copies of it that take no data."""
    return [first, *(replace(first, name=f"layer{k}", input_bytes=None) for k in range(1, count))]


def random_model(rng: random.Random, layers: int) -> ModelGraph:
    """Uneven layers; some cannot be split, some hold more for W than for I, some cost nothing; some say all of it."""
    equal = rng.random() < 0.3
    found = random_layers(rng, layers)
    made = ModelGraph(tuple(alike(found[0], layers) if equal else found), random_edges(rng, layers))
    return in_detail(made, random.Random(str(made.layers)))  # what else is drawn stays


def in_detail(model: ModelGraph, rng: random.Random) -> ModelGraph:
    """Half of the models: with what every kind of op takes, and with tensors that two layers keep."""
    if rng.random() < 0.5:
        return model
    layers = []
    for layer in model.layers:
        most = layer.workspace_bytes + layer.output_bytes
        work = (rng.randint(0, most + size) for size in (0, 0, layer.stash_bytes, layer.stash_bytes, 2))
        unsaved = rng.choice([0, rng.randint(0, 3)])
        layers.append(replace(layer, **dict(zip(WORKSPACES, (*work, unsaved), strict=True))))
    left = {layer.name: [layer.stash_bytes, layer.weight_stash_bytes] for layer in layers}
    twice = []
    for first, second in model.edges:
        given, rest = model.layers[model.index[first]].output_bytes, left[second]
        sizes = [rng.randint(0, min(given, size)) for size in rest]
        if any(sizes) and rng.random() < 0.7:
            twice.append(KeptTwice(first, second, *sizes))
            rest[:] = (a - b for a, b in zip(rest, sizes, strict=True))
    return replace(model, layers=tuple(layers), kept_twice=tuple(twice))


def random_edges(rng: random.Random, layers: int) -> tuple[tuple[str, str], ...]:
    """Mostly a chain, some with an edge more, some with branches."""
    pairs = [(k, k + 1) for k in range(layers - 1)]
    kind = rng.random()
    if layers > 2 and kind < 0.2:
        pairs.append((0, layers - 1))
    elif kind < 0.35:
        pairs = sorted({(rng.randrange(k), k) for k in range(1, layers) for _ in range(2)})
    return tuple((f"layer{a}", f"layer{b}") for a, b in pairs)


def random_overhead(rng: random.Random) -> Overhead | None:
    """Of ops, messages and optimizer steps, as large as layers at the most; at times nobody says."""
    if rng.random() < 0.5:
        return None
    seconds = (rng.choice([0.0, x, rng.random()]) for x in (0.5, 0.25, 0.25, 0.5))
    found = Overhead(*seconds)
    return replace(found, step_s=random.Random(found.op_s).choice([0.0, 0.5, 1.0]))  # what else is drawn stays


def random_cluster(rng: random.Random, devices: int) -> Cluster:
    """Equal or unequal devices in one node or two; ops may cost something beside their layers."""
    return replace(_random_nodes(rng, devices), overhead=random_overhead(rng))


def _random_nodes(rng: random.Random, devices: int) -> Cluster:
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


def policy(rng: random.Random, other: Sequence[str], device: int, back: int, cluster: Cluster) -> str:
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


def random_candidate(seed: int, apart: bool = False, policies: Sequence[str] | None = None) -> Candidate:
    """A small random candidate; layers may be put together to stages. `apart`: with backward devices of their own.

    `policies`: kinds from which the policy of every stash is drawn beside keep; by default a few, alike in a pipeline.
    """
    rng = random.Random(seed)
    devices = rng.randint(1, 4)
    routes = random_routes(rng, devices)
    stages = len(routes[0])
    extra = rng.choice([0, 0, rng.randint(0, 2)])
    model = random_model(rng, stages + extra)
    cuts = [0, *sorted(rng.sample(range(1, stages + extra), stages - 1)), stages + extra]
    names = [layer.name for layer in model.layers]
    split = tuple(tuple(names[a:b]) for a, b in pairwise(cuts))
    batches = rng.randint(len(routes), 9)
    owner = [*range(len(routes)), *(rng.randrange(len(routes)) for _ in range(batches - len(routes)))]
    taken = [tuple(m for m in range(batches) if owner[m] == k) for k in range(len(routes))]
    back = [backwards(rng, r, devices) if apart else r for r in routes]
    pipelines = tuple(Pipeline(*route) for route in zip(routes, back, taken, strict=True))
    some = [["keep"], ["keep"], ["recompute"], ["recompute", "offload"], ["offload"], ["ship"]]
    other = rng.choice(some) if policies is None else list(policies)
    cluster = random_cluster(rng, devices)
    stash = tuple(stash_row(rng, other, p, cluster) for p in pipelines)
    problem = Problem(model, cluster, Workload(batches, rng.choice(["sgd", "adam"])))
    if policies is None:
        return Candidate(problem, split, pipelines, stash)
    return regroup(
        problem, split, pipelines, {m: stash_row(rng, other, pipelines[k], cluster) for m, k in enumerate(owner)}
    )


def stash_row(rng: random.Random, other: Sequence[str], pipeline: Pipeline, cluster: Cluster) -> tuple[str, ...]:
    """A policy for every stage of a pipeline."""
    pairs = zip(pipeline.forward, pipeline.backward, strict=True)
    return tuple(policy(rng, other, *pair, cluster) for pair in pairs)


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


def random_problem(seed: int) -> tuple[ModelGraph, Cluster, Workload]:
    """A small problem with uneven layers, sometimes unequal devices, tight memory, slow links, halved backwards."""
    rng = random.Random(seed)
    costs = Costs(
        halves=rng.choice([0, 0.8, 0.8]), stash=range(1, 31), output=(0, 1, 5), parameters=(0, 0, 5, 40),
        workspace=(0, 0, 7), input=(None,),
    )  # fmt: skip
    layers = random_layers(rng, rng.randint(1, 7), costs)
    link = rng.choice([Link(), Link(10.0, 0.05), Link(2.0, 0.5)])
    memory, devices, bandwidth = rng.randint(40, 400), rng.randint(1, 4), rng.choice([None, 100.0])
    nodes = [NodeGroup(1, devices, DeviceType("even", memory, 1.0, bandwidth), link)]
    if rng.random() >= 0.7:
        nodes = [
            NodeGroup(1, devices, DeviceType("fast", memory, 2.0, bandwidth), link),
            NodeGroup(1, 1, DeviceType("slow", memory * 2, 1.0, bandwidth), link),
        ]
    workload = Workload(rng.randint(1, 6), rng.choice(["sgd", "adam"]))
    return ModelGraph.chain(layers), Cluster(tuple(nodes), link, overhead=random_overhead(rng)), workload


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
        if stash_policy(self.candidate.stash[k][s]).remade:
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
