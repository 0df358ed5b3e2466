"""What every model of the room is made of: starts, literals, and intervals on resources and memories.

Where there is nothing to choose a literal is True or False and no variable is made. No type of this module leaves the
search.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from ortools.sat.python import cp_model

Literal = cp_model.LiteralT
Time = cp_model.LinearExprT
Memory = tuple[str, int]
"""("device", its number) or ("host", its node)."""


class Timetable:
    """A makespan, `lower` to `upper` ticks, and what families of constraints put on resources and memories.

    `resources`: intervals of which one runs at a time. `demands`: intervals that take units of a memory. `rooms`: the
    units that each memory has.
    """

    def __init__(self, lower: int, upper: int) -> None:
        self.upper = upper
        self.model = cp_model.CpModel()
        self.makespan = self.model.new_int_var(min(lower, upper), upper, "makespan")
        self.resources: dict[tuple[str, int, int], list[cp_model.IntervalVar]] = defaultdict(list)
        self.demands: dict[Memory, list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        self.rooms: dict[Memory, int] = {}
        self._known: dict[tuple[str, tuple[int, ...]], Literal] = {}

    # ------------------------------------------------------------ literals

    def every(self, *literals: Literal) -> Literal:
        """A literal that holds when all of these do."""
        if any(x is False for x in literals):
            return False
        found = {cast(cp_model.IntVar, x).index: x for x in literals if x is not True}
        if len(found) <= 1:
            return next(iter(found.values()), True)
        key = "every", tuple(sorted(found))
        if key not in self._known:
            both = self._known[key] = self.model.new_bool_var("")
            self.model.add_bool_or([both, *(~x for x in found.values())])
            for x in found.values():
                self.model.add_implication(both, x)
        return self._known[key]

    def none(self, *literals: Literal) -> Literal:
        """A literal that holds when none of these does, of which no two can."""
        if any(x is True for x in literals):
            return False
        found = {cast(cp_model.IntVar, x).index: x for x in literals if x is not False}
        if len(found) <= 1:
            return next((negated(x) for x in found.values()), True)
        key = "none", tuple(sorted(found))
        if key not in self._known:
            self._known[key] = self.model.new_bool_var("")
            self.model.add_exactly_one(self._known[key], *found.values())
        return self._known[key]

    # ------------------------------------------------------------ times, constraints and intervals

    def ticks(self) -> cp_model.IntVar:
        """A new variable of time."""
        return self.model.new_int_var(0, self.upper, "")

    def when(self, literal: Literal, expression: Any) -> None:
        """The constraint (a comparison of CP-SAT expressions), enforced when the literal holds."""
        if literal is not False:
            found = self.model.add(expression)
            if literal is not True:
                found.only_enforce_if(literal)

    def interval(self, start: Time, size: int, literal: Literal) -> cp_model.IntervalVar:
        """An interval of fixed size, there when the literal holds."""
        if literal is True:
            return self.model.new_fixed_size_interval_var(start, size, "")
        return self.model.new_optional_fixed_size_interval_var(start, size, literal, "")

    def occupy(self, resource: tuple[str, int, int], start: Time, size: int, literal: Literal) -> None:
        """Takes a resource for so long, when the literal holds."""
        if literal is not False:
            self.resources[resource].append(self.interval(start, size, literal))

    def hold(self, memory: Memory, start: Time, end: Time, units: int, literal: Literal) -> None:
        """Takes units of a memory from start to end, when the literal holds."""
        if units <= 0 or literal is False:
            return
        if literal is True:
            life = self.model.new_interval_var(start, self.ticks(), end, "")
        else:
            life = self.model.new_optional_interval_var(start, self.ticks(), end, literal, "")
        self.demands[memory].append((life, units))

    def keep(self, memory: Memory, units: int, literal: Literal) -> None:
        """Takes units of a memory for the whole step, when the literal holds."""
        if units > 0 and literal is not False:
            self.demands[memory].append((self.interval(0, self.upper + 1, literal), units))


def negated(literal: Literal) -> Literal:
    """The opposite."""
    return not literal if isinstance(literal, bool) else ~literal
