"""One rank: what it holds, where it computes, and the list that it follows."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ...models.wiring import DATA, Carried, Value, carried, tensors_of
from ...planner.graph import StashPolicy, stash_policy
from ...planner.plan import Kind, Op
from ..place import CPU, OpRecord, Place
from ..state import Addresses, Blueprint, StageReplica, TensorShape, agree
from ..wires import Transport
from .course import Course
from .drawing import Drawing, Drawn, Wanted
from .observe import Observer
from .step_state import StepState, Transfer

Load = Callable[[Callable[[], Tensor]], Tensor]
"""Runs what reads the data set."""
Handler = Callable[[StepState, Op, OpRecord], None]
"""Does what an op of the list says, and writes into its record when it began and ended."""


def at_once(make: Callable[[], Tensor]) -> Tensor:
    """Without looking at its memory."""
    return make()


def unseen(_: Tensor) -> None:
    """Nobody counts it."""


@dataclass(frozen=True)
class Surroundings:
    """Where a rank computes, and who is told of it.

    Attributes:
        observer: told about every op and every wait.
        load: what the data set's code is run by.
        track: told about every tensor that another thread of the rank allocates on its device.
        hosted: told about every stash that is in the host's memory.
    """

    place: Place = CPU
    observer: Observer = field(default_factory=Observer)
    clock: Callable[[], float] = time.perf_counter
    load: Load = at_once
    track: Callable[[Tensor], None] = unseen
    hosted: Callable[[Tensor], None] = unseen


class Worker:
    """One rank, for all that its ops do. Collective: all ranks make one.

    Args:
        replicas: the stages this rank holds.

    Attributes:
        agreed: what ranks have agreed on, by the samples of a micro-batch.
        last: the model's last stage. passing: what stages hand each other.
        course, to: the list it follows, and where that list's messages go; see `follow`.
    """

    course: Course
    to: Addresses

    def __init__(
        self,
        blueprint: Blueprint,
        transport: Transport,
        replicas: Mapping[int, StageReplica],
        around: Surroundings | None = None,
    ) -> None:
        self.blueprint, self.transport, self.replicas = blueprint, transport, replicas
        self.around = around or Surroundings()
        self.place, self.observer = self.around.place, self.around.observer
        self.last, self.passing = len(blueprint.plan.stages) - 1, blueprint.passing
        self.resized = {n: {s: r.of_size(n) for s, r in replicas.items()} for n in blueprint.sizes}
        self._shapes: dict[tuple[int, int], Mapping[Value, TensorShape]] = {}
        self._drawing, self._readers = Drawing(blueprint, self.around.track), list[int]()
        self.agreed = {n: agree(transport, own) for n, own in self.resized.items()}

    def follow(self, course: Course) -> None:
        """This list from now on."""
        if course is getattr(self, "course", None):
            return
        self.course = course
        reads = [stage == self.last or self.passing.reads(stage) for stage in range(self.last + 1)]
        self._readers = [k for k, op in enumerate(course.order) if op.kind is Kind.F and reads[op.stage]]
        self.to = Addresses(course.plan, self.agreed.values(), self.passing.widest)
        self.observer.follow(course.plan, self.transport.rank)

    def clear(self) -> None:
        """Nothing is left of the run before."""
        for replica in self.replicas.values():
            replica.weights.zero_gradients()
            replica.weights.forget_gradients()
            if replica.statistics is not None:
                replica.statistics.reset()
        self._drawing.clear()

    def replica(self, state: StepState, op: Op) -> StageReplica:
        """The rank's copy of a stage as it runs the op's micro-batch."""
        return self.resized[state.samples(op.micro_batch)][op.stage]

    def buffers(self, state: StepState, stage: int, micro_batch: int, values: Iterable[Value]) -> list[Tensor]:
        """Memory for some of what a stage takes, or for the gradients of it."""
        key = stage, state.samples(micro_batch)
        shapes = self._shapes.get(key)
        if shapes is None:
            shapes = self._shapes[key] = self.blueprint.takes(*key)
        return [shapes[value].empty(self.place.device) for value in values]

    def stash_policy(self, op: Op) -> StashPolicy:
        """What becomes of the op's stash; raises PlanError: unknown."""
        return stash_policy(self.course.plan.stash[self.course.routes[op.micro_batch]][op.stage])

    def target(self, state: StepState, micro_batch: int) -> Tensor:
        """What the loss of a micro-batch compares with."""
        return self.place.bring(self.around.load(lambda: self._drawn(state, micro_batch, alone=True).targets))

    def _drawn(self, state: StepState, micro_batch: int, alone: bool) -> Drawn:
        """The samples of a micro-batch; with them maybe those that the list's next forwards read."""

        def following() -> Iterator[Wanted]:
            for k in range(bisect_right(self._readers, state.position), len(self._readers)):
                op = self.course.order[self._readers[k]]
                yield self._wanted(state, op.micro_batch, not self.passing.reads(op.stage))

        return self._drawing.take(self._wanted(state, micro_batch, alone), following())

    def _wanted(self, state: StepState, micro_batch: int, alone: bool) -> Wanted:
        return Wanted(*state.batch(micro_batch), state.samples(micro_batch), alone)

    def inputs(self, state: StepState, stage: int, micro_batch: int) -> tuple[Carried, Tensor | None]:
        """What a forward takes, waited for where it comes from another device, and the target on the last stage."""
        takes, drawn = self.passing.parts[stage].takes, list[Tensor]()
        found = self.read(state, micro_batch, takes, drawn)
        target = None
        if stage == self.last:  # what has been drawn with its inputs is not drawn again
            target = self.place.bring(self.around.load(drawn.pop)) if drawn else self.target(state, micro_batch)
        for producer in self.passing.producers(stage):
            tensors = self.arrived(state, Kind.RECV_F, stage, micro_batch, producer)
            if tensors is None:
                tensors = state.activations.pop((producer, stage, micro_batch))
            found |= zip(self.passing.edge(producer, stage), tensors, strict=True)
        return carried([found[value] for value in takes]), target

    def read(
        self, state: StepState, micro_batch: int, values: Iterable[Value], targets: list[Tensor] | None = None
    ) -> dict[Value, Tensor]:
        """Those of these that are the data's; if there are any, `targets` gets what the loss compares with."""
        wanted = [value for value in values if value.layer == DATA]
        if not wanted:
            return {}
        inputs: dict[Value, Tensor] = {}

        def load() -> Tensor:
            drawn = self._drawn(state, micro_batch, alone=False)
            assert drawn.inputs is not None
            inputs.update(self.blueprint.model.wiring.given(drawn.inputs, wanted))
            if targets is not None:
                targets.append(drawn.targets)
            return inputs[wanted[0]]

        self.around.load(load)
        return {value: self.place.bring(inputs.pop(value)) for value in wanted}

    def hand_on(self, state: StepState, stage: int, micro_batch: int, output: Carried) -> None:
        """What a forward gives, for every stage that takes some of it."""
        found = dict(zip(self.passing.parts[stage].gives, tensors_of(output), strict=True))
        for consumer in self.passing.consumers(stage):
            values = self.passing.edge(stage, consumer)
            state.activations[stage, consumer, micro_batch] = [found[value] for value in values]

    # ------------------------------------------------------------ waiting

    def begin(self, state: StepState, record: OpRecord) -> None:
        """The op's inputs are there: it starts."""
        self.observer.started()
        state.times.begin(record)

    def finish(self, state: StepState, transfer: Transfer | None) -> None:
        """Waits for a transfer's end, if there is one."""
        if transfer is not None:
            self.observer.wait(transfer.op)
            transfer.finish(state.times.end)
            self.observer.resume()

    def arrived(
        self, state: StepState, kind: Kind, stage: int, micro_batch: int, peer: int = -1
    ) -> list[Tensor] | None:
        """What a message has brought from another device, waited for; None: none is expected.

        `peer`: the stage that it comes from, if it is another one.
        """
        arriving = state.received.pop((kind, stage, micro_batch, peer), None)
        if arriving is None:
            return None
        self.finish(state, arriving)
        return arriving.tensors

    def leave(self, state: StepState, transfer: Transfer) -> None:
        """What the op sends or copies away is under way."""
        state.leaving[state.position] = transfer

    def complete(self, state: StepState, positions: Sequence[int]) -> None:
        """Waits for what left at these positions of the list, and lets go of what is complete anyway."""
        for position in positions:
            self.finish(state, state.leaving.pop(position, None))
        for position in [position for position, transfer in state.leaving.items() if transfer.done()]:
            self.finish(state, state.leaving.pop(position))
