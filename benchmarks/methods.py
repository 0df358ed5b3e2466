"""Methods without a flush beside each other, planned: eight full models, and where transferring stashes slows whom.

    python benchmarks/methods.py --models --devices 4      samples a second and memory, every model with every method
    python benchmarks/methods.py --transfer                PipeDream with transfer, and PipeFB, over links and memory
    python benchmarks/methods.py --figure transfer.png     draws what --transfer has saved

The first plans the networks of PipeOptim's evaluation (arXiv:2312.00839) with analytic costs on V100s. The second asks
for the claim of the paper that separates forward and backward nodes: that PipeDream slows where its stashes must go to
the host and come back, and that PipeFB, whose stashes go on to another device, hardly does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import tables
from structure_cases import analytic

from contraflow.planner import Cluster, Link, ModelGraph, Plan, SearchSpace, Workload, check, plan
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.search import warm

V100 = PRESETS["V100-16GB"]
GIB = 1 << 30
MODELS = {
    "alexnet": 128, "vgg-16": 32, "resnet-101": 32, "googlenet": 64, "inception-v3": 32, "gnmt-8": 64, "gnmt-16": 64,
    "residual-lstm": 64,
}  # fmt: skip
"""Full models and samples of a micro-batch."""
PLAIN = {"offload": False, "recompute": False}
METHODS = {
    "synchronous": (SearchSpace(), None),
    "pipedream, as published": (SearchSpace("pipedream", **PLAIN), 1),  # type: ignore[arg-type]
    "pipedream": (SearchSpace(asynchronous=("stash",)), 1),
    "pipefb": (SearchSpace("pipefb"), 1),
    "2bw": (SearchSpace(asynchronous=("2bw",)), 0),
    "spectrain": (SearchSpace(asynchronous=("spectrain",)), 1),
    "pipeoptim": (SearchSpace(asynchronous=("pipeoptim",)), 1),
    "naive": (SearchSpace(asynchronous=("naive",)), 1),
}
"""What is asked of plan(), and micro-batches an update: None as many as devices and then a flush, 0 as many as devices.
By name a method has one stage a device; the others may use everything that the search knows."""


def server(devices: int, link: float = 150e9, host: float = 12e9) -> Cluster:
    """One node of V100s."""
    return Cluster((NodeGroup(1, devices, V100, Link(link, 3e-6), None, Link(host, 10e-6)),))


def planned(model: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace, seconds: float) -> Plan | None:
    """plan()'s answer; it passes the checker."""
    found = plan(model, cluster, workload, space, seconds, workers=1).plan
    if found is not None:
        wrong = check(found)
        assert not wrong, wrong[0]
    return found


def each_s(found: Plan) -> float:
    """Seconds a micro-batch."""
    assert found.forecast is not None
    period = found.forecast.period_s
    return found.forecast.step_s / found.problem.workload.micro_batches if period is None else period


# ------------------------------------------------------------------ every model with every method


def throughput(devices: int, names: Sequence[str], seconds: float) -> Iterator[list[str]]:
    """A row for every model: samples a second and the fullest device."""
    for name in names:
        size = MODELS[name]
        model, cells = analytic(name, size, V100, "fp32"), [f"{name}, {devices} devices, micro-batches of {size}"]
        for space, update in METHODS.values():
            batches = devices if update is None else 12 * devices
            workload = Workload(batches, "momentum", update_every=devices if update == 0 else update)
            found = planned(model, server(devices), workload, space, seconds)
            if found is None or found.forecast is None:
                cells.append("-")
                continue
            cells.append(f"{size / each_s(found):.0f} ({max(found.forecast.peak_bytes) / GIB:.2f})")
        print(" | ".join(cells), file=sys.stderr, flush=True)
        yield cells


# ------------------------------------------------------------------ stashes on their way

LINKS = (48e9, 24e9, 12e9, 6e9, 3e9, 1.5e9)
"""Bytes/s of every link, between devices and to the host: a machine with PCIe alone."""
ROOM = (1.0, 0.8, 0.6, 0.45)
"""Shares of the memory that PipeDream takes with every stash kept."""
TRANSFER = {
    "pipedream, stashes kept": SearchSpace(asynchronous=("stash",), pipelines=1, separate_backward=False, **PLAIN),  # type: ignore[arg-type]
    "pipedream with transfer": SearchSpace(
        asynchronous=("stash",), pipelines=1, separate_backward=False, recompute=False
    ),
    "pipefb": SearchSpace("pipefb", recompute=False),
    "pipefb, recomputation allowed": SearchSpace("pipefb"),
}


def transfer(name: str, size: int, devices: int, seconds: float) -> Iterator[list[str]]:
    """A row for every link speed and memory: milliseconds a micro-batch of every way."""
    model = analytic(name, size, V100, "fp32")
    free = Workload(12 * devices, "momentum", update_every=1)
    usual = planned(model, server(devices, LINKS[0], LINKS[0]), free, TRANSFER["pipedream, stashes kept"], seconds)
    assert usual is not None
    assert usual.forecast is not None
    most = max(usual.forecast.peak_bytes)
    for share in ROOM:
        for speed in LINKS:
            workload = replace(free, memory_limit_bytes=int(share * most))
            cells = [f"{name}, {devices} devices: {share:.0%} = {share * most / GIB:.2f} GiB, {speed / 1e9:g} GB/s"]
            for space in TRANSFER.values():
                found = planned(model, server(devices, speed, speed), workload, space, seconds)
                cells.append("-" if found is None else f"{1e3 * each_s(found):.2f}")
            print(" | ".join(cells), file=sys.stderr, flush=True)
            yield cells


def drawn(path: Path) -> None:
    """A picture of the saved table: the period over the speed of links, one panel for each memory. Needs matplotlib."""
    from matplotlib.figure import Figure

    table = tables.load("methods/transfer")
    panels: dict[str, list[tuple[float, list[str]]]] = {}
    for name, *cells in table.rows:
        room, _, speed = name.partition(": ")[2].rpartition(", ")
        panels.setdefault(room, []).append((float(speed.removesuffix(" GB/s")), cells))
    figure = Figure(figsize=(3.2 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (room, rows) in zip(axes, panels.items(), strict=True):
        for k, way in enumerate(table.columns[1:]):
            points = [(speed, float(cells[k])) for speed, cells in rows if cells[k] != "-"]
            axis.plot(*zip(*points, strict=True), marker="os^v"[k], label=way) if points else axis.plot([], label=way)
        axis.set(title=room, xlabel="GB/s of every link", xscale="log", yscale="log")
        axis.set_xticks([speed for speed, _ in rows], [f"{speed:g}" for speed, _ in rows], minor=False)
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(table.columns[0])
    axes[0].legend(fontsize="x-small")
    figure.savefig(path, dpi=110)


def main() -> int:
    """Prints the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", action="store_true", help="throughput and memory of the full models")
    parser.add_argument("--transfer", action="store_true", help="PipeDream with transfer, and PipeFB")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draws the saved table of --transfer, as PNG")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--model", default="vgg-16", help="of --transfer")
    parser.add_argument("--size", type=int, default=32, help="samples of a micro-batch of --transfer")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds a plan")
    tables.savable(parser)
    given = parser.parse_args()
    found: dict[str, tables.Table] = {}
    if given.models or given.transfer:
        warm()
    if given.models:
        rows = list(throughput(given.devices, given.only, given.time_limit))
        found["methods/models"] = tables.Table.made(tables.origin(), ["samples a second (GiB)", *METHODS], rows)
    if given.transfer:
        rows = list(transfer(given.model, given.size, given.devices, given.time_limit))
        found["methods/transfer"] = tables.Table.made(tables.origin(), ["ms a micro-batch", *TRANSFER], rows)
    for name, table in found.items():
        print(table.markdown())
        if given.save:
            table.save(name)
    if given.figure is not None:
        drawn(given.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
