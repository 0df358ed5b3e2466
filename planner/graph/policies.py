"""What becomes of a stash: a table, one row a policy. Whoever needs to know what a policy does reads its row.

A row says which ops a policy adds and what is held where, from which op to which:

    keep              F ================ stash ================= B
    recompute         F = incoming = R ======== stash ========== B
    selective         F === rest === R ======== stash ========== B
    offload           F = stash = OFFLOAD ~ host ~ FETCH = stash = B
    offload+weights   the same, and the version of the weights that the backward reads goes along
    ship>D            F = stash = SEND_S ~ device D ~ RECV_S = stash = B

What F leaves on its device crosses to the backward's by SEND_S and RECV_S where that is another one, or through the
host. `register` adds a row: planning, checks, forecasts and bounds follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from ..basics import PlanError, shown
from ..plan import COPIES, Kind
from ..problem import StageCosts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Content:
    """Something that a policy holds: its name, the category of memory it counts as, and its bytes of every stage for
    one micro-batch.
    """

    name: str
    category: str
    bytes: Callable[[StageCosts], NDArray[np.int64]]


STASH = Content("stash", "stashes", lambda costs: costs.stash_bytes)
INCOMING = Content("incoming tensors", "messages", lambda costs: costs.incoming_bytes)
"""What a forward that leaves no stash keeps: all that makes the stash again."""
REST = Content("rest of the stash", "stashes", lambda costs: costs.stash_bytes - costs.selective_bytes)
"""What selective recomputation keeps: the stash without what it makes again from this in little time."""
VERSION = Content("version of the weights", "weight versions", lambda costs: costs.trained_bytes)


class Where(Enum):
    """On the stage's own device, in its node's host memory, or on the device that a policy names."""

    HOME = "home"
    HOST = "host"
    AWAY = "away"


@dataclass(frozen=True)
class Hold:
    """Content that is held from the start of op `begin` to the end of op `end`, or to the start of an R.

    `begin` and `end` are kinds of the stage's and micro-batch's own ops; B stands for the backward, whole or in halves,
    SEND_S and RECV_S for the ends of the way there or back, as the place says.
    """

    begin: Kind
    end: Kind
    content: Content
    where: Where = Where.HOME


_INSTANTS = {Kind.F: 0, Kind.OFFLOAD: 1, Kind.SEND_S: 1, Kind.FETCH: 2, Kind.RECV_S: 2, Kind.R: 3, Kind.B: 4}
"""The ops at which something of a stash begins or ends, in the order in which they come."""
_TRIPS = (COPIES, frozenset({Kind.SEND_S, Kind.RECV_S}))
_ADDED = frozenset({Kind.R}).union(*_TRIPS)


@dataclass(frozen=True, eq=False)
class StashPolicy:
    """One row: its name in plans, the ops it adds to F and backward, what is held, and whether it names a device.

    A policy that adds OFFLOAD or SEND_S allows a FREE. Raises PlanError for a row whose parts do not agree.
    """

    name: str
    ops: frozenset[Kind]
    holds: tuple[Hold, ...]
    names_device: bool = False

    def __post_init__(self) -> None:
        reason = self._fault()
        if reason:
            raise PlanError(f"stash policy {shown(self.name)}: {reason}")

    def _fault(self) -> str | None:
        """What is wrong with the row."""
        named = {kind for hold in self.holds for kind in (hold.begin, hold.end)}
        strange = (self.ops - _ADDED) | (named - _INSTANTS.keys())
        if strange:
            return f"{min(strange).name} is no op of a stash"
        if named - {Kind.F, Kind.B} != self.ops:
            return "its ops are not those between which it holds something"
        if self.ops - {Kind.R} not in (frozenset(), *_TRIPS):
            return "what leaves a device comes back, and goes one way"
        if self.names_device != (Kind.SEND_S in self.ops):
            return "it names a device that something is sent to, or none"
        if any(_INSTANTS[hold.begin] >= _INSTANTS[hold.end] for hold in self.holds):
            return "something is held to an op that comes before its beginning"
        if not any(hold.begin is Kind.F for hold in self.holds) or not any(hold.end is Kind.B for hold in self.holds):
            return "a forward leaves nothing, or a backward finds nothing"
        return None

    # ------------------------------------------------------------ what the ops say

    @cached_property
    def remade(self) -> bool:
        """Whether the forward leaves only what an R makes the stash from again."""
        return Kind.R in self.ops

    @cached_property
    def partial(self) -> bool:
        """Whether that is a part of the stash, from which an R makes the rest of it (Korthikanti et al., Reducing
        activation recomputation in large transformer models, 2022)."""
        return any(hold.content is REST and hold.end is Kind.R for hold in self.holds)

    @cached_property
    def hosted(self) -> bool:
        """Whether something goes to the host and back."""
        return Kind.OFFLOAD in self.ops

    @cached_property
    def shipped(self) -> bool:
        """Whether something goes to the device that the policy names, and back."""
        return self.names_device

    @cached_property
    def leaves(self) -> bool:
        """Whether something leaves its device though the backward runs there: a FREE may wait for it."""
        return self.hosted or self.shipped

    @cached_property
    def crosses(self) -> bool:
        """Whether what a forward leaves goes to a backward on another device by message."""
        return not self.leaves

    # ------------------------------------------------------------ what the holds say

    @cached_property
    def left(self) -> tuple[Content, ...]:
        """What a forward leaves on its device."""
        return tuple(hold.content for hold in self.holds if hold.begin is Kind.F and hold.where is Where.HOME)

    @cached_property
    def moved(self) -> tuple[Content, ...]:
        """What leaves the device for the host or another one; where nothing does, what crosses to the backward's."""
        if not self.leaves:
            return self.left
        away = (hold for hold in self.holds if hold.where is not Where.HOME)
        return tuple(hold.content for hold in away if hold.content is not VERSION)

    @cached_property
    def resting(self) -> tuple[Content, ...]:
        """What stays on the device between forward and backward: while the rest is away, or until an R."""
        begin, end = (Kind.F, Kind.R if self.remade else Kind.B)
        if self.leaves:
            begin, end = sorted(self.ops - {Kind.R}, key=_INSTANTS.__getitem__)
        return next(contents for first, last, contents in self._intervals if (first, last) == (begin, end))

    @cached_property
    def versioned(self) -> bool:
        """Whether a version of the weights goes along."""
        return any(hold.content is VERSION and hold.where is not Where.HOME for hold in self.holds)

    @cached_property
    def two_devices(self) -> bool:
        """Whether the backward may run on another device than the forward: all that a forward leaves goes there."""
        return not self.shipped and not self.partial and set(self.moved) == set(self.left)

    @cached_property
    def taken_back(self) -> Kind:
        """The op that needs what has come back, or has crossed: R, or the backward (B)."""
        back = {Kind.FETCH, Kind.RECV_S} & self.ops or {Kind.F}
        ends = [hold.end for hold in self.holds if hold.begin in back and hold.content is not VERSION]
        return min(ends, key=_INSTANTS.__getitem__)

    def remake_s(self, costs: StageCosts) -> NDArray[np.float64]:
        """Seconds at speed 1 of an R of every stage: of the dropped part of the stash, or of a whole forward."""
        return costs.selective_s if self.partial else costs.forward_s

    def beside_bytes(self, costs: StageCosts) -> NDArray[np.int64]:
        """Bytes of every stage that a forward takes beside what it leaves, outputs and workspace.

        Tensors between layers that are in no stash, or the part of one layer's that is dropped when it has run.
        """
        if not self.remade:
            return 0 * costs.inner_bytes
        return beside_bytes(costs, self.partial)

    def again_bytes(self, costs: StageCosts) -> NDArray[np.int64]:
        """Workspace of an R of every stage."""
        return costs.workspace_bytes if self.partial else costs.workspaces.remake

    def moved_bytes(self, costs: StageCosts) -> NDArray[np.int64]:
        """Bytes of every stage that leave the device, weights apart."""
        return _total(self.moved, costs)

    def held_bytes(self, costs: StageCosts) -> list[tuple[Kind, Kind, NDArray[np.int64]]]:
        """What the stage's own device holds between the ops of the policy: (from, to, bytes of every stage).

        Weights apart. The intervals follow one another from F to B.
        """
        return [(begin, end, _total(contents, costs)) for begin, end, contents in self._intervals]

    @cached_property
    def _intervals(self) -> list[tuple[Kind, Kind, tuple[Content, ...]]]:
        kinds = sorted({Kind.F, Kind.B, *self.ops}, key=_INSTANTS.__getitem__)
        own = [hold for hold in self.holds if hold.where is Where.HOME and hold.content is not VERSION]
        return [(begin, end, _during(own, begin, end)) for begin, end in pairwise(kinds)]


def _during(holds: Iterable[Hold], begin: Kind, end: Kind) -> tuple[Content, ...]:
    """What is held from one op to another."""
    return tuple(
        hold.content
        for hold in holds
        if _INSTANTS[hold.begin] <= _INSTANTS[begin] and _INSTANTS[hold.end] >= _INSTANTS[end]
    )


def _total(contents: Iterable[Content], costs: StageCosts) -> NDArray[np.int64]:
    return sum((content.bytes(costs) for content in contents), start=0 * costs.stash_bytes)


KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_WEIGHTS, SHIP = "keep", "recompute", "offload", "offload+weights", "ship"
SELECTIVE = "selective"

_TO_HOST = (
    Hold(Kind.F, Kind.OFFLOAD, STASH),
    Hold(Kind.OFFLOAD, Kind.FETCH, STASH, Where.HOST),
    Hold(Kind.FETCH, Kind.B, STASH),
)
POLICIES: dict[str, StashPolicy] = {
    row.name: row
    for row in (
        StashPolicy(KEEP, frozenset(), (Hold(Kind.F, Kind.B, STASH),)),
        StashPolicy(RECOMPUTE, frozenset({Kind.R}), (Hold(Kind.F, Kind.R, INCOMING), Hold(Kind.R, Kind.B, STASH))),
        StashPolicy(SELECTIVE, frozenset({Kind.R}), (Hold(Kind.F, Kind.R, REST), Hold(Kind.R, Kind.B, STASH))),
        StashPolicy(OFFLOAD, COPIES, _TO_HOST),
        StashPolicy(
            OFFLOAD_WEIGHTS,
            COPIES,
            (
                *_TO_HOST,
                Hold(Kind.OFFLOAD, Kind.FETCH, VERSION, Where.HOST),
                Hold(Kind.FETCH, Kind.B, VERSION),
            ),
        ),
        StashPolicy(
            SHIP,
            frozenset({Kind.SEND_S, Kind.RECV_S}),
            (
                Hold(Kind.F, Kind.SEND_S, STASH),
                Hold(Kind.SEND_S, Kind.RECV_S, STASH, Where.AWAY),
                Hold(Kind.RECV_S, Kind.B, STASH),
            ),
            names_device=True,
        ),
    )
}
"""Every policy by its name; of one that names a device, the text in a plan is `name>DEVICE`."""
BUILT_IN = frozenset(POLICIES) - {SELECTIVE}
"""Those that the search knows more of than their rows; `register` adds others."""
_NAMED = re.compile(r"([^>]+)>(0|[1-9][0-9]{0,8})")


def stash_policy(text: str) -> StashPolicy:
    """The row of the policy that a plan's text names. Raises PlanError for what is none: none is taken for another."""
    row = POLICIES.get(text)
    if row is None or row.names_device:
        named = _NAMED.fullmatch(text)
        row = POLICIES.get(named[1]) if named else None
        if row is None or not row.names_device:
            raise PlanError(f"unknown stash policy {shown(text)}; known: {', '.join(_texts())}")
    return row


def _texts() -> list[str]:
    return sorted(f"{row.name}>DEVICE" if row.names_device else row.name for row in POLICIES.values())


def ship_target(text: str) -> int | None:
    """The device that a policy's text names; None where it names none. Raises PlanError for what is no policy."""
    return int(text.rpartition(">")[2]) if stash_policy(text).names_device else None


def beside_bytes(costs: StageCosts, partial: bool) -> NDArray[np.int64]:
    """Bytes that a forward takes beside one that leaves a whole stash: it leaves what an R makes that, or a part,
    from."""
    between = costs.dropped_bytes if partial else costs.inner_bytes
    return between + costs.workspace_bytes - costs.workspaces.forward


def register(row: StashPolicy) -> None:
    """Adds a policy to the table. Raises PlanError where one has its name, or the name cannot stand in a plan."""
    if row.name in POLICIES:
        raise PlanError(f"there is a stash policy {shown(row.name)} already")
    if not row.name or ">" in row.name or row.name != row.name.strip():
        raise PlanError(f"{shown(row.name)} cannot be the name of a stash policy")
    POLICIES[row.name] = row
