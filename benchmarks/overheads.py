"""What a run pays for its care: a look at every loss and gradient, and one arena for all threads of a rank.

Two gloo processes of one thread each train gpt-small, 1F1B and 1F1B with stashes copied to the host. With and without
the looks (`--on-nan stop`) takes turns step by step in the same processes; one arena and the C library's own number
take turns process by process. Ratios are of medians: of the wall clock, which other work disturbs, and of processor
time, which it hardly does.

    python benchmarks/overheads.py --save        5 minutes on two cores
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from executor_contender import Ours
from executor_plans import plans
from tables import Table, origin, savable

from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.allocator import keep_freed_memory
from contraflow.executor.run.job import Job
from contraflow.executor.run.launch import prepare
from contraflow.executor.step.finite import Guard, NotFinite
from contraflow.executor.wires.transport import GlooTransport
from contraflow.models import resolve
from contraflow.planner import Cluster, ModelGraph, Workload

PLANS = ("1f1b", "1f1b offload")
COLUMNS = ["what, plan", "of processor time", "of the clock", "steps", "s a step"]
OWN_ARENAS = 0
"""As many as the C library makes."""


class Careless(Guard):
    """Looks at nothing."""

    def loss(self, value: torch.Tensor | float) -> None:
        """Not looked at."""

    def handed_back(self, gradient: torch.Tensor | None) -> None:
        """Not looked at."""

    def stepping(self, stage: int) -> None:
        """Not looked at."""

    def settled(self) -> Iterator[tuple[int, NotFinite]]:
        """Nothing."""
        return iter(())


@dataclass(frozen=True)
class Steps:
    """Seconds of steps: of the slower rank's clock, and of all ranks' processors."""

    wall_s: list[float]
    processor_s: list[float]

    @classmethod
    def of(cls, ranks: list[list[tuple[float, float]]]) -> Steps:
        """Of (clock, processor) by rank and step."""
        steps = list(zip(*ranks, strict=True))
        return cls([max(w for w, _ in step) for step in steps], [sum(p for _, p in step) for step in steps])


@dataclass(frozen=True)
class Ratio:
    """What something costs: steps with it over steps without, by the clock and by processor time."""

    what: str
    plan: str
    wall: float
    processor: float
    steps: int
    step_s: float

    @classmethod
    def of(cls, what: str, plan: str, with_it: list[Steps], without: list[Steps]) -> Ratio:
        """Of medians over all steps."""

        def middle(found: list[Steps], name: str) -> float:
            return median([s for steps in found for s in getattr(steps, name)])

        wall, processor = (middle(with_it, n) / middle(without, n) for n in ("wall_s", "processor_s"))
        count = sum(len(steps.wall_s) for steps in with_it)
        return cls(what, plan, wall, processor, count, middle(with_it, "wall_s"))

    def cells(self) -> list[str]:
        """Of the table."""
        ratios = f"{self.processor:.4f}", f"{self.wall:.4f}"
        return [f"{self.what}, {self.plan}", *ratios, str(self.steps), f"{self.step_s:.3f}"]


def _rank(rank: int, jobs: dict[str, Job], arenas: int, rounds: int, folder: str) -> None:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    keep_freed_memory(arenas)
    ranks = len(next(iter(jobs.values())).plan.orders)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks, timeout=timedelta(seconds=300)
    )
    runs = {(name, careful): Ours(job, GlooTransport(job.groups)) for name, job in jobs.items() for careful in (1, 0)}
    for (_, careful), run in runs.items():
        if not careful:
            run._interpreter._guard.__class__ = Careless
    found: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in runs}
    for turn in range(rounds + 2):
        for key in reversed(runs) if turn % 2 else runs:
            dist.barrier()
            wall, processor = time.perf_counter(), time.process_time()
            runs[key].step(turn)
            if turn >= 2:
                found[key].append((time.perf_counter() - wall, time.process_time() - processor))
    for run in runs.values():
        run.close()
    (Path(folder) / f"rank{rank}").write_bytes(pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def trained(jobs: dict[str, Job], arenas: int, rounds: int) -> dict[tuple[str, int], Steps]:
    """Steps by plan and whether they were looked at, in processes of so many arenas."""
    ranks = len(next(iter(jobs.values())).plan.orders)
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        multiprocessing.spawn(_rank, (jobs, arenas, rounds, folder), nprocs=ranks)
        parts = [pickle.loads((Path(folder) / f"rank{rank}").read_bytes()) for rank in range(ranks)]
    return {key: Steps.of([part[key] for part in parts]) for key in parts[0]}


def measure(rounds: int, repeats: int) -> list[Ratio]:
    """All ratios."""
    content = profile_model(resolve("gpt-small"), 4, rounds=1, layers="block")
    made = dict(plans(ModelGraph.from_dict(content), Cluster.uniform(2), Workload(8, "adam"), PLANS, 5.0))
    jobs = {name: prepare(found, self_check=False) for name, found in made.items()}
    one: list[dict[tuple[str, int], Steps]] = []
    own: list[dict[tuple[str, int], Steps]] = []
    for k in range(repeats):
        for arenas, into in ((1, one), (OWN_ARENAS, own)) if k % 2 == 0 else ((OWN_ARENAS, own), (1, one)):
            into.append(trained(jobs, arenas, rounds))
            print(f"round {k + 1} of {repeats}, arenas {arenas or 'of the C library'}", file=sys.stderr)
    found = []
    for name in jobs:
        every = one + own
        found.append(Ratio.of("--on-nan stop", name, [r[name, 1] for r in every], [r[name, 0] for r in every]))
        found.append(Ratio.of("one arena", name, [r[name, 1] for r in one], [r[name, 1] for r in own]))
    return found


def main() -> int:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="steps of each by turns [%(default)s]")
    parser.add_argument("--repeats", type=int, default=4, metavar="N", help="processes of each kind [%(default)s]")
    savable(parser)
    options = parser.parse_args()
    made = replace(origin(), note=f"load {os.getloadavg()[0]:.1f} before")
    table = Table.made(made, COLUMNS, [ratio.cells() for ratio in measure(options.rounds, options.repeats)])
    print(table.text())
    if options.save:
        table.save("overheads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
