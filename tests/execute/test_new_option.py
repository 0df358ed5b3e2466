"""An option of `execute` takes two places: its field, and the code that reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import Case, planned

from contraflow.planner.plan_file import save_plan

ROOT = Path(__file__).parents[2]
EDITS = {
    "executor/basics/options.py": (
        "    self_check: bool = field(",
        '    marker: str = field(default="", metadata=option("Every rank leaves a file of this name and its rank."))\n',
    ),
    "executor/run/rank.py": (
        "    place = place_of(",
        '    with open(f"{job.options.marker}.{wires.rank}", "w"):\n        pass\n',
    ),
}
"""By file: the line before which what is new stands."""

COMPARED = """
import sys
from contraflow.__main__ import cli
from contraflow.executor.run import execute, prepare
from contraflow.executor.run.roll_call import Presence
from contraflow.planner.plan_file import load_plan

job = prepare(load_plan(sys.argv[1]), 1, marker="here")
print(Presence.of(job).must["marker"])
try:
    execute(load_plan(sys.argv[1]), 1, marked="here")
except TypeError as error:
    print(error)
cli(["execute", "--help"], standalone_mode=False)
"""


@pytest.mark.slow
def test_a_new_option_reaches_every_rank_from_the_command_line_by_two_edits(tmp_path: Path) -> None:
    """In a copy of the sources: it is in the help, every process has it, ranks compare it, `execute` takes it."""
    package = tmp_path / "contraflow"
    for part in ("planner", "executor", "models"):
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("*.pyc.*", "*.nb?"))
    for file in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / file, package / file)
    for file, (before, new) in EDITS.items():
        text = (package / file).read_text()
        assert text.count(before) == 1
        (package / file).write_text(text.replace(before, new + before))
    save_plan(planned(Case("1f1b", "mlp-tiny", 2, 4)), tmp_path / "plan.json")

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        found = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    run("-m", "contraflow", "execute", "plan.json", "--steps", "1", "--marker", "here")
    assert sorted(path.name for path in tmp_path.glob("here.*")) == ["here.0", "here.1"]
    compared, refused, *helped = run("-c", COMPARED, "plan.json").splitlines()
    assert compared == "here"
    assert "unexpected keyword argument 'marked'" in refused
    assert any("--marker" in line for line in helped)
