"""Asynchronous plans of real models, run and held against the emulation: what the tests of them share."""

from __future__ import annotations

from typing import Any

import torch
from instances import replicated, separated
from runs import Case, linked, planned, profiled, worst_excess

from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.emulation import Emulation, Emulator, emulate
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.planner.plan import Kind, Plan
from contraflow.planner.problem.workload import Workload

UPDATES = 10
"""Micro-batches a plan has, in updates."""
SCHEDULED = Training(lr=0.05, schedule="linear", warmup_steps=3, lr_floor=0.01)
"""The rate changes at every update."""


def unflushed(weights: str, devices: int, update: int = 1, model: str = "mlp-deep", **rest: Any) -> Case:
    """A weight policy for a model on devices, a stage each, in the order one forward, one backward."""
    return Case("1f1b", model, devices, UPDATES * update, **rest, weights=weights, update=update)


def replicas(policy: str, update: int) -> Plan:
    """Two replicas of two stages."""
    workload = Workload(UPDATES * update, "momentum", update_every=update)
    return replicated(profiled("mlp-deep", torch.float32), workload, policy)


def two_devices(policy: str, devices: int, update: int, optimizer: str = "momentum") -> Plan:
    """Every stage's backward on another device, on links that take time."""
    case = Case("1f1b", "mlp-deep", devices, 1, optimizer)
    workload = Workload(UPDATES * update, optimizer, update_every=update)
    return separated(profiled(case.model, case.dtype), workload, policy, linked(devices))


class Listed(Emulator):
    """Takes versions from op lists of its run: what was stepped, or had arrived, before every forward."""

    def follow(self, plan: Plan) -> None:
        """The lists of the run, which may read older weights than those of as many updates as there are stages."""
        self.kept = plan.problem.workload.micro_batches
        self.newest: dict[tuple[int, int], int] = {}
        self.first_user: dict[tuple[int, int], int] = {}
        for device, order in enumerate(plan.orders):
            for place, op in enumerate(order):
                if op.kind is Kind.F:
                    steps = Kind.STEP if any(p.backward[op.stage] == device for p in plan.pipelines) else Kind.RECV_P
                    found = sum(other.kind is steps and other.stage == op.stage for other in order[:place])
                    self.newest[op.stage, op.micro_batch] = found
                    if steps is Kind.RECV_P and found:
                        self.first_user.setdefault((op.stage, found), op.micro_batch)

    def read_by_forward(self, stage: int, m: int) -> int:
        """As the policy says."""
        if self.policy == "2bw":
            return min(self.newest[0, k] for k in range(m - m % self.update, m - m % self.update + self.update))
        return self.newest[0 if self.policy == "vertical" else stage, m]

    def late(self, stage: int, m: int, version: int) -> int:
        """What is sent is predicted for the first forward that uses it; what was there at first, not at all."""
        plan = self.blueprint.plan
        if all(p.backward[stage] == p.forward[stage] for p in plan.pipelines):
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


def assert_as_emulated(case: Case, runs: tuple[int, ...], training: Training = SCHEDULED) -> RunResult:
    """Runs a case both ways."""
    plan = planned(case)
    found = run(plan, runs, training, case.dtype)
    assert_exact(found, emulate(plan, runs, dtype=case.dtype, training=training))
    return found
