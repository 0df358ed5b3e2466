"""The rules of the house: who imports whom, what is reached from a door, what may be long."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contraflow.__main__ import _COMMANDS

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("house", ROOT / ".ci" / "house.py")
assert _spec is not None
assert _spec.loader is not None
house: Any = importlib.util.module_from_spec(_spec)
sys.modules["house"] = house
_spec.loader.exec_module(house)

HERE = house.House(ROOT)
PUBLIC = ("planner", "planner.formats", "models", "executor.oracle")
"""Faces of which every name is for users; of others it is what a document or an example imports."""
STARTED = {"executor.measure.probe"}
"""Run as `python -m`, in a process that may fail."""
MOST_FLOORS = 34


WORD = re.compile(r"\w+")


def documented() -> Iterator[tuple[str, str]]:
    """Every name that a document or an example imports, and from where."""
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        text = path.read_text()
        for base, listed in re.findall(r"from contraflow\.([\w.]+) import (\([^)]*\)|[\w, ]+)", text):
            for name in re.findall(r"(\w+)(?: as \w+)?", listed):
                yield base, name
        for base in re.findall(r"`contraflow\.([\w.]+)`", text):
            yield base.rpartition(".")[0], base.rpartition(".")[2]


def doors() -> set[str]:
    """The modules of the commands, and those that define a public name."""
    shown = {(face, name) for face in PUBLIC for _, name in HERE.imported(face) if name is not None}
    homes = {HERE.home(base, name) for base, name in shown | set(documented())}
    commands = {entry.module.removeprefix(".") for entry in _COMMANDS.values()}
    return {"__main__", *commands, *STARTED, *(home for home in homes if home is not None)}


@pytest.mark.long
def test_every_module_is_reached_from_a_command_or_a_public_name() -> None:
    reached = HERE.reached(doors())
    assert [module for module in HERE.files() if module not in reached and not HERE.is_face(module)] == []


def test_every_name_of_a_face_is_of_use_to_another_room() -> None:
    """Or to the tests, a benchmark or a document: what nobody asks for is not shown."""
    asked = {pair for module in HERE.files() for pair in HERE.imported(module)} | set(documented())
    others = [path for part in ("tests", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")]
    texts = "\n".join(path.read_text() for path in others)
    idle = []
    for face in filter(HERE.is_face, HERE.files()):
        if face in PUBLIC or face.count(".") == 0:
            continue
        for name in exported(face):
            if (face, name) not in asked and not re.search(rf"\b{name}\b", texts):
                idle.append(f"{face}: {name}")
    assert idle == []


def test_every_function_is_of_use_outside_the_tests() -> None:
    """Or shown to users, by a public face, a document or an example."""
    told = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "examples").glob("*.py")]
    python_itself = {"__getattr__"}
    used = python_itself | {word for path in told for word in WORD.findall(path.read_text())}
    trees = {module: HERE.tree(module) for module in HERE.files()}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                used.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(
                node, ast.ImportFrom
            ):  # under another name in a face: whether that is idle, another test says
                used.update(alias.name for alias in node.names if alias.asname or not HERE.is_face(module))
    idle = [
        f"{module}: {node.name}"
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list and node.name not in used
    ]
    assert [name for name in idle if name.split(": ")[1] not in {x for face in PUBLIC for x in exported(face)}] == []


def exported(face: str) -> list[str]:
    """A face's `__all__`."""
    for node in HERE.tree(face).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def test_every_face_says_what_lives_there_what_it_imports_and_where_to_begin() -> None:
    short = []
    for face in filter(HERE.is_face, HERE.files()):
        words = (ast.get_docstring(HERE.tree(face)) or "").split()
        if len(words) < 25 and face != "models":
            short.append(face)
    assert short == []


def test_every_room_is_shipped_and_entered_by_its_face() -> None:
    """It stands in `packages` of pyproject.toml, and its modules are protected in .ci/imports.toml."""
    faces = {face for face in HERE.files() if HERE.is_face(face)}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert {name.partition(".")[2] for name in packages} - {""} == faces
    contracts = tomllib.loads((ROOT / ".ci" / "imports.toml").read_text())["tool"]["importlinter"]["contracts"]
    protected = {name for contract in contracts for name in contract.get("protected_modules", ())}
    assert protected == {f"contraflow.{face}.*" for face in faces if "." in face}


def test_nobody_imports_in_circles() -> None:
    """Lazily or for types alone, between modules or between rooms."""
    assert house.circles(HERE.arrows()) == []
    assert house.circles(HERE.rooms()) == []
    assert house.floors(HERE.arrows()) <= MOST_FLOORS


PLANTED = {
    # file: a line of it, and the rule it breaks
    "planner/graph/candidate.py": ("def planted():\n    from ..search import plan\n", "Rooms of the planner"),
    "planner/lower/lowering.py": ("if TYPE_CHECKING:\n    import torch\n", "The planner knows neither torch"),
    "planner/schedules/layout.py": ("from ..problem.cluster import Cluster\n", "planner.problem is entered"),
    "executor/place/place.py": ("from ..step import interpreter\n", "Rooms of the executor"),
    "models/registry.py": ("from ..planner import Plan\n", "models, planner, executor, command line"),
    "planner/search/exact/search.py": ("from ..driver import plan\n", "Rooms of the search"),
}  # fmt: skip


def test_the_rules_of_imports_fail_on_planted_violations(tmp_path: Path) -> None:
    """Every rule in a copy of the sources; without them the copy passes."""
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if lint is None:
        pytest.skip("import-linter is not installed")
    package = tmp_path / "contraflow"
    for part in ("planner", "executor", "models"):
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / file, package / file)

    def run() -> tuple[int, str]:
        command = [lint, "--config", str(ROOT / ".ci" / "imports.toml"), "--no-cache"]
        environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return found.returncode, found.stdout

    code, said = run()
    assert code == 0, said
    for file, (line, _) in PLANTED.items():
        (package / file).write_text((package / file).read_text() + "\n" + line)
    code, said = run()
    assert code == 1
    kept = said.partition("Broken contracts")[0]
    for _, rule in PLANTED.values():
        assert re.search(rf"{re.escape(rule)}.* BROKEN", kept), f"{rule}: {kept}"


def test_what_is_excepted_from_the_rules_of_length_needs_it() -> None:
    """Exceptions stand in pyproject.toml alone, and those that are needed no more go."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        pytest.skip("ruff is not installed")
    excepted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    command = [ruff, "check", "--isolated", "--ignore-noqa", "--select", "C901,PLR0913", "--output-format", "json"]
    limits = ["--config", "lint.mccabe.max-complexity = 15", "--config", "lint.pylint.max-args = 7"]
    found = subprocess.run([*command, *limits, *excepted], cwd=ROOT, capture_output=True, text=True, check=False)
    broken = {(str(Path(row["filename"]).relative_to(ROOT)), row["code"]) for row in json.loads(found.stdout)}
    assert broken == {(file, rule) for file, rules in excepted.items() for rule in rules}
    for part in ("planner", "executor", "models", "tests", "benchmarks"):
        for path in (ROOT / part).rglob("*.py"):
            assert not re.search(r"noqa:[^\n]*(C901|PLR0913)\b", path.read_text()) or path == Path(__file__), path
