"""Memory: stashes live from F to the last backward op, less what recompute, a copy or a message frees.

An op allocates at its start and releases at its end. Boundary tensors in transit are left out (a relaxation); what an
op certainly holds while it runs is in.
"""

from __future__ import annotations

from functools import partial

from ...graph import KEEP
from ...plan import Kind
from .instance import Instance
from .timetable import Literal, Time
from .variables import Variables


def at_most_so_many_in_flight(v: Variables) -> None:
    """On a route of one direction that keeps a stage's stashes, F number k + most waits for a release number k.

    Live stashes only fall by a B (or I), which runs while all of them are there: F and B allow the same number.
    Halves held for the weights only fall by a W.
    """
    instance = v.instance
    for s, stage in enumerate(instance.stages):
        if not _counted(instance, s):
            continue
        stash, capacity = stage.stash, instance.capacity[stage.sites[0].device]
        room = capacity - max(stash.forward, stash.backward)
        back, last = stage.backwards[0], stage.backwards[-1]
        both = min(stash.bytes, stash.held)
        for kind, units, free in (
            (back, stash.bytes, room),
            (last, both, room if back == last else capacity - stash.forward),
        ):
            for k in range(instance.micro_batches - free // units) if units else ():
                v.after(v.start[Kind.F, s, k + free // units], kind, s, k)


def _counted(instance: Instance, s: int) -> bool:
    """Whether a limit on the number of stashes in flight follows from memory."""
    if instance.open or instance.directions == 2 or instance.choices(s, 0) != (KEEP,):
        return False
    return instance.stages[s].sites[0].device in instance.limited


def _settled(instance: Instance, s: int) -> bool:
    """Whether that is all that memory asks of the device."""
    stage = instance.stages[s]
    alone = instance.route(0).count(stage.sites[0].device) == 1
    return _counted(instance, s) and not stage.split and alone


def stashes_are_held(v: Variables) -> None:
    """Lifetimes of stashes on every device where memory may bind, and what ops hold beyond the least of any op."""
    for s, stage in enumerate(v.instance.stages):
        limited = {n for n, site in enumerate(stage.sites) if site.device in v.instance.limited}
        if not limited or _settled(v.instance, s):
            continue
        for k in range(v.instance.micro_batches):
            for site in limited:
                memory = "device", stage.sites[site].device
                _hold(v, s, k, site)
                for kind in (*stage.kinds, Kind.R):
                    units = stage.stash.running(kind) - v.instance.beside[memory[1]]
                    if units > 0 and (kind, s, k, site) in v.runs:
                        v.demands[memory].append((v.runs[kind, s, k, site], units))


def _hold(v: Variables, s: int, k: int, site: int) -> None:
    """What one micro-batch's stash takes at a site."""
    stage, choice, moves = v.instance.stages[s], v.choices[s, k], v.moves.get((s, k))
    stash, begin, final = stage.stash, stage.backwards[0], v.end(stage.backwards[-1], s, k)
    first, again, used = v.start[Kind.F, s, k], v.start.get((Kind.R, s, k)), v.end(begin, s, k)
    front, rear = choice.front[site], choice.rear[site]
    hold = partial(v.hold, ("device", stage.sites[site].device))
    both = min(stash.bytes, stash.held)

    def until_used(start: Time, literal: Literal) -> None:
        hold(start, used, stash.bytes - both, literal)
        hold(start, final, both, literal)

    until_used(first, v.every(choice.pair[site, site], choice.kept))
    hold(v.start[begin, s, k], final, stash.held - both, rear)
    if moves is not None:
        hold(first, moves.gone, stash.bytes, v.every(front, choice.carried))
        until_used(moves.posted, v.every(rear, choice.carried))
        hold(moves.visited, moves.left, stash.bytes, choice.away[site])
    if again is not None:
        kept_until = moves.gone if moves is not None and choice.moved is not False else again
        until_used(again, v.every(rear, choice.remade))
        for name, units in stage.kept.items():
            hold(first, kept_until, units, v.every(front, choice.policy.get(name, False)))
            if moves is not None:
                hold(moves.posted, again, units, v.every(rear, choice.policy.get(name, False), choice.moved))


def parameters_stay(v: Variables) -> None:
    """Parameters and more of the stages that a device has, where devices are open."""
    for s, stage in enumerate(v.instance.stages if v.instance.open else ()):
        choice = v.choices[s, 0]
        for site, front, rear in zip(stage.sites, choice.front, choice.rear, strict=True):
            v.keep(("device", site.device), stage.owned, rear)
            v.keep(("device", site.device), stage.lent, v.every(front, v.none(choice.same)))
    for tie in v.instance.ties:
        members = [v.choices[s, 0] for s in tie.stages]
        for d in range(len(v.instance.capacity)):
            untrained = v.every(*(v.none(choice.rear[d]) for choice in members))
            unused = v.every(*(v.none(choice.front[d]) for choice in members))
            v.keep(("device", d), tie.owned, v.none(untrained))
            v.keep(("device", d), tie.lent, v.every(untrained, v.none(unused)))


def host_memory(v: Variables) -> None:
    """A stash is in its node's host memory from the start of the copy there to the end of the copy back."""
    for (s, k), moves in v.moves.items():
        stage, choice = v.instance.stages[s], v.choices[s, k]
        for site, rear in zip(stage.sites, choice.rear, strict=True):
            node = v.instance.node[site.device]
            if v.instance.host_room[node] is not None:
                fetched = v.every(rear, choice.hosted)
                v.hold(("host", node), moves.out, moves.left, stage.stash.bytes, fetched)
