"""Analytic costs beside published figures: of kernels, fitted and held out, and of whole transformers.

    python benchmarks/kernels.py [--save]

The figures, each with its source, are in benchmarks/kernel_figures.json. Errors are of seconds: ours / published - 1.
The efficiency of a model's block is its arithmetic, all scores counted, over its seconds times the peak; published ones
are of whole runs, with embedding, head, optimizer, messages and bubbles.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator
from functools import partial
from math import prod
from typing import Any

import tables

from contraflow.executor.measure import analytic_profile
from contraflow.executor.measure.kernels import (
    FLASH_2_HOPPER,
    MEMORY_SHARE,
    PRODUCTS,
    Attention,
    Work,
    attention_s,
    kernel_pricing,
)
from contraflow.models import LayeredModel, cross_entropy, resolve
from contraflow.models.attention import blocks
from contraflow.models.gpt import MLP, GPTConfig, SelfAttention
from contraflow.models.protocol import LayerSpec
from contraflow.planner.problem import PRESETS

FIGURES: dict[str, Any] = json.loads((tables.ROOT / "benchmarks" / "kernel_figures.json").read_text())
KERNELS = ("kernels", "figures", "median error", "from", "to")
MODELS = ("model", "device", "block, ours", "at efficiency 0.5", "published", "of")


def product_error(figure: dict[str, Any]) -> float:
    """Of a matrix product."""
    device, precision = PRESETS[figure["device"]], figure["precision"]
    outputs = figure["batch"] * figure["m"] * figure["n"]
    work = Work(2 * outputs * figure["k"], 0, outputs)
    ours = kernel_pricing(device, precision, device.peaks()[precision], 1e30)(work)
    return ours * figure["tflops"] * 1e12 / work.flops - 1


def attention_error(figure: dict[str, Any]) -> float:
    """Of an attention; half of a causal one is counted, as published."""
    of = Attention(figure["sequence"], figure["head"], figure["causal"], figure["backward"])
    counted, peak = 10**12, PRESETS[figure["device"]].peaks()["bf16"]
    ours = attention_s(counted * (2 if of.causal else 1), of, FLASH_2_HOPPER, peak)
    return ours * figure["tflops"] - 1


def memory_error(figure: dict[str, Any]) -> float:
    """Of what streams through memory."""
    return float(figure["share"]) / MEMORY_SHARE - 1


ERRORS = {"products": product_error, "attention": attention_error, "memory": memory_error}


def kernel_rows() -> Iterator[list[str]]:
    """Groups of figures of one kind, device and use."""
    for kind, error in ERRORS.items():
        groups: dict[tuple[str, str, str], list[float]] = {}
        for figure in FIGURES[kind]:
            detail = {"products": "precision", "attention": "head"}.get(kind)
            name = kind if detail is None else f"{kind}, {detail} {figure[detail]}"
            use = "fitted" if figure["fitted"] else "held out"
            groups.setdefault((name, figure["device"], use), []).append(error(figure))
        for (name, device, use), found in groups.items():
            middle = statistics.median(map(abs, found))
            ends = (f"{min(found):+.0%}", f"{max(found):+.0%}")
            yield [f"{name}, {device}, {use}", str(len(found)), f"{middle:.1%}", *ends]


def fitted_again() -> dict[str, tuple[float, ...]]:
    """Share, first and step seconds of 16-bit and TF32 products, least squares of logarithms over what is fitted."""
    import numpy as np
    from scipy.optimize import least_squares

    found = {}
    for precision in ("bf16", "tf32"):
        mine = [f for f in FIGURES["products"] if f["precision"] == precision and f["fitted"]]
        k = np.array([f["k"] for f in mine])
        flops = 2 * k * np.array([f["batch"] * f["m"] * f["n"] for f in mine])
        seconds = flops / (1e12 * np.array([f["tflops"] for f in mine]))
        peak = PRESETS["H100-80GB"].peaks()[precision]

        def residuals(x: Any, k: Any = k, flops: Any = flops, seconds: Any = seconds, peak: float = peak) -> Any:
            return np.log((x[1] * 1e-6 + x[2] * 1e-9 * k + flops / (x[0] * peak)) / seconds)

        share, first, step = least_squares(residuals, [0.8, 5.0, 0.5], bounds=(1e-3, 100)).x
        found[precision] = (float(share), float(first) * 1e-6, float(step) * 1e-9)
    return found


def block_share(model: LayeredModel, device: str, size: int, arithmetic: float, efficiency: float | None) -> float:
    """Arithmetic of the first block, over its seconds times the 16-bit peak."""
    kind = PRESETS[device]
    layer = analytic_profile(model, size, kind, "bf16", efficiency, layers="block")["layers"][1]
    seconds = layer["forward_s"] + layer["backward_input_s"] + layer["backward_weight_s"]
    weights = sum(prod(shape) for shape in layer["parameter_shapes"] if len(shape) > 1)
    return (weights * 6 + arithmetic) * size / (seconds * (kind.flops or 0.0))


def shares(model: LayeredModel, device: str, size: int, sequence: int, width: int) -> list[str]:
    """By kernels, and at one efficiency."""
    scores = 12 * sequence * width
    ways = (None, 0.5)
    return [f"{sequence * block_share(model, device, size, scores, way):.1%}" for way in ways]


def inner(figure: dict[str, Any]) -> LayeredModel:
    """Two blocks of a GPT behind an embedding of few words."""
    from contraflow.models.gpt import Embedding

    config = GPTConfig(2, figure["width"], figure["heads"], figure["sequence"])
    made = blocks(2, partial(SelfAttention, config), partial(MLP, config))
    layers = (LayerSpec("embedding", partial(Embedding, config)), *made)
    return LayeredModel(figure["name"], layers, cross_entropy, f"stdlib:{config.sequence}")


def model_rows() -> Iterator[list[str]]:
    """Blocks of published models, and of Llama."""
    for figure in FIGURES["models"]:
        device, size = figure["device"], figure["micro_batch_size"]
        ours = shares(inner(figure), device, size, figure["sequence"], figure["width"])
        yield [figure["name"], device, *ours, f"{figure['share']:.1%}", figure["what"]]
    for name, device in (("llama-70b", "H100-80GB"), ("llama-13b", "A100-40GB")):
        width = {"llama-70b": 8192, "llama-13b": 5120}[name]
        ours = shares(resolve(name), device, 1, 4096, width)
        yield [name, device, *ours, "", ""]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables.savable(parser)
    given = parser.parse_args()
    made = tables.origin()
    everything: dict[str, tuple[Iterable[str], list[list[str]]]] = {
        "kernels": (KERNELS, list(kernel_rows())),
        "kernel-models": (MODELS, list(model_rows())),
    }
    for precision, found in fitted_again().items():
        print(f"{precision}: fitted again {found}, used {PRODUCTS[precision]}")
    for name, (columns, rows) in everything.items():
        table = tables.Table.made(made, list(columns), rows)
        print(table.text(), end="\n\n")
        if given.save:
            table.save(name)


if __name__ == "__main__":
    main()
