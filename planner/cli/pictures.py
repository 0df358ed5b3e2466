"""Which pictures of a plan `contraflow show` draws in which form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..plan import Plan
    from ..view import Drawing

PICTURES = ("timeline", "layers", "placement", "ops")
RUNTIMES = ("torch-csv", "megatron")
FORMS = ("text", "svg", "html", "png", "pdf", "dot", "perfetto", *RUNTIMES)
_GRAPH_FORMS = ("svg", "png", "pdf", "dot")
_FORMS_OF = {PICTURES[0]: ("text", "svg", "html", "png", "pdf", "perfetto", *RUNTIMES)} | dict.fromkeys(
    PICTURES[1:], _GRAPH_FORMS
)


def picture_of(form: str, what: str | None) -> str:
    """What is drawn where --what does not say: the first picture of this form.

    Raises UsageError for a picture that does not exist in this form.
    """
    possible = [picture for picture in PICTURES if form in _FORMS_OF[picture]]
    if what is None:
        return possible[0]
    if what not in possible:
        forms = ", ".join(_FORMS_OF[what])
        raise click.UsageError(f"--what {what} is drawn --as {forms}; --as {form} draws {', '.join(possible)}")
    return what


def check_picture(form: str, with_run: bool, only_run: bool, to_file: bool) -> None:
    """Raises UsageError for options that do not go together, before anything is read."""
    if with_run and form not in ("perfetto", "html"):
        raise click.UsageError("--run is drawn --as html and --as perfetto")
    if only_run and not with_run:
        raise click.UsageError("--only-run needs --run")
    if form in ("png", "pdf"):
        if not to_file:
            raise click.UsageError(f"--as {form} needs -o FILE")
        from ..view import require_matplotlib

        require_matplotlib(f"--as {form}")


def for_runtime(plan: Plan, form: str) -> str:
    """What another runtime reads: torch's CSV or Megatron's flags. Raises InterchangeError where it cannot have it."""
    from ..interchange import to_megatron, to_torch_csv

    return to_torch_csv(plan) if form == "torch-csv" else to_megatron(plan)


def graph_picture(plan: Plan, timeline: Timeline, form: str, what: str) -> str | bytes:
    """A graph of the plan: DOT or SVG as text, a png as bytes. Raises InputError for one that is too large."""
    from ..view import (
        drawn_layers,
        drawn_operations,
        drawn_placement,
        layer_graph,
        operation_graph,
        placement_graph,
        to_dot,
    )

    if what == "layers":
        graph, draw = layer_graph(plan), drawn_layers
    elif what == "placement":
        graph, draw = placement_graph(plan, timeline), drawn_placement
    else:
        graph, draw = operation_graph(plan, timeline), drawn_operations
    if form == "dot":
        return to_dot(graph)
    return written(draw(graph), form)


def written(drawing: Drawing, form: str) -> str | bytes:
    """A drawing as svg, png or pdf."""
    from ..view import to_pdf, to_png, to_svg

    return to_svg(drawing) if form == "svg" else to_png(drawing) if form == "png" else to_pdf(drawing)
