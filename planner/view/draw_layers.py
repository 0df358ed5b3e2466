"""The layer graph in its stages: a column a stage, layers from top to bottom, tensors that cross in the gutters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..basics import format_bytes
from .drawing import DIM, INK, Drawing, Line, Point, Rect, Text
from .graphs import CROSSING
from .lanes import lanes
from .letters import fitted

if TYPE_CHECKING:
    from .graphs import Graph

_BOX, _HIGH, _GAP, _ROW = 150.0, 36.0, 10.0, 54.0
_MARGIN, _TOP, _LINE = 28.0, 62.0, 15.0
_LANE, _TRACK, _GUTTER, _SIDE = 13.0, 9.0, 62.0, 7.0


def draw(graph: Graph) -> Drawing:
    """The drawing of a `layer_graph`."""
    return _Layout(graph).drawing()


class _Layout:
    """Places of everything.

    A layer's row is the longest way to it inside its stage; a tensor that crosses has a track in the gutter it leaves
    into, and where it passes stages by, a lane above them all and a track in the gutter before its stage.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stages = list(graph.graph["groups"])
        self.row, self.place = _rows(graph)
        self.tensors: dict[tuple[str, int], list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
        for a, b, edge in graph.edges(data=True):
            if edge["crossing"]:
                self.tensors[edge["tensor"]].append((a, b, edge))
        self.skips = self._skips()
        self._tracks()
        self._columns()

    def _stage(self, node: int) -> int:
        return int(self.graph.nodes[node]["group"])

    def _skips(self) -> dict[tuple[int, int], int]:
        """Lane of every edge inside a stage that passes a row by, beside the stage's boxes."""
        found: dict[tuple[int, int], int] = {}
        for stage in self.stages:
            mine = sorted(
                {
                    (a, b)
                    for a, b, e in self.graph.edges(data=True)
                    if not e["crossing"] and self._stage(a) == stage and self.row[b] - self.row[a] > 1
                }
            )
            chosen = lanes([(self.row[a] + 0.3, self.row[b] - 0.3) for a, b in mine])
            found |= dict(zip(mine, chosen, strict=True))
        return found

    def _tracks(self) -> None:
        """Numbers of the tracks in every gutter, and of the lanes above."""
        self.track: dict[tuple[int, tuple[str, int]], int] = {}
        count: dict[int, int] = defaultdict(int)
        far = []
        for tensor, edges in sorted(self.tensors.items(), key=lambda item: (self.row[item[1][0][0]], item[0])):
            source, target = self._stage(edges[0][0]), tensor[1]
            for gutter in sorted({source, target - 1}):
                self.track[gutter, tensor] = count[gutter]
                count[gutter] += 1
            if target > source + 1:
                far.append(tensor)
        spans = [(float(self._stage(self.tensors[t][0][0])), t[1] - 1.0) for t in far]
        self.lane = dict(zip(far, lanes([(a + 0.01, b - 0.01) for a, b in spans]), strict=True))
        self.tracks = count

    def _columns(self) -> None:
        """Left edge and width of every stage's frame."""
        self.left: list[float] = []
        self.wide: list[float] = []
        x = _MARGIN
        for stage in self.stages:
            boxes = max(self.place[n][1] for n in self.graph if self._stage(n) == stage)
            beside = max((lane + 1 for (a, _), lane in self.skips.items() if self._stage(a) == stage), default=0)
            self.left.append(x)
            self.wide.append(24 + boxes * (_BOX + _GAP) - _GAP + beside * _SIDE)
            x += self.wide[-1] + _GUTTER + _TRACK * self.tracks[stage]
        self.right = x - _GUTTER
        self.header = max(len(lines) for lines in self.graph.graph["groups"].values()) * _LINE + 16
        self.frame_top = _TOP + (max(self.lane.values(), default=-1) + 1) * _LANE + 8
        self.rows_top = self.frame_top + self.header

    def box(self, node: int) -> Point:
        """Upper left corner of a layer's box."""
        x = self.left[self._stage(node)] + 12 + self.place[node][0] * (_BOX + _GAP)
        return x, self.rows_top + self.row[node] * _ROW

    # ------------------------------------------------------------ painting

    def drawing(self) -> Drawing:
        rows = max(self.row.values()) + 1
        page = Drawing(self.graph.graph["title"], max(self.right + _MARGIN, 640.0))
        bottom = self.rows_top + rows * _ROW - (_ROW - _HIGH) + 14
        page.height, page.breaks = bottom + _MARGIN, [left - 6 for left in self.left[1:]]
        page.add(Text(_MARGIN, 34, fitted(page.title, page.width - 2 * _MARGIN, 17, True), 17, bold=True))
        for stage, lines in self.graph.graph["groups"].items():
            x = self.left[stage]
            page.add(Rect(x, self.frame_top, self.wide[stage], bottom - self.frame_top, "#f8f9fb", "#c9cfd7", 8))
            for k, line in enumerate(lines):
                style: Any = {"size": 12.5, "bold": True} if k == 0 else {"size": 11, "fill": DIM}
                shown = fitted(line, self.wide[stage] - 18, style["size"], k == 0)
                page.add(Text(x + 12, self.frame_top + 19 + k * _LINE, shown, **style))
        for a, b, edge in self.graph.edges(data=True):
            if not edge["crossing"]:
                page.add(Line(self._inside(a, b), edge["stroke"], 1.2, arrow=True))
        for tensor in self.tensors:
            self._cross(page, tensor)
        for node, data in self.graph.nodes(data=True):
            self._box(page, node, data)
        return page

    def _box(self, page: Drawing, node: int, data: dict[str, Any]) -> None:
        x, y = self.box(node)
        name, cost = data["label"]
        note = f"{', '.join(data['layers'][:12])}{', …' if len(data['layers']) > 12 else ''}: {cost}"
        page.add(
            Rect(x, y, _BOX, _HIGH, "#ffffff", "#8b95a3", 4, note),
            Text(x + 9, y + 15, fitted(name, _BOX - 14, 11.5), 11.5, fill=INK),
            Text(x + 9, y + 29, fitted(cost, _BOX - 14, 10), 10, fill=DIM),
        )

    def _inside(self, a: int, b: int) -> tuple[Point, ...]:
        (ax, ay), (bx, by) = self.box(a), self.box(b)
        if (a, b) not in self.skips:
            if ax == bx:
                return (ax + _BOX / 2, ay + _HIGH), (bx + _BOX / 2, by)
            middle = by - (_ROW - _HIGH) / 2
            return (ax + _BOX / 2, ay + _HIGH), (ax + _BOX / 2, middle), (bx + _BOX / 2, middle), (bx + _BOX / 2, by)
        stage = self._stage(a)
        boxes = max(self.place[n][1] for n in self.graph if self._stage(n) == stage)
        side = self.left[stage] + 12 + boxes * (_BOX + _GAP) - _GAP + (self.skips[a, b] + 1) * _SIDE
        last = self.place[a][0] == self.place[a][1] - 1 and self.place[a][1] == boxes
        start: tuple[Point, ...] = ((ax + _BOX, ay + _HIGH * 0.7), (side, ay + _HIGH * 0.7))
        if not last:
            below = ay + _HIGH + 5
            start = ((ax + _BOX * 0.7, ay + _HIGH), (ax + _BOX * 0.7, below), (side, below))
        above = by - 5
        return (*start, (side, above), (bx + _BOX * 0.7, above), (bx + _BOX * 0.7, by))

    def _leave(self, node: int) -> list[Point]:
        """From a box to the right edge of its column."""
        (x, y), stage = self.box(node), self._stage(node)
        edge = self.left[stage] + self.wide[stage]
        if all(n == node or self.row[n] != self.row[node] or self.box(n)[0] < x
               for n in self.graph if self._stage(n) == stage):  # fmt: skip
            return [(x + _BOX, y + _HIGH * 0.62), (edge, y + _HIGH * 0.62)]
        below = y + _HIGH + 9
        return [(x + _BOX * 0.85, y + _HIGH), (x + _BOX * 0.85, below), (edge, below)]

    def _arrive(self, node: int) -> list[Point]:
        """From the left edge of its column to a box."""
        (x, y), edge = self.box(node), self.left[self._stage(node)]
        if self.place[node][0] == 0:
            return [(edge, y + _HIGH * 0.38), (x, y + _HIGH * 0.38)]
        above = y - 6
        return [(edge, above), (x + _BOX * 0.15, above), (x + _BOX * 0.15, y)]

    def _trunk(self, gutter: int, tensor: tuple[str, int]) -> float:
        return self.left[gutter] + self.wide[gutter] + _GUTTER - 12 + _TRACK * self.track[gutter, tensor]

    def _cross(self, page: Drawing, tensor: tuple[str, int]) -> None:
        """A tensor from its layer to the layers of one other stage."""
        edges = self.tensors[tensor]
        source, size = edges[0][0], edges[0][2]["bytes"]
        leave, first = self._leave(source), self._trunk(self._stage(source), tensor)
        names = self.graph.nodes[source]["layers"]
        note = f"{names[-1]} to stage {tensor[1]}: {format_bytes(size)} a micro-batch, its gradient the same"
        for _, target, _ in edges:
            arrive = self._arrive(target)
            way = [*leave, (first, leave[-1][1])]
            if tensor in self.lane:
                y = _TOP + self.lane[tensor] * _LANE
                second = self._trunk(tensor[1] - 1, tensor)
                way += [(first, y), (second, y), (second, arrive[0][1])]
            else:
                way += [(first, arrive[0][1])]
            page.add(Line(tuple(_distinct([*way, *arrive])), CROSSING, 1.5, arrow=True, note=note))
        x, y = leave[-1]
        page.add(Text(x + 5, y - 4, format_bytes(size), 10, fill=CROSSING))


def _distinct(points: list[Point]) -> list[Point]:
    """The points without those that repeat the one before or lie on the straight between their neighbours."""
    kept: list[Point] = []
    for point in points:
        if kept and abs(point[0] - kept[-1][0]) + abs(point[1] - kept[-1][1]) < 0.01:
            continue
        if len(kept) > 1 and any(max(abs(point[i] - p[i]) for p in kept[-2:]) < 0.01 for i in (0, 1)):
            kept.pop()
        kept.append(point)
    return kept


def _rows(graph: Graph) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Row of every node within its stage; and its place in that row, of how many."""
    import networkx

    row: dict[int, int] = {}
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    centre: dict[int, float] = {}
    for node in networkx.lexicographical_topological_sort(networkx.DiGraph(graph)):
        stage = graph.nodes[node]["group"]
        before = [a for a in graph.predecessors(node) if graph.nodes[a]["group"] == stage]
        row[node] = 1 + max((row[a] for a in before), default=-1)
        members[stage, row[node]].append(node)
    place: dict[int, tuple[int, int]] = {}
    for key in sorted(members):  # barycentres: a node stands near those it comes from
        for node in members[key]:
            above = [centre[a] for a in graph.predecessors(node) if graph.nodes[a]["group"] == key[0] and a in centre]
            centre[node] = sum(above) / len(above) if above else 0.0
        for number, node in enumerate(sorted(members[key], key=lambda n: (centre[n], n))):
            place[node], centre[node] = (number, len(members[key])), float(number)
    return row, place
