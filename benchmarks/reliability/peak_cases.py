"""Random models and random plans of them, for runs whose memory is measured; everything follows from a seed."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contraflow.executor.basics.options import Engine
from contraflow.executor.measure import reach
from contraflow.executor.measure.profile import profile_model
from contraflow.models.loss import cross_entropy
from contraflow.models.protocol import LayeredModel, LayerSpec, Tie, derive_seed
from contraflow.planner.basics.errors import InputError
from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.graph.updates import with_returns
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import OPTIMIZER_STATES, Workload
from contraflow.planner.schedules import ASYNCHRONOUS, SCHEDULES, Layout, build

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "kit"))
from random_plans import Greedy

reach.LEVELS = (reach.Level(math.inf, 0),)  # only bytes are of interest here
CLASSES = 5
MEMORY = 1 << 30


# ------------------------------------------------------------------ models


@dataclass(frozen=True)
class Noise:
    """Inputs of a shape from a normal distribution, targets uniform among the classes."""

    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of no other data set."""
        return f"noise-{self.shape}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """See `Dataset`."""
        drawn = torch.Generator().manual_seed(derive_seed("noise", seed, step, micro_batch))
        return torch.randn(size, *self.shape, generator=drawn), torch.randint(0, CLASSES, (size,), generator=drawn)


@dataclass(frozen=True)
class Tokens:
    """Random sequences of numbers below CLASSES, and what follows each: both part of one tensor, as of one sample."""

    length: int

    @property
    def name(self) -> str:
        """Of no other data set."""
        return f"tokens-{self.length}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """See `Dataset`."""
        drawn = torch.Generator().manual_seed(derive_seed("tokens", seed, step, micro_batch))
        tokens = torch.randint(0, CLASSES, (size, self.length + 1), generator=drawn)
        return tokens[:, :-1], tokens[:, 1:]


class Scaled(torch.autograd.Function):
    """x times a weight, by a function of its own that looks at what it has saved twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """(..., width), (width,) -> (..., width)."""
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Of both."""
        weight, x = ctx.saved_tensors[1], ctx.saved_tensors[0]
        return grads[0] * weight, (grads[0] * x).flatten(0, -2).sum(0)


class Scale(nn.Module):
    """A custom function's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        found: Tensor = Scaled.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return found


class Adapted(nn.Module):
    """A frozen linear layer and a trained one of low rank beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return self.base(x) + self.up(self.down(x))


class Recurrent(nn.Module):
    """An LSTM's outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        output: Tensor = self.lstm(x)[0]
        return output


class Attention(nn.Module):
    """Self-attention with its residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        q, k, v = self.into(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Mean(nn.Module):
    """(batch, length or channels..., width) -> (batch, CLASSES)."""

    def __init__(self, width: int, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes, self.head = axes, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The classes' logits."""
        return self.head(x.mean(self.axes) if self.axes else x)


def _linear(width: int, tail: str) -> nn.Module:
    tails = {"relu": nn.ReLU, "gelu": nn.GELU, "dropout": partial(nn.Dropout, 0.2)}
    if tail == "norm":
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
    return nn.Sequential(nn.Linear(width, width), tails[tail]())


class Joined(nn.Module):
    """A block, and beside it what an earlier layer gives."""

    def __init__(self, make: partial[nn.Module]) -> None:
        super().__init__()
        self.block = make()

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        """Two of a shape -> one."""
        found: Tensor = self.block(x) + skipped
        return found


def _frozen(make: partial[nn.Module]) -> nn.Module:
    return make().requires_grad_(False)


def _convolution(channels: int, norm: bool) -> nn.Module:
    parts = [nn.Conv2d(channels, channels, 3, padding=1), *([nn.BatchNorm2d(channels)] if norm else []), nn.ReLU()]
    return nn.Sequential(*parts)


def _blocks(family: str, width: int) -> tuple[tuple[int, ...], list[partial[nn.Module]], partial[nn.Module]]:
    """A family's input shape, its blocks, and its last layer."""
    linear = [partial(_linear, width, tail) for tail in ("relu", "gelu", "dropout")]
    adapted = partial(Adapted, width, 2)
    if family == "images":
        blocks = [partial(_convolution, width, norm) for norm in (False, True)]
        return (width, 6, 6), [*blocks, partial(nn.Dropout, 0.1)], partial(_pooled, width)
    if family in ("sequences", "tokens"):
        blocks = [*linear, adapted, partial(Recurrent, width), partial(Attention, width), partial(nn.LayerNorm, width)]
        last = partial(nn.Linear, width, CLASSES) if family == "tokens" else partial(Mean, width, (1,))
        return (5, width), [*blocks, partial(Scale, width)], last
    return (width,), [*linear, adapted, partial(_linear, width, "norm")], partial(Mean, width, ())


def _pooled(channels: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _taking(layer: int, sources: dict[int, int]) -> dict[str, tuple[str, ...]]:
    return {"inputs": (f"layer{layer - 1}", f"layer{sources[layer]}")} if layer in sources else {}


def random_model(rng: random.Random, layers: int) -> LayeredModel:
    """Random blocks in a chain, or with skip connections; some are frozen, sometimes linear layers share weights."""
    family, width = rng.choice(["vectors", "images", "sequences", "tokens"]), rng.choice([4, 8, 24])
    shape, blocks, last = _blocks(family, width)
    makers = [rng.choice(blocks) for _ in range(layers - 1)]
    if family == "tokens":
        makers[0] = partial(nn.Embedding, CLASSES, width)
    frozen = rng.choice([0.0, 0.0, 0.3, 0.8])
    made = [partial(_frozen, make) if rng.random() < frozen else make for make in makers]
    joined = rng.choice([0.0, 0.0, 0.3])
    sources = {k: rng.randrange(k - 1) for k in range(2, layers - 1) if rng.random() < joined}
    made = [partial(Joined, make) if k in sources else make for k, make in enumerate(made)]
    specs = [LayerSpec(f"layer{k}", make, **_taking(k, sources)) for k, make in enumerate([*made, last])]
    tied = [k for k, make in enumerate(made) if make.func is _linear]
    ties: tuple[Tie, ...] = ()
    if len(tied) > 1 and rng.random() < 0.4:
        ties = (Tie(tuple((f"layer{k}", "0.weight") for k in sorted(rng.sample(tied, rng.randint(2, len(tied)))))),)
    data = Tokens(shape[0]) if family == "tokens" else Noise(shape)
    return LayeredModel("random", tuple(specs), cross_entropy, data, ties)


# ------------------------------------------------------------------ plans


def random_cluster(rng: random.Random, devices: int) -> Cluster:
    """One node; links that cost nothing, only latency, no latency, or both; the same of host links."""
    links = [Link(), Link(), Link(latency_s=1e-5), Link(1e8), Link(1e8, 2e-5)]
    kind = DeviceType("toy", MEMORY, 1.0, rng.choice([None, 1e9]))
    shared = rng.choice([d for d in (1, 2) if devices % d == 0])
    return Cluster((NodeGroup(1, devices, kind, rng.choice(links), None, rng.choice(links), shared),))


def _rows(
    rng: random.Random, pipelines: tuple[Pipeline, ...], devices: int, others: list[str]
) -> dict[int, tuple[str, ...]]:
    """A row of stash policies for every micro-batch, a few different ones a pipeline."""

    def policy(home: int, back: int) -> str:
        name = rng.choice(["keep", *others])
        if name == "ship":
            return f"ship>{(home + 1) % devices}" if home == back and devices > 1 else "keep"
        return name

    rows = {}
    for pipeline in pipelines:
        kinds = [tuple(map(policy, pipeline.forward, pipeline.backward)) for _ in range(rng.choice([1, 2]))]
        rows |= {m: rng.choice(kinds) for m in pipeline.micro_batches}
    return rows


def _cut(rng: random.Random, names: list[str], stages: int) -> tuple[tuple[str, ...], ...]:
    places = [0, *sorted(rng.sample(range(1, len(names)), stages - 1)), len(names)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(places))


def _rewritten(order: tuple[Op, ...], candidate: Candidate, halves: bool) -> list[Op]:
    """A device's F and B with every R that the stash policies need; `halves`: every B as I and then W."""
    path = {m: k for k, p in enumerate(candidate.pipelines) for m in p.micro_batches}
    found = []
    for op in order:
        if op.kind in (Kind.B, Kind.I) and candidate.stash[path[op.micro_batch]][op.stage] == "recompute":
            found.append(op._replace(kind=Kind.R))
        whole = op.kind is Kind.B and halves
        found += [op._replace(kind=Kind.I), op._replace(kind=Kind.W)] if whole else [op]
    return found


@dataclass(frozen=True)
class Case:
    """A random model and a random plan of it, all from the seed; `text` says what it is."""

    seed: int

    @cached_property
    def _rng(self) -> random.Random:
        return random.Random(self.seed)

    @cached_property
    def choices(self) -> dict[str, str | int]:
        """What is drawn before anything is built."""
        rng = random.Random(f"choices {self.seed}")
        kind = rng.choice(["named", "named", "greedy", "greedy", "alternating", "pipefb"])
        devices = rng.choice([2, 4]) if kind == "pipefb" else rng.choice([2, 2, 3, 4])
        return {
            "kind": kind,
            "devices": devices,
            "samples": rng.choice([1, 2, 3, 8, 16]),
            "optimizer": rng.choice(list(OPTIMIZER_STATES)),
            "precision": rng.choice(["fp32", "fp32", "mixed"]),
            "engine": rng.choice(["graph", "graph", "eager"]),
            "other": rng.choice(["keep", "keep", "recompute", "offload", "ship", "recompute offload"]),
            "schedule": rng.choice(list(SCHEDULES) if kind == "named" else [n for n in ASYNCHRONOUS if n != "pipefb"]),
        }

    @property
    def engine(self) -> Engine:
        """Of the profile and the run."""
        return "eager" if self.choices["engine"] == "eager" else "graph"

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return torch.bfloat16 if self.choices["precision"] == "mixed" else torch.float32

    @cached_property
    def model(self) -> LayeredModel:
        """See `random_model`."""
        return random_model(random.Random(f"model {self.seed}"), self._layers)

    @property
    def _layers(self) -> int:
        return 8 + self.seed % 3

    def profiled(self) -> ModelGraph:
        """Real bytes, with the same seconds everywhere."""
        samples = int(self.choices["samples"])
        rng = random.Random(f"seconds {self.seed}")
        document = profile_model(self.model, max(samples, 2), rounds=1, dtype=self.dtype, engine=self.engine)
        layers = []
        for layer in ModelGraph.from_dict(document).layers:
            backward = rng.choice([1e-4, 2e-4])
            layers.append(replace(layer, forward_s=1e-4, backward_input_s=backward, backward_weight_s=1e-4))
        return replace(ModelGraph.from_dict(document), layers=tuple(layers))

    def plan(self) -> Plan:
        """Raises InputError where there is none."""
        rng, chosen = random.Random(f"plan {self.seed}"), self.choices
        graph, devices = self.profiled(), int(chosen["devices"])
        cluster, names = random_cluster(rng, devices), [layer.name for layer in graph.layers]
        if chosen["kind"] == "greedy":
            return self._greedy(rng, graph, cluster, names)
        if chosen["kind"] == "named":
            count = devices * rng.choice([1, 2])
            layout = build(str(chosen["schedule"]), devices, count)
            return self._assembled(rng, layout, Problem(graph, cluster, self._workload(count)), names)
        update = rng.choice([1, 2])
        name = "pipefb" if chosen["kind"] == "pipefb" else str(chosen["schedule"])
        update = max(update, WEIGHT_POLICIES[build(name, devices, 8).weights].least_update(devices))
        count = 8 * update
        layout = build(name, devices, count)
        workload = replace(self._workload(count), update_every=update)
        return self._assembled(rng, layout, Problem(graph, cluster, workload), names)

    def _workload(self, count: int) -> Workload:
        return Workload(count, str(self.choices["optimizer"]), str(self.choices["precision"]))

    def _assembled(self, rng: random.Random, layout: Layout, problem: Problem, names: list[str]) -> Plan:
        if layout.stages > len(names):
            raise InputError("fewer layers than stages")
        others = str(self.choices["other"]).split()
        if any(op.kind is Kind.I for order in layout.orders for op in order) and self.engine == "eager":
            others = [name for name in others if name != "ship"]
        rows = _rows(rng, layout.pipelines, len(problem.cluster), others)
        stages = _cut(rng, names, layout.stages)
        candidate = regroup(problem, stages, layout.pipelines, rows, layout.weights)
        halves = layout.weights == FLUSH and rng.random() < 0.3
        orders = [_rewritten(order, candidate, halves) for order in layout.orders]
        if layout.ahead:
            orders = [list(order) for order in with_returns(candidate, orders, layout.ahead)]
        return assemble(candidate, orders, layout.name)

    def _greedy(self, rng: random.Random, graph: ModelGraph, cluster: Cluster, names: list[str]) -> Plan:
        devices = len(cluster)
        straight = tuple(range(devices))
        routes = rng.choice(
            [[straight], [straight + straight[::-1]], [straight, straight[::-1]], [straight] * 2, [(0,) * 2, (1,) * 2]]
        )
        apart = self.engine == "graph" and rng.random() < 0.4
        batches = rng.randint(len(routes), 7)
        owner = [*range(len(routes)), *(rng.randrange(len(routes)) for _ in range(batches - len(routes)))]
        pipelines = tuple(
            Pipeline(
                route,
                tuple(rng.choice([d, rng.randrange(devices)]) for d in route) if apart else route,
                tuple(m for m in range(batches) if owner[m] == k),
            )
            for k, route in enumerate(routes)
        )
        problem = Problem(graph, cluster, self._workload(batches))
        rows = _rows(rng, pipelines, devices, str(self.choices["other"]).split())
        candidate = regroup(problem, _cut(rng, names, len(routes[0])), pipelines, rows)
        return assemble(candidate, Greedy(candidate, rng, rng.random() < 0.4).orders(), "random")

    @property
    def text(self) -> str:
        """In one line."""
        return f"seed {self.seed}: {' '.join(str(value) for value in self.choices.values())}"
