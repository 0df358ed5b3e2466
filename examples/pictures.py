"""Five plans as HTML pages and the explorer of the toy model, and pictures of the pages taken by a headless Chromium.

    python examples/pictures.py docs/pictures [--chromium PATH] [--only explorer]

Needs `pip install playwright pillow` and a Chromium. The model of the five is a GPT with figures of a usual size, the
plans are named schedules and one order that the search once found. The explorer's plans are searched, with as much work
every time: some minutes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contraflow.planner import Cluster, InputError, Layer, Link, ModelGraph, Plan, SearchSpace, Workload
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.schedules import SCHEDULES, build
from contraflow.planner.search import frontier
from contraflow.planner.search import plan as search
from contraflow.planner.view import Asked, Entry, comparison_page, html

if TYPE_CHECKING:
    from playwright.sync_api import Page

GIB, MIB = 1 << 30, 1 << 20
HERE, HALF = Path(__file__).parent, 4
SIZE = {"width": 1400, "height": 900}
# Forward and backward device of every stage, and their orders: found by the search, optimal for stages of equal cost.
FORWARD, BACKWARD = (1, 2, 0, 3), (0, 1, 2, 3)
ORDERS = (
    "2F0 2FREE0 2F1 2FREE1 2F2 2FREE2 0B0 2F3 0B1 2FREE3 2F4 0B2 2FREE4 2F5 0B3 2FREE5 2F6 0B4 2F7 2FREE6 0B5 2FREE7 "
    "0B6 0B7",
    "0F0 0F1 0FREE0 0F2 0FREE1 1B0 0FREE2 0F3 1B1 0F4 1B2 0FREE3 0F5 1B3 0FREE4 0F6 1B4 0F7 0FREE5 1B5 0FREE6 1B6 1B7",
    "1F0 1FREE0 1F1 1F2 1FREE1 2B0 2B1 1FREE2 1F3 2B2 1F4 2B3 1FREE3 1F5 2B4 1FREE4 1F6 2B5 1F7 1FREE5 2B6 1FREE6 2B7",
    "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
)


def gpt(stages: int, stash: int = 3 * GIB) -> ModelGraph:
    """Stages of a GPT, each given as one layer: the first embeds, the last has the vocabulary."""
    share = 4 / stages

    def layer(k: int) -> Layer:
        more = 1.15 if k == stages - 1 else 1.0
        return Layer(
            f"blocks {8 * k // (stages // 4)}-{8 * (k + 1) // (stages // 4) - 1}",
            0.060 * share * more,
            0.062 * share * more,
            0.058 * share * more,
            parameter_bytes=int(1.2 * GIB * share),
            stash_bytes=int(stash * share),
            weight_stash_bytes=int(0.7 * stash * share),
            output_bytes=64 * MIB,
            workspace_bytes=int(0.6 * GIB),
        )

    return ModelGraph.chain([layer(k) for k in range(stages)], name="gpt-5b")


def cluster(memory_gib: int) -> Cluster:
    """Four devices on a PCIe switch, each with a host link of its own."""
    device = DeviceType(f"{memory_gib} GiB", memory_gib * GIB, memory_bandwidth=1.5e12)
    group = NodeGroup(1, 4, device, Link(20e9, 1e-5), 512 * GIB, Link(25e9, 1e-5))
    return Cluster((group,))


def scheduled(name: str, stages: int = 4, memory_gib: int = 20, policy: str = "keep") -> Plan:
    """A named schedule of twelve micro-batches; `policy` is what the first two stages do with their stashes."""
    layout = build(name, 4, 12)
    model = gpt(stages)
    rows = tuple((policy, policy) + ("keep",) * (stages - 2) for _ in layout.pipelines)
    problem = Problem(model, cluster(memory_gib), Workload(12, "adam"))
    groups = tuple((layer.name,) for layer in model.layers)
    orders = [freed(order) if policy == "offload" and k < 2 else order for k, order in enumerate(layout.orders)]
    return assemble(Candidate(problem, groups, layout.pipelines, rows), orders, name)


def freed(order: Sequence[Op]) -> list[Op]:
    """The order with every F waiting until the stash of the F two before it has left the device."""
    found: list[Op] = []
    for op in order:
        if op.kind == Kind.F and op.micro_batch >= 2:
            found.append(Op(Kind.FREE, op.stage, op.micro_batch - 2))
        found.append(op)
    return found


def apart() -> Plan:
    """Stages whose backward runs on another device than their forward, to which their stashes are sent."""
    model = gpt(4, stash=GIB)
    pipeline = Pipeline(FORWARD, BACKWARD, tuple(range(8)))
    problem = Problem(model, cluster(12), Workload(8, "adam"))
    candidate = Candidate(problem, tuple((layer.name,) for layer in model.layers), (pipeline,))
    orders = [[op_from_text(word) for word in words.split()] for words in ORDERS]
    return assemble(candidate, orders, "forward and backward apart")


def plans() -> Iterator[tuple[str, Plan]]:
    """The plans by the names of their pictures."""
    yield "1f1b", scheduled("1f1b")
    yield "chimera", scheduled("chimera", memory_gib=24)
    yield "zb-v", scheduled("zb-v", stages=8)
    yield "offload", scheduled("1f1b", memory_gib=16, policy="offload")
    yield "apart", apart()


def explorer() -> str:
    """The toy model in half of 1F1B's memory, 4 B: every schedule, the search, and the frontier."""
    model, machines = ModelGraph.load(HERE / "toy-model.json"), Cluster.load(HERE / "cluster-toy.toml")
    half = Workload(8, memory_limit_bytes=HALF)
    effort: dict[str, Any] = {"time_limit": 300, "workers": 1, "deterministic_limit": 4.0}
    found = search(model, machines, half, **effort)
    plans: dict[str, Plan | None] = {"search": found.plan}
    for name in SCHEDULES:
        with suppress(InputError):  # it does not apply
            plans[name] = search(model, machines, half, SearchSpace(name), **effort).plan
    fitting = {name: plan for name, plan in plans.items() if plan is not None and plan.forecast is not None}
    points = frontier(model, machines, Workload(8), SearchSpace(), 8, fitting.values(), **effort)
    entries = [entry(name, plan, found.bound_s) for name, plan in fitting.items()]
    title = "toy model on 4 devices, 8 micro-batches"
    return comparison_page(title, entries, Asked((HALF,) * len(machines), found.bound_s), points)


def entry(name: str, plan: Plan, bound_s: float) -> Entry:
    """A row of the comparison."""
    assert plan.forecast is not None
    step_s, peak = plan.forecast.step_s, max(plan.forecast.peak_bytes)
    return Entry(name, plan.forecast.status, step_s, plan.forecast.bubble, peak, True, step_s / bound_s - 1, plan=plan)


def photograph_explorer(page: Path, pictures: Path, chromium: str) -> None:
    """From its heading to the staircase, 800 pixels wide, light and dark."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            size = {"width": 800, "height": 900}
            tab = browser.new_page(viewport=size, color_scheme=theme, device_scale_factor=2)  # type: ignore[arg-type]
            tab.goto(page.as_uri())
            tab.wait_for_timeout(500)
            bottom = tab.evaluate("document.querySelector('#parting').getBoundingClientRect().bottom")
            target = pictures / ("explorer-dark.png" if theme == "dark" else "explorer.png")
            tab.screenshot(path=target, clip={"x": 0, "y": 0, "width": 800, "height": bottom + 10})
            reduced(target)
        browser.close()


def reduced(target: Path) -> None:
    """A picture in 256 colours."""
    from PIL import Image

    Image.open(target).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        target, optimize=True
    )
    print(f"{target}: {target.stat().st_size // 1000} KB")


def photograph(pages: Path, pictures: Path, chromium: str) -> None:
    """A PNG of every page in light, of Chimera's in dark as well; in `apart` one op is chosen."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for page in sorted(pages.glob("*.html")):
            for theme in ("light", "dark") if page.stem == "chimera" else ("light",):
                tab = browser.new_page(viewport=SIZE, color_scheme=theme)  # type: ignore[arg-type]
                tab.goto(page.as_uri())
                tab.wait_for_function("window.contraflow")
                if page.stem == "apart":
                    choose(tab)
                tab.wait_for_timeout(500)
                target = pictures / (page.stem + ("-dark" if theme == "dark" else "") + ".png")
                tab.screenshot(path=target)
                reduced(target)
        browser.close()


def choose(tab: Page) -> None:
    """Chooses the backward of stage 1 and micro-batch 4."""
    middle = tab.evaluate(
        """() => { const { plan, box } = contraflow, items = plan.items;
        const item = items.kind.findIndex((k, i) => plan.kinds[k] === "B" && items.stage[i] === 1 &&
          items.micro_batch[i] === 4);
        const { x, y, width, height } = box(item);
        return [x + width / 2, y + height / 2]; }"""
    )
    tab.mouse.click(*middle)
    tab.mouse.move(0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("plans", "explorer"), help="Not all of them.")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    if options.chromium is None:
        parser.error("no chromium on the path: say where it is with --chromium")
    with tempfile.TemporaryDirectory() as pages:
        if options.only != "explorer":
            for name, plan in plans():
                (Path(pages) / f"{name}.html").write_text(html(plan))
            photograph(Path(pages), options.folder, options.chromium)
        if options.only != "plans":
            compared = Path(pages) / "compare"
            compared.write_text(explorer())
            photograph_explorer(compared.rename(compared.with_suffix(".html")), options.folder, options.chromium)


if __name__ == "__main__":
    main()
