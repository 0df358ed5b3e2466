"""Ctrl-C in every phase of plan(): it returns at once with the best plan so far."""

from __future__ import annotations

import random
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, check
from contraflow.planner import plan as search
from contraflow.planner.search.common.result import Result
from contraflow.planner.search.common.session import Progress

LONG_S = 600.0
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

    def _send(self) -> None:
        self.sent_at = time.process_time()
        self.sent.set()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def interrupted(devices: int, batches: int, space: SearchSpace, effort: float | None, ctrl_c: CtrlC) -> Result:
    """What plan() answers of uneven layers, and that it does so soon after Ctrl-C."""
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
    found = search(model, cluster, Workload(batches), space, LONG_S, 0, 1, effort, on_progress=ctrl_c)
    took_s = time.process_time() - ctrl_c.sent_at
    assert ctrl_c.sent.is_set(), "the search ended before"
    assert took_s < SOON_S
    return found


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
