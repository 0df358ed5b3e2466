"""The weights that a pass reads: the version its policy gives it, predicted ones, and parameters that travel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...planner.plan import Kind, Op
from ...planner.problem import WEIGHT_POLICIES
from ..place import OpRecord
from ..state import Predictor, by_name, in_place_of, own_copies, repeated
from .step_state import Incoming, StepState, Transfer
from .worker import Handler, Worker


class ParameterOps:
    """PREDICT, SEND_P and RECV_P of a rank's list, and what they are for."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        plan, training = worker.blueprint.plan, worker.blueprint.training
        policy = WEIGHT_POLICIES[plan.weights]
        optimizer = plan.problem.workload.optimizer
        self._predictor = Predictor(optimizer, training, policy.momentum_first, policy.smoothed)
        self.handlers: Mapping[Kind, Handler] = {
            Kind.PREDICT: self._predict,
            Kind.SEND_P: self._exchange_parameters,
            Kind.RECV_P: self._exchange_parameters,
        }

    def of_pass(self, state: StepState, op: Op) -> Mapping[str, Tensor]:
        """What a pass reads: predicted for it, or the version that the weight policy gives it."""
        predicted = state.predicted.get(op.stage)
        if predicted is not None:
            return predicted
        versions, weights = self._worker.course.versions, self._worker.replicas[op.stage].weights
        returned = state.returned.pop((op.stage, op.micro_batch), None)
        if returned is not None:
            return in_place_of(weights, returned)
        if versions is None:
            return weights.parameters
        of = versions.forward if op.kind is Kind.F else versions.backward
        return state.versions[op.stage].at(of[op.stage, op.micro_batch])

    def _predict(self, state: StepState, op: Op, record: OpRecord) -> None:
        """For the next pass of the stage."""
        worker = self._worker
        weights = worker.replicas[op.stage].weights
        rate = worker.blueprint.training.rate(state.step + state.versions[op.stage].newest)
        worker.begin(state, record)
        state.predicted[op.stage] = in_place_of(weights, self._predictor.predict(weights, rate, op.peer))
        state.times.end(record)

    def _exchange_parameters(self, state: StepState, op: Op, record: OpRecord) -> None:
        """SEND_P or RECV_P of a flush: from the parameters into the parameters, in place."""
        worker = self._worker
        if worker.course.versions is not None:
            self._exchange_version(state, op, record)
            return
        if op.kind is Kind.SEND_P:  # behind all that this rank computes: nobody waits for it meanwhile
            worker.finish(state, state.reductions.get((Kind.GATHER, op.stage, op.micro_batch)))
        named = self._exchanged(op, worker.replicas[op.stage].weights.parameters)
        worker.leave(state, self._exchange(op, named, record))

    def _exchange_version(self, state: StepState, op: Op, record: OpRecord) -> None:
        """SEND_P of a copy, or of what was predicted for it; RECV_P beside the parameters, see `install`."""
        parameters = self._worker.replicas[op.stage].weights.parameters
        if op.kind is Kind.SEND_P:
            predicted = state.predicted.pop(op.stage, None)
            named = self._exchanged(op, parameters if predicted is None else predicted)
            if predicted is None:
                named = {name: tensor.clone() for name, tensor in named.items()}
            self._worker.leave(state, self._exchange(op, named, record))
            return
        incoming = state.incoming.get(op.stage)
        if incoming is None:  # else no forward uses what was expected before: this comes after it, in its place
            named = {name: torch.empty_like(tensor) for name, tensor in self._exchanged(op, parameters).items()}
            incoming = state.incoming[op.stage] = Incoming(named)
        incoming.positions.append(state.position)
        incoming.transfers.append(self._exchange(op, incoming.tensors, record))

    def install(self, state: StepState, stage: int) -> None:
        """Puts what has been received of a stage's parameters in their place; before its next forward."""
        worker = self._worker
        incoming = state.incoming.pop(stage, None)
        if incoming is None:
            return
        for position, transfer in zip(incoming.positions, incoming.transfers, strict=True):
            worker.finish(state, transfer)
            state.versions[stage].replace(keep=position in worker.course.replaced)
        with torch.no_grad():
            for name, value in incoming.tensors.items():
                worker.replicas[stage].weights.parameters[name].copy_(value)

    def _exchanged(self, op: Op, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that are trained and the receiver does not step itself, each once, in the order that both ends have."""
        worker = self._worker
        target, model = op.peer if op.kind is Kind.SEND_P else worker.transport.rank, worker.blueprint.model
        skipped = own_copies(worker.blueprint.plan, model, op.stage, target) | repeated(model, parameters)
        skipped |= worker.replicas[op.stage].weights.frozen
        return by_name({name: tensor for name, tensor in parameters.items() if name not in skipped})

    def _exchange(self, op: Op, named: Mapping[str, Tensor], record: OpRecord) -> Transfer:
        worker = self._worker
        sends = op.kind is Kind.SEND_P
        post = worker.transport.post_send if sends else worker.transport.post_receive
        first, tensors = worker.to.parameter_tag(op.stage), list(named.values())
        handles = [post(tensor, op.peer, first + number) for number, tensor in enumerate(tensors)]
        return Transfer(tensors, handles, record, receives=not sends)
