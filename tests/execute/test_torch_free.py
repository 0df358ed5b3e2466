"""What starts before torch is there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT = "import sys; sys.modules['torch'] = None; from contraflow.__main__ import main; main()"
"""The command line where importing torch fails as where it is not installed."""


@pytest.mark.parametrize("module", ["watch", "basics", "cli.execute", "cli.profile", "measure.probe"])
def test_what_must_start_at_once_loads_no_torch(module: str) -> None:
    """A spawned rank is watched and bound to its parent before it imports anything large; `--help` needs nothing."""
    program = f"import contraflow.executor.{module}, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_planning_needs_no_torch_and_what_does_says_so_in_a_line(tmp_path: Path) -> None:
    """Exit code 2, and what to install; from a model.json on, planning, checking and pictures do without."""
    asked = [ROOT / "examples/toy-model.json", "--cluster", ROOT / "examples/cluster-toy.toml", "--micro-batches", "4"]
    file = str(tmp_path / "plan.json")
    for command in (
        ["plan", *map(str, asked), "--schedule", "1f1b", "-o", file],
        ["check", file],
        ["show", file],
        ["env"],
    ):
        found = without_torch(*command)
        assert found.returncode == 0, found.stderr
    for command in (["execute", file], ["profile", "gpt-tiny"], ["plan", "gpt-tiny", *map(str, asked[1:])]):
        found = without_torch(*command)
        line = "contraflow: this command needs torch, which is not installed: pip install 'contraflow[torch]'\n"
        assert (found.returncode, found.stderr.splitlines(True)[-1]) == (2, line)


ELSEWHERE = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["torch"] = None
for owner, names in ((os, ("posix_spawn", "O_CLOEXEC", "fchmod", "fchown", "nice")), (signal, ("SIGHUP", "alarm"))):
    for name in names:
        delattr(owner, name)
from contraflow.__main__ import main
main()
"""
"""The command line without what only POSIX systems have."""


def test_planning_needs_no_posix(tmp_path: Path) -> None:
    """A plan is searched, written over another and read where there is none of it."""
    file = tmp_path / "plan.json"
    file.write_text("before")
    toy = [str(ROOT / "examples/toy-model.json"), "--cluster", str(ROOT / "examples/cluster-toy.toml")]
    for command in (["plan", *toy, "--micro-batches", "2", "--time-limit", "2", "-o", str(file)], ["check", str(file)]):
        found = subprocess.run([sys.executable, "-c", ELSEWHERE, *command], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr


def test_the_planner_is_installed_without_torch() -> None:
    """Its extra has no upper bound; what tests install has all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.split(">")[0] for line in project["dependencies"]}
    assert not names & {"torch", "safetensors", "scikit-learn"}
    assert "torch>=2.11" in project["optional-dependencies"]["torch"]
    assert "'.[torch,test,lint]'" in (ROOT / "Makefile").read_text()
