"""The documents: what CI takes for a command in them, and that the options they name exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from contraflow.__main__ import cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = ("planner", "executor", "models", "tests", "benchmarks", "examples", ".ci")
RESULTS = ROOT / "benchmarks" / "results"
FOREIGN = {
    "--pipeline-model-parallel-layout",
    "--patience",  # docs/extending.md adds it
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--ntasks-per-node", "--nodes", "--signal"),
    *("--no-deps", "--no-binary", "--nproc-per-node", "--max-restarts", "--rdzv-id", "--strict", "--check", "--write"),
}
"""Options of other programs, and of an example."""
YOURS = {"cluster.toml"}
"""Files that a reader has, or makes."""

_spec = importlib.util.spec_from_file_location("docs_runner", ROOT / ".ci" / "docs.py")
assert _spec is not None
assert _spec.loader is not None
docs: Any = importlib.util.module_from_spec(_spec)
sys.modules["docs_runner"] = docs
_spec.loader.exec_module(docs)

TEXT = """
Text with `contraflow show plan.json`.

    contraflow plan a.json \\
        -o plan.json        # more
    not a command

<!-- run: shows -->

    contraflow compare x

    name   step
    a       3 s
    ...
    b       5 s

<!-- run: write cluster.toml -->
```toml
[[nodes]]
```

<!-- run: table -->
| what | `contraflow check plan.json \\| cat` |
|---|---|

    from x import y
"""


def test_blocks_are_found_with_what_is_asked_of_them() -> None:
    """Indented ones, fences, tables; continued lines are one command."""
    plan, compare, write, table, python = docs.blocks(TEXT)
    assert plan.commands() == ["contraflow plan a.json  -o plan.json        # more"]
    assert compare.directives == {"shows": ""}
    assert [compare.lines[k] for k in compare.shown()] == ["name   step", "a       3 s", "...", "b       5 s"]
    assert (write.directives, write.lines) == ({"write": "cluster.toml"}, ["[[nodes]]"])
    assert table.commands() == ["contraflow check plan.json | cat"]
    assert python.language == "python"
    assert docs.inline(TEXT)[0] == "contraflow show plan.json"


def test_shown_output_must_have_been_printed() -> None:
    """Cell by cell, in order, whatever is drawn around them; and it can be written anew."""
    printed = "│ name │ step │\n│ a │  4 s │\n│ c │ 9 s │\n│ b │ 12 s │"
    shown = ["name   step", "a       3 s", "...", "b      12 s"]
    assert docs.differences(shown, printed) == ["a       3 s"]
    assert docs.differences(shown[::3], printed) == []
    assert docs.differences(["b  12 s", "name  step"], printed) == ["name  step"]
    assert docs.rewritten(shown, printed) == ["name   step", "a       4 s", "...", "b      12 s"]


def test_options_are_shortened_by_rule() -> None:
    """Large values are lowered, small ones stay, and a search without a limit gets one."""
    rules = docs.Rules(ROOT / ".ci" / "docs.toml")
    assert rules.shortened("contraflow execute p.json --steps 1000") == "contraflow execute p.json --steps 4"
    assert rules.shortened("contraflow execute p.json --steps 3") == "contraflow execute p.json --steps 3"
    assert rules.shortened("contraflow plan m.json -o p # x") == "contraflow plan m.json -o p --time-limit 5 # x"
    assert rules.shortened("contraflow plan m.json --time-limit 2") == "contraflow plan m.json --time-limit 2"


def commands_of(command: click.Command) -> Iterator[click.Command]:
    """A command and all that it is a group of."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in filter(None, (command.get_command(context, name) for name in command.list_commands(context))):
            yield from commands_of(each)


def known_options() -> set[str]:
    """Of every command, and of the programs in benchmarks, examples and .ci."""
    options = [option for command in commands_of(cli) for option in command.params]
    found = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    found |= {"--help", "--version"}
    sources = (path for folder in ("benchmarks", "examples", ".ci", "tests") for path in (ROOT / folder).rglob("*.py"))
    declared = re.compile(r"add(?:_argument|option)\(\s*\"(--[a-z-]+)")
    return found | {option for path in sources for option in declared.findall(path.read_text())}


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.exists()], ids=lambda path: path.name)
def test_every_option_named_exists(path: Path) -> None:
    """In prose, tables and blocks."""
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", re.sub(r"<!--|-->", "", path.read_text())))
    assert named <= known_options() | FOREIGN


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.exists()], ids=lambda path: path.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    """Links within the project, pictures included."""
    links = re.findall(r"\]\(([^)#\s]+)|\bsrc(?:set)?=\"([^\"]+)\"", path.read_text())
    missing = [link for link in map("".join, links) if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_import_that_a_document_shows_is_there(path: Path) -> None:
    """Names and modules of the package; whatever else its blocks do is run by CI."""
    shown = re.findall(r"^ *from (contraflow[\w.]*) import ([\w, ]+)$", path.read_text(), flags=re.MULTILINE)
    for module, names in shown:
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            found = importlib.import_module(module)
            assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module}: {name}"


@pytest.mark.parametrize("path", [*DOCUMENTS, *sorted(RESULTS.glob("*.md"))], ids=lambda path: path.name)
def test_every_file_that_a_document_names_is_there(path: Path) -> None:
    """By the end of its path; in CONTRIBUTING.md but for the table of old names."""
    text = re.sub(r"## Where things went.*?(?=\n## )", "", path.read_text(), flags=re.DOTALL)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no git checkout")
    named = re.findall(r"`([\w./-]+\.(?:py|toml|sh))\b", text)
    ends = {"/".join(Path(file).parts[-count:]) for file in listed for count in range(1, len(Path(file).parts) + 1)}
    assert [name for name in named if name not in ends | YOURS] == []
    rooms = re.findall(r"`((?:planner|executor|models|tests|benchmarks)/[\w/-]*)`", text)
    assert [room for room in rooms if not (ROOT / room).is_dir()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_identifier_that_a_document_names_is_somewhere(path: Path) -> None:
    """Functions, classes, options and keys in backticks: a word of the sources, or of torch."""
    text = re.sub(r"## Where things went.*?(?=\n## )|```.*?```", "", path.read_text(), flags=re.DOTALL)
    named = {word for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text) for word in name.split(".") if word}
    assert sorted(named - words_of_the_sources() - {"record_stream"}) == []


@cache
def words_of_the_sources() -> frozenset[str]:
    """Every word of a source, and the parts of the names of files."""
    files = [ROOT / "pyproject.toml", ROOT / "__main__.py"]
    files += [file for part in SOURCES for file in (ROOT / part).rglob("*.py")]
    names = [file.name for file in [*files, *DOCUMENTS, ROOT / "CHANGELOG.md"]]
    return frozenset(re.findall(r"\w+", "\n".join([*names, *(file.read_text() for file in files)])))


def test_the_table_of_old_names_leads_to_modules_that_are_there() -> None:
    """CONTRIBUTING.md: every old name to one or several modules of the room that its row names."""
    rows = re.findall(r"^\| `(\w[\w/]*/)` \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(rows) > 20
    for room, cell in rows:
        for old, new in re.findall(r"`([\w/]+)`(?: → `([\w{},]+)`)?", cell):
            names = (new or old.rpartition("/")[2]).strip("{}").split(",")
            assert [name for name in names if not (ROOT / room / f"{name}.py").is_file()] == [], f"{old} in {room}"


def test_the_way_of_a_micro_batch_names_functions_that_are_there() -> None:
    """Every `file.py: name` of a row of docs/architecture.md, in the row's room or what lies beside it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert text.count("\n") <= 250, "the map of the house is read in one go"
    rows = re.findall(r"^\| `((?:planner|executor)[\w/]*)` \| (.*?) \|", text, re.M)
    pairs = [(room, *found) for room, cell in rows for found in re.findall(r"`([\w.]+): (\w+)`", cell)]
    assert len(pairs) > 20
    for room, file, name in pairs:
        source = (ROOT / room / file).read_text()
        assert re.search(rf"^((def|class) {name}\b|{name} = )", source, re.M), (room, file, name)


def test_tables_between_marks_are_made_from_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never typed: `python benchmarks/tables.py` changes nothing."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables: Any = importlib.import_module("tables")
    marked = [path for path in tables.PAGES if "<!-- table " in path.read_text()]
    assert marked
    assert [path.name for path in marked if tables.rewritten(path.read_text()) != path.read_text()] == []
    shown = {name for path in marked for name in tables.names(path.read_text())}
    assert all(origin.commit and origin.machine for name in shown for origin in tables.load(name).origins)
    saved = {path.relative_to(tables.RESULTS).with_suffix("").as_posix() for path in tables.RESULTS.rglob("*.json")}
    assert {name for name in saved if not name.startswith("reliability/")} == shown
    assert [first for path in tables.RESULTS.glob("*.md") for first in tables.typed(path.read_text())] == []


def test_what_was_typed_is_told_without_this_machines_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a file whose place matters to nobody else the name is enough."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables: Any = importlib.import_module("tables")
    monkeypatch.setattr(sys, "argv", ["/somewhere/runtime.py", "--state", str(tmp_path / "kept.json"), "--rounds", "3"])
    assert tables.origin().command == "python benchmarks/runtime.py --state kept.json --rounds 3"
