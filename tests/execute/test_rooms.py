"""How the executor's modules hang together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from imports import ImportGraph


def test_the_executors_modules_import_in_no_circle() -> None:
    """Imports inside functions and for types alone included: every module can be read before those that use it."""
    graph = ImportGraph.of()
    assert len([name for name in graph.modules if name.startswith("executor")]) > 80
    assert [circle for circle in graph.circles if any(name.startswith("executor") for name in circle)] == []


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    """One arrow at the top, one for types alone, one inside a function."""
    room = tmp_path / "planner" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("from .a import x\n")
    (room / "a.py").write_text("from .b import y\n")
    (room / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import c\n")
    (room / "c.py").write_text("def work():\n    from ..room.a import x\n")
    graph = ImportGraph.of(tmp_path)
    assert graph.circles == [["planner.room.a", "planner.room.b", "planner.room.c"]]
    (room / "c.py").write_text("")
    graph = ImportGraph.of(tmp_path)
    assert (graph.circles, graph.depth, len(graph.edges)) == ([], 4, 3)


@pytest.mark.parametrize("module", ["watch", "basics", "cli.execute", "cli.profile"])
def test_what_must_start_at_once_loads_no_torch(module: str) -> None:
    """A spawned rank is watched and bound to its parent before it imports anything large; `--help` needs nothing."""
    program = f"import contraflow.executor.{module}, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
