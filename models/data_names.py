"""The names of the data sets that come from packages, and of those drawn at random; see `data.load`."""

from __future__ import annotations

import re
from collections.abc import Callable

from .data_files import UnknownData
from .data_images import FASHION_SAMPLES, fashion, image_data, mnist_5k
from .data_random import RandomImages, RandomTokens
from .data_reviews import DEFAULT_LENGTH as REVIEW_LENGTH
from .data_reviews import reviews
from .data_verses import DEFAULT_LENGTH as VERSE_LENGTH
from .data_verses import verses
from .finite import FiniteData
from .protocol import Dataset

PER_STEP = "micro-batches"
NAMES = (
    *("fashion-mnist[:TRAIN[/HELD_OUT]]", "fashion-mnist-images[:TRAIN[/HELD_OUT]]"),
    *("mnist-5k", "mnist-5k-images", "reviews[:LENGTH]", "verses[:LENGTH]"),
    *("random-images:CHANNELSxSIDE/CLASSES", "random-tokens:LENGTHxVOCABULARY/ANSWEREDxANSWERS"),
)
_Make = Callable[[str, str, int | None], FiniteData | None]


def packaged(name: str) -> Dataset | None:
    """The data set of that name; None: there is none.

    Raises:
        UnknownData: it is there, but what follows the name makes no sense.
        MissingData: its files are not on this machine.
    """
    whole, _, option = name.partition(",")
    kind, _, sizes = whole.partition(":")
    if kind not in _FINITE:
        return _random(name)
    made = _FINITE[kind](name, sizes, _per_step(name, option))
    if made is None:
        form = next(known for known in NAMES if known.partition("[")[0] == kind)
        raise UnknownData(f"data set {name!r}: {sizes!r} is no size of {form}")
    return made


def _per_step(name: str, option: str) -> int | None:
    if "," not in name:
        return None
    key, _, value = option.partition("=")
    if key != PER_STEP or not value.isdecimal() or int(value) < 1:
        raise UnknownData(f"data set {name!r}: {option!r} is not {PER_STEP}=N, the micro-batches of a step in epochs")
    return int(value)


def _fashion(name: str, sizes: str, per_step: int | None, images: bool) -> FiniteData | None:
    found = re.fullmatch(r"(\d+)(?:/(\d+))?", sizes) if sizes else None
    if sizes and found is None:
        return None
    train, held_out = FASHION_SAMPLES
    if found is not None:
        train, held_out = int(found[1]), int(found[2] or held_out)
    for count, most, what in ((train, FASHION_SAMPLES[0], "to train on"), (held_out, FASHION_SAMPLES[1], "held out")):
        if not 1 <= count <= most:
            raise UnknownData(f"data set {name!r}: {count} samples {what}, there are 1 to {most}")
    return image_data(name, fashion((train, held_out), images), per_step)


def _digits(name: str, sizes: str, per_step: int | None, images: bool) -> FiniteData | None:
    return None if sizes else image_data(name, mnist_5k(images), per_step)


def _of_length(made: Callable[[str, int, int | None], FiniteData], default: int, least: int) -> _Make:
    def make(name: str, sizes: str, per_step: int | None) -> FiniteData | None:
        length = default if not sizes else int(sizes) if sizes.isdecimal() else 0
        return made(name, length, per_step) if length >= least else None

    return make


_FINITE: dict[str, _Make] = {
    "fashion-mnist": lambda name, sizes, per_step: _fashion(name, sizes, per_step, images=False),
    "fashion-mnist-images": lambda name, sizes, per_step: _fashion(name, sizes, per_step, images=True),
    "mnist-5k": lambda name, sizes, per_step: _digits(name, sizes, per_step, images=False),
    "mnist-5k-images": lambda name, sizes, per_step: _digits(name, sizes, per_step, images=True),
    "reviews": _of_length(reviews, REVIEW_LENGTH, least=1),
    "verses": _of_length(verses, VERSE_LENGTH, least=16),
}


def _random(name: str) -> Dataset | None:
    if found := re.fullmatch(r"random-images:([1-9]\d*)x([1-9]\d*)/([1-9]\d*)", name):
        return RandomImages(*map(int, found.groups()))
    if found := re.fullmatch(r"random-tokens:([1-9]\d*)x([1-9]\d*)/(\d+)x([1-9]\d*)", name):
        length, vocabulary, answered, answers = map(int, found.groups())
        return RandomTokens(length, vocabulary, answers, answered)
    return None
