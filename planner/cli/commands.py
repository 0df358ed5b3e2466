"""The planner's commands: `contraflow plan`, and `check`, `show`, `compare`, `calibrate` from their own files."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plan import Forecast, Plan, Problem
from ..plan_file import save_plan
from ..schedules import ASYNCHRONOUS, SCHEDULES
from .asynchronous import asynchronous_options, fitting, method_rows, print_methods, sentence, summary
from .common import OutputFile, among_to_dict, load_problem, print_json, problem_options, say, stop
from .compare import compare
from .options import effort_options, search_space, workload_options
from .output import own_plan_file
from .progress import SearchProgress
from .run import calibrate_command as calibrate
from .show import check, show
from .signals import EndingSignals

if TYPE_CHECKING:
    from ..search import Result

__all__ = ["calibrate", "check", "compare", "plan", "show"]


def _listed(title: str, names: Iterable[str]) -> str:
    return textwrap.fill(f"{title}: {', '.join(names)}.", 76, subsequent_indent="  ", break_on_hyphens=False)


_NAMED = 8  # devices that lack memory
_EXAMPLES = f"""\b
Examples:
  contraflow plan model.json --cluster cluster.toml --micro-batches 8 \\
      --memory-limit 8GiB --optimizer adam --time-limit 30 -o plan.json
  contraflow plan model.json --cluster cluster.toml --micro-batches 8 \\
      --schedule zb-h1 -o plan.json
  contraflow plan model.json --cluster cluster.toml --micro-batches 32 \\
      --asynchronous 2bw,stash --update-every 8 --staleness-limit 1 -o plan.json

\b
{_listed("Schedules", SCHEDULES)}
{_listed("Without a flush", ASYNCHRONOUS)}
"""


@click.command(epilog=_EXAMPLES)
@problem_options
@click.option(
    "--schedule",
    default="search",
    show_default=True,
    metavar="NAME",
    help="The search, or a named schedule on its best partition: see below.",
)
@asynchronous_options
@click.option("--explain", is_flag=True, help="Also say what was looked at, what was left out, and why.")
@click.option("-o", "--output", type=OutputFile(), help="Write the plan there; only on success. [default: plan.json]")
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    model: str,
    cluster_file: str,
    schedule: str,
    output: Path | None,
    as_json: bool,
    explain: bool,
    **options: Any,
) -> None:
    """Search for the fastest plan for MODEL that fits the memory of every device.

    MODEL is a model.json, a registry name such as gpt-small, or package.module:function; the last two are
    profiled on this machine first. The search decides the cut, the stages of every device, the pipelines, the order of
    all operations, which backwards are split and which stashes are recomputed or copied to the host. With
    --asynchronous, weights are updated without a flush, and the plan is the one with the least seconds a micro-batch in
    steady state. Ctrl-C stops it and keeps the best plan so far; so do SIGTERM and SIGHUP, with exit code 143 or 129.
    Without -o the plan is written to plan.json in the current folder.
    """
    space = search_space(schedule, options)
    output = output or own_plan_file()
    graph, cluster, workload = load_problem(model, cluster_file, ctx.obj, **workload_options(options))
    space = fitting(Problem(graph, cluster, workload), space, options)
    from ..search import plan as search  # the solver: loaded once the input is known to be good

    started = time.monotonic()
    with EndingSignals() as ending:
        with SearchProgress(f"planning {graph.name}", options["time_limit"]) as progress:
            result = search(
                graph,
                cluster,
                workload,
                space=space,
                on_progress=progress,
                **effort_options(options),
            )
        ending.report()
        _report(result, output, as_json, explain, time.monotonic() - started)


# ---------------------------------------------------------------- the answer


def _report(result: Result, output: Path, as_json: bool, explain: bool, seconds: float) -> None:
    """Prints the answer and writes the plan; exit code 1 when there is none."""
    made = result.plan
    if made is not None and made.forecast is not None and result.status in ("optimal", "feasible"):
        save_plan(made, output)
        if as_json:
            content = _summary(result, made.forecast, seconds, output) | summary(made, made.forecast)
            print_json(content | method_rows(result) | _explained(result, explain))
        else:
            _print_plan(made, made.forecast, output)
            if explain:
                print_methods(result)
                _print_considered(result)
        return
    if as_json:
        lacking = [asdict(shortage) for shortage in result.violations]
        print_json(_summary(result, None, seconds, None) | {"violations": lacking} | _explained(result, explain))
    elif explain:
        _print_considered(result)
    say(f"contraflow: {result.status}: {_why(result)}", err=True)
    stop(1)


def _summary(result: Result, forecast: Forecast | None, seconds: float, output: Path | None) -> dict[str, Any]:
    return {
        "status": result.status,
        "step_s": None if forecast is None else forecast.step_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "peak_bytes": None if forecast is None else list(forecast.peak_bytes),
        "seconds": seconds,
        "plan": None if output is None else str(output),
        "space": None if result.plan is None else result.plan.provenance.space,
        "among": among_to_dict(result.among, result.seconds),
    }


def _explained(result: Result, explain: bool) -> dict[str, Any]:
    return {"considered": [asdict(part) for part in result.considered]} if explain else {}


def _print_considered(result: Result) -> None:
    """What was looked at: least bound, best step, outcome."""
    say("considered (bound s, best s):")
    for part in result.considered:
        step = "-" if part.step_s is None else f"{part.step_s:.6g}"
        say(f"  {part.bound_s:<10.6g} {step:<10} {part.what}: {part.outcome}")


def _print_plan(made: Plan, forecast: Forecast, output: Path) -> None:
    from ..view import device_table, heading

    say(heading(made, forecast))
    if sentence(made, forecast):
        say(sentence(made, forecast))
    say(device_table(made, forecast))
    say(f"wrote {output}", err=True)


def _why(result: Result) -> str:
    """Why there is no plan: the bytes missing on each device where memory is the reason."""
    unknown = "no plan found, and none ruled out"
    reasons = [unknown if result.status == "unknown" else "no plan fits the memory"]
    reasons += [lack.missing for lack in result.violations[:_NAMED]]
    if len(result.violations) > _NAMED:
        reasons.append(f"and {len(result.violations) - _NAMED} more")
    return "; ".join(reasons)
