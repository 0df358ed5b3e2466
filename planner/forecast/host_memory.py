"""Host memory over the simulated step: what the devices of a node have offloaded."""

from __future__ import annotations

import numpy as np

from ..graph import StageCosts, Structured, copied_bytes
from ..plan import Kind
from .curves import DeviceMemory
from .events import CLOSE
from .jobs import Jobs


def host_memory(plan: Structured, costs: StageCosts, jobs: Jobs, step_s: float) -> tuple[DeviceMemory, ...]:
    """Host memory over time of every node: a stash is there from the start of its OFFLOAD to the end of its FETCH."""
    cluster, ops = plan.problem.cluster, jobs.ops
    out, back = ops.where(Kind.OFFLOAD), ops.where(Kind.FETCH)
    if not len(out):
        return (DeviceMemory(np.zeros(1), np.zeros(1, dtype=np.int64), 0, 0.0, ()),) * len(cluster.node_groups)
    node = np.array([device.node for device in cluster.devices])[ops.device[np.concatenate([out, back])]]
    time = np.concatenate([jobs.start[out], jobs.end[back]])
    delta = np.concatenate([copied_bytes(plan, costs, ops, out), -copied_bytes(plan, costs, ops, back)])
    unit = step_s * CLOSE
    tick = np.rint(time / unit) if unit > 0 else time
    order = np.lexsort((delta, tick))
    found = []
    for number in range(len(cluster.node_groups)):
        mine = order[node[order] == number]
        total = np.concatenate([[0], np.cumsum(delta[mine])])
        times = np.concatenate([[0.0], time[mine]])
        peak = int(np.argmax(total))
        parts = (("stashes", int(total[peak])),) if total[peak] else ()
        found.append(DeviceMemory(times, total, int(total[peak]), float(times[peak]), parts))
    return tuple(found)
