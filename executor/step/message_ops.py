"""Activations and gradients between devices, sums of gradients, and parameters put together from replicas' parts.

RECV_* allocates and posts, SEND_* posts, REDUCE, TIE and GATHER launch. Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...planner.plan import Kind, Op
from ..place import OpRecord
from .step_state import StepState, Transfer
from .worker import Handler, Worker


class MessageOps:
    """What a rank's list posts between stages and between copies of a stage."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.handlers: Mapping[Kind, Handler] = {
            Kind.SEND_F: self._send,
            Kind.SEND_B: self._send,
            Kind.RECV_F: self._receive,
            Kind.RECV_B: self._receive,
            Kind.REDUCE: self._reduce,
            Kind.TIE: self._reduce,
            Kind.GATHER: self._gather,
        }

    def _receive(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker, back = self._worker, op.kind is Kind.RECV_B
        producer, consumer = (op.stage, op.peer) if back else (op.peer, op.stage)
        values = worker.passing.edge(producer, consumer, gradients=back)
        buffers = worker.buffers(state, consumer, op.micro_batch, values)
        device, tag = worker.to.device(op), worker.to.tag(op, op.peer, op.stage)
        handles = [worker.transport.post_receive(buffer, device, tag + k) for k, buffer in enumerate(buffers)]
        transfer = Transfer(buffers, handles, record, receives=True)
        state.received[op.kind, op.stage, op.micro_batch, op.peer] = transfer

    def _send(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        if op.kind is Kind.SEND_F:
            tensors = state.activations.pop((op.stage, op.peer, op.micro_batch))
        else:
            tensors = state.gradients.pop((op.peer, op.stage, op.micro_batch))
        tensors = [tensor.contiguous() for tensor in tensors]
        device, tag = worker.to.device(op), worker.to.tag(op, op.stage, op.peer)
        handles = [worker.transport.post_send(tensor, device, tag + k) for k, tensor in enumerate(tensors)]
        worker.leave(state, Transfer(tensors, handles, record))

    def _reduce(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica, transport = self._worker.replicas[op.stage], self._worker.transport
        group, tensors = replica.sums(op)
        if group is not None:
            shared = {id(tensor) for tensor in replica.shared}
            handles = [
                (transport.reduce_scatter if id(tensor) in shared else transport.all_reduce)(tensor, group)
                for tensor in tensors
            ]
            state.reductions[op.collective] = Transfer([], handles, record)
            record.moved_bytes = sum(tensor.nbytes for tensor in tensors)

    def _gather(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._worker.replicas[op.stage]
        assert replica.group is not None, "only replicas gather"
        handles = [self._worker.transport.all_gather(tensor, replica.group) for tensor in replica.gathered]
        state.reductions[op.collective] = Transfer([], handles, record)
        record.moved_bytes = sum(tensor.nbytes for tensor in replica.gathered)
