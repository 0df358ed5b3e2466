"""Text as numbers: a vocabulary of the most frequent words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

PADDING, START, END, UNKNOWN = range(4)
"""The tokens beside words: fill, what a sentence begins and ends with, and every word that has none of its own."""
_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")

Words = list[str]


def words(text: str) -> Words:
    """Words in lower case and single punctuation marks."""
    return _WORD.findall(text.lower())


class Vocabulary:
    """Numbers of the `size - 4` most frequent words of some sentences; among equals the alphabet decides."""

    def __init__(self, sentences: Iterable[Sequence[str]], size: int) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: size - 4]
        self._numbers = {word: number for number, word in enumerate(frequent, start=UNKNOWN + 1)}

    def encode(self, sentence: Sequence[str]) -> list[int]:
        """A token a word."""
        return [self._numbers.get(word, UNKNOWN) for word in sentence]


def padded(rows: Sequence[Sequence[int]], length: int, in_front: bool) -> npt.NDArray[np.int64]:
    """Rows of `length` tokens, longer ones cut at their end, shorter ones filled with PADDING in front or behind."""
    result = np.full((len(rows), length), PADDING, dtype=np.int64)
    for row, tokens in zip(result, rows, strict=True):
        kept = tokens[:length]
        if in_front:
            row[length - len(kept) :] = kept
        else:
            row[: len(kept)] = kept
    return result
