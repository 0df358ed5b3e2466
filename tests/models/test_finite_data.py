"""Data sets of so many samples: epochs, held-out parts, names, and what a missing package says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import STEPS, Case, planned, sized
from torch import Tensor

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.models import Dataset, data_verses, held_out, load, resolve
from contraflow.models.data import MissingData, UnknownData
from contraflow.models.finite import FiniteData, Samples, split
from contraflow.models.words import END, PADDING, UNKNOWN, Vocabulary, padded, words
from contraflow.planner import Cluster, SearchSpace, Workload, plan


def numbered(count: int, kept: bool) -> Samples:
    """Samples 0, 1, ..; those held out follow on."""
    numbers = np.arange(count) + count * kept
    return Samples(numbers.astype(np.float32)[:, None], numbers)


TEN = FiniteData("ten", partial(numbered, 10), per_step=2)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_has_every_sample_once(size: int) -> None:
    """Micro-batches in order pass through one permutation after another, also where one reaches over an epoch's end."""
    places = [(step, m) for step in range(15) for m in range(2)]
    seen = torch.cat([TEN.batch(5, step, m, size)[1] for step, m in places])
    epochs = seen.split(10)
    whole = [epoch.tolist() for epoch in epochs if len(epoch) == 10]
    assert len(whole) >= 3
    assert all(sorted(epoch) == list(range(10)) for epoch in whole)
    assert whole[0] != whole[1] != whole[2]


def test_an_epochs_micro_batch_depends_on_its_arguments_alone() -> None:
    """Another order of asking, another process's copy: the same samples; another seed: others."""
    late = TEN.batch(1, 7, 1, 3)[1]
    fresh = FiniteData("ten", partial(numbered, 10), per_step=2)
    fresh.batch(1, 0, 0, 3)
    assert torch.equal(fresh.batch(1, 7, 1, 3)[1], late)
    assert any(not torch.equal(TEN.batch(2, step, 0, 3)[1], TEN.batch(1, step, 0, 3)[1]) for step in range(3))


@pytest.mark.parametrize("per_step", [2, None])
def test_targets_alone_are_the_batchs(per_step: int | None) -> None:
    """What the last stage asks for."""
    data = replace(TEN, per_step=per_step)
    for step in range(4):
        assert torch.equal(data.targets(3, step, 1, 4), data.batch(3, step, 1, 4)[1])


def wide(count: int, kept: bool) -> Samples:
    """Inputs of the width that mlp-fashion takes, in its ten classes."""
    draw = np.random.default_rng(kept)
    return Samples(draw.random((count, 784), dtype=np.float32), draw.integers(0, 10, count))


def test_the_last_device_does_not_hold_the_inputs() -> None:
    """They are as large as many stashes here; every measured peak is within the plan's."""
    data = FiniteData("wide", partial(wide, 64))
    made = plan(
        sized(resolve("mlp-fashion"), data=data), Cluster.uniform(2), Workload(4), SearchSpace(schedule="1f1b")
    ).plan
    assert made is not None
    result = execute(made, 2, data=data, transport="threads")
    for peak, planned_peak in zip(result.peak_bytes, result.forecast_peak_bytes, strict=True):
        assert peak <= planned_peak


def test_a_step_with_more_micro_batches_than_named_is_an_error() -> None:
    """Both numbers are in the line: the samples would be the next step's."""
    with pytest.raises(ValueError, match=r"'ten' has 2 micro-batches a step, but number 2 was asked for"):
        TEN.batch(0, 0, 2, 3)


def test_without_epochs_samples_are_drawn_with_replacement() -> None:
    """As for the digits: any number of micro-batches a step."""
    drawn = replace(TEN, per_step=None).batch(0, 0, 99, 1000)[1]
    assert 50 < (drawn == 3).sum() < 150


def test_the_held_out_part_has_other_samples() -> None:
    """Its batches are of its own; a data set without such a part stands for itself."""
    assert held_out(TEN).batch(0, 0, 0, 10)[1].sort().values.tolist() == list(range(10, 20))
    digits = load("digits")
    assert held_out(digits) is digits
    first, second = split(numbered(50, False), 30, 15)
    assert len(first.targets) == 30
    assert len(second.targets) == 15
    assert not set(first.targets) & set(second.targets)
    assert list(first.inputs[:, 0]) == list(first.targets)


@dataclass(frozen=True)
class Guarded:
    """The digits, with others held out."""

    name: str = "digits"
    of_held_out: bool = False

    @property
    def held_out(self) -> Dataset:
        return Guarded(of_held_out=True)

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        inputs, targets = load("digits").batch(seed, step, micro_batch, size)
        return (-inputs if self.of_held_out else inputs), targets


def test_held_out_losses_are_of_the_held_out_part() -> None:
    """A pipeline and one process measure the same, and not what the training part gives."""
    case, training = Case("1f1b", "mlp-tiny", 2, 2), Training(evaluate_every=STEPS)
    result = execute(planned(case), STEPS, data=Guarded(), transport="threads", training=training, self_check=False)
    model = resolve("mlp-tiny")
    expected, other = (
        train_reference(model, 2, 2, "momentum", STEPS, data=data, training=training).evaluations
        for data in (Guarded(), load("digits"))
    )
    assert result.evaluations == pytest.approx(expected, abs=1e-5)
    assert expected[STEPS] != pytest.approx(other[STEPS], abs=1e-3)


def test_epochs_of_steps_that_the_plan_does_not_have_are_refused() -> None:
    """Fewer micro-batches would run out, more would leave samples out of every epoch."""
    made = planned(Case("1f1b", "mlp-tiny", 2, 4))
    for count in (2, 8):
        data = FiniteData("ten", partial(numbered, 10), per_step=count)
        with pytest.raises(RunError, match=f"'ten' gives {count} micro-batches a step, the plan takes 4"):
            execute(made, 1, data=data, transport="threads")
    data = FiniteData("ten", partial(numbered, 10), per_step=4)
    with pytest.raises(RunError, match="'ten' has epochs of micro-batches of 2 samples only, not of 1"):
        execute(made, 1, data=data, transport="threads", training=Training(mini_batch=7))


# ---------------------------------------------------------------- names, and files that are not there


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion-mnist:60001", "60001 samples to train on, there are 1 to 60000"),
        ("fashion-mnist:10/0", "0 samples held out, there are 1 to 10000"),
        ("fashion-mnist:many", r"'many' is no size of fashion-mnist\[:TRAIN"),
        ("fashion-mnist:10,steps=2", "'steps=2' is not micro-batches=N"),
        ("fashion-mnist:10,micro-batches=0", "'micro-batches=0' is not micro-batches=N"),
        ("mnist-5k:10", "'10' is no size of mnist-5k"),
        ("reviews:0", "'0' is no size of reviews"),
        ("verses:3", "'3' is no size of verses"),
        ("random-images:3x0/10", "no data set named"),
        ("imagenet", r"no data set named 'imagenet'; there are .*fashion-mnist"),
    ],
)
def test_a_name_that_makes_no_sense_is_told(name: str, message: str) -> None:
    """One line that names it."""
    with pytest.raises(UnknownData, match=message):
        load(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion-mnist", "data set 'fashion-mnist' needs .*apt-get install dataset-fashion-mnist"),
        ("reviews", r"'reviews' needs vaderSentiment-3.3.2.tar.gz in .*pip download --no-deps --no-binary"),
        ("verses", "'verses' needs .*engKJV2006eb in .*apt-get install sword-text-kjv"),
    ],
)
def test_a_data_set_that_is_not_installed_says_how_to(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the time it is loaded, before anything is computed."""
    monkeypatch.setenv("CONTRAFLOW_DATA", str(tmp_path))
    monkeypatch.setenv("CONTRAFLOW_SYSTEM_DATA", "")
    with pytest.raises(MissingData, match=message):
        load(name)


@pytest.mark.parametrize("inside", ["CONTRAFLOW_DATA", "CONTRAFLOW_SYSTEM_DATA"])
def test_a_text_is_found_in_either_folder(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's folder holds what a package would, the system's is that of all packages."""
    folders = {"CONTRAFLOW_DATA": tmp_path / "own", "CONTRAFLOW_SYSTEM_DATA": tmp_path / "share"}
    for variable, folder in folders.items():
        monkeypatch.setenv(variable, str(folder))
    root = folders[inside] / ("" if inside == "CONTRAFLOW_DATA" else "sword")
    text = root / "modules" / "texts" / "ztext" / "engKJV2006eb"
    with pytest.raises(MissingData):
        data_verses.text_folder("engKJV2006eb")
    text.mkdir(parents=True)
    assert data_verses.text_folder("engKJV2006eb") == text


def test_the_command_line_says_what_to_install_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    monkeypatch.setenv("CONTRAFLOW_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main(["profile", "lstm-reviews", "--device", "A100-80GB"], prog_name="contraflow")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("contraflow: data set 'reviews' needs")
    assert error.count("\n") == 1


# ---------------------------------------------------------------- words, and random inputs


def test_the_most_frequent_words_have_numbers() -> None:
    """Words in lower case; punctuation is words; the rest is UNKNOWN; rows are filled and cut."""
    sentences = [words("The cat, the dog."), words("The cat's tail; a dog")]
    assert sentences[0] == ["the", "cat", ",", "the", "dog", "."]
    assert sentences[1][:2] == ["the", "cat's"]
    vocabulary = Vocabulary(sentences, 4 + 2)
    assert vocabulary.encode(["the", "dog", "cat"]) == [UNKNOWN + 1, UNKNOWN + 2, UNKNOWN]
    assert padded([[7, 8], [5, 6, 7, 8]], 3, in_front=True).tolist() == [[PADDING, 7, 8], [5, 6, 7]]
    assert padded([[7, END]], 3, in_front=False).tolist() == [[7, END, PADDING]]


@pytest.mark.parametrize(
    ("name", "inputs", "targets"),
    [
        ("random-images:3x32/7", (4, 3, 32, 32), (4,)),
        ("random-tokens:9x50/0x2", (4, 9), (4,)),
        ("random-tokens:9x50/4x60", (4, 9), (4, 4)),
    ],
)
def test_random_inputs_have_the_shapes_of_their_name(
    name: str, inputs: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    """And are found again under it; the same arguments give the same tensors."""
    data = load(name)
    assert data.name == name
    x, target = data.batch(0, 1, 2, 4)
    assert x.shape == inputs
    assert target.shape == targets
    again = load(name).batch(0, 1, 2, 4)
    assert torch.equal(again[0], x)
    assert torch.equal(again[1], target)
    assert not torch.equal(data.batch(0, 1, 3, 4)[0], x)
