"""Snippets of movie reviews and whether people find them positive (Hutto and Gilbert 2014; Pang and Lee 2004)."""

from __future__ import annotations

import io
import tarfile
from functools import cache, partial
from pathlib import Path

import numpy as np

from .data_files import data_folder, find
from .finite import FiniteData, Samples, split
from .words import Vocabulary, padded, words

VOCABULARY = 4096
DEFAULT_LENGTH = 32
SAMPLES = (9_000, 1_605)
"""For training and held out: all 10,605 rows."""
_ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
_INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_TABLE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


def reviews(name: str, length: int, per_step: int | None) -> FiniteData:
    """Inputs are (size, length) int64 words, filled in front; targets (size,) int64, 1 where the mean rating exceeds 0.

    Raises:
        MissingData: vaderSentiment's source distribution is not there; what pip installs of it lacks the snippets.
    """
    install = f"pip download --no-deps --no-binary vadersentiment -d {data_folder()} vaderSentiment==3.3.2"
    return FiniteData(name, partial(_read, find("reviews", _ARCHIVE, None, install), length), per_step=per_step)


def _read(path: Path, length: int, held_out: bool) -> Samples:
    return _parts(path, length)[held_out]


@cache
def _parts(path: Path, length: int) -> tuple[Samples, Samples]:
    rows = [line.split("\t") for line in _table(path).splitlines()]
    texts = [words(text) for _, _, text in rows]
    ratings = np.array([float(rating) > 0 for _, rating, _ in rows], dtype=np.int64)
    numbers, _ = split(Samples(np.arange(len(rows)), ratings), SAMPLES[0], 0)
    vocabulary = Vocabulary((texts[int(number)] for number in numbers.inputs), VOCABULARY)
    tokens = padded([vocabulary.encode(text) for text in texts], length, in_front=True)
    return split(Samples(tokens, ratings), *SAMPLES)


def _table(path: Path) -> str:
    """The table from the archive in the archive: number, mean rating from -4 to 4, and text a row."""
    with tarfile.open(path) as outer:
        inner = outer.extractfile(_INNER)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            table = archive.extractfile(_TABLE)
            assert table is not None
            return table.read().decode()
