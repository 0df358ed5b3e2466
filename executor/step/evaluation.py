"""Held-out losses between steps: the plan's forwards alone, on the same stages, in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...models import derive_seed, held_out
from ...models.wiring import tensors_of
from ...planner.forecast import simulate_orders
from ...planner.graph import KEEP, asynchronous, costs_of, update_size
from ...planner.plan import Kind, Op, Plan
from ...planner.problem import FLUSH
from ..basics import ExecutionError, failed_op
from ..place import OpRecord
from ..state import Blueprint, MiniBatches, StageReplica
from ..wires import Transport
from .course import Course, lengthened
from .finite import NotFinite
from .interpreter import Interpreter
from .message_ops import MessageOps
from .step_state import StepState
from .waits import Waits, waits
from .worker import Handler, Surroundings, Worker

_FORWARD = frozenset({Kind.F, Kind.SEND_F, Kind.RECV_F})


def evaluation_seed(seed: int) -> int:
    """What stands in for the run's seed where held-out micro-batches are asked of a data set.

    The same ones at every evaluation; step k, micro-batch m of this seed is another draw than any of training.
    """
    return derive_seed("evaluation", seed)


def forward_plan(plan: Plan) -> tuple[Plan, list[Waits]]:
    """The plan's forwards and their messages alone, with every device's waits; no device exceeds its planned peak.

    What remains of a list without circles, in its order, has none: its dependencies are those of the plan. Forwards
    that no backward holds up may run further ahead, though, and leave more tensors under way. Where the forecast
    says that this takes more than the plan's peak, micro-batches go through all stages one by one.
    """
    model = plan.problem.model
    layers = tuple(replace(layer, stash_bytes=0, weight_stash_bytes=0, selective_bytes=0) for layer in model.layers)
    problem = replace(plan.problem, model=replace(model, layers=layers, kept_twice=()))
    orders = tuple(tuple(op for op in order if op.kind in _FORWARD) for order in plan.orders)
    keep = tuple((KEEP,) * len(row) for row in plan.stash)
    forward = replace(plan, problem=problem, orders=orders, stash=keep, weights=FLUSH)
    assert plan.forecast is not None  # require_executable saw to it
    timeline = simulate_orders(forward, costs_of(forward), orders)
    peaks = [memory.peak_bytes for memory in timeline.device_memory]
    if all(peak <= planned for peak, planned in zip(peaks, plan.forecast.peak_bytes, strict=True)):
        return forward, waits(forward)
    orders = one_by_one(plan)
    return replace(forward, orders=orders), [_after_every_send(order) for order in orders]


def one_by_one(plan: Plan) -> tuple[tuple[Op, ...], ...]:
    """Forward lists in which every micro-batch passes all stages before the next one starts.

    A device then holds what one F takes and gives, what passes it by, and the workspace.
    """
    edges = costs_of(plan).edges
    lists: list[list[Op]] = [[] for _ in plan.orders]
    route = {m: pipeline.forward for pipeline in plan.pipelines for m in pipeline.micro_batches}
    for m, devices in sorted(route.items()):
        for stage, device in enumerate(devices):
            before = [edge.producer for edge in edges if edge.consumer == stage and devices[edge.producer] != device]
            after = [edge.consumer for edge in edges if edge.producer == stage and devices[edge.consumer] != device]
            lists[device] += [Op(Kind.RECV_F, stage, m, producer) for producer in before]
            lists[device].append(Op(Kind.F, stage, m))
            lists[device] += [Op(Kind.SEND_F, stage, m, consumer) for consumer in after]
    return tuple(map(tuple, lists))


def _after_every_send(order: tuple[Op, ...]) -> Waits:
    """Everything waits until what was sent before is gone.

    No circle: all ops of all devices have one order, by micro-batch and stage, and wait for earlier ones only.
    """
    sends = [position for position, op in enumerate(order) if op.kind is Kind.SEND_F]
    left: list[tuple[int, ...]] = []
    done = 0
    for position, op in enumerate(order):
        until = done
        while op.kind is not Kind.SEND_F and until < len(sends) and sends[until] < position:
            until += 1
        left.append(tuple(sends[done:until]))
        done = until
    return Waits(tuple(left), {})


class EvaluationWork:
    """Forwards in evaluation mode, which draw no random numbers and change no buffer, and their messages."""

    def __init__(self, worker: Worker, mini_batches: MiniBatches) -> None:
        self._worker, self.mini_batches = worker, mini_batches
        self.handlers: Mapping[Kind, Handler] = {**MessageOps(worker).handlers, Kind.F: self._forward}

    def _forward(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker, replica, m = self._worker, self._worker.replicas[op.stage], op.micro_batch
        assert replica.evaluation is not None
        x, target = worker.inputs(state, op.stage, m)
        worker.begin(state, record)
        weights = replica.weights
        output = replica.evaluation.forward_only(weights.parameters, weights.buffers, x, target)
        state.times.end(record)
        if op.stage == worker.last:
            state.losses[m] = worker.place.keep_loss(tensors_of(output)[0])
        else:
            worker.hand_on(state, op.stage, m, output)

    def begin(self, state: StepState) -> None:
        """Nothing is prepared."""

    def agree(self, state: StepState) -> None:
        """Nothing is stepped."""

    def told(self, loss: float) -> None:
        """Any loss will do."""

    def end(self, state: StepState) -> None:
        """Nothing has been counted."""

    def settle(self) -> Iterator[tuple[int, NotFinite]]:
        """Nothing has been summed."""
        return iter(())

    def failure(self, step: int, op: Op, error: Exception) -> ExecutionError:
        """Says that it was an evaluation."""
        told = failed_op(self._worker.transport.seat.name, step, op, error, updates=False)
        return ExecutionError(str(told).replace(", step ", ", evaluation step ", 1))


class Evaluator:
    """Runs the forward lists of one rank: training goes on as without. Collective: all ranks make one.

    Args:
        blueprint: of the training; the plan, the data and the seed are replaced.
    """

    def __init__(
        self, blueprint: Blueprint, transport: Transport, replicas: Mapping[int, StageReplica], around: Surroundings
    ) -> None:
        plan, rounds = blueprint.plan, blueprint.training.evaluate_steps
        together = rounds if asynchronous(plan) else 1
        assert plan.forecast is not None  # require_executable saw to it
        forward, listed = forward_plan(lengthened(plan, together).with_forecast(plan.forecast))
        data, seed = held_out(blueprint.data), evaluation_seed(blueprint.seed)
        worker = Worker(replace(blueprint, plan=forward, data=data, seed=seed), transport, replicas, around)
        full = MiniBatches(update_size(plan), blueprint.full, None, data, worker.blueprint.counts)
        self._weighed = None if full.counts is None else full
        self._interpreter = Interpreter(worker, EvaluationWork(worker, full))
        self._course = Course.of(forward, transport.rank, listed_waits=listed[transport.rank], update=update_size(plan))
        self._firsts, self._rounds = range(0, rounds, together), rounds

    def evaluate(self) -> dict[tuple[int, int], float]:
        """Losses of the held-out micro-batches whose last stage this rank holds, by (step, micro-batch)."""
        found: dict[tuple[int, int], float] = {}
        for first in self._firsts:
            for number, record in enumerate(self._interpreter.run(self._course, first), first):
                found |= {(number, m): loss for m, loss in record.losses.items()}
        return found if self._weighed is None else self._by_counts(self._weighed, found)

    def _by_counts(
        self, mini_batches: MiniBatches, found: Mapping[tuple[int, int], float]
    ) -> dict[tuple[int, int], float]:
        """Losses as they are to be averaged, so that the mean is over what counts."""
        counts = [mini_batches.weighed(step).counts for step in range(self._rounds)]
        mean = sum(map(sum, counts)) / sum(map(len, counts))
        return {(k, m): loss * counts[k][m] / mean for (k, m), loss in found.items()}
