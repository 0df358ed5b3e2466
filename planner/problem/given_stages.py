"""Models whose layers are the stages of a cut: what may still be decided when the cut is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..basics import WorkloadError, refusing, shown
from .kept_twice import between_stages
from .layer import WORKSPACES, Layer, Output
from .model_graph import ModelGraph, SharedParameters
from .stage_costs import StageCosts, ends_of
from .workload import Cut
from .workspaces import inner_workspaces

Stages = tuple[tuple[str, ...], ...]


def stages_of(model: ModelGraph, cut: Cut) -> Stages:
    """The stages of `SearchSpace.cut`, the layers of each in topological order. Raises WorkloadError."""
    if all(isinstance(one, str) for one in cut):
        stages = _begun(model, [str(one) for one in cut])
    else:
        stages = tuple(tuple(stage) for stage in cut)
    with refusing(WorkloadError, "cut: "):
        StageCosts.of(model, stages)
    return tuple(tuple(sorted(stage, key=model.rank.__getitem__)) for stage in stages)


def _begun(model: ModelGraph, names: Sequence[str]) -> Stages:
    """The stages that these layers begin, beside the first."""
    order = [model.layers[position].name for position in model.topological]
    for name in names:
        if name not in model.rank:
            raise WorkloadError(f"cut: there is no layer {shown(name)}")
    places = [model.rank[name] for name in names]
    if places != sorted(set(places)) or 0 in places:
        raise WorkloadError(f"cut: layers that begin stages come in order, after {shown(order[0])}, got {shown(names)}")
    return tuple(tuple(order[a:b]) for a, b in zip([0, *places], [*places, len(order)], strict=True))


def merged(model: ModelGraph, stages: Stages, roomy: bool = False) -> ModelGraph:
    """The model with each of these stages as one layer, which has the name of the stage's first.

    No plan of these stages has less than this model's costs. What layers of a stage give each other while a forward
    leaves no stash is in none of them, or with `roomy` in the workspace, which is more than some ops need.
    """
    costs, names = StageCosts.of(model, stages), [stage[0] for stage in stages]
    home = {name: number for number, stage in enumerate(stages) for name in stage}
    sent, edges = _sent(model, home)
    whole = {number: {output.name for output in outputs} for number, outputs in sent.items()}
    feeding = {source for source, _ in model.edges}
    layers = []
    for number, stage in enumerate(stages):
        members = [model.layers[model.index[name]] for name in stage]
        layer = replace(_layer(costs, number, members, sent[number], roomy), **_workspaces(model, costs, number, stage))
        unsent = 0 if sent[number] else sum(x.output_bytes for x in members if x.name not in feeding)
        layers.append(replace(layer, output_bytes=layer.output_bytes + unsent))
    return replace(
        model,
        layers=tuple(layers),
        edges=tuple((names[a], names[b]) for a, b in edges),
        shared=_shared(model, home, names),
        kept_twice=between_stages(model.kept_twice, home, names),
        named=tuple(((names[a], names[b]), told) for (a, b), told in edges.items() if set(told) != whole[a]),
    )


def _layer(costs: StageCosts, number: int, members: Sequence[Layer], outputs: tuple[Output, ...], roomy: bool) -> Layer:
    back, weight = float(costs.backward_input_s[number]), float(costs.backward_weight_s[number])
    separable = costs.separable[number]
    delivered = sum(edge.bytes for edge in costs.edges if edge.consumer == number)
    declared = int(costs.input_bytes[number] + costs.kept_input_bytes[number])
    return Layer(
        members[0].name,
        float(costs.forward_s[number]),
        back if separable else back + weight,
        weight if separable else 0.0,
        separable,
        parameter_bytes=int(costs.parameter_bytes[number]),
        stash_bytes=int(costs.stash_bytes[number]),
        weight_stash_bytes=int(costs.weight_stash_bytes[number]),
        output_bytes=sum(output.bytes for output in outputs),
        input_bytes=declared + delivered if declared else None,
        workspace_bytes=int(costs.workspace_bytes[number] + (costs.inner_bytes[number] if roomy else 0)),
        buffer_bytes=int(costs.buffer_bytes[number]),
        parameter_shapes=_shapes(members),
        trainable_bytes=int(costs.trained_bytes[number]),
        outputs=outputs,
        selective_bytes=int(costs.selective_bytes[number]),
        selective_s=float(costs.selective_s[number]),
    )


def _workspaces(model: ModelGraph, costs: StageCosts, number: int, stage: Sequence[str]) -> dict[str, Any]:
    """Of a stage's kinds of ops, where all of its layers say theirs."""
    order = [model.layers[model.index[name]] for name in sorted(stage, key=model.rank.__getitem__)]
    ends = ends_of(model, order, costs.edges, number, int(costs.input_bytes[number]))
    found = inner_workspaces(order, model.kept_twice, ends)
    return {} if found is None else dict(zip(WORKSPACES, found, strict=True))


Sent = dict[int, tuple[Output, ...]]
Edges = dict[tuple[int, int], tuple[str, ...]]


def _sent(model: ModelGraph, home: dict[str, int]) -> tuple[Sent, Edges]:
    """The tensors that leave each stage, and which of them go to which other."""
    leaving: dict[int, dict[str, Output]] = {number: {} for number in home.values()}
    edges: dict[tuple[int, int], dict[str, None]] = {}
    for (source, target), carried in model.carried.items():
        ends = home[source], home[target]
        if ends[0] != ends[1]:
            for output in carried:
                name = f"{source}.{output.name}" if output.name else source
                leaving[ends[0]][name] = output._replace(name=name)
                edges.setdefault(ends, {})[name] = None
    sent = {number: tuple(found.values()) for number, found in leaving.items()}
    return sent, {ends: tuple(told) for ends, told in sorted(edges.items())}


def _shapes(members: Sequence[Layer]) -> tuple[tuple[int, ...], ...] | None:
    """Of all trained parameters, which optimizers count."""
    shapes = [shape for x in members if x.trained_bytes or not x.parameter_bytes for shape in x.parameter_shapes or ()]
    return tuple(shapes) or None


def _shared(model: ModelGraph, home: dict[str, int], names: Sequence[str]) -> tuple[SharedParameters, ...]:
    """What stages share; what layers of one stage do is its own."""
    groups = [(sorted({home[name] for name in group.layers}), group.bytes) for group in model.shared]
    between = [(tuple(names[k] for k in members), size) for members, size in groups if len(members) > 1]
    return tuple(SharedParameters(members, size) for members, size in between)
