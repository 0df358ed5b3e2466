"""The runtime against torch's, model by model: step times side by side, and every plan's forecast.

For each model two gloo processes of one thread run our plans, torch's schedules on the same stages, torch's
DistributedDataParallel, our data parallel plan and the searched one, step by step in turn; ours draw their data within
the step, torch's before it. Layers, machine and what ops cost beside layers are profiled before. What is measured of a
model is kept in the file of `--state`: the same command goes on with models that are missing, `--minutes` says until
when it begins another one, and tables are made of what is there.

    python benchmarks/runtime.py --minutes 40 --save       5 models, about 8 minutes each on two free cores
    python benchmarks/runtime.py --models mlp-deep         one of them

Says what misses its goal: torch's time / ours at least 1.0 for every schedule and 1.05 in the median, the searched plan
at least 1.05 of torch's fastest and within 1 % of data parallelism, forecasts within 10 %, in the median 5 %. Exit
code 1 where contenders that train the same come to different losses.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from executor_contender import Entry, Pacing, Rounds, compete
from executor_peers import DDP
from executor_rows import Foretold, steps, wrong_losses
from tables import Origin, Table, origin, savable

from contraflow.executor.measure.detect import detect_cluster
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import prepare, run_plan
from contraflow.models import resolve
from contraflow.planner import Cluster, Link, ModelGraph, Plan, SearchSpace, Workload, plan

PROCESSES, MICRO_BATCHES, LONGEST_S = 2, 8, 300.0
SAMPLES = {"gpt-small": 4, "resnet-tiny": 16, "lstm-small": 8, "llama-small": 4, "mlp-deep": 8}
"""Of a micro-batch."""
PEERS = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV", "interleaved-zb": "InterleavedZeroBubble",
}  # fmt: skip
"""Schedules that torch has too, by our name: torch's."""
PARALLEL, SEARCHED = "data parallel", "searched"
LEAST, TYPICAL, NO_WORSE, FAR, OFF = 1.0, 1.05, 1.01, 0.10, 0.05


@dataclass(frozen=True)
class Pair:
    """One of our plans and what it is held against: the median over rounds of theirs / ours."""

    ours: str
    theirs: str
    ratio: float


@dataclass(frozen=True)
class Found:
    """Of one model. `forecasts`: of every plan, how many stages it has, its forecast and its median step in seconds."""

    model: str
    pairs: list[Pair]
    forecasts: dict[str, tuple[int, float, float]]
    faults: list[str]
    made: Origin

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Found:
        """What `asdict` has made."""
        pairs = [Pair(**pair) for pair in content["pairs"]]
        forecasts = {name: (stages, said, took) for name, (stages, said, took) in content["forecasts"].items()}
        return cls(content["model"], pairs, forecasts, content["faults"], Origin(**content["made"]))


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def measured_cluster() -> Cluster:
    """This computer, with what ops cost on it; without a link to the host, so that nothing is offloaded."""
    tell("measuring the machine")
    found = detect_cluster("cpu", PROCESSES, train=run_plan)
    assert found is not None
    (node,) = found.cluster.nodes
    return replace(found.cluster, nodes=(replace(node, host_memory_bytes=None, host_link=Link()),))


def plans(graph: ModelGraph, cluster: Cluster, search_s: float) -> Iterator[tuple[str, Plan]]:
    """Of every name the plan, where there is one."""
    workload = Workload(MICRO_BATCHES)
    spaces = {name: SearchSpace(schedule=name, separate_backward=False) for name in PEERS}
    spaces[PARALLEL] = SearchSpace(schedule="gpipe", replicas=PROCESSES)
    spaces[SEARCHED] = SearchSpace(separate_backward=False)
    for name, space in spaces.items():
        found = plan(graph, cluster, workload, space, search_s if name == SEARCHED else 10.0, 0, 2).plan
        if found is not None:
            yield name, found


def entries(made: Mapping[str, Plan]) -> Iterator[Entry]:
    """Our plans, each followed by what it is held against."""
    for name, found in made.items():
        job = prepare(found, self_check=False)
        yield Entry(name, job)
        if name in PEERS:
            yield Entry(f"torch {PEERS[name]}", job, PEERS[name])
        elif name == PARALLEL:
            yield Entry(DDP, job, DDP)


def measure(model: str, cluster: Cluster, rounds: int, search_s: float, made: Origin) -> Found:
    """Profiles, plans and lets all take turns."""
    tell(f"{model}: profiling")
    content = profile_model(resolve(model), SAMPLES[model], load=PROCESSES, layers="block")
    planned = dict(plans(ModelGraph.from_dict(content), cluster, search_s))
    found = compete(list(entries(planned)), Pacing(3, rounds, LONGEST_S), lambda text: tell(f"{model}: {text}"))
    forecasts = {}
    for name, each in planned.items():
        row = Foretold.of(name, each, found[name])
        forecasts[name] = (len(each.stages), row.forecast_s, row.measured_s)
    return Found(model, list(_pairs(found)), forecasts, wrong_losses(found), made)


def _pairs(found: Mapping[str, Rounds]) -> Iterator[Pair]:
    seconds = {name: steps(rounds) for name, rounds in found.items()}

    def pair(ours: str, theirs: str) -> Pair:
        return Pair(ours, theirs, median(b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True)))

    torch_s = [f"torch {peer}" for peer in PEERS.values() if f"torch {peer}" in seconds]
    yield from (pair(name, f"torch {peer}") for name, peer in PEERS.items() if name in seconds)
    yield pair(PARALLEL, DDP)
    yield pair(SEARCHED, min(torch_s, key=lambda name: median(seconds[name])))
    yield from (pair(SEARCHED, other) for other in (DDP, PARALLEL))


def tables(results: Sequence[Found], made: Origin) -> dict[str, Table]:
    """Speed and forecasts, of all models."""
    speed = [[f"{x.model}: {p.ours}", p.theirs, f"{p.ratio:.3f}"] for x in results for p in x.pairs]
    told = [
        [f"{x.model}: {name}", str(stages), f"{1e3 * said:.2f}", f"{1e3 * took:.2f}", f"{took / said - 1:+.1%}"]
        for x in results
        for name, (stages, said, took) in x.forecasts.items()
    ]
    return {
        "speed": Table.made(made, ["ours", "torch's, or ours", "theirs / ours"], speed),
        "forecast": Table.made(made, ["plan", "stages", "forecast ms", "measured ms", "error"], told),
    }


def misses(results: Sequence[Found]) -> Iterator[str]:
    """What falls short of its goal, in words."""
    named = [p.ratio for x in results for p in x.pairs if p.ours in PEERS]
    if named and median(named) < TYPICAL:
        yield f"torch's time / ours over all schedules is {median(named):.3f} in the median, not {TYPICAL}"
    for x in results:
        for p in x.pairs:
            goal = LEAST if p.ours != SEARCHED else TYPICAL if p.theirs not in (DDP, PARALLEL) else 1 / NO_WORSE
            if p.ratio < goal:
                yield f"{x.model}: {p.theirs} / {p.ours} is {p.ratio:.3f}, not {goal:.3g}"
    errors = [(abs(took / said - 1), x.model, n) for x in results for n, (_, said, took) in x.forecasts.items()]
    if errors and median(error for error, *_ in errors) > OFF:
        yield f"forecasts are {median(error for error, *_ in errors):.1%} off in the median, not {OFF:.0%}"
    yield from (f"{model}: the forecast of {name} is {error:.1%} off" for error, model, name in errors if error > FAR)


def main() -> int:
    """Measures what is missing, prints tables and what falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SAMPLES), choices=list(SAMPLES), metavar="MODEL")
    parser.add_argument("--minutes", type=float, default=60.0, help="no model is begun after these [%(default)g]")
    parser.add_argument("--rounds", type=int, default=15, help="steps of every contender [%(default)s]")
    parser.add_argument("--search-seconds", type=float, default=30.0, help="of the search [%(default)g]")
    parser.add_argument("--state", type=Path, default=Path("runtime-state.json"), help="[%(default)s]")
    savable(parser)
    options, made, began = parser.parse_args(), origin(), time.monotonic()
    kept: dict[str, Any] = json.loads(options.state.read_text()) if options.state.exists() else {}
    cluster = Cluster.from_dict(kept["cluster"]) if "cluster" in kept else None
    for model in options.models:
        if model in kept or time.monotonic() - began > 60 * options.minutes:
            continue
        if cluster is None:
            cluster = measured_cluster()
            kept["cluster"] = cluster.to_dict()
        kept[model] = asdict(measure(model, cluster, options.rounds, options.search_seconds, made))
        options.state.write_text(json.dumps(kept, indent=1))
    results = [Found.from_dict(kept[model]) for model in SAMPLES if model in kept]
    for name, table in tables(results, made).items():
        print(f"{name}\n\n{table.text()}\n")
        if options.save and table.rows:
            table.save(f"runtime/{name}")
    for line in misses(results):
        print(f"short of its goal: {line}")
    faults = [fault for x in results for fault in x.faults]
    for missing in [model for model in options.models if model not in kept]:
        print(f"not measured: {missing}")
    for fault in faults:
        tell(f"WRONG: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
