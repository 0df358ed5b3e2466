"""What the tests start can be interrupted, also where a shell started pytest in the background, with SIGINT ignored.

`--skipped FILE` writes which tests were skipped, one a line, so that `pytest @FILE` runs them again when what they
lack is there. Where torch is not installed, what imports it is left out: planning is tested without.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: small tensors gain nothing from threads

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # machines are shared: how long an example takes says nothing
settings.load_profile("untimed")

for helper in ("async_plans", "commands", "editing", "naive", "own_models", "routes", "runs", "steady_plans"):
    pytest.register_assert_rewrite(helper)


HERE = Path(__file__).parent


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and ranks run with one; where a test module uses torch."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch and before != 1:
        torch.set_num_threads(1)
    yield
    if torch and before != 1:
        torch.set_num_threads(before)


_NEEDS_TORCH = re.compile(r"^\s*(?:from|import) (?:torch|contraflow\.executor|contraflow\.models)\b", re.MULTILINE)
_IMPORTED = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)


def needing_torch() -> list[str]:
    """The files here that import torch, or import one that does."""
    text = {path.stem: path.read_text() for path in HERE.rglob("*.py")}
    needing = {name for name, content in text.items() if _NEEDS_TORCH.search(content)}
    while more := {n for n, content in text.items() if needing & set(_IMPORTED.findall(content))} - needing:
        needing |= more
    return sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.py") if path.stem in needing)


collect_ignore = [] if find_spec("torch") else needing_torch()


class Skipped:
    """Writes the node ids of tests, and of modules, that were skipped."""

    def __init__(self, path: Path) -> None:
        """Begins with an empty file."""
        self.path = path
        self.path.write_text("")
        self.seen: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and report.nodeid not in self.seen:
            self.seen.add(report.nodeid)
            with self.path.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--skipped FILE`."""
    parser.addoption("--skipped", type=Path, metavar="FILE", help="write the ids of skipped tests, one a line")


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that sees all reports writes, not xdist's workers."""
    path = config.getoption("--skipped")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skipped(path))


def pytest_sessionfinish() -> None:
    """What a process covered is kept now: xdist kills a worker that takes longer than 10 s to end."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measuring := coverage.Coverage.current()) is not None:
        measuring.save()
