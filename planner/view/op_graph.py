"""The operations of a small plan as a graph: what every op waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..basics import InputError, format_seconds
from ..graph import Homes, costs_of
from ..plan import COLLECTIVES, COPIES, IN_LINE, Plan
from ..rules import Listed, Order
from .graphs import EDGE, HUES, op_fill, title_of
from .palette import direction

if TYPE_CHECKING:
    from ..forecast import Timeline
    from .graphs import Graph

MOST_OPS = 2000
"""So many operations a picture holds at most."""


def operation_graph(plan: Plan, timeline: Timeline) -> Graph:
    """Every op with what it waits for. Groups are devices.

    Nodes, numbered device after device in list order: `op`, `device`, `start_s`, `end_s` (a RECV's are its message's).
    Edges: `why` is "order" (the in-line op before it), "data" (with its `reason` in words) or "message".

    Raises InputError above 2000 ops.
    """
    import networkx

    count = sum(map(len, plan.orders))
    if count > MOST_OPS:
        raise InputError(
            f"the plan has {count} operations, a picture of them holds {MOST_OPS}; "
            "plan fewer micro-batches for one, or draw the timeline"
        )
    graph: Graph = networkx.MultiDiGraph(
        title=f"{title_of(plan)}: operations", groups={d: (f"device {d}",) for d in range(len(plan.orders))}
    )
    jobs = timeline.jobs
    job = {place: place for place in range(count)}
    job |= dict(zip(jobs.messages.receive.tolist(), jobs.messages.send.tolist(), strict=True))
    hues = {m: direction(p, len(plan.orders)) for p in plan.pipelines for m in p.micro_batches}
    place = 0
    for device, order in enumerate(plan.orders):
        for op in order:
            mine = jobs.reduce_job.get(op.collective, place) if op.kind in COLLECTIVES else job[place]
            start, end = float(jobs.start[mine]), float(jobs.end[mine])
            fill, ink = op_fill(op.kind, hues.get(op.micro_batch, 0))
            graph.add_node(
                place, op=op, device=device, start_s=start, end_s=end, group=device, fill=fill, ink=ink,
                label=(str(op),), note=f"{op}: {format_seconds(start)} to {format_seconds(end)}",
            )  # fmt: skip
            place += 1
    _join(graph, plan, hues)
    return graph


def _join(graph: Graph, plan: Plan, hues: dict[int, int]) -> None:
    listed = Listed.of(plan, Homes.of(plan))
    order = Order(costs_of(plan), listed)
    for earlier, later in zip(listed.previous.tolist(), range(len(graph)), strict=True):
        kinds = [graph.nodes[n]["op"].kind for n in (earlier, later)] if earlier >= 0 else []
        if kinds and kinds[1] in IN_LINE:
            graph.add_edge(earlier, later, why="order", stroke="#c9cfd7", dashed=False, label=())
    for later, earlier, why in zip(*(column.tolist() for column in order.needs), order.whys, strict=True):
        copied = {graph.nodes[n]["op"].kind for n in (earlier, later)} & COPIES
        stroke, reason = "#2c7a61" if copied else EDGE, why.value
        graph.add_edge(earlier, later, why="data", stroke=stroke, dashed=False, label=(), reason=reason)
    for send, receive in zip(order.send.tolist(), order.receive.tolist(), strict=True):
        hue = hues.get(graph.nodes[send]["op"].micro_batch, 0)
        graph.add_edge(send, receive, why="message", stroke=HUES[hue], dashed=False, label=())
