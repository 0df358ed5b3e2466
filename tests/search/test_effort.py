"""Every share, size, count and tolerance of the search stands in effort.py: none beside it, none twice, none unread."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from contraflow.planner import search
from contraflow.planner.search.common import effort

ROOT = Path(search.__file__).parent
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KERNELS = "numba keeps what it compiled by the kernel's own file"
ELSEWHERE = {
    "orders/kernels.py": {"KINDS": KERNELS, "NEVER": KERNELS, "_CLOSE": KERNELS},
    "orders/greedy.py": {"PARAMETERS": KERNELS},
    "common/balancing.py": {"RANDOM": KERNELS},
    "flow/anneal.py": dict.fromkeys(("DEVICES_SWAPPED", "ENDS", "ONE_END", "REMADE", "RUN", "STAGES_MOVED"), KERNELS),
    "flow/arm.py": {"_GOLDEN": "spreads seeds over 64 bits"},
    "flow/kernel.py": dict.fromkeys(("_CLOSE", "_SHORTEST"), KERNELS),
    "flow/tables.py": {"INTERVALS": "how many rows a table has"},
    "jit/gaps.py": dict.fromkeys(("CLOSE", "NEVER"), KERNELS),
    "modulo/kernel.py": dict.fromkeys(("_FINE", "_HALVED", "_NEAR", "_SHORTEST"), KERNELS),
    "modulo/tables.py": dict.fromkeys(("ROWS", "TIMES"), "how many rows a table has")
    | {"CLOSED": "stands for a place, not for an amount"},
    "periodic/kernel.py": dict.fromkeys(("AHEAD", "NEVER", "RULES", "_CLOSE", "_SHORTEST"), KERNELS),
    "periodic/walk.py": dict.fromkeys(("GAPS", "SLOTS", "SLOWER", "SLOWEST"), KERNELS),
    "periodic/dispatch.py": {"_CLOSE": KERNELS},
    "periodic/rules.py": dict.fromkeys(
        ("GAPS", "LONGER", "LONGEST", "PAUSES", "PAUSES_BACK", "TURNS", "_GAP_STEP", "_SHARE_STEP", "_STEP"), KERNELS
    ),
    "periodic/grown.py": {"_GOLDEN": "spreads seeds over 64 bits"},
    "periodic/cases.py": {"LAST": "marks the end of a pass"},
    "periodic/block.py": {"_GOLDEN": "spreads seeds over 64 bits"},
    "modulo/arm.py": {"_GOLDEN": "spreads seeds over 64 bits"},
    "steady/mixture_plans.py": dict.fromkeys(("_AHEAD", "_FREED", "_TICKS"), "ticks of a list's order"),
    "separate/tables.py": dict.fromkeys(
        ("BEGUN", "DONE", "FREED", "HALF", "HOP", "LEFT", "REFUSED", "REMADE_F", "STATE", "WAITING"), "rows of tables"
    )
    | dict.fromkeys(("QUARTERS", "ROWS", "TYPES"), "how many rows a table has")
    | dict.fromkeys(("STAGE_AT", "BATCH_AT", "DEVICE_AT"), "bits of a code"),
    "separate/starts.py": {"_SPREAD": "bits"},
    "separate/arm.py": {"_GOLDEN": "spreads seeds over 64 bits"},
    "exact/floor.py": {"_FAR": "more than any number of ticks"},
    "orders/arm.py": {"_GOLDEN": "spreads seeds over 64 bits"},
    "named/fullest.py": {"_TOGETHER": "rows that are compared at once"},
    "named/stash_choices.py": {"TURNS": "an order, no size"},
    "what_ifs.py": {"FASTER": "what is asked, not how hard"},
    "steady/two_devices.py": {"TRANSIT": "a count of the memory model"},
    "steady/tables.py": {"_MANY": "a unit"},
}
"""Numbers of modules that bound no effort, with the reason why they stand where they do."""
COMPILED = {f"orders/{name}.py" for name in ("kernels", "greedy", "anneal")} | {
    "flow/anneal.py",
    "flow/kernel.py",
    "jit/draws.py",
    "jit/gaps.py",
    "modulo/anneal.py",
    "modulo/kernel.py",
    "periodic/dispatch.py",
    "periodic/kernel.py",
    "periodic/rules.py",
    "periodic/walk.py",
    "separate/anneal.py",
    "separate/dispatch.py",
}
PLAIN = {0.0, 0.5, 1.0, 2.0}
"""Fractions that say what they are."""
TINY = {
    ("steady/bisect.py", 1e-300),
    ("steady/chains.py", 1e-300),
    ("orders/anneal.py", 1e-300),
    ("separate/anneal.py", 1e-300),
}
"""The least number above 0."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax of every module of the search but effort.py."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name != "common/effort.py":
            yield name, ast.parse(path.read_text())


def numbers(node: ast.AST) -> bool:
    """Whether an expression is made of numbers alone."""
    inner = [x for x in ast.walk(node) if isinstance(x, (ast.Name, ast.Call, ast.Attribute))]
    leaves = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
    return not inner and bool(leaves) and all(type(x) in (int, float) for x in leaves)


def test_modules_have_no_numbers_of_their_own() -> None:
    """Constants of numbers outside effort.py are those that are listed, each with its reason."""
    found: dict[str, set[str]] = {}
    for name, tree in modules():
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and numbers(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}
                found.setdefault(name, set()).update(names)
    assert found == {name: set(given) for name, given in ELSEWHERE.items()}


def test_only_kernels_have_fractions_in_their_code() -> None:
    """No function has a share or a tolerance in it, but those that are compiled."""
    found = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is float and abs(node.value) not in PLAIN
        if (name, node.value) not in TINY
    }
    assert found == COMPILED


def records() -> list[object]:
    """The records of effort.py, those within others too."""
    found = [value for value in vars(effort).values() if hasattr(type(value), "__dataclass_fields__")]
    inner = [getattr(record, field.name) for record in found for field in fields(record)]  # type: ignore[arg-type]
    return found + [value for value in inner if hasattr(value, "__dataclass_fields__")]


def test_every_number_is_explained_and_read() -> None:
    """A sentence follows every number of effort.py, and some module reads it under its record's name."""
    tree = ast.parse(Path(effort.__file__).read_text())
    for record in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name != "PhaseShares"):
        body = record.body[1:]
        for field, text in zip(body[::2], body[1::2], strict=True):
            assert isinstance(field, ast.AnnAssign)
            assert isinstance(text, ast.Expr), ast.unparse(field)
    read = {
        (node.value.id, node.attr)
        for _, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    named = {name: value for name, value in vars(effort).items() if is_dataclass(value) and name.isupper()}
    unread = {(n, f.name) for n, value in named.items() for f in fields(value) if (n, f.name) not in read}
    assert not unread
    assert len(named) == len([value for value in records() if not isinstance(value, effort.PhaseShares)])


def test_what_has_a_row_does_not_say_that_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of the records of choices has a row of its value in the benchmark's results, or says how it was
    measured or "Not measured."."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables: Any = importlib.import_module("tables")
    values = {row[0]: row[1] for row in tables.load("effort").rows}
    owners = {
        type(value).__name__: name for name, value in vars(effort).items() if is_dataclass(value) and name.isupper()
    }
    silent, denied = set(), set()
    for record in ast.parse(Path(effort.__file__).read_text()).body:
        if isinstance(record, ast.ClassDef) and record.name in owners.keys() - {"Seconds", "Tolerances"}:
            for field, text in zip(record.body[1::2], record.body[2::2], strict=True):
                said, owner = " ".join(ast.unparse(text).split()), owners[record.name]
                name = ast.unparse(field).partition(":")[0]
                row = values.get(f"{owner}.{name}") == repr(getattr(getattr(effort, owner), name))
                if row and "Not measured." in said:
                    denied.add(f"{owner}.{name}")
                if not row and "Not measured." not in said and "Measured: " not in said:
                    silent.add(f"{owner}.{name}")
    assert (silent, denied) == (set(), set())
