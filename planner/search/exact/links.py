"""Messages and copies: tensors between stages, stashes that leave their device and come back."""

from __future__ import annotations

from ...basics import check_time
from ...plan import Kind
from .instance import Hops, Send
from .timetable import Literal, Time
from .variables import Variables


def tensors_travel(v: Variables) -> None:
    """Activations from F to F, gradients from backward to backward; one message at a time on each link."""
    stages = v.instance.stages
    for k in range(v.instance.micro_batches):
        check_time()
        for edge in v.instance.edges:
            a, b = edge.producer, edge.consumer
            _tensor(v, (Kind.F, a, k), (Kind.F, b, k), edge.activation)
            _tensor(v, (stages[b].backwards[0], b, k), (stages[a].backwards[0], a, k), edge.gradient)


def _tensor(v: Variables, source: tuple[Kind, int, int], target: tuple[Kind, int, int], hops: Hops) -> None:
    user, least = v.start[target], min(send.arrives for send in hops.values())
    if any(send.occupation for send in hops.values()):
        begin: Time = v.ticks()
        v.after(begin, *source)
    else:
        begin = v.end(*source)
    v.model.add(user >= begin + least)
    front, rear = v.places(*source), v.places(*target)
    for (a, b), send in hops.items():
        if send.arrives > least or send.occupation:
            literal = v.every(front[a], rear[b])
            if send.arrives > least:
                v.when(literal, user >= begin + send.arrives)
            _occupy(v, send, begin, literal)


def _occupy(v: Variables, send: Send, begin: Time, literal: Literal) -> None:
    for link in send.links if send.occupation else ():
        v.occupy(link, begin, send.occupation, literal)


def stashes_travel(v: Variables) -> None:
    """When a stash leaves, after its F, and arrives, before what uses it: to its backward's device, to the host and
    back, or to a third device and back. What is received takes memory at an instant when no op of the device runs."""
    for (s, k), moves in v.moves.items():
        choice = v.choices[s, k]
        v.after(moves.out, Kind.F, s, k, True if v.instance.open else choice.carried)
        if len(moves.own) > 2:
            _order_of_times(v, s, k)
        for (a, b), literal in choice.pair.items():
            if a != b:
                _move(v, s, k, (a, b), literal)
        for d in range(len(choice.front)):
            _instant(v, s, d, moves.posted, v.every(choice.rear[d], choice.arrives))
            _instant(v, s, d, moves.visited, choice.away[d])
            _copy(v, s, k, d)


def _order_of_times(v: Variables, s: int, k: int) -> None:
    """Those that mean nothing for a policy are what another is."""
    choice, moves = v.choices[s, k], v.moves[s, k]
    out, back, posted, visited, gone, left, *_ = moves.own
    for order in (gone >= out, left >= back, posted <= back, visited <= out):
        v.model.add(order)
    v.when(choice.moved, back == out)
    for fact in (gone == out, back == out, posted == out):
        v.when(choice.stays, fact)
    v.when(v.none(choice.shipped), visited == out)
    if choice.shipped is False and choice.hosted is False:
        v.model.add(left == back)
    sizes = v.sizes(Kind.F, s)
    if len(set(sizes)) == 1:
        v.when(choice.stays, out == v.start[Kind.F, s, k] + sizes[0])
    if (Kind.R, s, k) in v.start:
        v.when(v.every(choice.same, choice.remade), gone >= v.start[Kind.R, s, k])


def _move(v: Variables, s: int, k: int, pair: tuple[int, int], literal: Literal) -> None:
    """Kept or what recompute keeps, straight to the other device; shipped there and back."""
    choice, moves, stage = v.choices[s, k], v.moves[s, k], v.instance.stages[s]
    begin, (a, b) = v.start[stage.backwards[0], s, k], pair
    shipped = v.every(choice.front[a], choice.away[b])
    _travel(v, v.every(literal, choice.kept), stage.hop[a, b], (moves.out, moves.gone, begin))
    for name, hops in stage.kept_hop.items():
        remade = v.every(literal, choice.policy.get(name, False))
        _travel(v, remade, hops[a, b], (moves.out, moves.gone, v.start[Kind.R, s, k]))
    _travel(v, shipped, stage.hop[a, b], (moves.out, moves.gone, moves.back))
    _travel(v, shipped, stage.hop[b, a], (moves.back, moves.left, begin))


def _travel(v: Variables, literal: Literal, send: Send, times: tuple[Time, Time, Time]) -> None:
    """A message while a literal holds; `times`: when it starts, when it has left, and what waits for it."""
    begin, left, user = times
    v.when(literal, left >= begin + send.occupation)
    v.when(literal, user >= begin + send.arrives)
    _occupy(v, send, begin, literal)


def _instant(v: Variables, s: int, d: int, time: Time, literal: Literal) -> None:
    """At this time no op runs on the device, while the literal holds."""
    v.occupy(("device", v.instance.stages[s].sites[d].device, -1), time, 0, literal)


def _copy(v: Variables, s: int, k: int, d: int) -> None:
    """From the device of a site to the host, and from the host to it."""
    choice, moves, stage = v.choices[s, k], v.moves[s, k], v.instance.stages[s]
    site = stage.sites[d]
    sends, fetches = (v.every(literal, choice.hosted) for literal in (choice.front[d], choice.rear[d]))
    if len(moves.own) > 2:
        v.when(sends, moves.gone >= moves.out + site.copy.occupation)
        v.when(fetches, moves.left >= moves.back + site.copy.occupation)
    v.when(sends, moves.back >= moves.out + site.copy.arrives)
    v.when(fetches, v.start[stage.backwards[0], s, k] >= moves.back + site.copy.arrives)
    for begin, literal, way in ((moves.out, sends, "to host"), (moves.back, fetches, "from host")):
        if site.copy.occupation:
            v.occupy((way, v.instance.host[site.device], -1), begin, site.copy.occupation, literal)
