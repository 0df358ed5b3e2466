"""Measured memory of every device stays within the plan's, and close to it."""

from __future__ import annotations

import pytest
from runs import Case, planned, worst_excess

from contraflow.executor.launch import execute

GPT = [
    *(Case(schedule, "gpt-tiny", 2, 4) for schedule in ("gpipe", "1f1b", "interleaved", "gems", "chimera")),
    Case("chimera", "gpt-tiny", 4, 8),
    Case("1f1b", "gpt-tiny", 2, 4, "adamw"),
    Case("gems", "gpt-mini", 2, 4, "sgd"),
]
OTHERS = [Case(schedule, model, 2, 4) for schedule in ("1f1b", "chimera") for model in ("mlp", "resnet-tiny")]


@pytest.mark.parametrize("case", GPT, ids=lambda case: "-".join(map(str, case)))
def test_gpt_peak_is_within_the_plan_and_within_ten_percent_of_it(case: Case) -> None:
    """From a real profile, byte for byte on every device."""
    for device, share in worst_excess(
        execute(planned(case), 2, dtype=case.dtype, transport="threads", self_check=False)
    ).items():
        assert 0.9 <= share <= 1.0, f"device {device}: measured / planned = {share:.4f}"


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: "-".join(map(str, case)))
def test_no_peak_exceeds_the_plan(case: Case) -> None:
    """Convolutions and BatchNorm keep more in reserve, but never less than they use."""
    for device, share in worst_excess(
        execute(planned(case), 2, dtype=case.dtype, transport="threads", self_check=False)
    ).items():
        assert share <= 1.0, f"device {device}: measured / planned = {share:.4f}"
