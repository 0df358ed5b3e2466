"""Who plays against plan(): opponents reach what is known, everything they offer is checked, losses are told."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from contraflow.planner import check
from contraflow.planner.search.common import fits

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
cases: Any = importlib.import_module("mechanisms_cases")
opponents: Any = importlib.import_module("mechanisms_opponents")
randomly: Any = importlib.import_module("mechanisms_random")
mechanisms: Any = importlib.import_module("mechanisms")


def small(text: str) -> Any:
    """The row of the table whose name contains this."""
    return next(case for case in cases._small() if text in case.name)


@pytest.mark.parametrize("text", ["8 devices, 64", pytest.param("16 devices, 64", marks=pytest.mark.slow)])
def test_shipping_to_the_mirror_device_by_hand_gives_the_steps_of_the_table(text: str) -> None:
    case = small(text)
    best = opponents.by_hand(case, 60)
    assert best.seconds <= case.goal_s
    assert best.who.startswith("1f1b, ship")
    assert fits(best.plan)
    assert not check(best.plan)
    assert not best.faults


@pytest.mark.long
def test_random_search_finds_separate_devices_where_memory_is_tight() -> None:
    """One device a stage takes 96 (proven)."""
    best = randomly.searched(small("4 stages"), 3, 1)
    assert best.seconds < 96
    assert best.plan.pipelines[0].forward != best.plan.pipelines[0].backward


@pytest.mark.parametrize("k", [0, 2, 3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 4, 5))])
def test_a_random_problem_is_the_same_again_and_what_plays_on_it_fits(k: int) -> None:
    case = list(cases.randomly(3, 6))[k]
    assert case == list(cases.randomly(3, 6))[k]
    for best in (opponents.by_hand(case, 0.5), randomly.searched(case, 0.5, 1)):
        assert not best.faults
        assert best.plan is None or (fits(best.plan) and not check(best.plan))


def test_cuts_of_least_load_are_those_of_the_dynamic_programme() -> None:
    assert opponents.cut([1.0, 1.0, 1.0, 3.0], [1.0, 1.0]) == [0, 3, 4]
    assert opponents.cut([2.0, 2.0, 1.0, 1.0], [2.0, 1.0]) == [0, 2, 4]


def test_a_match_tells_losses_and_what_an_opponent_contradicts() -> None:
    theirs = opponents.Best("1f1b", 10.0, object())
    match = mechanisms.Match("case", seconds=10.0, bound=9.0, status="optimal")
    match.meet("by hand", theirs)
    assert match.result("by hand") == "tie"
    assert match.sound
    match = mechanisms.Match("case", seconds=11.0, bound=10.5, status="optimal")
    match.meet("by hand", theirs)
    assert match.result("by hand") == "loss"
    assert not match.sound
    assert len(match.faults) == 2
    assert match.ratio("by hand") == pytest.approx(10 / 11)
