"""Costs of kernels: by shape, near published figures that they were not fitted to, and as before when asked."""

from __future__ import annotations

import importlib
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from contraflow.executor.measure.kernels import FLASH_2_HOPPER as RATES
from contraflow.executor.measure.kernels import (
    LAUNCH_S,
    PRODUCTS,
    Attention,
    Work,
    attention_s,
    flat,
    kernel_pricing,
)
from contraflow.executor.measure.roofline import Roofline
from contraflow.planner.problem import PRESETS

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
kernels: Any = importlib.import_module("kernels")

H100 = PRESETS["H100-80GB"]
PEAK, BANDWIDTH = 989.4e12, 3.35e12
PRICE = kernel_pricing(H100, "bf16", PEAK, BANDWIDTH)


def product(m: int, n: int, k: int) -> Work:
    return Work(2 * m * n * k, 2 * (m * k + k * n + m * n), m * n)


def reached(work: Work) -> float:
    return work.flops / PRICE(work) / PEAK


def test_large_products_reach_most_of_the_peak_small_and_skinny_ones_little() -> None:
    """8192 cubed four fifths; 256 cubed, and 16 rows of weights read for them, next to nothing."""
    assert 0.78 < reached(product(8192, 8192, 8192)) < 0.82
    assert reached(product(256, 256, 256)) < 0.01
    assert reached(product(16, 8192, 8192)) < 0.06
    assert PRICE(product(16, 8192, 8192)) >= 2 * 8192 * 8192 / BANDWIDTH


def test_nothing_takes_less_than_a_launch_and_what_does_nothing_takes_nothing() -> None:
    """Eight bytes are a kernel; a view is none."""
    assert PRICE(Work(0, 8, 1)) == LAUNCH_S
    assert PRICE(Work(0, 0, 0)) == 0
    with torch.no_grad(), Roofline(PRICE) as roofline:
        torch.ones(8, 4).view(4, 8)
    assert roofline.seconds == LAUNCH_S  # of the ones


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_more_work_never_takes_less(m: int, n: int, k: int) -> None:
    """In any of the three sizes."""
    base = PRICE(product(m, n, k))
    for larger in (product(2 * m, n, k), product(m, 2 * n, k), product(m, n, 2 * k)):
        assert PRICE(larger) >= base


def test_a_causal_attention_is_half_the_arithmetic_but_less_than_twice_as_fast() -> None:
    """As published; long sequences and large heads are better."""
    flops = 10**12
    whole, causal = (attention_s(flops, Attention(2048, 128, cut, False), RATES, PEAK) for cut in (False, True))
    assert 0.5 * whole < causal < whole
    longer = attention_s(flops, Attention(8192, 128, False, False), RATES, PEAK)
    small = attention_s(flops, Attention(2048, 64, False, False), RATES, PEAK)
    assert longer < whole < small


def test_what_torch_runs_is_seen_as_it_is() -> None:
    """Products by their sums, attention by its sequence, heads and mask, forward and backward."""
    seen: list[Work] = []

    def noting(work: Work) -> float:
        seen.append(work)
        return 0.0

    q = torch.randn(2, 4, 32, 16, requires_grad=True)
    with Roofline(noting):
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    found = [work.attention for work in seen if work.attention is not None]
    assert found == [Attention(32, 16, True, False), Attention(32, 16, True, True)]
    seen.clear()
    with torch.no_grad(), Roofline(noting):
        torch.mm(torch.ones(8, 4), torch.ones(4, 16))
    assert [(work.flops / (2 * work.outputs)) for work in seen if work.flops] == [4]


@pytest.mark.parametrize(
    ("kind", "most", "worst"), [("products", 0.08, 0.3), ("attention", 0.07, 0.2), ("memory", 0.16, 0.16)]
)
def test_figures_that_were_held_out_are_met(kind: str, most: float, worst: float) -> None:
    """Median and largest error of seconds."""
    errors = [kernels.ERRORS[kind](figure) for figure in kernels.FIGURES[kind] if not figure["fitted"]]
    assert errors
    assert statistics.median(map(abs, errors)) <= most
    assert max(map(abs, errors)) <= worst


def test_the_constants_are_what_the_figures_give() -> None:
    """Fitted again, within a hundredth."""
    for precision, found in kernels.fitted_again().items():
        used = PRODUCTS[precision]
        assert found == pytest.approx((used.share, used.first_s, used.step_s), rel=0.01)


def test_every_figure_has_a_source() -> None:
    """And names a preset."""
    for kind in (*kernels.ERRORS, "models"):
        for figure in kernels.FIGURES[kind]:
            assert figure["source"] in kernels.FIGURES["sources"]
            assert figure["device"] in PRESETS


def test_one_efficiency_is_the_longer_of_two() -> None:
    """As all costs were before."""
    assert flat(100.0, 10.0)(Work(1000, 50, 1)) == 10
    assert flat(100.0, 10.0)(Work(0, 50, 1)) == 5
