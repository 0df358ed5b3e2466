"""One training run of the convergence benchmark: a task, a method, a seed; in one process."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from contraflow.executor.basics.training import Training
from contraflow.executor.measure.analytic import analytic_profile
from contraflow.executor.oracle.emulation import emulate
from contraflow.executor.oracle.reference import train_reference
from contraflow.models import LayeredModel, load, resolve
from contraflow.models.protocol import build_layer, held_out
from contraflow.models.words import PADDING
from contraflow.planner import Cluster, ModelGraph, Workload
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.schedules.one_way import one_f_one_b

HELD_OUT_BATCH = 500


@dataclass(frozen=True)
class Method:
    """A weight policy, and how a mini-batch is cut: micro-batches an update, and whether each is a whole one.

    `whole`: every micro-batch has as many samples as the other methods' updates, so updates are rarer and larger.
    """

    name: str
    policy: str
    micro_batches: int = 1
    whole: bool = False


@dataclass(frozen=True)
class Task:
    """What is trained and for how long; rates by optimizer."""

    model: str
    data: str
    samples: int
    stages: int
    batch: int
    epochs: int
    rates: tuple[tuple[str, float], ...]
    floor: float = 0.02


TASKS = {
    "mlp-fashion": Task(
        "mlp-fashion", "fashion-mnist:8000/5000", 8000, 8, 32, 3, (("adam", 3e-3), ("adamw", 3e-3), ("momentum", 1e-2))
    ),
    "vgg-tiny": Task("vgg-tiny", "fashion-mnist-images:8000/5000", 8000, 4, 32, 1, (("adam", 1e-3),)),
    "lstm-reviews": Task("lstm-reviews", "reviews:32", 9000, 4, 32, 2, (("adam", 1e-3),)),
    "gnmt-tiny": Task("gnmt-tiny", "verses:24", 8000, 4, 32, 1, (("adam", 1e-3),)),
}
_IMAGES = "fashion-mnist-images:8000/5000"
SMALL = {
    **{
        name: Task(name, _IMAGES, 8000, 4, 32, 1, (("momentum", rate),))
        for name, rate in (
            ("alexnet-tiny", 1e-2),
            ("vgg-tiny", 1e-2),
            ("googlenet-tiny", 3e-2),
            ("inception-tiny", 3e-2),
            ("resnet-tiny", 3e-2),
        )
    },
    "lstm-reviews": Task("lstm-reviews", "reviews:32", 9000, 4, 32, 4, (("adam", 1e-3),)),
    "gnmt-tiny": Task("gnmt-tiny", "verses:24", 8000, 4, 32, 1, (("adam", 3e-3),)),
    "gnmt-tiny-deep": Task("gnmt-tiny-deep", "verses:24", 8000, 4, 32, 1, (("adam", 3e-3),)),
}
"""Small versions of the eight networks of PipeOptim's evaluation, with the optimizer that it trains them with."""


def methods(stages: int) -> tuple[Method, ...]:
    """Every policy; the one of two versions at the same update, and at the same micro-batch."""
    single = ("naive", "stash", "vertical", "spectrain", "pipeoptim", "pipeoptim-lookahead")
    return (
        Method("synchronous", FLUSH),
        *(Method(name, name) for name in single),
        Method("2bw", "2bw", stages),
        Method("2bw, large updates", "2bw", stages, whole=True),
    )


@dataclass(frozen=True)
class Run:
    """What to train."""

    task: str
    optimizer: str
    method: Method
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Mean training losses an update, and over the held-out samples the share that is right and the mean loss."""

    losses: tuple[float, ...]
    accuracy: float
    held_out_loss: float


def train(run: Run) -> Outcome:
    """Trains and measures; not finite where training diverges."""
    task = TASKS[run.task]
    return trained(task, run.optimizer, run.method, run.seed, dict(task.rates)[run.optimizer])


def trained(task: Task, optimizer: str, method: Method, seed: int, rate: float) -> Outcome:
    """Trains a task at a learning rate and measures; not finite where training diverges."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    size = task.batch if method.whole else task.batch // method.micro_batches
    model, each = resolve(task.model), method.micro_batches
    updates = task.epochs * (task.samples // (size * each))
    training = Training(rate, "linear", lr_floor=task.floor * rate)
    data = load(f"{task.data},micro-batches={each}")
    if method.policy == FLUSH:
        reference = train_reference(model, each, size, optimizer, updates, seed, data=data, training=training)
        losses, state = reference.losses, reference.state
    else:
        made = _plan(task, optimizer, method.policy, size, each)
        emulated = emulate(made, _epochs(updates, task.epochs), model, data, seed=seed, training=training)
        losses, state = emulated.losses, emulated.state
    layers = nn.Sequential(*_layers(model, seed, state))
    return Outcome(losses, *_held_out(layers, model, task.data))


def _epochs(updates: int, epochs: int) -> list[int]:
    """Updates of every epoch: the pipeline is empty between them."""
    return [updates * (k + 1) // epochs - updates * k // epochs for k in range(epochs)]


@cache
def _plan(task: Task, optimizer: str, policy: str, size: int, each: int) -> Plan:
    """Stages, policy, and a run long enough to fill the pipeline: the emulation makes runs of its own lengths."""
    model, data, device = resolve(task.model), load(task.data), PRESETS["V100-16GB"]
    content = analytic_profile(model, size, device, efficiency=0.5, data=data, layers="block")
    graph, count = ModelGraph.from_dict(content), task.stages
    run = each * (count + 1)
    problem = Problem(graph, Cluster.uniform(count), Workload(run, optimizer, update_every=each))
    order = one_f_one_b(count, run)
    stages = _even(tuple(layer.name for layer in graph.layers), count)
    return assemble(Candidate(problem, stages, order.pipelines, weights=policy), order.orders)


def _even(names: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Stages of about equally many layers."""
    ends = [len(names) * k // count for k in range(count + 1)]
    return tuple(tuple(names[a:b]) for a, b in zip(ends, ends[1:], strict=False))


def _layers(model: LayeredModel, seed: int, state: dict[str, Tensor]) -> Iterator[nn.Module]:
    for index, spec in enumerate(model.layers):
        layer = build_layer(spec, seed, index)
        names = [*(f"parameters/{name}" for name, _ in layer.named_parameters())]
        names += [f"buffers/{name}" for name, _ in layer.named_buffers()]
        found = {name.partition("/")[2]: state[_key(name, spec.name)] for name in names}
        layer.load_state_dict(found, strict=False)
        yield layer.eval()


def _key(name: str, layer: str) -> str:
    group, _, rest = name.partition("/")
    return f"{group}/{layer}/{rest}"


def _held_out(layers: nn.Module, model: LayeredModel, name: str) -> tuple[float, float]:
    data = held_out(load(f"{name},micro-batches=1"))
    total = len(data)  # type: ignore[arg-type]
    rounds = math.ceil(total / HELD_OUT_BATCH)
    right = answers = loss = 0.0
    with torch.no_grad():
        for step in range(rounds):
            inputs, targets = data.batch(0, step, 0, HELD_OUT_BATCH)
            outputs = layers(inputs)
            loss += model.loss(outputs, targets).item()
            asked = targets != PADDING if targets.ndim > 1 else torch.ones_like(targets, dtype=torch.bool)
            right += ((outputs.argmax(-1) == targets) & asked).sum().item()
            answers += asked.sum().item()
    return right / answers, loss / rounds
