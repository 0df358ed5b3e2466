"""The explorer in a real browser: the limit along the frontier, two plans on one time axis, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chromium import CHROMIUM, MISSING, started
from instances import uniform
from pictures import NASTY, nasty_plan

from contraflow.planner.basics import format_bytes, format_seconds
from contraflow.planner.plan import COMPUTE, Plan
from contraflow.planner.problem import Cluster, SearchSpace, Workload
from contraflow.planner.search import FrontierPoint, frontier
from contraflow.planner.search import plan as search
from contraflow.planner.simulate import simulate
from contraflow.planner.view import Asked, Entry, comparison_page, explorer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
MODEL, CLUSTER = uniform(4, 1.0, 2.0, stash_bytes=4, output_bytes=0), Cluster.uniform(2, 1000)
SPACE = SearchSpace(recompute=False, offload=False, separate_backward=False)


@cache
def rows() -> tuple[Entry, ...]:
    """Three rows: two named schedules and the search."""
    found = []
    for name in ("1f1b", "gpipe", "search"):
        made = search(
            MODEL, CLUSTER, Workload(4), replace(SPACE, schedule=name), time_limit=5, workers=1, deterministic_limit=0.1
        ).plan
        assert made is not None
        assert made.forecast is not None
        found.append(
            Entry(name, "feasible", made.forecast.step_s, 0.2, max(made.forecast.peak_bytes), True, 0.0, plan=made)
        )
    return tuple(found)


@cache
def points() -> tuple[FrontierPoint, ...]:
    known = [entry.plan for entry in rows() if entry.plan is not None]
    return frontier(MODEL, CLUSTER, Workload(4), SPACE, 5, known, 60, workers=1, deterministic_limit=0.1)


def solved() -> list[FrontierPoint]:
    return [point for point in points() if point.plan is not None]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


def written(folder: Path, title: str = "toy", given: tuple[Entry, ...] | None = None, far: bool = True) -> Path:
    file = folder / "compare.html"
    file.write_text(comparison_page(title, given or rows(), Asked((1000, 1000), 10.0), points() if far else ()))
    return file


class Open:
    """A page that is open from disk, and what it complained about."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.page: Page = browser.new_page(**({"viewport": {"width": 1100, "height": 900}} | options))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.goto(file.as_uri())
        self.page.locator("#shown-said b").wait_for()

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "about:")):
            self.complaints.append(f"asked for {url}")

    def text(self, name: str) -> str:
        return self.page.locator(f"#{name}").inner_text()

    def pixels(self, name: str) -> int:
        return hash(self.page.evaluate("(id) => document.getElementById(id).toDataURL()", name))


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    found = Open(browser, written(tmp_path))
    yield found
    assert found.complaints == []
    found.page.close()


@pytest.mark.long
def test_the_limit_leads_along_the_frontier_by_keyboard(opened: Open) -> None:
    """At every stop the plan of that limit is drawn, with its step and peak; the picture changes with both."""
    slider = opened.page.locator("#limit")
    slider.focus()
    opened.page.keyboard.press("Home")
    pictures = set()
    for number, point in enumerate(solved()):
        assert point.forecast is not None
        if number:
            opened.page.keyboard.press("ArrowRight")
        bound = f", bound {format_seconds(point.bound_s)}" if point.bound_s > 0 else ""
        assert opened.text("limit-said") == format_bytes(point.limit_bytes) + bound
        assert f"step {format_seconds(point.forecast.step_s)}" in opened.text("shown-said")
        peak, limit = format_bytes(max(point.forecast.peak_bytes)), format_bytes(point.limit_bytes)
        assert f"peak {peak} of {limit}" in opened.text("shown-said")
        assert (slider.get_attribute("aria-valuetext") or "").startswith(format_bytes(point.limit_bytes))
        pictures.add(opened.pixels("shown"))
    assert len(pictures) == len(solved())
    opened.page.keyboard.press("ArrowRight")  # there is no further stop
    assert opened.text("limit-said").startswith(format_bytes(solved()[-1].limit_bytes) + ",")


def test_a_point_a_schedule_and_a_row_are_shown_when_clicked(opened: Open) -> None:
    first = solved()[0]
    assert first.forecast is not None
    number = points().index(first)
    opened.page.locator(f'[data-mark="point-{number}"]').dispatch_event("pointerdown", {"pointerId": 1})
    assert opened.text("limit-said").startswith(format_bytes(first.limit_bytes) + ",")
    assert opened.page.locator(".is-shown").count() == 1
    opened.page.locator('[data-mark="mark-0"]').dispatch_event("pointerdown", {"pointerId": 1})
    assert opened.page.locator("#shown-said b").inner_text() in ("1f1b", "gpipe")
    assert opened.text("limit-said").endswith("another plan is shown")
    opened.page.locator("tbody tr", has_text="search").locator("td.picture").click()
    assert opened.page.locator("#shown-said b").inner_text() == "search"
    assert not opened.page.locator("#opened").is_visible()


def test_dragging_over_the_staircase_moves_the_limit(opened: Open) -> None:
    box = opened.page.locator(".stairs svg").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] * 0.8
    opened.page.mouse.move(box["x"] + box["width"] * 0.2, y)
    opened.page.mouse.down()
    assert opened.text("limit-said").startswith(format_bytes(solved()[0].limit_bytes) + ",")
    opened.page.mouse.move(box["x"] + box["width"] * 0.99, y, steps=8)
    opened.page.mouse.up()
    assert opened.text("limit-said").startswith(format_bytes(solved()[-1].limit_bytes) + ",")


def compute(plan: Plan) -> list[list[tuple[str, int, tuple[str, ...], float]]]:
    return [
        [
            (x.op.kind.name, x.op.micro_batch, plan.stages[x.op.stage], x.start_s)
            for x in device.ops
            if x.op.kind in COMPUTE and x.end_s > x.start_s
        ]
        for device in simulate(plan).devices
    ]


def parted(a: Plan, b: Plan) -> float:
    """The first time at which the plans do not do the same, from the simulator's lists."""
    first = []
    for mine, other in zip(compute(a), compute(b), strict=True):
        differing = [k for k in range(max(len(mine), len(other))) if mine[k : k + 1] != other[k : k + 1]]
        first += [min(x[3] for x in (*mine[k : k + 1], *other[k : k + 1])) for k in differing[:1]]
    return min(first)


def test_two_plans_part_where_their_simulations_do(opened: Open) -> None:
    """GPipe against 1F1B, pinned; swapped they part at the same time."""
    one, other = (entry.plan for entry in rows()[:2])
    assert one is not None
    assert other is not None
    body = opened.page.locator("tbody tr")
    body.filter(has_text="gpipe").locator("td.picture").click()
    opened.page.locator("#pin").click()
    assert "The shown plan is the pinned one" in opened.text("parting")
    body.filter(has_text="1f1b").locator("td.picture").click()
    assert opened.page.locator("#pinned-said b").inner_text() == "gpipe"
    wanted = f"The plans part at {format_seconds(parted(one, other))}:"
    assert wanted in opened.text("parting")
    upper, lower = opened.pixels("pinned"), opened.pixels("shown")
    opened.page.locator("#swap").click()
    assert wanted in opened.text("parting")
    assert opened.page.locator("#shown-said b").inner_text() == "gpipe"
    assert opened.pixels("pinned") != upper
    assert opened.pixels("shown") != lower


def test_the_page_of_what_is_shown_opens_and_follows_the_limit(opened: Open) -> None:
    first, last = solved()[0].forecast, solved()[-1].forecast
    assert first is not None
    assert last is not None
    opened.page.locator("#limit").focus()
    opened.page.keyboard.press("End")
    opened.page.locator("#open").click()
    inside = opened.page.frame_locator("#opened iframe")
    inside.locator("#figures", has_text=format_seconds(last.step_s)).wait_for()
    opened.page.locator("#limit").focus()
    opened.page.keyboard.press("Home")
    above = opened.page.evaluate("window.scrollY")
    opened.page.locator('#open[aria-expanded="false"]').wait_for()  # not yet
    opened.page.locator('#open[aria-expanded="true"]').wait_for()
    inside.locator("#figures", has_text=format_seconds(first.step_s)).wait_for()
    assert opened.page.evaluate("window.scrollY") == above  # the slider stays under the hand
    opened.page.locator("#open").click()
    assert not opened.page.locator("#opened").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_explorer(browser: Browser, tmp_path: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = Open(browser, written(tmp_path), color_scheme=scheme)
    report = axe.Axe().run(found.page)
    assert report.violations_count == 0, report.generate_report()
    assert found.complaints == []
    found.page.close()


def test_light_and_dark_differ_in_the_staircase_and_the_timelines(browser: Browser, tmp_path: Path) -> None:
    file, seen = written(tmp_path), []
    for scheme in ("light", "dark"):
        found = Open(browser, file, color_scheme=scheme)
        ground = found.page.evaluate("getComputedStyle(document.querySelector('.stairs rect')).fill")
        seen.append((ground, found.pixels("shown")))
        found.page.close()
    assert seen[0][0] == "rgb(255, 255, 255)"
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, tmp_path: Path) -> None:
    """390 pixels wide, by touch: taps on the slider and on a button."""
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    found = Open(browser, written(tmp_path), **phone)
    assert found.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    box = found.page.locator("#limit").bounding_box()
    assert box is not None
    found.page.touchscreen.tap(box["x"] + 3, box["y"] + box["height"] / 2)
    assert found.text("limit-said").startswith(format_bytes(solved()[0].limit_bytes) + ",")
    found.page.locator("#pin").tap()
    assert "The shown plan is the pinned one" in found.text("parting")
    assert found.complaints == []
    found.page.close()


@pytest.mark.parametrize("far", [True, False])
def test_names_are_text_and_stay_inside(browser: Browser, tmp_path: Path, far: bool) -> None:
    """Markup, quotes, what a terminal acts upon and 200 letters: nothing runs, nothing is wider than the page."""
    name = f"{NASTY}\x1b[2J\"'<img src=x onerror=alert(1)>" + "w" * 200
    given = (*rows(), Entry(name, "feasible", 1.0, 0.1, 5, True, 0.0, "", nasty_plan()))
    found = Open(browser, written(tmp_path, name, given, far), viewport={"width": 600, "height": 800})
    found.page.locator("tbody tr", has_text="img src").locator("td.picture").click()
    found.page.locator("#pin").click()
    assert "<img src=x" in found.text("pinned-said")
    assert "\x1b" not in found.page.content()
    assert found.page.locator("img").count() == 0
    assert found.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert found.complaints == []
    found.page.close()


def test_without_a_frontier_rows_are_compared(browser: Browser, tmp_path: Path) -> None:
    """No slider and no staircase; the fastest is above the fastest named schedule."""
    found = Open(browser, written(tmp_path, far=False))
    assert found.page.locator("#limit").count() == 0
    assert found.page.locator(".stairs").count() == 0
    assert "step" in found.text("shown-said")
    assert found.page.locator("#pinned-said b").inner_text() in ("1f1b", "gpipe")
    assert found.complaints == []
    found.page.close()


def test_a_plan_that_is_too_large_is_said_to_be(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are there, and nothing opens."""
    monkeypatch.setattr(explorer, "_OPENED", 5)
    found = Open(browser, written(tmp_path))
    assert found.page.locator("#open").is_disabled()
    assert found.page.locator("tbody button").count() == 0
    assert "step" in found.text("shown-said")
    assert found.complaints == []
    found.page.close()


def test_the_first_plans_are_in_the_page_and_what_has_no_room_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows()[0].plan
    assert made is not None
    size = sum(map(len, made.orders))
    monkeypatch.setattr(explorer, "_TOGETHER", 2 * size + 1)
    shown = [explorer.Shown("a", made, None, 0.0)] * 3
    assert [one.data for one in explorer.with_room(shown)] == [True, True, False]


def test_at_first_the_frontier_is_at_the_limit_that_was_asked_for() -> None:
    shown = explorer.with_room(explorer.of_points(points()))
    for number, point in enumerate(solved()):
        assert explorer.explorer_data(shown, points(), point.limit_bytes)["start"] == number
    assert explorer.explorer_data(shown, points(), None)["start"] == len(solved()) - 1
