"""Small models that the registry does not have, planned, run on threads and compared with plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from instances import by_orders
from runs import assert_as_planned, sized
from torch import Tensor, nn

from contraflow.executor.basics.options import Engine
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.models.loss import cross_entropy
from contraflow.models.protocol import LayeredModel, LayerSpec, derive_seed
from contraflow.planner.plan import Op, Pipeline, Plan
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.simulate import simulate

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


def plan_of(
    graph: ModelGraph,
    pipelines: Sequence[Pipeline],
    orders: Sequence[Sequence[Op]],
    optimizer: str = "momentum",
    stash: tuple[tuple[str, ...], ...] = (),
) -> Plan:
    """Layers dealt out evenly to the stages of the pipelines, compute in these orders, on links that cost nothing."""
    workload = Workload(sum(len(p.micro_batches) for p in pipelines), optimizer)
    return by_orders(graph, pipelines, orders, workload, stash=stash)


def ops(text: str) -> list[Op]:
    """A list of ops."""
    return [op_from_text(name) for name in text.split()]


def two_stages(width: int = 16) -> tuple[LayeredModel, Plan]:
    """A small model on two devices."""
    model = chain([partial(nn.Linear, width, width)] * 3, width)
    lists = [ops("0F0 0F1 0B0 0B1"), ops("1F0 1B0 1F1 1B1")]
    return model, plan_of(sized(model, 4), (Pipeline((0, 1), (0, 1), (0, 1)),), lists)


def with_layers(plan: Plan, change: Callable[[Layer], Layer]) -> Plan:
    """The plan as it would be with other costs."""
    graph = replace(plan.problem.model, layers=tuple(map(change, plan.problem.model.layers)))
    changed = replace(plan, problem=replace(plan.problem, model=graph), forecast=None)
    return changed.with_forecast(simulate(changed).forecast())


def without_stashes(layer: Layer) -> Layer:
    """The layer as if it took no more than its parameters and what it gives."""
    return replace(layer, stash_bytes=0, weight_stash_bytes=0, selective_bytes=0, workspace_bytes=0)


def assert_as_plain_torch(
    plan: Plan, model: LayeredModel, engine: Engine = "auto", steps: int = 3, dtype: torch.dtype = torch.float32
) -> RunResult:
    """Losses and every tensor equal, and no device above its planned peak."""
    workload, size = plan.problem.workload, plan.problem.model.micro_batch_size
    found = execute(
        plan, steps, model, transport="threads", engine=engine, self_check=False, return_state=True, dtype=dtype
    )
    wanted = train_reference(model, workload.micro_batches, size, workload.optimizer, steps, dtype=dtype)
    assert_as_planned(found, wanted)
    return found
