"""Runs the commands of the documents, in the order they stand, as a reader would type them.

    python .ci/docs.py --bin FOLDER [--write] [DOCUMENT...]

FOLDER holds the installed `contraflow`, `python` and `torchrun`. Every document is read in a temporary copy of the
sources, in which its own text makes the files that it needs; every block begins in the copy's root. Commands are the
lines of indented blocks and fences that begin with one of PROGRAMS, and Python blocks. Each must end with exit code 0,
without a traceback, within LIMIT_S. An HTML comment before a block or table says what else is asked:

    <!-- run: shows -->         the rest of the block is what its last command prints, lines "..." being left out
    <!-- run: write FILE -->    the block is the text of that file
    <!-- run: exit 1 -->        the exit code of its last command
    <!-- run: table -->         the code of the table's cells is commands

What is not run, and which options are shortened, is listed in docs.toml, with reasons; an entry that fits nothing is an
error. With --write the shown outputs are replaced by what was printed. The exit code is 1 where anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAMS = ("contraflow", "make", "python", "torchrun", "pip", "cd")
LIMIT_S = 900.0
LEFT_OUT = "..."
_DIRECTIVE = re.compile(r"<!-- run: (\w+) ?(.*?) -->")
_BOX = re.compile(r"[│┃]|\s{2,}")


@dataclass
class Block:
    """Lines of code in a document.

    Attributes:
        first: index of the document's line it begins with.
        lines: without their indentation.
        directives: what its comments ask for, by word.
        language: of a fence, "python" also where an indented block begins with an import, "table" of a table.
    """

    first: int
    lines: list[str]
    directives: dict[str, str]
    language: str = ""

    def commands(self) -> list[str]:
        """Command lines, continued ones joined; comments stay, a shell knows them."""
        if self.language == "table":
            cells = (code.replace("\\|", "|") for line in self.lines for code in re.findall(r"`([^`]+)`", line))
            return [code for code in cells if _is_command(code)]
        joined = re.sub(r"\\\n\s*", " ", "\n".join(self.lines)).splitlines()
        return [line for line in joined if _is_command(line)]

    def shown(self) -> list[int]:
        """Indices, in `lines`, of the output that stands behind the last command."""
        last = max(k for k, line in enumerate(self.lines) if _is_command(line))
        while self.lines[last].endswith("\\"):
            last += 1
        return [k for k in range(last + 1, len(self.lines)) if self.lines[k].strip()]


def _is_command(line: str) -> bool:
    return line.split(maxsplit=1)[:1] != [] and line.split(maxsplit=1)[0] in PROGRAMS


def blocks(text: str) -> list[Block]:
    """The code of a document, in order: fences, lines indented by four or more after a blank one, tables."""
    found: list[Block] = []
    asked: dict[str, str] = {}
    lines = text.splitlines()
    k = 0
    while k < len(lines):
        line = lines[k]
        begun = k
        if directive := _DIRECTIVE.search(line):
            asked[directive[1]] = directive[2]
            k += 1
            continue
        if line.startswith("```"):
            k += 1
            while not lines[k].startswith("```"):
                k += 1
            found.append(Block(begun + 1, lines[begun + 1 : k], asked, line[3:].strip()))
            k += 1
        elif line.startswith("    ") and (k == 0 or not lines[k - 1].strip()):
            while k < len(lines) and (lines[k].startswith("    ") or not lines[k].strip()):
                k += 1
            body = [each[4:].removeprefix("  ") if each[:6].isspace() else each[4:] for each in lines[begun:k]]
            python = line.strip().startswith(("from ", "import "))
            found.append(Block(begun, body, asked, "python" if python else ""))
        elif line.startswith("|") and "table" in asked:
            while k < len(lines) and lines[k].startswith("|"):
                k += 1
            found.append(Block(begun, lines[begun:k], asked, "table"))
        else:
            k += 1
            if line.strip():
                asked = {}
            continue
        asked = {}
    return found


def inline(text: str) -> list[str]:
    """Commands with arguments in the running text of a document."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))
    return [span for span in spans if _is_command(span) and " " in span]


def rows(printed: str) -> list[list[str]]:
    """The cells of every line, whatever is drawn between them."""
    return [cells for line in printed.splitlines() if (cells := [c.strip() for c in _BOX.split(line) if c.strip()])]


def differences(shown: list[str], printed: str) -> list[str]:
    """Lines that are shown and were not printed in this order."""
    have = rows(printed)
    missing = []
    for line in shown:
        if line.strip() == LEFT_OUT:
            continue
        [cells] = rows(line)
        if cells in have:
            have = have[have.index(cells) + 1 :]
        else:
            missing.append(line)
    return missing


def rewritten(shown: list[str], printed: str) -> list[str]:
    """The shown lines with the cells of the printed line that begins alike, in columns.

    Raises KeyError: no line begins so.
    """
    by_first = {cells[0]: cells for cells in rows(printed)}
    chosen = [[LEFT_OUT] if line.strip() == LEFT_OUT else by_first[rows(line)[0][0]] for line in shown]
    widths = [max(len(r[k]) for r in chosen if k < len(r)) for k in range(max(map(len, chosen)))]
    lines = []
    for cells in chosen:
        rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=False))
        lines.append("   ".join([f"{cells[0]:<{widths[0]}}", *rest]).rstrip())
    return lines


class Rules:
    """docs.toml: what is not run and why, which options are shortened, what is added; and what of it was used."""

    def __init__(self, path: Path) -> None:
        """Reads the file."""
        found: dict[str, Any] = tomllib.loads(path.read_text())
        self.not_run: dict[str, str] = found["not_run"]
        self.best_effort: dict[str, str] = found["best_effort"]
        self.at_most: dict[str, float] = found["at_most"]
        self.added: dict[str, str] = found["added"]
        self.used: set[str] = set()

    def _fits(self, table: dict[str, str], command: str) -> str | None:
        for start in table:
            if " ".join(command.split()).startswith(start):
                self.used.add(start)
                return start
        return None

    def reason(self, command: str) -> str | None:
        """Why the command is not run; None: it is."""
        start = self._fits(self.not_run, command)
        return None if start is None else self.not_run[start]

    def may_fail(self, command: str) -> bool:
        """Whether it needs the network, which need not be there."""
        return self._fits(self.best_effort, command) is not None

    def shortened(self, command: str) -> str:
        """The command with lower numbers of seconds and steps."""
        for option, most in self.at_most.items():
            found = re.search(rf"(?<=\s{option}\s)\d+", command)
            if found and float(found[0]) > most:
                self.used.add(option)
                command = f"{command[: found.start()]}{most:g}{command[found.end() :]}"
        start = self._fits(self.added, command)
        if start is not None and self.added[start].split()[0] not in command:
            bare, hash_, comment = command.partition(" #")
            command = f"{bare} {self.added[start]}{hash_}{comment}"
        return command

    def unused(self) -> list[str]:
        """Entries that fitted nothing."""
        return [each for table in (self.not_run, self.best_effort, self.at_most, self.added) for each in table
                if each not in self.used]  # fmt: skip


@dataclass
class Session:
    """A copy of the sources in which the commands of one document are run."""

    folder: Path
    bin: Path
    rules: Rules
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    count: int = 0
    checked: int = 0

    def run(self, command: str, where: Path, wanted: int = 0, exact: bool = False) -> str:
        """What it prints; anything that is not as wanted is noted as failed."""
        line = command if exact else self.rules.shortened(command)
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.folder.parent)}
        environment["COLUMNS"] = "100"
        started = time.monotonic()
        ended = subprocess.run(
            ["timeout", "--kill-after=5", str(LIMIT_S), "bash", "-o", "pipefail", "-c", line],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.monotonic() - started
        good = ended.returncode == wanted and "Traceback (most recent call last)" not in ended.stderr
        print(f"{'ok' if good else 'FAILED'} ({ended.returncode}, {took:.1f} s): {line.partition(' #')[0]}", flush=True)
        self.count += 1
        may_fail = self.rules.may_fail(command)
        if not good and may_fail:
            print("    not to be had here; goes on")
        elif not good:
            self.failed.append(line)
            print(f"{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        return ended.stdout

    def block(self, block: Block, write: bool) -> list[str] | None:
        """Runs the block; the lines in place of its own where --write changes them."""
        if "write" in block.directives:
            (self.folder / block.directives["write"]).write_text("\n".join(block.lines) + "\n")
            return None
        if block.language == "python":
            first = next(line for line in block.lines if line.strip())
            self._unless_left_out(first, lambda: self._python(block))
            return None
        commands = block.commands()
        where, printed = self.folder, ""
        for number, command in enumerate(commands):
            if command.startswith("cd "):
                where = where / shlex.split(command, comments=True)[1]
                continue
            last = number == len(commands) - 1
            wanted = int(block.directives.get("exit", 0)) if last else 0
            if (reason := self._missing(command)) is not None:
                self._leave_out(command, reason)
                continue
            printed = self.run(command, where, wanted, exact="shows" in block.directives)
        return self._shows(block, printed, write) if "shows" in block.directives else None

    def _python(self, block: Block) -> None:
        script = self.folder / "block.py"
        script.write_text("\n".join(block.lines))
        self.run("python block.py", self.folder)
        script.unlink()

    def _unless_left_out(self, command: str, run: Any) -> None:
        reason = self._missing(command)
        if reason is None:
            run()
        else:
            self._leave_out(command, reason)

    def _leave_out(self, command: str, reason: str) -> None:
        self.left_out.append(f"{command.partition(' #')[0].strip()}: {reason}")

    def _missing(self, command: str) -> str | None:
        """Why the command is not run: as listed, or a program behind a pipe that is not here."""
        if (reason := self.rules.reason(command)) is not None:
            return reason
        for part in command.split(" | ")[1:]:
            if shutil.which(part.split()[0]) is None:
                return f"no {part.split()[0]} here"
        return None

    def _shows(self, block: Block, printed: str, write: bool) -> list[str] | None:
        places = block.shown()
        shown = [block.lines[k] for k in places]
        self.checked += 1
        if write:
            lines = list(block.lines)
            for k, line in zip(places, rewritten(shown, printed), strict=True):
                lines[k] = line
            return lines
        if missing := differences(shown, printed):
            self.failed.append(f"shows other lines than {missing}")
            print(f"FAILED: not printed: {missing}\n{printed}")
        return None


def installed() -> bool:
    """Whether the checkout's environment is up to date: `make` in a copy would install the copy into it otherwise."""
    made = ROOT / ".venv/.installed"
    return made.exists() and made.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime


def read(document: Path, binaries: Path, rules: Rules, write: bool) -> Session:
    """Runs one document in a copy of the sources."""
    print(f"== {document.relative_to(ROOT)}", flush=True)
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*-out")
    text = document.read_text()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "contraflow"
        shutil.copytree(ROOT, folder, ignore=ignored)
        if installed():  # for `make`, which would spend minutes on another
            (folder / ".venv").symlink_to(ROOT / ".venv")
        session = Session(folder, binaries, rules)
        lines = text.splitlines()
        for block in blocks(text):
            changed = session.block(block, write)
            for k, line in enumerate(changed or []):
                if line != block.lines[k]:
                    lines[block.first + k] = f"    {line}"
    for span in dict.fromkeys(inline(text)):
        if (reason := rules.reason(span)) is not None:
            session.left_out.append(f"{span}: {reason}")
    if write:
        document.write_text("\n".join(lines) + "\n")
    return session


def main() -> int:
    """Runs the documents named, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="*", type=Path)
    parser.add_argument("--bin", type=Path, required=True, help="where the installed commands are")
    parser.add_argument("--write", action="store_true", help="replace the outputs shown by those printed")
    given = parser.parse_args()
    documents = given.documents or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    rules = Rules(Path(__file__).with_suffix(".toml"))
    sessions = [read(document.resolve(), given.bin.resolve(), rules, given.write) for document in documents]
    left_out = [each for session in sessions for each in session.left_out]
    failed = [each for session in sessions for each in session.failed]
    if not given.documents:
        failed += [f"docs.toml: {entry!r} fits nothing" for entry in rules.unused()]
    print(f"-- not run ({len(left_out)}):", *left_out, sep="\n   ")
    counts = (sum(session.count for session in sessions), sum(session.checked for session in sessions))
    print(
        f"-- {counts[0]} commands of {len(documents)} documents run, {counts[1]} outputs compared, {len(failed)} failed"
    )
    print(*(f"   {each}" for each in failed), sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
