"""GPT-2 and BERT-48 on up to 2,048 nodes: Chimera's comparison (Li, Hoefler 2021, arXiv:2107.06925) in two tables.

*As published*: every scheme in the depth, width and recomputation of the paper's figure, stages of equally many blocks,
unfused attention. What costs here do not contain is one number, the bandwidth of a gradient sum: it is calibrated once,
on all ratios together. *Each at its own best*: depth, width, micro-batch size, cut and recomputation are free for
every scheme, and for plan().

    python benchmarks/many_nodes.py --published
    python benchmarks/many_nodes.py --best --model gpt2-64 --nodes 2048 --time-limit 60
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import tables
from many_nodes_schemes import GIB, Outcome, Setting, Shape, at_best, model, simulated

from contraflow.planner import SearchSpace, Workload, check, plan
from contraflow.planner.search import warm
from contraflow.planner.search.common import fits

FIGURE = {
    "chimera": (Shape(32, 1, False), 1.0),
    "pipedream": (Shape(8, 1, True), 2.01),
    "pipedream-2bw": (Shape(16, 1, True), 1.16),
    "gpipe": (Shape(8, 1, True), 1.42),
    "gems": (Shape(8, 1, False), 2.34),
    "1f1b": (Shape(16, 1, True), 1.38),
}
"""GPT-2 on 2,048 nodes: shapes and how much longer than Chimera's a mini-batch takes (published; 1f1b: DAPPLE)."""
SUMS = (10e9, 7e9, 5e9, 3.5e9, 2.5e9, 1.75e9, 1.25e9)
"""Bandwidths of a gradient sum that the calibration tries, in bytes/s."""
SIZES = {"gpt2-64": (1, 2, 4), "bert-48": (4, 8, 16, 32)}
EACH = {"gpt2-64": 1, "bert-48": 16}
"""Samples of a mini-batch for each node."""
NODES = {"gpt2-64": (512, 1024, 2048), "bert-48": (16, 32, 64)}


def setting(name: str, nodes: int, sums: float) -> Setting:
    """The paper's weak scaling: a mini-batch grows with the nodes."""
    return Setting(name, nodes, EACH[name] * nodes, sums)


def ratios(sums: float) -> dict[str, Outcome]:
    """Every scheme of the figure with gradient sums of this bandwidth."""
    found = {}
    for scheme, (shape, _) in FIGURE.items():
        outcome = simulated(setting("gpt2-64", 2048, sums), scheme, shape)
        assert outcome is not None
        found[scheme] = outcome
    return found


def error(found: dict[str, Outcome]) -> float:
    """Mean distance of the ratios from the published ones, in logarithms."""
    base = found["chimera"].seconds
    others = [s for s in FIGURE if s != "chimera"]
    return sum(abs(math.log(found[s].seconds / base / FIGURE[s][1])) for s in others) / len(others)


def published(save: bool) -> None:
    """The calibration, and the figure with what it gives."""
    every = {sums: ratios(sums) for sums in SUMS}
    best = min(every, key=lambda sums: error(every[sums]))
    lines = []
    for sums, found in every.items():
        base = found["chimera"].seconds
        cells = [f"{found[s].seconds / base:.2f}" for s in FIGURE if s != "chimera"]
        lines.append([f"{sums / 1e9:g}", f"{base:.3f}", *cells, f"{error(found):.3f}"])
    titles = ["GB/s of a sum", "chimera, s", *(s for s in FIGURE if s != "chimera"), "mean abs. log error"]
    calibration = tables.Table.made(tables.origin(), titles, lines)
    found, base, rows = every[best], every[best]["chimera"].seconds, []
    for scheme, (shape, theirs) in FIGURE.items():
        mine, kept = found[scheme], simulated(setting("gpt2-64", 2048, best), scheme, replace(shape, recompute=False))
        assert kept is not None
        ratio = mine.seconds / base
        rows.append([
            scheme, str(mine), f"{mine.seconds:.3f}", f"{ratio:.2f}", f"{theirs:.2f}", f"{ratio / theirs:.2f}",
            f"{mine.peak_bytes / GIB:.1f}", f"{kept.peak_bytes / GIB:.1f}",
        ])  # fmt: skip
    shown = ["scheme", "shape", "s a mini-batch", "over chimera", "published", "ours / published", "peak, GiB",
             "stashes kept, GiB"]  # fmt: skip
    table = tables.Table.made(tables.origin(), shown, rows)
    print(calibration.markdown(), table.markdown(), sep="\n\n")
    if save:
        calibration.save("many-nodes/calibration")
        table.save("many-nodes/published")


def best(given: argparse.Namespace) -> Iterator[list[str]]:
    """A row for every scheme at its own best, and for plan() with and without a flush."""
    for nodes in given.nodes or NODES[given.model]:
        here = setting(given.model, nodes, given.sums * 1e9)
        base: float | None = None
        for scheme in given.schemes:
            print(f"{nodes} nodes: {scheme}", file=sys.stderr, flush=True)
            found = at_best(here, scheme, SIZES[given.model])
            if found is None:
                yield [f"{given.model}, {nodes} nodes: {scheme}", "-", "-", "does not fit", "-"]
                continue
            base = found.seconds if base is None else base
            shape = f"{found}, {'equal blocks' if found.shape.even else 'least load'}"
            peak = f"{found.peak_bytes / GIB:.1f}"
            yield [
                f"{given.model}, {nodes} nodes: {scheme}", f"{found.seconds:.3f}", f"{found.seconds / base:.2f}",
                shape, peak,
            ]  # fmt: skip
        if given.time_limit:
            yield planned(here, given, base)


def planned(here: Setting, given: argparse.Namespace, base: float | None) -> list[str]:
    """plan() on all nodes, with the best micro-batch size."""
    best: tuple[float, list[str]] | None = None
    for size in given.sizes or SIZES[here.model]:
        workload = Workload(here.mini_batch // size, "adam")
        found = plan(model(here.model, size), here.cluster(), workload, SearchSpace(), given.time_limit, workers=1)
        if found.plan is None or found.plan.forecast is None:
            continue
        if len(found.plan.orders) <= 64:
            assert not check(found.plan)
        assert fits(found.plan)
        step = found.plan.forecast.step_s
        groups = len({frozenset(p.forward) for p in found.plan.pipelines})
        if best is None or step < best[0]:
            best = step, [
                f"{groups} x {here.nodes // groups}, micro-batches of {size}, {len(found.plan.stages)} stages: "
                f"{found.plan.provenance.source}; bound {found.bound_s:.3f}",
                f"{max(found.plan.forecast.peak_bytes) / GIB:.1f}",
            ]  # fmt: skip
    name = f"{here.model}, {here.nodes} nodes: plan()"
    if best is None:
        return [name, "-", "-", "no plan", "-"]
    return [name, f"{best[0]:.3f}", "-" if base is None else f"{best[0] / base:.2f}", *best[1]]


def main() -> int:
    """Prints the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true", help="the paper's own configurations")
    parser.add_argument("--best", action="store_true", help="each scheme at its own best")
    parser.add_argument("--model", choices=tuple(SIZES), default="gpt2-64")
    parser.add_argument("--nodes", type=int, nargs="+")
    parser.add_argument("--schemes", nargs="*", choices=tuple(FIGURE), default=tuple(FIGURE), help="of --best")
    parser.add_argument("--sizes", type=int, nargs="+", help="micro-batch sizes of plan()")
    parser.add_argument("--sums", type=float, default=3.5, help="GB/s of a gradient sum, as calibrated")
    parser.add_argument("--time-limit", type=float, default=0.0, help="seconds of plan() a micro-batch size; 0: none")
    tables.savable(parser)
    given = parser.parse_args()
    if given.published:
        published(given.save)
    if given.best:
        warm()
        titles = ["instance", "s a mini-batch", "over chimera", "shape", "peak, GiB"]
        table = tables.Table.made(tables.origin(), titles, list(best(given)))
        print(table.markdown())
        if given.save:
            table.save("many-nodes/best")
    return 0


if __name__ == "__main__":
    sys.exit(main())
