"""The executor measured: against torch's schedules, against its own ops, and against the forecast.

Everything runs in one set of gloo processes with one thread each, step by step in turn, so that what else the computer
does slows all alike. Layers and machine are profiled once, before. Exit code 1 when two contenders, which train the
same model on the same data, come to different losses.

    python benchmarks/executor.py                         gpt-small, 2 processes, 8 micro-batches of 4: under 6 minutes
    python benchmarks/executor.py --plans 1f1b zb-v       some plans only
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from executor_contender import Entry, Pacing, Rounds, compete
from executor_plans import NAMED, PEERS, SEARCH, plans
from executor_rows import (
    Foretold,
    Overhead,
    Speed,
    forecast_table,
    median_error,
    overhead_table,
    speed_table,
    steps,
    wrong_losses,
)
from tables import origin, savable

from contraflow.executor.measure.detect import detect_cluster
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import prepare
from contraflow.models import resolve
from contraflow.planner import Cluster, ModelGraph, Plan, Workload

PLANS = (*NAMED, "1f1b recompute", "1f1b offload", SEARCH)


@dataclass(frozen=True)
class Setting:
    """What is measured; sizes in samples, limits in seconds."""

    model: str = "gpt-small"
    micro_batch_size: int = 4
    micro_batches: int = 8
    optimizer: str = "adam"
    processes: int = 2
    plans: tuple[str, ...] = PLANS
    warmups: int = 2
    rounds: int = 7
    seconds: float = 180.0
    profile_rounds: int = 9
    time_limit: float = 20.0


@dataclass(frozen=True)
class Result:
    """The rows of the three tables, and what is wrong with them."""

    speed: list[Speed]
    overhead: list[Overhead]
    forecast: list[Foretold]
    faults: list[str]


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def profiled(setting: Setting) -> tuple[ModelGraph, Cluster]:
    """Layers and machine, as many processes at a time as will train."""
    tell("profiling")
    content = profile_model(
        resolve(setting.model),
        setting.micro_batch_size,
        rounds=setting.profile_rounds,
        load=setting.processes,
        layers="block",
    )
    machine = detect_cluster("cpu", setting.processes)
    assert machine is not None
    tell(machine.toml())
    return ModelGraph.from_dict(content), machine.cluster


def measure(setting: Setting) -> Result:
    """Profiles, plans, lets everybody train in turn, and compares."""
    graph, cluster = profiled(setting)
    workload = Workload(setting.micro_batches, setting.optimizer)
    made: dict[str, Plan] = {}
    for name, found in plans(graph, cluster, workload, setting.plans, setting.time_limit):
        made[name] = found
        tell(f"planned {name}: {found.provenance.source}, {len(found.stages)} stages")
    pacing = Pacing(setting.warmups, setting.rounds, setting.seconds)
    return compared(made, compete(list(entries(made)), pacing, tell))


def entries(made: dict[str, Plan]) -> Iterator[Entry]:
    """Our plans, each followed by torch's schedule of its kind on the same stages."""
    for name, found in made.items():
        job = prepare(found, self_check=False)
        yield Entry(name, job)
        if name in PEERS:
            yield Entry(f"torch {PEERS[name]}", job, PEERS[name])


def compared(made: dict[str, Plan], found: dict[str, Rounds]) -> Result:
    """The rows; the search is compared with torch's fastest schedule."""
    peers = {name: f"torch {PEERS[name]}" for name in made if name in PEERS}
    if SEARCH in made and peers:
        peers[SEARCH] = min(peers.values(), key=lambda peer: sum(steps(found[peer])))
    speed = [Speed.of(name, found[name], peer, found[peer]) for name, peer in peers.items()]
    return Result(
        speed,
        [Overhead.of(name, found[name]) for name in made],
        [Foretold.of(name, plan, found[name]) for name, plan in made.items()],
        [*wrong_losses(found), *(fault for row in speed for fault in row.faults)],
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    usual = Setting()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=usual.model)
    parser.add_argument("--micro-batch-size", type=int, default=usual.micro_batch_size)
    parser.add_argument("--micro-batches", type=int, default=usual.micro_batches)
    parser.add_argument("--optimizer", default=usual.optimizer)
    parser.add_argument("--processes", type=int, default=usual.processes)
    parser.add_argument("--plans", nargs="+", default=list(usual.plans), help="of: " + ", ".join(PLANS))
    parser.add_argument("--warmups", type=int, default=usual.warmups, help="steps before those that count")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="steps of every contender that count")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="after these, three rounds will do")
    parser.add_argument("--profile-rounds", type=int, default=usual.profile_rounds)
    parser.add_argument("--time-limit", type=float, default=usual.time_limit, help="seconds of the search")
    savable(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also writes the rows there")
    return parser.parse_args()


def main() -> int:
    """Prints the tables; 1 when something trained to other losses than the rest."""
    given = vars(arguments())
    save, target = given.pop("save"), given.pop("json")
    setting = Setting(**given | {"plans": tuple(given["plans"])})
    made, began, before = origin(), time.perf_counter(), os.getloadavg()[0]
    result = measure(setting)
    seconds, after = time.perf_counter() - began, os.getloadavg()[0]
    busy = f"load {before:.1f} before, {after:.1f} after; {seconds:.0f} s"
    made = replace(made, note=busy)
    shown = {
        "speed": speed_table(result.speed, made),
        "overhead": overhead_table(result.overhead, made),
        "forecast": forecast_table(result.forecast, made),
    }
    print("\n\n".join(f"{name}\n\n{table.text()}" for name, table in shown.items() if table.rows))
    print(f"\n{asdict(setting)}\n{busy}")
    for name, table in shown.items() if save else ():
        table.save(f"executor/{name}")
    for fault in result.faults:
        tell(f"WRONG: {fault}")
    if target is not None:
        content: dict[str, Any] = {"origin": asdict(made), "setting": asdict(setting), **asdict(result)}
        content["median_forecast_error"] = median_error(result.forecast)
        target.write_text(json.dumps(content, indent=1))
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
