"""Measures what drawing a micro-batch's samples takes of a rank on the CPU."""

from __future__ import annotations

import time
from statistics import median

from ...models import Dataset
from ..state import inputs_and_targets
from .companions import Pace

TOGETHER = 8
"""Micro-batches drawn one after the other, as a run draws those that its list reads next."""
LONG_S = 0.02
"""No more of them after so long: a data set that is slow is asked for one."""


def drawing_s(data: Dataset, samples: int, rounds: int, pace: Pace) -> float:
    """Seconds of a micro-batch of so many samples, the median of so many rounds."""
    found = []
    for _ in range(rounds):
        pace()
        began, drawn = time.perf_counter(), 0
        while drawn < TOGETHER and time.perf_counter() - began < LONG_S:
            inputs_and_targets(data, 0, 0, 0, samples)
            drawn += 1
        found.append((time.perf_counter() - began) / drawn)
    return median(found)
