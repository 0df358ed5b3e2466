"""Asynchronous plans of real models, run and held against the emulation: what the tests of them share."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from runs import Case, dealt_out, planned, rewritten, worst_excess

from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.emulation import Emulation, Emulator, emulate
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.weight_policy import FLUSH, WEIGHT_POLICIES
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

POLICIES = tuple(name for name in WEIGHT_POLICIES if name != FLUSH)
UPDATES = 10
"""Micro-batches a plan has, in updates."""
SCHEDULED = Training(lr=0.05, schedule="linear", warmup_steps=3, lr_floor=0.01)
"""The rate changes at every update."""


class Async(NamedTuple):
    """A weight policy for a model on devices, a stage each, in the order one forward, one backward."""

    policy: str
    devices: int
    update: int = 1
    model: str = "mlp-deep"
    optimizer: str = "momentum"
    stash: str = "keep"
    halves: bool = False
    precision: str = "fp32"

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters; as in `runs`."""
        return Case("1f1b", self.model, self.devices, 1, self.optimizer, precision=self.precision).dtype


@cache
def planned_async(case: Async) -> Plan:
    """The case's plan; with `halves` every backward is I and then W."""
    count = UPDATES * case.update
    base = dealt_out(
        Case("1f1b", case.model, case.devices, count, case.optimizer, case.stash, precision=case.precision)
    )
    workload = Workload(count, case.optimizer, case.precision, update_every=case.update)
    problem = Problem(base.problem.model, base.problem.cluster, workload)
    candidate = Candidate(problem, base.stages, base.pipelines, base.stash, case.policy)
    orders = [rewritten(order, candidate, False) for order in build("1f1b", case.devices, count).orders]
    if case.halves:
        orders = [[half for op in order for half in _halved(op)] for order in orders]
    return assemble(candidate, orders, "test")


def _halved(op: Op) -> tuple[Op, ...]:
    return (op._replace(kind=Kind.I), op._replace(kind=Kind.W)) if op.kind is Kind.B else (op,)


def replicated(policy: str, update: int) -> Plan:
    """Two replicas of two stages."""
    stages, count = 2, UPDATES * update
    model = planned(Case("1f1b", "mlp-deep", stages, 4)).problem.model
    names = [layer.name for layer in model.layers]
    cut = len(names) // 2
    pipelines = tuple(Pipeline((2 * r, 2 * r + 1), (2 * r, 2 * r + 1), tuple(range(r, count, 2))) for r in range(2))
    orders = [
        [op._replace(micro_batch=2 * op.micro_batch + r) for op in order]
        for r in range(2)
        for order in build("1f1b", stages, count // 2).orders
    ]
    problem = Problem(model, Cluster.uniform(4), Workload(count, "momentum", update_every=update))
    return assemble(Candidate(problem, (tuple(names[:cut]), tuple(names[cut:])), pipelines, (), policy), orders)


def separated(policy: str, devices: int, update: int, optimizer: str = "momentum") -> Plan:
    """Stage s runs forward on device s, backward on device D-1-s; D + 1 forwards come before the first backward."""
    count, first = UPDATES * update, devices + 1
    base = dealt_out(Case("1f1b", "mlp-deep", devices, count, optimizer))
    route = base.pipelines[0].forward
    pipelines = (Pipeline(route, route[::-1], tuple(range(count))),)
    kind = DeviceType("custom", PRESETS["cpu"].memory_bytes)
    cluster = Cluster((NodeGroup(1, devices, kind, Link(1e9, 20e-6)),))
    problem = Problem(base.problem.model, cluster, Workload(count, optimizer, update_every=update))
    orders = []
    for device in range(devices):
        line = [Op(Kind.F, device, m) for m in range(first)]
        for m in range(count):
            line.append(Op(Kind.B, devices - 1 - device, m))
            line += [Op(Kind.F, device, first + m)] if first + m < count else []
        orders.append(line)
    return assemble(Candidate(problem, base.stages, pipelines, (), policy), orders)


class Listed(Emulator):
    """Takes versions from op lists of its run: what was stepped, or had arrived, before every forward."""

    def follow(self, plan: Plan) -> None:
        """The lists of the run."""
        self.newest: dict[tuple[int, int], int] = {}
        self.first_user: dict[tuple[int, int], int] = {}
        for device, order in enumerate(plan.orders):
            for place, op in enumerate(order):
                if op.kind is Kind.F:
                    steps = Kind.STEP if plan.pipelines[0].backward[op.stage] == device else Kind.RECV_P
                    found = sum(other.kind is steps and other.stage == op.stage for other in order[:place])
                    self.newest[op.stage, op.micro_batch] = found
                    if steps is Kind.RECV_P and found:
                        self.first_user.setdefault((op.stage, found), op.micro_batch)

    def read_by_forward(self, stage: int, m: int) -> int:
        """As the policy says."""
        return self.newest[0 if self.policy == "vertical" else stage, m]

    def late(self, stage: int, m: int, version: int) -> int:
        """What is sent is predicted for the first forward that uses it; what was there at first, not at all."""
        plan = self.blueprint.plan
        if plan.pipelines[0].backward[stage] == plan.pipelines[0].forward[stage]:
            return m // self.update - version
        return self.first_user[stage, version] // self.update - version if version else 0


def run(plan: Plan, runs: tuple[int, ...], training: Training, dtype: torch.dtype = torch.float32) -> RunResult:
    """The updates of these runs on threads; all but the last have one length, and an evaluation behind them."""
    chosen = training if len(runs) == 1 else Training(**{**vars(training), "evaluate_every": runs[0]})
    return execute(
        plan, sum(runs), dtype=dtype, transport="threads", self_check=False, return_state=True, training=chosen
    )


def assert_exact(found: RunResult, wanted: Emulation) -> None:
    """Every loss and every tensor, float by float; and no device above its planned peak."""
    assert_same_floats(found, wanted)
    assert max(worst_excess(found).values()) <= 1, worst_excess(found)


def assert_same_floats(found: RunResult, wanted: Emulation) -> None:
    """Every loss and every tensor."""
    assert found.losses == wanted.losses
    assert found.state is not None
    for name, tensor in wanted.state.items():
        assert torch.equal(found.state[name], tensor), name


def assert_as_emulated(case: Async, runs: tuple[int, ...], training: Training = SCHEDULED) -> RunResult:
    """Runs a case both ways."""
    plan = planned_async(case)
    found = run(plan, runs, training, case.dtype)
    assert_exact(found, emulate(plan, runs, dtype=case.dtype, training=training))
    return found
