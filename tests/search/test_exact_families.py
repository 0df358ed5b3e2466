"""Every family of constraints of the exact model alone, on three to five variables: an instance it allows, one it does
not. F takes one tick, B two, I and W one; a stash is a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from ortools.sat.python import cp_model

from contraflow.planner.plan import Kind
from contraflow.planner.search.exact.devices import ops_run_on_their_devices, step_is_no_shorter_than_any_load
from contraflow.planner.search.exact.instance import Edge, Instance, Send, Site, Stage, Stash, Tick, Tied
from contraflow.planner.search.exact.links import stashes_travel, tensors_travel
from contraflow.planner.search.exact.memory import (
    at_most_so_many_in_flight,
    host_memory,
    parameters_stay,
    stashes_are_held,
)
from contraflow.planner.search.exact.model import FAMILIES, Family
from contraflow.planner.search.exact.precedence import (
    backward_after_forward,
    remake_before_backward,
    step_ends_after_reductions,
)
from contraflow.planner.search.exact.resources import memories_suffice, one_at_a_time
from contraflow.planner.search.exact.symmetry import (
    devices_are_numbered,
    directions_are_numbered,
    first_in_first_out,
)
from contraflow.planner.search.exact.timetable import Timetable
from contraflow.planner.search.exact.variables import Variables

Facts = Callable[[Variables], Iterable[Any]]
"""Comparisons of a model's variables that are taken for granted."""
UPPER = 20
NO_TIME = Send(0, 0)
F, B, I, W, R = Kind.F, Kind.B, Kind.I, Kind.W, Kind.R  # noqa: E741


def stage(devices: Iterable[int] = (0,), anywhere: bool = False, send: Send = NO_TIME, **given: Any) -> Stage:
    """A stage on these devices, one a direction; or on any of them, `send` from one to another and to the host."""
    listed = tuple(devices)
    split = bool(given.pop("split", False))
    ticks = {F: 1, R: 1} | ({I: 1, W: 1} if split else {B: 2})
    pairs = [(a, b) for a in range(len(listed)) for b in range(len(listed)) if anywhere or a == b]
    hops = {(a, b): NO_TIME if a == b else send for a, b in pairs}
    fixed = {
        "sites": tuple(Site(device, ticks, send) for device in listed),
        "split": split,
        "finish": dict.fromkeys(pairs, 0),
        "stash": Stash(1, 1, 0, 0, 0),
        "kept": {"recompute": 0},
        "hop": hops,
        "kept_hop": {},
    }
    return Stage(**(fixed | given))


def instance(*stages: Stage, batches: int = 1, policies: str = "keep", **given: Any) -> Instance:
    """An instance of two devices with room for many stashes."""
    fixed = {
        "tick": Tick(1.0, True),
        "edges": (),
        "capacity": (9, 9),
        "host": (0, 1),
        "node": (0, 0),
        "host_room": (None,),
        "open": False,
        "alike": False,
    }
    return Instance(micro_batches=batches, stages=stages, policies=frozenset(policies.split()), **(fixed | given))


def allowed(families: Iterable[Family], given: Instance, facts: Facts) -> bool:
    """Whether the families have a solution in which the facts hold."""
    v = Variables(given, 0, UPPER)
    for family in families:
        family(v)
    for fact in facts(v):
        v.model.add(fact)
    return solvable(v.model)


def solvable(model: cp_model.CpModel) -> bool:
    """Whether there is a solution."""
    status = cp_model.CpSolver().solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return status == cp_model.OPTIMAL


def starts(*given: tuple[Kind, int, int, int]) -> Facts:
    """Ops by kind, stage and micro-batch that start at a tick."""
    return lambda v: [v.start[kind, s, k] == tick for kind, s, k, tick in given]


def ends_by(tick: int) -> Facts:
    """The step ends by then."""
    return lambda v: [v.makespan <= tick]


def both(*facts: Facts) -> Facts:
    """All of these."""
    return lambda v: [fact for some in facts for fact in some(v)]


def on(front: int, rear: int) -> Facts:
    """The devices of the first stage's forward and backward."""
    return lambda v: [v.choices[0, 0].pair[front, rear] == 1]


TWO = (0, 1)
LINE = Edge(0, 1, {(0, 0): Send(2, 1, (("link", 0, 1),))}, {(0, 0): Send(2, 1, (("link", 1, 0),))})
OPEN = instance(stage(TWO, True, Send(2, 1)), open=True)
TO_HOST = instance(stage(send=Send(2, 1)), policies="offload")
"""A stash must go to the host and back: two ticks on the link and one of latency each way."""
CASES: dict[str, tuple[tuple[Family, ...], Instance, Facts, Facts]] = {
    # what is stated: families, instance, facts that they allow, facts that they do not
    "one op at a time on a device": (
        (ops_run_on_their_devices, one_at_a_time), instance(stage()), starts((F, 0, 0, 0), (B, 0, 0, 1)),
        starts((F, 0, 0, 1), (B, 0, 0, 0)),
    ),
    "ops of stages on two devices run at once": (
        (ops_run_on_their_devices, one_at_a_time), instance(stage([0]), stage([1])),
        starts((F, 0, 0, 0), (F, 1, 0, 0)), starts((F, 0, 0, 0), (B, 0, 0, 0)),
    ),
    "a direction has its own device": (
        (directions_are_numbered, ops_run_on_their_devices, one_at_a_time), instance(stage(TWO), batches=2),
        starts((F, 0, 0, 0), (F, 0, 1, 0)), starts((F, 0, 0, 0), (B, 0, 0, 0)),
    ),
    "a chosen device runs one op at a time": (
        (ops_run_on_their_devices, one_at_a_time), OPEN, both(starts((F, 0, 0, 1), (B, 0, 0, 0)), on(0, 1)),
        both(starts((F, 0, 0, 1), (B, 0, 0, 0)), on(0, 0)),
    ),
    "the backward waits for its forward": (
        (backward_after_forward,), instance(stage()), starts((F, 0, 0, 0), (B, 0, 0, 1)),
        starts((F, 0, 0, 1), (B, 0, 0, 1)),
    ),
    "W waits for I": (
        (backward_after_forward,), instance(stage(split=True)), starts((I, 0, 0, 1), (W, 0, 0, 2)),
        starts((I, 0, 0, 2), (W, 0, 0, 2)),
    ),
    "R stands between forward and backward": (
        (remake_before_backward,), instance(stage(), policies="recompute"),
        starts((F, 0, 0, 0), (R, 0, 0, 1), (B, 0, 0, 2)), starts((F, 0, 0, 0), (R, 0, 0, 1), (B, 0, 0, 1)),
    ),
    "activations take their time": (
        (tensors_travel,), instance(stage([0]), stage([1]), edges=(LINE,)), starts((F, 0, 0, 0), (F, 1, 0, 4)),
        starts((F, 0, 0, 0), (F, 1, 0, 3)),
    ),
    "gradients take their time": (
        (tensors_travel,), instance(stage([0]), stage([1]), edges=(LINE,)), starts((B, 1, 0, 0), (B, 0, 0, 5)),
        starts((B, 1, 0, 0), (B, 0, 0, 4)),
    ),
    "one message at a time on a link": (
        (tensors_travel, one_at_a_time), instance(stage([0]), stage([1]), batches=2, edges=(LINE,)),
        starts((F, 0, 0, 0), (F, 0, 1, 1), (F, 1, 0, 4), (F, 1, 1, 6)),
        starts((F, 0, 0, 0), (F, 0, 1, 1), (F, 1, 0, 4), (F, 1, 1, 5)),
    ),
    "a stash goes to the host and back before its backward": (
        (stashes_travel,), TO_HOST, starts((F, 0, 0, 0), (B, 0, 0, 7)), starts((F, 0, 0, 0), (B, 0, 0, 6)),
    ),
    "one copy at a time on a host link": (
        (stashes_travel, one_at_a_time), instance(stage(send=Send(2, 1)), batches=2, policies="offload"),
        starts((F, 0, 0, 0), (F, 0, 1, 0), (B, 0, 0, 7), (B, 0, 1, 9)),
        starts((F, 0, 0, 0), (F, 0, 1, 0), (B, 0, 0, 7), (B, 0, 1, 8)),
    ),
    "a stash goes to the backward's device": (
        (stashes_travel,), OPEN, both(starts((F, 0, 0, 0), (B, 0, 0, 4)), on(0, 1)),
        both(starts((F, 0, 0, 0), (B, 0, 0, 3)), on(0, 1)),
    ),
    "a stash that stays goes nowhere": (
        (stashes_travel,), OPEN, both(starts((F, 0, 0, 0), (B, 0, 0, 3)), on(0, 0)),
        both(starts((F, 0, 0, 0), (B, 0, 0, 3)), on(1, 0)),
    ),
    "a stash is shipped away and back": (
        (stashes_travel,), instance(stage(TWO, True, Send(2, 1)), open=True, policies="ship"),
        starts((F, 0, 0, 0), (B, 0, 0, 7)), starts((F, 0, 0, 0), (B, 0, 0, 6)),
    ),
    "what arrives takes memory while no op runs": (
        (ops_run_on_their_devices, stashes_travel, one_at_a_time),
        instance(stage(TWO, True, Send(2, 1)), batches=2, open=True),
        both(on(0, 1), starts((B, 0, 0, 4), (B, 0, 1, 9)), lambda v: [v.moves[0, 1].posted == 6]),
        both(on(0, 1), starts((B, 0, 0, 4), (B, 0, 1, 9)), lambda v: [v.moves[0, 1].posted == 5]),
    ),
    "the step ends after the reduction": (
        (step_ends_after_reductions,), instance(stage(finish={(0, 0): 3})), both(starts((B, 0, 0, 1)), ends_by(6)),
        both(starts((B, 0, 0, 1)), ends_by(5)),
    ),
    "new parameters go to the device of the forward": (
        (step_ends_after_reductions,),
        instance(stage(TWO, True, finish={(0, 0): 0, (1, 1): 0, (0, 1): 4, (1, 0): 4}), open=True),
        both(starts((B, 0, 0, 1)), ends_by(3), on(1, 1)), both(starts((B, 0, 0, 1)), ends_by(3), on(0, 1)),
    ),
    "the step is no shorter than a load": (
        (step_is_no_shorter_than_any_load,), instance(stage(TWO, True), batches=2, open=True),
        both(ends_by(5), on(0, 1)), both(ends_by(5), on(0, 0)),
    ),
    "first in, first out": (
        (first_in_first_out,), instance(stage(), batches=2), starts((F, 0, 0, 0), (F, 0, 1, 1)),
        starts((F, 0, 0, 1), (F, 0, 1, 0)),
    ),
    "only within a direction": (
        (directions_are_numbered, first_in_first_out), instance(stage(TWO), batches=3),
        starts((F, 0, 0, 0), (F, 0, 1, 1), (F, 0, 2, 0)), starts((F, 0, 0, 1), (F, 0, 1, 0), (F, 0, 2, 0)),
    ),
    "so many in flight": (
        (at_most_so_many_in_flight,), instance(stage(), batches=2, capacity=(1, 9)),
        starts((B, 0, 0, 1), (F, 0, 1, 3)), starts((B, 0, 0, 1), (F, 0, 1, 2)),
    ),
    "I leaves the half that W needs": (
        (stashes_are_held, memories_suffice),
        instance(stage(split=True, stash=Stash(2, 1, 0, 0, 0)), batches=2, capacity=(3, 9)),
        starts((F, 0, 0, 0), (I, 0, 0, 1), (W, 0, 0, 9), (F, 0, 1, 2), (I, 0, 1, 10), (W, 0, 1, 11)),
        starts((F, 0, 0, 0), (I, 0, 0, 2), (W, 0, 0, 9), (F, 0, 1, 2), (I, 0, 1, 10), (W, 0, 1, 11)),
    ),
    "recompute holds its inputs until R": (
        (stashes_are_held, memories_suffice),
        instance(
            stage(stash=Stash(2, 2, 0, 0, 0), kept={"recompute": 1}), batches=2, capacity=(3, 9), policies="recompute"
        ),
        starts((F, 0, 0, 0), (R, 0, 0, 3), (B, 0, 0, 4), (F, 0, 1, 1), (R, 0, 1, 6), (B, 0, 1, 7)),
        starts((F, 0, 0, 0), (R, 0, 0, 3), (B, 0, 0, 4), (F, 0, 1, 1), (R, 0, 1, 5), (B, 0, 1, 7)),
    ),
    "an offloaded stash is held until its copy has left": (
        (stashes_travel, stashes_are_held, memories_suffice),
        instance(stage(send=Send(2, 0)), batches=2, capacity=(1, 9), policies="keep offload"),
        starts((F, 0, 0, 0), (F, 0, 1, 3), (B, 0, 1, 4), (B, 0, 0, 8)),
        starts((F, 0, 0, 0), (F, 0, 1, 2), (B, 0, 1, 4), (B, 0, 0, 8)),
    ),
    "a moved stash is held until it has left": (
        (stashes_travel, stashes_are_held, memories_suffice),
        instance(stage(TWO, True, Send(2, 1)), batches=2, open=True, capacity=(1, 1)),
        both(starts((F, 0, 0, 0), (B, 0, 0, 4), (F, 0, 1, 3), (B, 0, 1, 9)), on(0, 1)),
        both(starts((F, 0, 0, 0), (B, 0, 0, 4), (F, 0, 1, 2), (B, 0, 1, 9)), on(0, 1)),
    ),
    "it has no place on a full device": (
        (stashes_travel, stashes_are_held, memories_suffice),
        instance(stage(TWO, True, Send(2, 1)), open=True, capacity=(1, 0)), on(0, 0), on(0, 1),
    ),
    "parameters of the devices chosen": (
        (parameters_stay, memories_suffice), instance(stage(TWO, True, owned=5, lent=2), open=True, capacity=(5, 2)),
        on(1, 0), on(0, 1),
    ),
    "tied parameters once a device": (
        (parameters_stay, memories_suffice),
        instance(stage(TWO, True), open=True, capacity=(3, 1), ties=(Tied((0,), 3, 1),)), on(1, 0), on(1, 1),
    ),
    "host memory holds what is there at once": (
        (stashes_travel, host_memory, memories_suffice),
        instance(stage(send=Send(2, 0)), batches=2, policies="offload", host_room=(1,)),
        both(starts((F, 0, 0, 0), (F, 0, 1, 4), (B, 0, 1, 9)), lambda v: [v.moves[0, 0].back == 3]),
        both(starts((F, 0, 0, 0), (F, 0, 1, 4), (B, 0, 1, 9)), lambda v: [v.moves[0, 0].back == 4]),
    ),
    "those that go down come first": (
        (directions_are_numbered,), instance(stage(TWO), batches=2), lambda v: [v.up[1] == 1], lambda v: [v.up[0] == 1],
    ),
    "of directions that are alike no fewer go down": (
        (directions_are_numbered,), instance(stage(TWO), batches=3, alike=True), lambda v: [sum(v.up) == 1],
        lambda v: [sum(v.up) == 2],
    ),
    "devices that are alike are numbered as they come": (
        (devices_are_numbered,), instance(stage(TWO, True), open=True, alike=True), on(1, 0), on(0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_family_alone(name: str) -> None:
    families, given, possible, impossible = CASES[name]
    assert allowed(families, given, possible)
    assert not allowed(families, given, impossible)


def test_every_family_of_the_table_of_contents_is_tested_alone() -> None:
    assert {family for families, *_ in CASES.values() for family in families} == set(FAMILIES)


def test_without_the_family_what_it_forbids_is_allowed() -> None:
    """So it is this family that forbids it, alone or with those that read what it says."""
    for name, (families, given, _, impossible) in CASES.items():
        first = families[1:] if families[0] is directions_are_numbered and len(families) > 1 else families
        assert any(allowed(tuple(f for f in first if f is not each), given, impossible) for each in first), name


@pytest.mark.parametrize(("room", "fits"), [(2, True), (1, False)])
def test_memories_of_any_timetable(room: int, fits: bool) -> None:
    """Two units held at once, in a table without an instance, as windows have it."""
    table = Timetable(0, UPPER)
    table.rooms["device", 0] = room
    for start in (0, 1):
        table.hold(("device", 0), start, 3, 1, True)
    memories_suffice(table)
    assert solvable(table.model) == fits


@pytest.mark.parametrize(("start", "fits"), [(2, True), (1, False)])
def test_resources_of_any_timetable(start: int, fits: bool) -> None:
    table = Timetable(0, UPPER)
    table.occupy(("device", 0, -1), 0, 2, True)
    table.occupy(("device", 0, -1), start, 2, True)
    one_at_a_time(table)
    assert solvable(table.model) == fits


def test_nothing_to_choose_makes_no_variables() -> None:
    """One direction and one policy: a start for every op, and the makespan."""
    v = Variables(instance(stage(), batches=3), 0, UPPER)
    assert len(v.model.proto.variables) == 1 + 2 * 3
