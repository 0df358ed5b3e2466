"""Which stages of a plan go through torch's compiler."""

from __future__ import annotations

from ...planner.plan import Plan
from ...planner.problem import Layer


def compiled_stages(plan: Plan, asked: bool | None = None) -> frozenset[int]:
    """All or none where that is asked; else those whose layers take most of their time as compiled layers.

    A stage is compiled as a whole: so are layers of it that were not faster so when they were profiled.
    """
    layers = {layer.name: layer for layer in plan.problem.model.layers}
    if asked is not None:
        return frozenset(range(len(plan.stages)) if asked else ())
    return frozenset(n for n, stage in enumerate(plan.stages) if _mostly([layers[name] for name in stage]))


def _mostly(layers: list[Layer]) -> bool:
    seconds = [(layer.forward_s + layer.backward_s, layer.compiled) for layer in layers]
    return 2 * sum(taken for taken, compiled in seconds if compiled) > sum(taken for taken, _ in seconds)
