"""Runs one rank's op list. Nothing is decided here: the list says what happens, in which order.

What is posted is in `posting`; none of it blocks. F, B, I, W, R, PREDICT and STEP wait for their inputs only, FREE for
its stash to have left, and each for what the forecast has completed by then (see `waits`): so memory is bounded as
planned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from ...models import derive_seed
from ...planner.graph import asynchronous, update_size
from ...planner.plan import IN_LINE, Kind, Op
from ...planner.problem import WEIGHT_POLICIES
from ..basics import Aborted, ExecutionError, failed_op
from ..place import CPU, OpRecord, Place
from ..state import Addresses, Blueprint, MiniBatches, Predictor, StageReplica, StageVersions, agree, in_place_of
from ..wires import Transport
from .course import Course
from .finite import Guard, NotFinite
from .observe import Observer
from .posting import Posting
from .stashes import Layouts, Stashes
from .step_state import StepRecord, StepState, Transfer
from .update import Update

Clock = Callable[[], float]
Load = Callable[[Callable[[], Tensor]], Tensor]
"""Runs what reads the data set."""


def at_once(make: Callable[[], Tensor]) -> Tensor:
    """Without looking at its memory."""
    return make()


class Interpreter(Posting):
    """One rank.

    Args:
        replicas: the stages this rank holds.
        track: told about every tensor that another thread of the rank allocates on its device.
        observer: told about every op and every wait.
        place: where the rank computes.
        load: what the data set's code is run by.
        hosted: told about every stash that is in the host's memory.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        transport: Transport,
        replicas: Mapping[int, StageReplica],
        clock: Clock = time.perf_counter,
        track: Callable[[Tensor], None] = lambda _: None,
        observer: Observer | None = None,
        place: Place = CPU,
        load: Load = at_once,
        hosted: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        self.blueprint = blueprint
        self.transport = transport
        self.replicas = replicas
        plan = blueprint.plan
        self.update = Update(plan, blueprint.training, transport, replicas, place.device)
        weights = {stage: replica.weights for stage, replica in replicas.items() if replica.owner}
        self._guard = Guard(blueprint.training, weights, blueprint.layer_names, place.queues)
        self._observer = Observer() if observer is None else observer
        self._clock = clock
        self._place = place
        self._load = load
        self._last = len(plan.stages) - 1
        self._apart = {s for p in plan.pipelines for s, d in enumerate(p.forward) if d != p.backward[s]}
        self._scale = 1.0 / update_size(plan)
        policy = WEIGHT_POLICIES[plan.weights]
        self._predictor = Predictor(
            plan.problem.workload.optimizer, blueprint.training, policy.momentum_first, policy.smoothed
        )
        self._replicas = {n: {s: r.of_size(n) for s, r in replicas.items()} for n in blueprint.sizes}
        self._agreed = {n: agree(transport, own) for n, own in self._replicas.items()}
        layouts = {n: Layouts.of(own, self._agreed[n]) for n, own in self._replicas.items()}
        self._stashes = Stashes(
            transport, layouts, lambda op, k: self._to.stash_tag(op, k), track, place, self._finish, hosted
        )
        self._handlers: dict[Kind, Callable[[StepState, Op, OpRecord], None]] = {
            Kind.F: self._forward, Kind.B: self._backward, Kind.I: self._backward_input, Kind.W: self._backward_weight,
            Kind.R: self._remake, Kind.STEP: self._step, Kind.REDUCE: self._reduce, Kind.TIE: self._reduce,
            Kind.SEND_F: self._send, Kind.RECV_F: self._receive, Kind.SEND_B: self._send, Kind.RECV_B: self._receive,
            Kind.OFFLOAD: self._offload, Kind.FETCH: self._fetch, Kind.FREE: self._free,
            Kind.SEND_S: self._send_stash, Kind.RECV_S: self._receive_stash, Kind.PREDICT: self._predict,
            Kind.SEND_P: self._exchange_parameters, Kind.RECV_P: self._exchange_parameters,
        }  # fmt: skip

    def close(self) -> None:
        """Ends the threads that copy."""
        self._stashes.close()

    def _follow(self, course: Course) -> None:
        """Another list from now on."""
        self._course = course
        self._to = Addresses(course.plan, self._agreed.values())
        self._observer.follow(course.plan, self.transport.rank)

    def run(self, course: Course, first: int) -> Iterator[StepRecord]:
        """Runs the list once: a step, or several updates, of which `first` is the number. Yields each when it is done.

        The record of the last one comes at the end of the run, and has the records of all ops, if they are kept.

        Raises ExecutionError naming rank, stage, op and micro-batch.
        """
        if course is not getattr(self, "_course", None):
            self._follow(course)
        for replica in self.replicas.values():
            replica.weights.zero_gradients()
            replica.weights.forget_gradients()
            if replica.statistics is not None:
                replica.statistics.reset()
        self._stashes.reset()
        self._observer.step(first)
        self.update.begin()
        self.transport.barrier()
        state = StepState(first, self._place.times(self._clock), self._mini_batches)
        if course.versions is not None:
            state.versions = {stage: StageVersions(replica.weights) for stage, replica in self.replicas.items()}
        lag = 1 if self._place.queues else 0
        for place, op in enumerate(course.order):
            self._run_op(state, place, op)
            yield from self._ended(state, lag)
        yield from self._ended(state, 0)
        yield self._finished(state)

    def _run_op(self, state: StepState, place: int, op: Op) -> None:
        course, step = self._course, state.step + self._course.update_of(op)
        state.place = place
        self._observer.begin(course.listed[place], step)
        try:
            if place == course.agreement:
                self._agree(state)
            if op.kind in IN_LINE:
                self._start_fetches(state, place)
            if op.kind is not Kind.FETCH:
                self._complete(state, course.waits.left[place])
            self._observer.admit()
            record = state.times.open(op)
            if course.recorded:
                state.records.append(record)
            self._handlers[op.kind](state, op, record)
            for stage, version in course.dropped.get(place, ()):
                state.versions[stage].drop(version)
            self._observer.end(record)
        except (Aborted, KeyboardInterrupt):
            raise
        except Exception as error:
            raise self._failure(step, op, error) from error

    def _ended(self, state: StepState, lag: int) -> Iterator[StepRecord]:
        """The updates but for the last that are done by now; but `lag` of them later: their work is only queued."""
        ends = self._course.ends
        while state.ended < len(ends) - 1 and ends[state.ended] <= state.place:
            state.marks.append(self._place.mark())
            state.ended += 1
        while len(state.marks) > lag:
            state.marks.pop(0).block()
            if not self._course.recorded:
                state.times.forget()
            yield StepRecord(state.times.now(), self._losses(state), [])

    def _losses(self, state: StepState) -> dict[int, float]:
        """Of the next update that has not been told, by its micro-batches."""
        size, first = self._course.update, state.told * self._course.update
        state.told += 1
        mine = {m - first: state.losses.pop(m) for m in range(first, first + size) if m in state.losses}
        found = self._place.read_losses(mine)
        for m, loss in found.items():
            try:
                self._guard.loss(loss)
            except NotFinite as error:
                raise self._failure(state.step + state.told - 1, Op(Kind.F, self._last, m), error) from None
        return found

    def _finished(self, state: StepState) -> StepRecord:
        """The end of the run."""
        order = self._course.order
        if self._course.agreement == len(order):  # it steps nothing, but the others wait for its word
            self._agree(state)
        self._complete(state, tuple(state.leaving))
        for stage in sorted(state.incoming):
            self._install(state, stage)
        self._exchange_statistics(state)
        self._stashes.settle()
        self._place.synchronize()
        self.update.end()
        for stage, error in self._guard.settled():
            raise self._failure(state.step, Op(Kind.STEP, stage), error)
        state.times.resolve()
        listed = self._course.listed
        records = [state.records[k] for k in sorted(range(len(state.records)), key=listed.__getitem__)]
        seconds = max((r.end_s for r in records), default=0.0) if self._course.recorded else state.times.now()
        return StepRecord(seconds, self._losses(state), records)

    def _agree(self, state: StepState) -> None:
        for reduction in state.reductions.values():
            self._finish(state, reduction)
        losses = self._place.read_losses(state.losses) if self.blueprint.training.skips else {}
        self.update.agree(all(map(math.isfinite, losses.values())))

    def _failure(self, step: int, op: Op, error: Exception) -> ExecutionError:
        return failed_op(self.transport.rank, step, op, error, asynchronous(self._course.plan))

    # ------------------------------------------------------------ compute

    @property
    def _mini_batches(self) -> MiniBatches:
        return self.blueprint.mini_batches

    def _target(self, state: StepState, m: int) -> Tensor:
        return self._place.bring(self._load(lambda: self.blueprint.targets(*state.batch(m), state.samples(m))))

    def _weights(self, state: StepState, op: Op) -> Mapping[str, Tensor]:
        """What a pass reads: predicted for it, or the version that the weight policy gives it."""
        predicted = state.predicted.get(op.stage)
        if predicted is not None:
            return predicted
        versions, weights = self._course.versions, self.replicas[op.stage].weights
        carried = state.carried.pop((op.stage, op.micro_batch), None)
        if carried is not None:
            return in_place_of(weights, carried)
        if versions is None:
            return weights.parameters
        of = versions.forward if op.kind is Kind.F else versions.backward
        return state.versions[op.stage].at(of[op.stage, op.micro_batch])

    def _predict(self, state: StepState, op: Op, record: OpRecord) -> None:
        """For the next pass of the stage."""
        weights = self.replicas[op.stage].weights
        rate = self.blueprint.training.rate(state.step + state.versions[op.stage].newest)
        self._begin(state, record)
        state.predicted[op.stage] = in_place_of(weights, self._predictor.predict(weights, rate, op.peer))
        state.times.end(record)

    def _forward(self, state: StepState, op: Op, record: OpRecord) -> None:
        stage, m = op.stage, op.micro_batch
        replica = self._replica(state, op)
        self._install(state, stage)  # first: what has come in makes room for the data
        x, target = self._inputs(state, stage, m)
        seed, statistics = derive_seed(self.blueprint.seed, *state.batch(m)), replica.statistics
        buffers = replica.weights.buffers if statistics is None else statistics.for_forward(m)
        weights = self._weights(state, op)
        self._begin(state, record)
        if self._stash_policy(op).remade:
            output = replica.program.forward_only(weights, buffers, x, target, seed)
            state.inputs[stage, m] = x
        else:
            output, stash = replica.program.forward(weights, buffers, x, target, seed)
            state.stashes[stage, m] = stash
        state.times.end(record)
        state.predicted.pop(stage, None)
        if statistics is not None:
            statistics.forwarded(m)
        if stage == self._last:
            state.losses[m] = loss = self._place.keep_loss(output)
            self._guard.loss(loss)
        else:
            state.activations[stage, m] = output

    def _inputs(self, state: StepState, stage: int, m: int) -> tuple[Tensor, Tensor | None]:
        target = self._target(state, m) if stage == self._last else None
        if stage == 0:
            inputs = self._load(lambda: self.blueprint.batch(*state.batch(m), state.samples(m))[0])
            return self._place.bring(inputs), target
        return self._arrived(state, Kind.RECV_F, stage, m, state.activations, stage - 1), target

    def _remake(self, state: StepState, op: Op, record: OpRecord) -> None:
        stage, m = op.stage, op.micro_batch
        replica = self._replica(state, op)
        arriving = state.received.pop((Kind.RECV_S, stage, m), None)
        if arriving is None:
            x = self._stashes.take_input(state, stage, m)
        else:
            self._finish(state, arriving)
            x = arriving.tensors.pop()
            del arriving
        target = self._target(state, m) if stage == self._last else None
        seed = derive_seed(self.blueprint.seed, *state.batch(m))
        weights = self._weights(state, op)
        self._begin(state, record)
        state.stashes[stage, m] = replica.program.remake(weights, replica.weights.buffers, x, target, seed)
        state.times.end(record)

    def _backward(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._replica(state, op)
        gradient = self._incoming_gradient(state, op)
        stash = self._stashes.take(state, op.stage, op.micro_batch)
        weights = self._weights(state, op)
        self._begin(state, record)
        result = replica.program.backward(stash, weights, gradient, replica.weights.accumulators)
        state.times.end(record)
        self._hand_back(state, op, result)

    def _backward_input(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._replica(state, op)
        gradient = self._incoming_gradient(state, op)
        stash = self._stashes.take(state, op.stage, op.micro_batch)
        weights = self._weights(state, op)
        self._begin(state, record)
        result, weight_stash = replica.program.backward_input(stash, weights, gradient)
        state.times.end(record)
        state.weight_stashes[op.stage, op.micro_batch] = weight_stash
        self._hand_back(state, op, result)

    def _backward_weight(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self._replica(state, op)
        self._begin(state, record)
        weight_stash = state.weight_stashes.pop((op.stage, op.micro_batch))
        replica.program.backward_weight(weight_stash, replica.weights.accumulators)
        state.times.end(record)
        if op.stage == 0:
            self._guard.handed_back(None)

    def _incoming_gradient(self, state: StepState, op: Op) -> Tensor:
        if op.stage == self._last:
            dtype = self.replicas[op.stage].program.output_spec.dtype
            scale = self._scale * state.weight(op.micro_batch) * self.update.scaler.scale
            return torch.full((), scale, dtype=dtype, device=self._place.device)
        return self._arrived(state, Kind.RECV_B, op.stage, op.micro_batch, state.gradients, op.stage)

    def _hand_back(self, state: StepState, op: Op, result: Tensor | None) -> None:
        state.predicted.pop(op.stage, None)
        state.departed.pop((op.stage, op.micro_batch), None)
        if op.stage > 0:
            if result is None:
                result = self._buffer(state, op.stage, op.micro_batch).zero_()
            self._guard.handed_back(result)
            state.gradients[op.stage - 1, op.micro_batch] = result
        elif op.kind is Kind.B:
            self._guard.handed_back(None)

    def _step(self, state: StepState, op: Op, record: OpRecord) -> None:
        replica = self.replicas[op.stage]
        for collective in replica.awaited(op):
            self._finish(state, state.reductions.get(collective))
        state.reductions.pop((Kind.REDUCE, op.stage, op.micro_batch), None)
        self._begin(state, record)
        self._guard.stepping(op.stage)
        versions = state.versions.get(op.stage)
        if versions is not None:
            versions.replace(keep=state.place in self._course.replaced)
        self.update.apply(replica, state.step + self._course.update_of(op))
        if versions is not None:
            replica.weights.zero_gradients()
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

    def _begin(self, state: StepState, record: OpRecord) -> None:
        self._observer.started()
        state.times.begin(record)
