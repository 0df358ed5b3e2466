"""A search that is followed while it runs: what it tells, who may ask, how it ends; edits that the checker judges."""

from __future__ import annotations

import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chromium import CHROMIUM, MISSING, started
from commands import refused, run
from instances import named, uniform
from pictures import chimera, one_way
from random_plans import plans_of, random_candidate

from contraflow.planner.basics import PlanError
from contraflow.planner.check import check
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import load_plan, plan_from_dict
from contraflow.planner.problem import Cluster, Layer, ModelGraph, SearchSpace, Workload
from contraflow.planner.search import Progress
from contraflow.planner.search import plan as search
from contraflow.planner.serve import Live, Server, judged
from contraflow.planner.serve.edits import compute_orders

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MODEL, CLUSTER = uniform(16, 1.0, 2.0, stash_bytes=4, output_bytes=1), Cluster.uniform(8, 40)


def told(seconds: float, plan: Plan | None, bound_s: float = 1.0) -> Progress:
    step_s = None if plan is None or plan.forecast is None else plan.forecast.step_s
    return Progress(seconds, step_s, bound_s, "order search", plan)


# ---------------------------------------------------------------- what is known


def test_a_better_plan_is_a_new_version_and_bounds_are_news() -> None:
    live, (worse, better) = Live("toy", 60), (one_way(2, 8), one_way(2, 4))
    assert not live.tell(told(0.1, None))
    assert live.state.version == 0
    assert live.page() is None
    live.tell(told(0.2, worse))
    live.tell(told(0.3, worse, bound_s=2.0))
    assert (live.state.version, live.state.bound_s, live.plan) == (1, 2.0, worse)
    live.tell(told(0.4, better, bound_s=2.0))
    assert live.state.version == 2
    assert live.state.gap == pytest.approx(better.forecast.step_s / 2.0 - 1)  # type: ignore[union-attr]
    course = live.told()["course"]
    assert [point[0] for point in course] == [0.1, 0.2, 0.3, 0.4]  # type: ignore[attr-defined]
    page = live.page()
    assert page is not None
    assert page is live.page()  # drawn once a plan


def test_a_long_course_keeps_its_end() -> None:
    """Of ten thousand improvements the page gets at most two thousand, the last among them."""
    live = Live("toy", 60)
    for k in range(10_000):
        live.tell(Progress(k / 10, 1e6 - k, 1.0, "order search"))
    course: Any = live.told()["course"]
    assert len(course) <= 2000
    assert course[-1] == [999.9, 1e6 - 9999, 1.0]
    assert [point[0] for point in course] == sorted(point[0] for point in course)


def test_ending_ends_a_search_with_its_best_plan() -> None:
    """From another thread, of a search that may take a minute; the plan is one that check accepts."""
    live, found = Live("toy", 60), []
    space = SearchSpace(pipelines=1, separate_backward=False, offload=False)
    begun = time.monotonic()

    def work() -> None:
        found.append(search(MODEL, CLUSTER, Workload(24), space, time_limit=60, workers=1, on_progress=live.tell))

    thread = threading.Thread(target=work)
    thread.start()
    while live.plan is None and time.monotonic() < begun + 30:
        live.wait(live.state.number, 0.1)
    live.end()
    assert live.state.asked_to_end
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - begun < 55
    (result,) = found
    assert check(result.plan) == []
    assert result.seconds <= live.state.step_s


# ---------------------------------------------------------------- edits


def test_orders_as_they_are_are_accepted_as_they_are() -> None:
    """Random plans of every kind: judged without a change they have their own step, and nothing is wrong with them."""
    plans = [chimera(), one_way(4, 8), named("zb-h1", 2, 4, model=uniform(2, 1, 2)), named("pipedream-2bw", 2, 6)]
    for seed in range(30):
        plans += plans_of(random_candidate(seed), seed, 1, split=seed % 2 == 0)
    for plan in plans:
        before = {str(violation) for violation in check(plan)}
        verdict = judged(plan, {})
        assert verdict.plan is not None
        assert set(verdict.violations) <= before
        assert plan.forecast is not None
        assert verdict.plan.forecast is not None
        assert verdict.plan.forecast.objective_s <= plan.forecast.objective_s * (1 + 1e-9)


def test_a_swap_is_simulated_or_said_to_be_a_circle() -> None:
    """Two neighbours of a random device change places: the verdict is the checker's, and its step the simulator's."""
    rng, plan, outcomes = random.Random(3), one_way(4, 8), set()
    for _ in range(40):
        device = rng.randrange(4)
        order = list(compute_orders(plan)[device])
        k = rng.randrange(len(order) - 1)
        order[k : k + 2] = order[k + 1], order[k]
        verdict = judged(plan, {device: " ".join(map(str, order))})
        outcomes.add(bool(verdict.violations))
        if verdict.plan is None:
            assert verdict.violations
        else:
            assert set(verdict.violations) == set(map(str, check(verdict.plan)))
            assert compute_orders(verdict.plan)[device] == tuple(order)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("device", "order", "line"),
    [
        (0, "0F0 0F1 0B0", "device 0 lacks 0B1"),
        (0, "0F0 0F1 0B0 0B1 1F0", "device 0 does not run 1F0"),
        (0, "0F0 0F0 0F1 0B0 0B1", "device 0 repeats 0F0"),
        (1, "", "device 1 lacks 1F0, 1F1, 1B0, 1B1"),
    ],
)
def test_what_an_edit_forgets_is_named(device: int, order: str, line: str) -> None:
    verdict = judged(one_way(2, 2), {device: order})
    assert verdict == type(verdict)(None, (line,))


def test_a_backward_may_be_split_by_hand() -> None:
    """Where the layers can: I and W stand for B."""
    layers = [Layer(f"l{k}", 1, 1, 1, stash_bytes=3, weight_stash_bytes=2) for k in range(2)]
    plan = named("1f1b", 2, 2, model=ModelGraph.chain(layers))
    order = " ".join(map(str, compute_orders(plan)[1])).replace("1B0", "1I0 1W0")
    assert judged(plan, {1: order}).violations == ()


@pytest.mark.parametrize(("device", "text"), [(0, "0F0 hello"), (0, "0Q1"), (7, "0F0")])
def test_what_is_no_order_is_an_error(device: int, text: str) -> None:
    with pytest.raises(PlanError):
        judged(one_way(2, 2), {device: text})


def test_too_much_memory_is_named_by_device() -> None:
    """GPipe's order on memory for 1F1B."""
    plan = one_way(2, 6, memory_bytes=4 * 1024**2)
    every = [f"0F{m}" for m in range(6)] + [f"0B{m}" for m in range(6)]
    verdict = judged(plan, {0: " ".join(every)})
    assert verdict.plan is not None
    assert any("device 0" in line for line in verdict.violations)


# ---------------------------------------------------------------- who may ask


@pytest.fixture
def served() -> Iterator[tuple[Live, Server]]:
    live = Live("toy", 60)
    live.tell(told(0.2, chimera(), 20.0))
    with Server(live) as server:
        yield live, server


def asked(server: Server, path: str, body: object = None, more: str = "", **headers: str) -> Any:
    """What the server answers; with a body it is a POST."""
    data = None if body is None else json.dumps(body).encode()
    address = f"http://127.0.0.1:{server.port}{path}?token={server.token}{more}"
    request = urllib.request.Request(address, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    return json.loads(text) if answer.headers.get_content_type() == "application/json" else text


@pytest.mark.parametrize("path", ["/", "/live.js", "/news", "/plan.html", "/plan.json", "/orders", "/end", "/judge"])
def test_nobody_gets_anything_without_the_token(served: tuple[Live, Server], path: str) -> None:
    """Nor from a page of elsewhere, nor by a name that leads to this machine."""
    live, server = served
    body = b"{}" if path in ("/end", "/judge") else None
    right = f"http://127.0.0.1:{server.port}{path}?token={server.token}"
    for address, headers in (
        (right.split("?", maxsplit=1)[0], {}),
        (right + "x", {}),
        (right, {"Origin": "http://elsewhere.example"}),
        (right, {"Host": f"elsewhere.example:{server.port}"}),
    ):
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30)
        assert answer.value.code == 403
        assert server.token not in answer.value.read().decode()
    assert not live.state.asked_to_end


def test_only_the_loopback_is_listened_on(served: tuple[Live, Server]) -> None:
    _, server = served
    assert server._socket.getsockname()[0] == "127.0.0.1"


def test_plans_come_as_files_and_edits_are_judged(served: tuple[Live, Server]) -> None:
    live, server = served
    assert plan_from_dict(asked(server, "/plan.json")).orders == chimera().orders
    assert '<script type="application/json" id="plan">' in asked(server, "/plan.html")
    orders = asked(server, "/orders")["orders"]
    said = asked(server, "/judge", {"orders": {"0": orders[0]}})
    assert said["violations"] == []
    assert said["text"].endswith("as long as the best plan's")
    assert check(plan_from_dict(asked(server, "/plan.json", more="&edited=1"))) == []
    assert asked(server, "/end", {}) == {"asked_to_end": True}
    assert live.tell(told(1.0, chimera()))


@pytest.mark.parametrize(
    "body", [[], {"orders": []}, {"orders": {"x": "0F0"}}, {"orders": {"0": 5}}, {"orders": {"0": "0F0 <b>"}}]
)
def test_edits_that_are_none_are_one_line(served: tuple[Live, Server], body: object) -> None:
    with pytest.raises(urllib.error.HTTPError) as answer:
        asked(served[1], "/judge", body)
    assert answer.value.code == 400
    assert "\n" not in json.loads(answer.value.read())["error"]


def test_a_server_leaves_the_log_of_its_process_alone() -> None:
    """Others' handlers write on: absl's, which OR-Tools loads, closes stderr where it is closed."""
    ended: list[bool] = []

    class Kept(logging.Handler):
        def close(self) -> None:
            ended.append(True)
            super().close()

    handler = Kept()
    with Server(Live("toy", 60)):
        assert not ended
    handler.close()


def test_a_port_that_is_taken_is_named(served: tuple[Live, Server], tmp_path: Path) -> None:
    files(tmp_path)
    line = refused("serve", *arguments(tmp_path), "--port", served[1].port)
    assert f"127.0.0.1:{served[1].port}" in line


# ---------------------------------------------------------------- the command


def files(folder: Path) -> None:
    MODEL.save(folder / "model.json")
    (folder / "cluster.toml").write_text(
        '[[nodes]]\ndevices = 8\ndevice = "toy"\n[devices.toy]\nmemory = "40B"\nflops = 1\n'
    )


def arguments(folder: Path, seconds: float = 3) -> list[object]:
    return [
        folder / "model.json", "--cluster", folder / "cluster.toml", "--micro-batches", 8, "--time-limit", seconds,
        "--workers", 1, "-o", folder / "plan.json",
    ]  # fmt: skip


@pytest.mark.long
def test_serve_answers_as_plan_does(tmp_path: Path) -> None:
    """With --once it ends with the search, its plan written; the address is printed."""
    files(tmp_path)
    result = run("serve", *arguments(tmp_path), "--once", "--json")
    assert json.loads(result.stdout)["plan"] == str(tmp_path / "plan.json")
    assert "the search is at http://127.0.0.1:" in result.stderr
    assert check(load_plan(tmp_path / "plan.json")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_page_stays_until_a_signal(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The plan is written when the search has ended; the page is there, and the command ends when it is told to."""
    files(tmp_path)
    command = [sys.executable, "-m", "contraflow", "serve", *map(str, arguments(tmp_path, 1))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        while "Ctrl-C ends the page" not in process.stderr.readline():
            assert process.poll() is None
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(number)
        assert process.wait(60) == code
    assert check(load_plan(tmp_path / "plan.json")) == []


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_search_is_followed_and_stopped_in_a_browser(tmp_path: Path) -> None:
    """Chromium opens the page of a running search, sees plans, judges an edit, stops it; the file holds the plan."""
    pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    files(tmp_path)
    command = [sys.executable, "-m", "contraflow", "serve", *map(str, arguments(tmp_path, 120)), "--once"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        with started() as browser:
            _follow(browser, url)
        assert process.wait(60) == 0
    assert check(load_plan(tmp_path / "plan.json")) == []


def _follow(browser: Browser, url: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    complaints: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    page.wait_for_selector("#plan:not([hidden])", timeout=60_000)
    page.frame_locator("#plan").locator("#figures").wait_for(timeout=30_000)
    assert "proven bound" in page.locator("#figures").inner_text()
    page.locator("summary").click()
    page.locator("#device option").nth(7).wait_for(state="attached", timeout=30_000)
    assert "F0" in page.locator("#order").input_value()
    page.locator("#order").fill("0F0 0F0")
    page.locator("#judge").click()
    page.locator("#violations li").first.wait_for(timeout=30_000)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert Axe().run(page).violations_count == 0
    assert "repeats 0F0" in page.locator("#violations").inner_text()
    page.locator("#end").click()
    page.locator("#end[disabled]").wait_for(timeout=30_000)
    assert [text for text in complaints if "Failed to load" not in text] == []
