"""Measuring under load: companions change times, not bytes; this computer as a cluster; what a reduction costs."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from failing_work import Elsewhere, fail, killed
from instances import named
from traces import simulated_run, with_ops

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.options import RunOptions
from contraflow.executor.measure import gpus
from contraflow.executor.measure.companions import Pace, companions
from contraflow.executor.measure.detect import Found, detect_cluster
from contraflow.executor.measure.environment import memory_bytes
from contraflow.executor.measure.machine import Machine, measure_machine
from contraflow.executor.measure.overhead import MODEL, measure_overhead, overhead_of
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import run_plan
from contraflow.models import LayeredModel, resolve
from contraflow.planner import Cluster, ModelGraph
from contraflow.planner.basics.errors import ClusterError
from contraflow.planner.basics.units import parse_seconds
from contraflow.planner.graph.reductions import reduce_seconds
from contraflow.planner.plan import Kind
from contraflow.planner.problem.cluster import Link, NodeGroup
from contraflow.planner.problem.overhead import Overhead
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.runs.trace import OpTrace

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
    (tmp_path / "cluster.toml").write_text(measured.toml(2, Overhead(2e-4, 1e-4)))
    loaded, made = Cluster.load(tmp_path / "cluster.toml"), measured.cluster(2)
    assert loaded.overhead == Overhead(parse_seconds("200us", ""), parse_seconds("100us", ""))
    loaded = replace(loaded, overhead=None)
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


# ---------------------------------------------------------------- contraflow cluster detect


def test_this_machine_is_written_as_a_cluster(tmp_path: Path) -> None:
    """Links, links to the host and memory; what is written is what was found, to the digits that are written."""
    found = detect_cluster("cpu", 2, rounds=2)
    assert found is not None
    (tmp_path / "cluster.toml").write_text(found.toml())
    (read,), (was,) = Cluster.load(tmp_path / "cluster.toml").nodes, found.cluster.nodes
    assert (read.devices, read.host_memory_bytes, read.device.memory_bytes) == (
        2,
        was.host_memory_bytes,
        was.device.memory_bytes,
    )
    assert 2 * read.device.memory_bytes + read.host_memory_bytes <= memory_bytes()
    for mine, theirs in ((read.link, was.link), (read.host_link, was.host_link)):
        assert mine.bandwidth == pytest.approx(theirs.bandwidth, rel=1e-3)
        assert mine.latency_s == pytest.approx(theirs.latency_s, rel=1e-2)


@pytest.mark.slow
def test_two_agents_are_two_nodes_with_a_network(tmp_path: Path) -> None:
    """torchrun with two agents on one machine: one file, from the first rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = [
        subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
                "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}",
                "-m", "contraflow", "cluster", "detect",
                "--device=cpu", "-o", str(tmp_path / f"{node}.toml"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    for agent in agents:
        _, complaints = agent.communicate(timeout=200)
        assert agent.returncode == 0, complaints
    found = Cluster.load(tmp_path / "0.toml")
    assert (found.nodes[0].count, found.nodes[0].devices) == (2, 2)
    assert 0 < found.network.bandwidth < math.inf
    assert not (tmp_path / "1.toml").exists()


def test_a_gpu_is_known_by_its_name_and_memory() -> None:
    """As drivers spell it; variants by their memory, others under their own names."""
    named = {
        ("NVIDIA A100-SXM4-80GB", 85_000_000_000): "A100-80GB",
        ("NVIDIA A100-PCIE-40GB", 42_400_000_000): "A100-40GB",
        ("NVIDIA H100 80GB HBM3", 84_900_000_000): "H100-80GB",
        ("Tesla V100-SXM2-16GB", 16_900_000_000): "V100-16GB",
        ("NVIDIA GeForce GTX 1080", 8_500_000_000): "NVIDIA-GeForce-GTX-1080",
    }
    for (name, size), preset in named.items():
        found = gpus.kind_of(name, size)
        assert found.name == preset
        assert found == PRESETS.get(preset, found)
        written = Found(Cluster((NodeGroup(1, 2, found),)))
        assert Cluster.from_dict(tomllib.loads(written.toml())).nodes[0].device == found


@pytest.mark.parametrize(
    ("ratio", "count", "shared"), [(1.02, 8, 1), (1.9, 8, 2), (3.6, 8, 4), (2.7, 6, 3), (1.0, 1, 1)]
)
def test_gpus_that_share_a_host_link_slow_one_another_down(ratio: float, count: int, shared: int) -> None:
    assert gpus.shared_by(ratio, count) == shared


def test_nvidia_smi_tells_the_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows without colours, or nothing where it is not there or fails."""
    assert gpus.topology() == () or all(row.startswith("GPU") for row in gpus.topology())
    tool = tmp_path / "nvidia-smi"
    rows = r"\t\033[4mGPU0\tGPU1\033[0m\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n\nLegend:\n"
    tool.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpus.topology() == ("GPU0 X NV18", "GPU1 NV18 X")
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert gpus.topology() == ()


def test_detecting_gpus_where_there_are_none_is_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("there are some here")
    found = CliRunner().invoke(cli, ["cluster", "detect", "--device", "cuda"])
    assert found.exit_code == 2
    assert "contraflow: torch sees no CUDA device here" in found.output


@pytest.mark.parametrize("ranks", [2, 3])
def test_overheads_are_read_off_two_runs(ranks: int) -> None:
    """Of ops alone and of messages, whatever it takes to draw samples."""
    op_s, message_s, drawing_s = 3e-4, 2e-4, 7e-4
    alone, chained = (named(schedule, ranks, 4) for schedule in ("gpipe", "1f1b"))

    def around(stage: int, kind: Kind) -> float:
        messages = (stage > 0) + (stage < ranks - 1)
        drawn = (stage == 0) / 4 + 3 * (stage == ranks - 1) / 4 if kind is Kind.F else 0.0
        return op_s + messages * message_s + drawn * drawing_s

    def in_chain(x: OpTrace) -> OpTrace:
        return replace(x, overhead_s=around(x.op.stage, x.op.kind))

    def by_itself(x: OpTrace) -> OpTrace:
        return replace(x, overhead_s=op_s + drawing_s * (x.op.kind is Kind.F))

    runs = with_ops(simulated_run(alone), by_itself), with_ops(simulated_run(chained), in_chain)
    found = overhead_of(*runs)
    assert (found.op_s, found.message_s) == pytest.approx((op_s, message_s))


@pytest.mark.slow
def test_overheads_of_this_computer_are_seconds_of_a_thread() -> None:
    """More than nothing around an op, and less than a second."""
    tiny = ModelGraph.from_dict(profile_model(resolve(MODEL), 8, rounds=1, load=1))
    options = RunOptions(steps=4, self_check=False)
    found = measure_overhead(tiny, 2, lambda made: run_plan(made, options).trace)
    assert 0 < found.op_s < 1
    assert 0 <= found.message_s < 1
