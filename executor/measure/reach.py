"""How cold a layer's ops find the caches: between two of them the rest of the model runs, be it much or little.

Every layer is timed with as much memory read between its ops as models of some sizes read, and when all layers' bytes
are known, those seconds are taken that are right for their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...models import LayeredModel, Piece
from ...models.wiring import Part
from ..basics import Engine
from .layer_run import Example, LayerRun, Timing, nothing, trace_layer

PAYS = 0.03
"""A layer that torch's compiler makes faster by a smaller share stays as it is: measurements differ by as much."""
_KEY = "seconds by reach"
_MIB = 1 << 20


@dataclass(frozen=True)
class Level:
    """`reach_bytes`: for models that read no more between two ops of a layer. `scratch_bytes`: what is read instead.
    `rounds`: so many times as many, since microseconds scatter."""

    reach_bytes: float
    scratch_bytes: int
    rounds: int = 1


LEVELS = (Level(2 * _MIB, 0, 9), Level(32 * _MIB, 32 * _MIB), Level(math.inf, 128 * _MIB))
"""What a core's own caches hold, what is more, and more than all caches hold."""


@dataclass(frozen=True)
class Reaches:
    """How layers are timed, by level; without what calling the program of an empty one takes there."""

    timings: tuple[Timing, ...]
    levels: tuple[Level, ...] = LEVELS[-1:]

    @classmethod
    def of(
        cls, model: LayeredModel, timing: Timing, device: torch.device, dtype: torch.dtype, engine: Engine
    ) -> Reaches:
        """On a CPU, by a process that is no team's: all levels. Elsewhere caches are emptied, and calls count."""
        if device.type != "cpu" or timing.team.lane is not None:
            return cls((replace(timing, recall=reading(LEVELS[-1].scratch_bytes, device)),))
        run = _empty(model, dtype, engine)
        timings = [
            replace(timing, recall=reading(level.scratch_bytes, device), rounds=level.rounds * timing.rounds)
            for level in LEVELS
        ]
        return cls(tuple(replace(each, less=run.laps(each)) for each in timings), LEVELS)

    def costs(self, run: LayerRun) -> dict[str, Any]:
        """A layer's entry in model.json, without its name, and with all its seconds."""
        sizes = run.sizes(self.timings[-1].team.samples)
        own = _reach_bytes(sizes)
        found = [
            run.seconds(timing) if own <= level.reach_bytes else None
            for level, timing in zip(self.levels, self.timings, strict=True)
        ]
        return {**(found[-1] or {}), **sizes, _KEY: found}

    def better(self, costs: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
        """The entry of the way that is faster by enough, in a model of any size; bytes are the larger of both.

        What compiled code allocates within is not seen.
        """
        plain_s, compiled_s = (found["forward_s"] + _backward_s(found) for found in (costs, compiled))
        if compiled_s > plain_s * (1 - PAYS):
            return costs
        sizes = {key: max(costs[key], compiled[key]) for key in costs if key.endswith("_bytes") and key in compiled}
        return {**compiled, **sizes, "compiled": True}

    def settle(self, layers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries with the seconds that are right for all of them together."""
        reach = sum(map(_reach_bytes, layers))
        level = next(k for k, level in enumerate(self.levels) if reach <= level.reach_bytes)
        return [{key: value for key, value in {**x, **x[_KEY][level]}.items() if key != _KEY} for x in layers]


def reading(size: int, device: torch.device) -> Callable[[Sequence[Tensor]], None]:
    """Reads so many bytes, and then what has just arrived."""
    if not size:
        return nothing
    scratch = torch.zeros(size, dtype=torch.uint8, device=device)

    def recall(arrived: Sequence[Tensor]) -> None:
        scratch.add_(1)
        for tensor in arrived:
            tensor.sum()

    return recall


def _reach_bytes(entry: dict[str, Any]) -> int:
    """What running a layer forward and backward reads and writes: parameters, gradients, what is stashed or sent."""
    return int(2 * entry["parameter_bytes"] + entry["stash_bytes"] + entry["output_bytes"])


def _backward_s(entry: dict[str, Any]) -> float:
    return float(entry["backward_input_s"] + entry["backward_weight_s"])


def _empty(model: LayeredModel, dtype: torch.dtype, engine: Engine) -> LayerRun:
    """A layer that does nothing."""
    on = Example(Piece("nothing", range(1)), Part.chain((0,), True), torch.zeros(1, dtype=dtype), None)
    modules = [nn.Identity()]
    return LayerRun(trace_layer(model, modules, on, dtype, engine, check=False), modules, on)
