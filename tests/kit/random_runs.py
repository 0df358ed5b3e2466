"""Random runs of every kind: models, placements, policies, orders, optimizers and options, drawn from a seed.

A `RandomRun` is what was drawn, as plain values: its plan follows from it, and it can be made simpler piece by piece.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from random_plans import Greedy, backwards, policy, random_routes
from runs import measured
from tiny_models import MODELS, NORMED, SAMPLES, Noise, ending
from varied import in_turn

from contraflow.executor.basics.training import Training
from contraflow.models import Dataset, LayeredModel
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.graph.updates import with_steps
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import Workload

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop")
LINKS = {"none": Link(), "quick": Link(1e9, 20e-6), "slow": Link(1e7, 1e-4)}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "mixed": torch.bfloat16}
_UNFIT = frozenset({"version", "ties"})
_OPENING = frozenset({Kind.B, Kind.I, Kind.W, Kind.R})

Row = tuple[str, ...]
Route = tuple[int, ...]


@dataclass(frozen=True)
class RandomRun:
    """One run.

    Attributes:
        seed: what it was drawn from; the order of its ops follows from it too.
        cuts: how many layers stand before each stage but the first.
        owner: the pipeline of every micro-batch. stash: a row of policies for every pipeline.
        link: between devices, and to the host, by its name in `LINKS`.
        update: micro-batches an update; None: the plan is synchronous.
        split: whether some stages have I and W. late: whether STEPs stand later than they could.
        runs: how many steps; of an asynchronous plan, how often it is run, with evaluations between.
        ends: whether some steps have a sample fewer. options: of `Training`.
    """

    seed: int
    model: str
    devices: int
    nodes: int
    link: str
    shared_by: int
    cuts: tuple[int, ...]
    forward: tuple[Route, ...]
    backward: tuple[Route, ...]
    owner: tuple[int, ...]
    stash: tuple[Row, ...]
    optimizer: str = "sgd"
    weights: str = FLUSH
    update: int | None = None
    split: bool = False
    late: bool = False
    runs: int = 2
    precision: str = "fp64"
    engine: str = "graph"
    ends: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def synchronous(self) -> bool:
        """Whether the pipeline is flushed between steps."""
        return self.weights == FLUSH

    @property
    def steps(self) -> int:
        """Steps, or updates, of the run."""
        return self.runs if self.update is None else self.runs * (len(self.owner) // self.update)

    @property
    def training(self) -> Training:
        """Its options."""
        return Training(**dict(self.options))

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return DTYPES[self.precision]

    @property
    def layered(self) -> LayeredModel:
        """The model."""
        return MODELS[self.model]()

    @property
    def data(self) -> Dataset:
        """What it is trained on."""
        noise = self.layered.data
        assert isinstance(noise, Noise)
        return ending(noise) if self.ends else noise


@cache
def profiled(model: str, precision: str, engine: str) -> ModelGraph:
    """The model's costs: measured bytes, but the same seconds everywhere, so that plans follow from seeds."""
    graph, rng = (
        ModelGraph.from_dict(measured(f"tiny_models:{model}", DTYPES[precision], SAMPLES, engine)),
        random.Random(0),
    )
    return replace(graph, layers=tuple(_timed(layer, rng) for layer in graph.layers))


def _timed(layer: Layer, rng: random.Random) -> Layer:
    seconds = {"forward_s": rng.uniform(1e-5, 1e-4), "backward_input_s": rng.uniform(1e-5, 1e-4)}
    weight = rng.uniform(1e-5, 1e-4) if layer.separable else 0.0
    return replace(layer, **seconds, backward_weight_s=weight)


# ------------------------------------------------------------------ drawing


def draw(seed: int, most_devices: int = 4) -> RandomRun:
    """A random case; some have no plan, see `plan_of`."""
    rng = random.Random(seed)
    return _asynchronous(rng, seed, most_devices) if rng.random() < 0.35 else _synchronous(rng, seed, most_devices)


def _synchronous(rng: random.Random, seed: int, most: int) -> RandomRun:
    model = rng.choice(list(MODELS))
    layers = len(MODELS[model]().layers)
    devices = min(rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6]), most)
    routes = _routes(rng, devices, layers)
    owner = [*range(len(routes)), *(rng.randrange(len(routes)) for _ in range(rng.randint(0, 7)))]
    rng.shuffle(owner)
    engine = "eager" if rng.random() < 0.2 else rng.choice(["graph", "auto"])
    apart = engine != "eager" and rng.random() < 0.4
    back = [backwards(rng, route, devices) if apart else route for route in routes]
    precision = rng.choice(["fp64"] * 6 + ["fp32", "mixed"])
    case = RandomRun(
        seed, model, devices, 2 if devices % 2 == 0 and rng.random() < 0.3 else 1, rng.choice(list(LINKS)),
        rng.choice([1, 2]) if devices % 2 == 0 else 1, _cuts(rng, layers, len(routes[0])), tuple(routes), tuple(back),
        tuple(owner), (), rng.choice(OPTIMIZERS), split=rng.random() < 0.5, runs=rng.choice([2, 2, 3]),
        precision=precision, engine=engine, ends=rng.random() < 0.15, options=_options(rng, len(owner), True),
    )  # fmt: skip
    return _unamplified(replace(case, stash=_rows(rng, case)))


def _unamplified(case: RandomRun) -> RandomRun:
    """Adaptive optimizers in float64 alone: in less they take large steps along mere rounding."""
    adaptive = case.precision != "fp64" and case.optimizer not in OPTIMIZERS[:3]
    return replace(case, optimizer="momentum") if adaptive else case


def _asynchronous(rng: random.Random, seed: int, most: int) -> RandomRun:
    model = rng.choice(list(MODELS))
    layers = len(MODELS[model]().layers)
    devices = min(rng.choice([1, 2, 2, 3, 3, 4]), most)
    replicas = 2 if devices in (2, 4) and model not in NORMED and rng.random() < 0.25 else 1
    if replicas == 2:
        half = devices // 2
        routes = [tuple(range(half)), tuple(range(half, devices))]
    else:
        straight = tuple(range(devices))
        routes = [rng.choice([straight, straight, straight * 2, straight + straight[::-1]])]
    routes = [route[:layers] for route in routes]
    weights = rng.choice([name for name in WEIGHT_POLICIES if name != FLUSH])
    least = max(WEIGHT_POLICIES[weights].least_update(len(routes[0])), replicas)
    update = rng.choice([least, least, least + 1, 2 * least, max(least, 2)])
    count = update * rng.randint(2, 5)
    engine = "eager" if rng.random() < 0.15 else "graph"
    apart = engine != "eager" and replicas == 1 and rng.random() < 0.35
    back = [backwards(rng, route, devices) if apart else route for route in routes]
    case = RandomRun(
        seed, model, devices, 1, rng.choice(list(LINKS)), rng.choice([1, 2]) if devices % 2 == 0 else 1,
        _cuts(rng, layers, len(routes[0])), tuple(routes), tuple(back), tuple(m % replicas for m in range(count)), (),
        rng.choice(OPTIMIZERS), weights, update, rng.random() < 0.4, rng.random() < 0.4, rng.choice([1, 1, 2]),
        rng.choice(["fp64"] * 7 + ["mixed"]), engine, rng.random() < 0.1, _options(rng, update, False),
    )  # fmt: skip
    if case.runs > 1:
        case = replace(case, options=(*case.options, ("evaluate_every", count // update)))
    return _unamplified(replace(case, stash=_rows(rng, case)))


def _routes(rng: random.Random, devices: int, layers: int) -> list[Route]:
    """Routes over at most as many stages as there are layers; sometimes any."""
    routes = random_routes(rng, devices)
    if rng.random() < 0.2:
        stages = rng.randint(1, min(layers, 2 * devices))
        routes = [tuple(rng.randrange(devices) for _ in range(stages)) for _ in range(rng.choice([1, 2, 3]))]
    return [route[:layers] for route in routes]


def _cuts(rng: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(1, layers), stages - 1)))


def _rows(rng: random.Random, case: RandomRun) -> tuple[Row, ...]:
    """Stash policies: of few kinds in most cases, of all in some."""
    kinds = ["recompute", "offload", "ship"]
    other = rng.choice([["keep"], *([kind] for kind in kinds), kinds[:2], kinds])
    if case.weights != FLUSH and WEIGHT_POLICIES[case.weights].stashed and rng.random() < 0.4:
        other = ["offload+weights", *other]
    cluster, partly = cluster_of(case), random.Random(str(case))

    def one(home: int, back: int) -> str:
        found = policy(rng, other, home, back, cluster)
        if found == "recompute" and home == back and case.weights == FLUSH and partly.random() < 0.5:
            return "selective"
        return "keep" if found == "offload+weights" and home != back else found

    pairs = zip(case.forward, case.backward, strict=True)
    return tuple(tuple(one(*pair) for pair in zip(*routes, strict=True)) for routes in pairs)


def _options(rng: random.Random, micro_batches: int, synchronous: bool) -> tuple[tuple[str, Any], ...]:
    """Of `Training`; what needs all gradients at once only where the pipeline is flushed."""
    found: dict[str, Any] = {}
    if rng.random() < 0.25:
        found["weight_decay"] = 0.05
    if rng.random() < 0.2:
        found |= {"schedule": rng.choice(["linear", "cosine"]), "lr": 0.05, "lr_floor": 0.01, "decay_steps": 4}
    if rng.random() < 0.15:
        found["mini_batch"] = micro_batches * SAMPLES - 1
    if rng.random() < 0.1:
        found["loss_scale"] = 64.0
    if synchronous and rng.random() < 0.2:
        found["clip_norm"] = 0.1
    if synchronous and rng.random() < 0.2:
        found["evaluate_every"] = rng.choice([1, 2])
    return tuple(found.items())


# ------------------------------------------------------------------ plans


def cluster_of(case: RandomRun) -> Cluster:
    """Equal devices in one node or two."""
    link, kind = LINKS[case.link], DeviceType("custom", 1 << 30)
    group = NodeGroup(case.nodes, case.devices // case.nodes, kind, link, host_link=link)
    if case.shared_by > 1 and group.devices % case.shared_by == 0:
        group = replace(group, host_link_shared_by=case.shared_by)
    return Cluster((group,), link)


def candidate_of(case: RandomRun) -> Candidate:
    """Everything but the order."""
    graph = profiled(case.model, case.precision, case.engine)
    names = [layer.name for layer in graph.layers]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise([0, *case.cuts, len(names)]))
    taken = [tuple(m for m, owner in enumerate(case.owner) if owner == k) for k in range(len(case.forward))]
    pipelines = tuple(Pipeline(*parts) for parts in zip(case.forward, case.backward, taken, strict=True))
    precision = "mixed" if case.precision == "mixed" else "fp32"
    workload = Workload(len(case.owner), case.optimizer, precision, update_every=case.update)
    return Candidate(Problem(graph, cluster_of(case), workload), stages, pipelines, case.stash, case.weights)


def plan_of(case: RandomRun) -> Plan:
    """Its plan, in a random order. Raises PlanError where the order has none.

    Nor has it one if a forward comes too late for the version that its weight policy gives it, or if tied parameters
    would be trained in several places without a flush.
    """
    candidate, rng = candidate_of(case), random.Random(case.seed + 7)
    orders = Greedy(candidate, rng, case.split).orders()
    if not case.synchronous:
        orders = in_turn(orders)
        if case.late:
            orders = later_steps(rng, with_steps(candidate, orders))
    plan = assemble(candidate, orders, "random")
    unfit = [] if case.synchronous else [v for v in check(plan) if v.code in _UNFIT]
    if unfit:
        raise PlanError(str(unfit[0]))
    return plan


def later_steps(rng: random.Random, orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """Some STEPs later, but before the next backward of their stage."""
    found = []
    for order in orders:
        line = list(order)
        for step in [op for op in line if op.kind is Kind.STEP]:
            place = line.index(step)
            behind = [k for k in range(place + 1, len(line)) if _holds_up(line[k], step)]
            end = behind[0] if behind else len(line)
            line.insert(rng.randint(place, end - 1), line.pop(place))
        found.append(line)
    return found


def _holds_up(op: Op, step: Op) -> bool:
    return op.stage == step.stage and (op.kind in _OPENING or op.kind is Kind.STEP)


# ------------------------------------------------------------------ simpler cases


def simpler(case: RandomRun) -> Iterator[RandomRun]:
    """Cases with less in them, the greatest steps first."""
    size = case.update or 1
    for count in (len(case.owner) // 2 // size * size, len(case.owner) - size):
        if 0 < count < len(case.owner) and set(case.owner[:count]) == set(case.owner):
            yield _without_runs_of(case, case.owner[:count])
    if len(case.forward) > 1:
        for k in range(len(case.forward)):
            yield _without_pipeline(case, k)
    plain: dict[str, Any] = {
        "backward": case.forward, "stash": tuple(("keep",) * len(row) for row in case.stash), "split": False,
        "late": False, "ends": False, "optimizer": "sgd", "precision": "fp64", "engine": "graph", "nodes": 1,
        "shared_by": 1, "link": "quick", "runs": 1,
    }  # fmt: skip
    for name, value in plain.items():
        if getattr(case, name) != value and (name != "backward" or not any("ship" in p for r in case.stash for p in r)):
            yield replace(case, **{name: value})
    for key in dict(case.options):
        yield replace(case, options=tuple(option for option in case.options if option[0] != key))
    for k, row in enumerate(case.stash):
        for s, kind in enumerate(row):
            if kind != "keep":
                rows = [list(other) for other in case.stash]
                rows[k][s] = "keep"
                yield replace(case, stash=tuple(map(tuple, rows)))
    yield from _fewer_stages(case)


def _without_runs_of(case: RandomRun, owner: tuple[int, ...]) -> RandomRun:
    options = {key: value for key, value in case.options if key not in ("mini_batch", "evaluate_every")}
    return replace(case, owner=owner, options=tuple(options.items()), runs=1)


def _without_pipeline(case: RandomRun, gone: int) -> RandomRun:
    owner = tuple(k - (k > gone) for k in case.owner if k != gone)
    owner = owner[: len(owner) // (case.update or 1) * (case.update or 1)]

    def left(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return rows[:gone] + rows[gone + 1 :]

    less = replace(case, forward=left(case.forward), backward=left(case.backward), stash=left(case.stash))
    return _without_runs_of(less, owner)


def _fewer_stages(case: RandomRun) -> Iterator[RandomRun]:
    """A stage joined with the one before it."""
    for s in range(len(case.cuts)):

        def left(rows: tuple[Any, ...], s: int = s) -> tuple[Any, ...]:
            return tuple(row[:s] + row[s + 1 :] for row in rows)

        cuts = case.cuts[:s] + case.cuts[s + 1 :]
        routes = left(case.forward), left(case.backward)
        yield replace(case, cuts=cuts, forward=routes[0], backward=routes[1], stash=left(case.stash))


def shrink(case: RandomRun, fails: Callable[[RandomRun], bool], most: int = 200) -> RandomRun:
    """The simplest case found that still fails, after trying at most so many."""
    tried = 0
    while True:
        for other in simpler(case):
            tried += 1
            if tried > most:
                return case
            if fails(other):
                case = other
                break
        else:
            return case
