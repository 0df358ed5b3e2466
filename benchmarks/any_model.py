"""Modules that this project did not write, planned and trained beside plain torch.

    python benchmarks/any_model.py                     every module, on 2 and 4 processes, under three plans
    python benchmarks/any_model.py --only gpt2 clip    some
    python benchmarks/any_model.py --speed             steps beside torch.distributed.pipelining's pipeline()

Ten steps of momentum SGD on random data: in one process by plain torch, which adds up the gradients of the same
micro-batches, and on gloo processes under 1F1B, a searched plan that has to recompute, and two directions. A module
whose package is not installed (transformers, diffusers, monai, x-transformers) is left out with a line. Exit code 1:
one was trained otherwise.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tables
import torch
from any_model_cases import CASES, given, lines, of
from any_model_runs import run_together
from any_model_speed import BUILDS, speeds
from executor_contender import Pacing
from torch import Tensor

from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import prepare
from contraflow.executor.run.result import RunResult
from contraflow.models import LayeredModel, UnknownModel, once, resolve
from contraflow.models.exported import state_names
from contraflow.models.once import drawing
from contraflow.models.protocol import build_shapes
from contraflow.models.sampling import batch_of
from contraflow.planner import Cluster, ModelGraph, Plan, SearchSpace, Workload, check, plan
from contraflow.planner.graph import RECOMPUTE

STEPS, MICRO_BATCHES, SAMPLES, RATE = 10, 4, 2, 0.05
SECONDS = 1.0
"""Of a search."""
HALVINGS = 10
"""Of the memory in which a plan recomputes."""
PLANS = ("1f1b", "searched, recompute", "two directions")
TOLERANCE = 1e-4
"""Of a loss, and of a parameter relative to the largest of its tensor: float32, sums in other orders."""


@dataclass(frozen=True)
class Trained:
    """What training has left: mean losses, tensors by the names of the module's state, and which are parameters."""

    losses: tuple[float, ...]
    state: dict[str, Tensor]
    names: frozenset[str]


@dataclass(frozen=True)
class Difference:
    """Of two trainings: of losses, of parameters relative to the largest of their tensor, and whether there is none."""

    loss: float
    parameter: float
    bitwise: bool

    def __str__(self) -> str:
        return "bitwise" if self.bitwise else f"{self.loss:.0e}, {self.parameter:.0e}"


@dataclass(frozen=True)
class Profiled:
    """A module as layers, its costs and the seconds of measuring them, and what plain torch trains it to."""

    model: LayeredModel
    graph: ModelGraph
    profile_s: float
    plain: Trained


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def plain(name: str) -> Trained:
    """Plain torch in one process."""
    with drawing(0):
        module, _ = CASES[name]()
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        found = []
        for m in range(MICRO_BATCHES):
            inputs, targets = batch_of(of(name).data, 0, step, m, SAMPLES)
            args, kwargs = given(name, inputs, targets)
            result, loss = module(*args, **kwargs), of(name).loss
            found.append(result.loss if loss is None else loss(_logits(result), targets))
            (found[-1] / MICRO_BATCHES).backward()
        optimizer.step()
        losses.append(sum(loss.item() for loss in found) / MICRO_BATCHES)
    return Trained(tuple(losses), module.state_dict(), frozenset(name for name, _ in module.named_parameters()))


def _logits(result: object) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]  # type: ignore[index]


def planned(graph: ModelGraph, devices: int) -> dict[str, Plan]:
    """All plans by name. Raises AssertionError: one is missing, wrong, or not what it should be."""
    workload, cluster = Workload(MICRO_BATCHES, "momentum"), Cluster.uniform(devices)
    search = partial(plan, graph, cluster, time_limit=SECONDS, workers=1)
    named = search(workload, SearchSpace("1f1b", offload=False, recompute=False)).plan
    both = search(workload, SearchSpace("chimera", offload=False, recompute=False)).plan
    assert named is not None
    assert both is not None
    found = dict(zip(PLANS, (named, recomputing(search, workload, named), both), strict=True))
    for each in found.values():
        assert not (wrong := check(each)), wrong[0]
    assert len({p.forward for p in both.pipelines}) > 1, "one direction"
    return found


def recomputing(search: partial[object], workload: Workload, usual: Plan) -> Plan:
    """A searched plan in so little memory that it recomputes a stage; of 1F1B, where no memory makes others do so."""
    assert usual.forecast is not None
    for space in (SearchSpace(offload=False), SearchSpace("1f1b", offload=False)):
        least, most = 0, max(usual.forecast.peak_bytes)
        for _ in range(HALVINGS):
            limit = (least + most) // 2
            found = search(replace(workload, memory_limit_bytes=limit), space).plan  # type: ignore[attr-defined]
            if found is None:
                least = limit
            elif any(RECOMPUTE in row for row in found.stash):
                return found  # type: ignore[no-any-return]
            else:
                most = limit
    raise AssertionError("no memory makes it recompute")


def compared(case: Profiled, result: RunResult) -> Difference:
    """A run beside plain torch. Raises AssertionError where a parameter is missing."""
    model, expected = case.model, case.plain
    assert result.state is not None
    loss = max(abs(a - b) for a, b in zip(result.losses, expected.losses, strict=True))
    seen, parameter, same = set[str](), 0.0, result.losses == expected.losses
    for spec in model.layers:
        for own, names in state_names(build_shapes(spec)).items():
            found = result.state.get(f"parameters/{spec.name}/{own}")
            if found is not None:
                seen |= set(names)
                wanted = expected.state[names[0]]
                scale = max(wanted.abs().max().item(), 1e-3)
                parameter = max(parameter, (found - wanted).abs().max().item() / scale)
                same = same and torch.equal(found, wanted)
    missing = expected.names - seen
    assert not missing, f"not trained: {sorted(missing)[0]}"
    return Difference(loss, parameter, same)


def rows(names: Sequence[str], processes: Sequence[int], faults: list[str]) -> Iterator[list[str]]:
    """A row for every module and number of processes; `faults` is told what is wrong with them."""
    for name in names:
        called = f"any_model_cases:{name}"
        try:
            model = resolve(called)
        except UnknownModel as error:
            if "No module named" in str(error):
                tell(f"left out: {error}")
            else:
                yield refused(name, str(error))
            continue
        try:
            case = profiled(model)
        except Exception as error:
            faults.append(f"{name}: {error}")
            yield refused(name, f": failed: {error}")
            continue
        for count in processes:
            began = time.perf_counter()
            try:
                row, differences = trained(case, count)
            except Exception as error:
                row, differences = refused(f"{name}, {count}", f": failed: {error}"), []
                faults.append(f"{name} on {count} processes: {error}")
            faults += [f"{row[0]}: {each}" for each in differences if max(each.loss, each.parameter) > TOLERANCE]
            tell(f"{row[0]}: {'; '.join(map(str, differences))} ({time.perf_counter() - began:.0f} s)")
            yield row


def profiled(model: LayeredModel) -> Profiled:
    """Costs of its layers, and what plain torch trains it to."""
    began = time.perf_counter()
    graph = ModelGraph.from_dict(profile_model(model, SAMPLES, rounds=1))
    return Profiled(model, graph, time.perf_counter() - began, plain(model.name.partition(":")[2]))


def trained(case: Profiled, devices: int) -> tuple[list[str], list[Difference]]:
    """The row of a module on so many processes, and how its plans' runs differ from plain torch."""
    began = time.perf_counter()
    plans = planned(case.graph, devices)
    plan_s = time.perf_counter() - began
    name, losses = case.model.name.partition(":")[2], case.plain.losses
    options = {"model": case.model.name, "lr": RATE, "return_state": True, "self_check": False}
    with once.kept():
        jobs = [prepare(each, STEPS, **options) for each in plans.values()]
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        found = [compared(case, run) for run in run_together(jobs, Path(folder))]
    known = of(name).kind, of(name).package, str(lines(name)), str(len(case.model.layers))
    seconds = f"{case.profile_s:.1f}", f"{plan_s:.1f}"
    return [f"{name}, {devices}", *known, *seconds, f"{losses[0]:.4f} to {losses[-1]:.4f}", *map(str, found)], found


_PLACE = re.compile(r"\(\S*/(\w+\.py:\d+)\)")
SAID = 160
"""Letters of a refusal that are shown."""


def refused(row: str, line: str) -> list[str]:
    """The row of a module that is none for a pipeline."""
    name, said = row.partition(",")[0], line.partition(": ")[2].partition("; registered")[0]
    return [
        row,
        of(name).kind,
        of(name).package,
        str(lines(name)),
        "refused",
        "",
        "",
        said.splitlines()[0][:120],
        "",
        "",
        "",
    ]


COLUMNS = [
    *("module, processes", "kind", "of", "lines", "layers", "profile s", "plan s", "loss, first to tenth step"),
    *PLANS,
]


def trained_table(asked: argparse.Namespace, faults: list[str]) -> None:
    """Trains every module; every row is saved when it is there."""
    made, found = tables.origin(), []
    for row in rows(asked.only or tuple(CASES), asked.processes, faults):
        found.append(row)
        if asked.save:
            tables.Table.made(made, COLUMNS, [row]).save("any_model/trained")
    print(tables.Table.made(made, COLUMNS, found).text())


def speed_table(asked: argparse.Namespace, faults: list[str]) -> None:
    """Steps beside torch's; every row is saved when it is there."""
    made, found = tables.origin(), []
    columns = ["module, processes", "ms", "torch's ms", "torch's / ours"]
    pacing = Pacing(2, asked.rounds, asked.seconds)
    for row in speeds(asked.only or tuple(BUILDS), asked.processes, pacing, faults, tell):
        found.append([row.plan, f"{1e3 * row.ours_s:.1f}", f"{1e3 * row.theirs_s:.1f}", f"{row.ratio:.3f}"])
        if asked.save:
            tables.Table.made(made, columns, found[-1:]).save("any_model/speed")
    print(tables.Table.made(made, columns, found).text())


def main() -> int:
    """Prints the table; 1 where something was trained otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--speed", action="store_true", help=f"of {', '.join(BUILDS)}, larger ones, beside torch's")
    parser.add_argument("--rounds", type=int, default=30, help="of --speed: steps of both that count")
    parser.add_argument("--seconds", type=float, default=120.0, help="of --speed: after these, three rounds will do")
    tables.savable(parser)
    asked, faults = parser.parse_args(), list[str]()
    torch.set_num_threads(1)
    (speed_table if asked.speed else trained_table)(asked, faults)
    for fault in faults:
        tell(f"WRONG: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
