"""PipeFB without a flush, run: losses and parameters of a plan from the command line equal the emulation's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from async_plans import SCHEDULED, Listed, assert_exact
from async_plans import run as run_threads
from click.testing import CliRunner
from runs import STEPS, run_plans_together

from contraflow.__main__ import cli
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.oracle.emulation import Emulation, Emulator
from contraflow.executor.run.launch import prepare
from contraflow.executor.run.rank import blueprint_of
from contraflow.models import resolve
from contraflow.planner import check, load_plan
from contraflow.planner.plan import Kind, Plan
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.driver import plan as search

BATCHES, SAMPLES = 16, 64
CLUSTER = """
[[nodes]]
devices = {devices}
device = "cpu"
link = {{bandwidth = "1GB/s", latency = "20us"}}
host_link = {{bandwidth = "2GB/s", latency = "20us"}}
"""
LIMITED = {4: "170KB", 2: "330KB"}
"""By devices: one that runs the backward of the first stage does not hold all stashes of a full pipeline."""


@cache
def model() -> ModelGraph:
    """A real profile of large micro-batches, whose stashes take more than weights, with the same times everywhere."""
    found = ModelGraph.from_dict(profile_model(resolve("mlp-deep"), SAMPLES, rounds=1))
    seconds = {"forward_s": 1e-3, "backward_input_s": 1e-3, "backward_weight_s": 5e-4}
    return replace(found, layers=tuple(replace(layer, **seconds) for layer in found.layers))


def planned(folder: Path, devices: int, *more: object) -> Plan:
    """What `contraflow plan` writes."""
    model().save(folder / "model.json")
    (folder / "cluster.toml").write_text(CLUSTER.format(devices=devices))
    given = ["plan", folder / "model.json", "--cluster", folder / "cluster.toml", "--micro-batches", BATCHES, *more]
    given += ["--schedule", "pipefb", "--optimizer", "momentum", "-o", folder / "plan.json"]
    result = CliRunner().invoke(cli, [str(part) for part in given])
    assert result.exit_code == 0, result.output
    plan = load_plan(folder / "plan.json")
    assert check(plan) == []
    return plan


class Ahead(Emulator):
    """A forward of stage s has seen what ends so many micro-batches before it as the stage's forwards are ahead."""

    def look(self) -> Emulator:
        """Reads off the plan how far ahead: its forwards before the first new parameters, less an update but one."""
        plan, self.kept, self.ahead = self.blueprint.plan, 4 * self.depth, list[int]()
        for stage in range(self.depth):
            order = plan.orders[plan.pipelines[0].forward[stage]]
            line = [op.kind for op in order if op.stage == stage and op.kind in (Kind.F, Kind.RECV_P)]
            self.ahead.append(line.index(Kind.RECV_P) - self.update + 1)
        return self

    def read_by_forward(self, stage: int, m: int) -> int:
        """With weight stashing: the newest."""
        return max(0, (m - self.ahead[stage] + 1) // self.update)


def emulated(plan: Plan, runs: tuple[int, ...]) -> Emulation:
    job = prepare(plan, sum(runs), dtype=torch.float32, training=SCHEDULED)
    return Ahead(blueprint_of(job)).look().train(runs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "policies"),
    [
        (("--no-offload", "--no-recompute"), {"keep"}),
        (("--no-recompute", "--memory-limit", LIMITED[4]), {"offload"}),
        (("--no-offload", "--memory-limit", "132KB", "--update-every", 2), {"recompute"}),
    ],
)
def test_threads_equal_the_emulation(more: tuple[object, ...], policies: set[str], tmp_path: Path) -> None:
    """Two runs with an evaluation between them; no device above its planned peak, nor that above the limit."""
    plan = planned(tmp_path, 4, *more)
    assert set(plan.stash[0]) >= policies
    assert plan.forecast is not None
    assert max(plan.forecast.peak_bytes) <= (plan.problem.workload.memory_limit_bytes or 1 << 30)
    runs = (BATCHES // (plan.problem.workload.update_every or 1), 5)
    assert_exact(run_threads(plan, runs, SCHEDULED, torch.float32), emulated(plan, runs))


def test_processes_equal_the_emulation(tmp_path: Path) -> None:
    """On two gloo processes, stashes through the memory of their host."""
    plan = planned(tmp_path, 2, "--no-recompute", "--memory-limit", LIMITED[2])
    assert plan.stash == (("offload",),)
    (found,) = run_plans_together([plan], tmp_path, training=SCHEDULED)
    assert_exact(found, emulated(plan, (STEPS,)))


@pytest.mark.long
@pytest.mark.parametrize(("devices", "space"), [(3, SearchSpace("pipefb")), (4, SearchSpace(asynchronous=("stash",)))])
def test_own_cuts_for_forwards_and_backwards_train_as_one_process(devices: int, space: SearchSpace) -> None:
    """Of uneven layers: stages are what both cuts leave together, and follow one another on a device."""
    graph = model()
    times = [(1e-3 * (1 + k % 3), 1e-3 * (1 + (k + 1) % 4)) for k in range(len(graph.layers))]
    layers = [
        replace(layer, forward_s=f, backward_input_s=b, backward_weight_s=b)
        for layer, (f, b) in zip(graph.layers, times, strict=True)
    ]
    cluster = Cluster.uniform(devices, link=Link(1e9, 2e-5))
    workload = Workload(BATCHES, "momentum")
    plan = search(replace(graph, layers=tuple(layers)), cluster, workload, replace(space, pipelines=1), 5).plan
    assert plan is not None
    (pipeline,) = plan.pipelines
    routes = (pipeline.forward, pipeline.backward)
    forward, backward = ({k for k, (a, b) in enumerate(pairwise(route)) if a != b} for route in routes)
    assert forward != backward
    wanted = Listed(blueprint_of(prepare(plan, BATCHES, dtype=torch.float32, training=SCHEDULED)))
    wanted.follow(plan)
    assert_exact(run_threads(plan, (BATCHES,), SCHEDULED, torch.float32), wanted.train((BATCHES,)))
