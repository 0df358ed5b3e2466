"""What kernels take on a device of which the data sheet is known: shares of peaks, fitted to published figures.

Every figure that these constants were fitted to, and those that were held out, is in `benchmarks/kernel_figures.json`
with its source; `benchmarks/kernels.py` fits them again and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ...planner.problem import DeviceType


class Work(NamedTuple):
    """What one operator does.

    Attributes:
        flops: a multiplication and an addition are two; 0: none of them are products. bytes: read and written.
        outputs: elements written. attention: of an attention, else None.
    """

    flops: int
    bytes: int
    outputs: int
    attention: Attention | None = None


class Attention(NamedTuple):
    """Shape of an attention: positions, numbers a head, whether half of the scores are left out, and which pass."""

    sequence: int
    head: int
    causal: bool
    backward: bool


Pricing = Callable[[Work], float]
"""Seconds of an operator."""


def flat(flops_per_s: float, bytes_per_s: float) -> Pricing:
    """The longer of arithmetic and memory traffic at one rate each (Williams et al. 2009); a launch is free."""
    return lambda work: max(work.flops / flops_per_s, work.bytes / bytes_per_s)


@dataclass(frozen=True)
class Products:
    """Matrix products of one precision: `first_s + depth * step_s + FLOPs / (share * peak)`.

    The depth is the length of the sums: FLOPs / (2 * outputs). Small and skinny products are slow by the first two.

    Attributes:
        share: of the peak that a large product reaches. first_s: of any product.
        step_s: for every element of a sum, as tiles of the output go through it one after another.
    """

    share: float
    first_s: float
    step_s: float


@dataclass(frozen=True)
class AttentionRates:
    """Fused attention reaches `share * n / (n + half)` of the peak at n positions, less with small heads.

    Attributes:
        forward, backward: share at long sequences, with heads of 128 and more. half, half_causal, half_backward:
            positions at which half of it is reached.
    """

    forward: float
    backward: float
    half: float = 88.0
    half_causal: float = 300.0
    half_backward: float = 250.0


HALF = Products(0.817, 6.47e-6, 0.405e-9)
"""16 bit: 86 products on an H100 in OpenXLA's performance table, 43 of them fitted: 6 % median error on the others."""
TF32 = Products(0.612, 8.53e-6, 3.14e-9)
"""The same table; 8 % on the others."""
FP32 = Products(0.883, 6.47e-6, 20e-9)
"""Outside tensor cores: two products on a P100 (DeepBench)."""
PRODUCTS = {"fp32": FP32, "tf32": TF32, "fp16": HALF, "bf16": HALF}

FLASH_2_HOPPER = AttentionRates(0.376, 0.328)
"""FlashAttention-2, which torch runs, on an H100: bar charts of arXiv:2407.08608, heads of 128."""
FLASH_2_AMPERE = AttentionRates(0.72, 0.62)
"""The same on an A100: 73 % forward and 63 % backward are the most that arXiv:2307.08691 reports."""
_AMPERE = ("A100", "A10-", "A6000", "L40S", "RTX-4090")
"""Kinds whose tensor cores FlashAttention-2 was written for. Of others than H100 and H200 no figure was found: they get
the H100's."""

PRODUCT_SHARE = {"MI300X-192GB": 0.45}
"""Where another share of the 16-bit peak is published: MI300X, 45 % (Ambati and Diep 2025, arXiv:2510.27583)."""
MEMORY_SHARE = 0.82
"""Of the bandwidth: V100 83 % (arXiv:1804.06826), MI300X 81 % (arXiv:2510.27583); a P100's 70 % is held out."""
LAUNCH_S = 3.8e-6
"""The least that a kernel in a stream takes, its launch included: V100, NVIDIA's "Getting Started with CUDA Graphs"."""


def kernel_pricing(device: DeviceType, precision: str, peak_flops: float, bytes_per_s: float) -> Pricing:
    """What operators take on a preset: products and attention by their shapes, all else by bytes, each one kernel.

    Elementwise operators are not fused with each other, nor with products: eager torch does not.
    """
    products = PRODUCTS[precision]
    share = PRODUCT_SHARE.get(device.name, products.share) if products is HALF else products.share
    rates = FLASH_2_AMPERE if device.name.startswith(_AMPERE) else FLASH_2_HOPPER

    def seconds(work: Work) -> float:
        if not work.flops and not work.bytes:
            return 0.0
        if work.attention is not None:
            arithmetic_s = attention_s(work.flops, work.attention, rates, peak_flops)
        elif work.flops:
            depth = work.flops / (2 * max(work.outputs, 1))
            arithmetic_s = products.first_s + depth * products.step_s + work.flops / (share * peak_flops)
        else:
            arithmetic_s = 0.0
        return max(LAUNCH_S, arithmetic_s, work.bytes / (MEMORY_SHARE * bytes_per_s))

    return seconds


def attention_s(flops: int, of: Attention, rates: AttentionRates, peak_flops: float) -> float:
    """Seconds of a fused attention of so many FLOPs, all scores counted; a causal one computes half of them."""
    half = rates.half_backward if of.backward else rates.half_causal if of.causal else rates.half
    reached = (rates.backward if of.backward else rates.forward) * of.sequence / (of.sequence + half)
    small = 0.74 + 0.26 * min(of.head, 128) / 128
    return flops * (0.5 if of.causal else 1.0) / (reached * small * peak_flops)
