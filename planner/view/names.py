"""Names from files in a picture: how they are shortened, wrapped and measured."""

from __future__ import annotations

from ..basics import printable

plain = printable
"""The text on one line, without what no font, terminal or XML file takes."""


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


def wrap(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many terminal columns, broken at blanks, and inside words that are too long."""
    lines: list[str] = [""]
    for word in text.split():
        if lines[-1] and columns_of(f"{lines[-1]} {word}") <= columns:
            lines[-1] += f" {word}"
            continue
        lines += [""] if lines[-1] else []
        for letter in word:
            if columns_of(lines[-1] + letter) > columns and lines[-1]:
                lines.append("")
            lines[-1] += letter
    return lines if lines[-1] else lines[:-1]


def columns_of(text: str) -> int:
    """Terminal columns that a text takes: two for a wide letter, none for what combines with the one before."""
    from rich.cells import cell_len

    return cell_len(text)
