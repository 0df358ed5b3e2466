"""`contraflow check` and `contraflow show`: everything about a plan.json that is already there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..basics import write_bytes
from ..plan import Forecast, Plan
from ..plan_file import load_plan
from ..runs import RunTrace, load_trace
from ..search import Proven
from ..view import fresh_forecast
from .common import A_FILE, OutputFile, among_to_dict, print_json, say, stop
from .families import throughput
from .pictures import FORMS, PICTURES, RUNTIMES, check_picture, for_runtime, graph_picture, picture_of, written

if TYPE_CHECKING:
    from ..view import Screen

_CHECK_EXAMPLE = """\b
Example:
  contraflow check plan.json
"""
_SHOW_EXAMPLE = """\b
Examples:
  contraflow show plan.json
  contraflow show plan.json --as svg -o plan.svg
  contraflow show plan.json --as pdf -o plan.pdf
  contraflow show plan.json --as html --run run.json -o plan.html
  contraflow show plan.json --what placement --as svg -o placement.svg
  contraflow show plan.json --what layers --as dot | dot -Tpdf > layers.pdf
  contraflow show plan.json --as torch-csv -o orders.csv
  contraflow show plan.json --as perfetto --run run.json -o trace.json.gz
"""


@click.command(epilog=_CHECK_EXAMPLE)
@click.argument("plan_file", metavar="PLAN", type=A_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines.")
def check(plan_file: str, as_json: bool) -> None:
    """Say whether PLAN can be executed; name every violation if not (exit code 1)."""
    from ..check import check as violations_of

    loaded = load_plan(plan_file)
    violations = violations_of(loaded)
    if as_json:
        found = [{"code": v.code, "where": v.where, "message": v.message} for v in violations]
        print_json({"ok": not violations, "violations": found})
    elif violations:
        for violation in violations:
            say(str(violation))
        say(f"{plan_file}: {len(violations)} violation{'s' * (len(violations) != 1)}", err=True)
    else:
        operations = sum(map(len, loaded.orders))
        say(f"{plan_file}: ok, {operations} operations on {len(loaded.orders)} devices")
    stop(1 if violations else 0)


@click.command(epilog=_SHOW_EXAMPLE)
@click.argument("plan_file", metavar="PLAN", type=A_FILE)
@click.option(
    "--as", "form", type=click.Choice(FORMS), default=FORMS[0], show_default=True, help="How to draw it.",
)  # fmt: skip
@click.option(
    "--what", type=click.Choice(PICTURES),
    help="The timeline; the layers in their stages; the devices and what goes between them; every operation. "
    "[default: timeline; of dot layers]",
)  # fmt: skip
@click.option("--run", "run_file", metavar="FILE", help="A run of the plan (execute --trace), drawn with its forecast.")
@click.option("--only-run", is_flag=True, help="With --run: leave the forecast out.")
@click.option("-o", "--output", type=OutputFile(), help="Write there. [default: stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as one JSON object instead.")
def show(
    plan_file: str,
    form: str,
    what: str | None,
    run_file: str | None,
    only_run: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Draw PLAN: its timeline and the memory of every device, or what --what names.

    Times and bytes are simulated afresh from the plan's operations, not read from its forecast. A perfetto trace opens
    in ui.perfetto.dev, also from a file called .json.gz, which is compressed. PNG and PDF need matplotlib.
    torch-csv is the orders for torch's _PipelineScheduleRuntime, megatron the cut as flags of Megatron-LM.
    """
    picture = picture_of(form, what)
    check_picture(form, run_file is not None, only_run, output is not None)
    loaded = load_plan(plan_file)
    run = None if run_file is None else load_trace(run_file)
    screen = _screen() if form == "text" and output is None else None
    drawn = draw(loaded, form, picture, run, only_run, screen)
    if output is not None:
        write_bytes(output, _packed(drawn.encode() if isinstance(drawn, str) else drawn, form, output))
    if as_json:
        forecast = fresh_forecast(loaded)
        content = forecast_to_dict(loaded, forecast) | throughput(loaded, forecast) | why(loaded)
        print_json(content | {"file": None if output is None else str(output)})
    elif output is None:
        click.echo(drawn, nl=False, color=True if screen is not None and screen.colours else None)
    else:
        say(f"wrote {output}", err=True)


def _packed(content: bytes, form: str, output: Path) -> bytes:
    """A trace for a file called .gz is compressed, as Perfetto opens it; equal traces are equal files."""
    if form != "perfetto" or output.suffix != ".gz":
        return content
    import gzip

    return gzip.compress(content, mtime=0)


def _screen() -> Screen:
    """The terminal that stdout is: its width and colours; 80 columns without colours where it is none.

    As rich finds out: NO_COLOR, FORCE_COLOR, TERM and COLUMNS count.
    """
    from rich.console import Console

    from ..view import Screen

    console = Console()
    if not console.is_terminal:
        return Screen()
    known = console.color_system in ("standard", "256", "truecolor") and not console.no_color
    return Screen(console.width, console.color_system if known and console.encoding.startswith("utf") else None)


def draw(
    plan: Plan,
    form: str,
    what: str = PICTURES[0],
    run: RunTrace | None = None,
    only_run: bool = False,
    screen: Screen | None = None,
) -> str | bytes:
    """The picture of a plan, png and pdf as bytes, text for this screen.

    Raises InputError when its operations cannot be simulated.
    """
    from ..simulate import simulate
    from ..view import Screen, drawn_timeline, perfetto_events, timeline_text

    if form in RUNTIMES:
        return for_runtime(plan, form)
    if run is not None:
        plan = run.require_plan(plan)
    forecast, timeline = fresh_forecast(plan), simulate(plan)
    if what != PICTURES[0]:
        return graph_picture(plan, timeline, form, what)
    if form == "html":
        from ..view import page

        return page(plan, timeline, forecast, run)
    if form == "perfetto":
        return perfetto_events(plan, timeline, forecast, run, only_run)
    if form in ("svg", "png", "pdf"):
        return written(drawn_timeline(plan, timeline, forecast), form)
    return timeline_text(plan, timeline, forecast, screen or Screen())


def why(plan: Plan) -> dict[str, object]:
    """What devices wait for, where the gap comes from, what faster machines would give, for machines."""
    from ..search import facts

    return facts(plan).to_dict(len(plan.orders))


def forecast_to_dict(plan: Plan, forecast: Forecast) -> dict[str, object]:
    """Step, bound, gap and status, what they speak of, and every device, for machines."""
    from ..view import device_limit

    made = plan.provenance
    part = None if made.among_bound_s is None else Proven(made.among, made.among_bound_s)
    return {
        "status": forecast.status,
        "step_s": forecast.step_s,
        "bound_s": forecast.bound_s,
        "gap": forecast.gap,
        "space": made.space,
        "among": among_to_dict(part, forecast.objective_s),
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
