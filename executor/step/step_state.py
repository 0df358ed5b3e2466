"""What lives within one step of one rank: tensors by stage and micro-batch, transfers under way, records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from ...planner.plan import Kind, Op
from ..place import Mark, OpRecord, Times
from ..stage import Stash, WeightStash
from ..state import MiniBatches, StageVersions
from ..wires import Handle

Key = tuple[int, int]
"""(stage, micro-batch)."""


@dataclass
class StepRecord:
    """One step (or update) of one rank: seconds from the run's common start to its end, losses by micro-batch of it.

    `ops`: of the whole run, with its last update.
    """

    seconds: float
    losses: dict[int, float]
    ops: list[OpRecord]


class FutureHandle:
    """What a thread of this rank does for it, as a transfer (see `Handle`)."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    def done(self) -> bool:
        return self._future.done()


class Transfer:
    """Messages, a copy or a reduction under way, with the tensors they must not lose. Any thread may finish it.

    Attributes:
        tensors: what is sent, released when the transfer is complete; or what is received, for the taker.
        read: what is sent, but belongs to others as well: it can be given up to nobody.
        record: gets the time at which its end is known (None: whoever does the work writes it down).
        op: what it is the transfer of.
    """

    def __init__(
        self,
        tensors: list[Tensor],
        handles: Sequence[Handle],
        record: OpRecord | None,
        receives: bool = False,
        op: Op | None = None,
        read: Sequence[Tensor] = (),
    ):
        self.tensors = tensors
        self.read = list(read)
        self.handles = list(handles)
        self.op = op if record is None else record.op
        if record is not None:
            record.moved_bytes = sum(tensor.nbytes for tensor in tensors)
        self._record = record
        self._receives = receives
        self._finished = False
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether it is known to be complete, without blocking."""
        return self._finished or all(handle.done() for handle in self.handles)

    def order(self) -> None:
        """What this thread queues from now on comes after it (on the CPU: waits for its end). Frees nothing."""
        with self._lock:
            for handle in self.handles:
                handle.wait()

    def block(self) -> None:
        """Blocks this thread until its end. Frees nothing."""
        for handle in list(self.handles):
            getattr(handle, "block", handle.wait)()

    def give_up(self, tensor: Tensor) -> None:
        """Leaves a tensor to somebody who uses it only after this transfer's end."""
        with self._lock:
            self.tensors = [other for other in self.tensors if other is not tensor]

    def finish(self, end: Callable[[OpRecord], None]) -> None:
        """Waits for its end, once, and lets go of what was sent; `end` writes the time into the record."""
        with self._lock:
            if self._finished:
                return
            for handle in self.handles:
                handle.wait()
            self.handles.clear()
            if not self._receives:
                self.tensors.clear()
                self.read.clear()
            if self._record is not None:
                end(self._record)
            self._finished = True


@dataclass
class Incoming:
    """New parameters of a stage, by name, and what brings them: versions that nobody uses come before the last.

    `positions`: of the RECV_Ps.
    """

    tensors: dict[str, Tensor]
    positions: list[int] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)


@dataclass
class StepState:
    """What lives within one step, by (stage, micro-batch).

    Attributes:
        times: the clock of the run, which begins when all ranks do. mini_batches: their samples.
        received: messages that arrive, by (kind, stage, micro-batch); stashes that visit this device too.
        inputs: of forwards whose stash is recomputed. stashes: on this device, ready for the backward.
        waiting: fetches that start after an in-line op: (its position, what starts them), in list order.
        reductions: sums under way, by `Op.collective`.
        leaving: what this device sends or copies away, by its position in the list. departed: the same by stash.
        position: of the op that runs, in the list. versions: of every stage's weights, where there are several.
        predicted: weights for the next pass of a stage. returned: those that have come back from the host with a stash.
        incoming: new parameters that arrive, by stage.
        ended, told: how many updates the rank has done its part of, and has reported. marks: ends of those between.
    """

    step: int
    mini_batches: MiniBatches
    times: Times = field(init=False)
    received: dict[tuple[Kind, int, int, int], Transfer] = field(default_factory=dict)
    activations: dict[tuple[int, int, int], list[Tensor]] = field(default_factory=dict)
    gradients: dict[tuple[int, int, int], list[Tensor]] = field(default_factory=dict)
    inputs: dict[Key, list[Tensor]] = field(default_factory=dict)
    stashes: dict[Key, Stash] = field(default_factory=dict)
    weight_stashes: dict[Key, WeightStash] = field(default_factory=dict)
    leaving: dict[int, Transfer] = field(default_factory=dict)
    departed: dict[Key, Transfer] = field(default_factory=dict)
    waiting: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    reductions: dict[tuple[Kind, int, int], Transfer] = field(default_factory=dict)
    losses: dict[int, Tensor | float] = field(default_factory=dict)
    records: list[OpRecord] = field(default_factory=list)
    position: int = -1
    versions: dict[int, StageVersions] = field(default_factory=dict)
    predicted: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    returned: dict[Key, dict[str, Tensor]] = field(default_factory=dict)
    incoming: dict[int, Incoming] = field(default_factory=dict)
    ended: int = 0
    told: int = 0
    marks: list[Mark] = field(default_factory=list)

    def start_waiting(self, position: int) -> None:
        """Starts the fetches that wait for in-line ops before this one."""
        while self.waiting and self.waiting[0][0] < position:
            self.waiting.pop(0)[1]()

    def batch(self, m: int) -> tuple[int, int]:
        """Step (or update) and micro-batch within it: what data and random state depend on."""
        return self.step + m // self.mini_batches.micro_batches, m % self.mini_batches.micro_batches

    def samples(self, m: int) -> int:
        """Of a micro-batch."""
        step, number = self.batch(m)
        return self.mini_batches.of(step).size(number)

    def weight(self, m: int) -> float:
        """How much a micro-batch counts within its step or update."""
        step, number = self.batch(m)
        return self.mini_batches.weighed(step).weight(number)
