"""Graphs of a plan: their figures are the simulator's, and names in them are text and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from instances import named
from pictures import MIB, ONE_ROUTE, pictured, routed

from contraflow.planner.basics.errors import InputError
from contraflow.planner.graph import Candidate, costs_of
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import IN_LINE, Kind, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.schedules import build
from contraflow.planner.simulate import simulate
from contraflow.planner.view import draw_layers, draw_ops, draw_placement, drawing
from contraflow.planner.view.dot import to_dot
from contraflow.planner.view.graphs import Role, layer_graph, placement_graph
from contraflow.planner.view.lanes import lanes
from contraflow.planner.view.names import columns_of, plain, shorten
from contraflow.planner.view.op_graph import operation_graph

SVG = "{http://www.w3.org/2000/svg}"
ODD = '<script>alert("1")</script>\n"]; x [URL="http://a" \\N \\"&lt;b&gt;</title></svg>\x1b[31m\u202e$x$'
PLANS = list(pictured())


def branching(names: tuple[str, ...] = ("a", "b", "c", "d", "e", "f")) -> Plan:
    """Six layers in three stages; what the first sends goes to both other stages, once to each."""
    a, b, c, d, e, f = names
    layers = tuple(Layer(x, 1.0, 2.0, stash_bytes=MIB, output_bytes=k + 1) for k, x in enumerate(names))
    edges = ((a, b), (a, c), (b, d), (a, d), (a, e), (d, e), (e, f), (d, f))
    model = ModelGraph(layers, edges, name=names[0])
    layout = build("1f1b", 3, 2)
    cut = ((a, b), (c, d), (e, f))
    problem = Problem(model, Cluster.uniform(3, 64 * MIB), layout_workload(2))
    return assemble(Candidate(problem, cut, layout.pipelines), layout.orders, "1f1b")


def layout_workload(micro_batches: int) -> Any:
    """A step of so many micro-batches."""
    return routed(ONE_ROUTE, micro_batches=micro_batches).problem.workload


def svgs_of(plan: Plan) -> dict[str, str]:
    """All pictures of a plan as SVG."""
    timeline = simulate(plan)
    return {
        "layers": drawing.to_svg(draw_layers.draw(layer_graph(plan))),
        "placement": drawing.to_svg(draw_placement.draw(placement_graph(plan, timeline))),
        "ops": drawing.to_svg(draw_ops.draw(operation_graph(plan, timeline))),
    }


def dots_of(plan: Plan) -> dict[str, str]:
    """All graphs of a plan as DOT."""
    timeline = simulate(plan)
    graphs = {
        "layers": layer_graph(plan),
        "placement": placement_graph(plan, timeline),
        "ops": operation_graph(plan, timeline),
    }
    return {name: to_dot(graph) for name, graph in graphs.items()}


def words(svg: str) -> list[str]:
    """Every text of an SVG."""
    return ["".join(found.itertext()) for found in ElementTree.fromstring(svg).iter(f"{SVG}text")]


# ---------------------------------------------------------------- layers


def test_layers_are_in_their_stages_and_crossing_tensors_are_known_once() -> None:
    """What a layer sends to two layers of one stage is one message; stage costs are the operation graph's."""
    plan = branching()
    graph = layer_graph(plan)
    assert [(data["layers"], data["group"]) for _, data in graph.nodes(data=True)] == [
        (("a",), 0), (("b",), 0), (("c",), 1), (("d",), 1), (("e",), 2), (("f",), 2),
    ]  # fmt: skip
    crossing: Counter[tuple[int, int]] = Counter()
    for tensor, size in {(e["tensor"], e["bytes"]) for _, _, e in graph.edges(data=True) if e["crossing"]}:
        home = {name: s for s, stage in enumerate(plan.stages) for name in stage}
        crossing[home[tensor[0]], tensor[1]] += size
    costs = costs_of(plan)
    assert crossing == {(producer, consumer): size for producer, consumer, size in costs.edges}
    assert graph.graph["groups"][0][1] == "F 2 s, B 4 s"
    drawn = words(svgs_of(plan)["layers"])
    assert {"stage 0, 2 layers", "on device 2", "a", "f"} <= set(drawn)


def test_long_chains_are_drawn_as_runs() -> None:
    """A hundred layers in four stages are four boxes that say how many they are; branches keep theirs."""
    graph = layer_graph(cut_chain(100, 4))
    assert next(data["label"][0] for _, data in graph.nodes(data=True)) == "layer0 … layer24 (25)"
    assert len(graph) == 4
    assert sum(data["forward_s"] for _, data in graph.nodes(data=True)) == pytest.approx(100)


def cut_chain(layers: int, stages: int) -> Plan:
    """Equal layers in equal stages."""
    layout = build("1f1b", stages, 2)
    model = ModelGraph.chain([Layer(f"layer{k}", 1.0, 1.0) for k in range(layers)])
    each = layers // stages
    cut = tuple(tuple(f"layer{k}" for k in range(s * each, (s + 1) * each)) for s in range(stages))
    problem = Problem(model, Cluster.uniform(stages, MIB), layout_workload(2))
    return assemble(Candidate(problem, cut, layout.pipelines), layout.orders, "1f1b")


def test_a_layer_graph_that_is_too_large_is_refused() -> None:
    """Both numbers are named."""
    plan = cut_chain(2, 2)
    pairs = [Layer(f"x{k}") for k in range(700)]
    model = ModelGraph((*plan.problem.model.layers, *pairs), plan.problem.model.edges)
    wide = replace(
        plan,
        problem=replace(plan.problem, model=model),
        stages=(plan.stages[0], (*plan.stages[1], *(layer.name for layer in pairs))),
    )
    with pytest.raises(InputError, match=r"702 boxes, a picture holds 600"):
        layer_graph(wide)


# ---------------------------------------------------------------- placement


@pytest.mark.parametrize("name", PLANS)
def test_flows_between_devices_are_the_simulators_messages(name: str) -> None:
    """Bytes and counts of every ordered pair; copies and peaks of hosts and devices."""
    plan = pictured()[name]
    timeline = simulate(plan)
    graph = placement_graph(plan, timeline)
    wanted: Counter[tuple[Any, Any]] = Counter()
    for message in timeline.messages:
        wanted[("device", message.source), ("device", message.target)] += message.bytes
    found: Counter[tuple[Any, Any]] = Counter()
    copied: Counter[str] = Counter()
    for a, b, edge in graph.edges(data=True):
        if edge["flow"].endswith("the host"):
            copied[edge["flow"]] += edge["count"]
        elif edge["flow"] != "gradient sums":
            found[a, b] += edge["bytes"]
    assert +found == +wanted
    kinds = Counter(item.op.kind for items in timeline.copies for item in items)
    assert copied == Counter({"to the host": kinds[Kind.OFFLOAD], "from the host": kinds[Kind.FETCH]})
    for (what, number), data in graph.nodes(data=True):
        memory = timeline.device_memory if what == "device" else timeline.host_memory
        assert data["peak_bytes"] == memory[number].peak_bytes
    assert ("gradient sums" in {e["flow"] for _, _, e in graph.edges(data=True)}) == any(
        op.kind == Kind.REDUCE for order in plan.orders for op in order
    )


def test_roles_say_what_a_device_does_for_a_stage() -> None:
    """Both directions, and forward and backward apart."""
    both = placement_graph(*drawn("both ways"))
    assert both.nodes["device", 0]["roles"] == (Role(0, "FB", 0), Role(1, "FB", 1))
    apart = placement_graph(*drawn("apart"))
    assert [apart.nodes["device", d]["roles"] for d in range(3)] == [
        (Role(0, "F", 0),), (Role(1, "FB", 0),), (Role(0, "B", 0),),
    ]  # fmt: skip
    assert {"F0", "B0", "device 2"} <= set(words(svgs_of(pictured()["apart"])["placement"]))


def drawn(name: str) -> tuple[Plan, Any]:
    """A plan and its timeline."""
    plan = pictured()[name]
    return plan, simulate(plan)


def test_a_ring_moves_two_thirds_twice_over_each_of_three_links() -> None:
    """2(r-1)/r of the gradients (Patarasuk and Yuan)."""
    plan = routed([((d,), (d,)) for d in range(3)], micro_batches=3)
    graph = placement_graph(plan, simulate(plan))
    assert [e["bytes"] for _, _, e in graph.edges(data=True)] == [round(4 * MIB / 3)] * 3


# ---------------------------------------------------------------- operations


@pytest.mark.parametrize("name", PLANS)
def test_no_op_starts_before_what_it_waits_for(name: str) -> None:
    """Every op once with its simulated times, on the graph's edges no time goes back, and the graph has no circle."""
    import networkx

    plan, timeline = drawn(name)
    graph = operation_graph(plan, timeline)
    assert [str(data["op"]) for _, data in graph.nodes(data=True)] == [str(op) for order in plan.orders for op in order]
    assert networkx.is_directed_acyclic_graph(graph)
    times = [(item.op, item.start_s) for device in timeline.devices for item in device.ops]
    for op, start in times:
        assert any(d["op"] == op and d["start_s"] == pytest.approx(start) for _, d in graph.nodes(data=True))
    for a, b, edge in graph.edges(data=True):
        before, after = graph.nodes[a], graph.nodes[b]
        if edge["why"] == "message":
            assert before["start_s"] == after["start_s"]
        elif after["op"].kind in IN_LINE and before["op"].kind in IN_LINE and after["op"].kind != Kind.FREE:
            assert before["end_s"] <= after["start_s"] + 1e-9
    messages = Counter(e["why"] for _, _, e in graph.edges(data=True))["message"]
    assert messages == len(timeline.messages)


def test_a_plan_with_too_many_ops_is_refused() -> None:
    """Politely: both numbers, and what to do."""
    plan = named("1f1b", 4, 128)
    count = sum(map(len, plan.orders))
    with pytest.raises(InputError, match=rf"{count} operations, a picture of them holds 2000; plan fewer"):
        operation_graph(plan, simulate(plan))


# ---------------------------------------------------------------- escaping, forms


@pytest.mark.parametrize("what", ["layers", "placement", "ops"])
def test_odd_names_are_text(what: str) -> None:
    """In SVG no element but shapes and texts, in DOT no statement but ours; and both are read by their own parsers."""
    names = (ODD, 'b"', "c\\", "d\r\n", "e;", "f]")
    plan = branching(names)
    svg, dot = svgs_of(plan)[what], dots_of(plan)[what]
    root = ElementTree.fromstring(svg)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "rect", "path", "polygon", "text"}
    assert not {key for element in root.iter() for key in element.attrib if key.startswith("on") or "href" in key}
    assert any("<script>" in text for text in [root.find(f"{SVG}title").text or ""])  # type: ignore[union-attr]
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", dot)
    assert not re.search(r"script|URL|alert|svg", outside)
    assert all(letter.isprintable() or letter == "\n" for letter in dot)
    assert dot.count("->") == outside.count("->")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("what", ["layers", "placement", "ops"])
def test_graphviz_reads_the_dot_text_as_it_was_meant(what: str) -> None:
    """The names come out as they went in, with what no XML holds replaced."""
    plan = branching((ODD, 'b"', "c\\", "d\r\n", "e;", "f]"))
    done = subprocess.run(["dot", "-Tsvg"], input=dots_of(plan)[what], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    root = ElementTree.fromstring(done.stdout)
    assert not list(root.iter(f"{SVG}a"))
    texts = {(element.text or "").replace("\xa0", " ") for element in root.iter(f"{SVG}text")}
    if what == "layers":
        assert {plain(name) for name in (ODD, 'b"', "c\\", "e;", "f]")} <= texts
    assert any(text.startswith(plain(ODD)) for text in texts)


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_has_every_picture(name: str) -> None:
    """Shapes lie on the page."""
    for svg in svgs_of(pictured()[name]).values():
        root = ElementTree.fromstring(svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for element in root.iter():
            if "x" in element.attrib:
                assert 0 <= float(element.attrib["x"]) <= width
                assert 0 <= float(element.attrib["y"]) <= height


@pytest.mark.parametrize("what", ["layers", "placement"])
def test_wide_pictures_go_on_in_another_row(what: str) -> None:
    """64 stages on as many devices: no wider than a screen or two, every stage or device whole in some row."""
    plan = named("1f1b", 64, 2)
    timeline = simulate(plan)
    page = (
        draw_layers.draw(layer_graph(plan))
        if what == "layers"
        else draw_placement.draw(placement_graph(plan, timeline))
    )
    assert page.width > 5000
    root = ElementTree.fromstring(drawing.to_svg(page))
    assert float(root.attrib["width"]) <= 2400
    rows = [[float(x) for x in row.attrib["viewBox"].split()] for row in root.iter(f"{SVG}svg")][1:]
    assert len(rows) > 3
    boxes = [shape for shape in page.shapes if isinstance(shape, drawing.Rect) and 100 < shape.width < 400]
    assert len(boxes) >= 64
    for box in boxes:
        assert any(left <= box.x and box.x + box.width <= left + wide for left, _, wide, _ in rows)
    tops = [float(row.attrib["y"]) for row in root.iter(f"{SVG}svg") if "y" in row.attrib]
    assert all(b - a >= page.height for a, b in pairwise(tops))
    if what == "layers":
        pytest.importorskip("matplotlib")
        assert len(drawing.figure(page).get_axes()) == len(rows)


def test_png_is_drawn_by_matplotlib() -> None:
    """Where it is installed; a name with dollars is no formula."""
    pytest.importorskip("matplotlib")
    plan = branching(("$a_{$", "b", "c", "d", "e", "f"))
    png = drawing.to_png(draw_placement.draw(placement_graph(plan, simulate(plan))))
    assert png.startswith(b"\x89PNG\r\n")
    assert drawing.figure(draw_layers.draw(layer_graph(plan))).get_axes()


def test_without_matplotlib_a_png_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the remedy; SVG needs nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plan = branching()
    page = draw_layers.draw(layer_graph(plan))
    assert drawing.to_svg(page)
    with pytest.raises(InputError, match=r"a png needs matplotlib: pip install 'contraflow\[plot\]'"):
        drawing.to_png(page)


def test_lanes_hold_no_two_spans_that_overlap() -> None:
    """The shortest lie lowest."""
    spans = [(0.0, 3.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (0.5, 1.5)]
    assert lanes(spans) == [2, 0, 0, 0, 1]


def test_names_take_one_line() -> None:
    """Controls are replaced, wide letters count twice."""
    assert plain("a\n\tb\x00\ud800\u202e") == "a  b���"
    assert columns_of("漢字a") == 5
    assert shorten("漢字漢字", 6) == "漢字…"
    assert shorten("short", 6) == "short"
