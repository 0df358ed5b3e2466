"""`contraflow partition`: the best partition of a layer graph, with a proof."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..basics import InputError, format_bytes, write_text
from ..formats import load_graph
from ..partition.dag import (
    BANDWIDTH,
    OBJECTIVES,
    Devices,
    Instance,
    LayerInstance,
    Objective,
    PublishedCut,
    configure,
    loads,
    objective_of,
    solve,
    unit_of,
)
from ..problem import ModelGraph
from .common import A_FILE, Bytes, OutputFile, Rate, SecondsLimit, finite, print_json, say, stop
from .progress import SearchProgress
from .signals import EndingSignals
from .table import Line, print_table

_EXAMPLES = """\b
Examples:
  contraflow partition graph.txt --devices 8 --bandwidth 1.25GB/s --json
  contraflow partition model.json --devices 4 --memory-limit 16GiB
  contraflow partition bert24_training.json -o stages.json
  contraflow partition graph.txt --devices 16 --replicas 16 --bandwidth 1.25GB/s
  contraflow partition bert32a100.json --devices 512 --memory-limit 8GiB --ways 4
"""


@click.command(epilog=_EXAMPLES)
@click.argument("graph", metavar="GRAPH", type=A_FILE)
@click.option(
    "--devices",
    type=click.IntRange(min=0),
    metavar="K",
    help="Accelerators. [default: as the file says; needed for a model.json or a PipeDream profile]",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="R",
    help="A stage may have so many replicas. [default: a Piper instance as many as help; a PipeDream profile is cut "
    "into exactly K stages, with this option into at most K devices' worth]",
)
@click.option(
    "--ways",
    type=click.IntRange(min=1),
    metavar="T",
    help="Piper: layers are split in at most so many tensor-parallel ways. [default: as the file says]",
)
@click.option(
    "--cpus", type=click.IntRange(min=0), metavar="C", help="dnn-partitioning: at most so many CPUs take a stage."
)
@click.option(
    "--memory-limit",
    type=Bytes(),
    metavar="BYTES",
    help="Of every accelerator, as 16GiB. [default: the file's, or none]",
)
@click.option(
    "--bandwidth",
    type=Rate(),
    metavar="RATE",
    help=f"Of a link, as 25GB/s or 200Gb/s; not for dnn-partitioning files. [default: the file's, or {BANDWIDTH:g}]",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    help="overlap: exactly K stages, transfers hidden behind work; load: at most K, work and transfers added up. "
    "[default: a published file's own; overlap for a model.json]",
)
@click.option(
    "--time-limit",
    type=SecondsLimit(),
    default=60.0,
    show_default=True,
    help="It ends earlier when its partition is proven optimal.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, metavar="N", help="Of the search."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Solver threads; more than 2 are not used.",
)
@click.option("-o", "--output", type=OutputFile(), help="Write the partition there, as --json prints it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines.")
def partition(graph: str, output: Path | None, as_json: bool, objective: Objective | None, **options: Any) -> None:
    """Cut GRAPH into the stages whose slowest is as fast as can be, and prove it.

    GRAPH is a model.json, a PipeDream profile, or a dnn-partitioning or Piper instance, recognised by its content;
    what is minimised is the objective of the file's authors, with replicas, tensor-parallel ways and a mode for every
    layer where it has them. Stages are cut anywhere in the graph, not only along one
    order of its layers. Ctrl-C stops it and keeps the best partition so far; so do SIGTERM and SIGHUP, with exit
    code 143 or 129. Exit code 1: there is no partition, or none was found in the time.
    """
    devices = Devices(
        options["devices"],
        options["cpus"],
        options["memory_limit"],
        options["bandwidth"],
        options["replicas"],
        options["ways"],
    )
    instance = _instance(graph, objective)
    configure(instance, devices)  # refuses what makes no sense before any work
    started = time.monotonic()
    with EndingSignals() as ending:
        with SearchProgress(f"cutting {Path(graph).name}", options["time_limit"]) as progress:
            to_s = 1e-3 if unit_of(instance) == "ms" else 1.0
            found = solve(
                instance,
                devices,
                time_limit=options["time_limit"],
                workers=options["workers"],
                seed=options["seed"],
                on_better=lambda value, bound: progress(_Best(value * to_s, bound * to_s)),
            )
        ending.report()
        _report(found, _Cut(instance, devices, time.monotonic() - started), output, as_json)


@dataclass(frozen=True)
class _Best:
    """Progress as a bar shows it."""

    step_s: float
    bound_s: float
    phase: str = "cutting"


def _instance(path: str, objective: Objective | None) -> Instance:
    """The graph with its objective; raises InputError for an objective that is not the file's."""
    found = load_graph(path)
    if isinstance(found, ModelGraph):
        return LayerInstance(found) if objective is None else LayerInstance(found, objective)
    own = objective_of(found)
    if objective not in (None, own):
        raise InputError(f"the objective of {Path(path).name} is its authors': {own}, not {objective}")
    return found


@dataclass(frozen=True)
class _Cut:
    """What was cut, for what, in how many seconds."""

    instance: Instance
    devices: Devices
    seconds: float


def _unfit(cut: _Cut) -> str:
    """What was asked for and cannot be had, with the numbers given."""
    asked = cut.devices
    layers = f" of {len(cut.instance.model.layers)} layers" if isinstance(cut.instance, LayerInstance) else ""
    exactly = objective_of(cut.instance) == "overlap" and asked.replicas is None
    what = f"into exactly {asked.count} stages" if exactly else f"on at most {asked.count} devices"
    stages = "" if asked.count is None else f" {what}"
    limit = "" if asked.limit_bytes is None else f" within {format_bytes(int(asked.limit_bytes))} each"
    return f"no partition{layers}{stages}{limit} fits"


def _report(found: PublishedCut, cut: _Cut, output: Path | None, as_json: bool) -> None:
    """Prints and writes the answer; exit code 1 where there is no partition."""
    times: Sequence[float] = ()
    if found.objective is not None:
        times = loads(configure(cut.instance, cut.devices), found.blocks, cut.devices)
        if output is not None:
            write_text(output, json.dumps(finite(_content(found, cut, times)), indent=1) + "\n")
    if as_json:
        print_json(_content(found, cut, times) | {"file": None if output is None or not times else str(output)})
    elif found.objective is not None:
        _print(found, times, unit_of(cut.instance))
    if found.objective is None:
        why = _unfit(cut) if found.status == "infeasible" else "no partition found, and none ruled out"
        say(f"contraflow: {found.status}: {why}", err=True)
        stop(1)
    if output is not None and not as_json:
        say(f"wrote {output}", err=True)


def _content(found: PublishedCut, cut: _Cut, times: Sequence[float]) -> dict[str, Any]:
    return {
        "objective": found.objective,
        "bound": found.bound,
        "gap": found.gap,
        "status": found.status,
        "seconds": round(cut.seconds, 3),
        "unit": unit_of(cut.instance) or None,
        "minimised": objective_of(cut.instance),
        "stages": [
            {
                "device": "cpu" if block.cpu else "accelerator",
                "load": load,
                "nodes": list(block.nodes),
                "replicas": block.replicas,
                "ways": block.ways,
                "modes": list(block.modes),
            }
            for block, load in zip(found.blocks, times, strict=True)
        ],
    }


def _print(found: PublishedCut, times: Sequence[float], unit: str) -> None:
    gap = "" if found.gap is None else f", gap {100 * found.gap:.3g} %"
    say(f"{len(found.blocks)} stages: {found.objective:.6g} {unit}".rstrip())
    say(f"{found.status}: proven bound {found.bound:.6g} {unit}".rstrip() + gap)
    wide = any(block.replicas > 1 or block.ways > 1 for block in found.blocks)
    modes = sorted({name for block in found.blocks for name in block.modes})
    headings = ["stage", "device", "nodes", *(["replicas", "ways"] if wide else []), *modes, f"load {unit}".rstrip()]
    lines = []
    for stage, (block, load) in enumerate(zip(found.blocks, times, strict=True)):
        cells = [str(stage), "CPU" if block.cpu else "accelerator", str(len(block.nodes))]
        cells += [str(block.replicas), str(block.ways)] if wide else []
        lines.append(Line([*cells, *(str(block.modes.count(name)) for name in modes), f"{load:.6g}"]))
    print_table(headings, lines, words=2)
