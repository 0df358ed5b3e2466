"""What more effort brings, and what the seed decides: random chains with several limits, and with several seeds.

Chains of 4 to 16 devices whose costs lie around published profiles, from one micro-batch fewer than devices to eight
times as many, a heavier first or last layer, messages of up to 40 % of a forward, memory from a quarter to twice what
1F1B needs.

    python benchmarks/anytime.py --random 20 --seed 1              1, 2, 4, 8 times --limit of deterministic effort
    python benchmarks/anytime.py --random 20 --seed 1 --time       the same in seconds
    python benchmarks/anytime.py --random 8 --seed 1 --seeds 3 --limit 4 --times 1

A longer run that ends with a longer step is a fault with a deterministic limit: then the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tables import Table, origin, savable

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check, plan
from contraflow.planner.search import warm

SAME = 1e-9
"""Steps that differ by a smaller share are equal."""
PROFILES = ((100, 100, 100), (100, 120, 80), (18522, 18086, 9337))
"""Ticks of F, I and W a device."""
STASH = 64
"""Bytes of a layer's stash, half of which W holds."""
SPACE = SearchSpace(pipelines=1, offload=False, recompute=False)


@dataclass(frozen=True)
class Instance:
    """One random problem: name says its sizes."""

    name: str
    model: ModelGraph
    cluster: Cluster
    workload: Workload


@dataclass
class Row:
    """Steps of one instance: by seed, one a limit, seconds or ticks; infinite where there was no plan."""

    name: str
    bound_s: float = 0.0
    steps: dict[int, list[float]] = field(default_factory=dict)

    @property
    def worse(self) -> float:
        """By which share the step of a longer run exceeds that of a shorter one at most."""
        return max(_worse(steps) for steps in self.steps.values())

    @property
    def spread(self) -> float:
        """By which share the worst seed is above the best, with the longest limit."""
        last = [steps[-1] for steps in self.steps.values()]
        return max(last) / min(last) - 1 if min(last) < float("inf") else 0.0


def _worse(steps: list[float]) -> float:
    best, most = float("inf"), 0.0
    for step in steps:
        most = max(most, step / best - 1)
        best = min(best, step)
    return most


def instances(count: int, seed: int) -> Iterator[Instance]:
    """Random problems, all different."""
    rng = random.Random(f"anytime {seed}")
    for number in range(count):
        yield instance(rng, f"{seed}/{number}")


def instance(rng: random.Random, label: str) -> Instance:
    """One random problem: p devices, up to four layers each, m micro-batches."""
    devices, chunks = rng.randint(4, 16), rng.choice((1, 2, 2, 4))
    batches = round(devices * rng.choice((1, 2, 4, 8)) * rng.uniform(0.6, 1.0)) if rng.random() < 0.8 else devices - 1
    profile = [x * rng.uniform(0.8, 1.25) for x in rng.choice(PROFILES)]
    heavy = rng.choice((None, None, 0, -1))
    layers = []
    for k in range(devices * chunks):
        own = rng.uniform(0.95, 1.05) * (
            rng.uniform(1.2, 2.0) if k == (heavy or 0) % (devices * chunks) and heavy is not None else 1.0
        )
        parts = [own * x / chunks for x in profile]
        layers.append(Layer(f"layer{k}", *parts, stash_bytes=STASH, weight_stash_bytes=STASH // 2))
    latency = rng.choice((0.0, rng.uniform(0.0, 0.4))) * profile[0]
    share = rng.choice((0.25, 0.5, 0.625, 0.75, 1.0, 2.0))
    limit = int(share * min(devices, batches) * STASH * chunks) + STASH
    name = f"{label}: p={devices} m={batches} v={chunks} memory {share:g} latency {latency / profile[0]:.2f}"
    machine = Cluster.uniform(devices, limit, Link(latency_s=latency))
    return Instance(name, ModelGraph.chain(layers), machine, Workload(batches))


def measured(problem: Instance, limits: list[float], seeds: list[int], timed: bool, workers: int) -> Row:
    """The steps that plan() comes to."""
    row = Row(problem.name)
    for seed in seeds:
        for limit in limits:
            given = {"time_limit": limit} if timed else {"time_limit": 3600.0, "deterministic_limit": limit}
            found = plan(
                problem.model,
                problem.cluster,
                problem.workload,
                SPACE,
                seed=seed,
                workers=workers,
                **given,  # type: ignore[arg-type]
            )
            step_s = float("inf")
            if found.plan is not None and found.plan.forecast is not None:
                assert not check(found.plan)
                step_s = found.plan.forecast.step_s
            row.steps.setdefault(seed, []).append(step_s)
            row.bound_s = max(row.bound_s, found.bound_s)
    return row


def line(row: Row, seconds: float) -> str:
    """One row: steps over the bound by limit, how much worse a longer one was, and the spread."""
    steps = " | ".join(" ".join(f"{x / row.bound_s:.4f}" for x in steps) for steps in row.steps.values())
    return f"{row.name}: {steps}; worse {row.worse:.2%}, spread {row.spread:.2%} ({seconds:.0f} s)"


def table(rows: list[Row], limits: list[float]) -> Table:
    """A row of every instance, with a column of steps for each seed."""
    seeds = list(rows[0].steps) if rows else []
    cells = [
        [
            row.name,
            *(" ".join(f"{x / row.bound_s:.4f}" for x in row.steps[seed]) for seed in seeds),
            f"{row.worse:.2%}",
            *([f"{row.spread:.2%}"] if len(seeds) > 1 else []),
        ]
        for row in rows
    ]
    told = ", ".join(f"{limit:g}" for limit in limits)
    steps = [f"step / bound at {told}" + (f", seed {seed}" if len(seeds) > 1 else "") for seed in seeds]
    columns = ["instance", *steps, "a longer run is worse by", *(["spread"] if len(seeds) > 1 else [])]
    return Table.made(origin(), columns, cells)


def main(argv: list[str] | None = None) -> int:
    """Measures and prints; 1 where a longer deterministic limit was worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=20, help="instances")
    parser.add_argument("--seed", type=int, default=1, help="of the instances")
    parser.add_argument("--only", help="instances whose name has this in it")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the search")
    parser.add_argument("--limit", type=float, default=0.5, help="the shortest limit")
    parser.add_argument("--times", type=float, nargs="+", default=[1, 2, 4, 8], help="limits, in the shortest one's")
    parser.add_argument("--time", action="store_true", help="limits are seconds of the clock")
    parser.add_argument("--workers", type=int, default=1)
    savable(parser)
    given = parser.parse_args(argv)
    warm()
    limits, rows = [given.limit * times for times in given.times], []
    for problem in instances(given.random, given.seed):
        if given.only is None or given.only in problem.name:
            began = time.monotonic()
            rows.append(measured(problem, limits, list(range(given.seeds)), given.time, given.workers))
            print(line(rows[-1], time.monotonic() - began), flush=True)
    if given.save:
        table(rows, limits).save("search/" + ("seeds" if given.seeds > 1 else "seconds" if given.time else "effort"))
    worse = [row.worse for row in rows if row.worse > SAME]
    spread = sorted(row.spread for row in rows)
    print(f"{len(rows)} instances; a longer run was worse on {len(worse)}, by up to {max(worse, default=0.0):.2%}")
    print(f"spread over {given.seeds} seeds: median {spread[len(spread) // 2]:.2%}, most {spread[-1]:.2%}")
    gaps = [steps[-1] / row.bound_s - 1 for row in rows for steps in row.steps.values()]
    print(f"mean gap with the longest limit: {sum(gaps) / len(gaps):.3%}")
    return 1 if worse and not given.time else 0


if __name__ == "__main__":
    sys.exit(main())
