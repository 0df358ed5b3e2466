"""Where stashes may be copied to the host: the space without copies is searched as if it were all there is, too.

Orders with copies take much effort before they are better than others, if ever. So the search without them gets a fixed
share of the effort, then everything is searched from the best plan on; what is left goes to the one that found it. Of
small problems everything is searched first, since that may be all that is to be done.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..graph import OFFLOAD
from .common import HOPE, SECONDS, SHARE, SIZE, Session, copies_stashes, policies

_NAMED = "named orders with copies"


def by_turns(
    session: Session,
    bound: Callable[[Session], float],
    named: Callable[[Session], None],
    search: Callable[[Session], None],
) -> None:
    """Searches the space, in turns where stashes may be copied and the problem is not large.

    `named`: tries the named orders with all that stashes may become.
    """
    known = session.plain
    plain = _plain(session, bound) if known is None else _again(session, known)
    if known is not None and (session.ops > SIZE.exact_first or _short(session)):
        _leader_first(session, known, named, search)
        return
    if plain is not None:
        if session.ops <= SIZE.exact_first:
            with session.clock.hurried(SHARE.everything_first):
                search(session)
            if not session.ended:
                _look_at_plain(session, plain, search)
        else:
            with session.earning(_NAMED, SHARE.named_first):
                named(session)
            _look_at_plain(session, plain, search)
            session.rounds.take_up(plain.rounds, plain.best is not None)
            if not session.ended:
                with session.clock.hurried(SHARE.with_copies):
                    search(session)
        if not session.ended and session.best is not None and session.best is session.incumbent.plain:
            plain.incumbent.start_from(session.best)
            plain.rounds.go_on()
            _search_plain(session, plain, search, 1.0)
        session.rounds.again()
    if not session.ended:
        search(session)


def _plain(session: Session, bound: Callable[[Session], float]) -> Session | None:
    """The search without copies, where there are others and it is worth a search of its own."""
    problem = session.problem
    large = session.ops > SIZE.one_cut  # named schedules, which take long there, are tried once
    if large or session.space.schedule != "search" or OFFLOAD not in policies(problem, session.space):
        return None
    plain = session.without_copies()
    plain.proof.of_searched(bound(plain))
    return None if math.isinf(plain.bound_s) else session.keep_plain(plain)


def _again(session: Session, plain: Session) -> Session:
    """The same search in another call."""
    if session.incumbent.plain is not None:
        plain.incumbent.start_from(session.incumbent.plain)
    plain.rounds.take_widths(session.rounds, lambda best: not copies_stashes(best))
    plain.go_on(plain.clock, plain.incumbent.listener)
    return plain


def _short(session: Session) -> bool:
    """Whether there is too little time for two spaces."""
    return not session.clock.fixed and session.remaining_s < SECONDS.both_spaces


def _leader_first(
    session: Session, plain: Session, named: Callable[[Session], None], search: Callable[[Session], None]
) -> None:
    """A round that goes on: most of it for the space that has the best plan, the rest for the other.

    A short round shared out as the first one is would leave none of its parts the time to find anything. The shortest
    are for one of the two, every third for the other.
    """
    with session.earning(_NAMED, SHARE.named_first):
        named(session)

    def without_copies(share: float) -> None:
        plain.rounds.go_on()
        _search_plain(session, plain, search, share)
        session.rounds.take_up(plain.rounds, plain.best is not None)

    def everything(share: float) -> None:
        with session.clock.hurried(share):
            search(session)

    spaces = [without_copies, everything]
    if session.best is not None and session.best is not session.incumbent.plain:
        spaces.reverse()
    if _short(session):
        spaces = spaces[1:] if session.rounds.others_turn() else spaces[:1]
    for n, searched in enumerate(spaces):
        if not session.ended:
            searched(SHARE.leader if n + 1 < len(spaces) else 1.0)
    session.rounds.again()


def _look_at_plain(session: Session, plain: Session, search: Callable[[Session], None]) -> None:
    """The space without copies for a while, and for its whole share where its plans come near those with copies."""
    look = SHARE.look_without_copies
    _search_plain(session, plain, search, look)
    if session.ended or plain.best_s > HOPE.without_copies * session.best_s:
        return
    plain.rounds.go_on()
    _search_plain(session, plain, search, (SHARE.without_copies - look) / (1 - look))


def _search_plain(session: Session, plain: Session, search: Callable[[Session], None], share: float) -> None:
    plain.incumbent.beat(session.best_s)
    with session.part(plain, share):
        search(plain)
    if plain.best is not None:
        session.offer(plain.best, plain.best.provenance.source)
