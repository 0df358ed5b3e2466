"""How wide a text is drawn: the advance widths of DejaVu Sans, the widest sans-serif that pictures meet.

What fits in these widths fits in the fonts that systems put first (Segoe UI, Helvetica, Arial, Roboto), whose letters
are narrower; matplotlib draws in DejaVu Sans itself.
"""

from __future__ import annotations

from .names import columns_of

_PLAIN = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656,
    557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613,
    635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818,
    592, 592, 525, 636, 337, 636, 838,
)  # fmt: skip
"""Thousandths of an em, from the blank to the tilde."""
_BOLD = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696, 696,
    696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775,
    637, 995, 837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500, 500, 675,
    716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595, 478, 712, 652, 924,
    645, 652, 582, 712, 365, 712, 838,
)  # fmt: skip
_FIRST, _OTHER = ord(" "), 1.0
"""The first letter of the tables, and the ems of a letter that is not in them."""


def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide a text is drawn at most, in the unit of its size."""
    table, ems = _BOLD if bold else _PLAIN, 0.0
    for letter in text:
        place = ord(letter) - _FIRST
        ems += table[place] / 1000 if 0 <= place < len(table) else _OTHER * min(1, columns_of(letter))
    return ems * size


def fitted(text: str, room: float, size: float, bold: bool = False) -> str:
    """The text cut to this width, with an ellipsis where something is missing."""
    if text_width(text, size, bold) <= room:
        return text
    left, kept = room - text_width("…", size, bold), ""
    for letter in text:
        left -= text_width(letter, size, bold)
        if left < 0:
            break
        kept += letter
    return kept + "…"
