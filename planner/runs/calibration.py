"""Measured times folded back into a model's layer costs.

A run measures stages, a model has layers: every measured stage is one linear equation on the costs of its layers.
Of all costs that fit the equations best, those nearest to the profile are taken, deviations weighed by the profiled
cost. For one run that means: every layer of a stage is scaled by the same factor. Runs of other cuts tell the layers of
a stage apart. Knows JSON and numbers only, so it works where no torch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..graph import MOVES_BESIDE, beside_layers_s, stash_policy
from ..plan import Kind
from ..problem import Layer, ModelGraph, StageCosts
from .trace import RunTrace

if TYPE_CHECKING:
    from ..graph import Floats

_PARTS = {
    Kind.F: ("forward_s",),
    Kind.R: ("forward_s",),
    Kind.B: ("backward_input_s", "backward_weight_s"),
    Kind.I: ("backward_input_s",),
    Kind.W: ("backward_weight_s",),
}
"""Which costs of its layers a compute op takes; R has the forward's, as everywhere in the planner."""
_PARTLY = ("selective_s",)
"""Those of an R that makes a part of a stash again."""


@dataclass(frozen=True)
class Measured:
    """One kind of op of one stage in one run: seconds at speed 1, medians over its ops.

    Attributes:
        count: ops it is the median of. layers: of the stage.
        overhead_s: what the device spent around each op (see `OpTrace`); in `seconds` where it was asked for.
        partial: of an R, whether it makes a part of the stash again.
    """

    run: int
    stage: int
    kind: Kind
    count: int
    layers: tuple[str, ...]
    seconds: float
    overhead_s: float
    partial: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Which costs of its layers it takes."""
        return _PARTLY if self.partial else _PARTS[self.kind]

    def profiled_s(self, model: ModelGraph) -> float:
        """What the model says instead."""
        layers = [model.layers[model.index[name]] for name in self.layers]
        return float(sum(getattr(layer, part) for layer in layers for part in self.parts))


def measured(model: ModelGraph, traces: Sequence[RunTrace], overhead: bool = True) -> list[Measured]:
    """What runs say of every stage's compute ops, by run, stage and kind.

    Args:
        overhead: whether an op's time includes what its device spent around it, neither computing nor waiting: what
            goes beyond the overhead that the plan's cluster counts already.
    """
    import numpy as np

    found = []
    for run, trace in enumerate(traces):
        costs = StageCosts.of(model, trace.stages, trace.overhead)
        ops: dict[tuple[int, Kind, bool], list[tuple[float, float, float]]] = {}
        row = {m: line for line, p in zip(trace.stash, trace.pipelines, strict=True) for m in p.micro_batches}
        for device in trace.devices:
            listed = {x.op[:3] for x in device.ops}
            for x in device.ops:
                if x.op.kind in _PARTS:
                    moves = sum((kind, *x.op[1:3]) in listed for kind in MOVES_BESIDE.get(x.op.kind, ()))
                    known = float(beside_layers_s(costs, x.op.kind, x.op.stage)) + moves * trace.overhead.message_s
                    around_s = x.overhead_s * device.speed
                    found_s = x.duration_s * device.speed, around_s, around_s - known
                    again = x.op.kind is Kind.R and stash_policy(row[x.op.micro_batch][x.op.stage]).partial
                    ops.setdefault((x.op.stage, x.op.kind, again), []).append(found_s)
        for (stage, kind, again), each in sorted(ops.items()):
            taken, around, beyond = np.array(each).T
            seconds = float(np.median(taken))
            if overhead:  # the mean: samples are drawn for several forwards at a time
                seconds = max(0.0, seconds + float(np.mean(beyond)))
            typical_s = float(np.median(around))
            found.append(Measured(run, stage, kind, len(each), trace.stages[stage], seconds, typical_s, again))
    return found


def calibrate(model: ModelGraph, traces: Sequence[RunTrace], overhead: bool = True) -> ModelGraph:
    """The model with costs that fit what runs measured; names, sizes and edges as they were.

    Raises RunTraceError: a run is of another model.
    """
    for trace in traces:
        trace.require_model(model)
    seen = measured(model, traces, overhead)
    forward = _fit(model, ("forward_s",), seen)
    backward = _fit(model, ("backward_input_s", "backward_weight_s"), seen)
    again = _fit(model, _PARTLY, seen) if any(m.partial for m in seen) else [{} for _ in model.layers]
    layers = []
    for layer, there, back, part in zip(model.layers, forward, backward, again, strict=True):
        costs: dict[str, Any] = there | back | part
        layers.append(replace(layer, **costs))
    return replace(model, layers=tuple(layers))


def _fit(model: ModelGraph, parts: tuple[str, ...], seen: Sequence[Measured]) -> list[dict[str, float]]:
    """New costs of every layer by part, from the measurements that are about these parts."""
    import numpy as np

    unknown = [(layer, part) for layer in model.layers for part in parts]
    place = {(layer.name, part): k for k, (layer, part) in enumerate(unknown)}
    about = [m for m in seen if m.parts[0] in parts and m.seconds > 0]
    profile = np.array([getattr(layer, part) for layer, part in unknown])
    takes = np.zeros((len(about), len(unknown)))
    for row, m in enumerate(about):
        takes[row, [place[name, part] for name in m.layers for part in m.parts]] = 1.0
    seconds = np.array([m.seconds for m in about])
    importance = np.sqrt([m.count for m in about]) / seconds  # relative errors, every op counts
    said = takes @ profile
    usual = float(seconds.sum() / said.sum()) if len(about) and said.sum() > 0 else 1.0
    fitted = _nearest(takes, seconds, importance, usual * profile, _freedom(takes, profile, unknown))
    costs: list[dict[str, float]] = [{} for _ in model.layers]
    for (layer, part), cost in zip(unknown, fitted.tolist(), strict=True):
        costs[model.index[layer.name]][part] = cost
    return costs


def _freedom(takes: Floats, profile: Floats, unknown: Sequence[tuple[Layer, str]]) -> Floats:
    """How easily each cost gives way: by its size; where a whole stage is said to cost nothing, all alike.

    The weight half of a layer whose backward has no halves stays 0.
    """
    import numpy as np

    free = profile.copy()
    for row in takes[takes @ profile == 0] > 0:
        free[row] = 1.0
    halves = np.array([layer.separable or part != "backward_weight_s" for layer, part in unknown])
    return np.asarray(np.where(halves, free, 0.0), dtype=np.float64)


def _nearest(takes: Floats, seconds: Floats, importance: Floats, start: Floats, freedom: Floats) -> Floats:
    """Of the non-negative costs with least squares of importance * (takes @ costs - seconds), those nearest to `start`.

    Nearest: least squares of the deviations over sqrt(freedom). Minimum-norm least squares; costs that would be
    negative are set to 0 and leave the system, which then is solved again.
    """
    import numpy as np

    costs, free = start.copy(), freedom > 0
    while free.any() and len(seconds):
        costs = np.where(free, start, np.where(freedom > 0, 0.0, start))
        scale = np.sqrt(freedom * free)
        system = importance[:, None] * takes * scale
        moved = np.linalg.lstsq(system, importance * (seconds - takes @ costs), rcond=1e-9)[0]
        costs = costs + scale * moved
        below = free & (costs < 0)
        if not below.any():
            break
        free &= ~below
        costs[below] = 0.0
    return costs
