"""The runtime against torch's, model by model: step times side by side, and every plan's forecast.

For each model two gloo processes of one thread each run our plans, torch's schedules on the same stages, torch's
DistributedDataParallel, torch in one process with two threads, our data parallel plan and the searched one, step by
step in turn; all draw their data within the step. Layers, machine and what ops cost beside layers are profiled before,
and layers calibrated once, by one run as 1F1B and one data parallel: what is forecast is made of these figures alone.
What plans take and hold is then measured by themselves, one after the other, three times over. Shared machines are
faster or slower by the minute: "at the machine's pace" is the error beside that of the plans that layers were
calibrated with, in the same rounds. With `--crowded` forecasts are held against four processes on the cores of two,
too. What is measured is kept in the file of `--state`: the same command goes on with what is missing, `--minutes` says
until when it begins another model, and tables are made of what is there.

    python benchmarks/runtime.py --minutes 50 --save       5 models, about 10 minutes each on two free cores
    python benchmarks/runtime.py --models mlp-deep         one of them
    python benchmarks/runtime.py --crowded --save          forecasts with more processes than cores, too

Says what misses its goal: torch's time / ours at least 1.0 for every schedule and 1.05 in the median, the searched plan
at least 1.05 of torch's fastest and within 1 % of data parallelism and of one process, forecasts within 10 %, in the
median 5 %, peaks never above what is planned and within 10 % of it. Exit code 1 where contenders that train the same
come to different losses.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from executor_contender import Entry, Pacing, Rounds, compete
from executor_peers import ALONE, DDP
from executor_plans import restashed
from executor_rows import steps, wrong_losses
from runtime_alone import Alone, runs
from tables import Origin, Table, origin, savable

from contraflow.executor.basics.options import RunOptions
from contraflow.executor.measure.detect import detect_cluster
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import prepare, run_plan
from contraflow.models import resolve
from contraflow.planner import Cluster, Link, ModelGraph, Plan, SearchSpace, Workload, plan
from contraflow.planner.basics import ScheduleError
from contraflow.planner.graph import OFFLOAD, RECOMPUTE
from contraflow.planner.runs import calibrate

PROCESSES, CROWD, MICRO_BATCHES, LONGEST_S = 2, 4, 8, 300.0
SAMPLES = {"gpt-small": 4, "resnet-tiny": 16, "lstm-small": 8, "llama-small": 4, "mlp-deep": 8}
"""Of a micro-batch."""
PEERS = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV", "interleaved-zb": "InterleavedZeroBubble",
}  # fmt: skip
"""Schedules that torch has too, by our name: torch's."""
PARALLEL, SEARCHED, REMADE, COPIED = "data parallel", "searched", f"1f1b {RECOMPUTE}", f"1f1b {OFFLOAD}"
PLANS = (*PEERS, "chimera", REMADE, COPIED, PARALLEL, SEARCHED)
WITHOUT_A_FLUSH = ("pipedream", "pipedream-2bw", "pipeoptim")
CROWDED = ("gpipe", "1f1b", "zb-v", PARALLEL, SEARCHED)
"""What is forecast on more processes than cores."""
CALIBRATED_BY, CALIBRATION_STEPS = ("1f1b", PARALLEL), 16
LEAST, TYPICAL, NO_WORSE, FAR, OFF = 1.0, 1.05, 1.01, 0.10, 0.05


@dataclass(frozen=True)
class Pair:
    """One of our plans and what it is held against: the median over rounds of theirs / ours."""

    ours: str
    theirs: str
    ratio: float

    @property
    def named(self) -> str:
        """The same for every run: which of torch's schedules is the fastest differs."""
        fastest = self.ours == SEARCHED and self.theirs.removeprefix("torch ") in PEERS.values()
        return f"{'torch, the fastest' if fastest else self.theirs} / {self.ours}"


@dataclass(frozen=True)
class Found:
    """Of one model. `forecasts`: of every plan, and what became of it."""

    model: str
    processes: int
    pairs: list[Pair]
    forecasts: dict[str, Alone]
    faults: list[str]
    made: Origin

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Found:
        """What the state file has of it."""
        pairs = [Pair(**pair) for pair in content["pairs"]]
        forecasts = {name: Alone(**found) for name, found in content["forecasts"].items()}
        made = Origin(**content["made"])
        return cls(content["model"], content["processes"], pairs, forecasts, content["faults"], made)


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def measured_cluster(processes: int) -> Cluster:
    """This computer, with what ops cost on it."""
    tell(f"measuring the machine with {processes} processes")
    found = detect_cluster("cpu", processes, train=run_plan)
    assert found is not None
    return found.cluster


def without_host(cluster: Cluster) -> Cluster:
    """The cluster without a link to the host: nothing is offloaded."""
    (node,) = cluster.nodes
    return replace(cluster, nodes=(replace(node, host_memory_bytes=None, host_link=Link()),))


def plans(graph: ModelGraph, cluster: Cluster, names: Sequence[str], search_s: float) -> Iterator[tuple[str, Plan]]:
    """Of every name the plan, where there is one."""
    for name in names:
        schedule, _, policy = name.partition(" ")
        space = SearchSpace(schedule=schedule, separate_backward=False)
        if name == PARALLEL:
            space, policy = SearchSpace(schedule="gpipe", replicas=len(cluster)), ""
        elif name == SEARCHED:
            space = SearchSpace(separate_backward=False)
        seconds, found = search_s if name == SEARCHED else 10.0, None
        linked = cluster if policy == OFFLOAD else without_host(cluster)
        with suppress(ScheduleError):  # fewer layers than it has stages
            found = plan(graph, linked, Workload(MICRO_BATCHES), space, seconds, 0, 2).plan
        if found is not None:
            yield name, restashed(found, policy) if policy else found


def entries(made: Mapping[str, Plan]) -> Iterator[Entry]:
    """Our plans that torch has something beside, each followed by that, and the searched one."""
    for name, found in made.items():
        job = prepare(found, self_check=False)
        if name in (*PEERS, PARALLEL, SEARCHED):
            yield Entry(name, job)
        if name in PEERS:
            yield Entry(f"torch {PEERS[name]}", job, PEERS[name])
        elif name == PARALLEL:
            yield Entry(DDP, job, DDP)
            yield Entry(ALONE, job, ALONE)


def calibrated(model: str, cluster: Cluster) -> ModelGraph:
    """Layers as they are profiled, and then as two runs of two processes have taken."""
    tell(f"{model}: profiling")
    graph = ModelGraph.from_dict(profile_model(resolve(model), SAMPLES[model], load=PROCESSES, layers="block"))
    tell(f"{model}: calibrating")
    options = RunOptions(steps=CALIBRATION_STEPS, transport="processes", self_check=False)
    made = plans(graph, cluster, CALIBRATED_BY, 10.0)
    return calibrate(graph, [run_plan(found, options).trace for _, found in made])


def in_turn(model: str, graph: ModelGraph, cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Plans and theirs, step by step: pairs, and losses that differ."""
    tell(f"{model}: planning")
    planned = dict(plans(graph, cluster, (*PEERS, PARALLEL, SEARCHED), options.search_seconds))
    pacing = Pacing(3, options.rounds, LONGEST_S)
    found = compete(list(entries(planned)), pacing, lambda text: tell(f"{model}: {text}"))
    return {"pairs": [asdict(pair) for pair in _pairs(found)], "faults": wrong_losses(found)}


def alone(model: str, graph: ModelGraph, cluster: Cluster, options: argparse.Namespace) -> dict[str, Alone]:
    """Every plan by itself."""
    tell(f"{model}: planning for {len(cluster)}")
    names = CROWDED if len(cluster) > PROCESSES else (*PLANS, *WITHOUT_A_FLUSH)
    return runs(dict(plans(graph, cluster, names, options.search_seconds)), CALIBRATED_BY, options.runs)


class State:
    """What has been measured, in a file: the same command goes on with what is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def save(self) -> None:
        """Writes the file."""
        self._path.write_text(json.dumps(self.content, indent=1))

    def of(self, name: str, made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What there is of this name, or what is made now."""
        if name not in self.content:
            self.content[name] = made()
            self.save()
        found: dict[str, Any] = self.content[name]
        return found

    def cluster(self, processes: int) -> Cluster:
        """This computer with so many."""
        return Cluster.from_dict(self.of(f"cluster of {processes}", lambda: measured_cluster(processes).to_dict()))


def measure(model: str, processes: int, state: State, options: argparse.Namespace) -> dict[str, Any]:
    """Of a model on so many processes; theirs run where ranks have a core each."""
    two = state.cluster(PROCESSES)
    graph = ModelGraph.from_dict(state.of(f"layers of {model}", lambda: calibrated(model, two).to_dict()))
    turns: dict[str, Any] = {"pairs": [], "faults": []}
    if processes == PROCESSES:
        turns = state.of(f"turns of {model}", lambda: in_turn(model, graph, two, options))
    forecasts = {name: asdict(one) for name, one in alone(model, graph, state.cluster(processes), options).items()}
    return turns | {"model": model, "processes": processes, "forecasts": forecasts}


def _pairs(found: Mapping[str, Rounds]) -> Iterator[Pair]:
    seconds = {name: steps(rounds) for name, rounds in found.items()}

    def pair(ours: str, theirs: str) -> Pair:
        return Pair(ours, theirs, median(b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True)))

    torch_s = [f"torch {peer}" for peer in PEERS.values() if f"torch {peer}" in seconds]
    yield from (pair(name, f"torch {peer}") for name, peer in PEERS.items() if name in seconds)
    yield pair(PARALLEL, DDP)
    yield pair(SEARCHED, min(torch_s, key=lambda name: median(seconds[name])))
    yield from (pair(SEARCHED, other) for other in (DDP, ALONE, PARALLEL))


def tables(results: Sequence[Found]) -> dict[str, Table]:
    """Speed and forecasts, of all models, each with its own origin."""
    origins = sorted({x.made for x in results}, key=lambda made: made.date)
    speed = [([f"{x.model}: {p.named}", p.theirs, f"{p.ratio:.3f}"], x.made) for x in results for p in x.pairs]
    all_told = [(x, name, told) for x in results for name, told in x.forecasts.items()]
    told = [([f"{x.model} on {x.processes}: {name}", *_seconds(one)], x.made) for x, name, one in all_told]
    held = [([f"{x.model} on {x.processes}: {name}", *_bytes(one)], x.made) for x, name, one in all_told]

    def table(columns: list[str], rows: list[tuple[list[str], Origin]]) -> Table:
        return Table(columns, [cells for cells, _ in rows], origins, [origins.index(made) for _, made in rows])

    return {
        "speed": table(["seconds of theirs / ours", "theirs", "median of rounds"], speed),
        "forecast": table(["plan", "stages", "forecast ms", "measured ms", "error", "at the machine's pace"], told),
        "peaks": table(["plan", "planned MB", "least of it held", "most of it held"], held),
    }


def _seconds(told: Alone) -> list[str]:
    figures = f"{1e3 * told.forecast_s:.2f}", f"{1e3 * told.measured_s:.2f}"
    return [str(told.stages), *figures, f"{told.error:+.1%}", f"{told.paced:+.1%}"]


def _bytes(told: Alone) -> list[str]:
    return [f"{told.planned_bytes / 1e6:.2f}", f"{told.least:.3f}", f"{told.most:.3f}"]


def misses(results: Sequence[Found]) -> Iterator[str]:
    """What falls short of its goal, in words."""
    named = [p.ratio for x in results for p in x.pairs if p.ours in PEERS]
    if named and median(named) < TYPICAL:
        yield f"torch's time / ours over all schedules is {median(named):.3f} in the median, not {TYPICAL}"
    for x in results:
        for p in x.pairs:
            goal = LEAST if p.ours != SEARCHED else TYPICAL if p.theirs not in (DDP, ALONE, PARALLEL) else 1 / NO_WORSE
            if p.ratio < goal:
                yield f"{x.model}: {p.theirs} / {p.ours} is {p.ratio:.3f}, not {goal:.3g}"
    told = [(f"{x.model} on {x.processes}: {name}", one) for x in results for name, one in x.forecasts.items()]
    off = median(abs(one.error) for _, one in told)
    if off > OFF:
        yield f"forecasts are {off:.1%} off in the median, not {OFF:.0%}"
    for name, one in told:
        if abs(one.error) > FAR:
            yield f"{name} took {one.error:+.1%} of its forecast, {one.paced:+.1%} at the machine's pace"
        if one.most > 1 or one.least < 1 - FAR:
            yield f"{name} held {one.least:.1%} to {one.most:.1%} of its planned peaks"


def main() -> int:
    """Measures what is missing, prints tables and what falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SAMPLES), choices=list(SAMPLES), metavar="MODEL")
    parser.add_argument("--minutes", type=float, default=60.0, help="no model is begun after these [%(default)g]")
    parser.add_argument("--rounds", type=int, default=15, help="steps of every contender [%(default)s]")
    parser.add_argument("--runs", type=int, default=3, help="of every plan by itself [%(default)s]")
    parser.add_argument("--search-seconds", type=float, default=30.0, help="of the search [%(default)g]")
    parser.add_argument("--state", type=Path, default=Path("runtime-state.json"), help="[%(default)s]")
    parser.add_argument("--crowded", action="store_true", help=f"{CROWD} processes on the cores of {PROCESSES}, too")
    savable(parser)
    options, made, began = parser.parse_args(), origin(), time.monotonic()
    made = replace(made, note=f"load {os.getloadavg()[0]:.1f} before")
    state = State(options.state)
    counts = (PROCESSES, CROWD) if options.crowded else (PROCESSES,)
    wanted = [(model, f"{model} on {count}", count) for model in options.models for count in counts]
    for model, key, count in wanted:
        if key not in state.content and time.monotonic() - began < 60 * options.minutes:
            state.content[key] = measure(model, count, state, options) | {"made": asdict(made)}
            state.save()
    kept = state.content
    keys = [f"{model} on {count}" for model in SAMPLES for count in (PROCESSES, CROWD)]
    results = [Found.from_dict(kept[key]) for key in keys if key in kept]
    for name, table in tables(results).items():
        print(f"{name}\n\n{table.text()}\n")
        if options.save and table.rows:
            table.save(f"runtime/{name}")
    for line in misses(results):
        print(f"short of its goal: {line}")
    faults = [fault for x in results for fault in x.faults]
    for missing in [key for _, key, _ in wanted if key not in kept]:
        print(f"not measured: {missing}")
    for fault in faults:
        tell(f"WRONG: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
