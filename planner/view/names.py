"""Names from files, made fit for a picture: what a model or a layer is called is text and nothing else."""

from __future__ import annotations

import unicodedata

_UNSEEN = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
_TURNS = frozenset(range(0x202A, 0x202F)) | frozenset(range(0x2066, 0x206A))  # change the direction of the text around


def plain(text: str) -> str:
    """The text on one line: whitespace becomes a blank, what no font, terminal or XML file takes a replacement mark."""
    return "".join(map(_plain, text))


def _plain(letter: str) -> str:
    if letter.isspace():
        return " "
    unseen = unicodedata.category(letter) in _UNSEEN or ord(letter) in _TURNS
    return "\N{REPLACEMENT CHARACTER}" if unseen else letter


def shorten(text: str, columns: int) -> str:
    """The text cut to so many terminal columns, with an ellipsis where something is missing."""
    if columns_of(text) <= columns:
        return text
    used, kept = 1, ""
    for letter in text:
        used += columns_of(letter)
        if used > columns:
            break
        kept += letter
    return kept + "…"


def columns_of(text: str) -> int:
    """Terminal columns that a text takes: two for a wide letter, none for what combines with the one before."""
    from rich.cells import cell_len

    return cell_len(text)
