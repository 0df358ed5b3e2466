"""How fast the annealing of orders judges moves, and what that brings, against another checkout.

A V of two stages a device, layers of uneven costs, six tenths of 1F1B's memory; starts by random rules. Told are the
moves that one annealing without a filling rule judges in a second, as warm as each has its last one, and how far the
best order is above the structure's bound after 1, 2, 4 and 8 seconds of annealing as a race does it, in the mean over
seeds. Seconds are those of the processor, and checkouts take turns. Of a checkout whose annealing runs the whole order
for every move the moves are those it was given; of this one those that were looked at, of which it runs what may be
accepted.

    python benchmarks/moves.py --against /path/to/another/checkout --seeds 3        6 minutes on one core

05b4d2a is the commit from which on moves are judged by their blocks: its parent is the checkout to compare with.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from statistics import mean

import numpy as np
from checkouts import Figures, measured_in
from tables import Table, origin, savable

ROOT = Path(__file__).resolve().parents[1]
SIZES = ((8, 32), (16, 64), (32, 128))
"""Devices and micro-batches."""
SECONDS = (1, 2, 4, 8)
SLICE_S = 0.5
"""One annealing, about."""
SHARE = 1 << 16


def measured_here(seed: int) -> Figures:
    """Of the checkout that `contraflow` is."""
    from contraflow.planner.search import warm

    warm()
    found: Figures = {}
    for devices, batches in SIZES:
        name = f"{devices}x{batches}"
        arm = _arm(devices, batches, seed)
        found[f"{name}: moves/s"] = _rate(arm)
        found |= {f"{name}: {s} s": gap for s, gap in _gaps(arm).items()}
    return found


def _arm(devices: int, batches: int, seed: int):  # type: ignore[no-untyped-def]  # of either checkout
    from contraflow.planner import Cluster, Layer, ModelGraph, Workload
    from contraflow.planner.graph import Candidate
    from contraflow.planner.plan import Pipeline, Problem
    from contraflow.planner.search.orders.arm import arms_of

    rng = random.Random(f"{seed}/{devices}x{batches}")
    layers = [
        Layer(
            f"layer{k}", *(round(cost * rng.uniform(0.8, 1.2)) for cost in (50, 60, 40)), output_bytes=1,
            stash_bytes=SHARE // 2, weight_stash_bytes=SHARE // 4,
        )
        for k in range(2 * devices)
    ]  # fmt: skip
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(devices, devices * SHARE * 3 // 5), Workload(batches))
    route = (*range(devices), *reversed(range(devices)))
    candidate = Candidate(problem, tuple((x.name,) for x in layers), (Pipeline(route, route, tuple(range(batches))),))
    arm = arms_of(candidate, True, seed, 1)[0]
    while arm.order is None:
        arm.start(200, 0.0, np.zeros(1, dtype=np.int64))
    return arm


def _rate(arm) -> float:  # type: ignore[no-untyped-def]
    """Moves judged in a second by one annealing of half a second or more."""
    from contraflow.planner.search.common import ANNEALING
    from contraflow.planner.search.orders import anneal
    from contraflow.planner.search.orders.arrays import scratch

    stop, whole = np.zeros(1, dtype=np.int64), not hasattr(anneal, "promised")
    hot = ANNEALING.hot[-1] * (arm.seconds if whole else float(arm.arrays.load.sum()) / arm.ops)
    moves = 200 if whole else 200 * arm.ops
    while True:
        order, works = arm.order.copy(), [scratch(arm.arrays) for _ in range(1 if whole else 2)]
        began = time.process_time()
        anneal.anneal(arm.arrays, *works, order, moves, hot, ANNEALING.cooled * hot, 0.0, -1.0, arm.state.copy(), stop)
        took = time.process_time() - began
        if took > SLICE_S:
            return (moves if whole else sum(int(work.ran[1]) for work in works)) / took
        moves *= 2


def _gaps(arm) -> dict[int, float]:  # type: ignore[no-untyped-def]
    """Percent above the structure's bound after so many seconds of annealing."""
    stop, used, moves = np.zeros(1, dtype=np.int64), 0.0, 50
    found: dict[int, float] = {}
    while len(found) < len(SECONDS):
        began = time.process_time()
        arm.improve(moves, 0.0, stop)
        took = time.process_time() - began
        used += took
        moves = max(1, round(moves * SLICE_S / max(took, SLICE_S / 8)))
        found |= {s: 100 * (arm.seconds / arm.bound_s - 1) for s in SECONDS if s not in found and used >= s}
    return found


def main() -> int:
    """Prints rates and gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, by turns with this one")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="problems of each size [%(default)s]")
    parser.add_argument("--here", type=int, metavar="SEED", help=argparse.SUPPRESS)
    savable(parser)
    options = parser.parse_args()
    if options.here is not None:
        print(json.dumps(measured_here(options.here)))
        return 0
    trees = [ROOT] if options.against is None else [options.against, ROOT]
    runs: dict[Path, list[Figures]] = {tree: [] for tree in trees}
    for seed in range(options.seeds):
        for tree in trees:
            runs[tree].append(measured_in(tree, __file__, "--here", str(seed)))
            print(f"seed {seed}: {tree}", file=sys.stderr)
    rows = []
    for what in runs[ROOT][0]:
        rate = "moves" in what
        each = [mean(figures[what] for figures in runs[tree]) for tree in trees]
        more = [f"{each[-1] / each[0]:.1f} times" if rate else ""] if len(trees) > 1 else []
        rows.append([what, *(f"{x:,.0f}" if rate else f"{x:.2f}%" for x in each), *more])
    columns = ["size: what", "before", "now", ""] if len(trees) > 1 else ["size: what", "now"]
    table = Table.made(origin(), columns, rows)
    print(table.text())
    if options.save:
        table.save("search/moves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
