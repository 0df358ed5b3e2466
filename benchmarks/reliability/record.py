"""One row of docs/reliability.md: what a long run counted, as JSON; and the table of all of them.

python benchmarks/reliability/record.py            # rewrites the table of docs/reliability.md from the recorded rows
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- rows -->", "<!-- end of rows -->"
FAULTS = ("traceback", "hang", "different", "above its peak", "orphan", "file lost")
"""What no run may count, in the order of the table's columns."""


@dataclass
class Row:
    """What one long run tried and what went wrong.

    Attributes:
        what: one line that says what was tried ("files mutated, read by every command").
        command: what anyone can type to run it again, from the project's root.
        cases: how many were tried.
        faults: how many of each of `FAULTS`; a column that cannot occur in this run is left out.
        figures: whatever else was counted, by name ("refused": 9120, "slowest answer": "1.3 s").
    """

    what: str
    command: str
    cases: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float | int | str] = field(default_factory=dict)
    seconds: float = 0.0
    commit: str = ""
    machine: str = ""
    date: str = ""

    def count(self, fault: str, number: int = 1) -> None:
        """Adds to one of the columns; raises KeyError for another name."""
        if fault not in FAULTS:
            raise KeyError(fault)
        self.faults[fault] = self.faults.get(fault, 0) + number

    @property
    def sound(self) -> bool:
        """Whether something was tried and nothing went wrong."""
        return self.cases > 0 and not any(self.faults.values())

    def save(self, path: str | Path, started: float) -> None:
        """Writes the row, with where and when it was made; `started`: time.monotonic() at the run's beginning."""
        self.seconds = round(time.monotonic() - started, 1)
        self.commit, self.machine = commit(), machine()
        self.date = datetime.now(UTC).date().isoformat()
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(asdict(self), indent=2) + "\n")


def commit() -> str:
    """The short hash of the commit that is checked out, "+" behind it where files have been changed since."""
    try:
        found = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def machine() -> str:
    """Cores, architecture, system and Python of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def table(rows: Mapping[str, Row]) -> str:
    """The rows as Markdown: a column for every fault, a dash where it cannot occur."""
    titles = ("what", "command", "cases", *FAULTS, "also", "date, commit")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows.values():
        counts = [str(row.faults[fault]) if fault in row.faults else "-" for fault in FAULTS]
        also = ", ".join(f"{name} {value}" for name, value in row.figures.items())
        cells = (row.what, f"`{row.command}`", f"{row.cases:,}", *counts, also, f"{row.date}, {row.commit}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def load(folder: Path = RESULTS) -> dict[str, Row]:
    """All recorded rows by file name."""
    return {path.stem: Row(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))}


def rewrite(page: str, rows: Mapping[str, Row]) -> str:
    """The page with the table between its two marks made anew; raises ValueError where they are missing."""
    head, _, rest = page.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"no place for the table between {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table(rows)}\n{END}{tail}"


def arguments(what: str | None, cases: int) -> argparse.ArgumentParser:
    """The options that every long run takes: --cases, --seed, --json."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--cases", type=int, default=cases, help="how many to try [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases [%(default)s]")
    parser.add_argument("--json", metavar="FILE", help="record the row there")
    return parser


def finish(row: Row, started: float, path: str | None) -> int:
    """Prints the row, records it where asked to; the exit code: 0 only if it is sound."""
    if path:
        row.save(path, started)
    print(json.dumps({"cases": row.cases, **row.faults, **row.figures}), file=sys.stdout)
    return 0 if row.sound else 1


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(), load()))
