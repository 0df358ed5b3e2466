"""The planner inside another program: plans in a twentieth of a second, calls a second, and memory over many calls.

Random chains of 4 to 12 uneven layers on 2 to 4 devices with 1 to 16 micro-batches: messages, a host link of 5 or 25
GB/s, and memory from half of what 1F1B takes to as much as there is. Those of which no plan is found are drawn anew. A
call of its own loads everything first.

    python benchmarks/embed.py --random 100 --seed 1 --save       plans at 0.05 and 0.1 s, calls a second; 5 minutes
    python benchmarks/embed.py --random 20 --calls 10000 --save    memory alone; 10 minutes
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from tables import Table, origin, savable

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, plan
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType

MIB = 2**20
PLENTY = 2**40
LIMITS = (0.05, 0.1)
SHARES = (0.5, 0.6, 0.75, 1.0, 1.5, 2.0, None)
"""Memory of a device, of what 1F1B takes on its best cut; None: more than anything takes."""
NAMED = "1f1b"
LONGER_S = 2.0


@dataclass(frozen=True)
class Small:
    """One random problem; share: its memory, see `SHARES`."""

    model: ModelGraph
    cluster: Cluster
    workload: Workload
    share: float | None

    def step_s(self, schedule: str, **given: float) -> float | None:
        """The step of the plan that a call comes to; None without one."""
        found = plan(self.model, self.cluster, self.workload, SearchSpace(schedule), workers=1, **given)  # type: ignore[arg-type]
        return found.seconds

    @cached_property
    def longer_s(self) -> dict[str, float | None]:
        """The steps of longer searches, by schedule."""
        return {schedule: self.step_s(schedule, time_limit=LONGER_S) for schedule in ("search", NAMED)}

    def first_s(self, schedule: str) -> float | None:
        """Seconds of processor time that a call ends after which ends with the first plan; None without one."""
        began = time.process_time()
        asked = (self.model, self.cluster, self.workload, SearchSpace(schedule))
        found = plan(*asked, 20.0, workers=1, on_progress=lambda event: event.step_s is not None)
        return None if found.plan is None else time.process_time() - began

    @property
    def roomy(self) -> bool:
        """Whether 1F1B fits with room to spare."""
        return self.share is None or self.share > 1


def drawn(rng: random.Random) -> Small | None:
    """One problem; None where no plan of it is known."""
    count, devices, batches = rng.randint(4, 12), rng.randint(2, 4), rng.randint(1, 16)
    layers = []
    for k in range(count):
        times = [rng.uniform(0.5, 1.5) * 1e-3 for _ in range(3)]
        stash = rng.randint(4, 32) * MIB
        layers.append(
            Layer(
                f"layer{k}", *times, True, parameter_bytes=rng.randint(1, 8) * MIB, stash_bytes=stash,
                weight_stash_bytes=stash // 2, output_bytes=rng.randint(0, 2 * MIB),
            )
        )  # fmt: skip
    link, host = Link(25e9, 1e-5), Link(rng.choice((5e9, 25e9)), 1e-5)
    share = rng.choice(SHARES)

    def with_memory(memory: int) -> Small:
        node = NodeGroup(1, devices, DeviceType("one", memory), link, PLENTY, host)
        return Small(ModelGraph.chain(layers), Cluster((node,)), Workload(batches), share)

    roomy = with_memory(PLENTY)
    if share is None:
        return roomy
    space = SearchSpace(NAMED, offload=False, recompute=False)
    found = plan(roomy.model, roomy.cluster, roomy.workload, space, workers=1).plan
    assert found is not None
    assert found.forecast is not None
    tight = with_memory(int(share * max(found.forecast.peak_bytes)))
    return tight if tight.first_s("search") is not None else None


def problems(count: int, seed: int) -> list[Small]:
    """So many random problems that have plans."""
    rng, found = random.Random(f"embed {seed}"), list[Small]()
    while len(found) < count:
        one = drawn(rng)
        found += [] if one is None else [one]
    return found


def in_time(asked: list[Small], schedule: str, limit_s: float) -> list[str]:
    """A row: how many that can have a plan do by a time limit; its step, of that of a longer search; and seconds."""
    planned, seconds, ratios = 0, [], []
    for one in asked:
        longer_s = one.longer_s[schedule]
        if longer_s is None:
            continue
        began = time.perf_counter()
        step_s = one.step_s(schedule, time_limit=limit_s)
        seconds.append(time.perf_counter() - began)
        planned += step_s is not None
        ratios += [] if step_s is None else [step_s / longer_s]
    ratio = f"{median(ratios):.3f}" if ratios else "-"
    took = [f"{median(seconds):.3f}", f"{max(seconds):.3f}"]
    return [f"{schedule}, {limit_s:g} s", f"{planned} of {len(seconds)}", ratio, *took]


def at_once(asked: list[Small], schedule: str) -> list[str]:
    """A row: how many of those that can have a plan have their first one within each limit of processor time."""
    found = sorted(s for one in asked if (s := one.first_s(schedule)) is not None)
    within = [f"{sum(s <= limit_s for s in found)} of {len(found)}" for limit_s in LIMITS]
    return [schedule, *within, f"{median(found):.4f}", f"{found[-1]:.4f}"]


def rates(asked: list[Small]) -> Iterator[list[str]]:
    """Rows: calls of a named schedule without a time limit that binds, a second of processor time."""
    kinds = {"1F1B fits": [one for one in asked if one.roomy], "tight": [one for one in asked if not one.roomy]}
    for kind, ones in kinds.items():
        for bound in (True, False):
            began = time.process_time()
            for one in ones:
                plan(one.model, one.cluster, one.workload, SearchSpace(NAMED), workers=1, bound=bound)
            spent = time.process_time() - began
            what = "with its bound" if bound else "bound=False"
            yield [f"{NAMED}, {kind}, {what}", str(len(ones)), f"{len(ones) / spent:.0f}"]


def resident_mib() -> float:
    """Of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


def memory(asked: list[Small], calls: int) -> list[list[str]]:
    """Rows: resident memory after a tenth, a half and all of so many calls of a named schedule."""
    found, marks = [], {calls // 10: "a tenth of the calls", calls // 2: "half of them", calls: "all"}
    for k in range(1, calls + 1):
        asked[k % len(asked)].step_s(NAMED)
        if k in marks:
            found.append([marks[k], str(k), f"{resident_mib():.1f}"])
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=50, help="problems")
    parser.add_argument("--seed", type=int, default=1, help="of the problems")
    parser.add_argument("--calls", type=int, default=0, help="calls over which memory is looked at, and nothing else")
    savable(parser)
    given = parser.parse_args()
    asked, made = problems(given.random, given.seed), origin()
    for schedule in ("search", NAMED):
        asked[0].step_s(schedule, time_limit=2.0)
    if given.calls:
        tables = {"memory": Table.made(made, ["after", "calls", "resident MiB"], memory(asked, given.calls))}
    else:
        late = [in_time(asked, schedule, limit_s) for schedule in ("search", NAMED) for limit_s in LIMITS]
        columns = ["call", "have a plan", f"step, of that in {LONGER_S:g} s", "median s", "most s"]
        first = [at_once(asked, schedule) for schedule in ("search", NAMED)]
        within = [f"within {limit_s:g} s" for limit_s in LIMITS]
        tables = {
            "first": Table.made(made, ["first plan, processor time", *within, "median s", "most s"], first),
            "plans": Table.made(made, columns, late),
            "calls": Table.made(made, ["calls", "problems", "a second"], list(rates(asked))),
        }
    for name, table in tables.items():
        print(table.text(), flush=True)
        if given.save:
            table.save(f"embed/{name}")


if __name__ == "__main__":
    main()
