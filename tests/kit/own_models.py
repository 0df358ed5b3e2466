"""Small models that the registry does not have, planned, run on threads and compared with plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from runs import assert_same, at_given_times, worst_excess
from torch import Tensor, nn

from contraflow.executor.basics.options import Engine
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.models.loss import cross_entropy
from contraflow.models.protocol import LayeredModel, LayerSpec, derive_seed
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.workload import Workload

CLASSES = 4


@dataclass(frozen=True)
class Noise:
    """Inputs of a normal distribution, targets uniform among the classes."""

    width: int

    @property
    def name(self) -> str:
        """Of no other data set."""
        return f"noise-{self.width}"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """See `Dataset`."""
        drawn = torch.Generator().manual_seed(derive_seed("noise", seed, step, micro_batch))
        return torch.randn(size, self.width, generator=drawn), torch.randint(0, CLASSES, (size,), generator=drawn)


def chain(layers: Sequence[partial[nn.Module]], width: int) -> LayeredModel:
    """These layers, each from `width` to `width`, and a linear one to the classes."""
    made = [*layers, partial(nn.Linear, width, CLASSES)]
    specs = tuple(LayerSpec(f"layer{k}", make) for k, make in enumerate(made))
    return LayeredModel("own", specs, cross_entropy, Noise(width))


def profiled(
    model: LayeredModel, samples: int, engine: Engine = "auto", dtype: torch.dtype = torch.float32
) -> ModelGraph:
    """Its real sizes, at given times."""
    return at_given_times(ModelGraph.from_dict(profile_model(model, samples, rounds=1, engine=engine, dtype=dtype)))


def plan_of(
    graph: ModelGraph,
    pipelines: tuple[Pipeline, ...],
    orders: Sequence[Sequence[Op]],
    optimizer: str = "momentum",
    stash: tuple[tuple[str, ...], ...] = (),
) -> Plan:
    """Layers dealt out evenly to the stages of the pipelines, compute in these orders, on links that cost nothing."""
    names = [layer.name for layer in graph.layers]
    stages = len(pipelines[0].forward)
    cuts = [round(s * len(names) / stages) for s in range(stages + 1)]
    split = tuple(tuple(names[a:b]) for a, b in zip(cuts, cuts[1:], strict=False))
    count = sum(len(p.micro_batches) for p in pipelines)
    problem = Problem(graph, Cluster.uniform(len(orders)), Workload(count, optimizer))
    return assemble(Candidate(problem, split, pipelines, stash), orders)


def assert_as_plain_torch(
    plan: Plan, model: LayeredModel, engine: Engine = "auto", steps: int = 3, dtype: torch.dtype = torch.float32
) -> RunResult:
    """Losses and every tensor equal, and no device above its planned peak."""
    workload, size = plan.problem.workload, plan.problem.model.micro_batch_size
    found = execute(
        plan, steps, model, transport="threads", engine=engine, self_check=False, return_state=True, dtype=dtype
    )
    wanted = train_reference(model, workload.micro_batches, size, workload.optimizer, steps, dtype=dtype)
    for mine, reference in zip(found.losses, wanted.losses, strict=True):
        assert abs(mine - reference) <= 1e-5
    assert found.state is not None
    for name, tensor in wanted.state.items():
        assert_same(name, found.state[name], tensor)
    assert max(worst_excess(found).values()) <= 1, worst_excess(found)
    return found
