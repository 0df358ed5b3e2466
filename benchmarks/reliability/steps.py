"""Many steps of one run: memory, files and threads of every rank stay as they are, and the end is plain torch's.

    python benchmarks/reliability/steps.py --cases 2000 --json benchmarks/results/reliability/steps.json

`--cases` steps of each of four runs on two ranks: synchronous and asynchronous plans, with offloaded stashes, held-out
losses and checkpoints, in mixed precision too, on gloo processes; and one of them on threads.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from record import ROOT, Row, arguments, finish

sys.path.insert(0, str(ROOT / "tests" / "kit"))

import plain_torch
from async_plans import unflushed
from runs import Case, planned

from contraflow.executor.basics.checkpointing import Checkpointing
from contraflow.executor.basics.training import Training
from contraflow.executor.run.launch import execute
from contraflow.models import load, resolve
from contraflow.planner.plan import Plan

SAMPLED = 10
"""A look at every rank after so many steps."""
SETTLED = 100
"""Steps of a run that do not count: libraries allocate what they need once."""
GROWTH = {"RSS": 3 << 20, "open files": 0, "threads": 0, "shared memory": 0}
"""By how much the last tenth may be above the first; bytes of RSS cover what a heap is rounded to."""


@dataclass(frozen=True)
class Run:
    """One of the runs. tolerance: of the last loss and of tensors against plain torch, relative."""

    name: str
    plan: Plan
    dtype: torch.dtype
    transport: str
    every: int
    tolerance: float


def runs() -> Iterator[Run]:
    """All of them."""
    kept = Case("1f1b", "mlp-tiny", 2, 4, "momentum", "offload")
    mixed = kept._replace(precision="mixed")
    behind = unflushed("2bw", 2, 2, "mlp-tiny", stash="offload")
    yield Run("synchronous", planned(kept), torch.float64, "processes", 50, 1e-6)
    yield Run("synchronous, mixed", planned(mixed), mixed.dtype, "processes", 50, 0.1)
    yield Run("asynchronous", planned(behind), torch.float64, "processes", 10, 1e-6)
    yield Run("synchronous, threads", planned(kept), torch.float64, "threads", 50, 1e-6)


# ------------------------------------------------------------------ what a process holds


@dataclass
class Watch:
    """Looks at this process, or at its children."""

    own: bool
    seen: dict[str, dict[int, list[tuple[int, int]]]] = field(default_factory=lambda: defaultdict(dict))
    losses: list[float] = field(default_factory=list)

    def step(self, step: int, loss: float, seconds: float) -> None:
        """As `execute` calls it."""
        self.losses.append(loss)
        if step % SAMPLED:
            return
        for pid in [os.getpid()] if self.own else children(os.getpid()):
            for what, count in held(pid).items():
                self.seen[what].setdefault(pid, []).append((step, count))

    def grown(self, steps: int) -> Iterator[str]:
        """What has become more, from the first tenth of the steps to the last."""
        for what, ranks in self.seen.items():
            for pid, samples in ranks.items():
                early = [n for step, n in samples if SETTLED <= step < SETTLED + max(steps // 10, 100)]
                late = [n for step, n in samples if step >= steps - max(steps // 10, 100)]
                before, after = (statistics.median(part) if part else 0 for part in (early, late))
                if early and after > before + GROWTH[what]:
                    yield f"{what} of process {pid}: {before:.0f}, {after:.0f} at the end"


def children(pid: int) -> list[int]:
    """Processes that a process has started, and they in turn."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        own = [int(child) for child in (task / "children").read_text().split()]
        found += own + [further for child in own for further in children(child)]
    return found


def held(pid: int) -> dict[str, int]:
    """Bytes of memory, open files, threads and shared memory of a process; nothing of one that has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        found = {"RSS": 1024 * int(status["VmRSS"].split()[0]), "threads": int(status["Threads"])}
        found["open files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, KeyError):
        return {}
    shared = Path("/dev/shm")
    mine = [path for path in shared.iterdir() if path.exists()] if shared.is_dir() else []
    return found | {"shared memory": len([path for path in mine if path.stat().st_uid == os.getuid()])}


# ------------------------------------------------------------------ the runs


def tried(run: Run, steps: int, row: Row) -> None:
    """Runs it, counts and prints what went wrong."""
    row.cases += steps
    # so low a rate that round-off is not amplified: at 0.02 it grows tenfold in some 90 steps
    watch, training = Watch(run.transport == "threads"), Training(lr=0.002, evaluate_every=run.every)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = execute(
                run.plan, steps, dtype=run.dtype, transport=run.transport, on_step=watch.step, self_check=False,
                return_state=True, training=training, checkpoint=Checkpointing(folder, every=100, keep=2),
            )  # fmt: skip
        except Exception as error:
            row.count("hang" if "no progress" in str(error) else "traceback")
            print(f"{run.name}: {type(error).__name__}: {error}", file=sys.stderr)
            return
    faults = [("above its peak", text) for text in watch.grown(steps)]
    model = resolve(run.plan.problem.model.name)
    data = load(model.data) if isinstance(model.data, str) else model.data
    assert data is not None
    wanted = plain_torch.train(run.plan, model, data, steps, run.dtype, training)
    first, last = (statistics.fmean(part) for part in (result.losses[:10], result.losses[-10:]))
    if not last < first:
        faults.append(("different", f"losses of {first} came to {last}"))
    apart = abs(last - statistics.fmean(wanted.losses[-10:]))
    if not apart <= run.tolerance * max(last, 1e-2):
        faults.append(("different", f"the last losses are {apart} away from plain torch's {last}"))
    for name, tensor in wanted.state.items():
        found = (result.state or {})[name].double()
        if not (found - tensor.double()).norm() <= run.tolerance * tensor.double().norm():
            faults.append(("different", f"{name} differs at the end"))
    for kind, text in faults:
        row.count(kind)
        print(f"{run.name}: {kind}: {text}", file=sys.stderr)
    row.figures[f"last loss, {run.name}"] = round(last, 6)


def main() -> int:
    """All runs."""
    chosen = arguments(__doc__, 2000).parse_args()
    torch.set_num_threads(1)
    row, started = (
        Row("steps of long runs", f"python benchmarks/reliability/steps.py --cases {chosen.cases}"),
        time.monotonic(),
    )
    for column in ("traceback", "hang", "different", "above its peak"):
        row.count(column, 0)
    for run in runs():
        tried(run, chosen.cases, row)
    return finish(row, started, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
