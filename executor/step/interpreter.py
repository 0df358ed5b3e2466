"""Runs one rank's op list. Nothing is decided here: the list says what happens, in which order.

What ops do is their work's (see `training_work`); what is posted there does not block. F, B, I, W, R, PREDICT and STEP
wait for their inputs only, FREE for its stash to have left, and each for what the forecast has completed by then (see
`waits`): so memory is bounded as planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from ...planner.plan import IN_LINE, Kind, Op
from ..basics import Aborted, ExecutionError
from ..stage import pause
from ..state import MiniBatches
from .course import Course
from .finite import NotFinite
from .step_state import StepRecord, StepState
from .worker import Handler, Worker


class Work(Protocol):
    """What an interpreter's ops do.

    Attributes:
        handlers: by the kind of an op. mini_batches: the samples of a run's steps.
    """

    @property
    def handlers(self) -> Mapping[Kind, Handler]: ...

    @property
    def mini_batches(self) -> MiniBatches: ...

    def begin(self, state: StepState) -> None:
        """Before the first op of a run."""

    def agree(self, state: StepState) -> None:
        """Where all ranks must know all gradients; see `Course.agreement`."""

    def told(self, loss: float) -> None:
        """A loss is known. Raises NotFinite."""

    def end(self, state: StepState) -> None:
        """After the last op of a run, when nothing is leaving any more."""

    def settle(self) -> Iterator[tuple[int, NotFinite]]:
        """When the device has done all: the stages that went wrong, and how."""

    def failure(self, step: int, op: Op, error: Exception) -> ExecutionError:
        """What a run raises in which an op has failed."""


class Due(NamedTuple):
    """An op of a list with all that running it asks for.

    Attributes:
        listed: its position in the plan's list. update: counted from the run's first.
        left: positions of what must have left before; None: a FETCH waits for that itself.
        dropped: (stage, version) that nobody reads after it.
    """

    op: Op
    listed: int
    update: int
    handle: Handler
    in_line: bool
    left: tuple[int, ...] | None
    dropped: tuple[tuple[int, int], ...]


class Interpreter:
    """One rank's lists, one after the other: each op is handed to its handler when what it waits for is over."""

    def __init__(self, worker: Worker, work: Work) -> None:
        self._worker, self._work = worker, work
        self._handlers = work.handlers
        self._place, self._observer = worker.place, worker.observer
        self._pauses = worker.transport.pauses
        self._known: tuple[Course, list[Due]] | None = None

    def run(self, course: Course, first: int) -> Iterator[StepRecord]:
        """Runs the list once: a step, or several updates, of which `first` is the number. Yields each when it is done.

        The record of the last one comes at the end of the run, and has the records of all ops, if they are kept.

        Raises ExecutionError naming rank, stage, op and micro-batch.
        """
        worker = self._worker
        worker.follow(course)
        worker.clear()
        self._observer.step(first)
        state = StepState(first, self._work.mini_batches)
        self._work.begin(state)
        worker.transport.barrier()
        state.times = self._place.times(worker.around.clock)
        lag = 1 if self._place.queues else 0
        several = len(course.ends) > 1
        for position, due in enumerate(self._listed(course)):
            self._run_op(course, state, position, due)
            if several:
                yield from self._ended(course, state, lag)
        yield from self._ended(course, state, 0)
        yield self._finished(course, state)

    def _listed(self, course: Course) -> list[Due]:
        """What every position of the course's list needs, looked up once for all of its runs."""
        if self._known is None or self._known[0] is not course:
            self._known = (
                course,
                [
                    Due(
                        op,
                        course.listed[position],
                        course.update_of(op),
                        self._handlers[op.kind],
                        op.kind in IN_LINE,
                        None if op.kind is Kind.FETCH else course.waits.left[position],
                        tuple(course.dropped.get(position, ())),
                    )
                    for position, op in enumerate(course.order)
                ],
            )
        return self._known[1]

    def _run_op(self, course: Course, state: StepState, position: int, due: Due) -> None:
        step = state.step + due.update
        state.position = position
        self._observer.begin(due.listed, step)
        try:
            if position == course.agreement:
                self._work.agree(state)
            if due.in_line and state.waiting:
                state.start_waiting(position)
            if due.left is not None and (due.left or state.leaving):
                self._worker.complete(state, due.left)
            self._observer.admit()
            record = state.times.open(due.op)
            if course.recorded:
                state.records.append(record)
            due.handle(state, due.op, record)
            for stage, version in due.dropped:
                state.versions[stage].drop(version)
            self._observer.end(record)
            if self._pauses:
                pause()
        except (Aborted, KeyboardInterrupt):
            raise
        except Exception as error:
            raise self._work.failure(step, due.op, error) from error

    def _ended(self, course: Course, state: StepState, lag: int) -> Iterator[StepRecord]:
        """The updates but for the last that are done by now; but `lag` of them later: their work is only queued."""
        ends = course.ends
        while state.ended < len(ends) - 1 and ends[state.ended] <= state.position:
            state.marks.append(self._place.mark())
            state.ended += 1
        while len(state.marks) > lag:
            state.marks.pop(0).block()
            if not course.recorded:
                state.times.forget()
            yield StepRecord(state.times.now(), self._losses(course, state), [])

    def _losses(self, course: Course, state: StepState) -> dict[int, float]:
        """Of the next update that has not been told, by its micro-batches."""
        size, first = course.update, state.told * course.update
        state.told += 1
        mine = {m - first: state.losses.pop(m) for m in range(first, first + size) if m in state.losses}
        found = self._place.read_losses(mine)
        for m, loss in found.items():
            try:
                self._work.told(loss)
            except NotFinite as error:
                raise self._work.failure(state.step + state.told - 1, Op(Kind.F, self._worker.last, m), error) from None
        return found

    def _finished(self, course: Course, state: StepState) -> StepRecord:
        """The end of the run."""
        if course.agreement == len(course.order):  # it steps nothing, but the others wait for its word
            self._work.agree(state)
        self._worker.complete(state, tuple(state.leaving))
        self._work.end(state)
        self._place.synchronize()
        for stage, error in self._work.settle():
            raise self._work.failure(state.step, Op(Kind.STEP, stage), error)
        state.times.resolve()
        listed = course.listed
        records = [state.records[k] for k in sorted(range(len(state.records)), key=listed.__getitem__)]
        seconds = max((r.end_s for r in records), default=0.0) if course.recorded else state.times.now()
        return StepRecord(seconds, self._losses(course, state), records)
