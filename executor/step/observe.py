"""What one rank tells about itself while it runs its list: its slot on the board, its waits, its memory op by op."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...planner.plan import Op, Plan
from ..basics import ExecutionError
from ..place import OpRecord, StorageTracker
from ..watch import MATES, NOWHERE, Board, Doing
from .enforcement import Limit, MemoryExceeded
from .host_ledger import HostLedger


class Observer:
    """One rank's observer; called by its own thread only.

    Args:
        board: where to publish; None: nobody watches.
        tracker: memory is sampled while it is there (see `untrack`).
        limit, host: what must not be passed meanwhile on the device and at its host; None: nothing.

    Attributes:
        peak_bytes: the most that was live in any tracked op. peak_op: that op.
    """

    def __init__(
        self,
        board: Board | None = None,
        rank: int = 0,
        tracker: StorageTracker | None = None,
        limit: Limit | None = None,
        host: HostLedger | None = None,
    ) -> None:
        self._positions: dict[Op, int] = {}
        self._board = Board(bytearray(Board.size(rank + 1))) if board is None else board
        self._rank = rank
        self._tracker = tracker
        self._limit = limit
        self._host = host
        self._doing = Doing.STARTING
        self._step = self._position = NOWHERE
        self._since_ns = self._waited_ns = 0
        self._live_bytes = NOWHERE
        self.peak_bytes = 0
        self.peak_op: Op | None = None
        self._order: Sequence[Op] = ()
        self._publish(Doing.STARTING)

    def _publish(self, doing: Doing, awaited: int = NOWHERE) -> None:
        self._doing, self._since_ns = doing, time.monotonic_ns()
        self._board.write(self._rank, doing, self._step, self._position, awaited, self._since_ns)

    # ------------------------------------------------------------ in the order of a step

    def follow(self, plan: Plan, rank: int) -> None:
        """The rank's list of this plan is what it runs from now on."""
        self._order = plan.orders[rank]
        self._positions = {op: position for position, op in enumerate(self._order)}
        if self._limit is not None:
            self._limit.follow(plan)
        if self._host is not None:
            self._host.follow(plan)

    def step(self, step: int) -> None:
        """A step begins: waits for all ranks."""
        self._step, self._position = step, NOWHERE
        self._publish(Doing.WAITING)

    def begin(self, position: int, step: int) -> None:
        """The op at this position of the list comes next; it is part of this step or update."""
        self._step, self._position, self._waited_ns = step, position, 0
        self._publish(Doing.COMPUTING)

    def admit(self) -> None:
        """What it had to wait for has left. Raises MemoryExceeded where what it declares has no room."""
        if self._tracker is not None and self._limit is not None:
            self._note(self._tracker.take_peak())
            self._limit.admit(self._position, self._tracker.current_bytes)
        if self._host is not None:
            self._host.admit(self._position)

    def started(self) -> None:
        """Its inputs are there and it starts."""
        if self._tracker is not None:
            self._live_bytes = self._tracker.current_bytes
            self._note(self._tracker.take_peak())
            if self._limit is not None:
                self._limit.started(self._live_bytes)

    def _note(self, peak_bytes: int) -> None:
        if self._limit is not None:
            self._limit.hold(peak_bytes)
        if peak_bytes > self.peak_bytes:
            self.peak_bytes = peak_bytes
            self.peak_op = self._order[self._position] if 0 <= self._position < len(self._order) else None

    def wait(self, op: Op | None) -> None:
        """The rank blocks until this op of its own list has ended."""
        self._publish(Doing.WAITING, NOWHERE if op is None else self._positions.get(op, NOWHERE))

    @contextmanager
    def with_team(self) -> Iterator[None]:
        """The rank blocks until all lanes of its team have come here, in an op or outside the steps."""
        doing = self._doing
        self._publish(Doing.WAITING if doing is Doing.COMPUTING else doing, MATES)
        yield
        self._publish(doing)

    def resume(self) -> None:
        """What it waited for has happened."""
        began = self._since_ns
        self._publish(Doing.COMPUTING)
        self._waited_ns += self._since_ns - began

    def end(self, record: OpRecord) -> None:
        """The op has run, or is posted. Raises MemoryExceeded where more was live than may be."""
        record.waited_s = self._waited_ns / 1e9
        if self._tracker is not None:
            record.live_bytes = self._live_bytes if self._live_bytes >= 0 else self._tracker.current_bytes
            record.peak_bytes = self._tracker.take_peak()
            self._note(record.peak_bytes)
            self._live_bytes = NOWHERE
            if self._limit is not None:
                self._limit.ran(self._position)
        if self._host is not None:
            self._host.hold()

    # ------------------------------------------------------------ around the steps

    def stepped(self, step: int) -> None:
        """All of a step is over. Raises ExecutionError where what came after its last op passed the limit."""
        if self._tracker is None or self._limit is None:
            return
        try:
            self._note(self._tracker.take_peak())
        except MemoryExceeded as error:
            raise ExecutionError(f"rank {self._rank}, after step {step}: MemoryExceeded: {error}") from None

    def untrack(self) -> None:
        """Memory is not sampled any more."""
        if self._tracker is not None:
            self._note(self._tracker.take_peak())
        self._tracker = None

    def evaluating(self) -> None:
        """Between two steps held-out micro-batches are run."""
        self._publish(Doing.EVALUATING)

    def away(self) -> None:
        """Between two steps that a user's own loop asks for."""
        self._publish(Doing.AWAY)

    def ending(self) -> None:
        """The last step is over: the rank saves what it must."""
        self._publish(Doing.ENDING)

    def done(self) -> None:
        """The rank has nothing left to do."""
        self._publish(Doing.DONE)
