"""Which pictures of a plan `contraflow show` draws in which form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from .plan import Plan
    from .simulate import Timeline

PICTURES = ("timeline", "layers", "placement", "ops")
_GRAPH_FORMS = ("svg", "png", "dot")


def check_picture(form: str, what: str, with_run: bool, only_run: bool, to_file: bool) -> None:
    """Raises UsageError for a picture that does not exist in this form, before anything is read."""
    if what == PICTURES[0] and form in ("png", "dot"):
        raise click.UsageError(f"--as {form} draws --what {', '.join(PICTURES[1:])}; the timeline is text, svg or html")
    if what != PICTURES[0] and form not in _GRAPH_FORMS:
        raise click.UsageError(f"--what {what} is drawn --as {', '.join(_GRAPH_FORMS)}, not {form}")
    if with_run and form not in ("perfetto", "html"):
        raise click.UsageError("--run is drawn --as html and --as perfetto")
    if only_run and not with_run:
        raise click.UsageError("--only-run needs --run")
    if form == "png":
        if not to_file:
            raise click.UsageError("--as png needs -o FILE")
        from .view.drawing import require_matplotlib

        require_matplotlib("--as png")


def graph_picture(plan: Plan, timeline: Timeline, form: str, what: str) -> str | bytes:
    """A graph of the plan: DOT or SVG as text, a png as bytes. Raises InputError for one that is too large."""
    from .view import draw_layers, draw_ops, draw_placement, drawing
    from .view.dot import to_dot
    from .view.graphs import layer_graph, placement_graph
    from .view.op_graph import operation_graph

    if what == "layers":
        graph, draw = layer_graph(plan), draw_layers.draw
    elif what == "placement":
        graph, draw = placement_graph(plan, timeline), draw_placement.draw
    else:
        graph, draw = operation_graph(plan, timeline), draw_ops.draw
    if form == "dot":
        return to_dot(graph)
    return drawing.to_svg(draw(graph)) if form == "svg" else drawing.to_png(draw(graph))
