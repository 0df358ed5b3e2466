"""Measuring under load: companions change times, not bytes; this computer as a cluster; what a reduction costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from failing_work import Elsewhere, fail, killed

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.measure.companions import Pace, companions
from contraflow.executor.measure.machine import Machine, measure_machine
from contraflow.executor.measure.profile import profile_model
from contraflow.models import LayeredModel, resolve
from contraflow.planner import Cluster, ModelGraph
from contraflow.planner.basics.errors import ClusterError
from contraflow.planner.graph.reductions import reduce_seconds
from contraflow.planner.problem.cluster import Link

MIB = 1 << 20


@pytest.mark.slow
def test_companions_change_seconds_only() -> None:
    """Bytes and shapes are those of a process alone."""
    alone, together = (profile_model(resolve("mlp-tiny"), 2, rounds=1, load=load) for load in (1, 2))
    ModelGraph.from_dict(together)
    for one, two in zip(alone["layers"], together["layers"], strict=True):
        assert {key: one[key] for key in one if not key.endswith("_s")} == {
            key: two[key] for key in two if not key.endswith("_s")
        }
        assert two["forward_s"] > 0


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (fail, "has failed: RuntimeError: no$"),
        pytest.param(killed, "has failed: it ended with exit code -9$", marks=pytest.mark.slow),
        pytest.param(Elsewhere(), "ModuleNotFoundError: No module named 'module_that_is_only", marks=pytest.mark.slow),
    ],
    ids=["raises", "is killed", "is not found"],
)
def test_a_companion_that_fails_ends_the_measurement(work: Callable[[Pace], object], says: str) -> None:
    """Nobody waits for it, and its error is told in one line."""
    with companions(1, work) as pace, pytest.raises(ExecutionError, match=says) as caught:
        pace()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_guide_s_commands_find_a_model_in_the_working_directory(tmp_path: Path) -> None:
    """From the installed script's import path, which does not hold it, also in the processes that are started."""
    (tmp_path / "blocks.py").write_text("WIDTH = 16\n")
    (tmp_path / "custom.py").write_text(
        "from torch import nn\n\n\nclass Wide(nn.Linear):\n    pass\n\n\ndef build():\n"
        "    import blocks\n    return [Wide(64, blocks.WIDTH), nn.ReLU(), nn.Linear(blocks.WIDTH, 10)]\n\n\n"
        'build.data = "digits"\n'
    )
    (tmp_path / "cluster.toml").write_text(Machine(1e-5, 1e9, 1e9, 1e10, 1e-6, 1e9).toml(2))
    start = "import sys; sys.path[0] = '/'; from contraflow.__main__ import main; sys.exit(main())"
    for command in (
        "profile custom:build --micro-batch-size 2 --load 2 -o model.json",
        "plan model.json --cluster cluster.toml --micro-batches 2 --time-limit 2 -o plan.json",
        "execute plan.json --model custom:build --steps 1",
    ):
        found = subprocess.run(
            [sys.executable, "-c", start, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert found.returncode == 0, f"{command}: {found.stderr}"


def test_a_model_that_cannot_be_sent_is_bad_input() -> None:
    """A loss that is a local function does not pickle."""
    model = resolve("mlp-tiny")
    local = LayeredModel("local", model.layers, lambda output, target: torch.zeros(()), "digits")
    with pytest.raises(RunError, match="load above 1"):
        profile_model(local, 2, load=2)


@pytest.mark.slow
def test_this_computer_is_a_cluster_of_processes(tmp_path: Path) -> None:
    """What is written is what was measured, to four digits; units are right at least: 1 MB/s to 10 TB/s, below 1 s."""
    measured = measure_machine(2, rounds=2)
    (tmp_path / "cluster.toml").write_text(measured.toml(2))
    loaded, made = Cluster.load(tmp_path / "cluster.toml"), measured.cluster(2)
    assert len(loaded) == 2
    mine, read = made.link(0, 1), loaded.link(0, 1)
    assert mine.reduce_bandwidth is not None
    assert read.reduce_bandwidth == pytest.approx(mine.reduce_bandwidth, rel=1e-3)
    assert read.bandwidth == pytest.approx(mine.bandwidth, rel=1e-3)
    assert read.latency_s == pytest.approx(mine.latency_s, abs=1e-6)
    assert loaded.devices[0].kind.memory_bandwidth == pytest.approx(measured.memory_bandwidth, rel=1e-3)
    rates = (measured.bandwidth, measured.reduce_bandwidth, measured.memory_bandwidth, measured.host_bandwidth)
    assert all(1e6 < rate < 1e13 for rate in rates)
    assert 0 < measured.latency_s < 1


def test_only_a_priced_host_link_lets_stashes_leave() -> None:
    """Copies to the host are measured, but offered only where asked for."""
    measured = Machine(1e-4, 1e9, 5e8, 1e10, 1e-5, 4e9)
    assert measured.cluster(2).node_groups[0].host_link == Link()
    assert measured.cluster(2, host_link=True).node_groups[0].host_link == Link(4e9, 1e-5)
    assert Cluster.from_dict(measured.cluster(2, host_link=True).to_dict()) == measured.cluster(2, host_link=True)


def test_a_reduction_has_a_bandwidth_of_its_own() -> None:
    """Two processes, 8 MiB: each sends 8 MiB, at the reduction's rate; messages keep theirs."""
    link = Link(1e9, 1e-4, 2.5e8)
    assert reduce_seconds(Cluster.uniform(2, link=link), (0, 1), 8 * MIB) == pytest.approx((8 * MIB / 2.5e8, 2e-4))
    assert link.occupation_s(8 * MIB) == 8 * MIB / 1e9
    plain = Cluster.uniform(2, link=Link(1e9, 1e-4))
    assert reduce_seconds(plain, (0, 1), 8 * MIB)[0] == 8 * MIB / 1e9


def test_a_host_link_reduces_nothing() -> None:
    """The key is a link's or the network's."""
    node = {"devices": 2, "device": "cpu", "host_link": {"reduce_bandwidth": "1GB/s"}}
    with pytest.raises(ClusterError, match="unknown key 'reduce_bandwidth'"):
        Cluster.from_dict({"nodes": [node]})
    with pytest.raises(ClusterError, match="more than 0"):
        Cluster.from_dict({"nodes": [node | {"host_link": {}, "link": {"reduce_bandwidth": 0}}]})


def test_a_single_process_is_no_cluster() -> None:
    """Nor is a preset measured here."""
    with pytest.raises(RunError, match="at least 2 processes, got 1"):
        measure_machine(1)
    for arguments in (["--load", "1"], ["--device", "A100-80GB"]):
        result = CliRunner().invoke(cli, ["profile", "mlp-tiny", "--cluster", "cluster.toml", *arguments])
        assert result.exit_code == 2
        assert "--cluster measures at least 2 processes on the cpu, not" in result.stderr
