"""What is proven of a search with a flush: of the space asked for, of parts of it, and whether nothing fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from .. import bounds
from ..basics import ScheduleError
from ..graph import KEEP, OFFLOAD, RECOMPUTE, holders
from ..partition import compositions
from ..plan import Kind, Plan, Problem
from ..problem import SearchSpace
from ..schedules import build
from .common import ONE_ORDER, SIZE, Proven, Session, binding, in_words, including, parts, policies, routes, unknown
from .common import told_of as told_of_space
from .named import Order, device_orders, overfull, splits, ways

TOGETHER = "plans with forward and backward of a stage on one device"
APART = "plans of any stages on any devices"
SHAPES = (
    "one to four stages a device, back and forth or round and round, in one pipeline or two of opposite directions, on "
    "all devices or alike on equal groups of them, micro-batches first in, first out"
)
ANYWHERE = (
    "plans with one pipeline and as many stages as devices, for each stage any forward and any backward device and one "
    "stash policy, shipping included"
)


def asked(problem: Problem, space: SearchSpace) -> Proven:
    """The bound of the space asked for: of every plan that it allows, whether the search can find it or not."""
    if unknown(problem, space):  # nothing is known of the memory that these need
        return Proven(_words(problem, space), bounds.any_plan(problem, space.split_backward))
    return Proven(in_words(space), bounds.space(problem, unrestricted(problem, space)))


def _words(problem: Problem, space: SearchSpace) -> str:
    """The space in words, with the stash policies that a user has added."""
    added = unknown(problem, space)
    return f"{in_words(space)}; stashes also by {' or '.join(added)}" if added else in_words(space)


def unrestricted(problem: Problem, space: SearchSpace) -> SearchSpace:
    """The space as the bounds see it.

    A named schedule has its own routes. Where every device holds everything, stashes that are kept are as good as any
    others.
    """
    if space.schedule != "search":
        own = _of_schedule(problem, space)
        return own if binding(problem) else _kept(own)
    return space if binding(problem) else replace(space, recompute=False, offload=False)


def _kept(space: SearchSpace) -> SearchSpace:
    """The space with every stash kept where it is made."""
    return replace(space, recompute=False, offload=False, separate_backward=False)


def _of_schedule(problem: Problem, space: SearchSpace) -> SearchSpace:
    """The space with as many pipelines as the named schedule may have, and split backwards only where it has some."""
    devices = min(len(problem.cluster), len(problem.model.layers))
    # pipelines, and whether backwards are split, are the same for fewer micro-batches
    shape = _shape(space.schedule, devices, min(4 * devices, problem.workload.micro_batches))
    if shape is None:
        return replace(space, pipelines=None)
    pipelines, halves = shape
    return replace(
        space, pipelines=max(pipelines, space.pipelines or 1), split_backward=space.split_backward and halves
    )


@functools.lru_cache(maxsize=64)
def _shape(schedule: str, devices: int, micro_batches: int) -> tuple[int, bool] | None:
    """Pipelines of a named schedule and whether it has split backwards; None where it does not exist."""
    try:
        layout = build(schedule, devices, micro_batches)
    except ScheduleError:
        return None
    return len(layout.pipelines), any(op.kind in (Kind.I, Kind.W) for order in layout.orders for op in order)


def searched(problem: Problem, space: SearchSpace, separate: bool) -> SearchSpace:
    """What a search can find of a space: policies that have a price, and two devices a stage or not."""
    allowed = policies(problem, space)
    return replace(space, separate_backward=separate, offload=OFFLOAD in allowed, recompute=RECOMPUTE in allowed)


def told_of(problem: Problem, space: SearchSpace, asked_s: float, plan: Plan, bounded: bool = True) -> Proven:
    """What may be told of a plan, where so much is proven of the space asked for; `bounded`: and more is worth time."""
    known = Proven(_words(problem, space), max(asked_s, bounds.any_plan(problem)))
    if bounded and space.schedule != "search" and binding(problem) and space != _kept(space):
        return _told_of_named(problem, space, known, plan)
    return told_of_space(
        space, plan, known, lambda wider: asked(problem, wider).bound_s if bounded else bounds.any_plan(problem)
    )


def _told_of_named(problem: Problem, space: SearchSpace, known: Proven, plan: Plan) -> Proven:
    """Stashes of a named schedule are kept where that fits: then more is proven, of such plans."""
    if {policy for row in plan.stash for policy in row} == {KEEP}:
        least_s = bounds.space(problem, _kept(unrestricted(problem, space)))
        return Proven(f"{known.space}, stashes kept", max(known.bound_s, least_s))
    return known


def parts_of(session: Session, orders: list[Order], plan: Plan) -> Iterator[Proven]:
    """What is proven of parts of the space asked for that have this plan, the wider ones first."""
    problem, space, proof = session.problem, session.space, session.proof
    used = {policy for row in plan.stash for policy in row}
    known = {KEEP, *policies(problem, space)}
    if space.schedule != "search" or including(space, plan) != space:
        return
    stashes = f"stashes {' or '.join(_WORDS[p] for p in (KEEP, RECOMPUTE, OFFLOAD) if p in known)}"
    together_s = 0.0
    if used <= known and all(p.forward == p.backward for p in plan.pipelines):
        together_s = session.bound_s
        if session.ships:
            together_s = bounds.space(problem, searched(problem, space, False))
        yield Proven(f"{TOGETHER}, {stashes}", together_s)
    straight, sharded = problem.model.straight, problem.workload.sharded
    whole = sharded and not plan.problem.workload.sharded and max(map(len, holders(plan).values())) > 1
    shared = ", optimizers shared by replicas" if sharded else ""
    cuttable = straight or session.chain.cuts_into(plan.stages)
    along = "" if straight else f", {ONE_ORDER}"
    # shapes are searched exactly with shared optimizers only
    grouped = cuttable and not whole and _in_groups(session, plan, orders)
    shapes_s = min(proof.together_s if session.ships else proof.shapes_s, proof.widths_s)
    if grouped and together_s and math.isfinite(shapes_s):
        yield Proven(f"{TOGETHER}, {SHAPES}{along}, {stashes}{shared}", max(together_s, shapes_s))
    if session.ships and all(policy in known or policy.startswith("ship>") for policy in used):
        yield Proven(f"{APART}, {stashes} or shipped", session.bound_s)
    shapes_s = min(proof.shapes_s, proof.widths_s) if session.two_devices else math.inf
    if (grouped or (cuttable and _goes_anywhere(session, plan))) and math.isfinite(shapes_s):
        text = f"{TOGETHER}, {SHAPES}, {stashes}{shared}, and of {ANYWHERE}{along}"
        yield Proven(text, max(session.bound_s, shapes_s))


_WORDS = {KEEP: "kept", RECOMPUTE: "recomputed", OFFLOAD: "copied to the host"}


def _goes_anywhere(session: Session, plan: Plan) -> bool:
    """Whether a plan is one of those whose stages choose their devices, where these are searched."""
    taken = {(p.forward, p.backward) for p in plan.pipelines}
    return session.two_devices and len(taken) == len(set(plan.stash)) == 1 and len(plan.stages) == session.stages


def _in_groups(session: Session, plan: Plan, orders: list[Order]) -> bool:
    """Whether a plan has one of the shapes with one device a stage, as a whole or group by group."""
    problem = session.problem
    if _in_shapes(plan, orders):
        return True
    for groups in splits(problem, session.space):
        mine = parts(plan, groups)
        if mine is not None:
            small = Problem(problem.model, problem.cluster.part(groups[0]), problem.workload)
            local = device_orders(small, min(len(groups[0]), session.stages))
            if all(_in_shapes(part, local) for part in mine):
                return True
    return False


def _in_shapes(plan: Plan, orders: list[Order]) -> bool:
    """Whether a plan has one of the shapes with one device a stage."""
    shapes = {
        frozenset({route, tuple(dict(zip(order, order[::-1], strict=True))[d] for d in route)})
        for order in orders
        for chunks in range(1, SIZE.chunks + 1)
        for route in routes(order, chunks)
    }
    taken = frozenset(p.forward for p in plan.pipelines)
    same = all(p.forward == p.backward for p in plan.pipelines)
    policies = {policy for row in plan.stash for policy in row}
    return same and policies <= {KEEP, RECOMPUTE, OFFLOAD} and any(taken <= shape for shape in shapes)


def nothing_fits(session: Session) -> bool:
    """Whether it is proven that no plan of the space asked for fits.

    Searched, or with stashes that need not stay: layers that fit no placement. Otherwise a name's orders are fixed, so
    all cuts were simulated.
    """
    problem, space = session.problem, session.space
    if math.isinf(session.proof.asked_s):
        return True
    if unknown(problem, space):
        return False
    if space.schedule == "search" or ways(session):
        return overfull(problem, space, kept=binding(problem) and not (space.recompute or space.offload))
    if session.clock.interrupted or session.remaining_s <= 0 or any(splits(problem, space)):
        return False
    if not problem.model.straight:  # only the cuts of some orders of the layers were
        return False
    stages = {len(found.candidate.stages) for found in session.seen} or {session.stages}
    return all(compositions(len(session.chain), count, SIZE.listed_cuts) is not None for count in stages)
