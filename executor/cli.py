"""The executor's commands: `contraflow execute` and `contraflow profile`. Torch is imported when they run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..planner.cli_common import OutputFile, SecondsLimit, print_json, stop
from ..planner.errors import InputError
from ..planner.files import write_text
from ..planner.plan_file import load_plan
from ..planner.units import format_bytes
from .cli_training import training_of, training_options

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..models import Dataset, LayeredModel
    from .launch import RunResult

__all__ = ["execute", "profile"]

DTYPES = ("float32", "float64", "bfloat16", "float16")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@click.command(
    epilog="""\b
Examples:
  contraflow execute plan.json --steps 30 --trace run.json
  torchrun --nproc-per-node 2 -m contraflow execute plan.json --steps 30
"""
)
@click.argument("plan_file", metavar="PLAN")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Optimizer steps.")
@click.option("--model", metavar="MODEL", help="package.module:function, for a model not in the registry.")
@click.option("--data", metavar="NAME", help="A data set, as stdlib:64 or digits. [default: the model's]")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Parameters, data, dropout.",
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), help="Of the parameters. [default: float32; of a mixed plan bfloat16]"
)
@click.option(
    "--engine",
    type=click.Choice(("auto", "graph", "eager")),
    default="auto",
    show_default=True,
    help="What runs the stages: graphs of them, or torch's autograd. auto: graphs where they are right.",
)
@click.option(
    "--transport",
    type=click.Choice(("processes", "threads")),
    default="processes",
    show_default=True,
    help="A gloo process per device, or all devices as threads of one process.",
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    default="cpu",
    show_default=True,
    help="Where stages run. cuda: over NCCL where every rank has a GPU, else messages go through the host.",
)
@click.option("--compile", "compiled", is_flag=True, help="Run the stage programs through torch's compiler.")
@click.option("--trace", type=OutputFile(), metavar="FILE", help="Write what the steps did, op by op.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Save there at the end.",
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in DIR, whatever plan made it.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SecondsLimit(),
    default=300.0,
    show_default=True,
    help="End the run when a rank makes no progress for so long.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines.")
@training_options
def execute(plan_file: str, dtype: str | None, as_json: bool, **options: Any) -> None:
    """Train the model of PLAN as the plan says, one process per device, and measure it.

    PLAN is a plan.json. A model of the registry is found by its name; any other must be given again with
    --model and match the plan. Under torchrun the processes are joined instead of spawned.
    """
    plan = load_plan(plan_file)
    if options["resume"] and options["checkpoint"] is None:
        raise click.UsageError("--resume needs --checkpoint DIR")
    training = training_of(options)
    import torch

    from . import launch

    chosen = None if dtype is None else getattr(torch, dtype)
    first_rank = os.environ.get("RANK", "0") == "0"
    with _StepProgress(options["steps"], quiet=not first_rank) as progress, _notices_as_lines(first_rank):
        result = _run(lambda: launch.execute(plan, dtype=chosen, on_step=progress, training=training, **options))
    if not first_rank:
        return
    if as_json:
        print_json(_summary(result))
    else:
        _print_table(result)
    for path in (options["trace"], options["checkpoint"]):
        if path is not None:
            click.echo(f"wrote {path}", err=True)


def _run(work: Any) -> RunResult:
    """The result; a failed rank or program ends the command with one line and exit code 1."""
    from .errors import ExecutionError
    from .selfcheck import ProgramMismatch
    from .tracing import TraceError

    try:
        result: RunResult = work()
    except (ExecutionError, ProgramMismatch, TraceError) as error:
        _fail(error)
    except KeyboardInterrupt:
        _fail("interrupted")
    except SystemExit as ending:  # a SIGTERM, after everything has been cleaned up
        click.echo("contraflow: terminated", err=True)
        raise SystemExit(ending.code) from None
    return result


def _fail(reason: object) -> NoReturn:
    click.echo(f"contraflow: {reason}", err=True)
    stop(1)


@contextmanager
def _notices_as_lines(shown: bool = True) -> Iterator[None]:
    """Notices about engines go to stderr, one line each; other warnings stay as they are."""
    import warnings

    from .engines import EngineNotice

    with warnings.catch_warnings():
        warnings.simplefilter("always", EngineNotice)
        show = warnings.showwarning

        def line(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, EngineNotice):
                show(message, category, *rest, **named)
            elif shown:
                click.echo(f"contraflow: {message}", err=True)

        warnings.showwarning = line
        yield


class _StepProgress:
    """A bar on stderr; called with (step, loss, seconds)."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self._steps = steps
        self._quiet = quiet
        self._progress: Progress | None = None

    def __enter__(self) -> _StepProgress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True, quiet=self._quiet)
        self._progress = Progress(*columns, TextColumn("{task.description}"), console=console)
        self._task = self._progress.add_task("starting", total=self._steps)
        self._progress.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._progress is not None
        if kind is not None:
            self._progress.update(self._task, visible=False)  # an error is one line
        self._progress.stop()

    def __call__(self, step: int, loss: float, seconds: float) -> None:
        assert self._progress is not None
        self._progress.update(self._task, advance=1, description=f"loss {loss:.4f}  {1e3 * seconds:.1f} ms/step")


def _summary(result: RunResult) -> dict[str, Any]:
    more: dict[str, Any] = {"grad_norms": list(result.grad_norms)} if result.grad_norms else {}
    if result.evaluations:
        more["evaluations"] = {str(step): loss for step, loss in result.evaluations.items()}
    if result.allocated_bytes is not None:
        more["allocated_bytes"] = list(result.allocated_bytes)
    return {
        "losses": list(result.losses),
        **more,
        "step_s": result.step_s,
        "forecast_step_s": result.forecast_step_s,
        "peak_bytes": list(result.peak_bytes),
        "forecast_peak_bytes": list(result.forecast_peak_bytes),
    }


def _print_table(result: RunResult) -> None:
    """Losses, then forecast and measurement side by side."""
    from rich.console import Console
    from rich.table import Table

    last = result.first_step + len(result.losses)
    click.echo(f"steps {result.first_step + 1}-{last}: loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f}")
    for step, loss in result.evaluations.items():
        click.echo(f"after step {step}: held-out loss {loss:.4f}")
    table = Table("", "forecast", "measured", "measured / forecast")
    rows: list[tuple[str, float, float, Callable[[float], str]]] = [
        ("step time", result.forecast_step_s, result.step_s, lambda seconds: f"{1e3 * seconds:.2f} ms")
    ]
    for device, (planned, peak) in enumerate(zip(result.forecast_peak_bytes, result.peak_bytes, strict=True)):
        rows.append((f"peak memory, device {device}", planned, peak, format_bytes))
    for name, forecast, measured, text in rows:
        share = f"{measured / forecast:.3f}" if forecast > 0 else "-"
        table.add_row(name, text(forecast), text(measured), share)
    Console().print(table)


# ---------------------------------------------------------------- profile


@click.command(
    epilog="""\b
Examples:
  contraflow profile gpt-small --micro-batch-size 4 -o model.json
  contraflow profile gpt-small --load 2 --cluster cluster.toml -o model.json
  contraflow profile llama-70b --device H100-80GB --precision bf16 -o model.json
"""
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--micro-batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Samples.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="DEVICE",
    help="cpu or cuda: measure here. A preset, as A100-80GB: costs from FLOPs and bytes, nothing is run.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="16 bit: as a mixed plan runs, under autocast. tf32, on presets only: fp32 with rounded matrix products.",
)
@click.option(
    "--efficiency",
    type=float,
    metavar="SHARE",
    help="Of a preset's peak FLOP/s and bandwidth that is reached. [default: 0.5]",
)
@click.option("--data", metavar="NAME", help="What to feed it. [default: the model's own]")
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="As a process of execute has."
)
@click.option(
    "--load",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that will train at a time: as many measure side by side. [default: cpu: what the cores hold, at "
    "most 8; cuda: 1]",
)
@click.option(
    "--cluster",
    type=OutputFile(),
    metavar="FILE",
    help="Also measure this computer as --load processes that talk through gloo, and write cluster.toml there.",
)
@click.option("-o", "--output", type=OutputFile(), help="Write model.json there. [default: to stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print the model as one JSON object.")
def profile(
    model: str,
    micro_batch_size: int,
    device: str,
    precision: str,
    efficiency: float | None,
    data: str | None,
    threads: int,
    load: int | None,
    cluster: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure every layer of MODEL on this machine: times, parameters, stashes, outputs, workspace.

    MODEL is a registry name, such as gpt-small, or package.module:function returning layers. With a device preset
    nothing is run and nothing allocated: times are estimates from the preset's peaks, bytes are exact. A plan of a
    model in 16 bit wants --precision mixed.
    """
    if cluster is not None and not (device == "cpu" and load != 1):
        raise InputError(f"--cluster measures at least 2 processes on the cpu, not --load {load} on {device}")
    if _is_local(device):
        if efficiency is not None:
            raise InputError(f"--efficiency is for device presets, not for measuring on {device}")
        content = measure(model, micro_batch_size, device, threads, data, precision, load)
    elif load is not None:
        raise InputError(f"--load is for measuring here, not for the preset {device}")
    else:
        content = estimate(model, micro_batch_size, device, data, precision, efficiency)
    if output is not None:
        write_text(output, json.dumps(content, indent=1) + "\n")
        click.echo(f"wrote {output}", err=True)
    if cluster is not None:
        _measure_cluster(threads, load, cluster)
    if as_json:
        print_json(content)
    elif output is None:
        click.echo(json.dumps(content, indent=1))


def _measure_cluster(threads: int, load: int | None, target: Path) -> None:
    """Writes cluster.toml of this computer's processes. Raises InputError where there are fewer than two."""
    from .machine import measure_machine
    from .profile import default_load

    processes = load or default_load("cpu", threads)
    write_text(target, measure_machine(processes, threads).toml(processes))
    click.echo(f"wrote {target}", err=True)


def measure(
    model: str,
    micro_batch_size: int,
    device: str = "cpu",
    threads: int = 1,
    data: str | None = None,
    precision: str = "fp32",
    load: int | None = None,
) -> dict[str, Any]:
    """The content of model.json for a model's name, measured here with progress on stderr.

    `load`: as `profile_model` takes it (default: `default_load`). Raises InputError: unknown model or data, no such
    device here, or a model that cannot be measured.
    """
    import torch

    from .analytic import PRECISIONS
    from .profile import default_load, profile_model

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {device}: torch sees no CUDA device here")
    if precision == "tf32":
        raise InputError(f"--precision tf32 is for device presets, not for measuring on {device}")
    dtype = PRECISIONS[precision]
    copies = load or default_load(device, threads)

    def work(found: LayeredModel, source: Dataset, tell: Callable[[str], None]) -> dict[str, Any]:
        return profile_model(found, micro_batch_size, device, threads, tell, data=source, dtype=dtype, load=copies)

    return _profiled(model, data, work)


def estimate(
    model: str,
    micro_batch_size: int,
    device: str,
    data: str | None = None,
    precision: str = "fp32",
    efficiency: float | None = None,
) -> dict[str, Any]:
    """The content of model.json for a model's name on a device preset, with progress on stderr.

    Raises InputError: unknown model, data or preset, a precision that the preset lacks, an efficiency that is no share.
    """
    from ..planner.presets import PRESETS

    if device not in PRESETS:
        known = ", ".join(sorted(PRESETS.keys() - {"cpu"}))
        raise InputError(f"--device {device}: unknown; measure on cpu or cuda, or take a preset: {known}")
    from .analytic import EFFICIENCY, analytic_profile

    share = EFFICIENCY if efficiency is None else efficiency

    def work(found: LayeredModel, source: Dataset, tell: Callable[[str], None]) -> dict[str, Any]:
        return analytic_profile(found, micro_batch_size, PRESETS[device], precision, share, tell, source)

    return _profiled(model, data, work)


def _profiled(
    model: str,
    data: str | None,
    work: Callable[[LayeredModel, Dataset, Callable[[str], None]], dict[str, Any]],
) -> dict[str, Any]:
    """Finds model and data, then does the work with progress on stderr."""
    from rich.console import Console

    from ..models import resolve
    from .errors import ExecutionError
    from .selfcheck import ProgramMismatch
    from .tracing import TraceError
    from .validate import find_data

    console = Console(stderr=True)
    try:
        found = resolve(model)
        source = find_data(found, data)
        with console.status(f"profiling {model}") as status, _notices_as_lines():
            return work(found, source, lambda text: status.update(f"profiling {model}: {text}"))
    except (TraceError, ProgramMismatch) as error:
        raise InputError(str(error)) from None
    except ExecutionError as error:
        _fail(error)


def _is_local(device: str) -> bool:
    """Whether the device is one of this machine, by its name in torch."""
    return device == "cpu" or device.split(":")[0] == "cuda"
