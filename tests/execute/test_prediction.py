"""Predicted weights against formulas written out by hand, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contraflow.executor.basics.training import Training
from contraflow.executor.state.prediction import Predictor
from contraflow.executor.state.versions import StageVersions
from contraflow.executor.state.weights import STATE_NAMES, StageWeights

OPTIONS = Training(lr=0.03, momentum=0.7, betas=(0.8, 0.95), smoothing=0.6, eps=1e-3, weight_decay=0.2)
GRADIENTS = [[1.0, -2.0, 0.5], [0.25, 3.0, -1.0], [-1.5, 0.75, 2.0]]
START = [0.5, -1.0, 2.0]


def stage(optimizer: str, remember: bool = True, masters: bool = False) -> StageWeights:
    """One parameter of three numbers; with `masters` it is a 16-bit copy."""
    module = nn.Module()
    value = torch.tensor(START, dtype=torch.float32 if masters else torch.float64)
    module.p = nn.Parameter(value.bfloat16() if masters else value)
    return StageWeights({0: module}, optimizer, OPTIONS, {"0.p": value} if masters else None, remember=remember)


def trained(weights: StageWeights, steps: int) -> StageWeights:
    """After so many steps."""
    for gradient in GRADIENTS[:steps]:
        weights.zero_gradients()
        weights.accumulators["0.p"].copy_(torch.tensor(gradient))
        weights.step(0.03)
    return weights


def by_hand(optimizer: str, steps: int, first: bool) -> tuple[list[float], list[float]]:
    """(weights, dW) after so many steps, number by number."""
    found = [_number(optimizer, steps, k, first) for k in range(3)]
    return [w for w, _ in found], [d for _, d in found]


def _number(optimizer: str, steps: int, k: int, first: bool) -> tuple[float, float]:
    w, g, b, m, v, square = START[k], 0.0, 0.0, 0.0, 0.0, 0.0
    mu, (beta1, beta2), alpha, eps, decay, rate = 0.7, (0.8, 0.95), 0.6, 1e-3, 0.2, 0.03
    direction = 0.0
    for t, gradients in enumerate(GRADIENTS[:steps], 1):
        g = gradients[k] + (0.0 if optimizer == "adamw" else decay * w)
        if optimizer == "adamw":
            w *= 1 - rate * decay
        b = mu * b + g
        m, v, square = (
            beta1 * m + (1 - beta1) * g,
            beta2 * v + (1 - beta2) * g * g,
            alpha * square + (1 - alpha) * g * g,
        )
        applied = {
            "sgd": g,
            "momentum": b,
            "nesterov": g + mu * b,
            "rmsprop": g / (math.sqrt(square) + eps),
        }
        hat = (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + eps)
        direction = applied.get(optimizer, hat)
        w -= rate * direction
    return w, mu * b + g if first else direction


@pytest.mark.parametrize("optimizer", STATE_NAMES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_smoothed_gradient(optimizer: str, steps: int) -> None:
    """Instead of what the optimizer would apply: the momentum, or Adam's first moment as it is."""
    weights = trained(stage(optimizer), steps)
    value, states = weights.parameters["0.p"], weights.states
    kept = next((states[key]["0.p"] for key in ("momentum_buffer", "exp_avg") if key in states), None)
    direction = weights.last_gradients["0.p"] if kept is None else kept
    found = Predictor(optimizer, OPTIONS, smoothed=True).predict(weights, 0.01, 3)["0.p"]
    assert torch.allclose(found, value - 0.03 * direction, rtol=1e-12)
    assert steps == 0 or not torch.equal(found, value)


@pytest.mark.parametrize("optimizer", STATE_NAMES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_every_optimizer(optimizer: str, steps: int) -> None:
    """W - s * rate * dW, and nothing else has changed; before the first step nothing is known."""
    weights = trained(stage(optimizer), steps)
    before = weights.parameters["0.p"].clone()
    found = Predictor(optimizer, OPTIONS).predict(weights, 0.01, 3)["0.p"]
    now, direction = by_hand(optimizer, steps, first=False)
    assert weights.parameters["0.p"].tolist() == pytest.approx(now, rel=1e-12)
    assert found.tolist() == pytest.approx([w - 3 * 0.01 * d for w, d in zip(now, direction, strict=True)], rel=1e-12)
    assert torch.equal(weights.parameters["0.p"], before)


def test_momentum_looks_ahead_in_the_released_code() -> None:
    """Its direction is what the buffer would be after the last gradient once more."""
    weights = trained(stage("momentum"), 3)
    found = Predictor("momentum", OPTIONS, momentum_first=True).predict(weights, 0.01, 2)["0.p"]
    now, direction = by_hand("momentum", 3, first=True)
    assert found.tolist() == pytest.approx([w - 0.02 * d for w, d in zip(now, direction, strict=True)], rel=1e-12)


def test_what_was_remembered_is_forgotten_with_the_run() -> None:
    """A new run starts without the last gradient."""
    weights = trained(stage("sgd"), 2)
    weights.forget_gradients()
    assert torch.equal(Predictor("sgd", OPTIONS).predict(weights, 1.0, 1)["0.p"], weights.parameters["0.p"])


def test_masters_are_predicted_and_rounded_once() -> None:
    """In mixed precision the passes read 16-bit copies."""
    weights = trained(stage("adam", masters=True), 2)
    found = Predictor("adam", OPTIONS).predict(weights, 0.5, 1)["0.p"]
    now, direction = by_hand("adam", 2, first=False)
    assert found.dtype == torch.bfloat16
    wanted = torch.tensor([w - 0.5 * d for w, d in zip(now, direction, strict=True)], dtype=torch.float32)
    assert torch.equal(found, wanted.bfloat16())


# ---------------------------------------------------------------- versions


def _tensor(parameters: Any) -> Tensor:
    found: Tensor = parameters["0.p"]
    return found


@pytest.mark.parametrize("needed", [True, False])
def test_a_version_is_copied_only_if_somebody_still_reads_it(needed: bool) -> None:
    """The newest stays in place, whatever was copied."""
    weights = stage("sgd")
    versions, place = StageVersions(weights), weights.parameters["0.p"].data_ptr()
    weights.accumulators["0.p"].fill_(1.0)
    versions.replace(keep=needed)
    weights.step(0.1)
    assert _tensor(versions.at(1)).data_ptr() == place
    read: Callable[[], Tensor] = lambda: _tensor(versions.at(0))  # noqa: E731 - read twice
    if needed:
        assert read().tolist() == START
        versions.drop(0)
    with pytest.raises(KeyError):
        read()
