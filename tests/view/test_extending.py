"""docs/extending.md: every recipe runs as it stands, from outside the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from contraflow.executor.basics import TRANSPORTS
from contraflow.executor.run import RUNNERS

RECIPES = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", RECIPES, re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.parametrize("block", [code for _, code in BLOCKS], ids=[title.replace(" ", "-") for title, _ in BLOCKS])
def test_every_recipe_runs(block: str, tmp_path: Path) -> None:
    """In a process of its own, since it adds to tables; its assertions are the test."""
    assert "assert " in block
    found = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_everything_that_can_be_added_has_a_recipe() -> None:
    """Every row of the table at the top has a section with code, and the other way round."""
    rows = re.findall(r"^\| \[([^\]]+)\]\(#([\w-]+)\)", RECIPES, re.MULTILINE)
    assert [name for name, _ in rows] == [title[0].lower() + title[1:] for title, _ in BLOCKS]
    assert [name.replace(" ", "-") for name, _ in rows] == [anchor for _, anchor in rows]


def test_every_transport_has_a_runner() -> None:
    """The command knows their names without torch."""
    assert tuple(RUNNERS) == TRANSPORTS
