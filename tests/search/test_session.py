"""A search's parts: clock, incumbent, proof, memory of rounds; who may change them, and the answer made of them."""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from instances import uniform

from contraflow.planner import search
from contraflow.planner.basics import WorkloadError
from contraflow.planner.plan import PROVEN_GAP, Plan, Problem, gap_of
from contraflow.planner.problem import Cluster, SearchSpace, Workload
from contraflow.planner.search import frontier
from contraflow.planner.search.common import SECONDS, Clock, Earlier, Incumbent, Rounds, Session, told, unanswered
from contraflow.planner.search.common.answer import Proven
from contraflow.planner.search.common.proof import Proof
from contraflow.planner.search.driver import plan

ROOT = Path(search.__file__).parent
PARTS = {"session", "inner", "plain", "small", "clock", "incumbent", "proof", "rounds"}


def outer_writes() -> Iterator[str]:
    """Assignments to a field of a session or of its parts in modules that do not define them."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name == "common":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            leaves = [leaf for target in targets if target is not None for leaf in ast.walk(target)]
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                for leaf in leaves:
                    if isinstance(leaf, ast.Attribute) and owner(leaf.value) in PARTS:
                        yield f"{path.name}:{node.lineno}"


def owner(node: ast.AST) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_only_its_own_methods_change_a_session() -> None:
    """No module outside common/ writes a field of a session, or of a part of one."""
    assert list(outer_writes()) == []


def test_a_clock_lends_shares_and_keeps_the_rest() -> None:
    """A part gets its shares of time and effort; the whole keeps its deadline and the rest of the effort."""
    clock = Clock(time.monotonic() + 100, effort=8.0)
    inner = clock.parted()
    with clock.lending(inner, 0.5, 0.25):
        assert inner.effort == 2.0
        assert 40 < inner.remaining_s <= 50
    assert clock.effort == 6.0
    assert inner.deadline == clock.deadline
    with clock.lending(clock, 0.5):
        assert clock.effort == 3.0
        assert clock.remaining_s <= 50
    assert clock.effort == 3.0
    with clock.hurried(1 / 3):
        assert clock.effort == pytest.approx(1.0)
    assert clock.effort == pytest.approx(2.0)
    assert clock.remaining_s > 90


def test_ctrl_c_in_a_part_ends_the_whole() -> None:
    clock = Clock(time.monotonic() + 100)
    inner = clock.parted()
    with clock.lending(inner, 0.5):
        raise KeyboardInterrupt
    assert inner.interrupted
    assert clock.over(planned=False)


def test_what_is_simulated_longest_is_left_time_for() -> None:
    """With a plan in hand, a search ends when another simulation would not come to its end."""
    clock = Clock(time.monotonic() + 0.05, longest_s=1.0)
    assert clock.over(planned=True)
    assert not clock.over(planned=False)


def test_proofs_only_rise_and_groups_are_as_good_as_their_worst() -> None:
    proof = Proof()
    proof.of_asked(3.0)
    proof.of_searched(5.0)
    proof.of_searched(4.0)
    proof.of_shapes(6.0, math.inf, planned=True)
    assert (proof.asked_s, proof.bound_s, proof.shapes_s, proof.together_s) == (3.0, 5.0, 6.0, 0.0)
    assert proof.reached_by(6.0)
    assert not proof.reached_by(6.1)
    assert not proof.together_reached_by(0.0)
    proof.of_shapes(math.inf, math.inf, planned=False)
    assert proof.hopeless
    assert proof.without_shapes() == Proof(3.0, 5.0)


def some_plan() -> Plan:
    """1F1B on two devices."""
    made = plan(uniform(2, 1, 2), Cluster.uniform(2, 100), Workload(4), SearchSpace("1f1b"), 10).plan
    assert made is not None
    return made


def test_the_incumbent_is_told_of_once_it_is_better() -> None:
    """The best plan stays where another is no shorter; the caller never hears of a bound above it."""
    heard = []
    incumbent, made = Incumbent(heard.append), some_plan()
    incumbent.tell(0.0, 1e9, "begin")
    assert incumbent.take(made, 1e-12)
    assert not incumbent.take(made, 1e-12)
    incumbent.tell(1.0, 1e9, "end")
    assert [event.bound_s for event in heard] == [1e9, incumbent.best_s]
    assert [event.step_s for event in heard] == [None, incumbent.best_s]
    assert incumbent.plain is made
    incumbent.limit(0.5)
    assert incumbent.worth_s == 0.5


def test_rounds_go_on_where_others_ended() -> None:
    made = some_plan()
    other = Rounds(count=2, widths={((0,), (1,)): Earlier(made, 3.0, [], 1), ((0, 1),): Earlier(None, math.inf, [], 1)})
    rounds = Rounds()
    assert rounds.descends(made)
    rounds.end_descent(made)
    assert not rounds.descends(made)
    rounds.take_up(other, planned=True)
    assert (rounds.count, rounds.resumed, list(rounds.widths)) == (3, True, [((0,), (1,))])
    assert not rounds.descends(replace(made))


ANSWERS = [
    SearchSpace(pipelines=1),
    SearchSpace("1f1b"),
    SearchSpace(asynchronous=("stash",)),
    SearchSpace("pipedream"),
]


@pytest.mark.parametrize("space", ANSWERS, ids=lambda space: f"{space.schedule} {space.asynchronous}")
def test_every_search_answers_alike(space: SearchSpace) -> None:
    """Bound, gap and status of the answer are those in its plan, and what it says of itself follows from them."""
    result = plan(uniform(4, 1, 2), Cluster.uniform(2, 100), Workload(8), space, 20, 3, 1, 0.2)
    assert result.plan is not None
    assert result.plan.forecast is not None
    forecast, made = result.plan.forecast, result.plan.provenance
    assert (forecast.bound_s, forecast.gap, forecast.status) == (result.bound_s, result.gap, result.status)
    assert result.gap == gap_of(forecast.objective_s, result.bound_s)
    assert (result.status == "optimal") == (result.gap <= PROVEN_GAP)
    assert made.seed == 3
    assert made.version
    assert made.space
    assert (made.among, made.among_bound_s) == (
        ("", None) if result.among is None else (result.among.space, result.among.bound_s)
    )


def test_a_frontier_is_of_steps() -> None:
    """Every point carries what its plan says; without a flush there is none."""
    problem = uniform(4, 1, 2), Cluster.uniform(2, 100), Workload(4)
    for point in frontier(*problem, SearchSpace(pipelines=1), 3, time_limit=5, workers=1, deterministic_limit=0.05):
        if point.forecast is not None:
            assert (point.status, point.bound_s) == (point.forecast.status, point.forecast.bound_s)
    with pytest.raises(WorkloadError, match="without a flush"):
        frontier(*problem, SearchSpace(asynchronous=("stash",)), 3)


def test_without_a_plan_infeasible_needs_a_proof_and_a_lack() -> None:
    assert unanswered(1.0, (), True, ()).status == "unknown"
    made = some_plan()
    found = told(made, Proven("all", 0.0), (Proven("some", 1.0),), made.provenance)
    assert found.status == "feasible"
    assert found.among == Proven("some", 1.0)


def test_a_part_of_a_round_that_found_nothing_gets_less_of_the_next() -> None:
    """Down to a quarter, until it finds something again; where no part does, all have their shares."""
    rounds = Rounds()
    for credit in (0.5, 0.25, 0.25):
        rounds.credit("race", False)
        assert rounds.credits == {"race": credit}
    rounds.credit("race", True)
    assert rounds.credits == {"race": 1.0}


def test_what_had_no_time_to_find_anything_gets_no_less_of_the_next_round() -> None:
    given = Problem(uniform(4, 1, 2), Cluster.uniform(2, 100), Workload(4))
    session = Session(given, SearchSpace(), Clock(time.monotonic() + 60))
    with session.earning("grids", 0.5):
        pass
    assert "grids" not in session.rounds.credits
    with session.earning("grids", 0.5):
        time.sleep(SECONDS.tried)
    assert session.rounds.credits["grids"] < 1
