"""What it brings, plan by plan, that ops pause for threads that carry messages, and that these step back otherwise.

Two gloo processes of one thread hold every plan three times, with neither, with pauses, and with both, and train them
by turns; told are medians over rounds. With more `--processes` than cores ranks do not pause, whoever asks.

    python benchmarks/pauses.py --save       3 models, about 4 minutes on two free cores
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from executor_contender import Entry, Pacing, compete
from executor_rows import steps
from tables import Table, origin, savable

from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import prepare
from contraflow.models import resolve
from contraflow.planner import Cluster, ModelGraph, SearchSpace, Workload, plan

SAMPLES = {"mlp-deep": 8, "resnet-tiny": 16, "gpt-tiny": 8, "gpt-small": 4}
"""Of a micro-batch."""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-v")
MICRO_BATCHES = 8
PAUSES, NEITHER = " with pauses alone", " with neither"


def entries(model: str, processes: int) -> Iterator[Entry]:
    """Every plan with both, and after it with less."""
    graph = ModelGraph.from_dict(
        profile_model(resolve(model), SAMPLES[model], rounds=1, load=processes, layers="block")
    )
    for schedule in SCHEDULES:
        space = SearchSpace(schedule=schedule, separate_backward=False)
        found = plan(graph, Cluster.uniform(processes), Workload(MICRO_BATCHES), space, time_limit=10).plan
        if found is not None:
            job = prepare(found, self_check=False)
            yield Entry(f"{model}: {schedule}", job)
            yield Entry(f"{model}: {schedule}{PAUSES}", job, steps_back=False)
            yield Entry(f"{model}: {schedule}{NEITHER}", job, pauses=False, steps_back=False)


def rows(model: str, options: argparse.Namespace) -> Iterator[list[str]]:
    """A row a plan: milliseconds of a step with neither, with pauses and with both, and the median of first / last."""
    found = compete(list(entries(model, options.processes)), Pacing(3, options.rounds, options.seconds), lambda _: None)
    for name, rounds in found.items():
        if f"{name}{NEITHER}" in found:
            ways = [steps(found[f"{name}{NEITHER}"]), steps(found[f"{name}{PAUSES}"]), steps(rounds)]
            ratio = median(a / b for a, b in zip(ways[0], ways[2], strict=True))
            yield [name, *(f"{1e3 * median(way):.2f}" for way in ways), f"{ratio:.3f}"]


def main() -> int:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SAMPLES)[:3], choices=list(SAMPLES), metavar="MODEL")
    parser.add_argument("--processes", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=60, help="turns of every plan [%(default)s]")
    parser.add_argument("--seconds", type=float, default=90.0, help="of a model [%(default)g]")
    savable(parser)
    options = parser.parse_args()
    made = replace(origin(), note=f"load {os.getloadavg()[0]:.1f} before")
    lines = [row for model in options.models for row in rows(model, options)]
    columns = ["plan", "ms with neither", "with pauses", "with both", "neither / both"]
    table = Table.made(made, columns, lines)
    print(table.text())
    if options.save:
        table.save("runtime/pauses")
    return 0


if __name__ == "__main__":
    sys.exit(main())
