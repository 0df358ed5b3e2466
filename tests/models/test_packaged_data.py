"""The data sets that come from packages, read from the packages themselves: skipped, with the reason, where one is not
installed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from packaged import installed

from contraflow.models import data_reviews, data_verses, load
from contraflow.models.finite import FiniteData
from contraflow.models.words import END, PADDING, START


def packaged(name: str) -> FiniteData:
    """The data set, or the test is skipped."""
    data = installed(name)
    assert isinstance(data, FiniteData)
    return data


@pytest.mark.parametrize(
    "name",
    ["fashion-mnist:50/20", "fashion-mnist-images:50", "mnist-5k", "mnist-5k-images", "reviews:16", "verses:16"],
)
@pytest.mark.parametrize("option", ["", ",micro-batches=2"])
def test_a_micro_batch_depends_on_its_arguments_alone(name: str, option: str) -> None:
    """Found again under its name, it gives the same; other steps, micro-batches and seeds give others."""
    data = packaged(name + option)
    assert data.name == name + option
    x, target = data.batch(0, 3, 1, 4)
    again, target_again = load(data.name).batch(0, 3, 1, 4)
    assert torch.equal(pickle.loads(pickle.dumps(data)).batch(0, 3, 1, 4)[0], x), "processes may be sent the object"
    assert torch.equal(x, again)
    assert torch.equal(target, target_again)
    for other in ((0, 3, 0), (0, 2, 1), (1, 3, 1)):
        assert not torch.equal(x, data.batch(*other, 4)[0])
    assert not torch.equal(x, data.held_out.batch(0, 3, 1, 4)[0])


def test_fashion_mnists_bounded_part_is_its_beginning() -> None:
    """8,000 and 5,000 samples of about zero mean and unit variance; labels as published; images are the same pixels."""
    data = packaged("fashion-mnist:8000/5000")
    kept = data.held_out
    assert isinstance(kept, FiniteData)
    assert (len(data), len(kept)) == (8000, 5000)
    x, labels = data.take(np.arange(8000))
    assert x.shape == (8000, 784)
    assert x.dtype == torch.float32
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02
    assert labels[:8].tolist() == [9, 0, 0, 3, 0, 2, 7, 2]
    assert kept.take(np.arange(6))[1].tolist() == [9, 2, 1, 1, 6, 1]
    assert labels.bincount().min() > 700
    images = packaged("fashion-mnist-images:8000/5000").take(np.arange(3))[0]
    assert images.shape == (3, 1, 28, 28)
    assert torch.equal(images.flatten(1), x[:3])


def test_mnist_5k_has_500_of_every_digit() -> None:
    """4,000 to train on and 1,000 held out, in mixed order."""
    data = packaged("mnist-5k")
    kept = data.held_out
    assert isinstance(kept, FiniteData)
    parts = [data.take(np.arange(4000)), kept.take(np.arange(1000))]
    assert (len(data), len(kept)) == (4000, 1000)
    assert torch.cat([target for _, target in parts]).bincount().tolist() == [500] * 10
    assert parts[1][1].bincount().min() > 70
    assert abs(parts[0][0].mean().item()) < 0.02


def test_reviews_are_the_published_rows_and_their_sign() -> None:
    """10,605 snippets, 5,242 of them rated above 0; a short one is filled in front, as the last state counts."""
    data = packaged("reviews")
    kept = data.held_out
    assert isinstance(kept, FiniteData)
    x, target = data.take(np.arange(len(data)))
    rest, target_rest = kept.take(np.arange(len(kept)))
    assert len(x) + len(rest) == 10_605
    assert target.sum() + target_rest.sum() == 5_242
    assert 0.45 < target_rest.double().mean() < 0.55
    assert x.max() < data_reviews.VOCABULARY
    assert (x[:, -1] != PADDING).all()
    assert (x[:, 0] == PADDING).any()


def test_verses_are_pairs_and_targets_are_one_word_ahead() -> None:
    """31,084 verses are in both texts; a pair is kept where both fit, and the decoder reads what it said before."""
    data = packaged("verses:16")
    x, target = data.take(np.arange(len(data)))
    source, asked = x[:, :16], x[:, 16:]
    assert len(data) == 3_339 - data_verses.HELD_OUT
    assert (asked[:, 0] == START).all()
    said = target != PADDING
    assert torch.equal(asked[:, 1:][said[:, 1:]], target[:, :-1][said[:, 1:]])
    assert ((target == END).sum(1) == 1).all()
    assert (source[:, -1] != PADDING).all()
    assert x.max() < data_verses.VOCABULARY


def test_verses_are_aligned_and_free_of_markup() -> None:
    """Of all the pairs, the first and the last; no note, title or tag is left."""
    installed("verses")
    pairs = data_verses.aligned(tuple(data_verses.text_folder(name) for name in data_verses.TEXTS))
    assert len(pairs) == 31_084
    assert [" ".join(side) for side in pairs[0]] == [
        "in the beginning god created the heaven and the earth .",
        "en el principio crió dios los cielos y la tierra .",
    ]
    assert " ".join(pairs[-1][1]).startswith("la gracia de nuestro señor jesucristo")
    assert not any({"<", ">"} & set(side) for pair in pairs for side in pair)
