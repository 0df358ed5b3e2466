"""Texts in pictures: measured before they are drawn, so that none leaves its box or the page, in a real browser."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from chromium import CHROMIUM, MISSING, started
from hypothesis import given
from hypothesis import strategies as st
from instances import named
from pictures import pictured

from contraflow.planner.plan import Plan
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.simulate import simulate
from contraflow.planner.view import draw_layers, draw_ops, draw_placement, draw_timeline, drawing
from contraflow.planner.view.graphs import layer_graph, placement_graph
from contraflow.planner.view.letters import fitted, text_width
from contraflow.planner.view.op_graph import operation_graph

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OUTSIDE = """() => {
  const box = (node) => node.getBBox(), page = document.querySelector("svg").viewBox.baseVal, found = [];
  const rects = [...document.querySelectorAll("svg rect")].map((node) => [box(node), node]);
  for (const text of document.querySelectorAll("svg text")) {
    const b = box(text), x = b.x + b.width / 2, y = b.y + b.height / 2;
    const has = (r) => r.x <= x && x <= r.x + r.width && r.y <= y && y <= r.y + r.height;
    const around = rects.map(([r]) => r).filter(has);
    const own = around.sort((p, q) => p.width * p.height - q.width * q.height)[0] || page;
    if (b.x < own.x - 1.5 || b.x + b.width > own.x + own.width + 1.5) found.push(text.textContent);
  }
  return found;
}"""
"""Texts that are wider than the smallest rectangle they stand in."""


@given(st.text(max_size=60), st.floats(20, 400), st.booleans())
def test_what_is_fitted_fits(text: str, room: float, bold: bool) -> None:
    """And only what does not fit loses letters."""
    found = fitted(text, room, 11, bold)
    assert text_width(found, 11, bold) <= room + 1e-9
    assert (found == text) == (text_width(text, 11, bold) <= room) or text.endswith("…")


def test_widths_are_those_of_the_font() -> None:
    """Of random words as matplotlib lays them out, to a hundredth, in both weights."""
    ft2font = pytest.importorskip("matplotlib.ft2font", reason="matplotlib is not installed")
    from matplotlib import get_data_path

    rng = random.Random(5)
    for bold, file in ((False, "DejaVuSans"), (True, "DejaVuSans-Bold")):
        font = ft2font.FT2Font(f"{get_data_path()}/fonts/ttf/{file}.ttf")
        font.set_size(100, 72)
        for _ in range(40):
            letter = rng.choice(string.printable[:95])
            advance = font.load_char(ord(letter), flags=ft2font.LoadFlags.NO_HINTING).linearHoriAdvance / 65536
            assert text_width(letter, 100, bold) == pytest.approx(advance, abs=0.1)


def long_names(plan: Plan, rng: random.Random) -> Plan:
    """The plan with long names, wide letters and narrow ones, of model and layers."""
    letters = "WMm@iIl1_.%" + string.ascii_letters + "äЖ層"
    name = {layer.name: f"{k}" + "".join(rng.choices(letters, k=rng.randrange(1, 60)))
            for k, layer in enumerate(plan.problem.model.layers)}  # fmt: skip
    old = plan.problem.model
    model = ModelGraph(
        tuple(replace(layer, name=name[layer.name]) for layer in old.layers),
        tuple((name[a], name[b]) for a, b in old.edges),
        name="".join(rng.choices(letters, k=200)),
    )
    stages = tuple(tuple(name[layer] for layer in stage) for stage in plan.stages)
    return replace(plan, problem=replace(plan.problem, model=model), stages=stages)


def all_pictures(plan: Plan) -> dict[str, str]:
    timeline = simulate(plan)
    return {
        "layers": drawing.to_svg(draw_layers.draw(layer_graph(plan))),
        "placement": drawing.to_svg(draw_placement.draw(placement_graph(plan, timeline))),
        "ops": drawing.to_svg(draw_ops.draw(operation_graph(plan, timeline))),
        "timeline": draw_timeline.render(plan, timeline, timeline.forecast()),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with started() as found:
        yield found


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_no_text_leaves_its_box(browser: Browser) -> None:
    """Plans of every kind with random long names, every picture: each text inside the smallest box it stands in."""
    page, rng = browser.new_page(), random.Random(11)
    for plan in [*pictured().values(), named("interleaved", 2, 4)]:
        for plain in (plan, long_names(plan, rng)):
            for what, svg in all_pictures(plain).items():
                page.set_content(svg)
                assert page.evaluate(OUTSIDE) == [], what
    page.close()
