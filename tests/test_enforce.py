"""`execute --enforce`: a run ends before an op that has no room, or right after one that took more than was planned."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from async_plans import Async, planned_async
from own_models import chain, plan_of, profiled
from runs import Case, planned, worst_excess
from torch import nn

from contraflow.executor.errors import ExecutionError
from contraflow.executor.launch import execute
from contraflow.models.protocol import LayeredModel
from contraflow.planner.model_graph import Layer
from contraflow.planner.plan import Op, Pipeline, Plan
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.simulate import simulate

SOUND = [
    Case("1f1b", "mlp-tiny", 2, 4),
    Case("gpipe", "mlp-tiny", 2, 4, "adam", "recompute"),
    Case("zb-h1", "mlp-tiny", 3, 5),
    Case("chimera", "mlp-tiny", 2, 4, stash="ship"),
    Case("gpipe", "mlp-tiny", 2, 4, stash="offload"),
    Case("1f1b", "mlp-tiny", 2, 4, stash="odd offload", halves=True),
]


@pytest.mark.parametrize("case", SOUND, ids=lambda case: f"{case.schedule}-{case.stash}")
def test_sound_plans_run_to_the_end(case: Case) -> None:
    """With the losses that they have without."""
    plan = planned(case)
    free, kept = (
        execute(plan, 4, transport="threads", self_check=False, dtype=case.dtype, enforce=enforce)
        for enforce in (False, True)
    )
    assert kept.losses == free.losses
    assert kept.trace.tracked_steps == free.trace.tracked_steps == (0, 1)
    assert max(worst_excess(kept).values()) <= 1


@pytest.mark.parametrize("case", [Async("stash", 2), Async("2bw", 2, 2), Async("spectrain", 2)], ids=str)
@pytest.mark.parametrize("updates", [4, 15])
def test_sound_plans_without_a_flush(case: Async, updates: int) -> None:
    """Runs that are shorter and longer than was planned."""
    plan = planned_async(case)
    free, kept = (
        execute(plan, updates, transport="threads", self_check=False, dtype=case.dtype, enforce=enforce)
        for enforce in (False, True)
    )
    assert kept.losses == free.losses


def ops(text: str) -> list[Op]:
    """A list of ops."""
    return [op_from_text(name) for name in text.split()]


def two_stages(width: int = 16) -> tuple[LayeredModel, Plan]:
    """A small model on two devices."""
    model = chain([partial(nn.Linear, width, width)] * 3, width)
    lists = [ops("0F0 0F1 0B0 0B1"), ops("1F0 1B0 1F1 1B1")]
    return model, plan_of(profiled(model, 4), (Pipeline((0, 1), (0, 1), (0, 1)),), lists)


def with_layers(plan: Plan, change: Callable[[Layer], Layer]) -> Plan:
    """The plan as it would be with other costs."""
    graph = replace(plan.problem.model, layers=tuple(map(change, plan.problem.model.layers)))
    changed = replace(plan, problem=replace(plan.problem, model=graph), forecast=None)
    return changed.with_forecast(simulate(changed).forecast())


def test_a_stash_larger_than_declared() -> None:
    """The run ends right after the op that held it, in the first step."""
    model, plan = two_stages()
    lean = with_layers(plan, lambda layer: replace(layer, stash_bytes=0, weight_stash_bytes=0, workspace_bytes=0))
    steps: list[int] = []
    with pytest.raises(ExecutionError) as caught:
        execute(lean, 3, model, transport="threads", enforce=True, on_step=lambda step, *_: steps.append(step))
    assert not steps
    pattern = (
        r"rank (\d), stage \1, op \1[FB](\d), micro-batch \2, step 0: MemoryExceeded: held (\d+) bytes, (\d+) were"
    )
    rank, _, held, most = map(int, re.match(pattern, str(caught.value)).groups())  # type: ignore[union-attr]
    assert held > most == lean.forecast.peak_bytes[rank]  # type: ignore[union-attr]


@dataclass(frozen=True)
class Leaking:
    """Samples of which a copy is kept from a step on."""

    name: str = "leaking"
    begin: int = 0
    kept: list[torch.Tensor] = field(default_factory=list)

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Dataset`."""
        inputs = torch.ones(size, 16)
        if step >= self.begin:
            self.kept.append(inputs * 2)
        return inputs, torch.zeros(size, dtype=torch.long)


@pytest.mark.parametrize("begin", [2, 5])
def test_a_leak_ends_the_run_where_it_passes(begin: int) -> None:
    """Long after the steps in which memory is followed anyway; an op that has no room is not run."""
    model, plan = two_stages()
    data, steps = Leaking(begin=begin), list[int]()
    with pytest.raises(ExecutionError) as caught:
        execute(
            plan, 40, model, data, transport="threads", enforce=True, self_check=False,
            on_step=lambda step, *_: steps.append(step),
        )  # fmt: skip
    line = str(caught.value)
    pattern = (
        r"rank \d, stage \d, op \S+, micro-batch \d, step (\d+): MemoryExceeded: .* (\d+) bytes, (\d+) were planned"
    )
    step, held, most = map(int, re.match(pattern, line).groups())  # type: ignore[union-attr]
    assert begin <= step == len(steps) <= begin + 4
    assert most < held <= most + 4 * 16 * 4 * 2
    assert "\n" not in line
    assert len(execute(plan, 40, model, Leaking(begin=begin), transport="threads", self_check=False).losses) == 40
