"""Training without a flush on the command line: its options, its summary, and its table of `contraflow compare`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..basics import InputError, format_bytes, format_seconds
from ..plan import Problem
from ..problem import FLUSH, MOST_SLOWER, WEIGHT_POLICIES, SearchSpace
from ..schedules import ASYNCHRONOUS, WEIGHTS
from .common import among_to_dict, print_json
from .table import Line, print_table

if TYPE_CHECKING:
    from ..plan import Forecast, Plan
    from ..search import Result

ANY = "any"
METHODS = tuple(name for name in WEIGHT_POLICIES if name != FLUSH)
_Command = TypeVar("_Command", bound=Callable[..., Any])
_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--asynchronous",
        metavar="METHOD",
        help=f"Train without a flush, for the least seconds a micro-batch: one of {', '.join(METHODS)}, several with "
        f"commas between them, or {ANY}.",
    ),
    click.option(
        "--update-every",
        type=click.IntRange(min=1),
        metavar="M",
        help="Asynchronous: micro-batches an update. [default: what the method needs at least]",
    ),
    click.option(
        "--staleness-limit",
        type=click.IntRange(min=0),
        metavar="S",
        help="Asynchronous: most updates between a forward's weights and the update its gradient goes into.",
    ),
    click.option(
        "--quality-within",
        type=click.FloatRange(0, 100 * MOST_SLOWER),
        metavar="PERCENT",
        help="Several methods: of those slower than the fastest by at most this, the one with the freshest weights "
        f"(docs/asynchronous.md); 0: the fastest. [default: {100 * SearchSpace().quality_within:g}]",
    ),
]


def asynchronous_options(command: _Command) -> _Command:
    """--asynchronous, --update-every, --staleness-limit and --quality-within."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


def methods(options: dict[str, Any], schedule: str = "search") -> tuple[str, ...]:
    """The methods that --asynchronous names, all of them for "any"; none for synchronous training.

    Raises InputError for an unknown method, and for options that only asynchronous training has.
    """
    given = options["asynchronous"]
    if given is None:
        if options["quality_within"] is not None:
            raise InputError("--quality-within needs --asynchronous")
        for name in ("update_every", "staleness_limit"):
            if options[name] is not None and schedule not in ASYNCHRONOUS:
                raise InputError(f"--{name.replace('_', '-')} needs --asynchronous or a schedule without a flush")
        return ()
    named = [part.strip() for part in given.split(",")]
    return METHODS if named == [ANY] else SearchSpace(asynchronous=tuple(dict.fromkeys(named))).asynchronous


def within(options: dict[str, Any]) -> float:
    """How much slower than the fastest a better method may be, as a share."""
    given = options["quality_within"]
    return SearchSpace().quality_within if given is None else float(given) / 100


def fitting(problem: Problem, space: SearchSpace, options: dict[str, Any]) -> SearchSpace:
    """The space; with "any", without the methods that these micro-batches rule out, as long as some remain."""
    from ..search import why_not

    if options["asynchronous"] != ANY:
        return space
    some = tuple(method for method in space.asynchronous if why_not(problem, method) is None)
    return replace(space, asynchronous=some or space.asynchronous)


# ---------------------------------------------------------------- one plan


def staleness(plan: Plan) -> list[int]:
    """Updates of staleness of every stage, the most of its micro-batches."""
    from ..graph import Versions

    most = Versions.of(plan).most_stale
    return [most[stage] for stage in range(len(plan.stages))]


def summary(plan: Plan, forecast: Forecast) -> dict[str, Any]:
    """What `plan --json` says of a plan without a flush; nothing of others."""
    if plan.weights == FLUSH:
        return {}
    return {"period_s": forecast.period_s, "weights": plan.weights, "staleness": staleness(plan)}


def sentence(plan: Plan, forecast: Forecast) -> str:
    """Micro-batches a second, and the staleness and versions of every stage; empty for a plan with a flush."""
    if plan.weights == FLUSH:
        return ""
    from ..forecast import most_copies

    rate = f"{1 / forecast.period_s:.4g} micro-batches/s" if forecast.period_s else "no time at all"
    stale = ", ".join(map(str, staleness(plan)))
    versions = ", ".join(str(1 + copies) for copies in most_copies(plan))
    return f"{rate}; updates of staleness by stage: {stale}; versions held: {versions}"


# ---------------------------------------------------------------- several methods


def method_rows(result: Result) -> dict[str, Any]:
    """What `plan --json` says of several methods; nothing where one was asked for."""
    return {"methods": [asdict(row) for row in result.methods]} if result.methods else {}


def print_methods(result: Result) -> None:
    """What came of each of several methods; nothing where one was asked for."""
    if not result.methods:
        return
    lines = []
    for row in result.methods:
        style = "bold" if row.chosen else None
        if row.period_s is None or row.staleness is None:
            lines.append(Line((row.weights, row.status), "dim"))
            continue
        period, peak = format_seconds(row.period_s), format_bytes(row.peak_bytes or 0)
        words = ("yes" if row.predicted else "no", "chosen" if row.chosen else "")
        lines.append(Line((row.weights, period, peak, str(max(row.staleness)), *words), style))
    print_table(("method", "a micro-batch", "peak", "staleness", "predicted", ""), lines, words=1)


# ---------------------------------------------------------------- several plans


@dataclass(frozen=True)
class AsynchronousRow:
    """One line of the comparison: seconds a micro-batch, of the steady state or of a synchronous step's share."""

    schedule: str
    status: str
    weights: str | None = None
    micro_batch_s: float | None = None
    staleness: tuple[int, ...] | None = None
    peak_bytes: tuple[int, ...] | None = None
    bound_s: float | None = None
    among: dict[str, Any] | None = None
    note: str = ""


def compare_asynchronous(
    problem: Problem, space: SearchSpace, search: Callable[[SearchSpace], Result], as_json: bool
) -> None:
    """Prints the named schedules of these methods and the search, without and with a flush: seconds a micro-batch."""
    rows = []
    for name, method in WEIGHTS.items():
        if method in space.asynchronous:
            rows.append(_row(name, replace(space, schedule=name, asynchronous=()), search, 1))
    rows.append(_row("search", space, search, 1))
    count = problem.workload.micro_batches
    rows.append(_row("search, with a flush", replace(space, asynchronous=()), search, count))
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        _print(rows)


def _row(name: str, space: SearchSpace, search: Callable[[SearchSpace], Result], share: int) -> AsynchronousRow:
    try:
        result = search(space)
    except InputError as error:
        return AsynchronousRow(name, "does not apply", note=str(error))
    plan = result.plan
    if plan is None or plan.forecast is None:
        return AsynchronousRow(name, result.status, note="; ".join(map(str, result.violations)))
    stale = None if plan.weights == FLUSH else tuple(staleness(plan))
    each, bound = plan.forecast.objective_s / share, result.bound_s / share
    among = among_to_dict(result.among, result.seconds)
    return AsynchronousRow(name, result.status, plan.weights, each, stale, plan.forecast.peak_bytes, bound, among)


def _print(rows: list[AsynchronousRow]) -> None:
    best = min((row.micro_batch_s for row in rows if row.micro_batch_s is not None), default=None)
    headings = ("schedule", "weights", "a micro-batch", "bound", "peak", "staleness")
    print_table(headings, [_line(row, best) for row in rows], words=2)


def _line(row: AsynchronousRow, best: float | None) -> Line:
    if row.micro_batch_s is None:
        return Line((row.schedule, row.status), "dim", row.note)
    cells = (
        row.schedule,
        row.weights or "",
        format_seconds(row.micro_batch_s),
        format_seconds(row.bound_s or 0.0),
        format_bytes(max(row.peak_bytes or (0,))),
        "0" if row.staleness is None else str(max(row.staleness)),
    )
    return Line(cells, "bold" if row.micro_batch_s == best else None, row.note)
