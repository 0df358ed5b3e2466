"""The search for forward and backward devices at any size: what the dispatcher writes, known optima, what it beats."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import step_of

from contraflow.planner.check import check
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.common.fit import excess
from contraflow.planner.search.separate.case import case_of
from contraflow.planner.search.separate.dispatch import NEVER, dispatch
from contraflow.planner.search.separate.lists import candidate_of, op_lists
from contraflow.planner.search.separate.tables import (
    AHEAD,
    AWAY,
    CAP,
    FRONT,
    HALVES,
    OVER,
    POLICY,
    REAR,
    ROWS,
    TARGET,
    TURNS,
    WINDOW,
    Ints,
    scratch,
)

TOLERANCE = 1e-9
"""The dispatcher never says less than the simulator, but for round-off."""


def problem_of(draw: st.DrawFn, devices: int, output: int) -> Problem:
    """Layers of any times and bytes, one node, at most as much memory as some plans need."""
    split = draw(st.booleans())
    seconds = st.integers(0, 8).map(lambda k: k / 2)
    layers = [
        Layer(
            f"l{k}", draw(seconds), draw(seconds), draw(seconds), separable=split,
            parameter_bytes=draw(st.sampled_from([0, 4])), stash_bytes=draw(st.sampled_from([0, 5, 10])),
            weight_stash_bytes=draw(st.sampled_from([0, 4, 12])), output_bytes=output,
            workspace_bytes=draw(st.sampled_from([0, 2])),
        )
        for k in range(draw(st.integers(1, 5)))
    ]  # fmt: skip
    link = Link(draw(st.sampled_from([2.0, 10.0])), draw(st.sampled_from([0.0, 0.5])))
    kind = DeviceType("toy", draw(st.integers(20, 90)))
    cluster = Cluster((NodeGroup(1, devices, kind, link, host_link=Link(4.0, 0.25)),))
    return Problem(ModelGraph.chain(layers), cluster, Workload(draw(st.integers(1, 6))))


@st.composite
def decided(draw: st.DrawFn) -> tuple[Problem, Ints]:
    """A problem, and decisions for every layer as a stage."""
    devices = draw(st.integers(2, 5))
    problem = problem_of(draw, devices, draw(st.sampled_from([0, 0, 3])))
    stages, batches = len(problem.model.layers), problem.workload.micro_batches
    most = {FRONT: devices - 1, REAR: devices - 1, POLICY: 3, TARGET: devices - 1, AHEAD: 2}
    dec = np.zeros((ROWS, stages), dtype=np.int64)
    for s in range(stages):
        for row, last in most.items():
            dec[row, s] = draw(st.integers(0, last))
        dec[CAP, s], dec[WINDOW, s] = draw(st.integers(1, batches)), draw(st.integers(1, batches))
        dec[TURNS, s] = draw(st.sampled_from([15, 5, 3]))
        dec[HALVES, s] = int(problem.model.layers[s].separable and draw(st.booleans()))
    return problem, dec


def run(problem: Problem, dec: Ints) -> tuple[float, int, Plan | None]:
    """What the dispatcher makes of decisions: seconds, bytes over a limit, and the plan; None where it gets stuck."""
    stages = tuple((layer.name,) for layer in problem.model.layers)
    case, devices, batches = case_of(problem, stages), len(problem.cluster), problem.workload.micro_batches
    work, keys = scratch(case), (np.zeros((3, len(stages))), np.zeros((3, len(stages), batches)))
    lowered = np.zeros(devices, dtype=np.int64)
    seconds = float(dispatch(case, dec, *keys, np.zeros(devices), lowered, work, NEVER))
    if seconds >= NEVER:
        return seconds, 0, None
    made = assemble(candidate_of(problem, stages, dec), op_lists(dec, work))
    return seconds, int(work.device[OVER].max()), made


@settings(max_examples=150, deadline=None)
@given(decided())
def test_the_simulator_agrees_with_the_dispatcher(case: tuple[Problem, Ints]) -> None:
    """Whatever is decided: complete lists that never deadlock, take no longer than was said, and hold no more.

    Memory is left out where tensors are in transit, or stashes pass through another device, whose release no list
    promises.
    """
    problem, dec = case
    seconds, over, made = run(problem, dec)
    if made is None:
        return
    assert step_of(made) <= seconds * (1 + TOLERANCE)
    faults = [fault for fault in check(made) if "peaks at" not in str(fault)]
    through = AWAY in dec[POLICY] or any(layer.output_bytes for layer in problem.model.layers)
    if not (over or through):
        assert not any(excess(made))
        assert faults == []
