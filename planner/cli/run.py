"""What becomes of a run: `contraflow calibrate`, and the table of `contraflow compare --measured`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..basics import format_bytes, format_seconds, write_text
from ..plan_file import load_plan
from ..problem import ModelGraph
from ..runs import Measured, RunTrace, calibrate, load_trace, measured
from .common import OutputFile, print_json, say

if TYPE_CHECKING:
    from ..plan import Plan
    from ..runs import Comparison

_EXAMPLE = """\b
Example:
  contraflow execute plan.json --steps 30 --trace run.json
  contraflow calibrate model.json run.json --plan plan.json -o measured.json
  contraflow plan measured.json --cluster cluster.toml --micro-batches 8 -o better.json
"""


@click.command("calibrate", epilog=_EXAMPLE)
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("-o", "--output", type=OutputFile(), help="Write the model there. [default: to stdout]")
@click.option("--plan", "plan_file", metavar="FILE", help="The runs' plan.json: also say what its forecast becomes.")
@click.option(
    "--no-overhead", is_flag=True, help="Leave out what devices spend between operations: launches, posting messages."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines.")
def calibrate_command(
    model: Path, runs: tuple[str, ...], output: Path | None, plan_file: str | None, no_overhead: bool, as_json: bool
) -> None:
    """Fold the times that RUNs measured into the layer costs of MODEL.

    MODEL is a model.json, a RUN what `execute --trace` wrote. Every layer of a stage is scaled by what the stage
    took against what its layers say; runs of other plans of the same model tell the layers of a stage apart. The table
    of the stages goes to stderr.
    """
    graph = ModelGraph.load(model)
    traces = [load_trace(run) for run in runs]
    found = calibrate(graph, traces, not no_overhead)
    steps = None if plan_file is None else _steps(plan_file, graph, found, traces)
    rows = measured(graph, traces, not no_overhead)
    content = json.dumps(found.to_dict(), indent=1) + "\n"
    if output is not None:
        write_text(output, content)
    if as_json:
        stages = [_row(row, graph) for row in rows]
        print_json({"stages": stages, "steps": steps, "file": None if output is None else str(output)})
        return
    _print_stages(rows, graph)
    if steps is not None:
        text = {key: format_seconds(seconds) for key, seconds in steps.items()}
        say("step: {profiled} profiled, {calibrated} calibrated, {measured} measured".format(**text), err=True)
    if output is None:
        click.echo(content, nl=False)
    else:
        say(f"wrote {output}", err=True)


def _steps(plan_file: str, before: ModelGraph, after: ModelGraph, traces: Sequence[RunTrace]) -> dict[str, float]:
    """The plan's step under both models, and as measured (median over the runs).

    Of an asynchronous plan the first run as a whole, and those of its length.
    """
    from statistics import median

    from ..simulate import evaluate

    plan = load_plan(plan_file)
    plans = [trace.require_plan(plan) for trace in traces]
    ran, counts = plans[0], [p.problem.workload.micro_batches for p in plans]
    alike = [trace for trace, count in zip(traces, counts, strict=True) if count == counts[0]]
    return {
        "profiled": evaluate(ran, before).step_s,
        "calibrated": evaluate(ran, after).step_s,
        "measured": median(trace.step_s for trace in alike),
    }


def _row(row: Measured, model: ModelGraph) -> dict[str, Any]:
    profiled = row.profiled_s(model)
    return {
        "run": row.run,
        "stage": row.stage,
        "kind": row.kind.name,
        "count": row.count,
        "profiled_s": profiled,
        "measured_s": row.seconds,
        "overhead_s": row.overhead_s,
        "ratio": row.seconds / profiled if profiled > 0 else None,
    }


def _print_stages(rows: Sequence[Measured], model: ModelGraph) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "stage", "op", *(_right(x) for x in ("ops", "profiled", "measured", "around it", "ratio")))
    for row in rows:
        content = _row(row, model)
        table.add_row(
            str(row.run),
            str(row.stage),
            row.kind.name,
            str(row.count),
            format_seconds(content["profiled_s"]),
            format_seconds(row.seconds),
            format_seconds(row.overhead_s),
            _ratio(row.seconds, content["profiled_s"]),
        )
    Console(stderr=True, highlight=False, markup=False).print(table)


def _right(heading: str) -> Any:
    from rich.table import Column

    return Column(heading, justify="right")


def _ratio(found: float, wanted: float) -> str:
    return f"{found / wanted:.3f}" if wanted > 0 else "-"


# ---------------------------------------------------------------- compare --measured


def compare_measured(plan_file: str, run_file: str, form: str, output: Path | None, as_json: bool) -> None:
    """Prints a plan's forecast against a run of it, or draws both as a page, to the file or to stdout.

    Raises InputError.
    """
    from ..runs import compare_run

    plan, run = load_plan(plan_file), load_trace(run_file)
    found = compare_run(plan, run)
    if form == "html" and not (as_json and output is None):
        from ..view import html

        page = html(plan, run)
        if output is None:
            click.echo(page, nl=False)
        else:
            write_text(output, page)
            say(f"wrote {output}", err=True)
    if as_json:
        print_json(asdict(found))
    elif form == "text":
        _print_comparison(found)
        _print_lateness(run.require_plan(plan), run)


def _print_lateness(plan: Plan, run: RunTrace) -> None:
    """What the ops of the run's critical path add to its length."""
    from ..simulate import simulate
    from ..view import late_sentence, late_table, run_lateness

    late = run_lateness(plan, simulate(plan), run)
    say(late_sentence(late))
    rows = late_table(late)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_comparison(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..view import percent

    ops = Table("op", *(_right(x) for x in ("stage", "ops", "forecast", "measured", "ratio", "spread", "around it")))
    for op in found.ops:
        times = map(format_seconds, (op.forecast_s, op.measured_s))
        rest = map(format_seconds, (op.spread_s, op.overhead_s))
        ops.add_row(op.kind, str(op.stage), str(op.count), *times, _ratio(op.measured_s, op.forecast_s), *rest)
    headings = ("device", "bubble", "forecast", "between ops", "waiting", "peak", "of forecast")
    devices = Table(*map(_right, headings))
    for device in found.devices:
        devices.add_row(
            str(device.device),
            percent(device.bubble),
            percent(device.forecast_bubble),
            format_seconds(device.overhead_s),
            format_seconds(device.waited_s),
            format_bytes(device.peak_bytes),
            _ratio(device.peak_bytes, device.forecast_peak_bytes),
        )
    console = Console(highlight=False, markup=False)
    console.print(ops, devices)
    step, wanted = found.step_s, found.forecast_step_s
    say(f"step: {format_seconds(wanted)} forecast, {format_seconds(step)} measured, {_ratio(step, wanted)}")
    for cause in found.causes:
        say(f"  {1e3 * cause.seconds:+10.3f} ms  {cause.what}")
    say(found.remark)
