"""Forwards and backwards: F, R, B, I and W wait for their inputs, and compute."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...models import derive_seed
from ...models.wiring import Carried, Value, carried, tensors_of
from ...planner.graph import update_size
from ...planner.plan import Kind, Op
from ..place import OpRecord
from ..stage import Gradients, gradients_of
from .finite import Guard
from .parameter_ops import ParameterOps
from .stashes import Stashes
from .step_state import StepState
from .update import Update
from .worker import Handler, Worker


class PassOps:
    """What a rank's list computes.

    Args:
        parameters: the weights that passes read.
        stashes: those that have come back from elsewhere.
        update: knows the loss scale. guard: looks at losses and gradients.
    """

    def __init__(
        self, worker: Worker, parameters: ParameterOps, stashes: Stashes, update: Update, guard: Guard
    ) -> None:
        self._worker, self._parameters, self._stashes = worker, parameters, stashes
        self._update, self._guard = update, guard
        self._scale = 1.0 / update_size(worker.blueprint.plan)
        self.handlers: Mapping[Kind, Handler] = {
            Kind.F: self._forward,
            Kind.R: self._remake,
            Kind.B: self._backward,
            Kind.I: self._backward_input,
            Kind.W: self._backward_weight,
        }

    def _forward(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        stage, m = op.stage, op.micro_batch
        replica = worker.replica(state, op)
        self._parameters.install(state, stage)  # first: what has come in makes room for the data
        x, target = worker.inputs(state, stage, m)
        seed, statistics = derive_seed(worker.blueprint.seed, *state.batch(m)), replica.statistics
        buffers = replica.weights.buffers if statistics is None else statistics.for_forward(m)
        weights = self._parameters.of_pass(state, op)
        worker.begin(state, record)
        row = worker.stash_policy(op)
        if row.partial:
            output, stash = replica.program.forward_part(weights, buffers, x, target, seed)
            state.stashes[stage, m] = stash
        elif row.remade:
            output = replica.program.forward_only(weights, buffers, x, target, seed)
            state.inputs[stage, m] = [tensors_of(x)[k] for k in worker.passing.parts[stage].kept]
        else:
            output, stash = replica.program.forward(weights, buffers, x, target, seed)
            state.stashes[stage, m] = stash
        state.times.end(record)
        state.predicted.pop(stage, None)
        if statistics is not None:
            statistics.forwarded(m)
        if stage == worker.last:
            state.losses[m] = loss = worker.place.keep_loss(tensors_of(output)[0])
            self._guard.loss(loss)
        else:
            worker.hand_on(state, stage, m, output)

    def _remake(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        stage, m = op.stage, op.micro_batch
        replica = worker.replica(state, op)
        if worker.stash_policy(op).partial:
            kept, weights = state.stashes.pop((stage, m)), self._parameters.of_pass(state, op)
            worker.begin(state, record)
            state.stashes[stage, m] = replica.program.remake_part(kept, weights, replica.weights.buffers)
            state.times.end(record)
            return
        arrived = worker.arrived(state, Kind.RECV_S, stage, m)
        x = self._remade_from(state, op, self._stashes.take_inputs(state, stage, m) if arrived is None else arrived)
        target = worker.target(state, m) if stage == worker.last else None
        seed = derive_seed(worker.blueprint.seed, *state.batch(m))
        weights = self._parameters.of_pass(state, op)
        worker.begin(state, record)
        state.stashes[stage, m] = replica.program.remake(weights, replica.weights.buffers, x, target, seed)
        state.times.end(record)

    def _remade_from(self, state: StepState, op: Op, kept: list[Tensor]) -> Carried:
        """What the stage took: what was kept of it, and data read again."""
        part = self._worker.passing.parts[op.stage]
        if len(kept) == len(part.takes):
            return carried(kept)
        found = {part.takes[k]: tensor for k, tensor in zip(part.kept, kept, strict=True)}
        found |= self._worker.read(state, op.micro_batch, (value for value in part.takes if value not in found))
        return carried([found[value] for value in part.takes])

    def _backward(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._worker.replica(state, op)
        gradient = self._incoming_gradient(state, op)
        stash = self._stashes.take(state, op.stage, op.micro_batch)
        weights = self._parameters.of_pass(state, op)
        self._worker.begin(state, record)
        result = replica.program.backward(stash, weights, gradient, replica.weights.accumulators)
        state.times.end(record)
        self._hand_back(state, op, result)

    def _backward_input(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._worker.replica(state, op)
        gradient = self._incoming_gradient(state, op)
        stash = self._stashes.take(state, op.stage, op.micro_batch)
        weights = self._parameters.of_pass(state, op)
        self._worker.begin(state, record)
        result, weight_stash = replica.program.backward_input(stash, weights, gradient)
        state.times.end(record)
        state.weight_stashes[op.stage, op.micro_batch] = weight_stash
        self._hand_back(state, op, result)

    def _backward_weight(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._worker.replica(state, op)
        self._worker.begin(state, record)
        weight_stash = state.weight_stashes.pop((op.stage, op.micro_batch))
        replica.program.backward_weight(weight_stash, replica.weights.accumulators)
        state.times.end(record)
        if op.stage == 0:
            self._guard.handed_back(None)

    def _incoming_gradient(self, state: StepState, op: Op) -> Carried:
        """Of every tensor that the stage gives and that has one: the sum over those who took it, the last one first, as
        autograd adds up in one process."""
        worker, m = self._worker, op.micro_batch
        if op.stage == worker.last:
            dtype = worker.replicas[op.stage].program.output_spec.dtype
            scale = self._scale * state.weight(op.micro_batch) * self._update.scaler.scale
            return torch.full((), scale, dtype=dtype, device=worker.place.device)
        sums: dict[Value, Tensor] = {}
        for consumer in reversed(worker.passing.consumers(op.stage)):
            values = worker.passing.edge(op.stage, consumer, gradients=True)
            arrived = worker.arrived(state, Kind.RECV_B, op.stage, m, consumer)
            found = state.gradients.pop((op.stage, consumer, m)) if arrived is None else arrived
            for value, gradient in zip(values, found, strict=True):
                sums[value] = _added(sums.get(value), gradient, in_place=arrived is not None)
        return carried([sums[value] for value in worker.passing.returned(op.stage)])

    def _hand_back(self, state: StepState, op: Op, result: Gradients) -> None:
        worker, stage, m = self._worker, op.stage, op.micro_batch
        state.predicted.pop(stage, None)
        state.departed.pop((stage, m), None)
        wanted = worker.passing.wanted(stage)
        found = dict(zip(wanted, gradients_of(result), strict=True)) if wanted else {}
        for producer in worker.passing.producers(stage):
            handed: list[Tensor] = []
            for value in worker.passing.edge(producer, stage, gradients=True):
                gradient = found[value]
                if gradient is None:
                    gradient = worker.buffers(state, stage, m, [value])[0].zero_()
                self._guard.handed_back(gradient)
                handed.append(gradient)
            state.gradients[producer, stage, m] = handed
        if stage == 0 and op.kind is Kind.B:
            self._guard.handed_back(None)


def _added(sum_: Tensor | None, gradient: Tensor, in_place: bool) -> Tensor:
    """The sum, in the gradient's memory if it is nobody else's."""
    if sum_ is None:
        return gradient
    return gradient.add_(sum_) if in_place else gradient + sum_
