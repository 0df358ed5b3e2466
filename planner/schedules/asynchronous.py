"""Asynchronous schedules: one forward, one backward without a flush, each with its weight policy.

The orders are those of 1F1B over the whole run, so a run starts and ends as 1F1B does; STEPs and PREDICTs are put
between the ops when the plan is assembled. Update 0 of a pipeline of 3 stages, one micro-batch an update:

    F0 F1 F2       B0 STEP F3 B1 STEP F4 ...      device 0: F3 runs on version 1, B3 takes version 3
       F0 F1 B0 STEP F2 B1 STEP F3 ...            device 1
          F0 B0 STEP F1 B1 STEP ...               device 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from .layout import Layout
from .one_way import one_f_one_b

WEIGHTS = {
    "pipedream": "stash",  # Narayanan et al. 2019 (SOSP'19): weight stashing
    "pipedream-vertical": "vertical",  # the same, with vertical sync
    "pipedream-2bw": "2bw",  # Narayanan et al. 2021 (arXiv:2006.09503)
    "spectrain": "spectrain",  # Chen et al. 2018 (arXiv:1809.02839)
    "pipeoptim": "pipeoptim",  # Guan et al. 2023 (arXiv:2312.00839)
    "pipeoptim-lookahead": "pipeoptim-lookahead",  # as its released code predicts
    "naive-async": "naive",
}
"""Weight policy of every asynchronous schedule."""


def without_flush(name: str, devices: int, micro_batches: int) -> Layout:
    """The schedule of this name."""
    return replace(one_f_one_b(devices, micro_batches), name=name, weights=WEIGHTS[name])


ASYNCHRONOUS: Mapping[str, Callable[..., Layout]] = {name: partial(without_flush, name) for name in WEIGHTS}
"""Schedules that update weights without a flush; never part of a search of synchronous plans."""
