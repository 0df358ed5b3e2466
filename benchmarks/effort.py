"""What the search's numbers are worth: each halved and doubled, on random problems with a fixed deterministic effort.

    python benchmarks/effort.py --save --minutes 5            goes on with numbers that have no row yet
    python benchmarks/effort.py --only RACE.rounds --seeds 0 1 2

A row: the number (`planner/search/common/effort.py`), its value, on how many problems it is read at all, and for half
and for twice of it on how many of those tried the plan gets better, stays and gets worse, with the geometric mean of
its step or period over that with the number as it is. Below 1 the search is better off without the value it has. Where
plans are equal the higher bound decides. Only deterministic effort ends a search, so that answers do not depend on the
computer's speed nor on what else it does; every search has a process of its own, so that nothing is remembered.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

from effort_problems import KINDS, Instance, problems
from tables import Table, load, origin, savable

from contraflow.planner import plan
from contraflow.planner.search import warm
from contraflow.planner.search.common import effort

RECORDS = ("SHARE", "SIZE", "COUNT", "HOPE", "ANNEALING", "RACE", "MODEL")
"""Seconds of the clock bound nothing here, and tolerances no effort."""
COLUMNS = ["number", "value", "read", "half: better, equal, worse", "mean", "twice: better, equal, worse", "mean "]
SAME = 1e-9
FACTORS = (0.5, 2.0)


def numbers() -> list[str]:
    """All of them, as RECORD.field."""
    return [f"{name}.{field.name}" for name in RECORDS for field in fields(getattr(effort, name))]


@dataclass(frozen=True)
class Answer:
    """Step or period of the plan (infinite: none), the bound, the numbers that were read, and processor time."""

    seconds: float
    bound_s: float
    read: frozenset[str]
    took_s: float

    def against(self, base: Self) -> int:
        """1: better than the base, -1: worse; bounds count where plans are equal."""
        for mine, theirs in ((self.seconds, base.seconds), (-self.bound_s, -base.bound_s)):
            if mine != theirs and not math.isclose(mine, theirs, rel_tol=SAME):
                return 1 if mine < theirs else -1
        return 0


@contextmanager
def noted(found: set[str]) -> Iterator[None]:
    """Every number that is read is put into the set."""
    kinds = {type(getattr(effort, name)): name for name in RECORDS}

    def reading(self: object, field: str) -> Any:
        if not field.startswith("__"):
            found.add(f"{kinds[type(self)]}.{field}")
        return object.__getattribute__(self, field)

    for kind in kinds:
        kind.__getattribute__ = reading  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind in kinds:
            del kind.__getattribute__


def times(value: Any, factor: float) -> Any:
    """A number, or every number of a record or a tuple, by this factor; whole ones at least 1, shares within 1."""
    if is_dataclass(value):
        return replace(value, annealing=min(value.annealing * factor, 1 - value.exact - value.windows))  # type: ignore[type-var]
    if isinstance(value, tuple):
        # of pairs (arms, share of what is left), the arms
        return tuple((times(x[0], factor), x[1]) if isinstance(x, tuple) else times(x, factor) for x in value)
    if isinstance(value, int):
        return max(1, round(value * factor))
    return value * factor if value > 1 else min(0.95, value * factor)


def solved(instance: Instance, limit: float, number: str = "", factor: float = 1.0) -> Answer:
    """The answer with one number multiplied, or that of the search as it is, with what it reads."""
    problem, space = instance
    asked = problem.model, problem.cluster, problem.workload, space, 1e6
    read, began = set[str](), time.process_time()
    if number:
        record, field = number.split(".")
        owner = getattr(effort, record)
        object.__setattr__(owner, field, times(getattr(owner, field), factor))
        found = plan(*asked, workers=1, deterministic_limit=limit)
    else:
        with noted(read):
            found = plan(*asked, workers=1, deterministic_limit=limit)
    seconds = math.inf if found.seconds is None else found.seconds
    return Answer(seconds, found.bound_s, frozenset(read), time.process_time() - began)


class Searches:
    """Answers, each found by a process that has done nothing before but load the compiled kernels."""

    def __init__(self, instances: dict[str, Instance], limit: float, most: int) -> None:
        """limit: deterministic effort of every search. most: problems of each number, those that take least."""
        warm()
        self._instances, self._limit, self._most = instances, limit, most
        self._fork = multiprocessing.get_context("fork")
        self.base = {name: self.answer(name) for name in instances}

    def answer(self, name: str, number: str = "", factor: float = 1.0) -> Answer:
        """Of one problem, with one number multiplied."""
        with self._fork.Pool(1) as pool:
            return pool.apply(solved, (self._instances[name], self._limit, number, factor))

    def readers(self, number: str) -> list[str]:
        """The problems of which a number is tried. Where it is not read nothing can change."""
        found = [name for name, base in self.base.items() if number in base.read]
        return sorted(found, key=lambda name: self.base[name].took_s)[: self._most]

    def compared(self, number: str, factor: float) -> list[str]:
        """Two cells: better, equal, worse; and the mean ratio."""
        outcomes, ratios = [0, 0, 0], []
        for name in self.readers(number):
            base, found = self.base[name], self.answer(name, number, factor)
            outcomes[1 - found.against(base)] += 1
            if math.isfinite(found.seconds) and math.isfinite(base.seconds):
                ratios.append(math.log(found.seconds / base.seconds))
        mean = math.exp(sum(ratios) / len(ratios)) if ratios else 1.0
        return [" ".join(map(str, outcomes)), f"{mean:.5f}"]

    def row(self, number: str) -> list[str]:
        """Of the table."""
        record, field = number.split(".")
        value = getattr(getattr(effort, record), field)
        count = sum(number in base.read for base in self.base.values())
        tried = [cell for factor in FACTORS for cell in self.compared(number, factor)]
        return [number, repr(value), f"{count} of {len(self.base)}", *tried]


def left(chosen: Iterable[str], save: bool) -> list[str]:
    """Those that have no row of their present value."""
    try:
        rows = load("effort").rows if save else []
    except FileNotFoundError:
        rows = []
    known = {(row[0], row[1]) for row in rows}
    return [n for n in chosen if (n, repr(getattr(getattr(effort, n.split(".")[0]), n.split(".")[1]))) not in known]


def main() -> int:
    """Prints the rows, and saves each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the problems, one of every kind each")
    parser.add_argument("--kinds", nargs="+", choices=[make.__name__ for make in KINDS])
    parser.add_argument("--effort", type=float, default=0.6, help="deterministic limit of every search")
    parser.add_argument("--most", type=int, default=4, help="problems on which each number is tried")
    parser.add_argument("--only", nargs="+", choices=numbers(), metavar="NUMBER")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no further number is begun after these")
    savable(parser)
    asked = parser.parse_args()
    began, made = time.monotonic(), origin()
    instances = {f"{name} {seed}": one for seed in asked.seeds for name, one in problems(seed, asked.kinds).items()}
    searches = Searches(instances, asked.effort, asked.most)
    for name, base in searches.base.items():
        answer = f"{base.seconds:10.4f}  bound {base.bound_s:10.4f}  {base.took_s:5.1f} s"
        print(f"{name:20} {answer}  {len(base.read)} numbers read", file=sys.stderr)
    for number in asked.only or left(numbers(), asked.save):
        if time.monotonic() - began > 60 * asked.minutes:
            break
        if not searches.readers(number):
            print(f"{number}: no problem reads it", flush=True)
            continue
        table = Table.made(made, COLUMNS, [searches.row(number)])
        print("  ".join(table.rows[0]), flush=True)
        if asked.save:
            table.save("effort")
    return 0


if __name__ == "__main__":
    sys.exit(main())
