"""One rank's whole run, whatever carries its messages: build, check, load, train, save, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ...models.collectives import member_of
from ...models.once import forget, kept
from ...planner.graph import holders
from ..place import CPU, Place, StorageTracker, place_of
from ..stage import alone
from ..state import Blueprint, StageReplica, compare_holders, compare_lanes, equalise, feed_of, find_data, lane_of
from ..step import (
    GROUP,
    Course,
    Evaluator,
    Interpreter,
    Limit,
    Observer,
    Run,
    Surroundings,
    TrainingWork,
    Worker,
    cap_device,
    compare_samples,
    lengthened,
    open_ledger,
)
from ..watch import Board
from ..wires import Transport, said, transport_for
from .job import Job
from .rank_state import final_state, named_state, resume, saver_of, taken_up
from .reports import Notice, RankReport, StepReport
from .stopping import Stop, agreed
from .trace import StepSamples, environment


def run_rank(
    job: Job,
    wires: Transport,
    report: Callable[[StepReport | Notice], None],
    board: Board | None = None,
    local_rank: int | None = None,
    stop: Stop | None = None,
) -> RankReport:
    """Runs all steps of one rank; reports each, and what is notable before; raises what went wrong.

    Args:
        wires: between the hosts' memories.
        board: where it says what it is doing.
        local_rank: among the ranks of this machine (default: the machine has them all).
        stop: who asks it to end early; heeded where it saves what it has.
    """
    with begun(job, wires, report, board, local_rank, stop) as run:
        return run.to_its_end()


@contextmanager
def begun(
    job: Job,
    wires: Transport,
    report: Callable[[StepReport | Notice], None],
    board: Board | None = None,
    local_rank: int | None = None,
    stop: Stop | None = None,
) -> Iterator[RankRun]:
    """One rank's run, ready for its first step; arguments as of `run_rank`. Collective: all ranks begin it."""
    place = place_of(job.options.device, wires.seat.number if local_rank is None else local_rank)
    with place.activate(), transport_for(job.plan, wires, place) as transport, ExitStack() as closing:
        if transport.team is not None:
            closing.enter_context(member_of(transport.team))
        run = RankRun(job, transport, place, report, board, stop or Stop(bytearray(Stop.SIZE)), closing)
        run.begin()
        yield run


class RankRun:
    """One rank's run from its replicas to what it leaves; `closing` ends what it began.

    All training goes through `advance`: `follow` calls it for a run whose length is known, a `Trainer` step by step.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport,
        place: Place,
        report: Callable[[StepReport | Notice], None],
        board: Board | None,
        stop: Stop,
        closing: ExitStack,
    ) -> None:
        self._job, self._transport, self._place, self._report, self._stop = job, transport, place, report, stop
        self._rank, self._last, self._compared = transport.rank, job.first, False
        self._closing = closing
        self._alone: dict[tuple[int, int], float] | None = None
        made = closing.enter_context(ExitStack())
        made.enter_context(kept())
        self._blueprint = blueprint_of(job, place.device, transport)
        self._tracker = tracker = StorageTracker(device=place.device)
        host = open_ledger(job.plan, transport) if job.options.enforce else None
        self._limit = Limit(job.plan, self._rank) if job.options.enforce else None
        self._observer = Observer(board, transport.seat.number, tracker, self._limit, host)
        if transport.team is not None:
            closing.enter_context(member_of(transport.team, self._observer.with_team))
        place.start_measuring()
        self._tracking = closing.enter_context(ExitStack())
        self._tracking.enter_context(tracker)
        self._replicas = self._build()
        made.close()
        forget()
        around = Surroundings(
            place,
            self._observer,
            load=tracker.bring_in,
            track=tracker.track,
            hosted=_unseen if host is None else host.track,
        )
        worker = Worker(self._blueprint, transport, self._replicas, around)
        work = TrainingWork(worker)
        closing.callback(work.close)
        self._interpreter, self._update = Interpreter(worker, work), work.update
        self._evaluator = self._held_out()
        self._saver = saver_of(job, transport, self._blueprint, self._replicas)
        if self._saver is not None:
            closing.callback(self._saver.close)
        self._traced = next(job.runs).updates
        self._course = _course(job, self._rank, self._traced)
        self._samples = StepSamples(self._course.plan.orders[self._rank])
        if self._limit is not None:
            closing.callback(place.cap, 0)
        closing.callback(self._tracking.close)  # before what is above is closed

    def _build(self) -> dict[int, StageReplica]:
        carried = said(self._transport)
        if carried is not None:
            self._report(Notice(-1, carried, "messages"))
        replicas = build_replicas(self._job, self._blueprint, self._rank)
        for replica in replicas.values():
            if replica.notice is not None:
                self._report(Notice(replica.stage, replica.notice))
            for tensor in replica.tensors():
                self._tracker.track(tensor)
        return replicas

    def _held_out(self) -> Evaluator | None:
        if not self._job.training.evaluate_every:
            return None
        tracker = self._tracker
        around = Surroundings(self._place, load=tracker.bring_in, track=tracker.track)
        return Evaluator(self._blueprint, self._transport, self._replicas, around)

    def begin(self) -> None:
        """What all ranks do together before the first step: resume, one copy of everything, the same samples."""
        if self._saver is not None:
            resume(self._job, self._saver, self._replicas, self._update.scaler, self._transport)
            if self._job.can_stop:
                self._stop.begin()
        tell = self._report
        equalise(
            self._transport, self._blueprint, self._replicas, lambda stage, text: tell(Notice(stage, text, "start"))
        )
        compare_lanes(self._transport, self._blueprint, self._replicas, 0)
        compare_samples(self._transport, self._blueprint, self._replicas, self._job.first)
        if self._limit is not None:
            cap_device(self._place, self._limit.planned_bytes, self._transport)
        self._tracker.reset_peak()

    def to_its_end(self) -> RankReport:
        """All its steps, or an evaluation alone; and what it leaves."""
        if self._job.options.evaluate_only:
            self._alone = self.evaluate()
        else:
            self.follow()
        self.end()
        self.close()
        return self.left()

    def follow(self) -> None:
        """All runs of the op lists, with what is due between them, or up to where all ranks agree to stop."""
        for run in self._job.runs:
            if self._saver is not None:
                self._saver.check()
                if number := agreed(self._stop, self._transport, GROUP):
                    self._stop.request(number)
                    return
            self.advance(run)

    def advance(self, run: Run) -> None:
        """The op lists once, and what is due after them."""
        self._steps(run)
        self._last = run.end
        saves = self._job.checkpoint is not None and self._job.checkpoint.due(run.end)
        if saves or not self._compared:
            self._observer.ending()
            self._compare()
        if self._saver is not None and saves:
            self._saver.save(run.end, self._update.scaler.to_dict())

    def _compare(self) -> None:
        """All copies of a tensor, wherever they are."""
        compare_holders(self._transport, self._blueprint, self._replicas, self._last)
        compare_lanes(self._transport, self._blueprint, self._replicas, self._last)
        self._compared = True

    def _steps(self, run: Run) -> None:
        job, first = self._job, self._job.first
        if len(self._course.ends) != run.updates:
            self._course = _course(job, self._rank, run.updates)
        tracked, scale = run.first - first < job.tracked_steps, self._update.scaler.scale
        for step, record in enumerate(self._interpreter.run(self._course, run.first), run.first):
            held_out = None
            if step + 1 == run.end:
                self._samples.add(run.first, record, tracked)
                held_out = self._evaluated(run.end)
            self._report(
                StepReport(
                    rank=self._rank,
                    step=step,
                    seconds=record.seconds,
                    losses=record.losses,
                    mini_batch=self._blueprint.mini_batches.weighed(step),
                    grad_norm=self._update.grad_norm,
                    loss_scale=scale,
                    run=run.first,
                    held_out=held_out,
                    left_out=self._update.left_out,
                )
            )
            self._observer.stepped(step)
            if step - first + 1 == job.tracked_steps and not job.options.enforce:
                self._observer.untrack()
                self._tracking.close()

    def _evaluated(self, steps: int) -> dict[tuple[int, int], float] | None:
        return None if self._evaluator is None or steps % self._job.training.evaluate_every else self.evaluate()

    def evaluate(self) -> dict[tuple[int, int], float]:
        """Held-out losses that this rank has, by (step, micro-batch), of a run that evaluates."""
        assert self._evaluator is not None
        self._observer.evaluating()
        return self._evaluator.evaluate()

    # ------------------------------------------------------------ what a user's own loop asks for between steps

    def away(self) -> None:
        """The user's code runs: nobody is to blame for how long that takes, and its memory is its own."""
        self._observer.untrack()
        self._tracking.close()
        self._observer.away()

    def tell(self, settings: Mapping[str, Any]) -> None:
        """What all optimizers are told from the next step on, see `Update`."""
        self._update.settings = settings

    def state(self) -> tuple[dict[str, Tensor], dict[str, float | int]]:
        """Every tensor of the rank by checkpoint key, the live ones; and the loss scale as a checkpoint keeps it."""
        return named_state(self._blueprint, self._replicas), self._update.scaler.to_dict()

    def whole_state(self) -> dict[str, Tensor]:
        """Copies of what the rank leaves of the whole state; collective."""
        return final_state(self._transport, self._blueprint, self._replicas)

    def loaded(self, step: int, scaler: dict[str, float | int]) -> None:
        """Its tensors have been written over with those after so many steps; collective."""
        self._update.scaler.resume(scaler)
        taken_up(step, self._replicas, self._update.scaler, self._transport)
        self._last, self._compared = step, False

    # ------------------------------------------------------------ the end

    def finished(self) -> None:
        """No step comes any more: nobody waits for it."""
        self._observer.done()

    def close(self) -> None:
        """Ends what it began."""
        self._closing.close()

    def end(self) -> None:
        """The last comparison and the last checkpoint."""
        self._observer.untrack()
        self._allocated, self._reserved = self._place.allocated_bytes(), self._place.reserved_bytes()
        self._observer.ending()
        if self._saver is not None and self._last > self._job.first:
            self._compare()
            self._saver.save(self._last, self._update.scaler.to_dict())
            self._saver.wait()

    def left(self) -> RankReport:
        """What the rank leaves, once everything is closed."""
        state = self.whole_state() if self._job.options.return_state else None
        self._observer.done()
        samples = self._samples
        return RankReport(
            rank=self._rank,
            first_step=self._job.first,
            peak_bytes=self._observer.peak_bytes,
            ops=samples.ops(),
            timed_steps=samples.timed_steps,
            tracked_steps=samples.tracked_steps,
            environment=environment(self._job, self._transport),
            state=state,
            allocated_bytes=self._allocated,
            reserved_bytes=self._reserved,
            held_out=self._alone,
            updates=self._traced,
            peak_op=self._observer.peak_op,
        )


def _unseen(_: Tensor) -> None:
    """Nobody counts it."""


def blueprint_of(job: Job, device: torch.device = CPU.device, transport: Transport | None = None) -> Blueprint:
    """What a run's stages are built from, by the rank of that transport (default: the first).

    Raises RunError where model or data are not to be found.
    """
    model, options = job.model, job.options
    smaller = dict(job.shapes)
    shapes = smaller.pop(job.plan.problem.model.micro_batch_size)
    return Blueprint(
        plan=job.plan,
        model=model,
        data=find_data(model, options.data, feed_of(job.plan, job.training)),
        shapes=shapes,
        seed=options.seed,
        training=job.training,
        dtype=job.dtype,
        engine=options.engine,
        device=device,
        compiled=options.compiled,
        pauses=transport is not None and transport.pauses,
        smaller=smaller,
        lane=lane_of(job.plan, 0 if transport is None else transport.seat.lane),
        among_team=alone if transport is None else transport.gather_team,
    )


def _course(job: Job, rank: int, updates: int) -> Course:
    return Course.of(lengthened(job.plan, updates), rank, job.training.agrees)


def build_replicas(job: Job, blueprint: Blueprint, rank: int) -> dict[int, StageReplica]:
    """What the rank holds of every stage whose forward or backward it runs."""
    routes = [route for p in job.plan.pipelines for route in (p.forward, p.backward)]
    stages = {stage for route in routes for stage, device in enumerate(route) if device == rank}
    trained = holders(job.plan)
    replicas: dict[int, StageReplica] = {}
    for stage in sorted(stages, key=lambda s: (rank not in trained[s], s)):  # tied parameters: the trained copy first
        replicas[stage] = blueprint.build(rank, stage, job.options.self_check, replicas.values())
    return replicas
