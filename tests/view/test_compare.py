"""`contraflow compare`: the page of its schedules, and the page of a plan and its run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from commands import refused, run
from pictures import MIB, one_way, two_device_plan
from traces import simulated_run

from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import load_plan
from contraflow.planner.problem import SearchSpace, Workload
from contraflow.planner.runs.trace_file import save_trace
from contraflow.planner.search import plan as search
from contraflow.planner.simulate import evaluate
from contraflow.planner.view import html
from contraflow.planner.view.compare_page import Asked, Entry, render
from contraflow.planner.view.small_timeline import Scales
from contraflow.planner.view.text import limit_text

LIMIT = 9 * MIB


class Table(HTMLParser):
    """The title, the rows by name with their class and their shapes by class, and what is in the scripts of data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title, self.rows, self.data, self._at = "", {}, {}, ""
        self.row: dict[str, Any] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "tr":
            self.row = {"class": given.get("class"), "held": [], "full": [], "limit": [], "bound": [], "plan": None}
        elif tag == "th" and given.get("scope") == "row":
            self.rows[given["data-value"]] = self.row
        elif tag == "button" and "data-plan" in given:
            self.row["plan"] = given["data-plan"]
        elif tag in ("rect", "line") and given.get("class") in self.row:
            self.row[str(given["class"])].append(given)
        self._at = str(given.get("id")) if given.get("type") == "application/json" else tag

    def handle_data(self, data: str) -> None:
        if self._at == "title" and not self.rows:
            self.title += data
        elif self._at == "frame" or self._at.startswith("plan-"):
            self.data[self._at] = self.data.get(self._at, "") + data


def entry(name: str, plan: Plan, limit: int = LIMIT) -> Entry:
    assert plan.forecast is not None
    found = plan.forecast
    most = max(found.peak_bytes)
    return Entry(name, "feasible", found.step_s, found.bubble, most, most <= limit, 0.1, "", plan)


def limited(plan: Plan, limit: int) -> Plan:
    """The plan of a problem with this limit."""
    problem = replace(plan.problem, workload=replace(plan.problem.workload, memory_limit_bytes=limit))
    made = replace(plan, problem=problem)
    return made.with_forecast(evaluate(made))


# ---------------------------------------------------------------- schedules


def page_of(limit: int = LIMIT) -> Table:
    """Two plans that take as long, the first of which needs more memory; one that takes longer; one that is none."""
    hungry, modest, long = (limited(x, limit) for x in (by("gpipe"), by("1f1b"), one_way(2, 8, forward_s=1.1)))
    entries = [entry("slow", long, limit), entry("hungry", hungry, limit), Entry("no", "does not apply", note="why")]
    return Table(render("toy", [*entries, entry("modest", modest, limit)], Asked((limit, limit), 24.0)))


@cache
def by(schedule: str) -> Plan:
    """The schedule of eight micro-batches on two devices, with all stashes kept there."""
    found = search(
        two_device_plan().problem.model, two_device_plan().problem.cluster, Workload(8),
        space=SearchSpace(schedule=schedule, recompute=False, offload=False), time_limit=5, workers=1,
        deterministic_limit=0.1,
    ).plan  # fmt: skip
    assert found is not None
    return found


@pytest.fixture(scope="module")
def page() -> Table:
    return page_of()


def test_what_fits_is_first_and_what_does_not_fit_is_never_the_best(page: Table) -> None:
    """GPipe takes as long as 1F1B and holds eight stashes: it comes behind all that fit."""
    assert list(page.rows) == ["modest", "slow", "hungry", "no"]
    assert [row["class"] for row in page.rows.values()] == ["best", "", "over", "none"]


def test_the_title_says_limit_and_bound(page: Table) -> None:
    assert page.title.strip() == "toy, limit 9 MiB, bound 24 s"
    assert Asked((LIMIT, 2 * LIMIT)).text == "limits 9 MiB to 18 MiB"
    assert Asked().text == ""


def test_all_rows_have_one_memory_scale_with_the_limit_as_a_line(page: Table) -> None:
    """The same bytes are as wide in every row; the line is at the same place, and what is beyond it is over."""
    per_byte, lines = set(), set()
    for name, plan in (("modest", by("1f1b")), ("hungry", by("gpipe"))):
        row = page.rows[name]
        bars = {float(x["y"]): float(x["width"]) for x in [*row["held"], *row["full"]]}
        assert plan.forecast is not None
        per_byte |= {
            round(width / peak * MIB, 2)
            for (_, width), peak in zip(sorted(bars.items()), plan.forecast.peak_bytes, strict=True)
        }
        lines |= {float(x["x"]) for x in row["limit"]}
        assert len(row["limit"]) == 2
    assert max(per_byte) - min(per_byte) < 0.05
    assert len(lines) == 1
    assert [len(page.rows[name]["full"]) > 0 for name in ("modest", "hungry")] == [False, True]


def test_the_bound_is_a_line_at_one_place_in_every_timeline(page: Table) -> None:
    drawn = [row["bound"] for row in page.rows.values() if row["plan"]]
    assert {len(lines) for lines in drawn} == {1}
    assert len({lines[0]["x1"] for lines in drawn}) == 1
    assert Scales.of([30.0], [1], [1], 40.0).seconds == 40.0


def test_every_row_opens_its_own_plan(page: Table) -> None:
    """Its data are those of the plan's own page, and the page they go into is that page."""
    modest = limited(by("1f1b"), LIMIT)
    frame = json.loads(page.data["frame"])
    filled = frame["page"].replace(frame["mark"], page.data[page.rows["modest"]["plan"]])
    (own,) = re.findall(r'id="plan">(.*?)</script>', html(modest), re.DOTALL)
    (same,) = re.findall(r'id="plan">(.*?)</script>', filled, re.DOTALL)
    assert json.loads(same) == json.loads(own)
    assert frame["page"].count(frame["mark"]) == 1
    assert [row["plan"] is not None for row in page.rows.values()] == [True, True, True, False]
    assert len({row["plan"] for row in page.rows.values()}) == 4


def test_a_limit_far_beyond_all_peaks_is_said_and_no_line() -> None:
    found = Scales.of([1.0], [10 * MIB], [1000 * MIB], 0.0)
    assert (found.bytes, found.far) == (10 * MIB, True)
    assert not Scales.of([1.0], [10 * MIB], [20 * MIB], 0.0).far


def test_memory_without_a_limit_is_no_number() -> None:
    assert [limit_text(limit) for limit in (LIMIT, 1 << 60)] == ["9 MiB", "any size"]


def test_compare_writes_rows_with_the_problems_limits(folder: Path) -> None:
    """What does not fit is drawn over the limit that was asked for, not over that under which it was found."""
    given = ["model.json", "--cluster", "cluster.toml", "--micro-batches", 8, "--memory-limit", LIMIT]
    made = run(
        "compare", *given, "--time-limit", 2, "--no-recompute", "--no-offload", "--as", "html", "-o", "page.html"
    )
    assert made.exit_code == 0, made.output
    text = (folder / "page.html").read_text()
    table = Table(text)
    assert "limit 9 MiB, bound " in table.title
    assert "TiB" not in text.partition('<script type="application/json"')[0]
    assert table.rows["gpipe"]["class"] == "over"
    assert next(iter(table.rows.values()))["class"] == "best"
    data = json.loads(table.data[table.rows["gpipe"]["plan"]])
    assert {device["limit_bytes"] for device in data["devices"]} == {LIMIT}


# ---------------------------------------------------------------- a plan and its run


def test_compare_measured_writes_a_page_with_the_run(folder: Path) -> None:
    """To the file that -o names, or to stdout; without --as html the table, and nothing written."""
    save_trace(simulated_run(load_plan(folder / "good.json"), slower=2.0), folder / "run.json")
    given = ("compare", "--measured", folder / "run.json", folder / "good.json")
    written = run(*given, "--as", "html", "-o", folder / "run.html")
    assert (written.exit_code, written.stdout) == (0, "")
    page = (folder / "run.html").read_text()
    assert '"run":{"step_s":30.0' in page
    assert run(*given, "--as", "html").stdout == page
    assert "step: 15 s forecast, 30 s measured" in run(*given).stdout
    both = run(*given, "--as", "html", "-o", folder / "again.html", "--json")
    assert json.loads(both.stdout)["step_s"] == pytest.approx(30.0)
    assert (folder / "again.html").read_text() == page


def test_what_cannot_be_drawn_of_a_run_is_refused_before_anything_is_read(folder: Path) -> None:
    given = ("compare", "--measured", "none.json", "none.json")
    assert "--measured is drawn --as html" in refused(*given, "--as", "svg", "-o", folder / "x.svg")
    assert "leave out --frontier" in refused(*given, "--as", "html", "--frontier", 3)
    assert "-o needs --as" in refused(*given, "-o", folder / "x.html")
    assert not (folder / "x.html").exists()
