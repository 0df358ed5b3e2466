"""What the tests start can be interrupted, also where a shell started pytest in the background, with SIGINT ignored."""

from __future__ import annotations

import os
import signal
import threading

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: small tensors gain nothing from threads

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

for helper in ("async_plans", "runs", "routes", "steady_plans"):
    pytest.register_assert_rewrite(helper)
