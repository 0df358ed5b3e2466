"""Running statistics (BatchNorm) of forwards that come before their turn, over the simulated step."""

from __future__ import annotations

import numpy as np

from ..graph import StageCosts, Structured, forward_devices
from ..plan import Kind
from .events import Events


def statistics_events(events: Events, plan: Structured, costs: StageCosts, category: int) -> None:
    """A forward whose micro-batch is not next has a row of its own, until all micro-batches before it have run.

    Where several devices run a stage's forwards, `static_bytes` has their rows.
    """
    ops = events.jobs.ops
    alone = [s for s, size in enumerate(costs.buffer_bytes.tolist()) if size and len(forward_devices(plan, s)) == 1]
    forward = ops.table(Kind.F)[alone]
    turn = np.maximum.accumulate(forward, axis=1)
    early = (turn > forward) & (forward >= 0)
    size = costs.buffer_bytes[ops.stage[forward[early]]]
    events.start(forward[early], size, category)
    events.finish(turn[early], -size, category, of=forward[early])
