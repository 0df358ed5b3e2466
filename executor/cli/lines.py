"""What the executor's commands say on stderr: one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ...planner.basics import one_line
from ...planner.cli import say, stop

_LONGEST = 4000  # what went wrong in a run is told in full


def fail(reason: object, code: int = 1) -> NoReturn:
    """Ends the command with a line and an exit code."""
    say(one_line(f"contraflow: {reason}", _LONGEST), err=True)
    stop(code)


@contextmanager
def notices_as_lines(shown: bool = True) -> Iterator[None]:
    """Notices about engines go to stderr, one line each; other warnings stay as they are."""
    import warnings

    from ..stage import EngineNotice

    with warnings.catch_warnings():
        warnings.simplefilter("always", EngineNotice)
        show = warnings.showwarning

        def line(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, EngineNotice):
                show(message, category, *rest, **named)
            elif shown:
                say(f"contraflow: {message}", err=True)

        warnings.showwarning = line
        yield
