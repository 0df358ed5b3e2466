"""A process traces a stage once, for all ranks on its threads and all runs of one model object."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from runs import Case, planned

from contraflow.executor.basics.training import Training
from contraflow.executor.run.launch import execute
from contraflow.executor.stage import program, traced
from contraflow.models import LayeredModel, resolve

CASE = Case("chimera", "mlp-tiny", 2, 4)
"""Two stages, each on both devices."""


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is traced, in order."""
    planned(CASE)  # profiled before
    found: list[str] = []
    trace = program.trace_joint

    def watched(layers: program.StageLayers, *examples: torch.Tensor) -> program.JointGraph:
        found.append(layers.label)
        return trace(layers, *examples)

    monkeypatch.setattr(program, "trace_joint", watched)
    return found


def fresh() -> LayeredModel:
    """A model object that nobody has run."""
    return replace(resolve("mlp-tiny"))


def losses(model: LayeredModel, **options: object) -> tuple[float, ...]:
    return execute(planned(CASE), 2, model, transport="threads", **options).losses  # type: ignore[arg-type]


def test_replicas_and_later_runs_share_what_was_traced(labels: list[str]) -> None:
    """Two ranks hold two stages each, twice: two graphs, and the same losses."""
    model = fresh()
    assert losses(model) == losses(model)
    assert sorted(labels) == ["stage 0", "stage 1"]


def test_other_types_sizes_and_seeds_are_traced_by_themselves(labels: list[str]) -> None:
    """And so are micro-batches of fewer samples, and evaluation."""
    model = fresh()
    losses(model)
    for options in ({"dtype": torch.float64}, {"seed": 1}, {"training": Training(mini_batch=7, evaluate_every=1)}):
        labels.clear()
        losses(model, **options)
        assert labels, options
    assert sorted(labels) == [
        f"stage {s}, {what}" for s in (0, 1) for what in ("evaluation", "micro-batches of 1")
    ]  # the full ones were there


def test_another_model_object_is_traced_anew(labels: list[str]) -> None:
    """Nobody knows whether it is the same."""
    for _ in range(2):
        losses(fresh())
    assert sorted(labels) == ["stage 0", "stage 0", "stage 1", "stage 1"]


def test_what_was_used_last_is_kept(labels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two graphs, those of another seed displace the first ones."""
    monkeypatch.setattr(traced, "MOST", 2)
    model = fresh()
    for seed in (0, 1, 0):
        losses(model, seed=seed)
    assert len(labels) == 6
