"""Training without a flush measured: against the best synchronous plan, against its forecast, and in little memory.

Layers and machine are profiled once for every number of processes; then plans take turns on gloo processes with one
thread each, so that what else the computer does slows all alike.

    python benchmarks/asynchronous.py                       gpt-small on 2 and on 4 processes
    python benchmarks/asynchronous.py --processes 2 --methods pipeoptim --rounds 5
    python benchmarks/asynchronous.py --memory              PipeDream in less memory than it takes on any cut
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tables import Origin, Table, origin, savable

from contraflow.executor.measure.detect import detect_cluster
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import execute
from contraflow.models import resolve
from contraflow.planner import Cluster, ModelGraph, Plan, SearchSpace, Workload, plan
from contraflow.planner.basics.units import format_bytes
from contraflow.planner.graph.versions import Versions, update_size

SYNCHRONOUS = "best synchronous"
PLAIN = "pipedream"
LIMIT = 0.9
COLUMNS = [
    "plan", "stale", "forecast ms", "measured ms", "measured / forecast", "synchronous / this", "of planned peak",
]  # fmt: skip
TIGHT_COLUMNS = ["plan", "stashes by stage", "planned peak", "of it measured", "forecast ms", "measured ms"]
USUAL = {
    "model": "gpt-small", "micro_batch_size": 4, "micro_batches": 8, "optimizer": "adam", "processes": [2, 4],
    "updates": 8, "rounds": 3,
}  # fmt: skip
LITTLE = {
    "model": "gpt-tiny", "micro_batch_size": 32, "micro_batches": 16, "optimizer": "momentum", "processes": [4],
    "updates": 2, "rounds": 2,
}  # fmt: skip
"""Large micro-batches of a small model: its stashes take most of the memory."""


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    model: str
    micro_batch_size: int
    micro_batches: int
    optimizer: str
    updates: int
    rounds: int
    time_limit: float


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def profiled(setting: Setting, processes: int) -> tuple[ModelGraph, Cluster]:
    """Layers and machine, as many processes at a time as will train."""
    tell(f"profiling with {processes} processes")
    content = profile_model(resolve(setting.model), setting.micro_batch_size, load=processes)
    machine = detect_cluster("cpu", processes)
    assert machine is not None
    return ModelGraph.from_dict(content), machine.cluster


def found(graph: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace, seconds: float) -> Plan:
    """The search's plan; ends the program where there is none."""
    result = plan(graph, cluster, workload, space, seconds)
    if result.plan is None:
        sys.exit(f"no plan: {result.status}, {result.violations}")
    return result.plan


def each_s(made: Plan) -> float:
    """Forecast seconds a micro-batch."""
    assert made.forecast is not None
    period = made.forecast.period_s
    return made.forecast.step_s / made.problem.workload.micro_batches if period is None else period


def measured(plans: Mapping[str, Plan], setting: Setting) -> dict[str, tuple[float, list[float]]]:
    """Seconds a micro-batch (median of the rounds) and the highest share of the planned peak on every device."""
    times: dict[str, list[float]] = {name: [] for name in plans}
    peaks: dict[str, list[float]] = {}
    for number in range(setting.rounds):
        for name, made in plans.items():
            size = update_size(made)
            updates = max(4, setting.updates * setting.micro_batches // size)
            result = execute(made, updates, self_check=number == 0)
            times[name].append(result.step_s / size)
            shares = [a / b for a, b in zip(result.peak_bytes, result.forecast_peak_bytes, strict=True)]
            peaks[name] = [max(pair) for pair in zip(shares, peaks.get(name, shares), strict=True)]
            tell(f"round {number}, {name}: {1000 * times[name][-1]:.1f} ms a micro-batch")
    return {name: (statistics.median(times[name]), peaks[name]) for name in plans}


def staleness(made: Plan) -> int:
    """Most updates between the weights of a forward and its gradient's update."""
    return max(Versions.of(made).most_stale.values()) if made.forecast and made.forecast.period_s else 0


def throughput(setting: Setting, processes: int, methods: list[str], by: Origin) -> Table:
    """Every method beside the best synchronous plan."""
    graph, cluster = profiled(setting, processes)
    workload = Workload(setting.micro_batches, setting.optimizer)
    plans = {SYNCHRONOUS: found(graph, cluster, workload, SearchSpace(), setting.time_limit)}
    for method in methods:
        space = SearchSpace(asynchronous=(method,))
        plans[method] = found(graph, cluster, workload, space, setting.time_limit)
    results = measured(plans, setting)
    base = results[SYNCHRONOUS][0]
    size = f"{setting.micro_batches} micro-batches of {setting.micro_batch_size}"
    note = f"{setting.model}, {processes} processes, {size}"
    lines = []
    for name, made in plans.items():
        seconds, peaks = results[name]
        row = [name, str(staleness(made)), f"{1000 * each_s(made):.1f}", f"{1000 * seconds:.1f}"]
        lines.append([*row, f"{seconds / each_s(made):.3f}", f"{base / seconds:.3f}", f"{max(peaks):.3f}"])
    return Table.made(replace(by, note=note), COLUMNS, lines)


def least_limit(graph: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace, seconds: float) -> int:
    """The least memory limit, in bytes, with which there is a plan: by bisection, below what it takes without one."""
    made = found(graph, cluster, workload, space, seconds)
    assert made.forecast is not None
    fits, fails = max(made.forecast.peak_bytes), 0
    while fits - fails > 1:
        middle = (fits + fails) // 2
        some = plan(graph, cluster, replace(workload, memory_limit_bytes=middle), space, seconds)
        fits, fails = (middle, fails) if some.plan is not None else (fits, middle)
    return fits


def in_little_memory(setting: Setting, processes: int, share: float, by: Origin) -> Table:
    """PipeDream, and what does its work within `share` of the least memory that it takes on any cut."""
    graph, cluster = profiled(setting, processes)
    workload = Workload(setting.micro_batches, setting.optimizer)
    kept = SearchSpace(PLAIN, offload=False, recompute=False)
    least = least_limit(graph, cluster, workload, kept, setting.time_limit)
    tight = replace(workload, memory_limit_bytes=int(share * least))
    refused = plan(graph, cluster, tight, kept, setting.time_limit)
    spaces = {
        "stashes kept, fewer in flight": SearchSpace(asynchronous=("stash",), offload=False, recompute=False),
        "offload allowed": SearchSpace(asynchronous=("stash",), recompute=False),
        "recompute allowed": SearchSpace(asynchronous=("stash",), offload=False),
        "pipefb": SearchSpace("pipefb", recompute=False),
    }
    plans = {f"{PLAIN}, without a limit": found(graph, cluster, workload, kept, setting.time_limit)}
    for name, space in spaces.items():
        result = plan(graph, cluster, tight, space, setting.time_limit)
        if result.plan is None:
            tell(f"{name}: {result.status}, {[str(lack) for lack in result.violations]}")
        else:
            plans[name] = result.plan
    results = measured(plans, setting)
    missing = "; ".join(lack.missing for lack in refused.violations)
    size = f"micro-batches of {setting.micro_batch_size}"
    note = (
        f"{setting.model}, {processes} processes, {size}, {setting.optimizer}; limit {tight.memory_limit_bytes} bytes "
        f"a device but for the first row: {share:g} of the {least} bytes that {PLAIN} takes at least, on any cut; "
        f"{PLAIN} within the limit: {refused.status}: {missing}"
    )
    lines = []
    for name, made in plans.items():
        assert made.forecast is not None
        seconds, peaks = results[name]
        row = [name, ", ".join(made.stash[0]), format_bytes(max(made.forecast.peak_bytes)), f"{max(peaks):.3f}"]
        lines.append([*row, f"{1000 * each_s(made):.1f}", f"{1000 * seconds:.1f}"])
    return Table.made(replace(by, note=note), TIGHT_COLUMNS, lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--micro-batches", type=int, help="a synchronous step")
    parser.add_argument("--optimizer")
    parser.add_argument("--processes", type=int, nargs="+")
    parser.add_argument("--methods", nargs="+", default=["pipeoptim", "stash", "2bw"])
    parser.add_argument("--updates", type=int, help="so many synchronous steps' micro-batches are run")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of every search")
    parser.add_argument("--memory", action="store_true", help="PipeDream in little memory instead")
    parser.add_argument("--share", type=float, default=LIMIT, help="of the least memory that it takes")
    savable(parser)
    given = parser.parse_args()
    for name, value in (LITTLE if given.memory else USUAL).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def main() -> int:
    """Measures and prints."""
    given = arguments()
    setting = Setting(
        given.model, given.micro_batch_size, given.micro_batches, given.optimizer, given.updates, given.rounds,
        given.time_limit,
    )  # fmt: skip
    by = origin()
    for processes in given.processes:
        if given.memory:
            name, table = "memory", in_little_memory(setting, processes, given.share, by)
        else:
            name, table = "throughput", throughput(setting, processes, given.methods, by)
        print(f"{table.origins[0].note}\n\n{table.text()}\n")
        if given.save:
            of = "" if setting.model == (LITTLE if given.memory else USUAL)["model"] else f"{setting.model}-"
            table.save(f"asynchronous/{of}{name}-{processes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
