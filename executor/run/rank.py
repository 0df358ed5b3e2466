"""One rank's whole run, whatever carries its messages: build, check, load, train, save, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...models import Dataset, LayeredModel
from ...planner.graph import asynchronous, holders
from ...planner.plan import Op, Plan
from ...planner.runs import OpTrace
from ..basics import Checkpointing, LossScaler, StorageTracker, Training
from ..place import CPU, Place, place_of
from ..stage import Engine
from ..state import Blueprint, MiniBatch, StageReplica, TensorShape, compare_holders, equalise, find_data, find_model
from ..step import (
    GROUP,
    TIMEOUT_S,
    Board,
    Course,
    Evaluator,
    Interpreter,
    Limit,
    Observer,
    Run,
    cap_device,
    compare_samples,
    lengthened,
    open_ledger,
    run_at,
    runs,
)
from ..wires import Transport, carried, reduce_groups
from .identity import RunIdentity
from .stopping import Stop, agreed
from .trace import StepSamples, environment

if TYPE_CHECKING:
    from .saving import Saver


@dataclass(frozen=True)
class Job:
    """A run, the same for all ranks; picklable if its model and data are. See `launch.execute`."""

    plan: Plan
    model: LayeredModel | str
    data: Dataset | str | None
    steps: int
    seed: int
    training: Training
    dtype: torch.dtype
    tracked_steps: int
    checkpoint: Checkpointing | None
    self_check: bool
    return_state: bool
    identity: RunIdentity
    timeout_s: float = TIMEOUT_S
    engine: Engine = "auto"
    device: str = "cpu"
    compiled: bool = False
    shapes: Mapping[int, tuple[TensorShape, ...]] = field(default_factory=dict)
    """Every stage's input by the samples of a micro-batch (see `MiniBatches.sizes`)."""
    enforced: bool = False
    """Whether it ends where a device or host holds more than was planned; memory is then followed in all steps."""
    first: int = 0
    """The step it goes on from."""

    def orders_at(self, step: int) -> tuple[tuple[Op, ...], ...]:
        """The op lists that the ranks follow in a step (or update)."""
        if not asynchronous(self.plan):
            return self.plan.orders
        run = run_at(self.plan, self.training, self.first, self.steps, step, self.saves)
        return lengthened(self.plan, run.updates).orders

    @property
    def runs(self) -> Iterator[Run]:
        """What goes through the pipeline in one go."""
        return runs(self.plan, self.training, self.first, self.steps, self.saves)

    @property
    def can_stop(self) -> bool:
        """Whether there are places before the end at which it can: an asynchronous plan needs an empty pipeline."""
        return not asynchronous(self.plan) or self.steps > next(self.runs).updates

    @property
    def saves(self) -> int:
        """Steps between saves, 0: none but the last."""
        return 0 if self.checkpoint is None else self.checkpoint.every

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups it needs, in the order in which every rank creates them."""
        everyone = {GROUP: tuple(range(len(self.plan.orders)))} if self.training.agrees or self.checkpoint else {}
        return everyone | reduce_groups(self.plan)


@dataclass(frozen=True)
class StepReport:
    """One step (or update) of one rank: its end, its samples, losses of the micro-batches whose last stage it holds.

    `seconds`: from the start of its run to its end; `run`: the first step of that. `grad_norm`: of the whole model,
    where the run needs it. `loss_scale`: what the step ran with. `held_out`: losses of the evaluation after it by
    (step, micro-batch), None without. `left_out`: nobody stepped, since something was not finite.
    """

    rank: int
    step: int
    seconds: float
    losses: dict[int, float]
    mini_batch: MiniBatch
    grad_norm: float | None = None
    loss_scale: float = 1.0
    run: int = -1
    held_out: dict[tuple[int, int], float] | None = None
    left_out: bool = False


@dataclass(frozen=True)
class Notice:
    """What a rank wants the user to know about one of its stages, before training starts; told once a subject."""

    stage: int
    text: str
    subject: str = "engine"


@dataclass(frozen=True)
class RankReport:
    """What a rank leaves at its end. `ops`: over the steps `timed_steps` (times) and `tracked_steps` (memory).

    `allocated_bytes`: the most that CUDA's allocator gave the rank's process, over all steps; None on the CPU.
    `updates`: of the runs that the ops are of. `peak_op`: in which `peak_bytes` were live.
    """

    rank: int
    first_step: int
    peak_bytes: int
    ops: tuple[OpTrace, ...]
    timed_steps: tuple[int, ...]
    tracked_steps: tuple[int, ...]
    environment: dict[str, str | int]
    state: dict[str, Tensor] | None
    allocated_bytes: int | None = None
    updates: int = 1
    peak_op: Op | None = None


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
    place = place_of(job.device, wires.rank if local_rank is None else local_rank)
    with place.activate(), carried(job.plan, wires, place) as transport, ExitStack() as closing:
        run = _Run(job, transport, place, report, board, stop or Stop(bytearray(Stop.SIZE)), closing)
        run.begin()
        run.follow()
        run.end()
        closing.close()
        return run.left()


class _Run:
    """One rank's run from its replicas to what it leaves; `closing` ends what it began."""

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
        self._rank, self._last = transport.rank, job.first
        self._blueprint = blueprint_of(job, place.device)
        self._tracker = tracker = StorageTracker(device=place.device)
        host = open_ledger(job.plan, transport) if job.enforced else None
        self._limit = Limit(job.plan, self._rank) if job.enforced else None
        self._observer = Observer(board, self._rank, tracker, self._limit, host)
        place.start_measuring()
        self._tracking = closing.enter_context(ExitStack())
        self._tracking.enter_context(tracker)
        self._replicas = self._build()
        self._interpreter = Interpreter(
            self._blueprint, transport, self._replicas, track=tracker.track, observer=self._observer, place=place,
            load=tracker.bring_in, hosted=_unseen if host is None else host.track,
        )  # fmt: skip
        closing.callback(self._interpreter.close)
        self._update = self._interpreter.update
        self._evaluator = self._held_out()
        if self._evaluator is not None:
            closing.callback(self._evaluator.close)
        self._saver = _saver(job, transport, self._blueprint, self._replicas)
        if self._saver is not None:
            closing.callback(self._saver.close)
        self._traced = next(job.runs).updates
        self._course = _course(job, self._rank, self._traced)
        self._samples = StepSamples(self._course.plan.orders[self._rank])
        if self._limit is not None:
            closing.callback(place.cap, 0)
        closing.callback(self._tracking.close)  # before what is above is closed

    def _build(self) -> dict[int, StageReplica]:
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
        return Evaluator(self._blueprint, self._transport, self._replicas, self._place, self._tracker.bring_in)

    def begin(self) -> None:
        """What all ranks do together before the first step: resume, one copy of everything, the same samples."""
        if self._saver is not None:
            _resume(self._job, self._saver, self._replicas, self._update.scaler)
            if self._job.can_stop:
                self._stop.begin()
        tell = self._report
        equalise(
            self._transport, self._blueprint, self._replicas, lambda stage, text: tell(Notice(stage, text, "start"))
        )
        compare_samples(self._transport, self._blueprint, self._replicas, self._job.first)
        if self._limit is not None:
            cap_device(self._place, self._limit.planned_bytes, self._transport)
        self._tracker.reset_peak()

    def follow(self) -> None:
        """All runs of the op lists, with what is due between them, or up to where all ranks agree to stop."""
        for run in self._job.runs:
            if self._saver is not None:
                self._saver.check()
                if number := agreed(self._stop, self._transport, GROUP):
                    self._stop.request(number)
                    return
            self._steps(run)
            self._last = run.end
            saves = self._job.checkpoint is not None and self._job.checkpoint.due(run.end)
            if saves or run.first == self._job.first:
                self._observer.ending()
                compare_holders(self._transport, self._blueprint, self._replicas, run.end)
            if self._saver is not None and saves:
                self._saver.save(run.end, self._update.scaler.to_dict())

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
                    self._rank, step, record.seconds, record.losses, self._blueprint.mini_batches.of(step),
                    self._update.grad_norm, scale, run.first, held_out, self._update.left_out,
                )
            )  # fmt: skip
            self._observer.stepped(step)
            if step - first + 1 == job.tracked_steps and not job.enforced:
                self._observer.untrack()
                self._tracking.close()

    def _evaluated(self, steps: int) -> dict[tuple[int, int], float] | None:
        if self._evaluator is None or steps % self._job.training.evaluate_every:
            return None
        self._observer.evaluating()
        return self._evaluator.evaluate()

    def end(self) -> None:
        """The last comparison and the last checkpoint."""
        self._observer.untrack()
        self._allocated = self._place.allocated_bytes()
        self._observer.ending()
        if self._saver is not None and self._last > self._job.first:
            compare_holders(self._transport, self._blueprint, self._replicas, self._last)
            self._saver.save(self._last, self._update.scaler.to_dict())
            self._saver.wait()

    def left(self) -> RankReport:
        """What the rank leaves, once everything is closed."""
        state = _final_state(self._blueprint, self._replicas) if self._job.return_state else None
        self._observer.done()
        samples = self._samples
        return RankReport(
            self._rank, self._job.first, self._observer.peak_bytes, samples.ops(), samples.timed_steps,
            samples.tracked_steps, environment(self._job, self._transport), state, self._allocated, self._traced,
            self._observer.peak_op,
        )  # fmt: skip


def _unseen(_: Tensor) -> None:
    """Nobody counts it."""


def blueprint_of(job: Job, device: torch.device = CPU.device) -> Blueprint:
    """What a run's stages are built from; raises RunError where model or data are not to be found."""
    model = find_model(job.plan, job.model)
    data = find_data(model, job.data)
    smaller = dict(job.shapes)
    shapes = smaller.pop(job.plan.problem.model.micro_batch_size)
    return Blueprint(
        job.plan, model, data, shapes, job.seed, job.training, job.dtype, job.engine, device, job.compiled, smaller
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
        replicas[stage] = blueprint.build(rank, stage, job.self_check, replicas.values())
    return replicas


def _saver(job: Job, transport: Transport, blueprint: Blueprint, replicas: dict[int, StageReplica]) -> Saver | None:
    if job.checkpoint is None:
        return None
    from .saving import Saver

    state = partial(named_state, blueprint, replicas)
    return Saver(job.checkpoint, job.identity, transport, state, job.first + job.steps)


def _resume(job: Job, saver: Saver, replicas: dict[int, StageReplica], scaler: LossScaler) -> None:
    """Loads the checkpoint that the run goes on from, if it does."""
    if job.checkpoint is None or not job.checkpoint.resume:
        return
    scaler.resume(saver.resume(job.first))
    for replica in replicas.values():
        replica.weights.set_step(job.first - scaler.skipped)


def _final_state(blueprint: Blueprint, replicas: dict[int, StageReplica]) -> dict[str, Tensor]:
    state = named_state(blueprint, replicas, current=True)
    return {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}


def named_state(blueprint: Blueprint, replicas: dict[int, StageReplica], current: bool = False) -> dict[str, Tensor]:
    """Every tensor of the rank by checkpoint key.

    `current`: without what is up to date on other ranks only: buffers where no forward runs, parameters where no
    backward does.
    """
    state: dict[str, Tensor] = {}
    for replica in replicas.values():
        for key, tensor in replica.weights.named_state(blueprint.layer_names).items():
            if not current or (replica.runs_forward if key.startswith("buffers/") else replica.owner):
                state[key] = tensor
    return state
