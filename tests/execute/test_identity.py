"""What a run's numbers depend on: recorded, read back, and compared by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from runs import Case, planned

from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.run.identity import RunIdentity
from contraflow.executor.run.launch import prepare

PLAN = Case("1f1b", "mlp-tiny", 2, 4)


def _identity(**options: Any) -> RunIdentity:
    return prepare(planned(PLAN), **{"steps": 3, **options}).identity


def test_identity_survives_json() -> None:
    """What a checkpoint keeps is what the run had, to the last option."""
    identity = _identity(training=Training(betas=(0.8, 0.99), clip_norm=1.0), seed=7)
    assert RunIdentity.from_dict(json.loads(json.dumps(identity.to_dict()))) == identity
    assert identity.inputs == "2x64 float32"
    assert identity.training["lr"] == 0.02


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"seed": 9}, ["seed 0 and 9"]),
        ({"lr": 0.5}, ["learning rate 0.02 and 0.5"]),
        ({"training": Training(momentum=0.5)}, ["momentum 0.9 and 0.5"]),
        ({"training": Training(clip_norm=1.0)}, ["clip norm none and 1.0"]),
        ({"training": Training(evaluate_every=2)}, ["evaluate every 0 and 2"]),
        ({"dtype": torch.float64}, ["inputs 2x64 float32 and 2x64 float64", "dtype float32 and float64"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_differences_are_named_with_both_values(options: dict[str, Any], names: list[str]) -> None:
    """One entry for every field that differs, and none for the others."""
    assert [str(found) for found in _identity().differences(_identity(**options))] == names


def test_steps_and_engine_are_not_part_of_it() -> None:
    """A longer run of the same training is the same training, on any engine."""
    assert _identity(steps=9, engine="eager") == _identity()


def test_bad_content_is_refused_in_one_line() -> None:
    """Missing and unknown keys, other types, other things altogether."""
    good = _identity().to_dict()
    for bad in ({**good, "more": 1}, {**good, "seed": "0"}, {**good, "seed": True}, {"seed": 0}, [], None):
        with pytest.raises(RunError, match="identity") as caught:
            RunIdentity.from_dict(bad)
        assert "\n" not in str(caught.value)
    assert replace(RunIdentity.from_dict(good), seed=1) != RunIdentity.from_dict(good)
