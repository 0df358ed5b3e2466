"""Where stashes may be copied to the host: the space without copies comes first, searched as if it were all there is.

Orders with copies take much effort before they are better than others, if ever. So the search without them gets a fixed
share of the effort, then everything is searched from the best plan on; what is left goes to the one that found it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..graph import OFFLOAD
from .common import SHARE, SIZE, Session, policies


def by_turns(session: Session, bound: Callable[[Session], float], search: Callable[[Session], None]) -> None:
    """Searches the space, in turns where stashes may be copied and the problem is neither small nor large."""
    plain = _plain(session, bound)
    if plain is not None:
        _search_plain(session, plain, search, SHARE.without_copies)
        session.seen += plain.seen
        # groups without a plan so far may have one with copies, so they begin again
        session.begun = {groups: begun for groups, begun in plain.begun.items() if math.isfinite(begun.laid_s)}
        session.rounds, session.resumed = plain.rounds + 1, plain.best is not None
        if not _done(session):
            with session.hurried(SHARE.with_copies):
                search(session)
        if not _done(session) and session.best is not None and session.best is session.plain:
            plain.best, plain.resumed, plain.rounds = session.plain, True, plain.rounds + 1
            _search_plain(session, plain, search, 1.0)
        session.rounds += 1
    if not _done(session):
        search(session)


def _done(session: Session) -> bool:
    return session.over or session.proven


def _plain(session: Session, bound: Callable[[Session], float]) -> Session | None:
    """The search without copies, where there are others and it is worth a search of its own."""
    problem = session.problem
    ops = 2 * problem.workload.micro_batches * session.stages  # above, named schedules take most of the time: once
    if (
        not SIZE.exact_first < ops <= SIZE.one_cut
        or session.space.schedule != "search"
        or OFFLOAD not in policies(problem, session.space)
    ):
        return None
    plain = session.without_copies()
    plain.bound_s = max(session.bound_s, bound(plain))
    return None if math.isinf(plain.bound_s) else plain


def _search_plain(session: Session, plain: Session, search: Callable[[Session], None], share: float) -> None:
    with session.part(plain, share):
        search(plain)
    if plain.best is not None:
        session.offer(plain.best, plain.best.provenance.source)
