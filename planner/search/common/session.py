"""One search: its problem, and the parts that know its time, its best plan, its bounds and its earlier rounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...lower import Assembled
from ...partition import Chain
from ...plan import Plan, Problem
from ...problem import SearchSpace
from .clock import Clock
from .considered import Ledger
from .effort import ROUND, SECONDS, SIZE, TOLERANCE
from .fit import fits
from .groups import Groups
from .incumbent import Incumbent, OnProgress, Progress
from .proof import Proof
from .rounds import Rounds
from .two_device_space import pays, registered, searchable


@dataclass
class Session:
    """One search for plans of a problem, or of a part of it, within a space.

    Attributes:
        seed, workers: random numbers, and threads.
        clock, incumbent, proof, rounds: time and effort; the best plan; what is proven; what is remembered.
        bounded: whether bounds of whole spaces are worth their time to the caller.
    """

    problem: Problem
    space: SearchSpace
    clock: Clock
    seed: int = 0
    workers: int = 1
    incumbent: Incumbent = field(default_factory=Incumbent)
    proof: Proof = field(default_factory=Proof)
    rounds: Rounds = field(default_factory=Rounds)
    bounded: bool = True

    def __post_init__(self) -> None:
        self.chain = Chain.of(self.problem)
        searching = self.space.schedule == "search"
        self.ships = searching and pays(self.problem, self.space)
        """Whether stashes may be shipped to other devices, and stages have two."""
        self.separate = self.ships and not self.space.asynchronous and self.ops <= SIZE.placed_ops
        """Whether devices of forwards and backwards are searched together with everything else."""
        self.two_devices = self.separate and searchable(self.problem)
        """Whether that is also searched exactly."""
        self.registered = registered(self.problem, self.space)
        """Stash policies of users that it may use beside ours: no proof speaks of them."""
        self.plain: Session | None = None
        """The search without copies to the host, where it is worth one of its own."""
        self.smaller: Session | None = None
        """The search of the same problem with fewer micro-batches, where there is one."""
        self.reordered: list[Session] = []
        """Searches of the same problem on other orders of its layers."""
        self.parts: dict[Groups, Session] = {}
        """Searches of one of several equal groups, which go on when this one does."""

    @property
    def stages(self) -> int:
        """Stages of the search's space: as many as devices, fewer when there are fewer layers."""
        return min(len(self.chain), len(self.problem.cluster))

    @property
    def ops(self) -> int:
        """F and B of a plan with one stage a device."""
        return 2 * self.problem.workload.micro_batches * self.stages

    # ---------------------------------------------------------------- the parts' answers

    @property
    def best(self) -> Plan | None:
        """The best plan that fits."""
        return self.incumbent.best

    @property
    def best_s(self) -> float:
        """Step of the best plan that fits; infinite before there is one."""
        return self.incumbent.best_s

    @property
    def bound_s(self) -> float:
        """No plan that the search may find takes less, whatever its shape."""
        return self.proof.bound_s

    @property
    def seen(self) -> list[Assembled]:
        """What was simulated."""
        return self.rounds.seen

    @property
    def ledger(self) -> Ledger:
        """Notes of what was looked at."""
        return self.rounds.ledger

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return self.clock.remaining_s

    @property
    def over(self) -> bool:
        """Whether the search has to stop: time is up, or there is a plan and no time to simulate another."""
        return self.clock.over(self.best is not None)

    @property
    def proven(self) -> bool:
        """Whether no plan of the shapes searched is shorter than the best."""
        if self.registered or (self.separate and not self.two_devices):
            return self.proof.searched_reached_by(self.best_s)
        return self.proof.reached_by(self.best_s)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do, or no time for it."""
        return self.over or self.proven

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to do, in equal groups either, or no time for it."""
        return self.over or (self.proven and self.proof.widths_reached_by(self.best_s))

    @property
    def only_two_devices(self) -> bool:
        """Whether only plans with two devices a stage can still be shorter than the best."""
        return self.separate and self.proof.together_reached_by(self.best_s)

    # ---------------------------------------------------------------- parts of a search

    def go_on(self, clock: Clock, listener: OnProgress | None, again: bool = True) -> None:
        """Another call goes on with this search, from its best plan and what it has tried; `again`: for a new round."""
        self.clock, self.incumbent.listener = clock, listener
        if again:
            self.rounds.again()
            self.rounds.resumed = self.rounds.through

    def follow(self, clock: Clock, listener: OnProgress | None) -> None:
        """Another clock and another listener, for what comes next of the same call."""
        self.clock, self.incumbent.listener = clock, listener

    def next_round(self) -> None:
        """One more round of this call begins, with more effort."""
        self.rounds.again()
        self.rounds.resumed = self.rounds.through

    def keep_plain(self, other: Session) -> Session:
        """Takes up the search without copies, and returns it."""
        self.plain = other
        return other

    def scale_down(self, smaller: Session | None) -> Session | None:
        """Takes up the search of the same problem with fewer micro-batches, where there is one, and returns it."""
        self.smaller = smaller
        return smaller

    def reorder(self, parts: list[Session]) -> list[Session]:
        """Takes up the searches on other orders of the model's layers, and returns them."""
        self.reordered = parts
        return parts

    def inner(self, problem: Problem, space: SearchSpace, heard: OnProgress, rounds: Rounds | None = None) -> Session:
        """A search of a smaller problem, with a clock, a best plan and bounds of its own."""
        clock, incumbent = self.clock.parted(), Incumbent(heard)
        return Session(
            problem, space, clock, self.seed, self.workers, incumbent, rounds=rounds or Rounds(), bounded=self.bounded
        )

    @contextmanager
    def part(self, inner: Session, time_share: float, effort_share: float | None = None) -> Iterator[None]:
        """Lends `inner` shares of the time and of the deterministic effort that are left; takes Ctrl-C over."""
        with self.clock.lending(inner.clock, time_share, effort_share):
            yield

    @contextmanager
    def earning(self, name: str, share: float, fixed: float | None = None) -> Iterator[None]:
        """A share of the time for what is tried in every round, less where it had its time and found nothing before.

        It takes no effort; where that is limited, and not time, the share is `fixed`, or what it is at first.
        """
        before_s, began, credit = self.best_s, time.monotonic(), self.rounds.credits.get(name, 1.0)
        whole = share if fixed is None else fixed
        with self.clock.hurried(whole if self.clock.fixed else share * credit, 0.0):
            yield
        found = self.best_s < before_s * (1 - TOLERANCE.same)
        if found or time.monotonic() - began >= SECONDS.tried:
            self.rounds.credit(name, found, ROUND.idle_quick)

    def without_copies(self) -> Session:
        """A search without copies to the host, from the best such plan on; what it finds is offered to this one."""

        def heard(event: Progress) -> None:
            if other.best is not None and other.best is not self.best:
                self.offer(other.best, event.phase)
            self.report(event.phase)

        known = self.incumbent
        other = replace(
            self,
            space=replace(self.space, offload=False),
            clock=replace(self.clock),
            incumbent=replace(known, listener=heard, best=known.plain),
            proof=self.proof.without_shapes(),
            rounds=Rounds(resumed=self.rounds.resumed, ledger=self.ledger, simulated=self.rounds.simulated),
        )
        other.chain = self.chain
        return other

    # ---------------------------------------------------------------- what is found

    def remember(self, found: Assembled) -> None:
        """Keeps what was simulated for later."""
        self.rounds.remember(found, self.best_s)

    def offer(self, plan: Plan, phase: str) -> bool:
        """Takes a simulated plan into account; True when it fits the memory."""
        if not fits(plan):
            return False
        assert plan.forecast is not None
        if self.incumbent.take(plan, TOLERANCE.sums):
            self.report(phase)
        return True

    def report(self, phase: str) -> None:
        """Tells the caller where the search stands."""
        self.incumbent.tell(self.clock.elapsed_s, self.proof.asked_s, phase)
