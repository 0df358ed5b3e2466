"""`--skipped FILE`: what CI runs again when it has what a bare machine lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("value", ["a b", 2])
def test_lacks(value):
    pytest.skip("nothing here")

@pytest.mark.xfail
def test_known():
    assert False

def test_runs():
    pass
"""


def test_skipped_tests_are_listed_and_can_be_run_again(tmp_path: Path) -> None:
    """Tests with spaces in their names and modules that are skipped whole; not what failed as expected."""
    (tmp_path / "conftest.py").write_text((Path(__file__).parents[1] / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_none.py").write_text('import pytest\npytest.importorskip("no_such_package")\n')

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    assert "1 passed, 3 skipped, 1 xfailed" in run("--skipped", "list")
    found = (tmp_path / "list").read_text().splitlines()
    assert sorted(found) == ["test_none.py", "test_some.py::test_lacks[2]", "test_some.py::test_lacks[a b]"]
    assert "3 skipped in" in run("@list")
