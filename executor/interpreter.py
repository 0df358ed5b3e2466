"""Runs one rank's op list. Nothing is decided here: the list says what happens, in which order.

RECV_* allocates and posts, SEND_* posts, OFFLOAD and FETCH are handed to threads that copy, REDUCE and TIE launch; none
of them blocks. F, B, I, W, R and STEP wait for their inputs only, FREE for its stash to have left, and each for
what the forecast has completed by then (see `waits`): so memory is bounded as planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..models import derive_seed
from ..planner.operations import RECOMPUTE
from ..planner.plan import IN_LINE, Kind, Op, Plan
from .addresses import Addresses
from .agreement import agree
from .deferral import deferred
from .errors import Aborted, ExecutionError, failed_op
from .mini_batch import MiniBatch
from .observe import Observer
from .place import CPU, Place
from .replica import Blueprint, StageReplica
from .stashes import Layouts, Stashes
from .step_state import Key, OpRecord, StepRecord, StepState, Transfer
from .ties import own_copies
from .transport import Transport
from .update import Update
from .waits import Waits

Clock = Callable[[], float]


class Interpreter:
    """One rank.

    Args:
        replicas: the stages this rank holds.
        waits: what the ops of its list wait for, beyond their inputs.
        track: told about every tensor that another thread of the rank allocates on its device.
        observer: told about every op and every wait.
        place: where the rank computes.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        transport: Transport,
        replicas: Mapping[int, StageReplica],
        waits: Waits,
        clock: Clock = time.perf_counter,
        track: Callable[[Tensor], None] = lambda _: None,
        observer: Observer | None = None,
        place: Place = CPU,
    ) -> None:
        self.blueprint = blueprint
        self.plan: Plan = blueprint.plan
        self.transport = transport
        self.replicas = replicas
        self.update = Update(self.plan, blueprint.training, transport, replicas, place.device)
        self._order, self._waits = self.plan.orders[transport.rank], waits
        self._listed: Sequence[int] = range(len(self._order))
        self._agreement = -1
        if blueprint.training.agrees:
            self._order, self._waits, self._agreement, self._listed = deferred(self._order, waits)
        self._observer = Observer(self.plan.orders[transport.rank]) if observer is None else observer
        self._clock = clock
        self._place = place
        self._last = len(self.plan.stages) - 1
        self._pipeline_of = {m: k for k, p in enumerate(self.plan.pipelines) for m in p.micro_batches}
        self._apart = {s for p in self.plan.pipelines for s, d in enumerate(p.forward) if d != p.backward[s]}
        self._scale = 1.0 / self.plan.problem.workload.micro_batches
        self._replicas = {n: {s: r.of_size(n) for s, r in replicas.items()} for n in blueprint.sizes}
        agreed = {n: agree(transport, own) for n, own in self._replicas.items()}
        self._to = Addresses(self.plan, agreed.values())
        layouts = {n: Layouts.of(own, agreed[n]) for n, own in self._replicas.items()}
        self._stashes = Stashes(transport, layouts, self._to.stash_tag, track, place, self._finish)
        self._handlers: dict[Kind, Callable[[StepState, Op, OpRecord], None]] = {
            Kind.F: self._forward, Kind.B: self._backward, Kind.I: self._backward_input, Kind.W: self._backward_weight,
            Kind.R: self._remake, Kind.STEP: self._step, Kind.REDUCE: self._reduce, Kind.TIE: self._reduce,
            Kind.SEND_F: self._send, Kind.RECV_F: self._receive, Kind.SEND_B: self._send, Kind.RECV_B: self._receive,
            Kind.OFFLOAD: self._offload, Kind.FETCH: self._fetch, Kind.FREE: self._free,
            Kind.SEND_S: self._send_stash, Kind.RECV_S: self._receive_stash,
            Kind.SEND_P: self._exchange_parameters, Kind.RECV_P: self._exchange_parameters,
        }  # fmt: skip

    def close(self) -> None:
        """Ends the threads that copy."""
        self._stashes.close()

    def run_step(self, step: int) -> StepRecord:
        """One optimizer step; raises ExecutionError naming rank, stage, op and micro-batch."""
        for replica in self.replicas.values():
            replica.weights.zero_gradients()
            if replica.statistics is not None:
                replica.statistics.reset()
        self._stashes.reset()
        self._observer.step(step)
        self.update.begin()
        self.transport.barrier()
        state = StepState(step, self._place.times(self._clock), self._mini_batch(step))
        for place, op in enumerate(self._order):
            self._observer.begin(self._listed[place])
            try:
                if place == self._agreement:
                    self._agree(state)
                if op.kind in IN_LINE:
                    self._start_fetches(state, place)
                if op.kind is not Kind.FETCH:
                    self._complete(state, self._waits.left[place])
                self._run(state, place)
            except (Aborted, KeyboardInterrupt):
                raise
            except Exception as error:
                raise self._failure(step, op, error) from error
            self._observer.end(state.records[place])
        if self._agreement == len(self._order):  # it steps nothing, but the others wait for its word
            self._agree(state)
        self._complete(state, tuple(state.leaving))
        self._exchange_statistics(state)
        self._stashes.settle()
        self._place.synchronize()
        state.times.resolve()
        seconds = max((r.end_s for r in state.records), default=0.0)
        listed = sorted(range(len(self._order)), key=self._listed.__getitem__)
        records = [state.records[place] for place in listed]
        return StepRecord(seconds, self._place.read_losses(state.losses), records)

    def _mini_batch(self, step: int) -> MiniBatch:
        return self.blueprint.mini_batches.of(step)

    def _replica(self, state: StepState, stage: int, micro_batch: int) -> StageReplica:
        """The rank's copy of a stage as it runs this micro-batch."""
        return self._replicas[state.mini_batch.size(micro_batch)][stage]

    def _buffer(self, state: StepState, stage: int, micro_batch: int) -> Tensor:
        """Memory for the input of a stage or its gradient."""
        return self.blueprint.shape(stage, state.mini_batch.size(micro_batch)).empty(self._place.device)

    def _agree(self, state: StepState) -> None:
        for reduction in state.reductions.values():
            self._finish(state, reduction)
        self.update.agree()

    def _run(self, state: StepState, place: int) -> None:
        op = self._order[place]
        record = state.times.open(op)
        state.records.append(record)  # now as long as the list is up to `place`
        self._handlers[op.kind](state, op, record)

    def _failure(self, step: int, op: Op, error: Exception) -> ExecutionError:
        return failed_op(self.transport.rank, step, op, error)

    # ------------------------------------------------------------ compute

    def _forward(self, state: StepState, op: Op, record: OpRecord) -> None:
        stage, m = op.stage, op.micro_batch
        replica = self._replica(state, stage, m)
        remade = self.plan.stash[self._pipeline_of[m]][stage] == RECOMPUTE
        x, target = self._inputs(state, stage, m)
        seed, statistics = derive_seed(self.blueprint.seed, state.step, m), replica.statistics
        buffers = replica.weights.buffers if statistics is None else statistics.for_forward(m)
        self._begin(state, record)
        if remade:
            output = replica.program.forward_only(replica.weights.parameters, buffers, x, target, seed)
            state.inputs[stage, m] = x
        else:
            output, stash = replica.program.forward(replica.weights.parameters, buffers, x, target, seed)
            state.stashes[stage, m] = stash
        state.times.end(record)
        if statistics is not None:
            statistics.check_untouched()
        if stage == self._last:
            state.losses[m] = self._place.keep_loss(output)
        else:
            state.activations[stage, m] = output

    def _inputs(self, state: StepState, stage: int, m: int) -> tuple[Tensor, Tensor | None]:
        if stage in (0, self._last):
            inputs, targets = self._batch(state, m)
        target = self._place.bring(targets) if stage == self._last else None
        if stage == 0:
            return self._place.bring(inputs), target
        return self._arrived(state, Kind.RECV_F, stage, m, state.activations, stage - 1), target

    def _batch(self, state: StepState, m: int) -> tuple[Tensor, Tensor]:
        return self.blueprint.batch(state.step, m, state.mini_batch.size(m))

    def _remake(self, state: StepState, op: Op, record: OpRecord) -> None:
        stage, m = op.stage, op.micro_batch
        replica = self._replica(state, stage, m)
        arriving = state.received.pop((Kind.RECV_S, stage, m), None)
        if arriving is None:
            x = state.inputs.pop((stage, m))
        else:
            self._finish(state, arriving)
            x = arriving.tensors.pop()
            del arriving
        target = self._place.bring(self._batch(state, m)[1]) if stage == self._last else None
        seed = derive_seed(self.blueprint.seed, state.step, m)
        self._begin(state, record)
        weights = replica.weights
        state.stashes[stage, m] = replica.program.remake(weights.parameters, weights.buffers, x, target, seed)
        state.times.end(record)

    def _backward(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._replica(state, op.stage, op.micro_batch)
        gradient = self._incoming_gradient(state, op)
        stash = self._stashes.take(state, op.stage, op.micro_batch)
        self._begin(state, record)
        result = replica.program.backward(stash, replica.weights.parameters, gradient, replica.weights.accumulators)
        state.times.end(record)
        self._hand_back(state, op, result)

    def _backward_input(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._replica(state, op.stage, op.micro_batch)
        gradient = self._incoming_gradient(state, op)
        stash = self._stashes.take(state, op.stage, op.micro_batch)
        self._begin(state, record)
        result, weight_stash = replica.program.backward_input(stash, replica.weights.parameters, gradient)
        state.times.end(record)
        state.weight_stashes[op.stage, op.micro_batch] = weight_stash
        self._hand_back(state, op, result)

    def _backward_weight(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._replica(state, op.stage, op.micro_batch)
        self._begin(state, record)
        weight_stash = state.weight_stashes.pop((op.stage, op.micro_batch))
        replica.program.backward_weight(weight_stash, replica.weights.accumulators)
        state.times.end(record)

    def _incoming_gradient(self, state: StepState, op: Op) -> Tensor:
        if op.stage == self._last:
            dtype = self.replicas[op.stage].program.output_spec.dtype
            scale = self._scale * state.mini_batch.weight(op.micro_batch)
            return torch.full((), scale * self.update.scaler.scale, dtype=dtype, device=self._place.device)
        return self._arrived(state, Kind.RECV_B, op.stage, op.micro_batch, state.gradients, op.stage)

    def _hand_back(self, state: StepState, op: Op, result: Tensor | None) -> None:
        stage, m = op.stage, op.micro_batch
        if stage > 0:
            state.gradients[stage - 1, m] = self._buffer(state, stage, m).zero_() if result is None else result

    def _step(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self.replicas[op.stage]
        for collective in replica.awaited:
            self._finish(state, state.reductions.get(collective))
        self._begin(state, record)
        self.update.apply(replica, state.step)
        if replica.statistics is not None and op.stage not in self._apart:
            replica.statistics.apply()
        state.times.end(record)

    def _exchange_statistics(self, state: StepState) -> None:
        """At the end of a step: statistics of stages that some micro-batches run on two devices."""
        for stage in sorted(self.replicas.keys() & self._apart):
            replica = self.replicas[stage]
            if replica.statistics is not None:
                if replica.statistics_group is not None:
                    handles = [self.transport.all_reduce(rows, replica.statistics_group) for rows in replica.rows]
                    self._finish(state, Transfer([], handles, None))
                replica.statistics.apply()

    # ------------------------------------------------------------ messages

    def _receive(self, state: StepState, op: Op, record: OpRecord) -> None:
        buffer = self._buffer(state, op.stage if op.kind is Kind.RECV_F else op.peer, op.micro_batch)
        handle = self.transport.post_receive(buffer, self._to.device(op), self._to.tag(op, op.peer, op.stage))
        state.received[op.kind, op.stage, op.micro_batch] = Transfer([buffer], [handle], record, receives=True)

    def _send(self, state: StepState, op: Op, record: OpRecord) -> None:
        kept, stage = (state.activations, op.stage) if op.kind is Kind.SEND_F else (state.gradients, op.peer)
        tensor = kept.pop((stage, op.micro_batch)).contiguous()
        handle = self.transport.post_send(tensor, self._to.device(op), self._to.tag(op, op.stage, op.peer))
        self._leave(state, Transfer([tensor], [handle], record))

    def _arrived(
        self,
        state: StepState,
        kind: Kind,
        stage: int,
        m: int,
        local: dict[Key, Tensor],
        producer: int,
    ) -> Tensor:
        """A tensor from another device, waited for, or one that this device computed itself."""
        arriving = state.received.pop((kind, stage, m), None)
        if arriving is None:
            return local.pop((producer, m))
        self._finish(state, arriving)
        return arriving.tensors[0]

    def _reduce(self, state: StepState, op: Op, record: OpRecord) -> None:
        group, tensors = self.replicas[op.stage].sums(op)
        if group is not None:
            handles = [self.transport.all_reduce(tensor, group) for tensor in tensors]
            state.reductions[op.collective] = Transfer([], handles, record)
            record.moved_bytes = sum(tensor.nbytes for tensor in tensors)

    def _leave(self, state: StepState, transfer: Transfer) -> None:
        state.leaving[len(state.records) - 1] = transfer

    def _complete(self, state: StepState, places: Sequence[int]) -> None:
        """Waits for what left at these places of the list, and lets go of what is complete anyway."""
        for place in places:
            self._finish(state, state.leaving.pop(place, None))
        for place in [place for place, transfer in state.leaving.items() if transfer.done()]:
            self._finish(state, state.leaving.pop(place))

    # ------------------------------------------------------------ stashes that move

    def _offload(self, state: StepState, op: Op, record: OpRecord) -> None:
        home, back = self._to.devices(op)
        transfer = self._stashes.offload(state, op, record, None if home == back else back)
        state.departed[op.stage, op.micro_batch] = transfer
        self._leave(state, transfer)

    def _fetch(self, state: StepState, op: Op, record: OpRecord) -> None:
        """Starts at its place or, where the forecast has it wait in line, after the op that it waits for."""
        place = len(state.records) - 1
        listed = [state.leaving[k] for k in state.leaving if self._order[k].kind in (Kind.OFFLOAD, Kind.SEND_S)]
        gate = self._waits.starts[place]
        home, back = self._to.devices(op)
        if home == back:
            arrived = state.departed[op.stage, op.micro_batch]
        else:
            arrived = self._stashes.expect_host_copy(state, op, home)

        def start() -> None:
            left = [state.leaving[k] for k in self._waits.left[place] if k in state.leaving]
            self._stashes.fetch(state, op, record, list(dict.fromkeys([*left, *listed])), arrived)

        if gate < place:
            start()
        else:
            state.waiting.append((gate, start))

    def _start_fetches(self, state: StepState, place: int) -> None:
        while state.waiting and state.waiting[0][0] < place:
            state.waiting.pop(0)[1]()

    def _free(self, state: StepState, op: Op, record: OpRecord) -> None:
        self._finish(state, state.departed[op.stage, op.micro_batch])
        state.times.end(record)

    def _send_stash(self, state: StepState, op: Op, record: OpRecord) -> None:
        home, _ = self._to.devices(op)
        key = (op.stage, op.micro_batch)
        if home != self.transport.rank:
            self._leave(state, self._stashes.send_back(state, op, record))
            return
        if key in state.inputs:
            kept = [state.inputs.pop(key).contiguous()]
            handle = self.transport.post_send(kept[0], op.peer, self._to.stash_tag(op, 0))
            transfer = Transfer(kept, [handle], record)
        else:
            transfer = self._stashes.send(state, op, record)
        state.departed[key] = transfer
        self._leave(state, transfer)

    def _receive_stash(self, state: StepState, op: Op, record: OpRecord) -> None:
        home, back = self._to.devices(op)
        policy = self.plan.stash[self._pipeline_of[op.micro_batch]][op.stage]
        if home == back:
            self._stashes.receive(state, op, record, home)
        elif policy == RECOMPUTE:
            buffer = self._buffer(state, op.stage, op.micro_batch)
            handle = self.transport.post_receive(buffer, op.peer, self._to.stash_tag(op, 0))
            state.received[Kind.RECV_S, op.stage, op.micro_batch] = Transfer([buffer], [handle], record, receives=True)
        else:
            self._stashes.receive_for_good(state, op, record)

    def _exchange_parameters(self, state: StepState, op: Op, record: OpRecord) -> None:
        """From the parameters into the parameters, in place: SEND_P or RECV_P."""
        sends = op.kind is Kind.SEND_P
        skipped = own_copies(self.plan, self.blueprint.model, op.stage, op.peer if sends else self.transport.rank)
        parameters = self.replicas[op.stage].weights.parameters
        tensors = [tensor for name, tensor in parameters.items() if name not in skipped]
        post = self.transport.post_send if sends else self.transport.post_receive
        first = self._to.parameter_tag(op.stage)
        handles = [post(tensor, op.peer, first + number) for number, tensor in enumerate(tensors)]
        self._leave(state, Transfer(tensors, handles, record))

    # ------------------------------------------------------------ records

    def _begin(self, state: StepState, record: OpRecord) -> None:
        self._observer.started()
        state.times.begin(record)

    def _finish(self, state: StepState, transfer: Transfer | None) -> None:
        if transfer is not None:
            self._observer.wait(transfer.op)
            transfer.finish(state.times.end)
            self._observer.resume()
