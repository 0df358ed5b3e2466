"""Piper's instances in its authors' settings and PipeDream's profiles with replicas, through `contraflow partition`.

    python benchmarks/piper.py [--only bert|gnmt|resnet|pipedream] [--named TEXT ...] [--time-limit 60] [--save]

The files are read in place, from ../shared/workloads. Settings are those of Piper's published programme: devices and
memory, 25 GiB/s. `equal slices` is the grid that the paper compares with, in our words: the file's order cut into
slices of equally many layers, each on as many replicas and ways, all layers recomputing or none. Neither paper prints
values of its objective for these files; of PipeDream the replicas of the published configurations stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tables

from contraflow.planner.basics import InputError
from contraflow.planner.formats import PiperInstance, read
from contraflow.planner.partition.dag import Devices, NodeBlock, configure, count

DATA = tables.ROOT.parent / "shared" / "workloads"
BANDWIDTH = 25 * 2**30
GIB = 2**30
PIPER = {
    "bert": ("bert32a100", [(k, m) for m in (1, 2, 8, 80) for k in (8, 32, 64, 128, 512, 1024, 2048)]),
    "gnmt": (
        "gnmt",
        [
            *((2, 2.5), (2, 3.5), (4, 1.2), (4, 2.5), (8, 0.6), (8, 1.2), (8, 2.4)),
            *((16, 0.3), (16, 0.6), (16, 1.2), (32, 0.3), (32, 0.8), (64, 0.3)),
        ],
    ),
    "resnet": (
        "resnet",
        [(k, m) for k in (8, 16, 32, 64, 128) for m in (1, 1.5, 2, 4, 8, 16) if (m > 2 or k > 8) and (m > 1 or k > 32)],
    ),
}
"""Devices and GiB of each, as in the published programme; 8 and 16 devices of 1 GiB hold no ResNet."""
PUBLISHED = {
    ("translation/gnmt", 4): "1-1-1-1",
    ("translation/gnmt", 12): "1 (8 times)-3-1",
    ("translation/gnmt_large", 4): "1-1-1-1",
    ("translation/gnmt_large", 16): "1 (12 times)-3-1",
    ("image_classification/resnet50", 4): "2-1-1",
    ("image_classification/resnet50", 8): "4-2-2",
    ("image_classification/resnet50", 16): "8-4-4",
    ("image_classification/vgg16", 4): "3-1 and 2-2",
    ("image_classification/vgg16", 8): "7-1",
    ("image_classification/vgg16", 16): "15-1",
    ("image_classification/alexnet", 4): "3-1",
    ("image_classification/alexnet", 16): "15-1",
}
"""Replicas of the stages in published_configs, for so many devices."""
OTHERS = ("densenet121", "inception_v3", "nasnetalarge", "nasnetamobile", "resnet101", "resnet18", "resnext101")
PROCESSOR = "import runpy, time; time.monotonic = time.process_time; runpy.run_module('contraflow', {}, '__main__')"
COLUMNS = ["instance", "devices", "memory", "objective", "bound", "gap", "status", "s", "replicas x ways", "beside it"]


@dataclass(frozen=True)
class Case:
    """One file with its options, and what stands beside its answer."""

    name: str
    file: Path
    devices: int | None
    gib: float | None
    options: tuple[str, ...]
    beside: str

    def row(self, time_limit: float, processor: bool) -> list[str]:
        """What the command says of it; in seconds of the processor, or of the clock."""
        start = ["-c", PROCESSOR] if processor else ["-m", "contraflow"]
        command = [sys.executable, *start, "partition", str(self.file), *self.options, "--json"]
        command += ["--time-limit", str(time_limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise SystemExit(done.stderr)
        found = json.loads(done.stdout)
        shapes = [(s["replicas"], s["ways"]) for s in found["stages"]]
        cells = [f"{found[key]:.6g}" if found[key] is not None else "-" for key in ("objective", "bound")]
        gap = "-" if found["gap"] is None else f"{100 * found['gap']:.2g} %"
        return [
            self.name, "file's" if self.devices is None else str(self.devices),
            "file's" if self.gib is None and not self.options else "-" if self.gib is None else f"{self.gib:g} GiB",
            *cells, "0 %" if found["status"] == "optimal" else gap, found["status"], f"{found['seconds']:.1f}",
            _shapes(shapes), self.beside,
        ]  # fmt: skip


def _shapes(shapes: list[tuple[int, int]]) -> str:
    """Stages in order, equal neighbours together: `4x1 (3 times)`."""
    runs: list[tuple[tuple[int, int], int]] = []
    for shape in shapes:
        runs = [*runs[:-1], (shape, runs[-1][1] + 1)] if runs and runs[-1][0] == shape else [*runs, (shape, 1)]
    return ", ".join(f"{d}x{t}" + (f" ({times} times)" if times > 1 else "") for (d, t), times in runs) or "-"


def equal_slices(instance: PiperInstance) -> float | None:
    """The best grid of equally many layers a stage, all with the same replicas, ways and mode; None: nothing fits."""
    ids = _topological(instance)
    modes = {node.id: node.modes for node in instance.nodes}
    ways = [t for t in modes[ids[0]] if t <= instance.devices]
    divisors = [d for d in range(1, instance.devices + 1) if instance.micro_batches % d == 0]
    best = None
    for stages in range(1, min(instance.devices, len(ids)) + 1):
        least, more = divmod(len(ids), stages)
        ends = [s * least + max(0, s - (stages - more)) for s in range(stages + 1)]
        for d, t in ((d, t) for d in divisors for t in ways if stages * d * t <= instance.devices):
            for name in ("vanilla", "activation recomp"):
                slices = [ids[a:b] for a, b in zip(ends, ends[1:], strict=False)]
                blocks = [NodeBlock(tuple(part), False, d, t, (name,) * len(part)) for part in slices]
                try:
                    value = count(instance, blocks)
                except InputError:
                    continue
                best = value if best is None else min(best, value)
    return best


def _topological(instance: PiperInstance) -> list[int]:
    import networkx

    graph = networkx.DiGraph([(a, b) for a, b, _ in instance.edges])
    place = {node.id: i for i, node in enumerate(instance.nodes)}
    graph.add_nodes_from(place)
    return list(networkx.lexicographical_topological_sort(graph, key=lambda i: place[i]))


def cases(only: str | None) -> Iterator[Case]:
    """All that are asked for."""
    for group, (name, settings) in PIPER.items():
        if only not in (None, group):
            continue
        file = DATA / "piper" / "inputs" / f"{name}.json"
        instance = read(file)
        assert isinstance(instance, PiperInstance)
        yield Case(f"{name}, as the file says", file, None, None, (), _beside(instance))
        for devices, gib in settings:
            options = (
                "--devices",
                str(devices),
                "--memory-limit",
                str(round(gib * GIB)),
                "--bandwidth",
                str(BANDWIDTH),
            )
            changed = configure(instance, Devices(devices, limit_bytes=round(gib * GIB), bandwidth=BANDWIDTH))
            assert isinstance(changed, PiperInstance)
            yield Case(f"{name}, {devices} of {gib:g} GiB", file, devices, gib, options, _beside(changed))
    if only in (None, "pipedream"):
        plain = {(f"image_classification/{name}", 16): "no configuration" for name in OTHERS}
        for (name, devices), beside in (PUBLISHED | plain).items():
            options = ("--devices", str(devices), "--replicas", str(devices), "--bandwidth", "1.25GB/s")
            file = DATA / "pipedream" / name / "graph.txt"
            yield Case(f"pipedream {Path(name).name}, {devices}", file, devices, None, options, beside)


def _beside(instance: PiperInstance) -> str:
    value = equal_slices(instance)
    return "equal slices: do not fit" if value is None else f"equal slices: {value:.6g}"


def main() -> None:
    """Prints the table row by row, and saves it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*PIPER, "pipedream"])
    parser.add_argument("--named", nargs="+", default=[""], help="instances whose name contains one of these texts")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--processor", action="store_true", help="seconds of the processor, not the clock")
    tables.savable(parser)
    given = parser.parse_args()
    rows = []
    for case in cases(given.only):
        if not any(text in case.name for text in given.named):
            continue
        rows.append(case.row(given.time_limit, given.processor))
        print(" | ".join(rows[-1]), flush=True)
    if given.save:
        tables.Table.made(tables.origin(), COLUMNS, rows).save("piper")


if __name__ == "__main__":
    main()
