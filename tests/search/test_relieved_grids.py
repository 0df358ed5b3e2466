"""Uniform grids that do not fit with every stash kept: fitted in part, on one group, and laid on all."""

from __future__ import annotations

import math

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check
from contraflow.planner.plan import Problem
from contraflow.planner.problem.cluster import DeviceType, NodeGroup
from contraflow.planner.schedules import build
from contraflow.planner.search.common import Clock, Session, balanced
from contraflow.planner.search.named import (
    next_relieved_s,
    run_relieved_grids,
    run_uniform,
    try_relieved,
    try_relieved_point,
)

BYTES_A_SECOND = 40.0


def session_of(memory: int, space: SearchSpace = SearchSpace()) -> Session:  # noqa: B008 - immutable
    """24 equal layers on two nodes of four devices, 64 micro-batches, a host link for each device."""
    layers = [
        Layer(f"l{k}", 1.0, 2.0, parameter_bytes=20, stash_bytes=10, output_bytes=1, input_bytes=1) for k in range(24)
    ]
    node = NodeGroup(2, 4, DeviceType("d", memory), Link(1e4, 1e-3), None, Link(BYTES_A_SECOND, 1e-3))
    problem = Problem(ModelGraph.chain(layers), Cluster((node,), Link(1e4, 1e-3)), Workload(64, "adam"))
    return Session(problem, space, Clock(math.inf, 1.0))


@pytest.mark.parametrize(("space", "moved"), [(SearchSpace(), "offload"), (SearchSpace(offload=False), "recompute")])
def test_what_does_not_fit_is_copied_or_made_again_no_further_than_it_must(space: SearchSpace, moved: str) -> None:
    """Better than any grid with all stashes kept or made again."""
    session = session_of(420, space)
    run_uniform(session)
    grids_s, likely_s = session.best_s, next_relieved_s(session)
    run_relieved_grids(session)
    assert session.best is not None
    assert not check(session.best)
    assert likely_s <= session.best_s < 0.99 * grids_s
    used = {policy for row in session.best.stash for policy in row}
    assert {"keep", moved} <= used


def test_there_are_none_where_every_stash_fits_or_must_stay() -> None:
    assert math.isinf(next_relieved_s(session_of(1 << 20)))
    assert math.isinf(next_relieved_s(session_of(420, SearchSpace(offload=False, recompute=False))))


def test_stashes_are_made_again_where_more_copies_no_longer_make_room() -> None:
    """Copies that wait for a busy host link hold what they should free: each further one lacks the same bytes again."""
    layers = [
        Layer(f"l{k}", 1.0, 2.0, separable=False, parameter_bytes=4, stash_bytes=100, output_bytes=1) for k in range(12)
    ]
    node = NodeGroup(1, 3, DeviceType("d", 847), Link(1e4), None, Link(BYTES_A_SECOND))
    problem = Problem(ModelGraph.chain(layers), Cluster((node,), Link(1e4)), Workload(12))
    session, layout = Session(problem, SearchSpace(), Clock(math.inf, 1.0)), build("interleaved-4", 3, 12)
    cuts = balanced(session.chain, layout.pipelines[0].forward)
    step_s = try_relieved(session, layout, cuts, [("recompute", "offload")])
    assert session.best is not None
    assert not check(session.best)
    assert session.best_s == step_s
    assert {"keep", "recompute", "offload"} <= {policy for row in session.best.stash for policy in row}
    assert step_s < try_relieved(session, layout, cuts, [("recompute",)])


def test_a_point_that_cannot_be_better_is_not_fitted() -> None:
    session = session_of(420)
    session.incumbent.limit(1e-3)
    assert try_relieved_point(session) == 0
    assert session.best is None
