"""Asynchronous schedules: one forward, one backward without a flush, each with its weight policy; and PipeFB.

The orders of the former are those of 1F1B over the whole run, so a run starts and ends as 1F1B does; STEPs and
PREDICTs are put between the ops when the plan is assembled. A pipeline of 3 stages, one micro-batch an update:

    F0 F1 F2       B0 STEP F3 B1 STEP F4 ...      device 0: F3 runs on version 1, B3 takes version 3
       F0 F1 B0 STEP F2 B1 STEP F3 ...            device 1
          F0 B0 STEP F1 B1 STEP ...               device 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ..plan import Pipeline
from .layout import Layout, backward, forward, require
from .one_way import one_f_one_b

ALTERNATING = {
    "pipedream": "stash",  # Narayanan et al. 2019 (SOSP'19): weight stashing
    "pipedream-vertical": "vertical",  # the same, with vertical sync
    "pipedream-2bw": "2bw",  # Narayanan et al. 2021 (arXiv:2006.09503)
    "spectrain": "spectrain",  # Chen et al. 2018 (arXiv:1809.02839)
    "pipeoptim": "pipeoptim",  # Guan et al. 2023 (arXiv:2312.00839)
    "pipeoptim-lookahead": "pipeoptim-lookahead",  # as its released code predicts
    "naive-async": "naive",
}
"""Weight policy of every schedule in the order one forward, one backward."""
WEIGHTS = {**ALTERNATING, "pipefb": "stash"}
"""Weight policy of every asynchronous schedule."""


def without_flush(name: str, devices: int, micro_batches: int) -> Layout:
    """The schedule of this name."""
    return replace(one_f_one_b(devices, micro_batches), name=name, weights=WEIGHTS[name])


def pipefb(devices: int, micro_batches: int) -> Layout:
    """PipeFB without a flush: half of the devices run forwards, the other half backwards, of D/2 stages.

    Stage s runs forward on device s and backward on device D - 1 - s, so a micro-batch goes through all D devices in a
    row, and comes back to stage s after 2(D/2 - s) slots: so many are on their way there when the pipeline is full and
    all ops take equally long. 4 devices, stage 0 with 4 and stage 1 with 2 on their way:

        F0 F1 F2 F3 F4 F5 ...      device 0, stage 0: F4 runs on version 1, which B0 made on device 3
           F0 F1 F2 F3 F4 ...      device 1, stage 1
              B0 B1 B2 B3 ...      device 2, stage 1
                 B0 B1 B2 ...      device 3, stage 0
    """
    require(devices >= 2 and devices % 2 == 0, "pipefb", f"needs an even number of devices, got {devices}")
    stages, batch = range(devices // 2), range(micro_batches)
    route = Pipeline(tuple(stages), tuple(devices - 1 - s for s in stages), tuple(batch))
    forwards = [tuple(forward(s, m) for m in batch) for s in stages]
    backwards = [tuple(backward(s, m) for m in batch) for s in reversed(stages)]
    ahead = tuple(devices - 2 * s for s in stages)
    return Layout("pipefb", len(stages), (route,), (*forwards, *backwards), WEIGHTS["pipefb"], ahead)


ASYNCHRONOUS: Mapping[str, Callable[..., Layout]] = {
    **{name: partial(without_flush, name) for name in ALTERNATING},
    "pipefb": pipefb,
}
"""Schedules that update weights without a flush; never part of a search of synchronous plans."""
