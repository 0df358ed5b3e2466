"""Profiles: the documented format, and sums of layers that bound what a stage really needs."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pytest
import torch
from runs import measured
from torch import Tensor, nn
from traced_stages import traced

from contraflow.executor.measure.profile import profile_model
from contraflow.executor.place.memory import StorageTracker
from contraflow.executor.stage.program import named_buffers, named_parameters
from contraflow.models import build_layer, cross_entropy, load, resolve
from contraflow.models.protocol import LayeredModel, LayerSpec
from contraflow.planner.problem.model_graph import ModelGraph


def measured_peaks(name: str, first: int, last: int, size: int) -> tuple[int, int]:
    """Peak bytes of running F and B of layers first .. last-1 as one stage, parameters excluded."""
    model = resolve(name)
    assert isinstance(model.data, str)
    x, target = load(model.data).batch(0, 0, 0, size)
    built = [build_layer(layer, 0, index) for index, layer in enumerate(model.layers)]
    with torch.no_grad():
        for module in built[:first]:
            x = module(x)
    modules, ids = built[first:last], range(first, last)
    ends = last == len(built)
    program = traced(modules, ids, x, model.loss if ends else None, target if ends else None)
    parameters = {key: tensor.detach() for key, tensor in named_parameters(modules, ids).items()}
    buffers = named_buffers(modules, ids)
    sums = {key: torch.zeros_like(tensor) for key, tensor in parameters.items()}
    with StorageTracker([*parameters.values(), *buffers.values(), *sums.values()]) as tracker:
        tracker.track(x)
        if ends:
            tracker.track(target)
        output, stash = program.forward(parameters, buffers, x, target if ends else None)
        forward_peak = tracker.peak_bytes
        grad = torch.ones_like(output)
        del output, x, target
        tracker.reset_peak()
        program.backward(stash, parameters, grad, sums)
    return forward_peak, tracker.peak_bytes


def planned_peaks(layers: list[dict[str, Any]]) -> tuple[int, int]:
    """The same from the layers' profiles, as the planner adds them up."""
    held = sum(layer["stash_bytes"] for layer in layers)
    workspace = max(layer["workspace_bytes"] for layer in layers)
    output = layers[-1]["output_bytes"]
    return held + output + workspace, held + output + layers[0]["input_bytes"] + workspace


@pytest.mark.parametrize(("first", "last"), [(1, 7), (0, 5), (5, 10), (0, 10)])
def test_summed_layers_bound_a_gpt_stages_memory_within_ten_percent(first: int, last: int) -> None:
    """First, middle, last and only stage: F and B peak below the plan, but not far below."""
    profile = measured("gpt-tiny", samples=4)
    planned_forward, planned_backward = planned_peaks(profile["layers"][first:last])
    forward, backward = measured_peaks("gpt-tiny", first, last, size=4)
    assert forward <= planned_forward
    assert backward <= planned_backward
    assert max(planned_forward, planned_backward) <= 1.1 * max(forward, backward)


@pytest.mark.parametrize(("name", "first", "last"), [("resnet-tiny", 1, 4), ("mlp", 1, 5), ("mlp", 3, 7)])
def test_summed_layers_bound_other_stages_memory(name: str, first: int, last: int) -> None:
    """Where neighbours stash the same tensor the sum counts it twice: a bound still, only less tight."""
    profile = measured(name, samples=16)
    planned_forward, planned_backward = planned_peaks(profile["layers"][first:last])
    forward, backward = measured_peaks(name, first, last, size=16)
    assert forward <= planned_forward
    assert backward <= planned_backward


def test_a_profile_is_a_model_graph_the_planner_reads() -> None:
    """The document is JSON of the documented format and survives the planner's validation."""
    profile = json.loads(json.dumps(profile_model(resolve("gpt-tiny"), micro_batch_size=2, rounds=1)))
    assert (profile["format"], profile["version"]) == ("contraflow/model", 1)
    assert (profile["micro_batch_size"], profile["device"]) == (2, "cpu")
    assert profile["edges"][0] == ["embedding", "block0.attention"]
    head = profile["layers"][-1]
    assert head["output_bytes"] == 0
    assert head["parameter_shapes"] == [[64], [64], [256, 64]]
    assert head["parameter_bytes"] == 4 * (64 + 64 + 256 * 64)
    block = profile["layers"][1]
    assert block["input_bytes"] == block["output_bytes"] == 2 * 32 * 64 * 4
    parts = ("forward_s", "backward_input_s", "backward_weight_s")  # one round of one block may be lost in noise
    assert all(sum(layer[part] for layer in profile["layers"]) > 0 for part in parts)
    assert min(layer[part] for layer in profile["layers"] for part in parts) >= 0
    assert profile["layers"][0]["backward_input_s"] == 0
    graph = ModelGraph.from_dict(profile)
    assert len(graph.layers) == 10


@pytest.mark.long
def test_layers_alike_are_measured_once() -> None:
    """A deep model costs no more to profile than its distinct layers; other attributes are other layers."""
    messages: list[str] = []
    profile = profile_model(resolve("gpt-tiny"), micro_batch_size=1, rounds=1, on_progress=messages.append)
    assert [message.endswith("(measured)") for message in messages] == [True, True, True, *[False] * 6, True]
    first, second = profile["layers"][1:5:2]
    assert {**first, "name": ""} == {**second, "name": ""}

    slopes = (0.1, 0.2, 0.2, 0.2)
    leaky = [LayerSpec(f"leaky{i}", partial(nn.LeakyReLU, slope)) for i, slope in enumerate(slopes)]
    messages.clear()
    model = LayeredModel("leaky", (*resolve("mlp-tiny").layers[:1], *leaky), cross_entropy, "digits")
    profile_model(model, micro_batch_size=1, rounds=1, on_progress=messages.append)
    assert [message.endswith("(measured)") for message in messages] == [True, True, True, False, True]


def test_batchnorm_statistics_are_buffers_and_not_stash() -> None:
    """Two statistics a channel and a counter: 8 channels make 72 bytes."""
    stem = measured("resnet-tiny")["layers"][0]
    assert stem["buffer_bytes"] == 2 * 8 * 4 + 8


def test_bad_arguments_are_value_errors() -> None:
    """No data, no samples."""
    with pytest.raises(ValueError, match="below 1"):
        profile_model(resolve("mlp-tiny"), micro_batch_size=0)
    model = LayeredModel("bare", resolve("mlp-tiny").layers, cross_entropy)
    with pytest.raises(ValueError, match="'bare' names no data"):
        profile_model(model, micro_batch_size=1)


class Slow:
    """Digits, 5 ms a micro-batch."""

    name = "slow"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """The same at any time."""
        time.sleep(0.005)
        return load("digits").batch(seed, step, micro_batch, size)


def test_the_first_layer_draws_the_samples() -> None:
    """And no other one; a rank draws them as it comes to its forward."""
    model = resolve("mlp-tiny")
    with_samples, without = (
        ModelGraph.from_dict(profile_model(model, 4, rounds=1, data=Slow(), drawing=drawing))
        for drawing in (True, False)
    )
    assert with_samples.layers[0].forward_s > 0.005
    assert all(layer.forward_s < 0.005 for layer in (*with_samples.layers[1:], *without.layers))
