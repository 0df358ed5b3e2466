"""Step time against memory: never worse with more of it, every plan checked; the page and the plots of a comparison."""

from __future__ import annotations

import functools
import html
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from instances import uniform
from pictures import MIB, chain

from contraflow.__main__ import cli
from contraflow.planner.basics.errors import InputError
from contraflow.planner.check import check
from contraflow.planner.plan import Plan
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import SCHEDULES
from contraflow.planner.search import Frontier, frontier
from contraflow.planner.search.driver import plan as search
from contraflow.planner.view import compare_page, drawing
from contraflow.planner.view import frontier as view
from contraflow.planner.view.compare_page import Entry

MODEL, CLUSTER, WORKLOAD = uniform(4, 1.0, 2.0, stash_bytes=4, output_bytes=0), Cluster.uniform(2, 1000), Workload(4)
SPACE = SearchSpace(recompute=False, offload=False, separate_backward=False)


@functools.cache
def solved(count: int = 5) -> Frontier:
    """A frontier of a model whose stash is all that takes memory, knowing 1F1B."""
    return frontier(MODEL, CLUSTER, WORKLOAD, SPACE, count, [one_f_one_b()], 60, deterministic_limit=0.2)


@functools.cache
def one_f_one_b() -> Plan:
    """The named schedule's plan."""
    found = search(MODEL, CLUSTER, WORKLOAD, replace(SPACE, schedule="1f1b"), time_limit=5).plan
    assert found is not None
    return found


# ---------------------------------------------------------------- the frontier


def test_more_memory_never_costs_time() -> None:
    """Limits ascend from one without a plan to one that does not bind; steps and bounds never grow."""
    points = solved()
    limits = [point.limit_bytes for point in points]
    assert limits == sorted(set(limits))
    assert len(points) <= 5
    assert (points[0].plan, points[0].status) == (None, "infeasible")
    found = [point.forecast for point in points[1:]]
    steps = [x.step_s for x in found if x is not None]
    assert len(steps) == len(found)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]
    bounds = [point.bound_s for point in points]
    assert bounds == sorted(bounds, reverse=True)


def test_every_plan_fits_its_limit_and_passes_check() -> None:
    """The limit is the plan's own workload's, its forecast says bound, gap and status."""
    for point in solved():
        if point.plan is not None and point.forecast is not None:
            assert point.plan.problem.workload.memory_limit_bytes == point.limit_bytes
            assert check(point.plan) == []
            assert point.forecast.bound_s == point.bound_s <= point.forecast.step_s * (1 + 1e-9)
            assert point.forecast.status == point.status


def test_the_ends_are_the_leanest_plan_and_the_unlimited_one() -> None:
    """One micro-batch in flight needs both stages' stashes once, 8 bytes a device; the optimum is the workload's."""
    points = solved()
    assert points[1].limit_bytes == 8
    free = search(MODEL, CLUSTER, WORKLOAD, SPACE, time_limit=5)
    assert points[-1].forecast is not None
    assert points[-1].forecast.step_s <= free.bound_s * (1 + 1e-9) or free.status != "optimal"


def test_a_known_plan_is_never_beaten_by_the_frontier_upwards() -> None:
    """At every limit that holds 1F1B, the step is at most 1F1B's."""
    known = one_f_one_b().forecast
    assert known is not None
    holding = [p for p in solved() if p.limit_bytes >= max(known.peak_bytes)]
    assert holding
    assert all(p.forecast is not None and p.forecast.step_s <= known.step_s * (1 + 1e-9) for p in holding)


def test_a_cluster_that_holds_nothing_is_one_infeasible_point() -> None:
    """As an answer, not an exception; fewer than three limits are no frontier."""
    points = frontier(MODEL, Cluster.uniform(2, 1), WORKLOAD, SPACE, time_limit=1)
    assert [(point.status, point.plan, point.limit_bytes) for point in points] == [("infeasible", None, 1)]
    assert "infeasible" in view.table(points)
    assert drawing.to_svg(view.drawing(points))
    with pytest.raises(InputError, match="at least 3 limits, got 2"):
        frontier(MODEL, CLUSTER, WORKLOAD, SPACE, 2)


# ---------------------------------------------------------------- table and plots


def test_the_table_has_a_line_for_every_limit() -> None:
    """Within 80 columns, and below them what the stars say."""
    lines = view.table(solved()).splitlines()
    stars = [k for k, line in enumerate(lines) if line.startswith("* ")]
    assert (stars or [len(lines)])[0] == len(solved()) + 1
    assert bool(stars) == any("feasible*" in line for line in lines)
    assert "infeasible" in lines[1]
    assert max(map(len, lines)) <= 80


def test_the_staircase_falls_where_a_known_plan_starts_to_fit() -> None:
    """Named schedules are plans too: between two limits the best step known is that of the leaner of them."""
    mark = view.mark("1f1b", one_f_one_b())
    stairs = view.best_steps(solved(), [mark])
    assert stairs == sorted(stairs)
    assert [step for _, step in stairs] == sorted((step for _, step in stairs), reverse=True)
    assert min(step for peak, step in stairs if peak <= mark.peak_bytes) <= mark.step_s
    assert view.best_steps([], [mark, view.Mark("worse", mark.peak_bytes, 1e9)]) == [(mark.peak_bytes, mark.step_s)]


def test_the_plot_names_the_schedules() -> None:
    """As text, whatever they are called; a note on every point."""
    marks = [view.mark('<b>"1f1b"', one_f_one_b())]
    root = ElementTree.fromstring(drawing.to_svg(view.drawing(solved(), marks, "<i>")))
    texts = ["".join(found.itertext()) for found in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {'<b>"1f1b"', "<i>", "named schedules"} <= set(texts)
    notes = [found.text or "" for found in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(note.startswith("limit ") for note in notes) == len(solved()) - 1


def test_matplotlib_draws_the_same_stairs() -> None:
    """Where it is installed."""
    pytest.importorskip("matplotlib")
    made = view.figure(solved(), [view.mark("$1f1b$", one_f_one_b())], "$x$")
    (line,) = [x for x in made.get_axes()[0].get_lines() if x.get_label() == "best step found"]
    stairs = view.best_steps(solved(), [view.mark("", one_f_one_b())])
    assert list(line.get_ydata())[:-1] == [step for _, step in stairs]
    assert drawing.png_of(made, 50).startswith(b"\x89PNG")


def test_ticks_are_round() -> None:
    """Seconds by 1, 2 and 5, bytes by powers of two."""
    assert view.ticks(0.0, 97.0, 6) == [0, 20, 40, 60, 80]
    assert view.ticks(3.0 * MIB, 17.0 * MIB, 6, base=2) == [4 * MIB, 8 * MIB, 12 * MIB, 16 * MIB]
    assert view.ticks(5.0, 5.0, 6) == [5.0]


# ---------------------------------------------------------------- the page


class Page(HTMLParser):
    """Tags with attributes, cells by row, text; what loads something is collected."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def entries() -> list[Entry]:
    """A plan that fits, one that does not, and a schedule that does not exist here."""
    plan = one_f_one_b()
    assert plan.forecast is not None
    peak = max(plan.forecast.peak_bytes)
    return [
        Entry("1f1b", "feasible", plan.forecast.step_s, 0.2, peak, True, 0.1, plan=plan),
        Entry("<script>alert(1)</script>", "infeasible", 99.0, 0.5, 2 * peak, False, plan=plan),
        Entry("gems", "does not apply", note='needs "two" & more'),
    ]


def test_the_page_is_self_contained_and_accessible() -> None:
    """Nothing is loaded, scripts are those whose hash the page names, every picture and heading says what it is."""
    text = compare_page.render("<toy>", entries(), points=solved(), frontier_text=view.table(solved()))
    page = Page(text)
    assert not [tag for tag, attrs in page.tags if {"src", "href", "onclick"} & set(attrs)]
    scripts = [attrs.get("type") for tag, attrs in page.tags if tag == "script"]
    assert [kind for kind in scripts if kind != "application/json"] == [None]
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    heads = [attrs for tag, attrs in page.tags if tag == "th"]
    assert all(attrs.get("scope") in ("col", "row") for attrs in heads)
    assert all(attrs.get("aria-label") for tag, attrs in page.tags if tag == "svg")
    assert "prefers-color-scheme:dark" in text
    assert "&lt;script&gt;alert(1)" in text
    assert html.escape('needs "two" & more') in text
    assert re.search(r'<tr class="over"><th scope="row" data-value="&lt;script', text)
    assert '<tr class="best"><th scope="row" data-value="1f1b"' in text


def test_pages_of_large_plans_stay_small() -> None:
    """A timeline of thousands of operations is sampled; the plan itself is data beside it."""
    model, workload = chain(2), Workload(2000)
    found = search(model, Cluster.uniform(2, 1 << 40), workload, SearchSpace("1f1b"), time_limit=5).plan
    assert found is not None
    text = compare_page.render("large", [Entry("1f1b", "feasible", 1.0, 0.0, 1, True, plan=found)])
    drawn = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert 20_000 < len(drawn) < 40_000


# ---------------------------------------------------------------- the command


@pytest.fixture
def problem(tmp_path: Path) -> list[str]:
    """Arguments of `compare` on a small problem."""
    MODEL.save(tmp_path / "model.json")
    nodes = '[[nodes]]\ndevices = 2\ndevice = "toy"\n[devices.toy]\nmemory = 1000\n'
    (tmp_path / "cluster.toml").write_text(nodes)
    flags = ["--no-recompute", "--no-offload", "--no-separate-backward", "--time-limit", "0.5", "--micro-batches", "4"]
    return ["compare", str(tmp_path / "model.json"), "--cluster", str(tmp_path / "cluster.toml"), *flags]


def test_compare_writes_the_page_and_prints_the_frontier(problem: list[str], tmp_path: Path) -> None:
    """The page to the file, figures for machines to stdout; every schedule is on it."""
    page = tmp_path / "compare.html"
    done = CliRunner().invoke(cli, [*problem, "--frontier", "3", "--as", "html", "-o", str(page), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["frontier"][0]["status"] == "infeasible"
    assert {"limit_bytes", "status", "step_s", "bound_s", "gap", "peak_bytes", "source", "among"} == set(
        found["frontier"][0]
    )
    text = page.read_text()
    assert all(f'data-value="{name}"' in text for name in (*SCHEDULES, "search"))
    assert "Step time against memory" in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--as", "svg"], "add --frontier N"),
        (["--as", "png", "--frontier", "3"], "needs -o FILE"),
        (["-o", "compare.html"], "-o needs --as html"),
        (["--frontier", "2"], "--frontier"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_the_search(
    problem: list[str], options: list[str], named: str
) -> None:
    """One line, exit code 2."""
    done = CliRunner().invoke(cli, [*problem, *options])
    assert (done.exit_code, done.stdout) == (2, "")
    assert named in done.stderr


def test_a_png_without_matplotlib_is_refused_before_the_search(
    problem: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the remedy, and the form that needs nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    output = ["--frontier", "3", "--as", "png", "-o", str(tmp_path / "frontier.png")]
    done = CliRunner().invoke(cli, [*problem, *output])
    assert done.exit_code == 2
    assert "pip install 'contraflow[plot]', or ask for svg" in done.stderr
    with pytest.raises(InputError, match="matplotlib"):
        view.figure(solved())
