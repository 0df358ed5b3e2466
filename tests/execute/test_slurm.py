"""The SLURM script of docs/clusters.md, with a srun that starts its two tasks on this machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contraflow.planner import Cluster, Link, ModelGraph, SearchSpace, Workload, plan, save_plan
from contraflow.planner.problem import PRESETS, NodeGroup

ROOT = Path(__file__).parents[2]
TOOLS = {
    "scontrol": 'test "$*" = "show hostnames here[1-2]" && echo 127.0.0.1 && echo 127.0.0.1',
    "srun": 'for k in 0 1; do SLURM_NODEID=$k SLURM_PROCID=$k SLURM_NNODES=2 "$@" & pids="$pids $!"; done\n'
    "for pid in $pids; do wait $pid || exit 1; done",
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}


def script() -> str:
    """The page's, as it stands there."""
    page = (ROOT / "docs" / "clusters.md").read_text().partition("## SLURM")[2]
    block = re.search(r"^    #!/bin/bash\n(?:    .*\n)+", page, re.MULTILINE)
    assert block is not None
    return re.sub("^    ", "", block[0], flags=re.MULTILINE)


@pytest.mark.slow
def test_the_script_starts_an_agent_a_node(tmp_path: Path) -> None:
    """Two nodes of one rank each train three steps, and leave a checkpoint that goes on."""
    from contraflow.executor.measure import profile_model
    from contraflow.models import resolve

    graph = ModelGraph.from_dict(profile_model(resolve("mlp-tiny"), 4, rounds=1, load=1))
    nodes = Cluster((NodeGroup(2, 1, PRESETS["cpu"], Link()),), Link(1e9, 1e-4))
    found = plan(graph, nodes, Workload(4), SearchSpace("1f1b"), time_limit=20).plan
    assert found is not None
    save_plan(found, tmp_path / "plan.json")
    for name, lines in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = script()
    for before, after in (("-per-node 4", "-per-node 1"), ("29500", str(port)), ("--steps 100", "--steps 3")):
        assert before in text
        text = text.replace(before, after)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "here[1-2]"}
    ran = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert list((tmp_path / "run").glob("*3*"))
