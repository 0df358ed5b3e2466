"""The operations of a small plan: a band a device, an op as far to the right as what it waits for demands."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..plan import COLLECTIVES, COPIES, IN_LINE, Kind
from .drawing import DIM, Drawing, Line, Point, Rect, Text
from .lanes import lanes
from .letters import fitted, text_width

if TYPE_CHECKING:
    from .graphs import Graph

_WIDE, _HIGH, _PITCH, _ROW, _ARC = 76.0, 22.0, 100.0, 32.0, 5.0
_LEFT, _TOP, _MARGIN, _BETWEEN = 96.0, 84.0, 28.0, 18.0


def draw(graph: Graph) -> Drawing:
    """The drawing of an `operation_graph`."""
    column = _columns(graph)
    line, height = _lines(graph, column)
    arcs = _arcs(graph, column, line)
    top, band, y = {}, {}, _TOP
    for device in graph.graph["groups"]:
        room = _ARC * (1 + max((lane + 1 for key, lane in arcs.items() if _device(graph, key) == device), default=0))
        top[device], band[device] = y + room, (y, room + height[device] * _ROW)
        y += band[device][1] + _BETWEEN
    page = Drawing(graph.graph["title"], _LEFT + (max(column.values(), default=0) + 1) * _PITCH + _MARGIN, y + 8)
    page.width = max(page.width, 640.0)
    page.add(Text(_MARGIN, 34, fitted(page.title, page.width - 2 * _MARGIN, 17, True), 17, bold=True))
    _legend(page)
    for device in graph.graph["groups"]:
        start, tall = band[device]
        page.add(Rect(_MARGIN, start, page.width - 2 * _MARGIN, tall, "#f6f7f9", radius=6))
        page.add(Text(_MARGIN + 8, top[device] + 20, f"device {device}", 11.5, fill=DIM))
    corner = {n: (_LEFT + column[n] * _PITCH, top[d["device"]] + line[n] * _ROW + 5) for n, d in graph.nodes(data=True)}
    for a, b, edge in graph.edges(data=True):
        if not _implied(graph, column, (a, b), edge):
            _edge(page, corner[a], corner[b], edge, arcs.get((a, b)))
    for node, data in graph.nodes(data=True):
        _box(page, corner[node], data)
    return page


def _columns(graph: Graph) -> dict[int, int]:
    """Longest way to every op; what reaches an op of another device stands right of the SEND it comes from."""
    import networkx

    plain: networkx.DiGraph[int] = networkx.DiGraph(graph)
    found: dict[int, int] = {}
    for node in networkx.topological_sort(plain):
        found[node] = 1 + max((found[a] for a in plain.predecessors(node)), default=-1)
    return found


def _lines(graph: Graph, column: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Line of every op in its device's band, in-line ops on the first; and how many lines each band has."""
    taken: dict[tuple[int, int], int] = defaultdict(int)
    line: dict[int, int] = {}
    height: dict[int, int] = defaultdict(lambda: 1)
    for node, data in graph.nodes(data=True):
        if data["op"].kind in IN_LINE:
            line[node] = 0
            continue
        key = data["device"], column[node]
        taken[key] += 1
        line[node] = taken[key]
        height[data["device"]] = max(height[data["device"]], taken[key] + 1)
    return line, {device: height[device] for device in graph.graph["groups"]}


def _device(graph: Graph, edge: tuple[int, int]) -> int:
    return int(graph.nodes[edge[0]]["device"])


def _implied(graph: Graph, column: dict[int, int], edge: tuple[int, int], data: dict[str, Any]) -> bool:
    """Whether a need is left out: sums and updates need all backwards of their stage, which come first anyway."""
    earlier, later = (graph.nodes[node]["op"].kind for node in edge)
    if data["why"] != "data" or later not in (Kind.STEP, *COLLECTIVES) or earlier in COLLECTIVES:
        return False
    return later == Kind.STEP or column[edge[1]] > column[edge[0]] + 1


def _arcs(graph: Graph, column: dict[int, int], line: dict[int, int]) -> dict[tuple[int, int], int]:
    """The needs between ops of one line that are no neighbours, with lanes above that line."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for a, b, edge in graph.edges(data=True):
        same = graph.nodes[a]["device"] == graph.nodes[b]["device"] and line[a] == line[b] == 0
        if same and edge["why"] == "data" and column[b] > column[a] + 1 and not _implied(graph, column, (a, b), edge):
            found[graph.nodes[a]["device"]].append((a, b))
    chosen: dict[tuple[int, int], int] = {}
    for edges in found.values():
        chosen |= dict(zip(edges, lanes([(column[a] + 0.2, column[b] - 0.2) for a, b in edges]), strict=True))
    return chosen


def _edge(page: Drawing, start: Point, end: Point, edge: dict[str, Any], lane: int | None) -> None:
    (ax, ay), (bx, by) = start, end
    a, b = (ax + _WIDE, ay + _HIGH / 2), (bx, by + _HIGH / 2)
    width = 2.4 if edge["why"] == "order" else 1.5 if edge["why"] == "message" else 1.0
    points: tuple[Point, ...] = (a, b)
    if lane is not None:
        over, leave, arrive = ay - 5 - (lane + 1) * _ARC, ax + _WIDE - 12, bx + 12
        points = ((leave, ay), (leave, over), (arrive, over), (arrive, by))
    elif abs(a[1] - b[1]) > 0.01:
        near = bx - (_PITCH - _WIDE) / 2
        points = (a, (near - 6, a[1]), (near - 2, b[1]), b)
    page.add(Line(points, edge["stroke"], width, edge["dashed"], True))


def _box(page: Drawing, corner: Point, data: dict[str, Any]) -> None:
    (x, y), text = corner, str(data["op"])
    size = min(11.0, (_WIDE - 6) / text_width(text, 1.0))
    kind = data["op"].kind
    edge = "#8b95a3" if kind not in IN_LINE and kind not in COPIES and kind not in COLLECTIVES else "none"
    page.add(Rect(x, y, _WIDE, _HIGH, data["fill"], edge, 4, data["note"]))
    page.add(Text(x + _WIDE / 2, y + 14.5, text, size, "middle", data["ink"]))


def _legend(page: Drawing) -> None:
    x = _MARGIN
    for stroke, width, text in (
        ("#c9cfd7", 2.4, "one after the other"),
        ("#8b95a3", 1.0, "needs"),
        ("#2c7a61", 1.0, "copies a stash"),
        ("#1667a6", 1.5, "message"),
    ):
        page.add(Line(((x, 56), (x + 26, 56)), stroke, width, arrow=True), Text(x + 32, 60, text, 11.5))
        x += 32 + text_width(text, 11.5) + 22
