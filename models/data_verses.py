"""Verses in English and Spanish: the King James Version and the Reina-Valera of 1909, as Debian packages them."""

from __future__ import annotations

import re
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from .data_files import MissingData, find, package_folder, system_folder
from .finite import FiniteData, Samples, split
from .words import END, START, Vocabulary, Words, padded, words

VOCABULARY = 2048
"""Of either language."""
DEFAULT_LENGTH = 24
HELD_OUT = 1_000
TEXTS = {"engKJV2006eb": "sword-text-kjv", "spaRV1909eb": "sword-text-sparv"}
_NOT_OF_THE_VERSE = re.compile(r"<(note|title)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def verses(name: str, length: int, per_step: int | None) -> FiniteData:
    """Pairs of verses of at most `length` words, or `length - 1` in Spanish, which then ends with END.

    Inputs are (size, 2 * length) int64: the English verse, filled in front, then START and the Spanish one, filled
    behind. Targets are (size, length): the Spanish verse and END, and PADDING where nothing is to be guessed.

    Raises:
        MissingData: a Debian package of one of the texts, or PyPI's pysword, is not there.
    """
    paths = tuple(text_folder(module) for module in TEXTS)
    if package_folder("pysword") is None:
        raise MissingData("data set 'verses' is read with pysword; install it: pip install pysword")
    return FiniteData(name, partial(_read, paths, length), per_step=per_step)


def text_folder(module: str) -> Path:
    """Where a text lies. Raises MissingData."""
    install = f"apt-get install {TEXTS[module]}"
    return find("verses", f"modules/texts/ztext/{module}", system_folder("sword"), install)


def _read(paths: tuple[Path, ...], length: int, held_out: bool) -> Samples:
    return _parts(paths, length)[held_out]


@cache
def _parts(paths: tuple[Path, ...], length: int) -> tuple[Samples, Samples]:
    pairs = [(a, b) for a, b in aligned(paths) if len(a) <= length and len(b) < length]
    train = len(pairs) - HELD_OUT
    numbers, _ = split(Samples(np.arange(len(pairs)), np.zeros(len(pairs), dtype=np.int64)), train, 0)
    trained = [pairs[int(number)] for number in numbers.inputs]
    english, spanish = (Vocabulary((pair[side] for pair in trained), VOCABULARY) for side in (0, 1))
    source = padded([english.encode(a) for a, _ in pairs], length, in_front=True)
    answer = [spanish.encode(b) for _, b in pairs]
    asked = padded([[START, *tokens] for tokens in answer], length, in_front=False)
    target = padded([[*tokens, END] for tokens in answer], length, in_front=False)
    return split(Samples(np.concatenate([source, asked], axis=1), target), train, HELD_OUT)


def aligned(paths: tuple[Path, ...]) -> list[tuple[Words, Words]]:
    """The verses that both texts have, in words."""
    english, spanish = ([words(_plain(verse)) for verse in _text(path)] for path in paths)
    return [(a, b) for a, b in zip(english, spanish, strict=True) if a and b]


def _plain(verse: str) -> str:
    """An OSIS verse without its markup, notes and titles."""
    return _TAG.sub("", _NOT_OF_THE_VERSE.sub("", verse))


def _text(path: Path) -> list[str]:
    """Every verse of a SWORD module of the King James versification."""
    from pysword.bible import ZTextModule

    text: Any = ZTextModule(str(path))
    # pysword inflates a whole book for every verse: two minutes instead of a second.
    text._decompressed_text = lru_cache(maxsize=1)(text._decompressed_text)
    books = (book.name for testament in text.get_structure().get_books().values() for book in testament)
    return [verse for book in books for verse in text.get_iter(books=[book], clean=False)]
