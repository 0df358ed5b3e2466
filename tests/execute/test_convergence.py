"""The convergence benchmark: its runs, its table, and the order of the methods on the published setting."""

from __future__ import annotations

import importlib
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaged import installed

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
runs: Any = importlib.import_module("convergence_runs")
report: Any = importlib.import_module("convergence_report")
benchmark: Any = importlib.import_module("convergence")
rates: Any = importlib.import_module("rates")


@pytest.fixture
def fashion() -> None:
    """Tests with it are skipped where its package is not there."""
    installed("fashion-mnist:8000/5000")


def outcome(*losses: float) -> Any:
    return runs.Outcome(losses, 0.5, 1.0)


def test_rows_compare_seed_by_seed() -> None:
    """Gaps to the synchronous run of the same seed; a run that diverged is named so."""
    plain, other, lost, best = (runs.Method(name, name) for name in ("synchronous", "stash", "naive", "pipeoptim"))
    found = {
        runs.Run("mlp-fashion", "adam", plain, 0): outcome(1.0, 3.0),
        runs.Run("mlp-fashion", "adam", plain, 1): outcome(2.0, 4.0),
        runs.Run("mlp-fashion", "adam", other, 0): outcome(2.0, 4.0),
        runs.Run("mlp-fashion", "adam", other, 1): outcome(4.0, 6.0),
        runs.Run("mlp-fashion", "adam", lost, 0): outcome(1.0, math.nan),
        runs.Run("mlp-fashion", "adam", best, 1): outcome(2.0, 5.0),
    }
    made = {row.method: row for row in report.rows(found)}
    assert (made["stash"].gap.mean, made["stash"].gap.deviation) == pytest.approx((1.5, statistics.stdev([1, 2])))
    assert made["stash"].late.mean == 5.0
    assert (made["stash"].behind.mean, made["synchronous"].behind.mean, made["naive"].behind) == (1.5, -0.5, None)
    shown = report.tables(found, report.Origin("python benchmarks/convergence.py", "1", "a machine", "2026-11-22"))
    assert list(shown) == ["mlp-fashion-adam-2"]
    assert [row[0] for row in shown["mlp-fashion-adam-2"].rows] == list(made)
    assert "diverged" in shown["mlp-fashion-adam-2"].text()


def test_runs_are_kept(tmp_path: Path) -> None:
    """What is in the file is not trained again."""
    method = runs.methods(8)[0]
    found = {runs.Run("mlp-fashion", "adam", method, 0): outcome(1.0, 2.0)}
    benchmark.save(found, tmp_path / "runs.json")
    assert benchmark.load(tmp_path / "runs.json") == found
    assert benchmark.measured(list(found), benchmark.load(tmp_path / "runs.json"), 1, None) == found


def test_each_method_has_its_own_best_rate() -> None:
    """The least mean held-out loss over seeds; one seed that diverges rules a rate out; seeds are compared in pairs."""
    losses = {
        "synchronous": {0.1: (1.0, 2.0), 0.3: (0.5, math.nan)},
        "pipeoptim": {0.1: (2.0, 2.0), 0.3: (1.0, 1.5)},
        "spectrain": {0.1: (1.5, 3.0), 0.3: (2.0, 3.0)},
    }
    found = {
        rates.Run("vgg-tiny", method, rate, seed): rates.Measured(0.5, loss, loss)
        for method in rates.METHODS
        for rate, each in losses.get(method, losses["pipeoptim"]).items()
        for seed, loss in enumerate(each)
    }
    made = {row[0].removeprefix("vgg-tiny, "): row for row in rates.rows(found)}
    columns = rates.COLUMNS.index("best rate"), rates.COLUMNS.index("same rate"), len(rates.COLUMNS) - 1
    assert [made["synchronous"][k] for k in columns] == ["0.1", "0.1", "0 of 2, 1 of 2"]
    assert [made["spectrain"][k] for k in columns] == ["0.1", "0.1", "0 of 2, 1 of 2"]
    assert [made["pipeoptim"][k] for k in columns] == ["0.3", "0.1", ""]


@pytest.mark.usefixtures("fashion")
def test_every_method_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few updates of the small task: equal numbers of samples, and what is stale differs from what is not."""
    short = replace(runs.TASKS["mlp-fashion"], samples=256, epochs=1, stages=2)
    monkeypatch.setitem(runs.TASKS, "mlp-fashion", short)
    chosen = [m for m in runs.methods(2) if m.name in ("synchronous", "stash", "pipeoptim", "2bw, large updates")]
    found = {m.name: runs.train(runs.Run("mlp-fashion", "adam", m, 0)) for m in chosen}
    assert {name: len(o.losses) for name, o in found.items()} == dict.fromkeys(found, 8) | {"2bw, large updates": 4}
    assert len({o.losses for o in found.values()}) == len(found)
    assert all(0 <= o.accuracy <= 1 and math.isfinite(o.held_out_loss) for o in found.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 20 runs of 750 updates in 8 stages
@pytest.mark.usefixtures("fashion")
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_predicted_weights_train_best_without_a_flush(optimizer: str) -> None:
    """Eight stages: PipeOptim's mean training loss is the least, seed by seed, by more than the differences spread."""
    chosen = [m for m in runs.methods(8) if m.name in ("naive", "stash", "spectrain", "pipeoptim")]
    wanted = [runs.Run("mlp-fashion", optimizer, m, seed) for m in chosen for seed in range(5)]
    made = {row.method: row for row in report.rows(benchmark.measured(wanted, {}, 2, None))}
    best = made.pop("pipeoptim")
    for other in made.values():
        assert other.behind.mean > other.behind.deviation > 0, other.method
        assert best.late.mean + best.late.deviation < other.late.mean, other.method
