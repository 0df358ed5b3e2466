"""Ctrl-C as a request that a search reads where it can end, instead of an exception wherever it happens to be.

An exception may come inside an import, a destructor or a callback from compiled code, which lose it or are left half
done; and whoever has used CP-SAT with its own handler finds Ctrl-C ending the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

AGAIN_S = 1.0
"""Whoever ends a process group and the process itself sends a signal twice; so soon, it is the same one."""


class _Call:
    """A call that may be asked to end by what it calls back."""

    ended = False


_CALL: ContextVar[_Call | None] = ContextVar("call", default=None)


class _Request:
    """Whether a search of this process listens, and when it was asked to end (time.monotonic())."""

    listening = False
    asked_s: float | None = None


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """While it lasts, Ctrl-C asks for the end: `end_asked` tells so. Once more, `AGAIN_S` later, it raises as ever.

    Only in the main thread, and where Ctrl-C means what Python makes of it; of two, one within the other, the outer one
    counts. In any thread `end_call` asks for the end of the outer one.
    """
    token = _CALL.set(_CALL.get() or _Call())
    try:
        with _heeding():
            yield
    finally:
        _CALL.reset(token)


@contextmanager
def _heeding() -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _Request.asked_s, _Request.listening = None, True
    signal.signal(signal.SIGINT, _come)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _Request.asked_s, _Request.listening = None, False


def ask_to_end() -> bool:
    """Asks the search that listens to end; False where none does, or has not heeded what it was asked before."""
    if not _Request.listening:
        return False
    now = time.monotonic()
    _Request.asked_s = now if _Request.asked_s is None else _Request.asked_s
    return now - _Request.asked_s <= AGAIN_S


def end_call() -> None:
    """Asks the call that runs in this context to end; nothing where none does."""
    call = _CALL.get()
    if call is not None:
        call.ended = True


def end_asked() -> bool:
    """Whether the searches of this process, or the call of this context, have been asked to end."""
    call = _CALL.get()
    return _Request.asked_s is not None or (call is not None and call.ended)


def _come(_: int, __: FrameType | None) -> None:
    if not ask_to_end():
        raise KeyboardInterrupt
