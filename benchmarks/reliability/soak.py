"""Random plans of every kind, trained and held against plain torch: losses, tensors, peaks, and the same bits again.

    python benchmarks/reliability/soak.py --cases 1000 --seed 0 --json benchmarks/results/reliability/soak.json
    python benchmarks/reliability/soak.py --only 4711              # one case again, all of it printed
    python benchmarks/reliability/soak.py --only 4711 --shrink     # and the simplest case that fails as it does

Some cases run on gloo processes, some on a device whose copies run late, and of some an edited plan that the checker
accepts is run too. Whatever a case does, the run goes on; where it is interrupted, what was counted is still written.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from record import ROOT, Row, arguments, finish

sys.path.insert(0, str(ROOT / "tests" / "kit"))

from editing import mutant
from late import LatePlace
from random_runs import RandomRun, draw, plan_of, shrink
from trained import Fault, Outcome, on_processes, on_threads, outcome

from contraflow.executor.run import rank
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.plan import Plan

COLUMNS = ("traceback", "hang", "different", "above its peak")
PROCESSES = 25
"""One of so many cases on gloo processes, of those with at most three devices."""
LATE, EDITED, AGAIN = 5, 2, 3
"""One of so many cases on a late device; with an edited plan; run twice for the same bits."""
LIMIT_S = 300
"""Of one seed; where it takes longer, what every thread does is printed and it counts as a hang."""


class Soak:
    """Counts what cases come to."""

    def __init__(self, row: Row) -> None:
        self.row, self.seen = row, Counter[str]()
        for column in COLUMNS:
            row.count(column, 0)

    def run(self, seed: int, talk: bool = False) -> list[Fault]:
        """One seed, whatever happens; prints what went wrong."""
        try:
            with limited(LIMIT_S):
                return self.tried_both(seed, talk)
        except Exception as error:
            fault = Fault("hang" if isinstance(error, TimeoutError) else "traceback", traceback.format_exc())
            self.row.cases += 1
            self.row.count(fault.kind)
            print(f"seed {seed}: {fault.kind}: {fault.text}", file=sys.stderr, flush=True)
            return [fault]

    def tried_both(self, seed: int, talk: bool) -> list[Fault]:
        """The seed's plan, and of some an edited plan."""
        case = drawn(seed)
        try:
            plan = plan_of(case)
        except PlanError as error:
            self.seen["without a plan"] += 1
            if talk:
                print(f"seed {seed}: no plan: {error}")
            return []
        way = "late" if seed % LATE == 1 else "processes" if seed % PROCESSES == 0 and case.devices <= 3 else "threads"
        found = self.tried(case, plan, way)
        if seed % EDITED == 0 and not found.refused and not found.faults:
            other = mutant(plan, random.Random(seed))
            if other is not None:
                edited = self.tried(case, other, "edited")
                found.faults += [Fault(fault.kind, f"edited: {fault.text}") for fault in edited.faults]
        if talk:
            print(f"seed {seed}, {way}: {case}\n  {found.refused or found.faults or 'equal'}")
        return found.faults

    def tried(self, case: RandomRun, plan: Plan, way: str) -> Outcome:
        """Runs and counts it."""
        found = attempt(case, plan, way)
        kind = "synchronous" if case.synchronous else "asynchronous"
        if found.refused:
            self.seen["refused"] += 1
            return found
        self.row.cases += 1
        self.seen[kind] += 1
        if way != "threads":
            self.seen[{"late": "on a late device", "processes": "on processes", "edited": "edited lists"}[way]] += 1
        for column in {fault.kind for fault in found.faults}:
            self.row.count(column)
        for fault in found.faults[:3]:
            print(f"seed {case.seed}, {way}: {fault.kind}: {fault.text}", file=sys.stderr, flush=True)
        return found


def drawn(seed: int) -> RandomRun:
    """The case of a seed."""
    return draw(seed, 6 if seed % 7 == 0 else 4)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError where it takes longer, and prints what every thread does."""

    def ended(signum: int, frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ended)
    faulthandler.dump_traceback_later(seconds, file=sys.stderr)
    signal.alarm(seconds + 2)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _late(device: str, local_rank: int) -> LatePlace:
    return LatePlace()


def attempt(case: RandomRun, plan: Plan, way: str) -> Outcome:
    """One run of a case's plan, whatever happens."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if way == "late":
            stack.enter_context(mock.patch.object(rank, "place_of", _late))
        try:
            execute = on_processes if way == "processes" else on_threads
            again = way != "edited" and case.seed % AGAIN == 0
            return outcome(case, plan, execute, by_name=way == "processes", again=again)
        except TimeoutError:
            raise
        except Exception:
            return Outcome([Fault("traceback", traceback.format_exc())])


def simplest(case: RandomRun, way: str) -> RandomRun:
    """The simplest case that fails in the same column as this one."""
    columns = {fault.kind for fault in attempt(case, plan_of(case), way).faults}

    def fails(other: RandomRun) -> bool:
        try:
            return any(fault.kind in columns for fault in attempt(other, plan_of(other), way).faults)
        except (PlanError, ValueError, IndexError):
            return False

    return shrink(case, fails)


def main() -> int:
    """Runs the seeds and records the row."""
    parser = arguments(__doc__, 1000)
    parser.add_argument("--only", type=int, metavar="SEED", help="this case alone")
    parser.add_argument("--shrink", action="store_true", help="with --only: print the simplest case that fails as well")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python benchmarks/reliability/{Path(__file__).name} --cases {chosen.cases} --seed {chosen.seed}"
    row, started = Row("random plans of every kind trained as plain torch does", command), time.monotonic()
    soak = Soak(row)
    if chosen.only is not None:
        faults = soak.run(chosen.only, talk=True)
        if faults and chosen.shrink:
            print(f"simplest: {simplest(drawn(chosen.only), 'threads')}")
        return 1 if faults else 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed, interrupted = 1_000_000 * chosen.seed, False
    try:
        while row.cases < chosen.cases:
            soak.run(seed)
            seed += 1
    except KeyboardInterrupt:
        print(f"interrupted at seed {seed}", file=sys.stderr)
        interrupted = True
    row.figures = dict(soak.seen)
    found = finish(row, started, chosen.json)
    if interrupted:
        sys.stdout.flush()
        os._exit(130)  # threads of the case that was interrupted may never end
    return found


if __name__ == "__main__":
    sys.exit(main())
