"""What the simulator asks of op lists is what the checker asks of them: no more, and no less."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from editing import shuffled
from random_plans import plans_of, random_candidate, tied
from random_runs import draw, plan_of

from contraflow.planner.basics.errors import InputError, PlanError
from contraflow.planner.plan import Kind, Op, Plan
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.rules.sets import listed_ops
from contraflow.planner.rules.sound import sound_columns
from contraflow.planner.simulate import evaluate


def plans() -> Iterator[Plan]:
    """Of all stash policies, split backwards, two devices a stage, ties, and without a flush."""
    for seed in range(24):
        candidate = random_candidate(seed, seed % 3 == 0)
        try:
            yield from plans_of(tied(candidate, seed) if seed % 2 else candidate, seed, 1, seed % 4 < 2)
        except PlanError:
            continue
    asynchronous = 0
    for seed in range(100):
        case = draw(seed)
        if case.weights != FLUSH and case.engine == "graph" and case.model in ("mlp", "deep", "tied"):
            try:
                yield plan_of(case)
            except PlanError:
                continue
            asynchronous += 1
        if asynchronous == 3:
            return


def broken(plan: Plan, rng: random.Random) -> Plan:
    """Op lists with ops moved, missing, repeated, halved or retargeted, or routes and policies that they do not fit."""
    choice = rng.randrange(6)
    if choice == 0:
        lines = [list(order) for order in plan.orders]
        line = rng.choice([line for line in lines if any(op.kind is Kind.B for op in line)] or lines)
        for place, op in enumerate(line):
            if op.kind is Kind.B:
                line[place : place + 1] = [op._replace(kind=k) for k in rng.choice([(Kind.I, Kind.W), (Kind.I,)])]
                break
        return replace(plan, orders=tuple(map(tuple, lines)))
    if choice == 1:
        a, b = rng.randrange(len(plan.orders)), rng.randrange(len(plan.orders))
        lines = [list(order) for order in plan.orders]
        if lines[a]:
            lines[b].append(lines[a].pop(rng.randrange(len(lines[a]))))
        return replace(plan, orders=tuple(map(tuple, lines)))
    if choice == 2:
        row = [rng.choice(["keep", "recompute", "offload", "ship>0", "zip"]) for _ in plan.stages]
        return replace(plan, stash=(tuple(row), *plan.stash[1:]))
    if choice == 3:
        routes = [replace(p, micro_batches=p.micro_batches[rng.randrange(2) :]) for p in plan.pipelines]
        return replace(plan, pipelines=tuple(routes))
    return shuffled(plan, rng)


def accepts(plan: Plan) -> bool:
    """Whether the simulator's look at it finds nothing. It raises nothing but PlanError."""
    try:
        sound_columns(plan)
    except PlanError:
        return False
    return True


@pytest.mark.long
def test_the_simulator_refuses_what_the_checker_finds_in_structure_and_op_sets() -> None:
    rng, counts = random.Random(5), {True: 0, False: 0}
    for plan in plans():
        assert accepts(plan)
        for _ in range(12):
            other = broken(plan, rng)
            found = listed_ops(other)[0]
            assert accepts(other) == (not found), (other.orders, found[:3])
            counts[not found] += 1
            try:
                evaluate(other)
            except PlanError:
                continue
            except InputError as error:  # pragma: no cover - the message says which
                pytest.fail(f"{type(error).__name__}: {error}")
    assert min(counts.values()) > 60, counts


def test_sound_plans_are_not_looked_at_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming faults costs as much as simulating; without faults it is not begun."""

    def named(plan: Any) -> None:
        raise AssertionError("looked for faults by name")

    monkeypatch.setattr("contraflow.planner.rules.sound.require_ops", named)
    for plan in plans():
        evaluate(plan)


def test_lists_in_the_place_of_tuples_are_looked_at_anew() -> None:
    plan = next(plans())
    routes: Any = list(plan.pipelines)
    loose = replace(plan, pipelines=routes)
    assert accepts(loose)
    routes.append(routes[0])
    assert not accepts(loose)


def test_an_op_of_a_stage_that_there_is_not_is_named() -> None:
    plan = next(plans())
    orders = ((*plan.orders[0], Op(Kind.F, 99, 0)), *plan.orders[1:])
    with pytest.raises(PlanError, match=r"99F0 does not belong here"):
        evaluate(replace(plan, orders=orders))
