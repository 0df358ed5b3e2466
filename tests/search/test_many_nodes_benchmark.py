"""Schemes on many nodes: bounds hold, recomputation saves memory, two groups stand for all."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
schemes: Any = importlib.import_module("many_nodes_schemes")
HERE = schemes.Setting("bert-48", 16, 64, 2.5e9)


@pytest.mark.parametrize("scheme", ["chimera", "pipedream", "pipedream-2bw", "gpipe", "gems", "1f1b"])
def test_no_shape_is_faster_than_its_bound_and_recomputation_saves_memory(scheme: str) -> None:
    for depth in (2, 4, 8):
        found = [schemes.simulated(HERE, scheme, schemes.Shape(depth, 4, again)) for again in (False, True)]
        if None in found:
            continue
        kept, again = found
        assert all(schemes.least_s(HERE, scheme, one.shape) <= one.seconds * (1 + 1e-9) for one in found if one.fits)
        if scheme == "gpipe":  # elsewhere what is later may be out of the way of a sum
            assert kept.seconds < again.seconds
        assert again.peak_bytes <= kept.peak_bytes


def test_two_groups_take_as_long_for_a_sum_as_all_of_them() -> None:
    shape = schemes.Shape(4, 4, False)
    whole = schemes.Setting("bert-48", 8, 32, 2.5e9)  # two groups: nothing is left out
    slower = schemes._groups(HERE, "gpipe", shape, 4).network.reduce_bandwidth
    assert schemes._groups(whole, "gpipe", shape, 2).network.reduce_bandwidth == whole.sums
    assert 1 / slower == pytest.approx((2 * 3 / 4) / (2 * 1 / 2) / HERE.sums)


def test_the_best_shape_is_the_best_of_all() -> None:
    best = schemes.at_best(HERE, "1f1b", (4,))
    every = [
        schemes.simulated(HERE, "1f1b", schemes.Shape(depth, 4, again, even))
        for depth in (2, 4, 8)
        for again in (False, True)
        for even in (False, True)
    ]
    assert best.seconds == min(one.seconds for one in every if one is not None and one.fits)
