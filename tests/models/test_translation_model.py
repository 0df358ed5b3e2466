"""GNMT as a chain of layers that pass one tensor on, residual LSTMs for sentiment; and that the small ones learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from meta import parameter_counts
from packaged import installed
from torch import Tensor, nn

from contraflow.executor.measure.analytic import analytic_profile
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.stage.engines import Building, build_program
from contraflow.executor.stage.tracing import StageLayers
from contraflow.models import build_layer, load, resolve
from contraflow.models.gnmt import Attention, GNMTConfig, gnmt, translation_loss
from contraflow.models.words import PADDING
from contraflow.planner.problem.presets import PRESETS, DeviceType

SMALL = GNMTConfig(3, 8, 5, 6, 20, False, 0.0, "random-tokens:11x20/6x20")
"""5 words of the source, 6 of the target."""


def built(config: GNMTConfig) -> dict[str, nn.Module]:
    """The layers by name."""
    return {layer.name: build_layer(layer, 0, index) for index, layer in enumerate(gnmt("small", config).layers)}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gnmt-8", 160_671_297),  # MLPerf Training's model, as NVIDIA's apex counts it
        ("gnmt-16", 160_671_297 + 4 * 8_396_800 + 4 * 12_591_104),
    ],
)
def test_gnmt_has_the_known_number_of_parameters(name: str, count: int) -> None:
    """Layer by layer as PipeDream's profiles of both have it; decoder0's attention is normalised, with 1,025 more."""
    counts = parameter_counts(resolve(name))
    assert sum(counts.values()) == count
    depth = (len(counts) - 2) // 2
    assert counts["embedding"] == 33_095_680
    assert [counts[f"encoder{k}"] for k in range(depth)] == [16_793_600, 12_591_104] + [8_396_800] * (depth - 2)
    assert [counts[f"decoder{k}"] for k in range(depth)] == [10_494_976 + 1_025] + [12_591_104] * (depth - 1)
    assert counts["head"] == 33_128_000


def unpacked(layers: dict[str, nn.Module], source: Tensor, target: Tensor) -> Tensor:
    """The same network as encoder and decoder with tensors of their own."""
    table = layers["embedding"].get_submodule
    encoded = layers["encoder0"].get_submodule("lstm")(table("tables.0")(source))[0]
    encoded = layers["encoder1"].get_submodule("lstm")(encoded)[0]
    encoded = encoded + layers["encoder2"].get_submodule("lstm")(encoded)[0]
    first = layers["decoder0"]
    states = first.get_submodule("lstm")(table("tables.1")(target))[0]
    contexts = first.get_submodule("attention")(states, encoded)
    states = layers["decoder1"].get_submodule("lstm")(torch.cat([states, contexts], 2))[0]
    states = states + layers["decoder2"].get_submodule("lstm")(torch.cat([states, contexts], 2))[0]
    logits: Tensor = layers["head"](states)
    return logits


def test_packing_into_one_tensor_changes_nothing() -> None:
    """The chain computes what encoder and decoder do with several tensors between them."""
    layers = built(SMALL)
    tokens = load(SMALL.data).batch(0, 0, 0, 3)[0]
    chained = nn.Sequential(*layers.values())(tokens)
    torch.testing.assert_close(chained, unpacked(layers, tokens[:, :5], tokens[:, 5:]))


def test_the_decoder_sees_the_whole_source_and_no_later_word() -> None:
    """Another source word changes every guess; another target word none before its own."""
    chain = nn.Sequential(*built(SMALL).values())
    tokens = load(SMALL.data).batch(0, 0, 0, 2)[0]
    before = chain(tokens)
    for place in range(5):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 20
        assert (chain(changed) != before).any(2).all()
    changed = tokens.clone()
    changed[:, 5 + 3] = (changed[:, 5 + 3] + 1) % 20
    after = chain(changed)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert (after[:, 3:] != before[:, 3:]).any(2).all()


def test_attention_is_normalised_additive_attention() -> None:
    """softmax over the source of g v/|v| tanh(Wq q + Wk k + b), written as a loop."""
    attention = build_layer(gnmt("small", SMALL).layers[4], 0, 4).get_submodule("attention")
    assert isinstance(attention, Attention)
    states, keys = torch.randn(2, 6, 8), torch.randn(2, 5, 8)
    direction = attention.scale * F.normalize(attention.score, dim=0)
    expected = torch.empty(2, 6, 8)
    for sample in range(2):
        for t in range(6):
            summed = attention.query(states[sample, t]) + attention.key(keys[sample]) + attention.bias
            expected[sample, t] = torch.softmax(summed.tanh() @ direction, 0) @ keys[sample]
    torch.testing.assert_close(attention(states, keys), expected)


def test_padding_is_not_to_be_guessed() -> None:
    """The mean is over words."""
    logits, target = torch.randn(2, 3, 9), torch.tensor([[4, 5, PADDING], [6, PADDING, PADDING]])
    guessed = logits.log_softmax(2)
    expected = -(guessed[0, 0, 4] + guessed[0, 1, 5] + guessed[1, 0, 6]) / 3
    torch.testing.assert_close(translation_loss(logits, target), expected)


def test_an_encoder_without_a_second_layer_is_refused() -> None:
    """Nobody would join the two directions."""
    with pytest.raises(ValueError, match="1 layers of encoder and decoder, at least 2"):
        gnmt("x", GNMTConfig(1, 8, 5, 6, 20, True, 0.0, "verses"))


def test_a_stage_of_gnmt_is_a_graph_that_equals_eager_torch() -> None:
    """Encoder, decoder and head as one stage: F, B, I and W (the executor's own check)."""
    config = replace(SMALL, layers=2)
    model, modules = gnmt("small", config), list(built(config).values())
    x, target = load(config.data).batch(0, 0, 0, 2)
    with torch.no_grad():
        entering = modules[0](x)
    stage = StageLayers(tuple(modules[1:]), tuple(range(1, len(modules))), model.loss, True, "stage", None)
    build_program(stage, entering, target, Building("graph", check_seed=0))


@pytest.mark.long
def test_a_fused_lstm_keeps_its_gates_and_cells() -> None:
    """On a device that is not here: 5 numbers a step, sample and cell in place of oneDNN's reserve; all else equal."""
    steps, size, width = 6, 2, 8
    model = gnmt("small", replace(SMALL, layers=2))
    estimated, measured = (
        {layer["name"]: layer["stash_bytes"] for layer in profile["layers"]}
        for profile in (analytic_profile(model, size, PRESETS["A100-80GB"]), profile_model(model, size, rounds=1))
    )
    x, state = torch.zeros(steps, size, 2 * width), torch.zeros(size, width)
    weights = [p.detach() for p in nn.LSTM(2 * width, width).parameters()]
    kept_here: Tensor = torch.ops.aten.mkldnn_rnn_layer(
        x, *weights, state, state, False, [], 2, width, 1, True, False, False, True
    )[3]
    kept = 4 * 5 * steps * size * width
    assert kept_here.nbytes > kept
    assert estimated["decoder1"] - kept == measured["decoder1"] - kept_here.nbytes
    assert estimated["head"] == measured["head"]


def test_a_fused_lstms_flops_are_those_of_its_products() -> None:
    """2 T B (4 H)(I + H) forward; backward twice that, which I and W each ask for."""
    counting = DeviceType("counting", 1, memory_bandwidth=float("inf"), fp32_flops=1.0)
    model = resolve("residual-lstm")
    layer = analytic_profile(model, 3, counting, efficiency=1.0)["layers"][1]
    assert layer["forward_s"] == 2 * 400 * 3 * 4 * 512 * (512 + 512)
    assert layer["backward_input_s"] == 2 * layer["forward_s"]


@pytest.mark.parametrize(
    ("name", "steps", "batches", "share"),
    [
        ("mlp-fashion", 60, 60, 0.7),
        ("vgg-tiny", 32, 32, 0.85),
        ("alexnet-tiny", 32, 16, 0.9),
        ("inception-tiny", 16, 4, 0.8),
        ("gnmt-tiny-deep", 10, 1, 0.9),
        ("gnmt-tiny", 16, 16, 0.85),
        ("googlenet-tiny", 12, 1, 0.8),
        ("lstm-reviews", 25, 1, 0.6),
    ],
)
def test_small_ones_learn_from_real_data(name: str, steps: int, batches: int, share: float) -> None:
    """Some steps of Adam bring the loss on so many micro-batches of their packages' data down."""
    model = resolve(name)
    assert isinstance(model.data, str)
    data = installed(model.data)
    chain = nn.Sequential(*(build_layer(layer, 0, index) for index, layer in enumerate(model.layers)))
    optimizer, losses = torch.optim.Adam(chain.parameters(), lr=3e-3), []
    for step in range(steps):
        x, target = data.batch(0, step % batches, 0, 16)
        loss = model.loss(chain(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < share * sum(losses[:3])
