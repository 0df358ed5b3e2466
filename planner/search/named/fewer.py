"""Plans that leave devices unused: where ops are small or messages slow, what they bring does not pay."""

from __future__ import annotations

from collections.abc import Iterator

from ..common import SIZE, Session, binding
from .fitted import run_mixed
from .portfolio import Order, run_named


def run_fewer(session: Session, order: Order, fitted: bool = False) -> Iterator[None]:
    """Named schedules on the first 1, 2, 4, .. of these devices, where all the work may be done there in less time.

    `fitted`: once there are plans whose stashes are made to fit, as memory asks for; before, any time may look long.
    """
    if fitted != binding(session.problem):
        return
    space, batches, devices = session.space, session.problem.workload.micro_batches, session.problem.cluster.devices
    if space.schedule != "search" or (space.replicas or 1) > 1:
        return
    work, around = float(session.chain.load_s[-1]), 2 * session.problem.cluster.around.op_s
    count = 1
    while count < len(order) and 2 * batches * count <= SIZE.one_cut:
        speeds = sum(devices[d].kind.speed for d in order[:count])
        if batches * (work + around) / speeds < session.best_s:
            yield from run_named(session, order[:count])
            yield from run_mixed(session, order[:count])
        count *= 2
