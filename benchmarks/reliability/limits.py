"""Whether plan() returns in time: `time_limit` and a second more, for problems of every size and kind.

python benchmarks/reliability/limits.py --cases 60 --seed 1 --json benchmarks/results/reliability/limits.json

A case is a random problem of a size, a kind of search and a limit. On a machine that others use too, what counts is
the smaller of the wall clock's overrun and the processor time beyond the limit that this process took for each of its
cores: `--wall` counts the wall clock's alone.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, replace
from itertools import product

from record import Row, arguments, finish

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Result, SearchSpace, Workload, plan
from contraflow.planner.cluster import NodeGroup
from contraflow.planner.errors import InputError
from contraflow.planner.presets import DeviceType

LIMITS_S = (1, 2, 5, 10, 30)
SIZES = {"small": (4, 8, 16), "medium": (8, 26, 64), "large": (64, 130, 512)}
"""Devices, layers and micro-batches."""
KINDS = ("search", "tight", "unequal", "1f1b", "interleaved", "chimera", "zb-v", "stash", "2bw", "pipedream", "pipefb")
ALLOWED_S = 1.0
"""What a call may take beyond its limit."""


@dataclass(frozen=True)
class Case:
    """One call, drawn with a seed of its own."""

    seed: int
    limit_s: float
    size: str
    kind: str

    def run(self) -> tuple[Result | None, float, float]:
        """The answer, None where the kind does not exist for this problem; wall-clock and processor seconds."""
        model, cluster, workload, space = self._problem()
        wall, processor = time.monotonic(), time.process_time()
        try:
            found = plan(model, cluster, workload, space, self.limit_s, self.seed)
        except InputError:
            found = None
        return found, time.monotonic() - wall, time.process_time() - processor

    def _problem(self) -> tuple[ModelGraph, Cluster, Workload, SearchSpace]:
        rng = random.Random(self.seed)
        devices, layers, batches = SIZES[self.size]
        found = [
            Layer(
                f"l{k}", f := rng.uniform(0.5, 1.5), f, f * rng.uniform(0.7, 1.1), stash_bytes=40,
                weight_stash_bytes=30, output_bytes=rng.randint(1, 4), parameter_bytes=rng.randint(1, 20),
            )
            for k in range(layers)
        ]  # fmt: skip
        each = 60 * -(-layers // devices)
        memory = each + 40 * -(-layers // devices) * rng.choice([2, 4]) if self.kind == "tight" else 1 << 40
        kinds = [DeviceType("even", memory, 1.0, 1e3), DeviceType("odd", memory, rng.choice([0.5, 1.7]), 1e3)]
        groups = [devices] if self.kind != "unequal" else [devices // 2, devices - devices // 2]
        nodes = tuple(
            NodeGroup(1, count, kind, Link(500.0, 1e-3), None, Link(100.0, 1e-3))
            for count, kind in zip(groups, kinds, strict=False)
        )
        workload = Workload(batches, "adam")
        if self.kind in ("search", "tight", "unequal"):
            space = SearchSpace()
        elif self.kind in ("stash", "2bw"):
            space = SearchSpace(asynchronous=(self.kind,))
        else:
            space = SearchSpace(self.kind)
        if self.kind == "2bw":
            workload = replace(workload, update_every=devices)
        return ModelGraph.chain(found), Cluster(nodes, Link(200.0, 1e-2)), workload, space


def cases(count: int, seed: int) -> list[Case]:
    """The first of all combinations in a random order, short limits first."""
    every = list(product(LIMITS_S, SIZES, KINDS))
    random.Random(seed).shuffle(every)
    chosen = [every[k % len(every)] for k in range(count)]
    return [Case(seed * 1000 + k, float(limit), size, kind) for k, (limit, size, kind) in enumerate(chosen)]


def main() -> int:
    """All cases; 1 where a call took too long."""
    parser = arguments(__doc__, len(LIMITS_S) * len(SIZES) * len(KINDS))
    parser.add_argument("--only", type=int, metavar="SEED", help="the case with this seed alone")
    parser.add_argument("--most", type=float, default=30.0, metavar="S", help="leave out limits above [%(default)s]")
    parser.add_argument("--wall", action="store_true", help="count the wall clock, whoever else is there")
    options = parser.parse_args()
    started = time.monotonic()
    command = f"python benchmarks/reliability/limits.py --cases {options.cases} --seed {options.seed}"
    row = Row("calls of plan() with a time limit of 1 to 30 s, 4 to 64 devices", command, faults={"hang": 0})
    worst = {"wall": 0.0, "processor": 0.0}
    for case in cases(options.cases, options.seed):
        if case.limit_s > options.most or options.only not in (None, case.seed):
            continue
        found, wall_s, processor_s = case.run()
        row.cases += 1
        over = {"wall": wall_s - case.limit_s, "processor": min(wall_s - case.limit_s, processor_s - case.limit_s)}
        worst = {name: max(value, over[name]) for name, value in worst.items()}
        late = over["wall" if options.wall else "processor"] > ALLOWED_S
        row.count("hang", int(late))
        status = "does not apply" if found is None else found.status
        print(
            f"{'LATE ' if late else ''}{case} {status} {wall_s:.2f} s, processor {processor_s:.2f} s", file=sys.stderr
        )
    row.figures |= {f"most beyond the limit, {name} s": round(value, 2) for name, value in worst.items()}
    return finish(row, started, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
