"""Analytic profiles: bytes that equal measured ones, FLOPs by the published formulas, presets and their errors."""

from __future__ import annotations

import json
import math
import resource
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from runs import measured
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from contraflow.__main__ import cli
from contraflow.executor.cli.profile import PRECISIONS as OFFERED
from contraflow.executor.measure.analytic import PRECISIONS, analytic_profile
from contraflow.executor.measure.kernels import flat
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.measure.roofline import Roofline
from contraflow.models import cross_entropy, resolve
from contraflow.models.gpt import GPTConfig, gpt
from contraflow.models.llama import LlamaConfig, llama
from contraflow.models.protocol import LayeredModel, LayerSpec
from contraflow.planner.basics.errors import InputError
from contraflow.planner.cli.common import check_devices
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.presets import PRESETS, DeviceType

A100 = PRESETS["A100-80GB"]
COUNTING = DeviceType("counting", 1, memory_bandwidth=math.inf, fp32_flops=1.0)
"""A device on which a FLOP takes a second and memory nothing: its seconds are FLOPs."""


def sizes(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers without their times."""
    return [{key: value for key, value in layer.items() if not key.endswith("_s")} for layer in profile["layers"]]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fp32") for name in ("mlp", "gpt-tiny", "gpt-tiny-dropout", "resnet-tiny", "bert-tiny", "llama-tiny")),
        ("mixtral-tiny", "fp32"),
        *((name, "bf16") for name in ("mlp", "gpt-tiny")),
        *(pytest.param(name, "bf16", marks=pytest.mark.slow) for name in ("bert-tiny", "llama-tiny", "mixtral-tiny")),
    ],
)
def test_bytes_equal_those_of_a_measured_profile(name: str, precision: str) -> None:
    """Parameters, stash, weight stash, output, input, workspace and buffers: every byte of every layer."""
    estimated = analytic_profile(resolve(name), 2, A100, precision)
    found = measured(name, PRECISIONS[precision], 2)
    assert sizes(estimated) == sizes(found)
    assert estimated["edges"] == found["edges"]
    assert estimated["device"] == "A100-80GB"


@cache
def counted(model: str, batch: int) -> list[dict[str, Any]]:
    """FLOPs of the layers of a model of the family, a block being one, as seconds."""
    config: Any
    if model == "gpt":
        config = GPTConfig(blocks=2, width=256, heads=4, sequence=128, vocabulary=1000)
        made = gpt(model, config)
    else:
        config = LlamaConfig(2, 256, 8, 2, hidden=688, sequence=128, vocabulary=1000)
        made = llama(model, config)
    layers: list[dict[str, Any]] = analytic_profile(made, batch, COUNTING, efficiency=1.0, layers="block")["layers"]
    return layers


def test_a_gpt_blocks_flops_are_korthikantis() -> None:
    """24 B s h^2 + 4 B s^2 h forward (arXiv:2205.05198, appendix A); 6 more B s^2 h backward, as scores are made again.

    The two halves of the backward sum to the whole: the weights' is as long as the forward's products with weights,
    the input's as long plus the attention's whole backward.
    """
    batch, s, h = 3, 128, 256
    products, scores = 24 * batch * s * h * h, batch * s * s * h
    block = counted("gpt", batch)[1]
    assert block["forward_s"] == pytest.approx(products + 4 * scores, rel=1e-9)
    assert block["backward_input_s"] == pytest.approx(products + 10 * scores, rel=1e-9)
    assert block["backward_weight_s"] == pytest.approx(products, rel=1e-9)


def test_a_head_and_an_embedding_cost_what_the_vocabulary_asks() -> None:
    """Logits are 2 B s h V FLOPs, and as many twice backward; an embedding multiplies nothing."""
    batch, s, h, vocabulary = 3, 128, 256, 1000
    embedding, *_, head = counted("gpt", batch)
    for key in ("forward_s", "backward_input_s", "backward_weight_s"):
        assert head[key] == pytest.approx(2 * batch * s * h * vocabulary, rel=1e-9)
        assert embedding[key] == 0


def test_a_llama_blocks_flops_count_grouped_queries_and_three_matrices() -> None:
    """Queries and output h x h, keys and values h x (h / 4), gate, up and down h x f; every query head scores."""
    batch, s, h, f = 2, 128, 256, 688
    products = 2 * batch * s * (2 * h * h + 2 * h * h // 4 + 3 * h * f)
    scores = batch * s * s * h
    block = counted("llama", batch)[1]
    assert block["forward_s"] == pytest.approx(products + 4 * scores, rel=1e-9)
    assert block["backward_input_s"] == pytest.approx(products + 10 * scores, rel=1e-9)
    assert block["backward_weight_s"] == pytest.approx(products, rel=1e-9)


def test_convolutions_are_counted_as_torchs_flop_counter_does() -> None:
    """Forward and backward of a ResNet block's layer, against FlopCounterMode on real tensors."""
    model = resolve("resnet-tiny")
    layer = analytic_profile(model, 4, COUNTING, efficiency=1.0)["layers"][1]
    stem, block = (model.layers[k].build() for k in (0, 1))
    x = stem(torch.randn(4, 1, 8, 8)).detach().requires_grad_()
    with FlopCounterMode(display=False) as forward:
        y = block(x)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    assert layer["forward_s"] == forward.get_total_flops()
    total = layer["backward_input_s"] + layer["backward_weight_s"]
    assert total == pytest.approx(backward.get_total_flops(), rel=1e-9)


def taken(*, work: Any, arguments: tuple[Tensor, ...]) -> tuple[int, int]:
    """(FLOPs, bytes) of a function of tensors."""
    with torch.no_grad(), Roofline(flat(1.0, 1.0)) as roofline:
        work(*arguments)
    return roofline.flops, roofline.bytes


@pytest.mark.parametrize(
    ("work", "shapes", "flops", "size"),
    [
        (torch.add, [(8, 4), (8, 4)], 0, 3 * 128),
        (torch.relu, [(8, 4)], 0, 2 * 128),
        (lambda x: x.mul(x), [(8, 4)], 0, 2 * 128),
        (lambda x: x.add_(x.view(4, 8).view(8, 4)), [(8, 4)], 0, 3 * 128),
        (lambda x: x.view(4, 8).transpose(0, 1)[1:].expand(2, 7, 4), [(8, 4)], 0, 0),
        (torch.empty_like, [(8, 4)], 0, 0),
        (lambda x: x.sum(1), [(8, 4)], 0, 128 + 32),
        (torch.mm, [(8, 4), (4, 16)], 2 * 8 * 4 * 16, 128 + 256 + 512),
        (lambda w: nn.functional.embedding(torch.tensor([1, 2]), w), [(1000, 4)], 0, 2 * 32 + 16),
    ],
    ids=["add", "relu", "square", "in place", "views", "empty", "sum", "mm", "embedding"],
)
def test_operators_read_their_inputs_and_write_their_outputs_once(
    work: Any, shapes: list[tuple[int, ...]], flops: int, size: int
) -> None:
    """Bytes in float32: views are free, in-place results are written, an embedding reads its rows alone."""
    assert taken(work=work, arguments=tuple(torch.ones(shape) for shape in shapes)) == (flops, size)


def test_an_operator_takes_the_longer_of_arithmetic_and_memory() -> None:
    """A product of 8x4 and 4x16: 1024 FLOPs and 896 bytes."""
    a, b = torch.ones(8, 4), torch.ones(4, 16)
    for flops_per_s, bytes_per_s, seconds in ((1024.0, 1.0, 896.0), (1.0, 896.0, 1024.0), (512.0, 448.0, 2.0)):
        with Roofline(flat(flops_per_s, bytes_per_s)) as roofline:
            torch.mm(a, b)
        assert roofline.seconds == seconds


@pytest.mark.long
def test_efficiency_scales_times_and_precision_sizes() -> None:
    """Half the efficiency doubles every time; 16 bit halve the parameters; TF32 changes times alone."""
    model = resolve("gpt-small")
    whole, half = (analytic_profile(model, 2, A100, efficiency=share)["layers"] for share in (1.0, 0.5))
    for fast, slow in zip(whole, half, strict=True):
        for key, value in fast.items():
            assert slow[key] == (pytest.approx(2 * value) if key.endswith("_s") else value)
    tf32, bf16 = (analytic_profile(model, 2, A100, precision, 1.0) for precision in ("tf32", "bf16"))
    assert sizes(tf32) == sizes({"layers": whole})
    assert tf32["layers"][1]["forward_s"] < whole[1]["forward_s"]
    for wide, narrow in zip(whole, bf16["layers"], strict=True):
        assert 2 * narrow["parameter_bytes"] == wide["parameter_bytes"]
        assert narrow["stash_bytes"] < wide["stash_bytes"] or wide["name"] == "embedding"  # whose input is integers


def test_a_parameter_tied_within_a_layer_is_counted_once() -> None:
    """As a measured profile counts it."""

    def tied() -> nn.Module:
        first, second = nn.Linear(64, 64), nn.Linear(64, 64)
        second.weight = first.weight
        return nn.Sequential(first, second)

    model = LayeredModel("tied", (LayerSpec("a", tied), LayerSpec("b", partial(nn.Linear, 64, 10))), cross_entropy)
    profile = analytic_profile(LayeredModel("tied", model.layers, cross_entropy, "digits"), 2, A100)
    assert profile["layers"][0]["parameter_bytes"] == 4 * (64 * 64 + 64 + 64)
    assert sizes(profile) == sizes(profile_model(LayeredModel("tied", model.layers, cross_entropy, "digits"), 2))


def test_the_callers_random_state_is_left_alone() -> None:
    """Dropout layers are traced and run on fake tensors, too."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    analytic_profile(resolve("gpt-tiny-dropout"), 1, A100)
    assert torch.equal(before, torch.get_rng_state())


# ---------------------------------------------------------------- at full size, on this machine


def profiled(*arguments: str) -> dict[str, Any]:
    """What `contraflow profile ARGUMENTS --json` prints."""
    result = CliRunner().invoke(cli, ["profile", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.mark.long
def test_seventy_billion_parameters_are_profiled_without_their_memory() -> None:
    """Llama 70B in bfloat16 has 138 GB of parameters; the process grows by less than one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = profiled(
        "llama-70b", "--device", "H100-80GB", "--precision", "bf16", "--layers", "block", "--efficiency", "0.5"
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    layers = content["layers"]
    assert len(layers) == 82
    assert sum(layer["parameter_bytes"] for layer in layers) == 2 * 68_976_648_192
    tokens, h, f = 4096, 8192, 28672
    products, scores = 2 * tokens * (2 * h * h + 2 * h * h // 8 + 3 * h * f), 4 * tokens * tokens * h
    arithmetic_s = (products + scores) / (0.5 * 989.4e12)
    assert arithmetic_s < layers[1]["forward_s"] < 1.25 * arithmetic_s
    assert layers[1]["output_bytes"] == 2 * tokens * h
    ModelGraph.from_dict(content)


def test_a_preset_profile_plans_for_that_preset_alone() -> None:
    """BERT-48 on P100s: another preset in the cluster is refused, with both names."""
    graph = ModelGraph.from_dict(profiled("bert-48", "--device", "P100-16GB", "--micro-batch-size", "4"))
    assert graph.device == "P100-16GB"
    assert sum(layer.parameter_bytes for layer in graph.layers) == 4 * 669_790_012
    clusters = [Cluster.from_dict({"nodes": [{"devices": 4, "device": name}]}) for name in ("P100-16GB", "V100-32GB")]
    check_devices(graph, clusters[0])
    with pytest.raises(InputError, match=r"times of P100-16GB but device 0 of the cluster is V100-32GB"):
        check_devices(graph, clusters[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--device", "A100"),
            "--device A100: unknown; measure on cpu or cuda, or take a preset: A10-24GB, A100-40GB, A100-80GB",
        ),
        (("--device", "V100-32GB", "--precision", "bf16"), "V100-32GB has no bf16; it has fp32, fp16"),
        (("--device", "A100-80GB", "--efficiency", "1.5"), "efficiency must be above 0 and at most 1, got 1.5"),
        (("--efficiency", "0.5"), "--efficiency is for device presets, not for measuring on cpu"),
        (("--precision", "tf32"), "--precision tf32 is for device presets, not for measuring on cpu"),
    ],
)
def test_what_cannot_be_estimated_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, both sides named."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["profile", "mlp-tiny", *arguments], prog_name="contraflow")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_offered_is_what_there_is() -> None:
    """The command line names precisions without importing torch; every preset but the CPU has peaks of some."""
    assert tuple(PRECISIONS) == OFFERED
    for kind in PRESETS.values():
        assert set(kind.peaks()) <= set(PRECISIONS)
        assert (kind.name == "cpu") == (not kind.peaks())
    with pytest.raises(InputError, match="peaks of cpu"):
        analytic_profile(resolve("mlp-tiny"), 1, PRESETS["cpu"])


@pytest.mark.slow
def test_the_example_is_what_its_command_makes() -> None:
    """examples/llama-70b.json: contraflow profile llama-70b --device H100-80GB --precision bf16 --layers block."""
    shipped = json.loads((Path(__file__).parents[2] / "examples" / "llama-70b.json").read_text())
    made = profiled("llama-70b", "--device", "H100-80GB", "--precision", "bf16", "--layers", "block")
    assert _rounded(made) == _rounded(shipped)


def _rounded(content: object) -> object:
    """Without the last digits of sums, which another torch adds up in another order."""
    return json.loads(json.dumps(content), parse_float=lambda digits: f"{float(digits):.12g}")
