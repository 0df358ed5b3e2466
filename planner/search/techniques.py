"""Where stashes may be copied to the host: the space without copies comes first, searched as if it were all there is.

Orders with copies take much effort before they are better than others, if ever. So the search without them gets a fixed
share of the effort, and the answer is never worse than what it finds; the search of everything goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..operations import OFFLOAD
from .orders.shapes import policies
from .portfolio import LARGE
from .session import Session

PLAIN = 0.6
"""Share of the effort for the space without copies."""
SMALL = 300
"""F and B ops (one stage a device) up to which exact search decides about everything together; above LARGE, where the
named schedules take most of the time, they are not tried twice."""


def plain_first(session: Session, bound: Callable[[Session], float], search: Callable[[Session], None]) -> None:
    """Searches the space without copies, if there are others, where the problem is neither small nor large."""
    problem = session.problem
    apart = SMALL < 2 * problem.workload.micro_batches * session.stages <= LARGE
    if not apart or session.space.schedule != "search" or OFFLOAD not in policies(problem, session.space):
        return
    plain = session.without_copies()
    plain.bound_s = max(session.bound_s, bound(plain))
    if math.isinf(plain.bound_s):
        return
    with session.part(plain, PLAIN):
        search(plain)
    session.seen += plain.seen
    if plain.best is not None:
        session.offer(plain.best, plain.best.provenance.source)
