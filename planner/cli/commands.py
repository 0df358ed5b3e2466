"""The planner's commands: `contraflow plan`, and `check`, `show`, `compare`, `calibrate` from their own files."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..schedules import ASYNCHRONOUS, SCHEDULES
from .answer import report
from .asynchronous import asynchronous_options, fitting
from .common import OutputFile, problem_options
from .compare import compare
from .explain import why_so_long
from .families import family_options, load_asked
from .options import effort_options, schedule_names, search_space, workload_options
from .output import own_plan_file
from .progress import SearchProgress
from .run import calibrate_command as calibrate
from .show import check, show
from .signals import EndingSignals

if TYPE_CHECKING:
    from ..problem import SearchSpace
    from ..search import Result
    from .families import Asked

__all__ = ["calibrate", "check", "compare", "plan", "show"]


def _listed(title: str, names: Iterable[str]) -> str:
    return textwrap.fill(f"{title}: {', '.join(names)}.", 76, subsequent_indent="  ", break_on_hyphens=False)


_EXPLAIN = "Also say what was looked at and left out, what devices wait for, and what other machines would give."
_EXAMPLES = f"""\b
Examples:
  contraflow plan model.json --cluster cluster.toml --micro-batches 8 \\
      --memory-limit 8GiB --optimizer adam --time-limit 30 -o plan.json
  contraflow plan model.json --cluster cluster.toml --micro-batches 8 \\
      --schedule zb-h1 -o plan.json
  contraflow plan family.json --cluster cluster.toml --samples 512 \\
      --micro-batch-size 1,2,4 --team 1,2,4,8 -o plan.json
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
    shell_complete=schedule_names,
    help="The search, or a named schedule on its best partition: see below; FILE.csv: orders as torch's.",
)
@family_options
@asynchronous_options
@click.option("--explain", is_flag=True, help=_EXPLAIN)
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

    MODEL is a model.json, a family of them (see profile), a registry name such as gpt-small, or
    package.module:function; the last two are profiled on this machine first. The search decides the cut, the stages of
    every device, the pipelines, the order of all operations, which backwards are split and which stashes are recomputed
    or copied to the host; of a family also the ranks of a team and, with --samples, the micro-batch size. With
    --asynchronous, weights are updated without a flush, and the plan is the one with the least seconds a micro-batch in
    steady state. Ctrl-C stops it and keeps the best plan so far; so do SIGTERM and SIGHUP, with exit code 143 or 129.
    Without -o the plan is written to plan.json in the current folder.
    """
    given = schedule if schedule.endswith(".csv") else None
    space = search_space("search" if given else schedule, options)
    output = output or own_plan_file()
    asked = load_asked(model, cluster_file, ctx.obj, options, workload_options(options))
    space = fitting(asked.problems()[0], space, options)
    started = time.monotonic()
    with EndingSignals() as ending:
        with SearchProgress(f"planning {asked.family.name}", options["time_limit"]) as progress:
            result = _found(asked, given, space, effort_options(options), progress)
        ending.report()
        why = why_so_long(result, space, effort_options(options)) if explain else None
        report(result, output, as_json, why, time.monotonic() - started)


def _found(
    asked: Asked, given: str | None, space: SearchSpace, effort: dict[str, Any], progress: SearchProgress
) -> Result:
    """What the search finds, or the plan of the orders in a file."""
    from ..search import Effort, plan_family, plan_layout  # the solver: loaded once the input is known to be good

    if given is None:
        return plan_family(*asked, space, Effort(**effort), progress)
    from ..interchange import read_torch_csv

    problem = asked.problem()
    return plan_layout(problem.model, problem.cluster, problem.workload, read_torch_csv(given))
