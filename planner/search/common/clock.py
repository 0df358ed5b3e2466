"""The clock of a search: its time, its deterministic effort, and whether it was asked to end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...basics import end_asked
from .effort import ROUND


@dataclass
class Meter:
    """The deterministic effort of a call, which all parts of its search share.

    Attributes:
        limit: what may be used; None without a limit.
        used: so far. cut: whether some part of the search wanted more than there is.
    """

    limit: float | None = None
    used: float = 0.0
    cut: bool = False

    def go(self) -> bool:
        """Whether one more piece of work may begin; once that is refused the search ends.

        How large a piece is does not depend on the limit, and one that has begun comes to its end: so a run with a
        lower limit is the beginning of one with a higher.
        """
        self.cut |= self.limit is not None and self.used >= self.limit
        return not self.cut

    def count(self, effort: float) -> None:
        """A piece has taken so much."""
        self.used += effort


@dataclass
class Clock:
    """What is left for a search, or for a part of one.

    Attributes:
        deadline: time.monotonic() at which it must be done. started: the same at which the whole call began.
        effort: what is left of the deterministic limit; None without one.
        call_until: deadline of the whole call (0: this is it).
        interrupted: whether it was asked to end.
        longest_s: the longest simulation so far.
        meter: the deterministic effort used by the whole call.
    """

    deadline: float
    effort: float | None = None
    started: float = field(default_factory=time.monotonic)
    call_until: float = 0.0
    interrupted: bool = False
    longest_s: float = 0.0
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self.call_until = self.call_until or self.deadline

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    @property
    def call_remaining_s(self) -> float:
        """Seconds left of the whole call."""
        return self.call_until - time.monotonic()

    @property
    def last(self) -> bool:
        """Whether nothing else waits for time that is not used."""
        return self.deadline >= self.call_until

    @property
    def elapsed_s(self) -> float:
        """Seconds since the whole call began."""
        return time.monotonic() - self.started

    @property
    def fixed(self) -> bool:
        """Whether effort is limited, and the answer does not depend on the time that things take."""
        return self.effort is not None

    def over(self, planned: bool) -> bool:
        """Whether to stop: time is up, or, where there is a plan, there is no time to simulate another."""
        ended = self.interrupted or self.meter.cut or end_asked()
        return ended or self.remaining_s <= (self.longest_s if planned else 0.0)

    def interrupt(self, asked: bool = True) -> None:
        """Ends the search, where that is asked."""
        self.interrupted |= asked

    def rounds(self) -> Iterator[None]:
        """Rounds of a search with more and more effort, each of which ends as if there were no more to come.

        First one without any, for the quick plans; then each has twice the one before, whatever the limit is. One round
        where effort is not limited.
        """
        limit = self.effort
        if limit is None:
            yield
            return
        self.meter, self.effort = Meter(limit), 0.0
        yield
        effort = ROUND.effort
        while effort <= ROUND.largest * limit and not self.meter.cut:
            self.effort = effort
            yield
            effort *= ROUND.growth

    def parted(self) -> Clock:
        """A clock for a part of the search, which has simulated nothing yet."""
        return replace(self, interrupted=False, longest_s=0.0)

    def heed(self, inner: Clock) -> None:
        """Takes over how long a part's simulations took: those of the whole take no less."""
        self.longest_s = max(self.longest_s, inner.longest_s)

    @contextmanager
    def simulating(self) -> Iterator[None]:
        """Takes the time of one simulation, if it comes to an end."""
        began = time.monotonic()
        yield
        self.longest_s = max(self.longest_s, time.monotonic() - began)

    @contextmanager
    def lending(self, inner: Clock, time_share: float, effort_share: float | None = None) -> Iterator[None]:
        """Lends `inner` shares of the time and of the effort that are left; takes Ctrl-C over.

        `inner` may be this clock itself.
        """
        deadline, effort = self.deadline, self.effort
        share = time_share if effort_share is None else effort_share
        inner.deadline = min(deadline, time.monotonic() + time_share * max(0.0, self.remaining_s))
        inner.call_until, inner.started, inner.meter = self.call_until, self.started, self.meter
        inner.effort = None if effort is None else share * effort
        try:
            yield
        except KeyboardInterrupt:
            inner.interrupt()
        finally:
            inner.deadline = self.deadline = deadline
            self.effort = None if effort is None else effort * (1 - share)
            self.interrupt(inner.interrupted)

    def set_aside(self, share: float) -> float | None:
        """Takes a share off the effort that is left and returns it; None where effort is not limited."""
        if self.effort is None:
            return None
        aside = share * self.effort
        self.effort -= aside
        return aside

    @contextmanager
    def hurried(self, share: float, effort_share: float | None = None) -> Iterator[None]:
        """This clock itself, with shares of the time and of the effort that are left."""
        deadline, effort = self.deadline, self.effort
        self.deadline = time.monotonic() + share * max(0.0, self.remaining_s)
        lent = share if effort_share is None else effort_share
        self.effort = None if effort is None else lent * effort
        try:
            yield
        finally:
            self.deadline, self.effort = deadline, None if effort is None else effort * (1 - lent)

    def spend(self, share: float) -> None:
        """Takes this share off the deterministic limit that is left, where there is one."""
        self.effort = None if self.effort is None else self.effort * (1 - share)

    def budget(self, share: float) -> Budget:
        """A share of the deterministic limit; without one, a share of the time that is left."""
        if self.effort is not None:
            return Budget(self.deadline, share * self.effort)
        return Budget(time.monotonic() + share * max(0.0, self.remaining_s), math.inf)


@dataclass
class Budget:
    """Time (time.monotonic()) and deterministic effort of one phase."""

    deadline: float
    effort: float
