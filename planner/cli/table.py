"""Tables on the command line: a line for every schedule, and notes about some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .common import say


class Line(NamedTuple):
    """One line of a table; columns without a cell stay empty. `note` goes to stderr below the table."""

    cells: Sequence[str]
    style: str | None = None
    note: str = ""


def print_table(headings: Sequence[str], lines: Sequence[Line], words: int = 1) -> None:
    """Prints a table whose first `words` columns hold words and the others numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < words else "right")
    for line in lines:
        table.add_row(*line.cells, style=line.style)
    Console(highlight=False, markup=False).print(table)
    for line in lines:
        if line.note:
            say(f"{line.cells[0]}: {line.note}", err=True)
