"""What the executor does on a GPU: equality with one process, speed beside a plain loop, offloads, a memory cap.

    python benchmarks/gpu.py                          all of it, on the first GPU
    python benchmarks/gpu.py --only capped            one part
    python benchmarks/gpu.py --device cpu --quick     its logic on tiny models, without a GPU

Prints a Markdown table a part, and on a GPU keeps it in benchmarks/results/gpu (shown in docs/cuda.md, see tables.py)
and the parts' verdicts in gpu.json there. A part that fails is named, and the others go on; without a GPU each is named
as skipped. Exit code 1 when a part fails, when a run differs from plain torch, when a capped run does not fit, or when
the plan that should not fit does. `make gpu` runs this, and before it the tests that need a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import torch
from gpu_speed import PlainLoop
from tables import RESULTS, Table, origin

from contraflow.executor.basics.errors import ExecutionError
from contraflow.executor.measure.gpus import found_gpus
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.models import resolve
from contraflow.planner import Cluster, ModelGraph, Plan, SearchSpace, Workload, plan
from contraflow.planner.graph import Candidate, stash_policy
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.problem.cluster import DeviceType, Link, NodeGroup

GIB = 2**30
HOST_LINK = Link(1e9, 20e-6)
"""Assumed where there is none to measure."""


@dataclass(frozen=True)
class Setting:
    """Where and how large."""

    device: str
    quick: bool
    traces: str | None = None

    def trace(self, name: str) -> Path | None:
        """Where the trace of a run goes, if anywhere."""
        return None if self.traces is None else Path(self.traces) / f"{name}.json"

    @property
    def total_bytes(self) -> int:
        """The device's memory."""
        return torch.cuda.get_device_properties(0).total_memory if self.device == "cuda" else 64 * GIB

    def profiled(self, model: str, samples: int) -> ModelGraph:
        """The model, measured here."""
        return ModelGraph.from_dict(profile_model(resolve(model), samples, self.device, rounds=1 if self.quick else 5))

    def cluster(self, devices: int, host_link: Link = HOST_LINK) -> Cluster:
        """Devices like this one."""
        kind = DeviceType("this", self.total_bytes)
        return Cluster((NodeGroup(1, devices, kind, Link(1e10, 20e-6), host_link=host_link),))


Row = tuple[str, ...]


# ------------------------------------------------------------------ equality


def equality(setting: Setting) -> Iterator[Row]:
    """Several ranks on one device, as processes and as threads, against plain torch on the same device."""
    deterministic()
    yield "model, schedule, transport", "ranks", "largest difference of a tensor", "equal"
    schedules = {"gpt-tiny": ("gpipe", "1f1b", "chimera", "search"), "resnet-tiny": ("gpipe", "chimera")}
    for model in ("gpt-tiny",) if setting.quick else schedules:
        graph = setting.profiled(model, 2)
        expected = train_reference(resolve(model), 4, 2, "momentum", 3, device=setting.device)
        for schedule in ("1f1b",) if setting.quick else schedules[model]:
            workload, space = Workload(4, "momentum"), SearchSpace(schedule=schedule, separate_backward=False)
            found = plan(graph, setting.cluster(2), workload, space, time_limit=5).plan
            assert found is not None, f"no plan for {model}, {schedule}"
            for transport in ("threads", "processes"):
                result = execute(found, 3, transport=transport, device=setting.device, return_state=True)
                assert result.state is not None
                worst = max(
                    float((result.state[name] - tensor).double().norm() / tensor.double().norm().clamp(min=1e-6))
                    for name, tensor in expected.state.items()
                )
                good = worst <= 1e-5
                yield f"{model}, {schedule}, {transport}", "2", f"{worst:.1e}", "yes" if good else "NO"


# ------------------------------------------------------------------ overlap


def host_link(setting: Setting) -> Link:
    """Between this device and its host, as `contraflow cluster detect` measures it."""
    return found_gpus(5).host_link if setting.device == "cuda" else HOST_LINK


def one_device(graph: ModelGraph, cluster: Cluster, workload: Workload, policy: str, in_turn: bool = False) -> Plan:
    """On one device with one policy for every stash of the only stage: all forwards, then all backwards, or in turn."""
    names = tuple(layer.name for layer in graph.layers)
    every = tuple(range(workload.micro_batches))
    problem = Problem(graph, cluster, workload)
    candidate = Candidate(problem, (names,), (Pipeline((0,), (0,), every),), ((policy,),))
    again = [Kind.R] if stash_policy(policy).remade else []
    if in_turn:
        return assemble(candidate, [[Op(kind, 0, m) for m in every for kind in (Kind.F, *again, Kind.B)]])
    backwards = [Op(kind, 0, m) for m in every for kind in (*again, Kind.B)]
    return assemble(candidate, [[*(Op(Kind.F, 0, m) for m in every), *backwards]])


def overlap(setting: Setting) -> Iterator[Row]:
    """One device: what moving every stash to the host and back costs, beside keeping and recomputing them."""
    yield (
        "model, stashes",
        "step",
        "of keep",
        "forecast",
        "copied a step",
        "copies alone",
        "peak",
        "reserved",
        "peak forecast",
    )
    model, samples, count = ("gpt-tiny", 2, 4) if setting.quick else ("gpt2", 4, 6)
    graph, link = setting.profiled(model, samples), host_link(setting)
    kept_s = 0.0
    for policy in ("keep", "recompute", "selective", "offload"):
        made = one_device(graph, setting.cluster(1, link), Workload(count), policy)
        result = execute(
            made, 4 if setting.quick else 10, transport="threads", device=setting.device, trace=setting.trace(policy)
        )
        kept_s = kept_s or result.step_s
        copied = 2 * count * sum(layer.stash_bytes for layer in graph.layers) if policy == "offload" else 0
        peak = (result.allocated_bytes or result.peak_bytes)[0]
        reserved = gib(result.reserved_bytes[0]) if result.reserved_bytes else "-"
        yield (
            f"{model}, {policy}", f"{1e3 * result.step_s:.1f} ms", f"{result.step_s / kept_s:.2f}",
            f"{1e3 * result.forecast_step_s:.1f} ms", gib(copied), f"{1e3 * link.occupation_s(copied):.1f} ms",
            gib(peak), reserved, gib(result.forecast_peak_bytes[0]),
        )  # fmt: skip


# ------------------------------------------------------------------ speed


PRECISIONS = {"fp32": torch.float32, "mixed": torch.bfloat16}


def speed(setting: Setting) -> Iterator[Row]:
    """One device, every stash kept: a plain loop of torch's, eager and through its compiler, against ours."""
    yield "model, precision, programs", "torch", "ours", "torch / ours", "forecast", "forecast / ours"
    steps = 3 if setting.quick else 10
    cases = (
        [("gpt-tiny", 2, (False, True))] if setting.quick else [("gpt2", 4, (False,)), ("gpt-small", 64, (False, True))]
    )
    for (model, samples, programs), precision in product(cases, PRECISIONS):
        layered = resolve(model)
        profiled = profile_model(layered, samples, setting.device, dtype=PRECISIONS[precision])
        made = one_device(
            ModelGraph.from_dict(profiled), setting.cluster(1), Workload(8, "adam", precision), "keep", in_turn=True
        )
        for compiled in programs:
            result = execute(made, steps, transport="threads", device=setting.device, compiled=compiled)
            half = precision == "mixed"
            torchs = PlainLoop(layered, samples, 8, half, compiled, setting.device).step_s(steps)
            yield (
                f"{model}, {precision}, {'compiled' if compiled else 'as traced'}", f"{1e3 * torchs:.1f} ms",
                f"{1e3 * result.step_s:.1f} ms", f"{torchs / result.step_s:.2f}",
                f"{1e3 * result.forecast_step_s:.1f} ms", f"{result.forecast_step_s / result.step_s:.2f}",
            )  # fmt: skip


# ------------------------------------------------------------------ a model that does not fit


def capped(setting: Setting) -> Iterator[Row]:
    """A GPT-2 of 1.39e9 parameters trained in less memory than one micro-batch takes when every stash is kept."""
    yield "plan", "cap", "peak forecast", "peak", "step", "forecast", "losses", "runs"
    model, samples, count, optimizer = ("gpt-tiny", 2, 8, "adam") if setting.quick else ("gpt2-64", 2, 8, "adam")
    graph, cluster = setting.profiled(model, samples), setting.cluster(1, host_link(setting))
    kept = one_device(graph, cluster, Workload(count, optimizer), "keep", in_turn=not setting.quick)
    assert kept.forecast is not None
    static = sum(layer.parameter_bytes for layer in graph.layers) * 4  # parameters, gradients, two of Adam's
    limit = static + int(0.6 * (kept.forecast.peak_bytes[0] - static))
    cap = limit + (limit // 10 if setting.quick else GIB)  # rounding, workspaces
    workload = Workload(count, optimizer, memory_limit_bytes=limit)
    fitting = plan(
        graph, cluster, workload, SearchSpace(separate_backward=False), time_limit=10 if setting.quick else 30
    )
    assert fitting.plan is not None, f"no plan within {gib(cap)}: {fitting.violations}"
    if setting.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(cap / setting.total_bytes)
    yield capped_row("searched", fitting.plan, cap, setting, fits=True)
    yield capped_row("all stashes kept", kept, cap, setting, fits=False)  # last: what fails may leave memory behind


def capped_row(name: str, made: Plan, cap: int, setting: Setting, fits: bool) -> Row:
    """One run below the cap, or its failure. Without a GPU nothing enforces the cap: then the peak decides."""
    assert made.forecast is not None
    forecast = made.forecast
    head = (name, gib(cap), gib(forecast.peak_bytes[0]))
    try:
        result: RunResult | None = execute(
            made, 4, transport="threads", device=setting.device, self_check=setting.quick
        )
    except (ExecutionError, torch.OutOfMemoryError) as error:
        if "out of memory" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which hold what was allocated
        result = None
    if result is None:
        gc.collect()
        return *head, "-", "-", f"{forecast.step_s:.3f} s", "-", "out of memory" + (" (WRONG)" if fits else "")
    peak = (result.allocated_bytes or result.peak_bytes)[0]
    losses = " ".join(f"{loss:.3f}" for loss in result.losses)
    verdict = "yes" if peak <= cap else "over the cap"
    wrong = " (WRONG)" if (peak <= cap) is not fits else ""
    return *head, gib(peak), f"{result.step_s:.3f} s", f"{forecast.step_s:.3f} s", losses, verdict + wrong


# ------------------------------------------------------------------


def gib(count: float) -> str:
    """Bytes for people."""
    return f"{count / GIB:.2f} GiB" if count >= GIB / 100 else f"{count / 2**20:.2f} MiB"


PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "equality": equality,
    "speed": speed,
    "overlap": overlap,
    "capped": capped,
}


def deterministic() -> None:
    """What makes two runs on a GPU comparable to round-off."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


def run(name: str, setting: Setting) -> int:
    """Prints one part's rows and on a GPU saves them; 1 when something is wrong with them."""
    print(f"\n{name}: {str(PARTS[name].__doc__).splitlines()[0]}\n")
    rows: list[Row] = []
    for row in PARTS[name](setting):
        print("| " + " | ".join(row) + " |", flush=True)
        if not rows:
            print("|" + " --- |" * len(row))
        elif setting.device == "cuda" and not setting.quick:
            where = replace(origin(), note=f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
            Table.made(where, list(rows[0]), [list(row)]).save(f"gpu/{name}")
        rows.append(row)
    wrong = [row for row in rows if row[-1] == "NO" or row[-1].endswith("(WRONG)")]
    for row in wrong:
        print(f"\nWRONG: {' | '.join(row)}")
    return int(bool(wrong))


def run_all(names: list[str], arguments: list[str]) -> dict[str, str]:
    """Every part in a process of its own, since an error on a device ends all that its process does there."""
    found = {}
    for name in names:
        ended = subprocess.run([sys.executable, __file__, *arguments, "--only", name], check=False).returncode
        found[name] = "fine" if ended == 0 else f"failed, exit code {ended}"
    return found


def main() -> int:
    """Prints the tables; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--only", choices=sorted(PARTS))
    parser.add_argument("--traces", metavar="FOLDER", help="write traces of the part `overlap` there")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        for name in PARTS if arguments.only is None else (arguments.only,):
            print(f"{name}: skipped, torch sees no CUDA device (--device cpu --quick tests the script's logic)")
        return 0
    if arguments.only is not None:
        return run(arguments.only, Setting(arguments.device, arguments.quick, arguments.traces))
    found = run_all(list(PARTS), sys.argv[1:])
    for name, verdict in found.items():
        print(f"\n{name}: {verdict}")
    if arguments.device == "cuda":
        about = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "origin": asdict(origin())}
        (RESULTS / "gpu.json").write_text(json.dumps({**about, "parts": found}, indent=1) + "\n")
    return int(any(verdict != "fine" for verdict in found.values()))


if __name__ == "__main__":
    sys.exit(main())
