"""Teams under a real torchrun, as docs/training.md starts them: they train, and fail, as ranks that we start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import faulty
import pytest
from runs import STEPS, Case, run_plans_together
from safetensors.torch import load_file
from team_plans import team_plan
from torch import Tensor

from contraflow.executor.run.checkpoint_files import folder_of
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import save_plan

pytestmark = pytest.mark.slow
LIMIT_S = 600.0


def torchrun(plan: Plan, folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`torchrun -m contraflow execute` of a plan, on sockets of this machine alone."""
    save_plan(plan, folder / "plan.json")
    ranks = len(plan.orders) * plan.problem.cluster.team
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*start, "-m", "contraflow", "execute", str(folder / "plan.json"), *options]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "kit"), *sys.path])
    given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=given)


def test_two_teams_train_as_those_that_we_start(tmp_path: Path) -> None:
    """A model of one's own with its parallel plan: losses, parameters and optimizer state, bit for bit."""
    plan = team_plan(Case("1f1b", "parallel_model:build", 2, 4), (("tensor", 2),))
    saved = tmp_path / "saved"
    found = torchrun(
        plan, tmp_path, "--model", "parallel_model:build", "--steps", str(STEPS), "--checkpoint", str(saved), "--json"
    )
    assert found.returncode == 0, found.stderr
    (ours,) = run_plans_together([plan], tmp_path)
    assert json.loads(found.stdout)["losses"] == list(ours.losses)
    assert ours.state
    left = dict[str, Tensor]()
    for file in folder_of(saved, STEPS).glob("*.safetensors"):
        left |= load_file(file)
    for name, tensor in ours.state.items():
        assert left[name].equal(tensor), name


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("sleep", "hangs in stage 0, op 0F2, micro-batch 2, step 1: no progress for 3 s"),
        ("stop", "has been stopped, last seen "),
        ("kill", "has ended without a result, last seen "),
    ],
)
def test_a_lane_that_fails_is_named_once(how: str, says: str, tmp_path: Path) -> None:
    """By one rank, in one line beside torchrun's own."""
    fault = {"FAULT": how, "FAULT_RANK": "1", "FAULT_AT": "12"}
    options = ("--model", "faulty:model", "--steps", "3", "--timeout", "3")
    found = torchrun(faulty.of_one_team(), tmp_path, *options, **fault)
    assert found.returncode == 1
    told = [line for line in found.stderr.splitlines() if line.startswith("contraflow: ")]
    assert len(told) == 1, found.stderr
    assert told[0].startswith(f"contraflow: rank 1 (lane 1 of device 0) {says}")
