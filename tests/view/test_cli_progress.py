"""A search that is watched and interrupted: what its progress says, and Ctrl-C in every phase."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from contraflow.planner.check import check
from contraflow.planner.cli.progress import describe
from contraflow.planner.cli.signals import WORDS, EndingSignals
from contraflow.planner.plan_file import load_plan
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.search.driver import Progress
from contraflow.planner.search.orders.ready import warm

_TELLS_ITS_PHASE = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does
from contraflow.__main__ import cli
from contraflow.planner.cli.progress import SearchProgress
SearchProgress.__call__ = lambda self, progress: print(progress.phase, progress.step_s, file=sys.stderr, flush=True)
cli()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "micro_batches", "more", "number", "code"),
    [
        pytest.param(
            "exact search", 12, ["--time-limit", "60", "--pipelines", "1"], signal.SIGINT, 0, marks=pytest.mark.slow
        ),
        pytest.param(
            "order search", 128, ["--time-limit", "60", "--pipelines", "1"], signal.SIGTERM, 143, marks=pytest.mark.slow
        ),
        (
            "windows",
            48,
            ["--time-limit", "24", "--no-offload", "--pipelines", "1", "--no-separate-backward"],
            signal.SIGHUP,
            129,
        ),
    ],
)
def test_a_signal_keeps_the_best_plan_of_every_phase(
    tmp_path: Path, phase: str, micro_batches: int, more: list[str], number: signal.Signals, code: int
) -> None:
    """While a search that cannot end soon is in a phase: the plan so far is written, and the exit code says why."""
    warm()  # or most of the time goes into the first compilation of the kernels
    times = [(1 + 0.13 * (k % 3), 1.1, 0.9) for k in range(8)]
    layers = [Layer(f"l{k}", *t, stash_bytes=20, weight_stash_bytes=10, output_bytes=1) for k, t in enumerate(times)]
    ModelGraph.chain(layers).save(tmp_path / "model.json")
    (tmp_path / "cluster.toml").write_text(
        '[[nodes]]\ndevices = 4\ndevice = "toy"\nlink = {bandwidth = "1KB/s", latency = "0.1s"}\n'
        'host_link = {bandwidth = "20B/s"}\n[devices.toy]\nmemory = "60B"\n'
    )
    command = [sys.executable, "-c", _TELLS_ITS_PHASE, "plan", "model.json", "--cluster", "cluster.toml"]
    command += ["--micro-batches", str(micro_batches), *more, "-o", "plan.json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        reached = any(line.startswith(phase) and "None" not in line for line in process.stderr)
        process.send_signal(number)
        _, errors = process.communicate(timeout=40)
    assert reached, f"the search never came to its phase {phase}"
    assert process.returncode == code, errors
    said = [line for line in errors.splitlines() if line.startswith("contraflow: ")]
    assert said == ([] if code == 0 else [f"contraflow: {WORDS[number]}: this is the best so far"])
    made = load_plan(tmp_path / "plan.json")
    assert check(made) == []
    assert made.forecast is not None
    assert made.forecast.status == "feasible"


def test_progress_is_best_bound_gap_and_phase() -> None:
    """What people see behind the bar."""
    assert describe(Progress(1.0, 110.0, 100.0, "order search")) == "best 110 s, bound 100 s, gap 10.0 %, order search"
    assert describe(Progress(1.0, None, 100.0, "exact search")) == "no plan yet, bound 100 s, exact search"


def test_signals_that_the_caller_ignores_stay_ignored() -> None:
    """As under nohup; and nothing is left set afterwards."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with EndingSignals() as ending:
            signal.raise_signal(signal.SIGHUP)
            assert ending.number == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_twice_ends_once() -> None:
    """To the process and to its group: the second must not interrupt what the first one keeps."""

    def work() -> None:
        with EndingSignals() as ending:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            ending.report()
            signal.raise_signal(signal.SIGHUP)

    with pytest.raises(click.exceptions.Exit) as ended:
        work()
    assert ended.value.exit_code == 143
