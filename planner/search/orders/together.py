"""Tasks on the threads of a session, until they end, time is up or Ctrl-C comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from ..common import SECONDS, Session
from .kernels import Ints


def together(session: Session, tasks: Sequence[Callable[[], None]], phase: str, deadline: float, stop: Ints) -> None:
    """Runs tasks that heed `stop`, an array of one number: where it is no longer 0 they end soon."""
    with ThreadPoolExecutor(session.workers) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            while wait(futures, timeout=SECONDS.progress).not_done:
                session.report(phase)
                if session.over or time.monotonic() >= deadline:
                    stop[0] = 1
        except KeyboardInterrupt:
            stop[0] = 1
            session.clock.interrupt()
            wait(futures)
        for future in futures:
            future.result()
