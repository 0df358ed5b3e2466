"""Tables of measurements: as JSON with command, commit and machine, and in documents, which are made of that.

    python benchmarks/search.py --case 2 --save     # every benchmark writes what it measured
    python benchmarks/tables.py                     # rewrites every table between marks from it

A document has the marks `<!-- table NAME -->` and `<!-- end of table -->`; what stands between them is never typed.
Rows that are measured again take the place of those of the same first cell, so that a table may have rows of several
commits: it says which are whose.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from reliability.record import ROOT, commit, machine

RESULTS = ROOT / "benchmarks" / "results"
PAGES = (*sorted((ROOT / "docs").glob("*.md")), *sorted(RESULTS.glob("*.md")))
_PLACE = re.compile(r"<!-- table ([\w/-]+) -->\n.*?<!-- end of table -->", re.DOTALL)


@dataclass(frozen=True)
class Origin:
    """Where figures come from: what to type to have them again, on which machine, and what else there is to say."""

    command: str
    commit: str
    machine: str
    date: str
    note: str = ""

    def __str__(self) -> str:
        """One sentence."""
        note = f"; {self.note}" if self.note else ""
        return f"`{self.command}`, commit {self.commit} of {self.date}, {self.machine}{note}."


@dataclass(frozen=True)
class Table:
    """Titles, rows of cells as they are printed, and for every row which of the origins is its own."""

    columns: list[str]
    rows: list[list[str]]
    origins: list[Origin]
    of: list[int]

    @classmethod
    def made(cls, origin: Origin, columns: list[str], rows: list[list[str]]) -> Self:
        """Of one run."""
        return cls(columns, rows, [origin], [0] * len(rows))

    def text(self) -> str:
        """Aligned, for people at a terminal."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def markdown(self) -> str:
        """The table, and where its rows come from: the first origin is that of all rows that no other one names."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        said = [str(self.origins[0])]
        for k, origin in enumerate(self.origins[1:], 1):
            names = "; ".join(row[0] for row, mine in zip(self.rows, self.of, strict=True) if mine == k)
            said.append(f"{names}: {origin}")
        return "\n".join(["| " + " | ".join(line) + " |" for line in lines]) + "\n\n" + "\n\n".join(said)

    def renewed(self, new: Table) -> Table:
        """With the rows of another table in the place of those of the same first cell; all of it if titles differ."""
        if new.columns != self.columns:
            return new
        before = {row[0]: (row, self.origins[k]) for row, k in zip(self.rows, self.of, strict=True)}
        after = before | {row[0]: (row, new.origins[k]) for row, k in zip(new.rows, new.of, strict=True)}
        rows, mine = [row for row, _ in after.values()], [origin for _, origin in after.values()]
        origins = sorted(set(mine), key=mine.count, reverse=True)
        return Table(self.columns, rows, origins, [origins.index(origin) for origin in mine])

    def save(self, name: str) -> None:
        """Writes it under this name, for documents; what has been saved there and not measured again stays."""
        path = RESULTS / f"{name}.json"
        whole = load(name).renewed(self) if path.exists() else self
        rows = [json.dumps({"origin": k, "cells": cells}) for k, cells in zip(whole.of, whole.rows, strict=True)]
        parts = {
            "origins": [json.dumps(asdict(origin)) for origin in whole.origins],
            "columns": [json.dumps(column) for column in whole.columns],
            "rows": rows,
        }
        written = ",\n ".join(f'"{key}": [\n  ' + ",\n  ".join(lines) + "\n ]" for key, lines in parts.items())
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{{\n {written}\n}}\n")


def savable(parser: argparse.ArgumentParser) -> None:
    """Adds the option that every benchmark with tables in documents has."""
    parser.add_argument("--save", action="store_true", help="for the documents: benchmarks/results (tables.py)")


def origin() -> Origin:
    """Of what this process is about to measure; paths of this machine alone are told by their last part."""
    given = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    typed = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *given]
    return Origin(shlex.join(typed), commit(), machine(), datetime.now(UTC).date().isoformat())


def load(name: str) -> Table:
    """A table that has been saved."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    rows = content["rows"]
    origins = [Origin(**given) for given in content["origins"]]
    return Table(content["columns"], [row["cells"] for row in rows], origins, [row["origin"] for row in rows])


def names(page: str) -> list[str]:
    """The tables that a document shows."""
    return _PLACE.findall(page)


def typed(page: str) -> list[str]:
    """The first lines of the tables of a document that stand between no marks."""
    return re.findall(r"^(\|.*)\n\|[ :|-]+\|$", _PLACE.sub("", page), re.MULTILINE)


def rewritten(page: str) -> str:
    """The page with every table between marks made anew; raises FileNotFoundError for one that nobody has saved."""

    def made(place: re.Match[str]) -> str:
        return f"<!-- table {place[1]} -->\n{load(place[1]).markdown()}\n<!-- end of table -->"

    return _PLACE.sub(made, page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rewritten(path.read_text()))
