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
from large_work import large
from traces import simulated_run, with_ops

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.measure import gpus
from contraflow.executor.measure.cluster_text import cluster_toml
from contraflow.executor.measure.companions import Pace, companions
from contraflow.executor.measure.detect import Found, detect_cluster
from contraflow.executor.measure.environment import memory_bytes
from contraflow.executor.measure.overhead import Crew, runs_of, spent
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.measure.ranks import among
from contraflow.executor.place import cores
from contraflow.executor.run.launch import run_plan
from contraflow.models import LayeredModel, resolve
from contraflow.planner import Cluster, ModelGraph, Plan, check, simulate
from contraflow.planner.basics.errors import ClusterError
from contraflow.planner.graph.reductions import reduce_seconds
from contraflow.planner.plan import Kind
from contraflow.planner.problem.cluster import Link, NodeGroup
from contraflow.planner.problem.overhead import Overhead
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.runs.trace import OpTrace, RunTrace

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


@pytest.mark.long
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


@pytest.mark.long
def test_ranks_of_this_computer_give_more_than_a_pipe_holds() -> None:
    """Nobody waits for who reads it."""
    assert among(2, 1, large) == bytes(1 << 20)


@pytest.mark.slow
def test_the_guide_s_commands_find_a_model_in_the_working_directory(tmp_path: Path) -> None:
    """From the installed script's import path, which does not hold it, also in the processes that are started."""
    (tmp_path / "blocks.py").write_text("WIDTH = 16\n")
    (tmp_path / "custom.py").write_text(
        "from torch import nn\n\n\nclass Wide(nn.Linear):\n    pass\n\n\ndef build():\n"
        "    import blocks\n    return [Wide(64, blocks.WIDTH), nn.ReLU(), nn.Linear(blocks.WIDTH, 10)]\n\n\n"
        'build.data = "digits"\n'
    )
    (tmp_path / "cluster.toml").write_text(cluster_toml(Cluster.uniform(2, link=Link(1e9, 1e-5))))
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
        detect_cluster("cpu", 1)
    for arguments in (["--load", "1"], ["--device", "A100-80GB"]):
        result = CliRunner().invoke(cli, ["profile", "mlp-tiny", "--cluster", "cluster.toml", *arguments])
        assert result.exit_code == 2
        assert "--cluster measures at least 2 processes on the cpu, not" in result.stderr


# ---------------------------------------------------------------- contraflow cluster detect


@pytest.mark.long
def test_this_machine_is_written_as_a_cluster(tmp_path: Path) -> None:
    """Links, links to the host and memory; what is written is what was found, to the digits that are written."""
    found = detect_cluster("cpu", 2, rounds=2)
    assert found is not None
    assert found.cluster.overhead is None
    (tmp_path / "cluster.toml").write_text(found.toml())
    (read,), (was,) = Cluster.load(tmp_path / "cluster.toml").nodes, found.cluster.nodes
    assert (read.devices, read.host_memory_bytes, read.device.memory_bytes) == (
        2,
        was.host_memory_bytes,
        was.device.memory_bytes,
    )
    assert read.cores == pytest.approx(cores(), rel=1e-3)
    assert 2 * read.device.memory_bytes + read.host_memory_bytes <= memory_bytes()
    rates = [read.device.memory_bandwidth, was.device.memory_bandwidth, read.link.reduce_bandwidth]
    assert all(rate is not None and 1e6 < rate < 1e13 for rate in rates)
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)
    assert read.link.reduce_bandwidth == pytest.approx(was.link.reduce_bandwidth, rel=1e-3)
    for mine, theirs in ((read.link, was.link), (read.host_link, was.host_link)):
        assert 1e6 < theirs.bandwidth < 1e13
        assert 0 < theirs.latency_s < 1
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
    """Of ops alone, with what calling a program takes in them, of messages and of STEPs, whatever drawing takes."""
    op_s, message_s, drawing_s, call_s, step_s = 3e-4, 2e-4, 7e-4, 1e-4, 5e-4
    graph = named("gpipe", ranks, 4).problem.model

    def around(stage: int, kind: Kind) -> float:
        messages = (stage > 0) + (stage < ranks - 1)
        drawn = (stage == 0) / 4 + 3 * (stage == ranks - 1) / 4 if kind is Kind.F else 0.0
        return op_s + messages * message_s + drawn * drawing_s

    def in_chain(x: OpTrace) -> OpTrace:
        step = x.op.kind is Kind.STEP
        more = {"duration_s": step_s} if step else {"duration_s": x.duration_s + call_s}
        return replace(x, overhead_s=0.0 if step else around(x.op.stage, x.op.kind), **more)

    def by_itself(x: OpTrace) -> OpTrace:
        return replace(x, duration_s=x.duration_s + call_s, overhead_s=op_s + drawing_s * (x.op.kind is Kind.F))

    def train(made: Plan) -> RunTrace:
        return with_ops(simulated_run(made), in_chain if len(made.stages) > 1 else by_itself)

    found = spent(runs_of(lambda: graph, Crew(ranks), train, 2)).overhead
    assert found.op_s == pytest.approx(op_s + call_s)
    assert (found.message_s, found.step_s) == pytest.approx((message_s, step_s))


def _tiny(graph: ModelGraph) -> ModelGraph:
    """With layers of milliseconds that have parameters."""
    times = "forward_s", "backward_input_s", "backward_weight_s"
    layers = [replace(x, parameter_bytes=4096, **{key: 1e-3 * getattr(x, key) for key in times}) for x in graph.layers]
    return replace(graph, layers=tuple(layers))


@pytest.mark.parametrize("message_s", [0.0, 4e-4])
@pytest.mark.parametrize("ranks", [2, 3])
def test_waiting_for_one_another_is_read_off_steps(ranks: int, message_s: float) -> None:
    """What sums and messages take among ranks that compute, although a link by itself is faster.

    What carries messages takes a rank's core from its ops: nothing is to be seen of it around them.
    """
    plain, latency_s, collective_s = named("gpipe", ranks, 4).problem.model, 3e-4, 5e-4
    graph = _tiny(plain)
    quick, slow = Link(1e9, 1e-5), Link(1e9, latency_s)

    def train(made: Plan) -> RunTrace:
        cluster = replace(Cluster.uniform(ranks, link=slow), overhead=Overhead(0.0, message_s, 0.0, collective_s))
        took = simulate(replace(made, problem=replace(made.problem, cluster=cluster))).step_s
        return replace(simulated_run(made), step_s=took)

    found = spent(runs_of(lambda: graph, Crew(ranks, link=quick), train, 1))
    assert found.latency_s == pytest.approx(latency_s, rel=1e-2)
    assert found.overhead.message_s == pytest.approx(message_s, rel=1e-2, abs=1e-6)
    assert found.overhead.collective_s == pytest.approx(collective_s, rel=1e-2)


def test_what_ranks_without_cores_of_their_own_wait_is_read_off_runs_of_all() -> None:
    """Four on two cores: a message waits for others that compute; two that have a core each say what ops cost."""
    ranks, cores, latency_s, collective_s = 4, 2, 3e-3, 5e-3
    plain = named("gpipe", ranks, 4).problem.model
    graph = _tiny(plain)
    trained: list[int] = []

    def train(made: Plan) -> RunTrace:
        busy = sum(map(bool, made.orders))
        trained.append(busy)
        slow, late = Cluster.uniform(ranks, link=Link(1e9, latency_s if busy > cores else 1e-4)), collective_s
        cluster = replace(slow, overhead=Overhead(collective_s=late if busy > cores else 0.0))
        if busy > cores:
            cluster = replace(cluster, nodes=(replace(cluster.nodes[0], cores=float(cores)),))
        took = simulate(replace(made, problem=replace(made.problem, cluster=cluster)))
        return replace(simulated_run(made), step_s=took.step_s)

    link = Link(1e9, 1e-5)
    found = spent(runs_of(lambda: graph, Crew(ranks, cores, link, float(cores)), train, 1))
    assert trained == [cores, cores, *[ranks] * 5]
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3)
    assert found.overhead.collective_s == pytest.approx(collective_s, rel=1e-2)
    own = spent(runs_of(lambda: graph, Crew(ranks, cores, link), train, 1))
    assert own.latency_s == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_beyond_the_layers_wait(ranks: int) -> None:
    """A pipeline of tiny layers is no longer than they are many; each of the ranks trains all of them."""
    graph = named("gpipe", ranks, 4).problem.model
    seen: list[Plan] = []

    def train(made: Plan) -> RunTrace:
        seen.append(made)
        assert not check(made)
        return simulated_run(made, overhead_s=1e-3)

    assert spent(runs_of(lambda: graph, Crew(ranks + 2), train, 1)).overhead.op_s == pytest.approx(1e-3)
    assert [sum(map(bool, made.orders)) for made in seen] == [ranks + 2, *[ranks] * 5]


@pytest.mark.slow
def test_overheads_of_this_computer_are_seconds_of_a_thread() -> None:
    """More than nothing around an op, and less than a second."""
    found = detect_cluster("cpu", 2, rounds=2, train=run_plan)
    assert found is not None
    assert found.cluster.overhead is not None
    assert 0 < found.cluster.overhead.op_s < 1
    assert 0 <= found.cluster.overhead.message_s < 1
    assert 0 < found.cluster.overhead.step_s < 1


def test_a_profile_s_cluster_is_what_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One measurement, one file, by either command."""
    asked: list[tuple[object, ...]] = []

    def detected(device: str, processes: int, threads: int, train: object) -> Found:
        asked.append((device, processes, threads, train))
        cluster = Cluster.uniform(processes, link=Link(1e9, 1e-5))
        return Found(replace(cluster, overhead=Overhead(2e-4, 1e-4)), ("found",))

    monkeypatch.setattr("contraflow.executor.measure.detect.detect_cluster", detected)
    files = [tmp_path / "profile.toml", tmp_path / "detect.toml"]
    for command in (
        ["profile", "llama-70b", "--load", "2", "--device", "cpu", "--cluster", str(files[0])],
        ["cluster", "detect", "--device", "cpu", "--processes", "2", "-o", str(files[1])],
    ):
        monkeypatch.setattr("contraflow.executor.cli.profile.measure", lambda *_: {})
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
    assert asked == [("cpu", 2, 1, run_plan)] * 2
    assert files[0].read_text() == files[1].read_text()
    overhead = Cluster.load(files[0]).overhead
    assert overhead is not None
    assert (overhead.op_s, overhead.message_s) == pytest.approx((2e-4, 1e-4))
    monkeypatch.setenv("RANK", "0")
    result = CliRunner().invoke(cli, ["profile", "mlp-tiny", "--load", "2", "--cluster", str(files[0])])
    assert result.exit_code == 2
    assert "under torchrun run contraflow cluster detect" in result.stderr
