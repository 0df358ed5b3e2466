"""Ctrl-C in every phase of plan(): it returns at once with the best plan so far."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check
from contraflow.planner import plan as search
from contraflow.planner.basics import AGAIN_S, end_asked, heeding_ctrl_c
from contraflow.planner.search import frontier
from contraflow.planner.search.common import Progress, Result

LONG_S = 600.0
SHORTER_S = 150.0
"""Where a phase comes after others, which take shares of the time."""
SOON_S = 2.0
"""Processor seconds from Ctrl-C to the answer: with one worker the wall clock's on a quiet machine."""


@dataclass
class CtrlC:
    """Sends it to the main thread `after_s` after the first report of a phase that begins so and knows a plan."""

    phase: str
    after_s: float
    sent: threading.Event = field(default_factory=threading.Event)
    sent_at: float = 0.0
    timer: threading.Timer | None = None

    def __call__(self, event: Progress) -> None:
        if self.timer is None and event.best_step_s is not None and event.phase.startswith(self.phase):
            self.timer = threading.Timer(self.after_s, self._send)
            self.timer.start()

    def end(self) -> None:
        """No Ctrl-C comes any more once this has returned; one that is on its way is raised here."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer.join()
        time.sleep(0)

    def _send(self) -> None:
        self.sent_at = time.process_time()
        self.sent.set()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def interrupted(devices: int, batches: int, space: SearchSpace, effort: float | None, ctrl_c: CtrlC) -> Result:
    """What plan() answers of uneven layers, and that it does so soon after Ctrl-C."""
    seconds = SHORTER_S if ctrl_c.phase == "order search" else LONG_S
    rng = random.Random(devices)
    layers = [
        Layer(
            f"l{k}", rng.uniform(0.5, 1.5), rng.uniform(0.5, 1.5), rng.uniform(0.4, 1.2), stash_bytes=40,
            weight_stash_bytes=30, output_bytes=rng.randint(1, 4), parameter_bytes=rng.randint(1, 20),
        )
        for k in range(2 * devices + 3)
    ]  # fmt: skip
    cluster = Cluster.uniform(devices, 900, Link(200.0, 1e-2))
    model = ModelGraph.chain(layers)
    try:
        found = search(model, cluster, Workload(batches), space, seconds, 0, 1, effort, on_progress=ctrl_c)
        took_s, sent = time.process_time() - ctrl_c.sent_at, ctrl_c.sent.is_set()
        ctrl_c.end()
    except KeyboardInterrupt:
        pytest.fail("the search ended before Ctrl-C, or raised it")
    assert sent, "the search ended before"
    assert took_s < SOON_S
    return found


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.02, 0.1, 0.5))])
@pytest.mark.parametrize(
    ("devices", "batches", "space", "effort", "phase"),
    [
        pytest.param(4, 9, SearchSpace(), None, "", id="first plan"),
        pytest.param(4, 9, SearchSpace(), None, "exact search", id="exact search"),
        pytest.param(5, 9, SearchSpace(), None, "order search", id="race"),
        pytest.param(5, 9, SearchSpace(), 6.0, "windows", id="windows", marks=pytest.mark.slow),
        pytest.param(6, 12, SearchSpace(replicas=2), None, "", id="groups"),
        pytest.param(8, 32, SearchSpace(asynchronous=("stash", "2bw")), None, "", id="without a flush"),
    ],
)  # fmt: skip
def test_the_best_plan_so_far_is_returned(
    devices: int, batches: int, space: SearchSpace, effort: float | None, phase: str, after_s: float
) -> None:
    """The plan can be executed, and what is said of it is sound."""
    found = interrupted(devices, batches, space, effort, CtrlC(phase, after_s))
    assert found.plan is not None
    assert check(found.plan) == []
    assert found.status in ("feasible", "optimal")


class Raises:
    """Ctrl-C comes while it is taken from memory, where Python drops what is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)


def test_ctrl_c_in_a_destructor_is_not_lost() -> None:
    """An exception would be: the search looks for a request instead."""
    events = list[Progress]()

    def heard(event: Progress) -> None:
        if not events and event.best_step_s is not None:
            del (it := [Raises()])[:]
            assert it == []
        events.append(event)

    layers = [Layer(f"l{k}", 1.0 + k % 3, 2.0, stash_bytes=40, output_bytes=1) for k in range(13)]
    problem = ModelGraph.chain(layers), Cluster.uniform(5, 900, Link(200.0, 1e-2)), Workload(9)
    began = time.process_time()
    found = search(*problem, SearchSpace(), 30 * SOON_S, 0, 1, on_progress=heard)
    assert time.process_time() - began < 3 * SOON_S
    assert found.plan is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


_AFTER_CP_SAT = """
import signal
from ortools.sat.python import cp_model
from contraflow.planner import Cluster, Layer, ModelGraph, Workload, plan

cp_model.CpSolver().solve(cp_model.CpModel())  # leaves the process without a handler of Ctrl-C
sent = []

def ctrl_c(event):
    if not sent and event.best_step_s is not None:
        sent.append(event)
        signal.raise_signal(signal.SIGINT)

layers = [Layer(f"l{k}", 1.0 + k % 3, 2.0, stash_bytes=40, output_bytes=1) for k in range(13)]
found = plan(ModelGraph.chain(layers), Cluster.uniform(5, 900), Workload(9), time_limit=60, on_progress=ctrl_c)
print(found.status, len(sent))
"""


def test_a_caller_who_used_cp_sat_can_interrupt() -> None:
    """OR-Tools puts the system's default in place of Python's handler: the next Ctrl-C would kill the process."""
    ended = subprocess.run(
        [sys.executable, "-c", _AFTER_CP_SAT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["feasible", "1"]), ended.stderr


def test_a_second_ctrl_c_raises() -> None:
    """Where the first is not heeded for a second; nothing is left set afterwards."""
    with heeding_ctrl_c():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert end_asked()
        time.sleep(1.1 * AGAIN_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not end_asked()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_a_frontier() -> None:
    """Not the search at one limit of many: those that would follow answer at once."""
    sent = list[Progress]()

    def heard(event: Progress) -> None:
        if not sent and event.best_step_s is not None:
            sent.append(event)
            signal.raise_signal(signal.SIGINT)

    layers = [Layer(f"l{k}", 1.0 + k % 3, 2.0, stash_bytes=40, output_bytes=1) for k in range(13)]
    problem = ModelGraph.chain(layers), Cluster.uniform(5, 900, Link(200.0, 1e-2)), Workload(9)
    began = time.process_time()
    points = frontier(*problem, SearchSpace(), 8, (), 30 * SOON_S, 0, 1, on_progress=heard)
    assert time.process_time() - began < 3 * SOON_S
    assert sent
    assert all(check(point.plan) == [] for point in points if point.plan is not None)
    assert any(point.plan is not None for point in points)
