"""Parallel plans that users' models bring: every style against one device, and what cannot be divided says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import parallel_model
import pytest
import styled_layers
import torch
from styled_layers import TEAM, WIDTH, Pair, Words
from torch import nn
from torch.distributed.tensor import Partial, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from contraflow.models import LayerSpec, UnknownModel, build_layer, resolve
from contraflow.models.lanes import Lane, NoParallelForm


def test_every_style_computes_what_one_device_does(tmp_path: Path) -> None:
    """Outputs and gradients of layers in float64, on every lane."""
    for lane in styled_layers.run(tmp_path):
        assert lane.keys() == styled_layers.WHOLE.keys()
        for name, found in lane.items():
            assert len(found) > 4
            for key, (expected, got) in found.items():
                torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12, msg=f"{name}: {key}")


class Own(ColwiseParallel):
    """A style of somebody's own."""


class Tied(nn.Module):
    """One weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.b.weight = self.a.weight


REFUSED: list[tuple[Callable[[], nn.Module], Any, str]] = [
    (Pair, {"middle": ColwiseParallel()}, "its parallel plan names 'middle', which none of its modules is"),
    (Pair, {"up": Own()}, "Own of 'up': not executed; ColwiseParallel, Row.*, PrepareModuleInputOutput are"),
    (Pair, {"up": "columns"}, "'up' is given 'columns', which is no ParallelStyle"),
    (
        Pair,
        {"up": ColwiseParallel(), "u*": RowwiseParallel()},
        "RowwiseParallel of 'up', which has ColwiseParallel already",
    ),
    (Pair, {"mix": ColwiseParallel()}, "ColwiseParallel of 'mix': it takes Linear and Embedding, not Mix"),
    (Pair, {"up": ColwiseParallel(output_layouts=Partial())}, "ColwiseParallel of 'up': a layout P.* is not executed"),
    (
        Pair,
        {"down": RowwiseParallel(output_layouts=Shard(-1))},
        "RowwiseParallel of 'down': its output cannot be cut along its last",
    ),
    (Words, {"out": ColwiseParallel()}, "ColwiseParallel of 'out': 5 output features cannot be divided among a team"),
    (Tied, {"a": ColwiseParallel()}, "its b.weight is the same parameter as one that its parallel plan cuts"),
    (
        Tied,
        {"a": ColwiseParallel(), "b": RowwiseParallel()},
        "RowwiseParallel of 'b': its weight is cut along dimension 0 elsewhere, here along 1",
    ),
]


@pytest.mark.parametrize(("build", "plan", "text"), REFUSED)
def test_what_a_plan_cannot_do_names_layer_module_and_style(
    build: Callable[[], nn.Module], plan: Any, text: str
) -> None:
    with pytest.raises(NoParallelForm, match=f"layer 'mine': {text}") as caught:
        build_layer(LayerSpec("mine", build, parallel_plan=plan), 0, 0, lane=Lane(TEAM))
    assert "\n" not in str(caught.value)


def test_a_plan_of_all_layers_is_checked_where_the_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns match part by part, and what matches nothing is refused whatever the plan is for."""
    found = {spec.name: dict(spec.parallel_plan or {}) for spec in resolve("parallel_model:build").layers}
    assert [*found["block1.attention"]] == [*found["block0.attention"]]
    assert set(found["block0.mlp"]) == {"inner.gate", "inner.up", "inner.down"}
    assert set(found["words"]) == {""}
    for plan, text in [
        ({"b*.inner.up": ColwiseParallel()}, r"parallel_plan: 'b\*.inner.up' matches no module of the layers words"),
        ({"head": 3}, "parallel_plan: 'head' is given 3, which is no ParallelStyle"),
        ([], "parallel_plan: a list, not styles by the paths of modules"),
        ({"head.out": ColwiseParallel(), "h*.out": ColwiseParallel()}, "layer 'head': 'out' is named twice"),
    ]:
        monkeypatch.setattr(parallel_model.build, "parallel_plan", plan)
        with pytest.raises(UnknownModel, match=text):
            resolve("parallel_model:build")
