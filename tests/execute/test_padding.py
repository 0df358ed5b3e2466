"""Micro-batches with padding: the mean over the targets that count, as in one process that sees them all at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from instances import cut_evenly
from runs import rewritten, run_jobs_together, sized, stashed
from torch import Tensor, nn

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute, prepare
from contraflow.models import LayeredModel, LayerSpec, build_layer, cross_entropy, derive_seed, held_out
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

WORDS, LENGTH, MICRO_BATCHES, SAMPLES, STEPS, RATE = 11, 6, 4, 2, 2, 0.5
PADDING = -100


@dataclass(frozen=True)
class Padded:
    """Sentences of one to six words; `empty`: a step whose second micro-batch is all padding."""

    empty: int = -1
    name: str = "padded"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, LENGTH) each."""
        generator = torch.Generator().manual_seed(derive_seed(seed, step, micro_batch))
        words = torch.randint(WORDS, (size, LENGTH + 1), generator=generator)
        ends = torch.randint(1, LENGTH + 1, (size, 1), generator=generator) if micro_batch else torch.ones(size, 1)
        there = torch.arange(LENGTH) < ends
        if (step, micro_batch) == (self.empty, 1):
            there[:] = False
        return words[:, :-1], words[:, 1:].where(there, PADDING)


def counted(targets: Tensor) -> Tensor:
    """Those that are no padding."""
    return (targets != PADDING).sum()


def embedding() -> nn.Module:
    """Of words."""
    return nn.Embedding(WORDS, 8)


def hidden() -> nn.Module:
    """Between."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def head() -> nn.Module:
    """Scores."""
    return nn.Linear(8, WORDS)


@cache
def model(empty: int = -1) -> LayeredModel:
    """Six layers."""
    layers = [LayerSpec("words", embedding), *(LayerSpec(f"h{k}", hidden) for k in range(4)), LayerSpec("head", head)]
    return LayeredModel("padded", tuple(layers), cross_entropy, Padded(empty), counted=counted)


@cache
def graph_of_model() -> ModelGraph:
    """For the planner."""
    return sized(model(), SAMPLES)


def planned(schedule: str, stash: str = "keep", devices: int = 2) -> Plan:
    """Layers dealt out evenly."""
    layout, graph = build(schedule, devices, MICRO_BATCHES), graph_of_model()
    problem = Problem(graph, Cluster.uniform(devices), Workload(MICRO_BATCHES, "sgd"))
    candidate = stashed(Candidate(problem, cut_evenly(graph, layout.stages), layout.pipelines, (), FLUSH), stash)
    return assemble(candidate, [rewritten(order, candidate, halves=False) for order in layout.orders], schedule)


def together(data: Padded, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """All micro-batches of a step as one batch."""
    pairs = [data.batch(seed, step, m, SAMPLES) for m in range(MICRO_BATCHES)]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


@cache
def at_once() -> tuple[tuple[float, ...], dict[str, Tensor], tuple[float, ...]]:
    """(losses, parameters, held-out losses) of plain torch, which sees whole steps."""
    module = nn.Sequential(*(build_layer(spec, 0, k) for k, spec in enumerate(model().layers)))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    losses, held = [], []
    for step in range(STEPS):
        x, y = together(Padded(), 0, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten(), ignore_index=PADDING)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pairs = [together(held_out(Padded()), derive_seed("evaluation", 0), k) for k in range(2)]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        with torch.no_grad():
            held.append(nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten()).item())
    names = [spec.name for spec in model().layers]
    state = {f"parameters/{names[k]}/{n}": p for k, layer in enumerate(module) for n, p in layer.named_parameters()}
    return tuple(losses), state, tuple(held)


PLANS = [("1f1b", "keep"), ("1f1b", "recompute"), ("chimera", "keep")]
EVALUATING = Training(lr=RATE, evaluate_every=1, evaluate_steps=2)


@pytest.mark.parametrize(("schedule", "stash"), PLANS)
def test_any_plan_trains_as_one_process_does_that_sees_the_step_at_once(schedule: str, stash: str) -> None:
    """Losses, parameters and held-out losses; the mean of the micro-batches' means is another number."""
    losses, state, held = at_once()
    result = execute(
        planned(schedule, stash), STEPS, model=model(), transport="threads", return_state=True, training=EVALUATING
    )
    assert result.losses == pytest.approx(losses, abs=1e-6)
    assert tuple(result.evaluations.values()) == pytest.approx(held, abs=1e-6)
    assert result.state is not None
    for name, tensor in state.items():
        torch.testing.assert_close(result.state[name], tensor.detach(), rtol=1e-5, atol=1e-6)
    by_micro_batch = execute(planned(schedule, stash), 1, model=replace(model(), counted=None), transport="threads")
    assert abs(by_micro_batch.losses[0] - losses[0]) > 1e-3


def test_the_reference_does_too() -> None:
    """Which other tests compare runs with."""
    losses, _, held = at_once()
    found = train_reference(model(), MICRO_BATCHES, SAMPLES, "sgd", STEPS, training=EVALUATING)
    assert found.losses == pytest.approx(losses, abs=1e-6)
    assert tuple(found.evaluations.values()) == pytest.approx(held, abs=1e-6)


def test_on_processes(tmp_path: Path) -> None:
    """Every rank counts for itself."""
    jobs = [prepare(planned(*how), STEPS, model=model(), lr=RATE) for how in PLANS]
    for result in run_jobs_together(jobs, tmp_path):
        assert result.losses == pytest.approx(at_once()[0], abs=1e-6)


def test_a_micro_batch_of_padding_alone_is_refused() -> None:
    """Its mean is none; in one line."""
    with pytest.raises((ExecutionError, RunError), match="step 1, micro-batch 1: 0 of its targets count"):
        execute(planned("1f1b"), STEPS, model=model(1), transport="threads")
