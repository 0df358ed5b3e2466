"""Whole layers on devices: how much the fullest device computes at the least, wherever the layers are."""

from __future__ import annotations

import heapq

import numpy as np

from ..partition import Floats

_SIZES = 8
"""Different pieces, at most, of which an exact model is asked: of more it proves hardly more than the mean."""
_EFFORT = 0.1
"""Deterministic seconds of that model."""
_UNITS = 1 << 20
"""Units that the largest piece is counted in, rounded down."""
_CLOSE = 1e-6
"""What may be gained at the least, for it to be asked."""


def fullest(pieces: Floats, speeds: Floats, exact: bool = True) -> float:
    """No assignment of whole pieces, in seconds at speed 1, to devices of these speeds has a lower greatest load.

    Of k * D + 1 pieces, the largest, some device gets k + 1. Where devices are alike and pieces of a few sizes, an
    `exact` model says more, in a hundredth of a second: 30 layers of 1, one of 0.6 and one of 2.6 on 8 devices take
    4.6, and 4.15 in the mean.
    """
    sizes, fastest = np.sort(pieces)[::-1], float(speeds.max())
    found = float(sizes.sum() / speeds.sum())
    for k in range((len(sizes) - 1) // len(speeds) + 1):
        at = k * len(speeds)
        found = max(found, float(sizes[at - k : at + 1].sum()) / fastest)
    if not exact or (speeds != fastest).any() or len(np.unique(_counted(sizes))) > _SIZES:
        return found
    if _reached(sizes, len(speeds)) / fastest <= found * (1 + _CLOSE):
        return found
    return max(found, _exact(sizes, len(speeds)) / fastest)


def _counted(sizes: Floats) -> Floats:
    return np.floor(sizes * (_UNITS / sizes.max())) if sizes.max() > 0 else sizes


def _reached(sizes: Floats, devices: int) -> float:
    """The fullest device where every piece, the largest first, goes to the emptiest (Graham 1969)."""
    loads = [0.0] * devices
    for size in sizes.tolist():
        heapq.heapreplace(loads, loads[0] + size)
    return max(loads)


def _exact(sizes: Floats, devices: int) -> float:
    """What CP-SAT proves: of pieces rounded down, so valid of these."""
    from ortools.sat.python import cp_model  # loaded when needed

    values, counts = np.unique(_counted(sizes).astype(int), return_counts=True)
    pairs = list(zip(values.tolist(), counts.tolist(), strict=True))
    model = cp_model.CpModel()
    most = model.new_int_var(0, sum(value * count for value, count in pairs), "")
    placed = [[model.new_int_var(0, count, "") for _, count in pairs] for _ in range(devices)]
    loads = [sum(value * taken for (value, _), taken in zip(pairs, row, strict=True)) for row in placed]
    for k, (_, count) in enumerate(pairs):
        model.add(sum(row[k] for row in placed) == count)
    for load in loads:
        model.add(load <= most)
    for load, lighter in zip(loads, loads[1:], strict=False):
        model.add(load >= lighter)
    model.minimize(most)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is for the search
    solver.parameters.max_deterministic_time = _EFFORT
    solver.solve(model)
    return float(max(0.0, solver.best_objective_bound) * sizes.max() / _UNITS)
