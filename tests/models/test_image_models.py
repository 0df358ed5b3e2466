"""The published image networks: their sizes and shapes; and small ones that train as stage programs."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from meta import on_meta, parameter_count
from torch import Tensor, nn
from traced_stages import traced

from contraflow.executor.measure.analytic import analytic_profile
from contraflow.executor.measure.profile import profile_model
from contraflow.models import build_layer, load, resolve
from contraflow.models.inception import Conv, Fork, build, outputs_of
from contraflow.planner.problem.presets import PRESETS


@pytest.mark.parametrize(
    ("name", "layers", "count"),
    [
        ("vgg-16", 16, 138_357_544),  # torchvision, and PipeDream's profile of it
        ("alexnet", 8, 61_100_840),  # the same
        ("resnet-101", 35, 44_549_160),  # the same
        ("googlenet", 13, 6_624_904),  # torchvision, the published weights without auxiliary classifiers
        ("inception-v3", 17, 23_834_568),  # 27,161,264 of torchvision and PipeDream, less 3,326,696 auxiliary ones
    ],
)
def test_published_networks_have_exactly_the_known_number_of_parameters(name: str, layers: int, count: int) -> None:
    """Counted on the meta device, where a chain of their layers also turns images into 1,000 logits."""
    model = resolve(name)
    built = list(on_meta(model).values())
    assert len(built) == layers
    assert parameter_count(model) == count
    assert isinstance(model.data, str)
    x = load(model.data).batch(0, 0, 0, 2)[0].to("meta")
    assert nn.Sequential(*built)(x).shape == (2, 1000)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "vgg-16",
            {"conv1": (64, 112), "conv3": (128, 56), "conv6": (256, 28), "conv9": (512, 14), "conv12": (512, 7)},
        ),
        ("alexnet", {"conv0": (64, 27), "conv1": (192, 13), "conv4": (256, 6)}),
        (
            "googlenet",
            {"conv3": (192, 28), "inception3b": (480, 14), "inception4e": (832, 7), "inception5b": (1024, 7)},
        ),
        ("inception-v3", {"conv4a": (192, 35), "mixed5d": (288, 35), "mixed6a": (768, 17), "mixed7a": (1280, 8)}),
        ("resnet-101", {"stem": (64, 56), "block2": (256, 56), "block6": (512, 28), "block29": (1024, 14)}),
    ],
)
def test_images_shrink_as_the_papers_tables_say(name: str, shapes: dict[str, tuple[int, int]]) -> None:
    """(channels, side) behind layers; pooling belongs to the layer before it, so that the smaller image is sent."""
    model = resolve(name)
    assert isinstance(model.data, str)
    first = load(model.data).batch(0, 0, 0, 1)[0].to("meta")
    outputs = list(accumulate(on_meta(model).values(), lambda x, module: module(x), initial=first))[1:]
    found = {layer.name: tuple(x.shape) for layer, x in zip(model.layers, outputs, strict=True)}
    assert {layer: found[layer] for layer in shapes} == {k: (1, n, side, side) for k, (n, side) in shapes.items()}


def test_a_fork_puts_its_branches_side_by_side() -> None:
    """Nested ones too: the channels are those of the branches in order."""
    steps = (Conv(4), Fork(((Conv(3, 3),), (Conv(2), Fork(((Conv(5, (1, 3)),), (Conv(6, (3, 1)),)))))))
    module = build(steps, 2).eval()
    x = torch.randn(1, 2, 7, 7)
    y = module(x)
    assert outputs_of(steps, 2) == y.shape[1] == 3 + 5 + 6
    assert isinstance(module, nn.Sequential)
    entering: Tensor = module[0](x)
    first = module[1].get_submodule("branches.0")(entering)
    torch.testing.assert_close(y[:, :3], first)


def test_a_small_network_of_modules_is_split_as_eager_torch_computes_it() -> None:
    """F, B, I and W of a layer with branches inside, as a graph (the executor's own check)."""
    model, data = resolve("googlenet-tiny"), load("random-images:1x28/10")
    built = [build_layer(layer, 0, index) for index, layer in enumerate(model.layers)]
    x, target = data.batch(0, 0, 0, 3)
    assert model.loss(nn.Sequential(*built)(x), target).shape == ()
    with torch.no_grad():
        entering = nn.Sequential(*built[:3])(x)
    program = traced(built[3:], [3, 4], entering, model.loss, target)
    program.self_check(built[3:], entering, target)


def test_bytes_of_a_small_vgg_equal_those_of_a_measured_profile() -> None:
    """As for the other families, see test_analytic.py."""
    model, data = resolve("vgg-tiny"), load("random-images:1x28/10")
    estimated = analytic_profile(model, 2, PRESETS["A100-80GB"], data=data)
    measured = profile_model(model, 2, rounds=1, data=data)
    for mine, theirs in zip(estimated["layers"], measured["layers"], strict=True):
        assert [mine[key] for key in mine if key.endswith("_bytes")] == [
            theirs[key] for key in mine if key.endswith("_bytes")
        ]


def test_a_cut_behind_pooling_sends_the_smaller_image() -> None:
    """VGG-16 on a device that is not here: its first two layers keep 224x224 images, the second sends 112x112 ones."""
    layers = analytic_profile(resolve("vgg-16"), 1, PRESETS["A100-80GB"])["layers"]
    assert layers[0]["output_bytes"] == 4 * 64 * 224**2
    assert layers[1]["output_bytes"] == 4 * 64 * 112**2
    assert sum(layer["parameter_bytes"] for layer in layers) == 4 * 138_357_544
    products = 2 * 15_470_264_320
    """Multiplications of one image: 15.5 G (He et al. 2015, table 1 has 15.3 G for the convolutions alone)."""
    arithmetic_s = products / (0.5 * 19.5e12)
    assert arithmetic_s < sum(layer["forward_s"] for layer in layers) < 2 * arithmetic_s
