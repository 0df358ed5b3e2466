"""A user's function makes all layers in one call, and every layer is its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import users_models
from torch import nn

from contraflow.models import LayeredModel, build_layer, registry, resolve
from contraflow.models.once import kept
from contraflow.models.protocol import build_shapes

CALLS: list[int] = []


def model() -> list[nn.Module]:
    """Two layers that share a weight, and one that cannot be copied."""
    CALLS.append(1)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    locked = nn.Linear(4, 4)
    locked.lock = threading.Lock()
    return [first, second, locked]


def copyable() -> list[nn.Module]:
    """The first two."""
    return model()[:2]


def drawing() -> LayeredModel:
    """A chain whose width is drawn."""
    width = int(torch.randint(2, 1000, ()))
    return LayeredModel(f"drawn-{width}", users_models.chain(users_models.Drawn).layers, users_models.loss)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Finds a function of this file."""
    functions = {"copyable": copyable, "model": model, "drawing": drawing}
    monkeypatch.setattr(registry, "_import", lambda name: functions[name.partition(":")[2]])
    CALLS.clear()
    return lambda name, seed=0: resolve(f"own:{name}", seed)


def test_one_call_gives_shapes_and_values_of_all_layers(own: Any) -> None:
    """Where they are kept; layers that are built twice are equal and not the same, and other seeds are other calls."""
    with kept():
        found = own("copyable", 3)
        assert len(found.ties) == 1
        assert all(p.is_meta for spec in found.layers for p in build_shapes(spec).parameters())
        built = [build_layer(spec, 3, k) for k, spec in enumerate(found.layers)]
        again = build_layer(found.layers[0], 3, 0)
        assert len(CALLS) == 1
        assert torch.equal(built[0].weight, built[1].weight)
        assert torch.equal(built[0].weight, again.weight)
        assert len({p.data_ptr() for module in (*built, again) for p in module.parameters()}) == 5
        other = build_layer(found.layers[0], 4, 0)
        assert not torch.equal(other.weight, again.weight)
    assert len(CALLS) == 2
    assert torch.equal(build_layer(found.layers[0], 3, 0).weight, again.weight)
    assert len(CALLS) == 3


def test_layers_that_cannot_be_copied_are_made_again_with_the_same_values(own: Any) -> None:
    """By a call of the function for each, as their shapes are."""
    with kept():
        found = own("model")
        first, second = (build_layer(found.layers[2], 0, 2) for _ in range(2))
    assert first is not second
    assert torch.equal(first.weight, second.weight)
    assert build_shapes(found.layers[2]).weight.is_meta


def test_what_a_layered_model_s_function_draws_is_the_same_under_every_seed(own: Any) -> None:
    """It says what the model is, not where training starts."""
    assert own("drawing", 0).name == own("drawing", 1).name
