"""Threads of gloo's that carry messages step back behind those that compute.

Such a thread asks for the lock of a connection on which something has come. Where the rank's own thread has it, since
it posts a message, gloo's goes back to its sockets, is told of the same one at once, and asks again
(`Pair::handleEvents` in gloo/transport/tcp/pair.cc). On a core that both share, that goes on until the kernel's clock
ticks: 3 to 4 ms, longer than many ops. A batch thread (sched(7)) does not interrupt who computes when something comes:
it runs when that one waits, pauses or has had its time. So it hardly ever finds a lock held by who cannot go on.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_NAME = "gloo_tcp_loop"
_TASKS = Path("/proc/self/task")


def step_back(behind: bool = True) -> int:
    """Makes threads that carry messages for this process step back, or (`behind` false) be as all others are.

    Those of process groups whose ranks are connected: threads get their names when they begin. Returns how many; none
    where the system does not tell or does not let.
    """
    if not hasattr(os, "SCHED_BATCH") or not _TASKS.exists():
        return 0
    policy, found = os.SCHED_BATCH if behind else os.SCHED_OTHER, 0
    for task in _TASKS.iterdir():
        with suppress(OSError):  # it has just ended, or may not be changed
            if (task / "comm").read_text().strip() == _NAME:
                os.sched_setscheduler(int(task.name), policy, os.sched_param(0))
                found += 1
    return found
