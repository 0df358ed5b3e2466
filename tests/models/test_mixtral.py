"""Mixtral: published sizes, experts as a loop over tokens computes them, and what a full expert drops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from meta import on_meta
from torch import Tensor

from contraflow.models import resolve
from contraflow.models.mixtral import CONFIGS, MixtralConfig, Mixture, mixtral


def test_the_large_one_has_the_published_number_of_parameters() -> None:
    """47 billion, of which a token uses 13 (arXiv:2401.04088, abstract); exactly those of the published weights."""
    layers = on_meta(resolve("mixtral-8x7b")).values()
    sizes = [(name, p.numel()) for module in layers for name, p in module.named_parameters()]
    whole, experts = sum(size for _, size in sizes), sum(size for name, size in sizes if "experts" in name)
    assert whole == 46_702_792_704
    config = CONFIGS["mixtral-8x7b"]
    assert whole - experts * (config.experts - config.chosen) // config.experts == 12_879_925_248


def block(capacity: float, experts: int = 8) -> Mixture:
    """Half a block in float64, its router as decided as its experts."""
    torch.manual_seed(3)
    made = Mixture(MixtralConfig(1, 16, 2, 2, hidden=12, sequence=8, experts=experts, capacity=capacity))
    torch.nn.init.normal_(made.router.weight)
    return made.to(torch.float64)


def token_by_token(layer: Mixture, x: Tensor) -> Tensor:
    """Every token alone: its two best experts, weighted by the softmax of their scores."""
    tokens, found, experts = layer.norm(x).flatten(0, 1), [], layer.experts
    for token in tokens:
        scores, chosen = (layer.router.weight @ token).topk(2)
        parts = [
            (F.silu(token @ experts.gate[e]) * (token @ experts.up[e])) @ experts.down[e] * weight
            for e, weight in zip(chosen, scores.softmax(0), strict=True)
        ]
        found.append(sum(parts))
    return x + torch.stack(found).view_as(x)


def test_experts_compute_what_a_loop_over_tokens_does() -> None:
    """Outputs and all gradients, where no expert is full."""
    layer = block(capacity=4.0)
    x, seen = torch.randn(3, 8, 16, dtype=torch.float64), []
    weight = torch.randn_like(x)
    for compute in (layer, lambda x: token_by_token(layer, x)):
        entering = x.clone().requires_grad_()
        y = compute(entering)
        grads = torch.autograd.grad((y * weight).sum(), [entering, *layer.parameters()])
        seen.append((y, *grads))
    for mine, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_full_expert_drops_the_last_choices() -> None:
    """A router without a preference sends all to the same two of 4 experts, which have room for half of the tokens.

    Dropped tokens go around the experts, and no gradient leads through them.
    """
    layer = block(capacity=1.0, experts=4)
    torch.nn.init.zeros_(layer.router.weight)
    x = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    expected = token_by_token(layer, x)
    torch.testing.assert_close(y[0], expected[0])
    assert torch.equal(y[1], x[1])
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad[1], torch.ones_like(grad[1]))


def test_every_first_choice_comes_before_all_second_ones() -> None:
    """The last token's first choice has a place that an earlier token's second one wants."""
    router = block(capacity=1.0, experts=2).router
    with torch.no_grad():
        router.weight.copy_(torch.eye(2, 16))
    x = torch.zeros(4, 16, dtype=torch.float64)
    x[:3, 0] = 1.0
    x[3, 1] = 1.0
    routes = router(x)  # 2 experts, 4 places each: nobody is dropped
    assert routes.tokens.tolist() == [0, 1, 2, 3, 3, 0, 1, 2]
    assert routes.places.tolist() == [[0, 1, 2, 4], [5, 6, 7, 3]]
    assert torch.equal(routes.weights.sum(0), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("capacity", "tokens", "places"), [(1.0, 4096, 1024), (1.25, 10, 4), (4.0, 10, 10), (9.0, 10, 10)]
)
def test_places_are_a_share_of_all_choices(capacity: float, tokens: int, places: int) -> None:
    """Rounded up, and never more than there are tokens."""
    assert MixtralConfig(1, 16, 2, 2, hidden=8, sequence=8, capacity=capacity).places(tokens) == places


def test_more_experts_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="mine: 9 of 8 experts cannot be chosen"):
        mixtral("mine", MixtralConfig(1, 16, 2, 2, hidden=8, sequence=8, chosen=9))
