"""Of plans that forecasts of a machine do not tell apart, the one that sends least: on one device, or alike on all.

How far forecasts of two plans may be off from one another is the machine's to say (`Cluster.told_apart`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from ..basics import OutOfTime, PlanError, until
from ..lower import replicated
from ..plan import COLLECTIVES, SENDS, Plan, Problem
from .common import SECONDS, Session, fits
from .sharding import sharing


def plainest(session: Session, best: Plan) -> Plan:
    """The best plan, or one that sends less and is not told apart from it."""
    share = session.problem.cluster.told_apart
    if not share or session.space.schedule != "search" or best.forecast is None or not _sent(best):
        return best
    # whatever a busy computer's search took beyond its time: what is answered must not depend on that
    with suppress(OutOfTime), until(max(session.clock.deadline, time.monotonic()) + SECONDS.grace):
        for plan in _plain(session, best):
            assert plan.forecast is not None
            near = plan.forecast.step_s <= best.forecast.step_s * (1 + share)
            if near and _sent(plan) < _sent(best) and fits(plan):
                what = f"{plan.provenance.source}, since forecasts within {share:.1%} are not told apart"
                session.ledger.note(what, session.bound_s, plan.forecast.step_s, "taken")
                return plan
    return best


def _sent(plan: Plan) -> int:
    """Messages of a step, and what all who hold a stage do together."""
    return sum(op.kind in SENDS | COLLECTIVES for row in plan.orders for op in row)


def _plain(session: Session, best: Plan) -> Iterator[Plan]:
    """All layers on the fastest device; then on every device, with whole optimizers and as the best plan has them.

    Of these what the space has.
    """
    problem, space = session.problem, session.space
    devices = range(len(problem.cluster))
    fastest = max(devices, key=lambda d: problem.cluster.devices[d].kind.speed)
    whole = sharing(problem, False)
    if space.replicas in (None, 1):
        yield from _made(whole, (fastest,), "one device")
    too_many = space.pipelines is not None and space.pipelines < len(devices)
    if too_many or space.replicas not in (None, len(devices)):
        return
    for one in {False: whole, best.problem.workload.sharded: best.problem}.values():
        yield from _made(one, tuple(devices), "data parallel")


def _made(problem: Problem, devices: tuple[int, ...], name: str) -> Iterator[Plan]:
    """All layers on each of these; nothing where that does not run."""
    if len(devices) <= problem.workload.micro_batches:
        with suppress(PlanError, KeyError, IndexError):
            yield replicated(problem, devices, name)
