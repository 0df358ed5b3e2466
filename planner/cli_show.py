"""`contraflow check` and `contraflow show`: everything about a plan.json that is already there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from .cli_common import OutputFile, print_json, stop
from .files import write_text
from .plan import Forecast, Plan
from .plan_file import load_plan
from .view import html
from .view.fresh import fresh_forecast

_CHECK_EXAMPLE = """\b
Example:
  contraflow check plan.json
"""
_SHOW_EXAMPLE = """\b
Example:
  contraflow show plan.json
  contraflow show plan.json --as svg -o plan.svg
  contraflow show plan.json --as html --run run.json -o plan.html
"""
_PLANNED_FORMATS = ("dot", "perfetto")


@click.command(epilog=_CHECK_EXAMPLE)
@click.argument("plan_file", metavar="PLAN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines.")
def check(plan_file: str, as_json: bool) -> None:
    """Say whether PLAN can be executed; name every violation if not (exit code 1)."""
    from .check import check as violations_of

    loaded = load_plan(plan_file)
    violations = violations_of(loaded)
    if as_json:
        found = [{"code": v.code, "where": v.where, "message": v.message} for v in violations]
        print_json({"ok": not violations, "violations": found})
    elif violations:
        for violation in violations:
            click.echo(str(violation))
        click.echo(f"{plan_file}: {len(violations)} violation{'s' * (len(violations) != 1)}", err=True)
    else:
        operations = sum(map(len, loaded.orders))
        click.echo(f"{plan_file}: ok, {operations} operations on {len(loaded.orders)} devices")
    stop(1 if violations else 0)


@click.command(epilog=_SHOW_EXAMPLE)
@click.argument("plan_file", metavar="PLAN")
@click.option(
    "--as", "form", type=click.Choice(["text", "svg", "html", *_PLANNED_FORMATS]), default="text", show_default=True,
    help="What to draw.",
)  # fmt: skip
@click.option(
    "--run", "run_file", metavar="FILE", help="Show what a run measured as well: the file of execute --trace."
)
@click.option("-o", "--output", type=OutputFile(), help="Write there. [default: stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as one JSON object instead.")
def show(plan_file: str, form: str, run_file: str | None, output: Path | None, as_json: bool) -> None:
    """Draw PLAN: its timeline and the memory of every device.

    Times and bytes are simulated afresh from the plan's operations, not read from its forecast.
    """
    if form in _PLANNED_FORMATS:
        raise click.UsageError(f"--as {form} does not exist yet; use text, svg or html")
    if run_file is not None and form != "html":
        raise click.UsageError(f"--run: {form} shows no run; use --as html")
    loaded = load_plan(plan_file)
    text = draw(loaded, form) if form != "html" else html(loaded, run_file)
    if output is not None:
        write_text(output, text)
    if as_json:
        forecast = fresh_forecast(loaded)
        print_json(forecast_to_dict(loaded, forecast) | {"file": None if output is None else str(output)})
    elif output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"wrote {output}", err=True)


def draw(plan: Plan, form: str) -> str:
    """The picture of a plan as text; raises InputError when its operations cannot be simulated."""
    from .simulate import simulate
    from .view import svg, text

    forecast = fresh_forecast(plan)
    renderers: dict[str, Callable[..., str]] = {"text": text.render, "svg": svg.render}
    return renderers[form](plan, simulate(plan), forecast)


def forecast_to_dict(plan: Plan, forecast: Forecast) -> dict[str, object]:
    """Step, bound, gap, status and every device, for machines."""
    from .view.text import device_limit

    return {
        "status": forecast.status,
        "step_s": forecast.step_s,
        "bound_s": forecast.bound_s,
        "gap": forecast.gap,
        "bubble": forecast.bubble,
        "devices": [
            {
                "busy_s": device.busy_s,
                "bubble": device.bubble,
                "peak_bytes": device.peak_bytes,
                "limit_bytes": device_limit(plan, index),
                "peak_parts": dict(device.peak_parts),
            }
            for index, device in enumerate(forecast.devices)
        ],
    }
