"""Measures what drawing a micro-batch's samples takes of a rank on the CPU."""

from __future__ import annotations

import time
from statistics import median

from ...models import Dataset
from ..state import inputs_and_targets
from .companions import Pace

TOGETHER = 8
"""Micro-batches drawn one after the other, as a run draws those that its list reads next."""


def drawing_s(data: Dataset, samples: int, rounds: int, pace: Pace) -> float:
    """Seconds of a micro-batch of so many samples, the median of so many rounds."""
    found = []
    for _ in range(rounds):
        pace()
        began = time.perf_counter()
        for _ in range(TOGETHER):
            inputs_and_targets(data, 0, 0, 0, samples)
        found.append((time.perf_counter() - began) / TOGETHER)
    return median(found)
