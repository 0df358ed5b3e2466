"""Forwards and backwards: F, R, B, I and W wait for their inputs, and compute."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...models import derive_seed
from ...planner.graph import update_size
from ...planner.plan import Kind, Op
from ..place import OpRecord
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
        if worker.stash_policy(op).remade:
            output = replica.program.forward_only(weights, buffers, x, target, seed)
            state.inputs[stage, m] = x
        else:
            output, stash = replica.program.forward(weights, buffers, x, target, seed)
            state.stashes[stage, m] = stash
        state.times.end(record)
        state.predicted.pop(stage, None)
        if statistics is not None:
            statistics.forwarded(m)
        if stage == worker.last:
            state.losses[m] = loss = worker.place.keep_loss(output)
            self._guard.loss(loss)
        else:
            state.activations[stage, m] = output

    def _remake(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        stage, m = op.stage, op.micro_batch
        replica = worker.replica(state, op)
        arrived = worker.arrived(state, Kind.RECV_S, stage, m)
        x = self._stashes.take_input(state, stage, m) if arrived is None else arrived.pop()
        target = worker.target(state, m) if stage == worker.last else None
        seed = derive_seed(worker.blueprint.seed, *state.batch(m))
        weights = self._parameters.of_pass(state, op)
        worker.begin(state, record)
        state.stashes[stage, m] = replica.program.remake(weights, replica.weights.buffers, x, target, seed)
        state.times.end(record)

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

    def _incoming_gradient(self, state: StepState, op: Op) -> Tensor:
        worker = self._worker
        if op.stage == worker.last:
            dtype = worker.replicas[op.stage].program.output_spec.dtype
            scale = self._scale * state.weight(op.micro_batch) * self._update.scaler.scale
            return torch.full((), scale, dtype=dtype, device=worker.place.device)
        arrived = worker.arrived(state, Kind.RECV_B, op.stage, op.micro_batch)
        return state.gradients.pop((op.stage, op.micro_batch)) if arrived is None else arrived[0]

    def _hand_back(self, state: StepState, op: Op, result: Tensor | None) -> None:
        state.predicted.pop(op.stage, None)
        state.departed.pop((op.stage, op.micro_batch), None)
        if op.stage > 0:
            if result is None:
                result = self._worker.buffer(state, op.stage, op.micro_batch).zero_()
            self._guard.handed_back(result)
            state.gradients[op.stage - 1, op.micro_batch] = result
        elif op.kind is Kind.B:
            self._guard.handed_back(None)
