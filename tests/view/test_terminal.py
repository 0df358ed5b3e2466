"""The timeline in a terminal: its real width, its colours, and samples of plans that are too long, which say so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import run
from instances import named
from mutations import HOSTILE
from pictures import one_way, pictured, routed
from rich.cells import cell_len

from contraflow.planner.plan import Kind, Plan
from contraflow.planner.plan_file import save_plan
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.simulate import simulate
from contraflow.planner.view import text
from contraflow.planner.view.palette import flat
from contraflow.planner.view.terminal import PLAIN, Screen, timeline_text

STYLE = re.compile(r"\x1b\[[\d;]*m")
COLOURS = ("standard", "256", "truecolor")


def drawn(plan: Plan, screen: Screen = PLAIN) -> str:
    """The whole text."""
    assert plan.forecast is not None
    return text.render(plan, simulate(plan), plan.forecast, screen)


def rows(said: str) -> dict[str, str]:
    """Rows of a timeline by label, without colours."""
    found = (line.split("|") for line in STYLE.sub("", said).splitlines() if line.count("|") == 2)
    return {label.strip(): cells for label, cells, _ in found}


def uneven() -> Plan:
    """Two devices, eight micro-batches, times as measured: the shortest op is a sixtieth of the step."""
    layers = [Layer("a", 0.0313, 0.0557, separable=False), Layer("b", 0.0051, 0.0479, separable=False)]
    return named("1f1b", 2, 8, model=ModelGraph.chain(layers))


def test_the_demos_plan_is_drawn() -> None:
    """All forwards of device 0 are there with their numbers, at 80 columns."""
    found = rows(drawn(uneven()))
    assert [f"F{m}" in found["d0"] for m in range(8)] == [True] * 8
    assert all(f"B{m}" in found["d1"] for m in range(8))


@pytest.mark.parametrize("colours", [None, *COLOURS])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 1), (2, 8), (4, 8), (12, 24), (4, 300)])
def test_a_picture_is_as_wide_as_the_terminal_and_no_wider(
    devices: int, micro_batches: int, width: int, colours: str | None
) -> None:
    """Whatever the size: what is longer than the columns is sampled, and says so; the table stays."""
    plan = one_way(devices, micro_batches, name="a model with quite a long name " * 4)
    timeline, screen = simulate(plan), Screen(width, colours)
    said = STYLE.sub("", timeline_text(plan, timeline, screen))
    lines = said.splitlines()
    assert max(map(cell_len, lines)) <= width
    room = (width - 3 - len(lines[0].split("|")[0])) * screen.halves
    assert max(len(cells) for cells in rows(said).values()) >= min(room, timeline.step_s) / screen.halves / 2
    assert ("sampled" in " ".join(lines)) == (timeline.step_s > room)
    whole = drawn(plan, screen)
    assert "what made the peak" in whole
    assert max(map(cell_len, STYLE.sub("", whole).splitlines())) <= max(width, 80)  # the table is no narrower


def test_samples_are_what_runs_at_the_middle_of_a_column() -> None:
    """A thousand forwards and backwards: every column's kind is that of the op at its instant, or blank."""
    plan = one_way(4, 300)
    timeline = simulate(plan)
    for number, device in enumerate(timeline.devices):
        cells = rows(timeline_text(plan, timeline))[f"d{number}"]
        column_s = timeline.step_s / len(cells)
        for place, cell in enumerate(cells):
            at = (place + 0.5) * column_s
            kinds = {item.op.kind for item in device.ops if item.start_s - 1e-6 <= at <= item.end_s + 1e-6}
            assert {Kind.F: "-", Kind.B: "="}.get(next(iter(kinds), Kind.FREE), " ") == cell or len(kinds) > 1


def test_colours_are_those_of_kind_and_direction_in_half_blocks() -> None:
    """Two directions, blue and orange, light forwards and dark backwards; cells are halved where ops change in them."""
    plan = routed([((0, 1), (0, 1)), ((1, 0), (1, 0))])
    said = timeline_text(plan, simulate(plan), Screen(80, "truecolor"))

    def ground(kind: Kind, hue: int, shade: int) -> str:
        red, green, blue = (int(flat(kind, hue, shade)[0][k : k + 2], 16) for k in (1, 3, 5))
        return f"48;2;{red};{green};{blue}m"

    first, second = said.splitlines()[:2]
    assert ground(Kind.F, 0, 0) in first.split("\x1b[0m")[0]
    assert ground(Kind.F, 1, 1) in second
    for kind, hue in ((Kind.F, 0), (Kind.F, 1), (Kind.B, 0), (Kind.B, 1)):
        assert ground(kind, hue, hue) in said
    assert "▌" in timeline_text(uneven(), simulate(uneven()), Screen(80, "truecolor"))


def test_an_idle_half_has_the_terminals_own_ground() -> None:
    """No half block is drawn in the colour that text has there."""
    said = timeline_text(uneven(), simulate(uneven()), Screen(80, "truecolor"))
    halves = re.findall(r"\x1b\[([\d;]*)m[▌▐]+", said)
    assert halves
    assert all("38;2" in style for style in halves)
    assert "▐" in said


def test_half_blocks_are_twice_as_fine() -> None:
    """100 ops in a row, which letters sample, are all there with colours."""
    plan = one_way(1, 50)
    assert "sampled" in drawn(plan)
    coloured = timeline_text(plan, simulate(plan), Screen(80, "256"))
    assert "sampled" not in coloured
    assert "forward" in coloured


@pytest.mark.parametrize("name", [HOSTILE[-1], "".join(HOSTILE[:-1]), "\x1b[31m<script>\"'"])
def test_the_only_escapes_are_the_pictures_own_colours(name: str) -> None:
    """Names have none, in colours as without."""
    plan = one_way(2, 4, name=name)
    assert "\x1b" not in drawn(plan)
    for colours in COLOURS:
        found = drawn(plan, Screen(80, colours))
        assert "\x1b" not in STYLE.sub("", found)
        assert STYLE.sub("", found).partition("\n\n")[0] == drawn(plan).partition("\n\n")[0]


@pytest.mark.parametrize("name", list(pictured()))
def test_copies_have_rows_with_colours_too(name: str) -> None:
    plan = pictured()[name]
    assert list(rows(drawn(plan, Screen(100, "truecolor")))) == list(rows(drawn(plan)))


def test_a_plan_that_takes_no_time_says_so() -> None:
    assert "nothing takes time" in drawn(one_way(2, 2, forward_s=0.0))


def test_show_asks_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 120 columns with colours; none, a file and NO_COLOR have no colours."""
    save_plan(uneven(), tmp_path / "plan.json")
    plain = run("show", tmp_path / "plan.json").stdout
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    for variable, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "120"}.items():
        monkeypatch.setenv(variable, value)
    for variable in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(variable, raising=False)
    coloured = run("show", tmp_path / "plan.json").stdout
    assert "\x1b[" in coloured
    assert 80 < len(rows(coloured)["d0"]) <= 120
    assert run("show", tmp_path / "plan.json", "-o", tmp_path / "plan.txt").exit_code == 0
    assert (tmp_path / "plan.txt").read_text() == plain
    monkeypatch.setenv("NO_COLOR", "1")
    bare = run("show", tmp_path / "plan.json").stdout
    assert "\x1b" not in bare
    assert len(rows(bare)["d0"]) > 80
