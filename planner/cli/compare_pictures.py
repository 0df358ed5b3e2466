"""What `contraflow compare` does besides its table: the frontier, the page, the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..basics import write_bytes
from ..search import Proven
from .common import OutputFile, among_to_dict, say
from .progress import SearchProgress

if TYPE_CHECKING:
    from ..plan import Forecast, Plan
    from ..problem import Cluster, ModelGraph, SearchSpace, Workload
    from ..search import Frontier, FrontierPoint
    from ..view import Asked, Entry

FORMS = ("text", "html", "svg", "png")


def picture_options(command: Any) -> Any:
    """--as, -o and --frontier of compare."""
    options = (
        click.option("--as", "form", type=click.Choice(FORMS), default=FORMS[0], show_default=True,
                     help="A table; a page with timelines; or the frontier's plot alone."),
        click.option("-o", "--output", type=OutputFile(), help="Write html, svg or png there. [default: stdout]"),
        click.option("--frontier", type=click.IntRange(min=3), metavar="N",
                     help="Also plan for N memory limits, from too low to one that does not bind."),
    )  # fmt: skip
    for decorate in reversed(options):
        command = decorate(command)
    return command


def check_picture(form: str, output: Path | None, frontier: int | None) -> None:
    """Raises UsageError for options that do not go together, before anything is planned."""
    if form in ("svg", "png") and frontier is None:
        raise click.UsageError(f"--as {form} draws the frontier: add --frontier N")
    if form == "text" and output is not None:
        raise click.UsageError(f"-o needs --as {', '.join(FORMS[1:])}")
    if form == "png":
        if output is None:
            raise click.UsageError("--as png needs -o FILE")
        from ..view import require_matplotlib

        require_matplotlib("--as png")


def check_measured_picture(form: str, output: Path | None, frontier: int | None) -> None:
    """Raises UsageError for what cannot be drawn of a plan and its run, before either is read."""
    if frontier is not None:
        raise click.UsageError("--measured has no frontier: leave out --frontier")
    if form in ("svg", "png"):
        raise click.UsageError("--measured is drawn --as html")
    check_picture(form, output, frontier)


def solve_frontier(
    model: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace, count: int,
    known: Sequence[Plan], effort: Mapping[str, Any],
) -> Frontier:  # fmt: skip
    """The frontier with progress on stderr; the effort is that of every search."""
    from ..search import frontier

    with SearchProgress(f"frontier of {model.name}", count * float(effort["time_limit"])) as progress:
        return frontier(model, cluster, workload, space, count, known, on_progress=progress, **effort)


def points_to_dicts(points: Sequence[FrontierPoint]) -> list[dict[str, Any]]:
    """The frontier for machines."""
    return [
        point.to_dict()
        | {"among": None if point.plan is None or point.forecast is None else _among(point.plan, point.forecast)}
        for point in points
    ]


def _among(plan: Plan, forecast: Forecast) -> dict[str, Any] | None:
    part, bound_s = plan.provenance.among, plan.provenance.among_bound_s
    return None if bound_s is None else among_to_dict(Proven(part, bound_s), forecast.step_s)


def write_picture(
    form: str, output: Path | None, title: str, entries: Sequence[Entry], asked: Asked,
    points: Sequence[FrontierPoint],
) -> None:  # fmt: skip
    """The page or the plot, to the file or to stdout."""
    from ..view import (
        comparison_page,
        frontier_drawing,
        frontier_figure,
        frontier_mark,
        frontier_table,
        png_of,
        to_svg,
    )

    named = [e for e in entries if e.plan is not None and e.fits and e.name != "search"]
    marks = [frontier_mark(entry.name, entry.plan) for entry in named if entry.plan is not None]
    heading = f"{title}: step time against memory"
    content: str | bytes
    if form == "html":
        content = comparison_page(title, entries, asked, points, frontier_table(points) if points else "")
    elif form == "svg":
        content = to_svg(frontier_drawing(points, marks, heading))
    else:
        content = png_of(frontier_figure(points, marks, heading), 150)
    if output is None:
        click.echo(content, nl=False)
    else:
        write_bytes(output, content.encode() if isinstance(content, str) else content)
        say(f"wrote {output}", err=True)
