"""SIGTERM and SIGHUP end a command as Ctrl-C does, so that what it has found so far is kept; its exit code says so."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

import click

from ..basics import AGAIN_S, ask_to_end

_NAMES = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
WORDS = {getattr(signal, name): words for name, words in _NAMES.items() if hasattr(signal, name)}
"""What a command says that a signal has ended."""


class Ended(KeyboardInterrupt):
    """A signal asks for the end. `number`: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(WORDS[signal.Signals(number)])
        self.number = number


class EndingSignals:
    """While it lasts, SIGTERM and SIGHUP ask a search to end, or raise `Ended` in the main thread where none runs.

    At its end, the exit code is 128 and theirs.

    Left alone: a signal that is ignored (nohup) or that the caller handles, and other threads than the main one.

    Args:
        left: what the command says it has got nevertheless.

    Attributes:
        number: of the signal that came, 0: none.
    """

    def __init__(self, left: str = "this is the best so far") -> None:
        self.number = 0
        self._left = left
        self._came_s = float("-inf")
        self._working = True
        self._mine: list[signal.Signals] = []

    def __enter__(self) -> EndingSignals:
        if threading.current_thread() is threading.main_thread():
            ending = [number for number in WORDS if number != signal.SIGINT]
            self._mine = [number for number in ending if signal.getsignal(number) is signal.SIG_DFL]
        for number in self._mine:
            signal.signal(number, self._come)
        return self

    def report(self) -> None:
        """The work is done: what follows only tells of it and is not interrupted any more."""
        self._working = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._mine:
            signal.signal(number, signal.SIG_DFL)
        if self.number and (error is None or isinstance(error, click.exceptions.Exit)):
            click.echo(f"contraflow: {WORDS[signal.Signals(self.number)]}: {self._left}", err=True)
            raise click.exceptions.Exit(128 + self.number)

    def _come(self, number: int, _: FrameType | None) -> None:
        now, before = time.monotonic(), self._came_s
        self._came_s = now
        self.number = self.number or number
        if self._working and now - before > AGAIN_S and not ask_to_end():
            raise Ended(number)
