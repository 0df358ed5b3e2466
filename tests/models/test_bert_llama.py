"""BERT, Llama and Mixtral: the published sizes, the building blocks, and small ones that train as pipelines."""

from __future__ import annotations

import pytest
import torch
from meta import parameter_count
from runs import STEPS, Case, assert_equals_reference, planned
from torch import nn
from traced_stages import traced

from contraflow.executor.run.launch import execute
from contraflow.executor.stage.program import named_buffers, named_parameters
from contraflow.models import build_layer, load, resolve
from contraflow.models.bert import BERTConfig, Head, bert, pretraining_loss
from contraflow.models.data import FIRST, MASK, NOT_MASKED, SEPARATOR, UnknownData, first_segment
from contraflow.models.llama import Attention as RotaryAttention
from contraflow.models.llama import LlamaConfig, RMSNorm, _rotate, llama


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bert-48", 669_790_012),  # Chimera, arXiv:2107.06925, section 4
        ("gpt2-64", 1_389_327_360),  # the same
        ("llama-7b", 6_738_415_616),  # the published weights
        ("llama-13b", 13_015_864_320),
        ("llama-70b", 68_976_648_192),
    ],
)
def test_presets_have_exactly_the_published_number_of_parameters(name: str, count: int) -> None:
    """Counted on the meta device: nothing is allocated."""
    assert parameter_count(resolve(name)) == count


def test_bert_large_is_the_published_one_but_for_its_untied_decoder() -> None:
    """BertForPreTraining has 336,226,108 parameters with decoder and embedding tied."""
    assert parameter_count(resolve("bert-large")) - 30522 * 1024 == 336_226_108


def test_a_block_of_bert_is_torchs_own_post_norm_encoder_layer() -> None:
    """nn.TransformerEncoderLayer with the same weights computes the same."""
    attention, mlp = (build_layer(resolve("bert-tiny").layers[k], 0, k, torch.float64) for k in (1, 2))
    theirs = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, dtype=torch.float64)
    renamed = {
        "self_attn.in_proj_": "0.attention.qkv.",
        "self_attn.out_proj.": "0.attention.out.",
        "linear1.": "1.up.",
        "linear2.": "1.down.",
        "norm1.": "0.norm.",
        "norm2.": "1.norm.",
    }
    block = nn.Sequential(attention, mlp)
    state = {}
    for key in theirs.state_dict():
        old = next(prefix for prefix in renamed if key.startswith(prefix))
        state[key] = block.state_dict()[key.replace(old, renamed[old])]
    theirs.load_state_dict(state)
    x = torch.randn(2, 32, 64, dtype=torch.float64)
    torch.testing.assert_close(block(x), theirs(x))


def test_bert_learns_both_tasks() -> None:
    """The loss is the sum of two means: over the hidden tokens, and over the samples."""
    head = Head(BERTConfig(blocks=1, width=8, heads=1, sequence=8, positions=8, vocabulary=300))
    logits = head(torch.randn(2, 8, 8))
    assert logits.shape == (2 * 8 * 300 + 2 * 2,)
    target = torch.full((2, 9), NOT_MASKED)
    target[0, 3], target[1, 5], target[1, 6] = 65, 66, 67
    target[:, -1] = torch.tensor([1, 0])
    tokens = logits[:-4].view(2, 8, 300).log_softmax(-1)
    follows = logits[-4:].view(2, 2).log_softmax(-1)
    hidden = -(tokens[0, 3, 65] + tokens[1, 5, 66] + tokens[1, 6, 67]) / 3
    torch.testing.assert_close(pretraining_loss(logits, target), hidden - (follows[0, 1] + follows[1, 0]) / 2)


def test_masked_windows_are_two_segments_with_a_fixed_share_hidden() -> None:
    """15 % of the bytes are targets in every window; unmasked tokens are as they were; B follows A half the time."""
    x, target = load("stdlib-masked:128").batch(0, 0, 0, 64)
    assert x.shape == (64, 128)
    assert target.shape == (64, 129)
    end = first_segment(128)
    for place, token in ((0, FIRST), (end - 1, SEPARATOR), (127, SEPARATOR)):
        assert (x[:, place] == token).all()
        assert (target[:, place] == NOT_MASKED).all()
    asked = target[:, :-1] != NOT_MASKED
    assert (asked.sum(1) == round(0.15 * 125)).all()
    assert (x[~asked] != MASK).all()
    assert 0.7 < (x[asked] == MASK).double().mean() < 0.9
    assert (x[asked] == target[:, :-1][asked]).any()
    assert 0.3 < target[:, -1].double().mean() < 0.7
    with pytest.raises(UnknownData, match="stdlib-masked:LENGTH"):
        load("stdlib-masked:4")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rmsnorm_and_its_gradients_are_torchs(dtype: torch.dtype) -> None:
    """The same as nn.RMSNorm, up to rounding."""
    mine, theirs = RMSNorm(16), nn.RMSNorm(16, eps=1e-5)
    mine.weight.data.uniform_(0.5, 2.0)
    theirs.load_state_dict(mine.state_dict())
    x = torch.randn(3, 5, 16, dtype=dtype)
    results = []
    for norm in (mine.to(dtype), theirs.to(dtype)):
        entering = x.clone().requires_grad_()
        result = norm(entering)
        result.backward(torch.linspace(-1, 1, result.numel(), dtype=dtype).view_as(result))
        results.append((result, entering.grad, norm.weight.grad))
    tolerance = 0.05 if dtype == torch.bfloat16 else None
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_rmsnorm_keeps_its_input_and_one_number_a_token() -> None:
    """In bfloat16 too: no float32 copy is stashed, nor held between the halves of the backward."""
    x = torch.randn(2, 8, 64, dtype=torch.bfloat16)
    program = traced([RMSNorm(64).to(torch.bfloat16)], [1], x)
    assert program.stash_bytes == x.nbytes + 2 * 8 * 4
    assert program.weight_stash_bytes == 2 * x.nbytes + 2 * 8 * 4


def test_scores_of_rotated_queries_and_keys_depend_on_their_distance() -> None:
    """The same vectors, moved by 5 positions, meet in the same scalar product."""
    torch.manual_seed(0)
    angles = RotaryAttention(LlamaConfig(1, 32, 2, 2, hidden=8, sequence=16))._angles(torch.empty(1, 16, 32))
    q, k = (_rotate(torch.randn(1, 1, 2, 16).expand(-1, 16, -1, -1), *angles).transpose(1, 2) for _ in range(2))
    scores = q @ k.transpose(2, 3)
    for distance in range(-3, 4):
        same = scores.diagonal(distance, 2, 3)
        torch.testing.assert_close(same, same[..., :1].expand_as(same))
    assert not torch.allclose(scores[..., 0, 1], scores[..., 0, 2])


def test_grouped_queries_share_keys_and_values_and_see_no_future() -> None:
    """Two heads of keys for four of queries; a later token changes nothing before it."""
    layer = build_layer(resolve("llama-tiny").layers[1], 0, 1)
    assert layer.get_parameter("attention.key.weight").shape == (32, 64)
    x = torch.randn(1, 32, 64)
    changed = x.clone()
    changed[:, 20] += 1.0
    before, after = layer(x), layer(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize("name", ["bert-tiny", "llama-tiny", "mixtral-tiny"])
def test_small_ones_learn(name: str) -> None:
    """Twenty steps of Adam bring the loss down."""
    torch.manual_seed(0)
    model = resolve(name)
    assert isinstance(model.data, str)
    modules = nn.Sequential(*(build_layer(layer, 0, index) for index, layer in enumerate(model.layers)))
    optimizer, losses = torch.optim.Adam(modules.parameters(), lr=3e-3), []
    for step in range(20):
        x, target = load(model.data).batch(0, step, 0, 8)
        loss = model.loss(modules(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    "case",
    [
        Case("1f1b", "bert-tiny", 2, 4, "adam"),
        Case("chimera", "bert-tiny", 2, 4, stash="recompute", halves=True),
        pytest.param(Case("1f1b", "llama-tiny", 2, 4, "adam"), marks=pytest.mark.slow),
        Case("chimera", "llama-tiny", 2, 4, stash="recompute", halves=True),
        pytest.param(Case("search", "llama-tiny", 2, 4), marks=pytest.mark.slow),
        Case("1f1b", "mixtral-tiny", 2, 4, "adam", stash="recompute", halves=True),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_plans_of_them_equal_single_process_training(case: Case) -> None:
    """Losses and parameters after five steps on two devices, as threads; measured peaks are within the plan's."""
    check = case.schedule == "1f1b"
    result = execute(planned(case), STEPS, dtype=case.dtype, transport="threads", self_check=check, return_state=True)
    assert_equals_reference(case, result)
    for peak, planned_peak in zip(result.peak_bytes, result.forecast_peak_bytes, strict=True):
        assert peak <= planned_peak


@pytest.mark.parametrize("name", ["bert-tiny", "llama-tiny"])
def test_a_stage_of_several_layers_is_split_as_eager_torch_computes_it(name: str) -> None:
    """F, B, I and W of the last two layers agree with autograd (the executor's own check)."""
    model = resolve(name)
    assert isinstance(model.data, str)
    x, target = load(model.data).batch(0, 0, 0, 2)
    built = [build_layer(layer, 0, index) for index, layer in enumerate(model.layers)]
    with torch.no_grad():
        for module in built[:-2]:
            x = module(x)
    ids = range(len(built) - 2, len(built))
    program = traced(built[-2:], ids, x, model.loss, target)
    program.self_check(built[-2:], x, target)
    assert named_parameters(built[-2:], ids)
    assert all("cos" in key or "sin" in key for key in named_buffers(built[-2:], ids))


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Heads divide the width, shared heads the heads, and every token has a position."""
    with pytest.raises(ValueError, match="not a multiple of 3 heads"):
        bert("x", BERTConfig(1, 64, 3, 8, 8))
    with pytest.raises(ValueError, match="8 positions for 16 tokens"):
        bert("x", BERTConfig(1, 64, 4, 16, 8))
    with pytest.raises(ValueError, match="not a multiple of 2"):
        llama("x", LlamaConfig(1, 63, 3, 1, 8, 8))
    with pytest.raises(ValueError, match="4 heads cannot share 3"):
        llama("x", LlamaConfig(1, 64, 4, 3, 8, 8))
