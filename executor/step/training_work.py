"""What the ops of a training's list do, put together from its parts: one handler a kind of op."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ...planner.graph import asynchronous
from ...planner.plan import Kind, Op
from ..basics import ExecutionError, failed_op
from ..place import OpRecord
from ..state import StageVersions
from .finite import Guard, NotFinite
from .message_ops import MessageOps
from .parameter_ops import ParameterOps
from .pass_ops import PassOps
from .stash_ops import StashOps
from .step_state import StepState, Transfer
from .update import Update
from .worker import Handler, Worker


class TrainingWork:
    """Forwards, backwards and updates.

    Attributes:
        update: the end of every step, with the loss scale.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, blueprint = worker, worker.blueprint
        plan, training, replicas = blueprint.plan, blueprint.training, worker.replicas
        self.mini_batches = blueprint.mini_batches
        self.update = Update(plan, training, worker.transport, replicas)
        weights = {stage: replica.weights for stage, replica in replicas.items() if replica.owner}
        self._guard = Guard(training, weights, blueprint.layer_names, worker.place.queues)
        self._divided = {s for p in plan.pipelines for s, d in enumerate(p.forward) if d != p.backward[s]}
        self._parameters, stash_ops = ParameterOps(worker), StashOps(worker)
        self._stashes = stash_ops.stashes
        passes = PassOps(worker, self._parameters, self._stashes, self.update, self._guard)
        self.handlers: Mapping[Kind, Handler] = {
            **passes.handlers,
            **MessageOps(worker).handlers,
            **stash_ops.handlers,
            **self._parameters.handlers,
            Kind.STEP: self._step,
        }

    def close(self) -> None:
        """Ends the threads that copy."""
        self._stashes.close()

    def begin(self, state: StepState) -> None:
        """Before the first op of a run."""
        self._stashes.reset()
        self.update.begin()
        if self._worker.course.versions is not None:
            state.versions = {stage: StageVersions(replica.weights) for stage, replica in self._worker.replicas.items()}

    def agree(self, state: StepState) -> None:
        """Before the first STEP, which all ranks take or leave out together."""
        for reduction in state.reductions.values():
            self._worker.finish(state, reduction)
        losses = self._worker.place.read_losses(state.losses) if self._worker.blueprint.training.skips else {}
        self.update.agree(all(map(math.isfinite, losses.values())))

    def told(self, loss: float) -> None:
        """A loss is known. Raises NotFinite."""
        self._guard.loss(loss)

    def end(self, state: StepState) -> None:
        """After the last op: parameters are put in their place, and statistics are exchanged."""
        for stage in sorted(state.incoming):
            self._parameters.install(state, stage)
        for (kind, _, _), gathering in state.reductions.items():
            if kind is Kind.GATHER:
                self._worker.finish(state, gathering)
        self._exchange_statistics(state)
        self._stashes.settle()

    def settle(self) -> Iterator[tuple[int, NotFinite]]:
        """When the device has done all: the stages whose gradients were not finite."""
        self.update.end()
        yield from self._guard.settled()

    def failure(self, step: int, op: Op, error: Exception) -> ExecutionError:
        """Names rank, stage, op, micro-batch and step."""
        return failed_op(self._worker.transport.seat.name, step, op, error, asynchronous(self._worker.course.plan))

    def _step(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._worker.replicas[op.stage]
        for collective in replica.awaited(op):
            self._worker.finish(state, state.reductions.get(collective))
        state.reductions.pop((Kind.REDUCE, op.stage, op.micro_batch), None)
        self._worker.begin(state, record)
        self._guard.stepping(op.stage)
        versions = state.versions.get(op.stage)
        if versions is not None:
            versions.replace(keep=state.position in self._worker.course.replaced)
        self.update.apply(replica, state.step + self._worker.course.update_of(op))
        if versions is not None:
            replica.weights.zero_gradients()
        if replica.statistics is not None and op.stage not in self._divided:
            replica.statistics.apply()
        state.times.end(record)

    def _exchange_statistics(self, state: StepState) -> None:
        """At the end of a step: statistics of stages that some micro-batches run on two devices."""
        for stage in sorted(self._worker.replicas.keys() & self._divided):
            replica = self._worker.replicas[stage]
            if replica.statistics is not None:
                if replica.statistics_group is not None:
                    handles = [
                        self._worker.transport.all_reduce(rows, replica.statistics_group) for rows in replica.rows
                    ]
                    self._worker.finish(state, Transfer([], handles, None))
                replica.statistics.apply()
