"""One pipeline round and round, or down and up: a large problem's next plans; and instants that memory is held at."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from contraflow.planner.check import check
from contraflow.planner.plan import Problem
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.named import run_folded, run_laps
from contraflow.planner.search.named.fullest import _exceeding

SHARE = 1 << 10


def problem(layers: int, memory: float, batches: int = 24) -> Problem:
    """8 devices of the memory of so many of 1F1B's, whose stashes are of one kibibyte a layer."""
    chain = [
        Layer(f"l{k}", 100, 120, 80, separable=True, stash_bytes=SHARE, weight_stash_bytes=SHARE // 2)
        for k in range(layers)
    ]
    limit = int(memory * layers * SHARE)
    return Problem(ModelGraph.chain(chain), Cluster.uniform(8, limit, Link(latency_s=5)), Workload(batches))


@pytest.mark.parametrize(("layers", "name"), [(32, "interleaved-zb-4"), (24, "interleaved-zb-3"), (8, "zb-h1")])
def test_it_has_as_many_stages_a_device_as_there_are_layers_for(layers: int, name: str) -> None:
    session = Session(problem(layers, 1), SearchSpace(), Clock(math.inf, 1.0))
    assert len([*run_laps(session, tuple(range(8)))]) == (2 if layers > 8 else 1)
    assert session.best is not None
    assert session.best.provenance.source == name
    assert not check(session.best)


@pytest.mark.parametrize(
    ("memory", "space"), [(0.9, SearchSpace()), (1, SearchSpace(split_backward=False))], ids=["memory", "whole"]
)
def test_nothing_is_made_where_it_cannot_fit_or_is_not_allowed(memory: float, space: SearchSpace) -> None:
    session = Session(problem(32, memory), space, Clock(math.inf, 1.0))
    assert [*run_laps(session, tuple(range(8)))] == []
    assert session.best is None


def test_time_decides_how_many_stages_there_are() -> None:
    """A simulation of 1F1B took a second: half a minute allows two stages a device, ten seconds allow none."""
    stages = []
    for seconds in (240.0, 35.0, 10.0):
        session = Session(problem(32, 1), SearchSpace(), Clock(math.inf))
        session.clock = replace(session.clock, deadline=session.clock.started + seconds, longest_s=1.0)
        assert len([*run_laps(session, tuple(range(8)))]) in (0, 2)
        stages.append([len(found.candidate.stages) // 8 for found in session.seen])
    assert stages == [[4], [2], []]


@pytest.mark.parametrize("memory", [1, 0.5, 0.35])
def test_down_and_up_takes_what_room_there_is(memory: float) -> None:
    """V-Auto holds what V-Half and V-Min do, or less (arXiv:2405.15362): it fits where no other lap does."""
    given = problem(16, memory)
    session = Session(given, SearchSpace(), Clock(math.inf, 1.0))
    assert len([*run_folded(session, tuple(range(8)))]) == 1
    assert session.best is not None
    assert session.best.provenance.source == "v-auto"
    assert not check(session.best)


def test_down_and_up_asks_for_two_stages_a_device_and_time() -> None:
    session = Session(problem(15, 1), SearchSpace(), Clock(math.inf, 1.0))
    assert [*run_folded(session, tuple(range(8)))] == []
    session = Session(problem(16, 1), SearchSpace(), Clock(math.inf))
    session.clock = replace(session.clock, deadline=session.clock.started + 10.0, longest_s=1.0)
    assert [*run_folded(session, tuple(range(8)))] == []
    assert session.best is None


@given(arrays.arrays(np.int64, st.tuples(st.integers(0, 150), st.integers(1, 3)), elements=st.integers(0, 6)))
def test_the_fullest_rows_are_those_that_no_other_reaches(rows: np.ndarray) -> None:
    """Of any table, each once."""
    unique = sorted({tuple(row) for row in rows.tolist()})
    kept = [
        row for row in unique if not any(o != row and all(x <= y for x, y in zip(row, o, strict=True)) for o in unique)
    ]
    assert sorted(map(tuple, _exceeding(rows).tolist())) == kept
