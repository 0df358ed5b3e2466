"""What the race begins with: cuts for routes that visit devices repeatedly, the best plan, spaces that take turns."""

from __future__ import annotations

import itertools
import math
import random
import time

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble, assembled
from contraflow.planner.partition.chain import Chain
from contraflow.planner.plan import Kind, Op, Plan, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.schedules import build
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.common.balance import balanced
from contraflow.planner.search.common.effort import RACE
from contraflow.planner.search.common.shapes import structures
from contraflow.planner.search.orders.arm import Arm, bound
from contraflow.planner.search.orders.kernels import Ints
from contraflow.planner.search.orders.known import best_known
from contraflow.planner.search.orders.race import Race
from contraflow.planner.search.orders.search import _horizon_s, _on_other_cuts, search_orders
from contraflow.planner.search.techniques import by_turns


def uneven(count: int, seed: int, devices: int, batches: int = 8, memory: int = 1 << 30) -> Problem:
    """Layers of different lengths on a node with host links."""
    rng = random.Random(seed)
    layers = [
        Layer(f"l{k}", x := rng.uniform(1, 3), x, x, True, stash_bytes=10, output_bytes=1, weight_stash_bytes=9)
        for k in range(count)
    ]
    node = NodeGroup(1, devices, DeviceType("toy", memory), host_link=Link(5.0))
    return Problem(ModelGraph.chain(layers), Cluster((node,)), Workload(batches))


def session(problem: Problem, effort: float | None = None) -> Session:
    return Session(problem, SearchSpace(), Clock(time.monotonic() + 60, effort))


def done_s(problem: Problem, route: tuple[int, ...], twin: tuple[int, ...], cuts: tuple[int, ...]) -> float:
    """Seconds until the last device has run the forwards and backwards of its stages, waits but the first left out."""
    layers, ends = problem.model.layers, (0, *cuts, len(problem.model.layers))
    ways = [route, twin] if twin else [route]
    busy, first = dict.fromkeys(route, 0.0), dict.fromkeys(route, math.inf)
    for way in ways:
        there = 0.0
        for s, device in enumerate(way):
            mine = layers[ends[s] : ends[s + 1]]
            busy[device] += problem.workload.micro_batches / len(ways) * sum(x.forward_s + x.backward_s for x in mine)
            first[device] = min(first[device], there)
            there += sum(x.forward_s for x in mine)
    return max(busy[d] + first[d] for d in busy)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("route", "twin"),
    [((0, 1, 1, 0), ()), ((0, 1, 2, 2, 1, 0), ()), ((0, 1, 2, 3), (3, 2, 1, 0)), ((0, 1, 0, 1), (1, 0, 1, 0))],
)
def test_cuts_are_close_to_the_best_of_all(route: tuple[int, ...], twin: tuple[int, ...], seed: int) -> None:
    """Within 3 % of the cut whose last device is done first, found by trying all."""
    problem = uneven(12, seed, max(route) + 1)
    found = balanced(Chain.of(problem), route, twin)
    assert found is not None
    every = itertools.combinations(range(1, 12), len(route) - 1)
    best = min(done_s(problem, route, twin, cuts) for cuts in every)
    assert done_s(problem, route, twin, found) <= 1.03 * best


@pytest.mark.parametrize("back", [False, True])
def test_layers_are_handed_on_past_stages_that_are_full(back: bool) -> None:
    """77 layers and a first one of 3.4 on 13 devices, two stages each, round and round or back: at most 7 a device.

    Equal stages leave 4 layers beside the long one, or two stages of 4 on its neighbours, 12 devices away from room.
    """
    layers = [Layer(f"l{k}", x := 3.4 if k == 0 else 1.0, 2 * x) for k in range(78)]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(13), Workload(17))
    lap = tuple(range(13))
    route = lap + (lap[::-1] if back else lap)
    found = balanced(Chain.of(problem), route)
    assert found is not None
    loads = dict.fromkeys(lap, 0.0)
    for device, (first, end) in zip(route, itertools.pairwise((0, *found, 78)), strict=True):
        loads[device] += sum(layer.forward_s for layer in layers[first:end])
    assert max(loads.values()) == pytest.approx(7.0)


def test_two_directions_share_what_one_cannot() -> None:
    """Nine equal layers on four devices: 3 on some device one way; 2.5 both ways, where a pair has 5 or 4."""
    layers = [Layer(f"l{k}", 1.0, 2.0) for k in range(9)]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(4), Workload(8))
    found = balanced(Chain.of(problem), (0, 1, 2, 3), (3, 2, 1, 0))
    assert found is not None
    a, b, c, d = (y - x for x, y in itertools.pairwise((0, *found, 9)))
    assert sorted((a + d, b + c)) == [4, 5]


def test_every_structure_is_on_a_cut_with_layers_for_all_stages() -> None:
    """One to four stages a device, one direction or two."""
    problem = uneven(16, 0, 4)
    found = list(structures(problem, SearchSpace(), Chain.of(problem), [(0, 1, 2, 3)]))
    assert {(len(c.stages), len(c.pipelines)) for c in found} >= {(4, 1), (4, 2), (8, 1), (8, 2), (16, 1), (16, 2)}
    for candidate in found:
        assert all(candidate.stages)
        assert sum(map(len, candidate.stages)) == 16


def named(problem: Problem) -> Plan:
    """One forward, one backward on equal numbers of layers."""
    layout = build("1f1b", 4, problem.workload.micro_batches)
    names = problem.model.layers
    stages = tuple(tuple(x.name for x in names[4 * s : 4 * s + 4]) for s in range(4))
    return assemble(Candidate(problem, stages, layout.pipelines), layout.orders)


def arm_of(problem: Problem) -> Arm:
    plan = named(problem)
    return Arm(Candidate(problem, plan.stages, plan.pipelines, plan.stash), True, False, 0)


def test_an_order_that_is_known_is_raced_however_little_effort_there_is() -> None:
    """Structures without an order leave first, those with many ops before others."""
    problem = uneven(16, 0, 4)
    plan = named(problem)
    known = Arm(Candidate(problem, plan.stages, plan.pipelines, plan.stash), True, False, 0)
    known.seed_with(plan.orders)
    others = [
        Arm(c, True, False, 1 + n, bound_s=bound(c, True))
        for n, c in enumerate(structures(problem, SearchSpace(), Chain.of(problem), [(0, 1, 2, 3)]))
    ]
    race = Race(session(problem), [*others, known], 0.01, "test")
    race._thin_out()
    assert known in race.arms
    assert len(race.arms) < len(others) + 1


def test_arms_that_come_too_late_take_no_start_from_those_that_may_win() -> None:
    """Short orders whose bound is above the best plan, or that no memory holds, leave the race before it begins."""
    problem = uneven(16, 0, 4)
    whole = session(problem, 1.0)
    whole.incumbent.start_from(named(problem))
    candidates = list(structures(problem, whole.space, whole.chain, [(0, 1, 2, 3)]))
    late = [Arm(candidates[0], True, False, k, bound_s=s) for k, s in enumerate((math.inf, whole.best_s) * 20)]
    open_arm = Arm(candidates[-1], True, False, 99, bound_s=0.5 * whole.best_s)
    assert open_arm.ops > late[0].ops
    race = Race(whole, [*late, open_arm], 0.01, "test")
    race.run()
    assert open_arm.order is not None
    assert all(arm.order is None for arm in late)


def test_arms_at_their_bounds_leave_half_of_the_places_to_others() -> None:
    """They may shorten the best plan by a hundredth; what is a quarter longer for now may come to half."""
    problem = uneven(16, 0, 4)
    plan = named(problem)
    candidate = Candidate(problem, plan.stages, plan.pipelines, plan.stash)
    arms = [Arm(candidate, True, False, k) for k in range(9)]
    for arm in arms:
        arm.seed_with(plan.orders)
    best_s = arms[0].seconds
    for n, arm in enumerate(arms):
        arm.bound_s = (0.99 if n < 6 else 0.5) * best_s
        arm.seconds = best_s if n < 6 else 1.25 * best_s
    for most, kept in ((8, arms[:4] + arms[6:] + arms[4:5]), (4, [*arms[:2], *arms[6:8]]), (2, [arms[0], arms[6]])):
        race = Race(session(problem), arms, 1.0, "test")
        race._drop(most)
        assert race.arms == kept
    race.arms = arms[:6]
    race._drop(4)
    assert race.arms == arms[:4]


def test_plans_with_copies_are_raced_and_their_stash_choices_change() -> None:
    """The best plan goes on as an arm where it offloads, too, and varies in what it offloads."""
    problem = uneven(16, 0, 4, batches=48, memory=400)
    whole, plain = session(problem, 1.0), named(problem)
    away = Candidate(problem, plain.stages, plain.pipelines, (("offload", "keep", "keep", "keep"),))
    whole.incumbent.start_from(assemble(away, plain_orders()))
    (arm, *_) = best_known(whole)
    assert arm.order is not None
    assert arm.candidate.stash == away.stash
    varied = [found for _ in range(20) if (found := arm.mutated(["offload", "recompute"], True)) is not None]
    assert varied
    assert {policy for found in varied for row in found.candidate.stash for policy in row} >= {"keep", "offload"}
    for found in varied:
        assemble(found.candidate, found.ops_by_device())


def test_what_the_best_plan_copies_is_also_made_again_in_a_race() -> None:
    """From both it goes on: copies may be what leads nowhere."""
    problem = uneven(16, 0, 4, batches=48, memory=400)
    whole, plain = session(problem, 1.0), named(problem)
    away = Candidate(problem, plain.stages, plain.pipelines, (("offload", "keep", "keep", "keep"),))
    whole.incumbent.start_from(assemble(away, plain_orders()))
    rows = {arm.candidate.stash for arm in best_known(whole)}
    assert rows == {(("offload", "keep", "keep", "keep"),), (("recompute", "keep", "keep", "keep"),)}


def test_plans_of_one_cut_are_raced_with_other_stashes() -> None:
    problem = uneven(16, 0, 4, batches=48)
    whole, plain = session(problem, 1.0), named(problem)
    for row in ("keep", "offload", "recompute"):
        policies = ((row, "keep", "keep", "keep"),)
        made = assembled(Candidate(problem, plain.stages, plain.pipelines, policies), plain_orders())
        whole.rounds.remember(made, math.inf)
    arms = best_known(whole, 2)
    assert len({arm.candidate.stages for arm in arms}) == 1
    assert len({arm.candidate.stash for arm in arms}) == 2


def test_every_race_has_other_cuts() -> None:
    """Few structures begin on their own and on another cut; of many, every other one, but in the first race."""
    problem = uneven(16, 0, 4)
    whole = session(problem)
    few = list(itertools.islice(structures(problem, whole.space, whole.chain, [(0, 1, 2, 3)]), 6))
    races = [list(_on_other_cuts(whole, few, number)) for number in range(3)]
    for found in races:
        assert found[::2] == few
        assert all(one.stages != other.stages for one, other in zip(found[::2], found[1::2], strict=True))
    assert len({tuple(one.stages for one in found) for found in races}) == 3
    many = few * 4
    assert list(_on_other_cuts(whole, many, 0)) == many
    changed = [one.stages != other.stages for one, other in zip(_on_other_cuts(whole, many, 1), many, strict=True)]
    assert changed == [True, False] * 12


def test_small_orders_are_raced_for_a_while_and_then_anew() -> None:
    """However long the call is; large ones as long as it is."""
    whole = session(uneven(16, 0, 4))
    small, large = ([arm_of(uneven(16, 0, 4, batches=batches))] for batches in (8, 4000))
    whole.rounds.races = 1
    assert _horizon_s(whole, small, 0.3) == RACE.whole
    assert _horizon_s(whole, small, 40.0) == RACE.whole
    assert _horizon_s(whole, large, 40.0) == 40.0


def test_a_race_without_arms_starts_again() -> None:
    """Structures whose first starts came to nothing get others while there is effort."""
    problem = uneven(16, 0, 4)
    whole, begun = session(problem, 1.0), []

    class Unlucky(Arm):
        def start(self, tries: int, target_s: float, stop: Ints) -> None:
            begun.append(self.seed)
            if len(begun) > 3:
                super().start(tries, target_s, stop)

    candidate = next(structures(problem, whole.space, whole.chain, [(0, 1, 2, 3)]))
    Race(whole, [Unlucky(candidate, True, False, 0)], 0.2, "test").run()
    assert len(set(begun)) > 3
    assert whole.best is not None


@pytest.mark.long
def test_a_race_that_is_cut_short_goes_on_where_it_was() -> None:
    """Every start gets its effort once, in however many runs, and then the race ends."""
    problem = uneven(16, 0, 4)
    whole, begun = session(problem), list[int]()

    class Slow(Arm):
        def improve(self, moves: int, target_s: float, stop: Ints) -> None:
            begun.append(self.seed)
            time.sleep(0.08)
            super().improve(1, target_s, stop)

    found = structures(problem, whole.space, whole.chain, [(0, 1, 2, 3)])
    arms = [Slow(c, True, False, k, bound_s=bound(c, True)) for k, c in enumerate(found)]
    assert len(arms) > 4
    race, runs = Race(whole, arms, 50.0, "test", horizon_s=4.0), 0
    race._calibrate = lambda: None  # type: ignore[method-assign]
    firsts = [arm.seed for arm in arms]
    while not set(firsts) <= set(begun):
        known = len(begun)
        race.run(time.monotonic() + 0.12)
        runs += 1
        assert not race.ended
        assert known < len(begun) < known + len(arms)
    assert runs > 1
    assert [seed for seed in begun if seed in firsts][: len(arms)] == firsts  # none of them twice before all had theirs
    race.run(time.monotonic() + 20.0)
    assert race.ended
    assert whole.best is not None


def test_a_search_of_orders_goes_on_with_the_race_that_it_left() -> None:
    """And with the best plan that others have found meanwhile."""
    problem = uneven(16, 0, 4)
    whole = session(problem)
    candidate = next(structures(problem, whole.space, whole.chain, [(0, 1, 2, 3)]))
    paused = Race(whole, [Arm(candidate, True, False, 0)], 1.0, "test", horizon_s=60.0)
    whole.rounds.end_race([], paused)
    whole.incumbent.start_from(named(problem))
    search_orders(whole, [(0, 1, 2, 3)], RACE.least, math.inf)
    assert whole.rounds.races == 0  # no other has begun
    assert whole.rounds.paused is paused
    assert paused.used_s > 0
    assert any(arm.candidate.stages == named(problem).stages for arm in paused.arms)


def test_a_long_search_has_any_number_of_races() -> None:
    problem = uneven(16, 0, 4)
    whole = session(problem)
    whole.rounds.races = 5000
    search_orders(whole, [(0, 1, 2, 3)], 2 * RACE.least, math.inf)
    assert whole.rounds.races == 5001


def test_a_tightened_order_goes_back_to_the_one_it_began_with() -> None:
    """Where less memory than it takes is left, but enough for the first; and is lost where neither fits."""
    problem = uneven(16, 0, 4)
    plan = named(problem)
    arm = Arm(Candidate(problem, plan.stages, plan.pipelines, plan.stash), True, False, 0)
    arm.seed_with(plan.orders)
    first = arm.order
    assert first is not None
    arm.order = None  # whatever an annealing left there
    assert arm.tightened((1,) * 4).order is first
    assert arm.tightened((1 << 30,) * 4).order is None


@pytest.mark.parametrize("copies_help", [False, True])
def test_what_is_left_goes_to_the_space_that_holds_the_best_plan(copies_help: bool) -> None:
    """Without copies first, a look and then all of it, then everything, then the better of the two, from there on."""
    problem = uneven(16, 0, 4, batches=48, memory=400)
    whole, turns = session(problem), []
    plain = named(problem)
    away = assemble(Candidate(problem, plain.stages, plain.pipelines, (("keep",) * 3 + ("offload",),)), plain_orders())

    def search(part: Session) -> None:
        turns.append((part.space.offload, part.rounds.resumed))
        found = away if part.space.offload and copies_help else plain
        part.incumbent.start_from(found)
        if not part.space.offload:
            part.incumbent.plain = found

    by_turns(whole, lambda _: 1.0, lambda _: None, search)
    assert turns[:3] == [(False, False), (False, True), (True, True)]
    assert turns[3] == (copies_help, True)


def test_the_space_without_copies_is_left_where_plans_with_copies_are_far_ahead() -> None:
    problem = uneven(16, 0, 4, batches=48, memory=400)
    whole, turns = session(problem), []
    fast = named(problem)
    again = Candidate(problem, fast.stages, fast.pipelines, (("recompute",) * 4,))
    slow = assemble(again, _remade())
    assert slow.forecast.step_s > 1.05 * fast.forecast.step_s

    def search(part: Session) -> None:
        turns.append(part.space.offload)
        if not part.space.offload:
            part.incumbent.start_from(slow)

    by_turns(whole, lambda _: 1.0, lambda part: part.incumbent.start_from(fast), search)
    assert turns[:2] == [False, True]


def test_a_short_round_that_goes_on_is_for_one_space() -> None:
    """Two are for the one that has the best plan, every third for the other."""
    problem = uneven(16, 0, 4, batches=48, memory=400)
    whole, turns = session(problem), []
    whole.clock.deadline = time.monotonic() + 5
    fast = named(problem)

    def search(part: Session) -> None:
        turns.append(part.space.offload)
        part.incumbent.start_from(fast)
        if not part.space.offload:
            part.incumbent.plain = fast

    by_turns(whole, lambda _: 1.0, lambda _: None, search)
    turns.clear()
    for _ in range(6):
        by_turns(whole, lambda _: 1.0, lambda _: None, search)
    assert turns == [False, False, True] * 2


def _remade() -> list[list[Op]]:
    """The orders of 1F1B, every forward once more before its backward."""
    found: list[list[Op]] = []
    for order in build("1f1b", 4, 48).orders:
        again = [[Op(Kind.R, op.stage, op.micro_batch), op] if op.kind is Kind.B else [op] for op in order]
        found.append(list(itertools.chain.from_iterable(again)))
    return found


def plain_orders() -> list[tuple[object, ...]]:
    """Of the plan `named`, before messages are added."""
    return list(build("1f1b", 4, 48).orders)
