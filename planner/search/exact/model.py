"""The CP-SAT model of one instance: its variables under all families of constraints, and what a solution says.

`FAMILIES` is the table of contents. Each family takes the variables and adds what it demands of them; none reads
another. Devices, directions and stash choices are literals of the variables, so that a family speaks of them once.
"""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python import cp_model

from ...graph import KEEP, POLICIES, stash_policy
from ...plan import Kind
from .devices import ops_run_on_their_devices, step_is_no_shorter_than_any_load
from .instance import Instance
from .links import stashes_travel, tensors_travel
from .memory import at_most_so_many_in_flight, host_memory, parameters_stay, stashes_are_held
from .precedence import backward_after_forward, remake_before_backward, step_ends_after_reductions
from .resources import memories_suffice, one_at_a_time
from .symmetry import devices_are_numbered, directions_are_numbered, first_in_first_out
from .timetable import Literal
from .variables import Choice, Solution, Variables

Family = Callable[[Variables], None]

FAMILIES: tuple[Family, ...] = (
    directions_are_numbered,
    devices_are_numbered,
    ops_run_on_their_devices,
    backward_after_forward,
    remake_before_backward,
    stashes_travel,
    tensors_travel,
    step_ends_after_reductions,
    step_is_no_shorter_than_any_load,
    first_in_first_out,
    at_most_so_many_in_flight,
    stashes_are_held,
    parameters_stay,
    host_memory,
    one_at_a_time,
    memories_suffice,
)
"""In the order in which they are put together."""

_TIMES = ("out", "back", "posted", "visited", "gone", "left")


def build_model(instance: Instance, lower: int, upper: int) -> Variables:
    """The model that minimises the makespan, `lower` to `upper` ticks."""
    v = Variables(instance, lower, upper)
    for family in FAMILIES:
        family(v)
    v.model.minimize(v.makespan)
    return v


def hint(v: Variables, known: Solution) -> None:
    """Gives a model of directions a solution in the same numbering of micro-batches."""
    for key, value in known.starts.items():
        if key in v.start:
            v.model.add_hint(v.start[key], min(value, v.upper))
    for unit, moves in v.moves.items():
        for name, time in zip(("out", "back"), moves.own, strict=False):
            if unit in known.times.get(name, {}):
                v.model.add_hint(time, min(known.times[name][unit], v.upper))
    for k, up in enumerate(v.up):
        v.model.add_hint(up, known.sites[0, k][0] == 1)
    for unit, choice in v.choices.items():
        for policy, literal in choice.policy.items():
            if isinstance(literal, cp_model.IntVar):
                v.model.add_hint(literal, known.policy(*unit) == policy)


def read(v: Variables, solver: cp_model.CpSolver) -> Solution:
    """The solver's solution."""

    def chosen(literals: tuple[Literal, ...]) -> int:
        return next((n for n, x in enumerate(literals) if _holds(solver, x)), -1)

    def policy(choice: Choice) -> str:
        name = next(name for name, x in choice.policy.items() if _holds(solver, x))
        return f"{name}>{chosen(choice.away)}" if POLICIES[name].names_device else name

    policies = {unit: name for unit, choice in v.choices.items() if (name := policy(choice)) != KEEP}
    starts = {
        key: solver.value(var)
        for key, var in v.start.items()
        if key[0] is not Kind.R or stash_policy(policies.get(key[1:], KEEP)).remade
    }
    sites = {unit: (chosen(choice.front), chosen(choice.rear)) for unit, choice in v.choices.items()}
    times = {
        name: {unit: int(solver.value(getattr(moves, name))) for unit, moves in v.moves.items()} for name in _TIMES
    }
    return Solution(starts, sites, policies, times)


def _holds(solver: cp_model.CpSolver, literal: Literal) -> bool:
    return literal if isinstance(literal, bool) else solver.boolean_value(literal)
