"""The best partition of a published instance, with a proof: PipeDream profile, dnn-partitioning or Piper file.

    python benchmarks/partition.py bert24_training.json --json
    python benchmarks/partition.py graph.txt --devices 8 --bandwidth 1.25e9 --json
    python benchmarks/partition.py bert32a100.json --devices 8 --memory 8e9 --json

What is minimised, in the unit of the format's own objective (docs/formats.md): dnn-partitioning the largest load, as in
the file (ms); PipeDream the time of the slowest of exactly `--devices` stages, in seconds; Piper the time per
micro-batch of the slowest stage, as in the file, with `vanilla` or `activation recomp` chosen for every layer. Flags
override what the file says. Exit code 0: a partition was found; 1: there is none, or none was found in the time;
2: bad input, in one line.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

from contraflow.planner import InputError
from contraflow.planner.formats import read
from contraflow.planner.partition.dag.published import BANDWIDTH, Devices, PublishedCut, solve


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Ends the command with exit code 2."""
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def number(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be finite and not negative, got {text}")
    return value


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = number(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def count(text: str) -> int:
    """A whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("file", metavar="FILE", help="a published instance; its format is recognised")
    result.add_argument("--devices", type=count, metavar="K", help="PipeDream: exactly K stages; otherwise at most K")
    result.add_argument("--cpus", type=count, metavar="C", help="dnn-partitioning: at most C CPUs take a stage")
    result.add_argument("--memory", type=number, metavar="BYTES", help="limit of every accelerator")
    result.add_argument(
        "--bandwidth", type=above_zero, metavar="B/s", help=f"of a link; PipeDream [default: {BANDWIDTH:g}], Piper"
    )
    result.add_argument("--time-limit", type=above_zero, default=60.0, metavar="S", help="seconds [default: 60]")
    result.add_argument("--workers", type=count, default=2, metavar="N", help="solver threads, at most 2 [default: 2]")
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def report(found: PublishedCut, seconds: float, as_json: bool) -> None:
    """The result on stdout."""
    content = {
        "objective": found.objective,
        "bound": found.bound,
        "status": found.status,
        "seconds": round(seconds, 3),
    }
    if as_json:
        print(json.dumps(content))
        return
    print("  ".join(f"{key} {value}" for key, value in content.items()))
    for stage, block in enumerate(found.blocks):
        where = "CPU" if block.cpu else "accelerator"
        again = f", {len(block.recompute)} of them recompute" if block.recompute else ""
        print(f"  stage {stage}: {where}, {len(block.nodes)} nodes{again}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = parser().parse_args(arguments)
    start = time.monotonic()
    devices = Devices(options.devices, options.cpus, options.memory, options.bandwidth)
    try:
        instance = read(options.file)
        found = solve(instance, devices, time_limit=options.time_limit, workers=max(1, options.workers))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report(found, time.monotonic() - start, options.json)
    return 0 if found.objective is not None else 1


if __name__ == "__main__":
    sys.exit(main())
