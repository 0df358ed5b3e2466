"""Modules, data and checkpoints that do not fit: each is said in one line, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from instances import cut_evenly
from runs import sized
from torch import Tensor
from whole_modules import LENGTH, WORDS, Sentences

from contraflow.executor.basics import ExecutionError, RunError
from contraflow.executor.basics.checkpointing import Checkpointing
from contraflow.executor.run.launch import execute
from contraflow.executor.stage import TraceError
from contraflow.models import resolve
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

SPEAKER = "whole_modules:speaker"


@cache
def planned(name: str = SPEAKER) -> Plan:
    """Two devices, two micro-batches of two samples."""
    graph, layout = sized(resolve(name)), build("1f1b", 2, 2)
    problem = Problem(graph, Cluster.uniform(2), Workload(2, "sgd"))
    candidate = Candidate(problem, cut_evenly(graph, 2), layout.pipelines, (("keep", "keep"),), FLUSH)
    return assemble(candidate, layout.orders, "1f1b")


def said(**options: Any) -> str:
    """The line in which a run ends."""
    with pytest.raises((RunError, ExecutionError, TraceError)) as caught:
        execute(planned(), **{"steps": 3, "model": SPEAKER, "transport": "threads", "self_check": False, **options})
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) <= 400
    return line


@dataclass(frozen=True)
class Changed(Sentences):
    """Sentences with something wrong."""

    change: Callable[[dict[str, Tensor], Tensor], tuple[Any, Tensor]] = lambda inputs, targets: (inputs, targets)
    name: str = "changed"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Any, Tensor]:
        """As `change` makes them."""
        return self.change(*super().batch(seed, step, micro_batch, size))


WRONG: dict[str, tuple[Callable[[dict[str, Tensor], Tensor], tuple[Any, Tensor]], str]] = {
    "an input is missing": (
        lambda given, y: ({"words": given["words"]}, y),
        "layers take 'there', the data gives words",
    ),
    "one tensor": (lambda given, y: (given["words"], y), "the data gives one tensor"),
    "other names": (
        lambda given, y: ({"input_ids": given["words"], "there": given["there"]}, y),
        "the data gives input_ids",
    ),
    "longer sentences": (
        lambda given, y: ({name: torch.cat([x, x], 1) for name, x in given.items()}, torch.cat([y, y], 1)),
        f"{2 * LENGTH}",
    ),
    "words that there are not": (lambda given, y: (given | {"words": given["words"] + WORDS}, y), "index out of range"),
    "fewer targets": (lambda given, y: (given, y[:, 1:]), "to match target batch_size"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_data_that_does_not_fit_the_module(name: str) -> None:
    change, line = WRONG[name]
    assert line in said(data=Changed(change=change))


@dataclass(frozen=True)
class Ending(Sentences):
    """There are two steps of them."""

    name: str = "ending"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Any, Tensor]:
        """Raises EOFError."""
        if step > 1:
            raise EOFError("the file ends")
        return super().batch(seed, step, micro_batch, size)


def test_one_tensor_may_have_a_name() -> None:
    """Where the data gives no other, it is what the layers take."""
    wiring, x = resolve("whole_modules:classifier").wiring, torch.ones(2)
    (value,) = wiring.takes[0]
    assert wiring.given({"pixels": x}, [value]) == wiring.given(x, [value]) == {value: x}
    with pytest.raises(ValueError, match="the data gives pixels, labels"):
        wiring.given({"pixels": x, "labels": x}, [value])


def test_data_that_ends() -> None:
    """In the third step."""
    assert "data set 'ending', step 2, micro-batch 0: it has ended (EOFError: the file ends)" in said(data=Ending())


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    """It is not looked for tensors that it happens to have."""
    other, folder = "whole_modules:classifier", Checkpointing(str(tmp_path))
    execute(planned(other), 1, model=other, transport="threads", self_check=False, checkpoint=folder)
    line = said(checkpoint=replace(folder, resume=True))
    assert "is of a run with model" in line
