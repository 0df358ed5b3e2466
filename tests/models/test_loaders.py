"""Loaders and data sets of torch: every plan takes the same samples, those of a plain loop, in the same order."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from users_data import FIRST, SOURCES, Rows, Stream

from contraflow.models import load
from contraflow.models.data import UnknownData
from contraflow.models.loaders import DataFault, Feed, as_dataset


def samples_of(source: Any, full: int, micro_batches: int, steps: int, seed: int = 0, samples: int = 0) -> Tensor:
    """All inputs of the first steps, as one row."""
    whole = samples or full * micro_batches
    data = as_dataset(source, Feed(full, whole))
    sizes = [full] * (micro_batches - 1) + [whole - full * (micro_batches - 1)]
    return torch.cat([data.batch(seed, step, m, size)[0] for step in range(steps) for m, size in enumerate(sizes)])


@pytest.mark.parametrize("name", SOURCES)
def test_plans_of_other_micro_batches_see_the_same_samples_in_the_same_order(name: str) -> None:
    """Four of 4, eight of 2, and four of 4 of which the last has less: over the ends of epochs of 50 or 48."""
    row = samples_of(SOURCES[name](), 4, 4, 9)
    assert torch.equal(row, samples_of(SOURCES[name](), 2, 8, 9))
    assert torch.equal(row[:135], samples_of(SOURCES[name](), 4, 4, 9, samples=15))


@pytest.mark.parametrize("name", ["in order", "map style", "iterable", "mappings", "stream in batches", "workers"])
def test_the_row_is_a_plain_loop_over_epochs(name: str) -> None:
    """None is left out and none twice: 50 digits, then the same again."""
    row = samples_of(SOURCES[name](), 4, 4, 7)
    assert torch.equal(row, torch.cat([FIRST.tensors[0]] * 3)[:112])


@pytest.mark.parametrize(("name", "epoch"), [("shuffled", 48), ("own generator", 50)])
def test_a_sampler_shuffles_every_epoch_anew(name: str, epoch: int) -> None:
    """By the run's seed, or by its generator's and the run's; an epoch has every sample once."""
    row = samples_of(SOURCES[name](), 2, 1, epoch)
    first, second = ({tuple(x.tolist()) for x in part} for part in (row[:epoch], row[epoch:]))
    assert len(first) == len(second) == epoch
    assert not torch.equal(row[:epoch], row[epoch:])
    assert not torch.equal(row, samples_of(SOURCES[name](), 2, 1, epoch, seed=1))


def test_a_loader_s_generator_is_left_as_it_was() -> None:
    """Whoever asks later gets the same."""
    loader = SOURCES["own generator"]()
    before = loader.generator.get_state()
    row = samples_of(loader, 2, 4, 3)
    assert torch.equal(loader.generator.get_state(), before)
    assert torch.equal(row, samples_of(loader, 2, 4, 3))


@pytest.mark.long
@given(st.sampled_from(sorted(SOURCES)), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=12))
def test_a_micro_batch_is_the_same_whenever_it_is_asked_for(name: str, asked: list[tuple[int, int]]) -> None:
    """Far ahead, again, and long after."""
    row = samples_of(SOURCES[name](), 4, 4, 13)
    data = as_dataset(SOURCES[name](), Feed(4, 16))
    for step, m in asked:
        first = step * 16 + m * 4
        assert torch.equal(data.batch(0, step, m, 4)[0], row[first : first + 4])


def test_what_a_micro_batch_gets_is_its_own() -> None:
    """Changing it changes no other one, nor the data."""
    data = as_dataset(DataLoader(FIRST, 8), Feed(4, 8))
    data.batch(0, 0, 0, 4)[0].zero_()
    assert torch.equal(data.batch(0, 0, 0, 4)[0], FIRST.tensors[0][:4])
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.batch(0, 3, 1, 4)[0], data.batch(0, 3, 1, 4)[0])


class Ending(Stream):
    """Can be read once."""

    def __init__(self) -> None:
        self.rest = iter(list(super().__iter__()))

    def __iter__(self) -> Any:
        return self.rest


WRONG = [
    (3, "^a int is no data: give a name, a torch DataLoader"),
    ({"x": 1}, "^a dict is no data"),
    (torch.zeros(3), "^a Tensor is no data"),
    ((x for x in range(3)), "^a generator can be read once only"),
    (DataLoader(FIRST, 6), "^its batches of 6 samples are no multiple of a micro-batch's 4"),
    (DataLoader(FIRST, 2), "^its batches of 2 samples are no multiple of a micro-batch's 4"),
    (DataLoader(FIRST, 4, collate_fn=lambda samples: 7), "^a batch is a int, not a tensor of inputs"),
    (TensorDataset(torch.zeros(8, 2)), "^a batch is a list of Tensor, not"),
    (
        [{"ids": 1, "mask": 2}] * 4,
        "^a batch has ids, mask: inputs and one of labels, .*collate_fn",
    ),
    ([(torch.zeros(k), k) for k in range(4)], "^samples cannot be collated: stack expects each tensor"),
    (DataLoader(FIRST, 4, collate_fn=lambda s: (torch.zeros(4, 2), torch.zeros(3))), "^a batch has 4 inputs and 3"),
]


@pytest.mark.parametrize(("source", "line"), WRONG)
def test_what_is_no_data_is_refused_in_a_line(source: Any, line: str) -> None:
    """That says what it is and what is taken."""
    with pytest.raises(DataFault, match=line) as told:
        as_dataset(source, Feed(4, 8)).batch(0, 0, 0, 4)
    assert "\n" not in str(told.value)


def test_data_that_ends_says_after_how_many_samples() -> None:
    """And data without samples that it has none."""
    data = as_dataset(Ending(), Feed(4, 8))
    with pytest.raises(EOFError, match=r"^no sample when it is read again, after 50 samples$"):
        data.batch(0, 6, 1, 4)
    with pytest.raises(EOFError, match=r"^no sample$"):
        as_dataset([], Feed(4, 8)).batch(0, 0, 0, 4)


def test_held_out_samples_are_an_attribute_of_the_loader() -> None:
    """A loader too."""
    loader, kept = DataLoader(FIRST, 4), DataLoader(Rows(), 4, collate_fn=lambda s: (torch.ones(4), torch.ones(4)))
    assert as_dataset(loader, Feed(4, 8)).held_out.name == as_dataset(loader, Feed(4, 8)).name
    loader.held_out = kept
    assert as_dataset(loader, Feed(4, 8)).held_out.batch(0, 0, 0, 4)[0].sum() == 4


@pytest.mark.parametrize("ending", ["npy", "bin", "txt"])
def test_a_file_of_tokens_is_read_in_windows(ending: str, tmp_path: Path) -> None:
    """Targets are one ahead; every kind of file gives the same."""
    tokens = np.arange(1000, dtype=np.uint16)
    path = tmp_path / f"corpus.{ending}"
    if ending == "npy":
        np.save(path, tokens)
    elif ending == "bin":
        tokens.tofile(path)
    else:
        path.write_text(" ".join(map(str, tokens)))
    inputs, targets = load(f"tokens:8:{path}").batch(1, 2, 3, 5)
    assert inputs.shape == (5, 8)
    assert torch.equal(inputs + 1, targets)
    assert torch.equal(inputs[:, :1] + torch.arange(8), inputs)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tokens:8:nowhere.npy", "No such file"),
        ("tokens:x:a.npy", "LENGTH at least 1"),
        ("tokens:8", "tokens:LENGTH:FILE"),
        ("tokens:8:short.txt", "3 tokens, but a window takes 9"),
        ("tokens:2:words.txt", "invalid literal"),
        ("tokens:2:large.txt", "too large"),
        ("tokens:2:empty.npy", "No data left"),
        ("tokens:2:several.npy", "several arrays"),
    ],
)
def test_files_that_are_no_tokens_are_refused(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line with the name."""
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("1 2 3")
    Path("words.txt").write_text("no numbers here")
    Path("large.txt").write_text("1 2 99999999999999999999")
    Path("empty.npy").touch()
    with Path("several.npy").open("wb") as file:
        np.savez(file, inputs=np.arange(9), targets=np.arange(9))
    with pytest.raises(UnknownData, match=line) as told:
        load(name)
    assert name in str(told.value)


def test_several_inputs_keep_their_names() -> None:
    """A mapping's rest, beside its targets."""
    rows = [{"ids": torch.tensor([k, k + 1]), "mask": torch.tensor(k > 2), "labels": k} for k in range(8)]
    inputs, targets = as_dataset(DataLoader(rows, 4), Feed(2, 4)).batch(0, 0, 1, 2)  # type: ignore[arg-type]
    assert isinstance(inputs, dict)
    assert inputs["ids"].tolist() == [[2, 3], [3, 4]]
    assert inputs["mask"].tolist() == [False, True]
    assert targets.tolist() == [2, 3]
