"""Named orders where memory is tight: each on a cut and with stash policies chosen so that it fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...basics import PerObject, PlanError
from ...graph import OFFLOAD, Candidate, stash_policy
from ...lower import Assembled, assembled
from ...partition import KEPT, cut_mixed
from ...plan import Kind, Op
from ...schedules import Layout, capped, in_pieces
from ..common import COUNT, Session, balanced, missing, unaddressed
from .fullest import Fullest, fullest, in_flight
from .halves import not_split, whole_backwards
from .portfolio import Order, busiest_s, named_layouts, pieces, place, relievable
from .stash_choices import lightened, with_choices, with_recomputation


def run_first_plan(session: Session, order: Order) -> Iterator[None]:
    """A first plan in little time: 1F1B with stashes recomputed where they do not fit, or else copied to the host.

    Then recomputed with every stage in pieces.
    """
    layout = capped(len(order), session.problem.workload.micro_batches, len(order))
    devices, every = len(session.problem.cluster), _techniques(session)
    placed = place(layout, order, devices)
    before_s = session.best_s
    for allowed in every:
        if session.best_s == before_s:
            try_mixed(session, placed, allowed, layout.name)
    yield
    for count in pieces(len(session.chain) // len(order)) if every else ():
        cut = in_pieces(layout, count)
        if not session.rounds.tried_before(cut.name, order):
            try_mixed(session, place(cut, order, devices), every[0], cut.name, only_short=True)
            yield


def run_mixed(session: Session, order: Order, copies: bool = False) -> Iterator[None]:
    """Every named schedule with stashes recomputed where they do not fit; copied to the host if that is not allowed.

    `copies`: with stashes copied to the host as well. Yields after every schedule.
    """
    every, batches = _techniques(session), session.problem.workload.micro_batches
    with_copies = [some for some in every if any(stash_policy(policy).hosted for policy in some)]
    techniques = with_copies if copies else every[:1]
    listed = relievable if copies else named_layouts
    for layout in listed(session.space, len(order), batches, len(session.chain)) if techniques else ():
        if layout.stages > len(session.chain):
            continue
        placed = place(layout, order, len(session.problem.cluster))
        for allowed in techniques:
            try_mixed(session, placed, allowed, layout.name, only_short=True)
            yield


def run_copied(session: Session, order: Order) -> Iterator[None]:
    """The same with stashes copied to the host, where more than that is allowed: else it was done before."""
    if len(_techniques(session)) > 1:
        yield from run_mixed(session, order, copies=True)


def _techniques(session: Session) -> list[tuple[str, ...]]:
    """Sets of stash policies worth trying, the cheapest first: without copies to the host, with them, they alone."""
    allowed = tuple(unaddressed(session.problem, session.space))
    copies = tuple(p for p in allowed if stash_policy(p).hosted)
    others = tuple(p for p in allowed if p not in copies)
    return [some for some in dict.fromkeys((others, allowed, copies)) if some]


def try_mixed(session: Session, layout: Layout, allowed: Collection[str], phase: str, only_short: bool = False) -> None:
    """Simulates a placed layout with the stash choices that fit, less memory each time it does not; offers what fits.

    `only_short`: not where all stashes can be kept as they are.
    """
    less = [0] * len(session.problem.cluster)
    for _ in range(COUNT.fitted):
        if session.done:
            return
        found = _mixed(session, layout, allowed, less, only_short)
        if found is None:
            return
        session.remember(found)
        over = missing(found)
        if not any(over):
            if found.forecast.step_s < session.best_s:
                session.offer(found.plan, phase)
            return
        less = [a + b for a, b in zip(less, over, strict=True)]


def _mixed(
    session: Session, layout: Layout, allowed: Collection[str], less: Sequence[int], only_short: bool
) -> Assembled | None:
    """The layout on its best cut with the cheapest stash choices; None where none fits, or none can be of use."""
    route = layout.pipelines[0].forward
    if len(set(route)) == len(route):
        cuts = cut_mixed(session.chain, route, in_flight(layout), allowed, less)
    else:
        cuts = balanced(session.chain, route)
    if cuts is None:
        return None
    plain = Candidate(session.problem, session.chain.stages(cuts), layout.pipelines)
    if busiest_s(plain) >= session.incumbent.worth_s:
        return None
    for orders, instants in _orders(session, layout, not_split(session.space, plain)):
        chosen = lightened(plain, orders, allowed, less, session.incumbent.worth_s, instants)
        if chosen is not None:
            changed = not only_short or any(choice != KEPT for choice in chosen[0].values())
            useful = changed and chosen[1] < session.incumbent.worth_s
            made = with_choices(plain, chosen[0])
            return assembled_with(session, made, orders, layout.name, less) if useful else None
    return None


Filled = tuple[list[list[Op]], list[Fullest]]
"""Compute orders, and their fullest instants."""
_known: PerObject[Filled] = PerObject()


def _orders(session: Session, layout: Layout, whole: frozenset[int]) -> Iterator[Filled]:
    """The layout's orders; then with no weight half left for later.

    Where the space is searched, backwards are in halves as far as possible: what a name stands for is not.
    """
    every = frozenset(range(layout.stages))

    def made(kept: frozenset[int], apart: frozenset[int]) -> Filled:
        orders = [halved(whole_backwards(order, kept), apart) for order in layout.orders]
        return orders, fullest(orders, layout.pipelines, layout.stages)

    apart = whole if session.space.schedule == "search" else every
    yield _known.get(layout, (whole, apart), lambda: made(whole, apart))
    if any(op.kind == Kind.W for order in layout.orders for op in order):
        yield _known.get(layout, (every, whole), lambda: made(every, whole))


def assembled_with(
    session: Session, candidate: Candidate, orders: Sequence[Sequence[Op]], name: str, less: Sequence[int]
) -> Assembled | None:
    """The complete lists with what the candidate's policies need; None where the orders do not run."""
    ready = with_recomputation(candidate, orders)
    try:
        if any(OFFLOAD in row for row in candidate.stash):
            ready = woven(session, candidate, ready, less) or []
        return assembled(candidate, ready, name) if ready else None
    except PlanError:
        return None


def halved(order: Sequence[Op], whole: Collection[int]) -> list[Op]:
    """A compute order with every backward that can be split in halves, one right after the other.

    What the first half sends leaves earlier so.
    """
    found: list[Op] = []
    for op in order:
        if op.kind == Kind.B and op.stage not in whole:
            found += [Op(Kind.I, op.stage, op.micro_batch), Op(Kind.W, op.stage, op.micro_batch)]
        else:
            found.append(op)
    return found


def woven(
    session: Session, candidate: Candidate, orders: Sequence[Sequence[Op]], less: Sequence[int]
) -> list[list[Op]] | None:
    """Compute orders with the places at which copied stashes leave and come back; None where they do not fit."""
    from ..orders import (
        build,  # loads the compiler
        from_ops,
        knows,
        to_ops,
        weave,
    )

    if not knows(candidate):
        return None
    split = session.space.split_backward and any(op.kind is Kind.I for order in orders for op in order)
    arrays = build(candidate, split, less)
    woven = weave(arrays, from_ops(candidate, arrays, orders), COUNT.copy_lead)
    return None if woven is None else to_ops(candidate, arrays, woven)
