"""What is simulated next: guesses that are corrected as one goes, and what a plan's part on one group is."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check, evaluate, plan
from contraflow.planner.graph import across
from contraflow.planner.plan import Problem
from contraflow.planner.search.named.first_group import lies_on, of_first_group
from contraflow.planner.search.named.laying import laid
from contraflow.planner.search.named.likeliest import Likeliest


@dataclass
class Guess:
    """Something that takes `step_s` seconds, of a sort whose guesses are alike too small."""

    hoped_s: float
    more_s: float
    sort: int
    step_s: float
    looked: int = field(default=0)

    @property
    def likely_s(self) -> float:
        self.looked += 1
        return self.hoped_s + self.more_s


@pytest.mark.parametrize("seed", range(5))
def test_they_come_by_the_better_guess_which_is_made_of_those_that_come_first(seed: int) -> None:
    rng = random.Random(seed)
    every = [Guess(rng.uniform(1, 2), rng.choice((0.0, 0.5)), 0, 0.0) for _ in range(40)]
    left, came = Likeliest(every, lambda one: one.sort), []
    for _ in range(3):
        came.append(left.pop())
    likely = sorted(one.hoped_s + one.more_s for one in every)
    assert [one.hoped_s + one.more_s for one in came] == pytest.approx(likely[:3])
    assert sum(one.looked > 0 for one in every) < len(every)
    while math.isfinite(left.next_s()):
        came.append(left.pop())
    assert len(came) == len(every)


def test_a_sort_that_was_misjudged_comes_after_others() -> None:
    """Guesses of the first sort are half of the truth; its like are worth no look while others promise less."""
    bad = [Guess(1.0 + k / 100, 0.0, 0, 2.0) for k in range(20)]
    good = [Guess(1.5 + k / 100, 0.0, 1, 1.5) for k in range(3)]
    left, came = Likeliest([*bad, *good], lambda one: one.sort), []
    for _ in range(4):
        one = left.pop()
        left.note(one, one.step_s)
        came.append(one)
    assert [one.sort for one in came] == [0, 1, 1, 1]


def test_what_came_to_nothing_says_nothing_of_its_like() -> None:
    every = [Guess(1.0, 0.0, 0, math.inf), Guess(1.1, 0.0, 0, 1.1), Guess(1.05, 0.0, 1, 1.05)]
    left = Likeliest(every, lambda one: one.sort)
    first = left.pop()
    left.note(first, first.step_s)
    assert left.in_vain == [first]
    assert left.next_s() == pytest.approx(1.05)


def test_where_nothing_takes_time_nothing_is_misjudged() -> None:
    left = Likeliest([Guess(0.0, 0.0, 0, 0.0), Guess(0.0, 0.0, 0, 0.0)], lambda one: one.sort)
    left.note(left.pop(), 0.0)
    assert left.next_s() == 0.0


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "interleaved-2", "chimera"])
@pytest.mark.parametrize("width", [2, 3])
def test_the_part_on_the_first_group_is_what_was_laid_on_all(schedule: str, width: int) -> None:
    rng = random.Random(schedule)
    layers = [
        Layer(f"l{k}", t, t, 0.7 * t, parameter_bytes=1 << 20, stash_bytes=9, output_bytes=3)
        for k, t in enumerate(rng.uniform(0.6, 1.4) for _ in range(10))
    ]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(4 * width, link=Link(1e9, 1e-4)), Workload(8 * width))
    groups = tuple(tuple(range(4 * g, 4 * g + 4)) for g in range(width))
    alone = replace(problem.workload, micro_batches=8, groups=width, across=across(problem, groups))
    small = Problem(problem.model, problem.cluster.part(groups[0]), alone)
    one = plan(small.model, small.cluster, Workload(8), SearchSpace(schedule=schedule), 20).plan
    assert one is not None
    whole = laid(problem, groups, one)
    assert whole is not None
    assert not check(whole)
    part = of_first_group(small, groups, whole)
    assert part is not None
    assert not check(part)
    assert (part.stages, part.pipelines) == (one.stages, one.pipelines)
    again = laid(problem, groups, part)
    assert again is not None
    assert evaluate(again).step_s == pytest.approx(evaluate(whole).step_s)


def test_a_plan_whose_pipelines_cross_groups_has_no_part() -> None:
    layers = [Layer(f"l{k}", 1.0, 2.0, separable=False, output_bytes=1) for k in range(4)]
    model, cluster = ModelGraph.chain(layers), Cluster.uniform(4)
    found = plan(model, cluster, Workload(4), SearchSpace(schedule="1f1b"), 20).plan
    assert found is not None
    groups = ((0, 1), (2, 3))
    assert not lies_on(groups, found)
    small = Problem(model, cluster.part(groups[0]), replace(Workload(2), groups=2))
    assert of_first_group(small, groups, found) is None
