"""What the tests start can be interrupted, also where a shell started pytest in the background, with SIGINT ignored."""

from __future__ import annotations

import signal
import threading

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

for helper in ("async_plans", "runs", "routes", "steady_plans"):
    pytest.register_assert_rewrite(helper)
