"""Long work where stashes may be copied to the host: the space without copies first, as if nothing else were allowed.

Orders with copies take much effort before they are better than others, if ever, so they compete in a race of their own.
What they take from the others is a fixed share, and the answer is never worse than what the others' share finds alone.
"""

from __future__ import annotations

from .. import bounds
from ..operations import OFFLOAD
from .improve import improve
from .orders.shapes import policies
from .portfolio import Order
from .session import Session
from .structure import Hunt

PLAIN, COPIES = 0.5, 0.4
"""Shares of the effort left for the space without copies, and then for orders with copies; whatever is ahead then gets
the rest."""
SMALL = 300
"""F and B ops (one stage a device) up to which exact search decides about everything together."""


def improve_all(session: Session, orders: list[Order]) -> None:
    """Improves session.best until nothing searched can be better, or time or effort is used up."""
    hunt = Hunt(session, orders)
    if OFFLOAD not in policies(session.problem, session.space) or (hunt.solvable and hunt.ops <= SMALL):
        improve(session, orders)
        return
    plain = session.without_copies()
    plain.bound_s = max(session.bound_s, bounds.space(plain.problem, plain.space))
    _plain(session, plain, orders, PLAIN)
    if not _done(session):
        with session.part(session, COPIES):
            improve(session, orders, copies=True)
    if not _done(session):
        if session.best is plain.best:
            plain.rounds += 1
            _plain(session, plain, orders, 1.0)
        else:
            improve(session, orders, copies=True)


def _plain(session: Session, plain: Session, orders: list[Order], share: float) -> None:
    """A share of the effort for the space without copies."""
    with session.part(plain, share):
        improve(plain, orders)
    if plain.best is not None:
        session.offer(plain.best, "order search")


def _done(session: Session) -> bool:
    return session.over or session.proven or session.hopeless
