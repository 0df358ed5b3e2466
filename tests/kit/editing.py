"""Plans with their op lists edited: by a function, op by op, or at random; and what the checker says of them.

What `check` still accepts after random edits must run as well as what was not touched.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from contraflow.planner.check import check
from contraflow.planner.lower.period import period_seconds
from contraflow.planner.plan import IN_LINE, Kind, Op, Plan
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.simulate import simulate

Line = list[Op]
_FREE = frozenset(set(Kind) - IN_LINE) | {Kind.FREE, Kind.STEP, Kind.R, Kind.W}
_SUMS = frozenset({Kind.REDUCE, Kind.TIE, Kind.STEP, Kind.GATHER, Kind.SEND_P, Kind.RECV_P})


def edited(plan: Plan, edit: Callable[..., object], device: int | None = None) -> Plan:
    """The plan with the op lists of all devices, or the list of one, as `edit` leaves them; its forecast stays."""
    lines = [list(order) for order in plan.orders]
    edit(lines if device is None else lines[device])
    return replace(plan, orders=tuple(map(tuple, lines)))


def put(plan: Plan, device: int, op: Op | str, anchor: Op | str, after: bool = False) -> Plan:
    """The plan with one op of a device's list moved to just before (or after) another."""
    moved, beside = (op_from_text(x) if isinstance(x, str) else x for x in (op, anchor))

    def edit(line: Line) -> None:
        line.remove(moved)
        line.insert(line.index(beside) + after, moved)

    return edited(plan, edit, device)


def codes(plan: Plan) -> set[str]:
    """Of what the checker finds."""
    return {violation.code for violation in check(plan)}


def faults(plan: Plan) -> list[str]:
    """What the checker finds, in its words."""
    return [str(violation) for violation in check(plan)]


# ------------------------------------------------------------------ at random


def mutant(plan: Plan, rng: random.Random, tries: int = 150) -> Plan | None:
    """The plan with its lists edited and forecast anew, such that `check` accepts it; None where none was found."""
    for _ in range(tries):
        found = replace(shuffled(plan, rng), forecast=None)
        if found.orders != plan.orders and codes(found) == {"forecast"}:
            return forecast_anew(found)
    return None


def forecast_anew(plan: Plan) -> Plan:
    """With what the simulator says of its lists."""
    found = simulate(plan).forecast()
    return plan.with_forecast(found if plan.weights == FLUSH else replace(found, period_s=period_seconds(plan)))


def shuffled(plan: Plan, rng: random.Random) -> Plan:
    """One to six random edits of random lists."""
    lines = [list(order) for order in plan.orders]
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        line = rng.choice(lines)
        if len(line) > 1:
            rng.choice(EDITS)(line, rng)
    return replace(plan, orders=tuple(map(tuple, lines)))


def _move(line: Line, rng: random.Random) -> None:
    op = line.pop(rng.randrange(len(line)))
    line.insert(rng.randrange(len(line) + 1), op)


def _move_near(line: Line, rng: random.Random) -> None:
    """What is not compute, a few places on."""
    places = [k for k, op in enumerate(line) if op.kind in _FREE]
    if places:
        k = rng.choice(places)
        op = line.pop(k)
        line.insert(max(0, min(len(line), k + rng.choice([-1000, -5, -3, -2, -1, 1, 2, 3, 5, 1000]))), op)


def _swap(line: Line, rng: random.Random) -> None:
    a, b = rng.sample(range(len(line)), 2)
    line[a], line[b] = line[b], line[a]


def _swap_neighbours(line: Line, rng: random.Random) -> None:
    a = rng.randrange(len(line) - 1)
    line[a], line[a + 1] = line[a + 1], line[a]


def _swap_sums(line: Line, rng: random.Random) -> None:
    places = [k for k, op in enumerate(line) if op.kind in _SUMS]
    if len(places) > 1:
        a, b = rng.sample(places, 2)
        line[a], line[b] = line[b], line[a]


def _reverse(line: Line, rng: random.Random) -> None:
    a = rng.randrange(len(line))
    b = min(len(line), a + rng.randint(2, 6))
    line[a:b] = line[a:b][::-1]


def _move_block(line: Line, rng: random.Random) -> None:
    a = rng.randrange(len(line))
    block = line[a : a + rng.randint(1, 4)]
    del line[a : a + len(block)]
    place = rng.randrange(len(line) + 1)
    line[place:place] = block


def _free(line: Line, rng: random.Random) -> None:
    """A FREE more, or one less."""
    frees = [op for op in line if op.kind is Kind.FREE]
    leaving = [op for op in line if op.kind in (Kind.OFFLOAD, Kind.SEND_S)]
    if frees and rng.random() < 0.5:
        line.remove(rng.choice(frees))
    elif leaving:
        op = rng.choice(leaving)
        line.insert(rng.randint(line.index(op) + 1, len(line)), Op(Kind.FREE, op.stage, op.micro_batch))


def _repeat(line: Line, rng: random.Random) -> None:
    line.insert(rng.randrange(len(line) + 1), rng.choice(line))


def _remove(line: Line, rng: random.Random) -> None:
    line.pop(rng.randrange(len(line)))


def _retarget(line: Line, rng: random.Random) -> None:
    k = rng.randrange(len(line))
    name = rng.choice(["stage", "micro_batch", "peer"])
    line[k] = line[k]._replace(**{name: rng.choice([-1, 0, 1, 2, 99, getattr(line[k], name) + 1])})


_OFTEN = (_move, _move_near, _move_near, _move_near, _swap, _swap_neighbours, _swap_neighbours, _swap_sums, _free)
EDITS: tuple[Callable[[Line, random.Random], None], ...] = (
    *_OFTEN, *_OFTEN, _reverse, _move_block, _repeat, _remove, _retarget,
)  # fmt: skip
