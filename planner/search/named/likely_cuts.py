"""Cuts that suit what a layout holds, before any is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from ...partition import Cuts, compositions, cut, fold, lightest
from ...schedules import Layout
from ..common import Session, balanced
from .fullest import in_flight, residents


def cuts_for(session: Session, layout: Layout, most: int) -> Iterator[Cuts]:
    """Cuts worth simulating for a placed layout, the most promising first; all of them where they are few."""
    seen: set[Cuts] = set()
    for c in _cuts(session, layout, most):
        if c is not None and c not in seen:
            seen.add(c)
            yield c


def _cuts(session: Session, layout: Layout, most: int) -> Iterator[Cuts | None]:
    chain, alive, devices = session.chain, residents(layout), layout.pipelines[0].forward
    share = 1 / max(1, max(map(len, alive)))
    flights = in_flight(layout)
    every = compositions(len(chain), layout.stages, most)
    if layout.takes_all_room:
        yield cut(chain, devices, [0] * layout.stages, buffers=0)
    if most and len(set(devices)) < layout.stages and len(layout.pipelines) == 1:
        yield balanced(chain, devices)
    for b in (2, 0):
        yield cut(chain, devices, flights, buffers=b, share=share, replicas=2 if share < 1 else 1)
    for b in (2, 0) if every is None and _folds(layout) else ():
        pairs = [tuple(alive[d].get(s, 0) for s in _pair(k, layout)) for k, d in enumerate(devices)]
        yield fold(chain, devices, [(near, far) for near, far in pairs], buffers=b)
    least = lightest(chain, devices, flights)
    yield None if least is None else least[0]
    yield cut(chain, devices, [0] * layout.stages, buffers=0)
    yield from every or ()


def _pair(k: int, layout: Layout) -> tuple[int, int]:
    return k, layout.stages - 1 - k


def _folds(layout: Layout) -> bool:
    """Whether the layout is one pipeline down and one up."""
    return len(layout.pipelines) == 2 and layout.pipelines[0].forward == layout.pipelines[1].forward[::-1]
