"""`contraflow show`: every picture in every form, and what is refused before anything is read."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import refused, run
from pictures import MIB, one_way
from traces import simulated_run

from contraflow.planner.plan_file import load_plan, save_plan
from contraflow.planner.runs.trace_file import save_trace


def test_show_draws_text_and_svg(folder: Path) -> None:
    """To stdout, or to a file and then nothing on stdout."""
    assert "F0" in run("show", folder / "good.json").stdout
    drawn = run("show", folder / "good.json", "--as", "svg")
    assert drawn.stdout.startswith("<svg")
    written = run("show", folder / "good.json", "--as", "svg", "-o", folder / "plan.svg")
    assert (written.exit_code, written.stdout) == (0, "")
    assert (folder / "plan.svg").read_text() == drawn.stdout


def test_show_draws_graphs_and_traces(folder: Path) -> None:
    """Every picture in every form it has, each from its own parser's point of view."""
    good = folder / "good.json"
    for what in ("layers", "placement", "ops"):
        assert ElementTree.fromstring(run("show", good, "--what", what, "--as", "svg").stdout).tag.endswith("svg")
        assert run("show", good, "--what", what, "--as", "dot").stdout.startswith("digraph plan {")
    trace = json.loads(run("show", good, "--as", "perfetto").stdout)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "C", "s", "f"}
    save_trace(simulated_run(load_plan(good)), folder / "run.json")
    both = json.loads(run("show", good, "--as", "perfetto", "--run", folder / "run.json").stdout)
    alone = json.loads(run("show", good, "--as", "perfetto", "--run", folder / "run.json", "--only-run").stdout)
    assert len(both["traceEvents"]) == len(trace["traceEvents"]) + len(alone["traceEvents"])
    save_trace(simulated_run(one_way(2, 5)), folder / "run.json")
    assert "run is of another plan" in refused("show", good, "--as", "perfetto", "--run", folder / "run.json")


def test_a_trace_for_a_file_called_gz_is_compressed(folder: Path) -> None:
    """The same events; drawn twice, the same bytes."""
    plain = run("show", folder / "good.json", "--as", "perfetto").stdout
    for name in ("a.json.gz", "b.json.gz"):
        assert run("show", folder / "good.json", "--as", "perfetto", "-o", folder / name).exit_code == 0
    packed = (folder / "a.json.gz").read_bytes()
    assert gzip.decompress(packed).decode() == plain
    assert packed == (folder / "b.json.gz").read_bytes()
    assert run("show", folder / "good.json", "--as", "svg", "-o", folder / "plan.svg.gz").exit_code == 0
    assert (folder / "plan.svg.gz").read_text().startswith("<svg")


def test_pictures_that_do_not_exist_are_refused_before_anything_is_read(folder: Path) -> None:
    """Each line says what there is instead."""
    assert "--as dot draws layers, placement, ops" in refused("show", "none.json", "--what", "timeline", "--as", "dot")
    assert "--as svg, png, pdf, dot" in refused("show", "none.json", "--what", "ops")
    assert "needs -o" in refused("show", "none.json", "--what", "ops", "--as", "png")
    assert "--run is drawn" in refused("show", "none.json", "--run", "run.json")
    assert "--only-run needs --run" in refused("show", "none.json", "--as", "perfetto", "--only-run")
    assert "none.json" in refused("show", folder / "good.json", "--as", "perfetto", "--run", "none.json")


def test_a_png_without_matplotlib_is_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the remedy."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    asked = ("show", "none.json", "--what", "layers", "--as", "png", "-o", folder / "layers.png")
    assert "contraflow[plot]" in refused(*asked)


def test_show_writes_a_page(folder: Path) -> None:
    """One HTML file; what a run measured is in it, and only there."""
    written = run("show", folder / "good.json", "--as", "html", "-o", folder / "plan.html")
    assert (written.exit_code, written.stdout) == (0, "")
    page = (folder / "plan.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert '"run":null' in page
    save_trace(simulated_run(load_plan(folder / "good.json")), folder / "run.json")
    assert '"run":{"step_s":' in run("show", folder / "good.json", "--as", "html", "--run", folder / "run.json").stdout
    assert "--run is drawn" in refused("show", folder / "good.json", "--as", "svg", "--run", "run.json")
    assert "none.json" in refused("show", folder / "good.json", "--as", "html", "--run", "none.json")


def test_show_prints_the_forecast_for_machines(folder: Path) -> None:
    """P=2, N=4, B=2F: 15 seconds, bubble a fifth."""
    found = json.loads(run("show", folder / "good.json", "--json").stdout)
    assert found["step_s"] == pytest.approx(15.0)
    assert found["bubble"] == pytest.approx(0.2)
    assert found["devices"][0]["peak_parts"]["stashes"] == 2 * MIB


def test_show_draws_a_plan_that_is_over_its_memory(folder: Path) -> None:
    """That is when one wants to see what made the peak."""
    save_plan(one_way(2, 4, memory_bytes=MIB), folder / "over.json")
    assert "OVER" in run("show", folder / "over.json").stdout
    assert run("check", folder / "over.json").exit_code == 1


# ---------------------------------------------------------------- plan and compare
