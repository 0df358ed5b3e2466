"""Where a plan runs: devices in a row, their nodes around them, what goes to the right above and to the left below."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from ..basics import format_bytes
from ..plan import Kind
from .drawing import DIM, INK, PAPER, Drawing, Line, Rect, Shape, Text, label
from .graphs import FLOWS, HUES, Role, op_fill
from .lanes import lanes
from .letters import fitted, text_width

if TYPE_CHECKING:
    from .graphs import Graph

_WIDTH, _GAP, _NODE_GAP, _MARGIN, _TOP = 148.0, 44.0, 40.0, 28.0, 92.0
_LANE, _CHIP, _PER_ROW = 21.0, 42.0, 3
_CHIP_PITCH = 22.0
_CLEAR = 40.0  # from the devices to the first lane, past the frame of their node


class _Arc(NamedTuple):
    """A flow between two devices."""

    source: int
    target: int
    edge: dict[str, Any]


def draw(graph: Graph) -> Drawing:
    """The drawing of a `placement_graph`."""
    devices = [node for node in graph if node[0] == "device"]
    left = _columns(graph, len(devices))
    page = Drawing(graph.graph["title"], left[-1] + _WIDTH + _MARGIN + 12)
    arcs = [_Arc(a[1], b[1], e) for a, b, e in graph.edges(data=True) if a[0] == b[0] == "device"]
    up = _Side([arc for arc in arcs if arc.source < arc.target], left)
    down = _Side([arc for arc in arcs if arc.source > arc.target], left)
    top = _TOP + max(up.height, 36.0)
    rows = max((len(graph.nodes[d]["roles"]) + _PER_ROW - 1) // _PER_ROW for d in devices)
    height = 84 + rows * _CHIP_PITCH
    names = _frames(page, graph, left, top - 26, height + 38)
    for side, edge, sign in ((up, top, -1), (down, top + height, 1)):
        side.draw(page, edge, sign)
    page.add(*names)
    for number, node in enumerate(devices):
        _device(page, graph.nodes[node], number, left[number], top, height)
    bottom = top + height + down.height + 8
    bottom = _hosts(page, graph, left, top + height, bottom)
    _head(page, graph)
    page.height, page.breaks = bottom + _MARGIN, [x - _GAP / 2 for x in left[1:]]
    return page


def _columns(graph: Graph, count: int) -> list[float]:
    """Left edges of the devices; between nodes there is more room."""
    found, x = [], _MARGIN + 12
    for number in range(count):
        node = graph.nodes["device", number]["group"]
        if number and node != graph.nodes["device", number - 1]["group"]:
            x += _NODE_GAP
        found.append(x)
        x += _WIDTH + _GAP
    return found


class _Side:
    """The flows above or below the devices: every one has a lane, and a port of its own at both ends."""

    def __init__(self, arcs: list[_Arc], left: list[float]) -> None:
        self.arcs = arcs
        middle = [x + _WIDTH / 2 for x in left]
        spans = [tuple(sorted((middle[arc.source], middle[arc.target]))) for arc in arcs]
        self.lane = lanes([(a + 1, b - 1) for a, b in spans])
        self.height = max(self.lane) * _LANE + _CLEAR + 8 if arcs else 12.0
        ends: dict[int, list[tuple[bool, float, int, bool]]] = defaultdict(list)
        for k, (arc, lane) in enumerate(zip(arcs, self.lane, strict=True)):
            for mine, other, leaving in ((arc.source, arc.target, True), (arc.target, arc.source, False)):
                rightwards = other > mine
                ends[mine].append((rightwards, -lane if rightwards else lane, k, leaving))
        self.port: dict[tuple[int, bool], float] = {}
        for device, found in ends.items():
            for place, (_, _, k, leaving) in enumerate(sorted(found)):
                self.port[k, leaving] = left[device] + _WIDTH * (place + 1) / (len(found) + 1)

    def draw(self, page: Drawing, edge: float, sign: int) -> None:
        """Lines from `edge` (the devices' upper or lower one), upwards with sign -1."""
        labels: list[Shape] = []
        for k, arc in enumerate(self.arcs):
            a, b = self.port[k, True], self.port[k, False]
            y = edge + sign * (_CLEAR + self.lane[k] * _LANE)
            size, count = format_bytes(arc.edge["bytes"]), arc.edge["count"]
            note = (
                f"{arc.edge['flow']} from device {arc.source} to {arc.target}: {size} a step in {count} "
                f"message{'s' * (count != 1)}"
            )
            page.add(
                Line(((a, edge), (a, y), (b, y), (b, edge)), arc.edge["stroke"], 1.6, arc.edge["dashed"], True, note)
            )
            labels += label((a + b) / 2, y + 3.5, size, arc.edge["stroke"])
        page.add(*labels)


def _frames(page: Drawing, graph: Graph, left: list[float], top: float, height: float) -> list[Shape]:
    """A frame around every node; the names, for the time when the lines are there."""
    names: list[Shape] = []
    for group, lines in graph.graph["groups"].items():
        mine = [x for number, x in enumerate(left) if graph.nodes["device", number]["group"] == group]
        page.add(Rect(mine[0] - 12, top, mine[-1] - mine[0] + _WIDTH + 24, height, PAPER, "#c9cfd7", 8))
        names += label(mine[0] - 6 + text_width(lines[0], 10.5) / 2, top + 16, lines[0], DIM)
    return names


def _device(page: Drawing, node: dict[str, Any], number: int, x: float, y: float, height: float) -> None:
    page.add(
        Rect(x, y, _WIDTH, height, node["fill"], "#8b95a3", 6), Text(x + 10, y + 20, f"device {number}", 13, bold=True)
    )
    for k, role in enumerate(node["roles"]):
        _chip(page, role, x + 9 + (k % _PER_ROW) * (_CHIP + 3), y + 29 + (k // _PER_ROW) * _CHIP_PITCH)
    base, share = y + height - 46, node["peak_bytes"] / max(1, node["limit_bytes"])
    width, held = _WIDTH - 20, f"{format_bytes(node['peak_bytes'])} of {format_bytes(node['limit_bytes'])}"
    page.add(
        Text(x + 10, base + 4, f"busy {100 * node['busy']:.0f} %", 11, fill=DIM),
        Rect(x + 10, base + 12, width, 7, "#ffffff", "#c9cfd7", 2),
        Rect(x + 10, base + 12, max(0.5, width * min(1.0, share)), 7, "#b8420f" if share > 1 else "#6fb79f", radius=2),
        Text(x + 10, base + 34, fitted(held, width, 11), 11, fill="#b8420f" if share > 1 else DIM),
    )  # fmt: skip


def _chip(page: Drawing, role: Role, x: float, y: float) -> None:
    """`F3` light, `B3` dark; a stage that runs both here has a half of each."""
    halves = [Kind.F if does == "F" else Kind.B for does in role.does]
    note = f"{' and '.join('forward' if kind == Kind.F else 'backward' for kind in halves)} of stage {role.stage}"
    each = _CHIP / len(halves)
    for k, kind in enumerate(halves):
        fill, ink = op_fill(kind, role.hue)
        text = f"{kind.name}{role.stage}"
        size = min(11.0, (each - 3) / text_width(text, 1.0))
        page.add(Rect(x + k * each, y, each - 0.5, 18, fill, note=note))
        page.add(Text(x + (k + 0.5) * each, y + 13, text, size, "middle", ink))


def _hosts(page: Drawing, graph: Graph, left: list[float], edge: float, top: float) -> float:
    """Host memory under its node, with what goes there and comes back; the bottom of all that."""
    hosts = [node for node in graph if node[0] == "host"]
    if not hosts:
        return top
    labels: list[Shape] = []
    for host in hosts:
        node = graph.nodes[host]
        mine = [x for d, x in enumerate(left) if graph.nodes["device", d]["group"] == node["group"]]
        said = f"{node['label'][0]}: {node['label'][1]}"
        page.add(
            Rect(mine[0], top + 44, mine[-1] - mine[0] + _WIDTH, 40, node["fill"], "#8b95a3", 6),
            Text(
                (mine[0] + mine[-1] + _WIDTH) / 2,
                top + 69,
                fitted(said, mine[-1] - mine[0] + _WIDTH - 12, 12),
                12,
                "middle",
            ),
        )
        for a, b, e in graph.edges(data=True):
            if host in (a, b):
                out = b == host
                x = left[(a if out else b)[1]] + (26 if out else _WIDTH - 26)
                ends = ((x, edge), (x, top + 44))
                note = f"stashes {e['flow']}: {format_bytes(e['bytes'])} a step in {e['count']} copies"
                page.add(Line(ends if out else ends[::-1], e["stroke"], 1.6, e["dashed"], True, note))
                labels += label(x, top + 26, format_bytes(e["bytes"]), e["stroke"])
    page.add(*labels)
    return top + 84


def _head(page: Drawing, graph: Graph) -> None:
    """The title, and what the lines mean: only those that are drawn."""
    wide = max(page.width, 640.0)
    page.width = wide
    page.add(Text(_MARGIN, 34, fitted(page.title, wide - 2 * _MARGIN, 17, True), 17, bold=True))
    x, y = _MARGIN, 60.0
    drawn = {(e["flow"], e["hue"]): e for _, _, e in graph.edges(data=True)}
    two_ways = {role.hue for d in graph if d[0] == "device" for role in graph.nodes[d]["roles"]} == {0, 1}
    for flow, hue in sorted(drawn, key=lambda key: (FLOWS.index(key[0]), key[1])):
        edge = drawn[flow, hue]
        both = two_ways and edge["stroke"] in HUES
        text = f"{flow}, pipelines {('down', 'up')[hue]}" if both else flow
        if x + 34 + text_width(text, 11.5) > wide - _MARGIN:
            x, y = _MARGIN, y + 18
        page.add(Line(((x, y - 4), (x + 26, y - 4)), edge["stroke"], 1.6, edge["dashed"], True))
        page.add(Text(x + 32, y, text, 11.5, fill=INK))
        x += 32 + text_width(text, 11.5) + 22
    if not drawn:
        page.add(Text(x, y, "nothing goes between devices", 11.5, fill=DIM))
