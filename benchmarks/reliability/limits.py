"""Whether plan() returns in time: `time_limit` and a second more, for problems of every size and kind.

python benchmarks/reliability/limits.py --cases 60 --seed 1 --json benchmarks/results/reliability/limits.json

A case is a random problem of a size, a kind of search and a limit. On a machine that others use too, what counts is
the smaller of the wall clock's overrun and the processor time beyond the limit that this process took for each of its
cores: `--wall` counts the wall clock's alone. With `--interrupt` every call may take a minute, and Ctrl-C comes when
the limit would: what it takes from there is counted.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import product

from record import Row, arguments, finish

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Result, SearchSpace, Workload, plan
from contraflow.planner.basics.errors import InputError
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType

LIMITS_S = (1, 2, 5, 10, 30)
SIZES = {"small": (4, 8, 16), "medium": (8, 26, 64), "large": (64, 130, 512)}
"""Devices, layers and micro-batches."""
KINDS = ("search", "tight", "unequal", "1f1b", "interleaved", "chimera", "zb-v", "stash", "2bw", "pipedream", "pipefb")
ALLOWED_S = 1.0
"""What a call may take beyond its limit."""


MINUTE_S = 60.0


@dataclass
class Run:
    """What a call of plan() came to; seconds of the wall clock and of the processor when it began and returned.

    applies: the kind exists for this problem. lost: Ctrl-C was raised by plan() instead of being answered.
    """

    limit_s: float
    found: Result | None = None
    applies: bool = True
    lost: bool = False
    began: tuple[float, float] = field(default_factory=lambda: (time.monotonic(), time.process_time()))
    over: dict[str, float] = field(default_factory=dict)
    _open: bool = True

    def interrupt(self) -> None:
        """Ctrl-C for the main thread; from here on the call's time counts."""
        if self._open:
            self.began = (time.monotonic() - self.limit_s, time.process_time() - self.limit_s)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def returned(self) -> None:
        """Notes what the call took beyond its limit."""
        self._open = False
        wall_s, processor_s = time.monotonic() - self.began[0], time.process_time() - self.began[1]
        self.over = {"wall": wall_s - self.limit_s, "processor": min(wall_s, processor_s) - self.limit_s}

    @property
    def status(self) -> str:
        """In a word."""
        if self.lost:
            return "lost"
        return self.found.status if self.found else "unknown" if self.applies else "does not apply"


@dataclass(frozen=True)
class Case:
    """One call, drawn with a seed of its own."""

    seed: int
    limit_s: float
    size: str
    kind: str

    def run(self, interrupted: bool = False) -> Run:
        """Calls plan(), with this limit or with Ctrl-C when it comes."""
        model, cluster, workload, space = self._problem()
        run = Run(self.limit_s)
        timer = threading.Timer(self.limit_s, run.interrupt)
        if interrupted:
            timer.start()
        try:
            run.found = plan(model, cluster, workload, space, MINUTE_S if interrupted else self.limit_s, self.seed)
        except InputError:
            run.applies = False
        except KeyboardInterrupt:
            run.lost = True
        run.returned()
        timer.cancel()
        if interrupted:
            timer.join()
        return run

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


def described(options: argparse.Namespace) -> Row:
    """The row of these options, empty."""
    command = "python benchmarks/reliability/limits.py"
    command += " --interrupt" if options.interrupt else ""
    command += f" --cases {options.cases} --seed {options.seed}"
    command += f" --most {options.most:g}" if options.most < max(LIMITS_S) else ""
    command += " --wall" if options.wall else ""
    if options.interrupt:
        what, faults = f"Ctrl-C 1 to {options.most:g} s after plan() began", {"hang": 0, "file lost": 0}
    else:
        what, faults = f"calls of plan() with a time limit of 1 to {options.most:g} s", {"hang": 0}
    return Row(f"{what}, 4 to 64 devices", command, faults=faults)


def main() -> int:
    """All cases; 1 where a call took too long."""
    parser = arguments(__doc__, len(LIMITS_S) * len(SIZES) * len(KINDS))
    parser.add_argument("--only", type=int, metavar="SEED", help="the case with this seed alone")
    parser.add_argument("--most", type=float, default=30.0, metavar="S", help="leave out limits above [%(default)s]")
    parser.add_argument("--wall", action="store_true", help="count the wall clock, whoever else is there")
    parser.add_argument("--interrupt", action="store_true", help="Ctrl-C instead of a limit")
    options = parser.parse_args()
    started = time.monotonic()
    row = described(options)
    worst = {"wall": 0.0, "processor": 0.0}
    for case in cases(options.cases, options.seed):
        if case.limit_s > options.most or options.only not in (None, case.seed):
            continue
        run = case.run(options.interrupt)
        row.cases += 1
        worst = {name: max(value, run.over[name]) for name, value in worst.items()}
        late = run.over["wall" if options.wall else "processor"] > ALLOWED_S
        row.count("hang", int(late))
        row.count("file lost" if run.lost else "hang", int(run.lost))
        over = ", ".join(f"{name} {value:.2f} s" for name, value in run.over.items())
        print(f"{'LATE ' if late else ''}{case} {run.status}; beyond the limit: {over}", file=sys.stderr)
    row.figures |= {f"most beyond the limit, {name} s": round(value, 2) for name, value in worst.items()}
    return finish(row, started, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
