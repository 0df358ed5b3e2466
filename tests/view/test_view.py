"""Pictures of a plan: the terminal at 80 columns, and the SVG."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from pictures import MIB, both_ways, one_way, pictured, routed
from rich.cells import cell_len

from contraflow.planner.forecast import Cause
from contraflow.planner.plan import Forecast, Kind, Pipeline, Plan
from contraflow.planner.search import facts
from contraflow.planner.simulate import simulate
from contraflow.planner.view import draw_timeline, text, to_pdf, to_png
from contraflow.planner.view.palette import IDLE, direction, paint

SVG = "{http://www.w3.org/2000/svg}"


def forecast_of(plan: Plan) -> Forecast:
    """The plan's forecast, with a bound."""
    assert plan.forecast is not None
    return replace(plan.forecast, bound_s=plan.forecast.step_s / 1.25, gap=0.25)


def as_text(plan: Plan) -> str:
    """The text picture."""
    return text.render(plan, simulate(plan), forecast_of(plan))


def as_svg(plan: Plan) -> ElementTree.Element:
    """The SVG picture, parsed."""
    return ElementTree.fromstring(draw_timeline.render(plan, simulate(plan), forecast_of(plan)))


def words(root: ElementTree.Element) -> list[str]:
    """Every text of an SVG."""
    return ["".join(found.itertext()) for found in root.iter(f"{SVG}text")]


def test_1f1b_in_the_terminal_is_the_picture_of_the_papers() -> None:
    """P=3, N=3, B=2F: the staircase, the alternation and the drain, five columns a second."""
    rows = [line for line in as_text(one_way(3, 3)).splitlines() if line.startswith("d") and "|" in line]
    assert [row.split("|")[1].rstrip() for row in rows] == [
        "F0---F1---F2---                    B0========     B1========     B2========",
        "     F0---F1---          B0========F2---B1========     B2========",
        "          F0---B0========F1---B1========F2---B2========",
    ]


def test_durations_without_a_common_unit_are_drawn_to_scale() -> None:
    """Irrational times still fill the row."""
    plan = one_way(2, 3, forward_s=0.0123456789)
    rows = [line for line in as_text(plan).splitlines() if line.startswith("d") and "|" in line]
    assert len({len(row) for row in rows}) == 1
    assert all("F0" in row and "B2" in row for row in rows)


def test_the_table_says_what_made_the_peak_and_which_device_is_over() -> None:
    """Stage 0 of 1F1B with P=4 holds four stashes; a limit of five MiB is exceeded."""
    drawn = as_text(one_way(4, 8, memory_bytes=5 * MIB))
    assert "stashes 4 MiB" in drawn
    assert drawn.count("OVER") == 1


def test_percentages_never_hide_a_gap() -> None:
    """Zero is written only for zero."""
    assert [text.percent(x) for x in (0.0, 1e-9, 3 / 11, 0.0002)] == ["0 %", "0 %", "27.3 %", "0.02 %"]


def test_the_svg_draws_every_operation_and_numbers_them() -> None:
    """P=2, N=4: sixteen bars with tooltips, each with its micro-batch, after the picture's own title."""
    root = as_svg(one_way(2, 4))
    titles = [found.text or "" for found in root.iter(f"{SVG}title")][1:]
    assert len(titles) == 16
    assert "F stage 0, micro-batch 3: " in " ".join(titles)
    assert [words(root).count(str(m)) >= 4 for m in range(4)] == [True] * 4


def test_the_svg_says_step_bound_gap_and_bubble() -> None:
    """The second line of the title."""
    found = " ".join(words(as_svg(one_way(2, 4))))
    for part in ("step 15 s", "bound 12 s", "gap 25.0 %", "bubble 20.0 %", "of 1 GiB", "forward F", "idle"):
        assert part in found


def test_the_two_directions_have_two_hues() -> None:
    """Bars of micro-batch 0 (down) and 1 (up) differ in colour, and the legend explains it."""
    root = as_svg(both_ways())
    fills = {found[0].text or "": found.get("fill") for found in root.iter(f"{SVG}rect") if len(found)}
    down = next(fill for title, fill in fills.items() if title.startswith("F stage 0, micro-batch 0"))
    up = next(fill for title, fill in fills.items() if title.startswith("F stage 0, micro-batch 1"))
    assert down != up
    assert "orange ones up" in " ".join(words(root))


V, ROUND = (0, 1, 2, 3, 3, 2, 1, 0), (0, 1, 2, 3, 0, 1, 2, 3)
DIRECTIONS = {
    "straight": {(0, 1, 2, 3): 0, (3, 2, 1, 0): 1},
    "shifted": {(2, 3, 0, 1): 0, (1, 0, 3, 2): 1, (3, 0, 1, 2): 0, (0, 3, 2, 1): 1},
    "V": {V: 0, tuple(3 - d for d in V): 1},
    "W": {V + V: 0, tuple(3 - d for d in V + V): 1},
    "round-robin": {ROUND: 0, ROUND[::-1]: 1, ROUND[2:6]: 0},
    "some devices only": {(0, 2): 0, (2, 0): 1, (1, 1, 3, 3): 0, (3, 3, 1): 1},
    "one device": {(0,): 0, (2, 2): 0},
}


@pytest.mark.parametrize("shape", DIRECTIONS)
def test_directions_are_those_of_the_first_hop(shape: str) -> None:
    """Down is 0 and up is 1; each V, W and round-robin route is told from its mirror image."""
    for route, expected in DIRECTIONS[shape].items():
        assert direction(Pipeline(route, route, (0,)), 4) == expected, route


def test_directions_of_two_devices() -> None:
    """One to the other is down, back is up, however often it is repeated."""
    for route, expected in {(0, 1): 0, (1, 0): 1, (0, 1, 1, 0): 0, (1, 0, 0, 1): 1, (1, 0, 1, 0): 1}.items():
        assert direction(Pipeline(route, route, (0,)), 2) == expected, route


def test_two_vs_in_opposite_directions_have_two_hues() -> None:
    """In the picture: forwards of stage 0 of a V down and of its mirror image."""
    there, back = (0, 1, 2, 3, 3, 2, 1, 0), (3, 2, 1, 0, 0, 1, 2, 3)
    root = as_svg(routed([(there, there), (back, back)], micro_batches=2))
    fills = {found[0].text or "": found.get("fill") for found in root.iter(f"{SVG}rect") if len(found)}
    assert [fills[title] for title in sorted(fills) if title.startswith("F stage 0, ")] == [
        paint(Kind.F, 0, 0.0).fill, paint(Kind.F, 1, 1.0).fill,
    ]  # fmt: skip
    assert "orange ones up" in " ".join(words(root))


@pytest.mark.parametrize("kind", [Kind.F, Kind.B, Kind.I, Kind.R, Kind.W, Kind.REDUCE, Kind.STEP])
def test_every_kind_has_a_paint(kind: Kind) -> None:
    """Colours are SVG colours or patterns, for both directions and all shades."""
    for hue in (0, 1):
        for shade in (0.0, 0.5, 1.0):
            assert paint(kind, hue, shade).fill.startswith(("#", "url(#"))


def test_the_svg_has_the_critical_path_what_binds_and_the_gaps_causes() -> None:
    """The line begins at 0 and ends with the step; gaps have the colours of their causes."""
    plan = one_way(4, 8, memory_bytes=6 * MIB)
    root = as_svg(plan)
    said = " ".join(words(root))
    assert "what binds: what 10 % more speed takes off the step: all devices 9.1 %" in said
    assert "waits: memory full" in said
    (path,) = [found.get("d") or "" for found in root.iter(f"{SVG}path") if found.get("stroke") == "#c2185b"]
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", path)]
    assert (min(xs), max(xs)) == (draw_timeline.LEFT, draw_timeline.LEFT + draw_timeline.PLOT)
    full = [span for span in facts(plan).spans if span.cause is Cause.MEMORY]
    drawn = [found for found in root.iter(f"{SVG}rect") if found.get("fill") == IDLE[Cause.MEMORY][0]]
    assert len(drawn) == len(full) + 1  # and one in the legend
    scale = draw_timeline.PLOT / simulate(plan).step_s
    widths = [float(found.get("width") or 0) for found in drawn][1:]  # the legend's is the first
    assert widths == pytest.approx([(x.end_s - x.start_s) * scale for x in full], abs=0.06)


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_timeline_is_drawn_without_a_browser(form: str, begins: bytes) -> None:
    """With hatches, copies, and names of every sort; the same plan is the same file."""
    pytest.importorskip("matplotlib")
    for plan in (pictured()["apart, offload"], one_way(2, 2, name='<b>"$x$\x1b[2J' + "w" * 200)):
        made = draw_timeline.drawing(plan, simulate(plan), forecast_of(plan))
        found = [to_png(made) if form == "png" else to_pdf(made) for _ in range(2)]
        assert found[0].startswith(begins)
        assert found[0] == found[1]


def test_names_are_escaped() -> None:
    """A model's name is text, never markup."""
    root = as_svg(one_way(2, 2, name='<script>alert("&")</script>'))
    assert any("<script>" in word for word in words(root))
    assert not list(root.iter(f"{SVG}script"))


def test_pictures_of_large_plans_stay_small() -> None:
    """Beyond some thousand operations tooltips are dropped."""
    plan = one_way(8, 400)
    drawn = draw_timeline.render(plan, simulate(plan), forecast_of(plan))
    assert drawn.count("<title>") == 1
    assert len(drawn) < 3_000_000


def test_a_plan_that_takes_no_time_is_drawn() -> None:
    """Zero is allowed for every cost."""
    plan = one_way(2, 2, forward_s=0.0)
    assert as_svg(plan).tag == f"{SVG}svg"
    assert "what made the peak" in as_text(plan)


def test_memory_stands_under_the_timeline() -> None:
    """1F1B with P=3, N=3, B=2F: 3, 2 and 1 stashes besides parameters and gradients, in tenths of the largest peak."""
    drawn = [line.split("|") for line in as_text(one_way(3, 3)).splitlines() if "|" in line]
    rows = {label.strip(): cells for label, cells, _ in drawn}
    assert {len(cells) for cells in rows.values()} == {75}
    assert rows["m0"] == "6" * 5 + "8" * 5 + "*" * 35 + "8" * 15 + "6" * 15
    assert rows["m2"] == "4" * 10 + "6" * 45 + "4" * 20


def test_copies_and_hosts_have_rows_in_the_terminal() -> None:
    """An offloading plan: copies under their devices, the host's memory under theirs."""
    drawn = as_text(pictured()["apart, offload"])
    labels = [line.split("|")[0].strip() for line in drawn.splitlines() if "|" in line]
    assert labels == ["d0", "d0>", "d1", "d1>", "d1<", "d2", "d2<", "m0", "m1", "m2", "h0"]
    assert "memory of every host" in drawn


@pytest.mark.parametrize("name", ["漢字" * 80, "a\x1b[2Jb\nc", "é" * 200])
def test_names_stay_on_their_lines_and_take_no_control_of_the_terminal(name: str) -> None:
    """Wide letters count twice, control characters are replaced."""
    drawn = as_text(one_way(2, 4, name=name))
    assert max(map(cell_len, drawn.splitlines())) <= 80
    assert "\x1b" not in drawn


def test_many_devices_are_drawn_in_the_terminal() -> None:
    """Labels of three characters; a row each."""
    drawn = as_text(one_way(20, 2))
    assert max(map(len, drawn.splitlines())) <= 80
    assert sum(line.startswith(("d", " d")) and "|" in line for line in drawn.splitlines()) == 20
