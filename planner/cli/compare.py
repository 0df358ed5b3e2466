"""`contraflow compare`: every named schedule and the search, side by side; or a forecast and its run (`cli_run`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..basics import InputError, format_bytes, format_seconds
from .asynchronous import asynchronous_options, compare_asynchronous, fitting
from .common import among_to_dict, print_json, problem_options, say
from .compare_pictures import (
    check_measured_picture,
    check_picture,
    picture_options,
    points_to_dicts,
    solve_frontier,
    write_picture,
)
from .families import family_options, load_asked
from .progress import SearchProgress
from .signals import EndingSignals
from .table import Line, print_table

if TYPE_CHECKING:
    from ..plan import Plan
    from ..search import Compared, Contender, FrontierPoint, Result
    from ..view import Entry

_T = TypeVar("_T")
_EXAMPLE = """\b
Examples:
  contraflow compare model.json --cluster cluster.toml --micro-batches 8 --time-limit 20
  contraflow compare --measured run.json plan.json
  contraflow compare --measured run.json plan.json --as html -o run.html
  contraflow compare model.json --cluster cluster.toml --micro-batches 8 \\
      --frontier 8 --as html -o compare.html
  contraflow compare model.json --cluster cluster.toml --micro-batches 32 --asynchronous any
"""


@dataclass(frozen=True)
class Row:
    """One line of the comparison; `note` says why the figures are missing where they are."""

    schedule: str
    status: str
    step_s: float | None = None
    bubble: float | None = None
    peak_bytes: tuple[int, ...] | None = None
    memory_ok: bool | None = None
    gap: float | None = None
    note: str = ""


@click.command(epilog=_EXAMPLE)
@problem_options
@family_options
@asynchronous_options
@click.option("--measured", metavar="RUN", help="Compare a run (execute --trace) with its forecast; MODEL is its plan.")
@picture_options
@click.pass_context
def compare(
    ctx: click.Context, /, model: str, cluster_file: str | None, as_json: bool, measured: str | None, **options: Any
) -> None:
    """Plan MODEL with every named schedule and with the search: step, bubble, peak memory and gap.

    The gap is measured from the search's proven bound of all plans that the flags allow. A schedule that does not fit
    the memory is listed, dimmed and marked "over", with what it would take and need. What the flags forbid the
    schedules do not do either. --time-limit is the search's; with --frontier, that of the search at each limit.

    With --asynchronous, the schedules without a flush of these methods, the search without and the search with one:
    seconds a micro-batch.

    With --measured, MODEL is a plan.json: its forecast and a run of it, op by op, and what explains the difference; or
    with --as html a page of both.
    """
    if measured is not None:
        from .run import compare_measured

        check_measured_picture(options["form"], options["output"], options["frontier"])
        compare_measured(model, measured, options["form"], options["output"], as_json)
    else:
        with EndingSignals() as ending:
            _compare_schedules(ctx, model, _required(ctx, cluster_file, "cluster_file"), as_json, options, ending)


def _compare_schedules(
    ctx: click.Context, model: str, cluster_file: str, as_json: bool, options: dict[str, Any], ending: EndingSignals
) -> None:
    check_picture(options["form"], options["output"], options["frontier"])
    from .options import effort_options, search_space, workload_options

    space = search_space("search", options)
    problem = load_asked(model, cluster_file, ctx.obj, options, workload_options(options)).problem()
    graph, cluster, workload = problem.model, problem.cluster, problem.workload
    from ..search import compare as contend  # the solver: loaded once the input is known to be good
    from ..search import plan as search

    effort = effort_options(options)
    if space.asynchronous:
        if options["frontier"] is not None or options["form"] != "text":
            raise InputError("--asynchronous has no pictures: leave out --frontier and --as")
        space = fitting(problem, space, options)
        with SearchProgress(f"comparing on {graph.name}", options["time_limit"]) as progress:
            each = partial(search, graph, cluster, workload, on_progress=progress, **effort)
            compare_asynchronous(problem, space, lambda space: each(space=space), as_json)
        return
    with SearchProgress(f"comparing on {graph.name}", options["time_limit"]) as progress:
        compared = contend(graph, cluster, workload, space, on_progress=progress, **effort)
    found, rows = compared.found, [_row(one, compared) for one in compared]
    plans = {one.schedule: one.plan for one in compared if one.plan is not None}
    points: Sequence[FrontierPoint] = ()
    if options["frontier"] is not None and not ending.number:
        known = [plans[row.schedule] for row in rows if row.memory_ok]
        points = solve_frontier(graph, cluster, workload, space, options["frontier"], known, effort)
    if options["form"] != "text" and not (as_json and options["output"] is None):
        title = f"{graph.name}, {len(cluster)} devices, {workload.micro_batches} micro-batches"
        from ..view import Asked

        limits = tuple(workload.memory_limit(device.kind.memory_bytes) for device in cluster.devices)
        asked = Asked(limits, found.bound_s)
        write_picture(options["form"], options["output"], title, _entries(rows, plans), asked, points)
    if as_json:
        more = {"frontier": points_to_dicts(points)} if points else {}
        proven = {"bound_s": found.bound_s, "among": among_to_dict(found.among, found.seconds)}
        print_json(proven | {"rows": [asdict(row) for row in rows]} | more)
    elif options["form"] == "text":
        _print(rows)
        _print_among(found)
        if points:
            from ..view import frontier_table

            say(frontier_table(points))


for _option in compare.params:  # a run brings its own cluster and micro-batches
    _option.required = _option.required and isinstance(_option, click.Argument)


def _required(ctx: click.Context, value: _T | None, name: str) -> _T:
    """The option's value; raises click.MissingParameter, as click does itself."""
    if value is None:
        raise click.MissingParameter(ctx=ctx, param=next(x for x in compare.params if x.name == name))
    return value


def _row(one: Contender, compared: Compared) -> Row:
    forecast = None if one.plan is None else one.plan.forecast
    if forecast is None:
        return Row(one.schedule, one.status, note=one.note)
    peaks = forecast.peak_bytes
    return Row(one.schedule, one.status, one.step_s, forecast.bubble, peaks, one.fits, compared.gap(one))


def _entries(rows: list[Row], plans: dict[str, Plan]) -> list[Entry]:
    """The rows with their plans, for the page."""
    from ..view import Entry

    return [
        Entry(
            row.schedule, row.status, row.step_s, row.bubble, max(row.peak_bytes) if row.peak_bytes else None,
            row.memory_ok, row.gap, row.note, plans.get(row.schedule),
        )
        for row in rows
    ]  # fmt: skip


def _print(rows: list[Row]) -> None:
    best = min((row.step_s for row in rows if row.step_s is not None and row.memory_ok), default=None)
    print_table(("schedule", "step", "bubble", "peak", "memory", "gap"), [_line(row, best) for row in rows])


def _print_among(found: Result) -> None:
    """What more is proven of the search's plan than the gaps in the table, which are those of all plans allowed."""
    from ..view import WIDTH, among, wrap

    if found.plan is not None and found.plan.forecast is not None:
        text = among(found.plan, found.plan.forecast)
        click.echo("\n".join(wrap(f"search: {text}", WIDTH))) if text else None


def _line(row: Row, best: float | None) -> Line:
    from ..view import percent

    if row.step_s is None:
        return Line((row.schedule, row.status), "dim", row.note)
    cells = (
        row.schedule,
        format_seconds(row.step_s),
        percent(row.bubble or 0.0),
        format_bytes(max(row.peak_bytes or (0,))),
        "ok" if row.memory_ok else "over",
        "" if row.gap is None else percent(max(0.0, row.gap)),
    )
    return Line(cells, "dim" if not row.memory_ok else "bold" if row.step_s == best else None, row.note)
