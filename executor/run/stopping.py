"""Ending a run after the step under way: who asks for it, and how all ranks come to the same last step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..wires import Transport
from .result import RunResult

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What asks a run with a checkpoint folder to save and end."""


class Stop:
    """Whether a run is to end early, in memory that its processes may share. Any thread may ask.

    Args:
        memory: `Stop.SIZE` bytes, zeros at first.
    """

    SIZE = 2

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def share(self, memory: Any) -> None:
        """From now on it is in this memory, which other processes have too."""
        memory[: self.SIZE] = bytes(self.memory[: self.SIZE])
        self.memory = memory

    def request(self, number: int = signal.SIGTERM) -> None:
        """Asks for the end, as a signal with this number does."""
        self.memory[0] = self.memory[0] or number

    @property
    def number(self) -> int:
        """Of the signal that asked first, 0: none did."""
        return int(self.memory[0])

    def begin(self) -> None:
        """Training begins: from now on there is a step that can be finished."""
        self.memory[1] = 1

    @property
    def begun(self) -> bool:
        """Whether training has begun."""
        return bool(self.memory[1])


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run, after its last step was saved. `result`: of the steps it did, None without any."""

    def __init__(self, text: str, result: RunResult | None) -> None:
        super().__init__(text)
        self.result = result


class Terminated(SystemExit):
    """SIGTERM ended a run, after its last step was saved; as an exit, with code 143. `result`: as of `Interrupted`."""

    def __init__(self, text: str, result: RunResult | None) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.text = text
        self.result = result

    def __str__(self) -> str:
        return self.text


def ended_by(number: int, steps: int, result: RunResult | None) -> Interrupted | Terminated:
    """What a run raises that a signal has ended after so many steps."""
    text = "before the first step" if result is None else f"after step {steps}, which is saved"
    return Interrupted(text, result) if number == signal.SIGINT else Terminated(text, result)


class _Asking:
    """A signal handler: while training has begun the first signal asks for a stop, and any other one calls `end`."""

    def __init__(self, stop: Stop, end: Callable[[int], None]) -> None:
        self._stop, self._end = stop, end
        self._asked = False

    def __call__(self, number: int, _: object) -> None:
        if self._stop.begun and not self._asked:
            self._asked = True
            self._stop.request(number)
        else:
            self._end(number)


@contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """While it lasts, SIGINT and SIGTERM ask for a stop; before training begins, and the second time, they end at once.

    At once is by KeyboardInterrupt and SystemExit(143). Left alone: handlers that the caller has set, and calls from
    other threads than the main one.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    mine = [number for number in SIGNALS if before[number] == default[number]]
    if threading.current_thread() is not threading.main_thread():
        mine = []

    def end(number: int) -> None:
        for other in mine:
            signal.signal(other, signal.SIG_IGN)  # nothing interrupts the end
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    asking = _Asking(stop, end)
    for number in mine:
        signal.signal(number, asking)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def heed_signals(stop: Stop) -> None:
    """In a rank's own process: SIGTERM, which a whole process group may get, asks for a stop; a second one ends it."""

    def end(number: int) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, _Asking(stop, end))


def agreed(stop: Stop, transport: Transport, group: str) -> int:
    """The signal by which the run ends before the next step, 0: it goes on. Collective: all ranks get the same."""
    with _disable_current_modes():  # the host's memory, not the device's
        asked = torch.tensor([stop.number == number for number in SIGNALS], dtype=torch.int64)
        transport.host.all_reduce(asked, group).wait()
    return next((int(number) for number, count in zip(SIGNALS, asked.tolist(), strict=True) if count), 0)
