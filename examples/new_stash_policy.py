"""A stash policy of your own: one row of the planner's table, and what the executor does with it.

By "offload+recompute" a forward leaves only its incoming tensors, these go to the host and come back, and the stash is
made again before the backward: DeepSpeed calls it CPU checkpointing. A device then holds less than with either policy
alone. No other file knows of it: the checker, the simulator, the bounds and the executor read the row.

    python examples/new_stash_policy.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from contraflow.executor.measure import profile_model
from contraflow.executor.oracle import train_reference
from contraflow.executor.run import execute
from contraflow.executor.state import register_leaving
from contraflow.models import resolve
from contraflow.planner import Cluster, ModelGraph, Workload, bounds
from contraflow.planner.check import check
from contraflow.planner.graph import INCOMING, STASH, Candidate, Hold, StashPolicy, Where, register, stash_policy
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Kind, Op, Plan, Problem
from contraflow.planner.problem import Link, NodeGroup
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.schedules import build

NAME = "offload+recompute"
ROW = StashPolicy(
    NAME,
    frozenset({Kind.OFFLOAD, Kind.FETCH, Kind.R}),
    (
        Hold(Kind.F, Kind.OFFLOAD, INCOMING),
        Hold(Kind.OFFLOAD, Kind.FETCH, INCOMING, Where.HOST),
        Hold(Kind.FETCH, Kind.R, INCOMING),
        Hold(Kind.R, Kind.B, STASH),
    ),
)


@dataclass(frozen=True)
class Whole:
    """Tensors that go as they are, a piece each."""

    def unpack(self, pieces: list[Tensor]) -> list[Tensor]:
        """The tensors themselves."""
        return list(pieces)


def incoming(alive, key, _layout):
    """What leaves: the inputs that the forward kept."""
    return list(alive.inputs.pop(key)), Whole()


def remade(order: tuple[Op, ...]) -> list[Op]:
    """A compute order with an R right before every backward."""
    again = (Kind.B, Kind.I)
    return [x for op in order for x in ([Op(Kind.R, op.stage, op.micro_batch)] if op.kind in again else []) + [op]]


def planned(problem: Problem, stages: tuple[tuple[str, ...], ...], policy: str, schedule: str = "gpipe") -> Plan:
    """A named schedule with this policy for every stash."""
    layout = build(schedule, len(problem.cluster), problem.workload.micro_batches)
    rows = tuple((policy,) * len(stages) for _ in layout.pipelines)
    candidate = Candidate(problem, stages, layout.pipelines, rows)
    orders = [remade(order) if stash_policy(policy).remade else list(order) for order in layout.orders]
    found = assemble(candidate, orders, schedule)
    bound_s = bounds.candidate(candidate)
    assert found.forecast is not None
    assert not check(found), check(found)
    assert bound_s <= found.forecast.step_s * (1 + 1e-9), (bound_s, found.forecast.step_s)
    peak = max(device.peak_bytes for device in found.forecast.devices)
    print(f"{policy:18} step {found.forecast.step_s:.4f} s, bound {bound_s:.4f} s, peak {peak / 1e6:6.2f} MB")
    return found


def main() -> None:
    """Plans a small GPT with every policy, runs the new one, and compares it with training in one process."""
    register(ROW)
    register_leaving(NAME, incoming)
    model = resolve("gpt-tiny")
    graph = ModelGraph.from_dict(profile_model(model, 2, rounds=1))
    layers = tuple(replace(layer, forward_s=1e-3, backward_input_s=1e-3) for layer in graph.layers)
    node = NodeGroup(1, 2, PRESETS["cpu"], Link(1e9, 20e-6), host_link=Link(1e9, 20e-6))
    problem = Problem(replace(graph, layers=layers), Cluster((node,)), Workload(6))
    names = [layer.name for layer in layers]
    half = len(names) // 2
    stages = tuple(names[:half]), tuple(names[half:])
    for policy in ("keep", "recompute", "offload"):
        planned(problem, stages, policy)
    result = execute(planned(problem, stages, NAME), 3, transport="threads", return_state=True)
    alone = train_reference(model, 6, 2, steps=3)
    worst = max(float((result.state[name] - tensor).abs().max()) for name, tensor in alone.state.items())
    print(f"losses {result.losses}, alone {alone.losses}; parameters differ by {worst:.1e} at most")
    assert worst < 1e-5
    assert all(measured <= told for measured, told in zip(result.peak_bytes, result.forecast_peak_bytes, strict=True))
    print(f"peaks {result.peak_bytes} bytes, planned {result.forecast_peak_bytes}")


if __name__ == "__main__":
    main()
