"""The best partitions of the published graphs that are in the tree, through `contraflow partition`.

    python benchmarks/published.py [--save]

A graph that is not in the tree: `contraflow partition FILE --devices K --json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import tables

DATA = tables.ROOT / "tests" / "data"
BERT, GNMT, VGG = "dnn-partitioning/bert24_training.json", "pipedream/gnmt/graph.txt", "pipedream/vgg16/graph.txt"
CASES = [(BERT, None), *((file, count) for file in (GNMT, VGG) for count in (2, 4, 8, 16))]
COLUMNS = ["graph", "stages", "objective", "bound", "status", "s"]


def row(file: str, devices: int | None) -> list[str]:
    """One graph on so many devices (None: as its file says), in the unit of its objective."""
    options = [] if devices is None else ["--devices", str(devices)]
    command = [sys.executable, "-m", "contraflow", "partition", str(DATA / file), *options, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    value, bound = (f"{found[key]:.6g} {found['unit']}" for key in ("objective", "bound"))
    return [file, str(len(found["stages"])), value, bound, found["status"], f"{found['seconds']:.1f}"]


def main() -> None:
    """Prints the table, and saves it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables.savable(parser)
    given = parser.parse_args()
    table = tables.Table.made(tables.origin(), COLUMNS, [row(*case) for case in CASES])
    print(table.markdown())
    if given.save:
        table.save("published")


if __name__ == "__main__":
    main()
