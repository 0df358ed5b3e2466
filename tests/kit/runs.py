"""Plans of real models, run and compared with single-process training: what the execution tests share."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from instances import cut_evenly
from kept_ranks import kept
from torch import Tensor

from contraflow.executor.basics.options import Engine
from contraflow.executor.basics.training import Training
from contraflow.executor.measure import reach
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.oracle.reference import ReferenceRun, train_reference
from contraflow.executor.run.checkpoint_files import complete
from contraflow.executor.run.collector import Collector
from contraflow.executor.run.job import Job
from contraflow.executor.run.launch import execute, prepare
from contraflow.executor.run.rank import run_rank
from contraflow.executor.run.reports import RankReport, StepReport
from contraflow.executor.run.result import RunResult
from contraflow.executor.step import GROUP
from contraflow.executor.wires.transport import GlooTransport
from contraflow.models import LayeredModel, resolve
from contraflow.planner.graph import Candidate, regroup, route, stash_policy
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

STEPS = 5
LINK = Link(1e9, 20e-6)
SAMPLES = 2
"""Samples a micro-batch."""
HALF_S = 4e-4
"""Seconds of a layer's F, I and W: a stash of gpt-tiny crosses a link of `_cluster` in about that."""


class Case(NamedTuple):
    """A schedule for a model on devices.

    `stash` is the policy of every stage ("ship": to the next device), or "odd POLICY": of odd micro-batches alone.
    With `halves`, every backward is I, and W follows after the next I of the device; without a flush, at once.
    `weights`, `update`: the weight policy, and micro-batches an update.
    """

    schedule: str
    model: str
    devices: int
    micro_batches: int
    optimizer: str = "momentum"
    stash: str = "keep"
    halves: bool = False
    precision: str = "fp32"
    weights: str = FLUSH
    update: int | None = None

    def __str__(self) -> str:
        """Of a test: what differs from the usual."""
        usual = self._field_defaults
        return "-".join(str(x) for name, x in self._asdict().items() if name not in usual or usual[name] != x)

    @property
    def dtype(self) -> torch.dtype:
        """Adam's in float64: in float32 it amplifies gradients that are mathematically zero."""
        if self.precision == "mixed":
            return torch.bfloat16
        return torch.float64 if self.optimizer.startswith("adam") else torch.float32


def profile(model: LayeredModel, samples: int = SAMPLES, **options: Any) -> dict[str, Any]:
    """A real, short profile; its seconds are those of warm caches. `options` are those of `profile_model`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "LEVELS", (reach.Level(math.inf, 0),))
        return profile_model(model, samples, **{"rounds": 1, **options})


@cache
def measured(
    model: str,
    dtype: torch.dtype = torch.float32,
    samples: int = SAMPLES,
    engine: Engine = "auto",
    device: str = "cpu",
) -> dict[str, Any]:
    """That of a registry model. Not to be changed."""
    return profile(resolve(model), samples, dtype=dtype, engine=engine, device=device)


@cache
def profiled(
    model: str, dtype: torch.dtype, device: str = "cpu", samples: int = SAMPLES, engine: Engine = "auto"
) -> ModelGraph:
    """The same for the planner, at given times: what a plan looks like must not depend on the machine."""
    return at_given_times(ModelGraph.from_dict(measured(model, dtype, samples, engine, device)))


def sized(model: LayeredModel, samples: int = SAMPLES, **options: Any) -> ModelGraph:
    """Any model for the planner, its sizes measured, its times given."""
    return at_given_times(ModelGraph.from_dict(profile(model, samples, **options)))


def at_given_times(graph: ModelGraph) -> ModelGraph:
    """The model with measured sizes, and with layers of which each half of a pass takes `HALF_S`."""
    layers = tuple(
        replace(
            layer,
            forward_s=HALF_S,
            backward_input_s=HALF_S if layer.separable else 2 * HALF_S,
            backward_weight_s=HALF_S if layer.separable and layer.backward_weight_s else 0.0,
            selective_s=HALF_S / 4 if layer.selective_bytes else 0.0,
        )
        for layer in graph.layers
    )
    return replace(graph, layers=layers)


@cache
def planned(case: Case, device: str = "cpu", samples: int = SAMPLES, engine: Engine = "auto") -> Plan:
    """The case's plan: layers dealt out evenly, or the planner's search. What this device's kernels keep, and this
    engine's stages, is planned."""
    if case.schedule == "search":
        from contraflow.planner.search.driver import plan

        graph, workload = (
            profiled(case.model, case.dtype, device, samples, engine),
            Workload(case.micro_batches, case.optimizer),
        )
        found = plan(graph, _cluster(case), workload, time_limit=300, workers=1, deterministic_limit=0.3).plan
        assert found is not None
        return found
    candidate = dealt_out(case, device, samples, engine)
    orders = build(case.schedule, case.devices, case.micro_batches).orders
    return assemble(candidate, [rewritten(order, candidate, case.halves) for order in orders], case.schedule)


def dealt_out(case: Case, device: str = "cpu", samples: int = SAMPLES, engine: Engine = "auto") -> Candidate:
    """The case's plan without its orders: layers dealt out evenly."""
    graph = profiled(case.model, case.dtype, device, samples, engine)
    layout = build(case.schedule, case.devices, case.micro_batches)
    workload = Workload(case.micro_batches, case.optimizer, case.precision, update_every=case.update)
    stages = cut_evenly(graph, layout.stages)
    whole = Candidate(Problem(graph, _cluster(case), workload), stages, layout.pipelines, (), case.weights)
    return stashed(whole, case.stash)


def _cluster(case: Case) -> Cluster:
    """Links that cost nothing; where stashes move, links on which they take about as long as an op."""
    kept = case.stash.removeprefix("odd ") in ("keep", "recompute", "selective")
    return Cluster.uniform(case.devices) if kept else linked(case.devices)


def linked(devices: int) -> Cluster:
    """Processors of one node, on links among them and to their host that take time."""
    kind = DeviceType("custom", PRESETS["cpu"].memory_bytes)
    return Cluster((NodeGroup(1, devices, kind, LINK, host_link=LINK),))


def stashed(candidate: Candidate, stash: str) -> Candidate:
    """The candidate with the stash policy of a `Case`."""
    odd, policy = stash.startswith("odd "), stash.removeprefix("odd ")
    devices = len(candidate.problem.cluster)
    rows: dict[int, tuple[str, ...]] = {}
    for pipeline in candidate.pipelines:
        for m in pipeline.micro_batches:
            mine = "keep" if odd and m % 2 == 0 else policy
            rows[m] = tuple(f"ship>{(d + 1) % devices}" if mine == "ship" else mine for d in pipeline.forward)
    return regroup(candidate.problem, candidate.stages, candidate.pipelines, rows, candidate.weights)


def rewritten(order: Sequence[Op], candidate: Candidate, halves: bool) -> list[Op]:
    """A device's F and B with every R that the stash policy needs, and every B as I and a later W if asked for."""
    path = route(candidate)
    result: list[Op] = []
    waiting: list[Op] = []
    for op in order:
        back = op.kind is Kind.B
        if back and stash_policy(candidate.stash[path[op.micro_batch]][op.stage]).remade:
            result.append(op._replace(kind=Kind.R))
        if not (back and halves):
            result.append(op)
            continue
        result.append(op._replace(kind=Kind.I))
        waiting.append(op._replace(kind=Kind.W))
        if len(waiting) > (candidate.weights == FLUSH):
            result.append(waiting.pop(0))
    return [*result, *waiting]


@cache
def truth(
    model: str, micro_batches: int, optimizer: str, dtype: torch.dtype, training: Training | None = None
) -> ReferenceRun:
    """Single-process training on the same data."""
    precision = "mixed" if dtype is torch.bfloat16 else "fp32"
    return train_reference(
        resolve(model), micro_batches, SAMPLES, optimizer, STEPS, dtype=dtype, precision=precision, training=training
    )


def in_threads(what: Case | Plan, training: Training | None = None, steps: int = STEPS, **options: Any) -> RunResult:
    """Runs a plan, or a case in its dtype, on threads of this process; without a self-check, and keeps what it trained.

    `options` are those of `execute`, and come first.
    """
    plan, given = (planned(what), {"dtype": what.dtype}) if isinstance(what, Case) else (what, {})
    options = {"self_check": False, "return_state": True, **given, **options}
    return execute(plan, steps, transport="threads", training=training, **options)


def assert_equals_reference(case: Case, result: RunResult, training: Training | None = None) -> None:
    """What single-process training of the case gives."""
    assert len(result.losses) == STEPS
    assert_trained_as(result, truth(case.model, case.micro_batches, case.optimizer, case.dtype, training))


def assert_trained_as(result: RunResult, expected: ReferenceRun) -> None:
    """Losses within 1e-5, every tensor within 1e-5 in relative norm, 1e-6 absolute where it is zero.

    Also the norms of gradients, the loss scales and the held-out losses, where there are any.
    """
    assert result.grad_norms == pytest.approx(expected.grad_norms, rel=1e-5)
    assert result.loss_scales == expected.loss_scales
    assert result.evaluations == pytest.approx(expected.evaluations, abs=1e-5)
    for step, (mine, reference) in enumerate(zip(result.losses, expected.losses, strict=True)):
        assert abs(mine - reference) <= 1e-5, f"loss of step {step}: {mine}, reference {reference}"
    assert result.state is not None
    for name, tensor in expected.state.items():
        assert_same(name, result.state[name], tensor)


def same_tensors(a: RunResult, b: RunResult) -> bool:
    """Whether two runs have left equal tensors, bit by bit."""
    assert a.state is not None
    assert b.state is not None
    return a.state.keys() == b.state.keys() and all(torch.equal(a.state[name], b.state[name]) for name in a.state)


def assert_as_planned(result: RunResult, expected: ReferenceRun) -> None:
    """Trained as expected, and no device above its planned peak."""
    assert_trained_as(result, expected)
    assert_within_plan(result)


def assert_within_plan(result: RunResult) -> None:
    """No device above its planned peak."""
    for device, share in worst_excess(result).items():
        assert share <= 1.0, f"device {device}: measured / planned = {share:.4f}"


def assert_same(name: str, mine: Tensor, reference: Tensor) -> None:
    """One tensor against its reference."""
    scale = reference.double().norm().item()
    difference = (mine.double() - reference.double()).norm().item()
    bound = 1e-5 * scale if scale > 0 else 1e-6
    assert difference <= bound, f"{name}: differs by {difference:g}, allowed {bound:g}"


# ---------------------------------------------------------------- many cases in one set of processes


def run_together(
    cases: Sequence[Case],
    folder: Path,
    training: Training | None = None,
    rank: Callable[[int, int, Sequence[Job], str], None] | None = None,
) -> list[RunResult]:
    """Runs cases of equal device counts one after another in one set of gloo processes.

    They have been there before, and will be, unless they are to call `rank`.
    """
    plans, dtypes = [planned(case) for case in cases], [case.dtype for case in cases]
    return run_plans_together(plans, folder, dtypes, training, rank)


def run_plans_together(
    plans: Sequence[Plan],
    folder: Path,
    dtypes: Sequence[torch.dtype] | None = None,
    training: Training | None = None,
    rank: Callable[[int, int, Sequence[Job], str], None] | None = None,
) -> list[RunResult]:
    """The same for plans; dtypes: float32 unless given."""
    kinds = dtypes or [torch.float32] * len(plans)
    jobs = [
        prepare(plan, STEPS, model=_given(plan), dtype=dtype, self_check=False, return_state=True, training=training)
        for plan, dtype in zip(plans, kinds, strict=True)
    ]
    return run_jobs_together(jobs, folder, rank)


def _given(plan: Plan) -> str | None:
    """A model that is not registered is named again."""
    name = plan.problem.model.name
    return name if ":" in name else None


def run_jobs_together(
    jobs: Sequence[Job],
    folder: Path,
    rank: Callable[[int, int, Sequence[Job], str], None] | None = None,
    timeout_s: float | None = None,
) -> list[RunResult]:
    """The same for jobs. Raises TimeoutError where kept processes have not done them by then."""
    ranks = jobs[0].ranks
    if rank is None:
        kept(ranks).run(run_rank_of, ranks, jobs, str(folder), timeout_s=timeout_s)
    else:
        multiprocessing.spawn(rank, (ranks, jobs, str(folder)), nprocs=ranks)
    return collected(jobs, folder)


def collected(jobs: Sequence[Job], folder: Path) -> list[RunResult]:
    """What the ranks of `run_rank_of` have written there."""
    parts = [pickle.loads((folder / f"rank{rank}").read_bytes()) for rank in range(jobs[0].ranks)]
    results = []
    for index, job in enumerate(jobs):
        found = Collector(job, None)
        for part in parts:
            for report in part[index][0]:
                found.add(report)
        results.append(found.result(job.plan, [part[index][1] for part in parts]))
    return results


def run_rank_of(rank: int, ranks: int, jobs: Sequence[Job], folder: str) -> None:
    """One process of `run_together`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
    )
    done: list[tuple[list[StepReport], RankReport]] = []
    for job in jobs:
        steps: list[StepReport] = []
        transport = GlooTransport(job.groups, team=job.team, whole=(GROUP,))
        done.append((steps, run_rank(job, transport, steps.append)))
        transport.barrier()
        transport.close()
    (Path(folder) / f"rank{rank}").write_bytes(pickle.dumps(done))
    dist.destroy_process_group()


def worst_excess(result: RunResult) -> Mapping[int, float]:
    """Measured peak over planned peak by device."""
    pairs = zip(result.peak_bytes, result.forecast_peak_bytes, strict=True)
    return {device: measured / planned for device, (measured, planned) in enumerate(pairs)}


def steps_saved(folder: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder."""
    return [int(path.name.removeprefix("step-")) for path in complete(folder)]
