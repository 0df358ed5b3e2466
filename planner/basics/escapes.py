"""Text from files and arguments, fit for a terminal, a picture or an error message: it is text and nothing else."""

from __future__ import annotations

import reprlib
import unicodedata

SHOWN = 80
"""Letters of a value that a message quotes."""
LINE = 400
"""Letters of a refusal."""
_UNSEEN = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
_TURNS = frozenset(range(0x202A, 0x202F)) | frozenset(range(0x2066, 0x206A)) | {0x200E, 0x200F, 0x061C}
"""Letters that change the direction of the text around them."""


def printable(text: str) -> str:
    """The text on one line: whitespace becomes a blank, what no font, terminal or XML file takes a replacement mark."""
    return text if text.isascii() and text.isprintable() else "".join(map(_letter, text))


def _letter(letter: str) -> str:
    if letter.isspace():
        return " "
    unseen = unicodedata.category(letter) in _UNSEEN or ord(letter) in _TURNS
    return "\N{REPLACEMENT CHARACTER}" if unseen else letter


def printable_lines(text: str) -> str:
    """As `printable`, line by line."""
    return "\n".join(printable(line) for line in text.split("\n"))


def one_line(text: str, most: int = LINE) -> str:
    """A message as one printable line of at most so many letters; runs of blanks become one."""
    line = " ".join(printable(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


class _Short(reprlib.Repr):
    """A repr that never walks more of a value than it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple = 3, 4, 6, 6
        self.maxstring = self.maxother = SHOWN
        self.maxlong = 40

    def repr_int(self, x: int, level: int) -> str:
        """Numbers of thousands of digits have no repr."""
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"a number of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """A value as a message quotes it: its repr, at most about 80 letters of it."""
    text = one_line(_SHORT.repr(value), 2 * SHOWN)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def listed(names: object, most: int = 12) -> str:
    """Names with commas between them, the first dozen."""
    found = [str(name) for name in names]  # type: ignore[attr-defined]
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return ", ".join([*(one_line(name, SHOWN) for name in found[:most]), *more])
