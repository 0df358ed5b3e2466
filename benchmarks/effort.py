"""What the search's numbers are worth: each halved and doubled, on random problems with a fixed deterministic effort.

    python benchmarks/effort.py -o benchmarks/results/effort.json
    python benchmarks/effort.py --only RACE.rounds --problems 20

A row: the number (`planner/search/common/effort.py`), its value, and the geometric mean of the step with half and with
twice of it, over the step with it as it is. Below 1 the search is better off without the value it has. Answers do not
depend on the computer's speed; a few problems tell differences above a percent only.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Plan, SearchSpace, Workload, plan
from contraflow.planner.search.common import effort
from contraflow.planner.search.orders.ready import warm

NUMBERS = (
    "RACE.rounds", "RACE.restarts", "RACE.restarted", "RACE.first", "RACE.mutations", "ANNEALING.hot",
    "ANNEALING.cooled", "HOPE.of_gap", "SHARE.medium", "SIZE.window_ops",
)  # fmt: skip
"""What can be measured so, the race first; effort.py says of every number that is not in the results that it is not."""
Problem = tuple[ModelGraph, Cluster, Workload]


def problem(seed: int) -> Problem:
    """Uneven layers on four or six devices with memory for some of their stashes."""
    rng = random.Random(seed)
    devices, batches, count = rng.choice(((4, 24, 12), (4, 40, 14), (6, 30, 18)))
    layers = []
    for k in range(count):
        stash, half = rng.randint(10, 40), rng.uniform(0.5, 1.5)
        parts = (rng.uniform(0.5, 1.5), half, half, True, rng.randint(5, 20), stash, stash // 2, stash // 4)
        layers.append(Layer(f"layer{k}", *parts))
    bytes_each = sum(x.stash_bytes for x in layers) // devices
    memory = int(bytes_each * devices * rng.choice((0.5, 0.8, 1.1))) + 2 * sum(x.parameter_bytes for x in layers)
    cluster = Cluster.uniform(devices, memory, Link(rng.choice((200.0, 1e3)), 0.02))
    return ModelGraph.chain(layers), cluster, Workload(batches)


def steps(problems: list[Problem], limit: float) -> list[float]:
    """The step of every problem; infinite where no plan was found."""
    found = []
    for model, cluster, workload in problems:
        space = SearchSpace(separate_backward=False, offload=False, replicas=1)
        made: Plan | None = plan(model, cluster, workload, space, 1e6, workers=1, deterministic_limit=limit).plan
        found.append(math.inf if made is None or made.forecast is None else made.forecast.step_s)
    return found


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


@contextmanager
def changed(number: str, factor: float) -> Iterator[None]:
    """The search with one number multiplied."""
    record, field = number.split(".")
    owner = getattr(effort, record)
    old = getattr(owner, field)
    object.__setattr__(owner, field, times(old, factor))
    try:
        yield
    finally:
        object.__setattr__(owner, field, old)


def mean_ratio(found: list[float], base: list[float]) -> float:
    """The geometric mean of the ratios, of problems with a plan both times."""
    both = [a / b for a, b in zip(found, base, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return math.exp(sum(map(math.log, both)) / len(both))


def commit() -> str:
    """Of the sources."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def main() -> int:
    """Prints the rows, and writes them with commit, command and machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--effort", type=float, default=1.5, help="deterministic limit of every problem")
    parser.add_argument("--only", action="append", choices=NUMBERS)
    parser.add_argument("-o", type=Path, dest="output")
    asked = parser.parse_args()
    warm()
    problems = [problem(seed) for seed in range(asked.problems)]
    base = steps(problems, asked.effort)
    head = {
        "commit": commit(),
        "command": " ".join(["python", "benchmarks/effort.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "steps_s": base,
    }
    rows: dict[str, dict[str, Any]] = {}
    for number in asked.only or NUMBERS:
        record, field = number.split(".")
        rows[number] = {"value": repr(getattr(getattr(effort, record), field))}
        for name, factor in (("halved", 0.5), ("doubled", 2.0)):
            with changed(number, factor):
                rows[number][name] = round(mean_ratio(steps(problems, asked.effort), base), 5)
        print(f"{number:24} {rows[number]['halved']:8.5f} {rows[number]['doubled']:8.5f}", flush=True)
        if asked.output is not None:
            asked.output.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
