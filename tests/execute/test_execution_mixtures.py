"""Plans without a flush that mix devices, stash choices and cuts, run: losses and parameters equal the emulation's."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from async_plans import SCHEDULED, Listed, assert_exact
from async_plans import run as run_threads
from runs import STEPS, run_plans_together

from contraflow.executor.measure.profile import profile_model
from contraflow.executor.oracle.emulation import Emulation
from contraflow.executor.run.launch import prepare
from contraflow.executor.run.rank import blueprint_of
from contraflow.models import resolve
from contraflow.planner import check
from contraflow.planner.lower import Assembled
from contraflow.planner.plan import Kind, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.search.common import Clock, Session, fits
from contraflow.planner.search.steady.mixtures import Mixtures

SAMPLES, BATCHES = 64, 30


@cache
def model() -> ModelGraph:
    """Real bytes of a small network, uneven times that are the same everywhere."""
    graph = ModelGraph.from_dict(profile_model(resolve("mlp-deep"), SAMPLES, rounds=1))
    times = [(1e-3 * (1 + k % 3), 1e-3 * (1 + (k + 1) % 4)) for k in range(len(graph.layers))]
    layers = [
        replace(layer, forward_s=f, backward_input_s=b, backward_weight_s=b)
        for layer, (f, b) in zip(graph.layers, times, strict=True)
    ]
    return replace(graph, layers=tuple(layers))


def mixtures(devices: int, limit: int, method: str, update: int) -> list[Plan]:
    """What annealing finds that fits, in the order found."""
    group = NodeGroup(1, devices, DeviceType("d", 1 << 40), Link(1e9, 2e-5), None, Link(2e9, 2e-5))
    workload = Workload(BATCHES, "momentum", memory_limit_bytes=limit, update_every=update)
    given = Problem(model(), Cluster((group,)), workload)
    session = Session(given, SearchSpace(asynchronous=(method,)), Clock(time.monotonic() + 120, 2.0), 0)
    taken: list[Plan] = []

    def take(found: Assembled) -> bool:
        taken.append(found.plan)
        return session.offer(found.plan, "mixtures")

    Mixtures(session, take).run()
    return [plan for plan in taken if fits(plan)]


def mixed(plan: Plan) -> bool:
    """Whether a device runs forwards of one stage and backwards of another whose forwards are elsewhere."""
    (pipeline,) = {(p.forward, p.backward) for p in plan.pipelines if p.micro_batches}
    apart = [s for s, (a, b) in enumerate(zip(*pipeline, strict=True)) if a != b]
    return bool(apart) and any(
        pipeline[0][s] == pipeline[1][t] for s in range(len(plan.stages)) for t in apart if s != t
    )


def emulated(plan: Plan, updates: int) -> Emulation:
    """In one process, with the versions that the op lists give to every forward."""
    wanted = Listed(blueprint_of(prepare(plan, updates, dtype=torch.float32, training=SCHEDULED)))
    wanted.follow(plan)
    return wanted.train((updates,))


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "update", "limit"),
    [pytest.param("stash", 3, 260_000, marks=pytest.mark.slow), ("2bw", 6, 260_000), ("pipeoptim", 3, 300_000)],
)
def test_threads_equal_the_emulation(method: str, update: int, limit: int) -> None:
    """The best mixture, some backwards of which are two ops; no device above its planned peak."""
    plans = [plan for plan in mixtures(3, limit, method, update) if mixed(plan)]
    assert plans
    plan = plans[-1]
    assert not check(plan)
    assert any(op.kind is Kind.I for order in plan.orders for op in order)
    updates = BATCHES // update
    assert_exact(run_threads(plan, (updates,), SCHEDULED, torch.float32), emulated(plan, updates))


def test_processes_equal_the_emulation(tmp_path: Path) -> None:
    """On two gloo processes."""
    plans = mixtures(2, 400_000, "stash", 3)
    assert plans
    (found,) = run_plans_together([plans[-1]], tmp_path, training=SCHEDULED)
    assert_exact(found, emulated(plans[-1], STEPS))
