"""Tables of measurements: as JSON with command, commit and machine, and in documents, which are made of that.

    python benchmarks/tables.py            # rewrites every table between marks from benchmarks/results/*.json

A document has the marks `<!-- table NAME -->` and `<!-- end of table -->`; what stands between them is never typed.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from reliability.record import ROOT, commit, machine

RESULTS = ROOT / "benchmarks" / "results"
PAGES = (*sorted((ROOT / "docs").glob("*.md")), *sorted(RESULTS.glob("*.md")))
_PLACE = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end of table -->", re.DOTALL)


@dataclass(frozen=True)
class Origin:
    """Where figures come from: what anyone can type to have them again, and what it ran on."""

    command: str
    commit: str
    machine: str
    date: str


@dataclass(frozen=True)
class Table:
    """Titles and rows of cells as they are printed."""

    origin: Origin
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table, and a line that says where it comes from."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        origin = f"`{self.origin.command}`, commit {self.origin.commit} of {self.origin.date}, {self.origin.machine}."
        return "\n".join(["| " + " | ".join(line) + " |" for line in lines]) + f"\n\n{origin}"

    def save(self, name: str) -> None:
        """Writes it under this name, for documents."""
        (RESULTS / f"{name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def origin() -> Origin:
    """Of what this process is about to measure."""
    typed = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    return Origin(shlex.join(typed), commit(), machine(), datetime.now(UTC).date().isoformat())


def load(name: str) -> Table:
    """A table that has been saved."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    return Table(Origin(**content.pop("origin")), **content)


def names(page: str) -> list[str]:
    """The tables that a document shows."""
    return _PLACE.findall(page)


def rewritten(page: str) -> str:
    """The page with every table between marks made anew; raises FileNotFoundError for one that nobody has saved."""

    def made(place: re.Match[str]) -> str:
        name = place[1]
        return f"<!-- table {name} -->\n{load(name).markdown()}\n<!-- end of table -->"

    return _PLACE.sub(made, page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rewritten(path.read_text()))
