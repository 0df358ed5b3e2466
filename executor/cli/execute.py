"""`contraflow execute`. Torch is imported when it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ...planner.basics import format_bytes
from ...planner.cli import A_FILE, EndingSignals, print_json, say, stop
from ...planner.plan_file import load_plan
from ...planner.problem import FLUSH
from ..basics import RunOptions
from .lines import fail, notices_as_lines
from .options import gathered, options_of

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..run import RunResult


@click.command(
    epilog="""\b
Examples:
  contraflow execute plan.json --steps 30 --trace run.json
  torchrun --nproc-per-node 2 -m contraflow execute plan.json --steps 30
"""
)
@click.argument("plan_file", metavar="PLAN", type=A_FILE)
@options_of(RunOptions)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines.")
def execute(plan_file: str, as_json: bool, **values: Any) -> None:
    """Train the model of PLAN as the plan says, one process per device, and measure it.

    PLAN is a plan.json. A model of the registry is found by its name; any other must be given again with
    --model and match the plan. Under torchrun the processes are joined instead of spawned.

    An asynchronous plan runs its updates in one go, without a flush, from evaluation to evaluation.
    """
    plan = load_plan(plan_file)
    if values["transport"] == "threads" and os.environ.get("WORLD_SIZE", "1") != "1":
        raise click.UsageError(
            "--transport threads runs all devices in one process, but WORLD_SIZE says there are more"
        )
    first_rank = os.environ.get("RANK", "0") == "0"
    unit = "step" if plan.weights == FLUSH else "update"
    progress = _StepProgress(values["steps"], unit, quiet=not first_rank or values["evaluate_only"])
    options = gathered(RunOptions, values, on_step=progress)
    with EndingSignals("nothing has been trained"):
        from ..run import run_plan
    with progress, notices_as_lines(first_rank):
        result = _run(first_rank, lambda: run_plan(plan, options))
    if not first_rank:
        return
    if as_json:
        print_json(_summary(result))
    else:
        _print_table(result, unit)
    for path in (values["trace"], values["checkpoint"]):
        if path is not None and result.losses:
            say(f"wrote {path}", err=True)
    if result.excesses:
        fail("above the planned peak: " + "; ".join(map(str, result.excesses)))


def _run(first_rank: bool, work: Callable[[], RunResult]) -> RunResult:
    """The result; a failed rank or program ends the command with one line and exit code 1."""
    from ..basics import ExecutionError, RunError, SilentExit
    from ..stage import ProgramMismatch, TraceError

    try:
        return work()
    except (ExecutionError, RunError, ProgramMismatch, TraceError) as error:
        if getattr(error, "told", False):
            stop(2 if isinstance(error, RunError) else 1)
        if isinstance(error, RunError):
            raise
        fail(error)
    except KeyboardInterrupt as ending:
        _end(first_rank, ending, "interrupted", signal.SIGINT)
    except SilentExit:
        raise
    except SystemExit as ending:  # a SIGTERM, after everything has been cleaned up
        _end(first_rank, ending, "terminated", signal.SIGTERM)


def _end(first_rank: bool, ending: BaseException, how: str, number: int) -> NoReturn:
    """Ends the command as a signal has ended its run; the first rank says what is left of it."""
    from ..run import Interrupted, Terminated

    if not isinstance(ending, Interrupted | Terminated):
        fail(how, 128 + number)
    if first_rank:
        say(f"contraflow: {how} {ending}", err=True)
    stop(128 + number)


class _StepProgress:
    """A bar on stderr; called with (step, loss, seconds)."""

    def __init__(self, steps: int, unit: str, quiet: bool) -> None:
        self._steps, self._unit = steps, unit
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
            self._progress.console.quiet = not self._progress.console.is_terminal  # nor an empty line before it
        self._progress.stop()

    def __call__(self, step: int, loss: float, seconds: float) -> None:
        assert self._progress is not None
        self._progress.update(
            self._task, advance=1, description=f"loss {loss:.4f}  {1e3 * seconds:.1f} ms/{self._unit}"
        )


def _summary(result: RunResult) -> dict[str, Any]:
    more: dict[str, Any] = {"grad_norms": list(result.grad_norms)} if result.grad_norms else {}
    if result.left_out:
        more["left_out"] = list(result.left_out)
    if result.evaluations:
        more["evaluations"] = {str(step): loss for step, loss in result.evaluations.items()}
    if result.allocated_bytes is not None:
        more["allocated_bytes"] = list(result.allocated_bytes)
    if result.reserved_bytes is not None:
        more["reserved_bytes"] = list(result.reserved_bytes)
    return {
        "losses": list(result.losses),
        **more,
        "step_s": result.step_s,
        "forecast_step_s": result.forecast_step_s,
        "peak_bytes": list(result.peak_bytes),
        "forecast_peak_bytes": list(result.forecast_peak_bytes),
    }


def _print_table(result: RunResult, unit: str) -> None:
    """Losses, then forecast and measurement side by side."""
    from rich.console import Console
    from rich.table import Table

    last = result.first_step + len(result.losses)
    if result.losses:
        say(f"{unit}s {result.first_step + 1}-{last}: loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f}")
    if result.left_out:
        some = ", ".join(str(step) for step in result.left_out[:5]) + (", ..." if len(result.left_out) > 5 else "")
        count = f"{len(result.left_out)} of {len(result.losses)} {unit}s"
        click.echo(f"left out {count}, in which something was not finite: {some}")
    for step, loss in result.evaluations.items():
        say(f"after {unit} {step}: held-out loss {loss:.4f}")
    if not result.losses:
        return
    table = Table("", "forecast", "measured", "measured / forecast")
    rows: list[tuple[str, float, float, Callable[[float], str]]] = [
        (f"{unit} time", result.forecast_step_s, result.step_s, lambda seconds: f"{1e3 * seconds:.2f} ms")
    ]
    for device, (planned, peak) in enumerate(zip(result.forecast_peak_bytes, result.peak_bytes, strict=True)):
        rows.append((f"peak memory, device {device}", planned, peak, format_bytes))
    for name, forecast, measured, text in rows:
        share = f"{measured / forecast:.3f}" if forecast > 0 else "-"
        table.add_row(name, text(forecast), text(measured), share)
    Console().print(table)
    for device, pair in enumerate(zip(result.allocated_bytes or (), result.reserved_bytes or (), strict=True)):
        allocated, reserved = map(format_bytes, pair)
        gaps = 1 - pair[0] / pair[1] if pair[1] > 0 else 0.0
        say(f"allocator, device {device}: {allocated} of {reserved} reserved, {gaps:.1%} of it gaps")
