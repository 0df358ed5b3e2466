"""Runs one rank's op list. Nothing is decided here: the list says what happens, in which order.

RECV_* allocates and posts, SEND_* posts, REDUCE launches; none of them blocks. F, B and STEP wait for their
inputs only, and for the sends that the forecast has completed by then: so memory is bounded as planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..models import derive_seed
from ..planner.plan import Kind, Op, Plan
from .errors import Aborted, ExecutionError
from .program import Stash
from .replica import Blueprint, StageReplica
from .transport import Handle, Transport

Clock = Callable[[], float]


@dataclass
class OpRecord:
    """When an op ran, in seconds since the step's start; messages end when they are known to be complete."""

    op: Op
    start_s: float
    end_s: float


@dataclass
class StepRecord:
    """One step of one rank: seconds from the common start to its last op's end, losses by micro-batch."""

    seconds: float
    losses: dict[int, float]
    ops: list[OpRecord]


@dataclass
class _Posted:
    """A message or a reduction under way, with the tensor it must not lose."""

    tensor: Tensor | None
    handles: list[Handle]
    record: OpRecord


@dataclass
class _StepState:
    """What lives within one step, by (stage, micro-batch)."""

    step: int
    began_s: float
    received: dict[tuple[Kind, int, int], _Posted] = field(default_factory=dict)
    activations: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    gradients: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    stashes: dict[tuple[int, int], Stash] = field(default_factory=dict)
    sends: dict[int, _Posted] = field(default_factory=dict)
    reductions: dict[int, _Posted] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    records: list[OpRecord] = field(default_factory=list)


class Interpreter:
    """One rank.

    Args:
        replicas: the stages this rank holds.
        deadlines: for every op of the list, the places in it of the sends to wait for before the op starts.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        transport: Transport,
        replicas: Mapping[int, StageReplica],
        deadlines: Sequence[Sequence[int]],
        clock: Clock = time.perf_counter,
    ) -> None:
        self.blueprint = blueprint
        self.plan: Plan = blueprint.plan
        self.transport = transport
        self.replicas = replicas
        self._order = self.plan.orders[transport.rank]
        self._deadlines = deadlines
        self._clock = clock
        self._last = len(self.plan.stages) - 1
        self._pipeline_of = {m: p for p in self.plan.pipelines for m in p.micro_batches}
        self._scale = 1.0 / self.plan.problem.workload.micro_batches
        self._handlers: dict[Kind, Callable[[_StepState, Op, OpRecord], None]] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.SEND_F: self._send,
            Kind.SEND_B: self._send,
            Kind.RECV_F: self._receive,
            Kind.RECV_B: self._receive,
            Kind.REDUCE: self._reduce,
            Kind.STEP: self._step,
        }

    def run_step(self, step: int) -> StepRecord:
        """One optimizer step; raises ExecutionError naming rank, stage, op and micro-batch."""
        for replica in self.replicas.values():
            replica.weights.zero_gradients()
            if replica.statistics is not None:
                replica.statistics.reset()
        self.transport.barrier()
        state = _StepState(step, self._clock())
        for place, op in enumerate(self._order):
            try:
                self._complete_sends(state, self._deadlines[place])
                self._run(state, place)
            except (Aborted, KeyboardInterrupt):
                raise
            except Exception as error:
                raise self._failure(step, op, error) from error
        seconds = self._clock() - state.began_s
        self._complete_sends(state, tuple(state.sends))
        return StepRecord(seconds, state.losses, state.records)

    def _run(self, state: _StepState, place: int) -> None:
        op, now = self._order[place], self._clock() - state.began_s
        record = OpRecord(op, now, now)
        state.records.append(record)  # now as long as the list is up to `place`
        self._handlers[op.kind](state, op, record)

    def _failure(self, step: int, op: Op, error: Exception) -> ExecutionError:
        of = f", micro-batch {op.micro_batch}" if op.micro_batch >= 0 else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return ExecutionError(
            f"rank {self.transport.rank}, stage {op.stage}, op {op}{of}, step {step}: {type(error).__name__}: {reason}"
        )

    # ------------------------------------------------------------ compute

    def _forward(self, state: _StepState, op: Op, record: OpRecord) -> None:
        stage, m = op.stage, op.micro_batch
        replica = self.replicas[stage]
        x, target = self._inputs(state, stage, m)
        seed = derive_seed(self.blueprint.seed, state.step, m)
        statistics = replica.statistics
        buffers = replica.weights.buffers if statistics is None else statistics.for_forward(m)
        self._begin(state, record)
        output, stash = replica.program.forward(replica.weights.parameters, buffers, x, target, seed)
        self._end(state, record)
        if statistics is not None:
            statistics.check_untouched()
        state.stashes[stage, m] = stash
        if stage == self._last:
            state.losses[m] = output.item()
        else:
            state.activations[stage, m] = output

    def _inputs(self, state: _StepState, stage: int, m: int) -> tuple[Tensor, Tensor | None]:
        if stage in (0, self._last):
            inputs, targets = self.blueprint.batch(state.step, m)
        target = targets if stage == self._last else None
        if stage == 0:
            return inputs, target
        return self._arrived(state, Kind.RECV_F, stage, m, state.activations, stage - 1), target

    def _backward(self, state: _StepState, op: Op, record: OpRecord) -> None:
        stage, m = op.stage, op.micro_batch
        replica = self.replicas[stage]
        if stage == self._last:
            gradient = torch.tensor(self._scale, dtype=replica.program.output_spec.dtype)
        else:
            gradient = self._arrived(state, Kind.RECV_B, stage, m, state.gradients, stage)
        self._begin(state, record)
        stash = state.stashes.pop((stage, m))
        result = replica.program.backward(stash, replica.weights.parameters, gradient, replica.weights.accumulators)
        self._end(state, record)
        if stage > 0:
            if result is None:
                result = self.blueprint.shapes[stage].empty().zero_()
            state.gradients[stage - 1, m] = result

    def _step(self, state: _StepState, op: Op, record: OpRecord) -> None:
        replica = self.replicas[op.stage]
        reduction = state.reductions.pop(op.stage, None)
        if reduction is not None:
            self._finish(state, reduction)
        self._begin(state, record)
        replica.weights.step()
        if replica.statistics is not None:
            replica.statistics.apply()
        self._end(state, record)

    # ------------------------------------------------------------ messages

    def _receive(self, state: _StepState, op: Op, record: OpRecord) -> None:
        shape = self.blueprint.shapes[op.stage if op.kind is Kind.RECV_F else op.peer]
        buffer = shape.empty()
        handle = self.transport.post_receive(buffer, self._device(op), self._tag(op, op.peer, op.stage))
        state.received[op.kind, op.stage, op.micro_batch] = _Posted(buffer, [handle], record)

    def _send(self, state: _StepState, op: Op, record: OpRecord) -> None:
        if op.kind is Kind.SEND_F:
            tensor = state.activations.pop((op.stage, op.micro_batch))
        else:
            tensor = state.gradients.pop((op.peer, op.micro_batch))
        tensor = tensor.contiguous()
        handle = self.transport.post_send(tensor, self._device(op), self._tag(op, op.stage, op.peer))
        state.sends[len(state.records) - 1] = _Posted(tensor, [handle], record)

    def _device(self, op: Op) -> int:
        """The device at the other end of a message."""
        return self._pipeline_of[op.micro_batch].forward[op.peer]

    def _tag(self, op: Op, source: int, target: int) -> int:
        """A number for the message within the step; the same at both ends."""
        stages = len(self.plan.stages)
        return (source * stages + target) * self.plan.problem.workload.micro_batches + op.micro_batch

    def _arrived(
        self,
        state: _StepState,
        kind: Kind,
        stage: int,
        m: int,
        local: dict[tuple[int, int], Tensor],
        producer: int,
    ) -> Tensor:
        """A tensor from another device, waited for, or one that this device computed itself."""
        posted = state.received.pop((kind, stage, m), None)
        if posted is None:
            return local.pop((producer, m))
        self._finish(state, posted)
        assert posted.tensor is not None
        return posted.tensor

    def _reduce(self, state: _StepState, op: Op, record: OpRecord) -> None:
        replica = self.replicas[op.stage]
        if replica.group is not None:
            handles = [self.transport.all_reduce(tensor, replica.group) for tensor in replica.reduced]
            state.reductions[op.stage] = _Posted(None, handles, record)

    def _complete_sends(self, state: _StepState, places: Sequence[int]) -> None:
        """Waits for the sends at these places of the list, and lets go of those that are complete anyway."""
        for place in places:
            self._finish(state, state.sends.pop(place, None))
        for place in [p for p, posted in state.sends.items() if all(h.done() for h in posted.handles)]:
            self._finish(state, state.sends.pop(place))

    # ------------------------------------------------------------ records

    def _begin(self, state: _StepState, record: OpRecord) -> None:
        record.start_s = self._clock() - state.began_s

    def _end(self, state: _StepState, record: OpRecord) -> None:
        record.end_s = self._clock() - state.began_s

    def _finish(self, state: _StepState, posted: _Posted | None) -> None:
        if posted is None:
            return
        for handle in posted.handles:
            handle.wait()
        self._end(state, posted.record)
