"""What is compiled beside a search: in a process of its own, which ends with it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from contraflow.planner.basics import Ahead, Aside
from contraflow.planner.search import modulo

WORK = """
import time
from pathlib import Path

def leave():
    Path(__file__).with_suffix(".left").write_text("done")

def count():
    left = Path(__file__).with_suffix(".count")
    before = int(left.read_text()) if left.exists() else 0
    time.sleep(3)
    left.write_text(str(before + 1))

def forever():
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of functions."""
    (tmp_path / "workshop.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_a_function_leaves_on_disk_stays(folder: Path) -> None:
    with Aside("workshop", "leave") as aside:
        end_s = time.monotonic() + 30
        while aside.running and time.monotonic() < end_s:
            time.sleep(0.05)
    assert (folder / "workshop.left").read_text() == "done"


def test_it_ends_with_the_caller(folder: Path) -> None:
    aside = Aside("workshop", "forever")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(aside)
    assert not aside.running


def _interrupted(aside: Aside) -> None:
    with aside:
        assert aside.running
        raise KeyboardInterrupt


@pytest.mark.long
def test_what_is_compiled_ahead_is_done_by_one_process_at_a_time(folder: Path) -> None:
    """Of two at once one does it, and both are running until then."""
    end_s = time.monotonic() + 60
    both = [Ahead("workshop", "count", folder / "cache", 60)]
    while not (folder / "cache" / "compiling.lock").exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    both.append(Ahead("workshop", "count", folder / "cache", 60))
    assert all(one.running for one in both)
    while any(one.running for one in both) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert (folder / "workshop.count").read_text() == "1"


def test_what_is_compiled_ahead_ends_itself(folder: Path) -> None:
    """After its seconds, whatever becomes of the caller; nobody waits for it."""
    began_s = time.monotonic()
    ahead = Ahead("workshop", "forever", folder / "cache", 1)
    assert ahead.running
    while ahead.running and time.monotonic() < began_s + 60:
        time.sleep(0.05)
    assert not ahead.running


def test_nothing_is_compiled_twice_or_in_too_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modulo.ready, "compiled", lambda: True)
    with modulo.compiling(1e9) as aside:
        assert aside is None
    monkeypatch.setattr(modulo.ready, "compiled", lambda: False)
    with modulo.compiling(1.0) as aside:
        assert aside is None
    with modulo.compiling(1e9) as aside:
        assert aside is not None
        assert aside.running
    assert not aside.running
