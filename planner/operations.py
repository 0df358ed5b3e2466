"""The operation graph's definition: which ops a candidate has, what each costs, and what each waits for.

Search, simulator, checker, pictures and executor all read operations from here; nothing else defines them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .errors import PlanError
from .model_graph import ModelGraph
from .plan import Kind, Op, Pipeline, Problem
from .remember import PerObject
from .ties import Shared, StageTie, returned_bytes
from .workload import STEP_COUNTERS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .workload import Workload


KEEP = "keep"
RECOMPUTE = "recompute"
OFFLOAD = "offload"
_SHIP = re.compile(r"ship>(0|[1-9][0-9]*)")


def ship_target(policy: str) -> int | None:
    """The device that a stash with this policy is shipped to and back from; None for every other policy."""
    match = _SHIP.fullmatch(policy)
    return int(match[1]) if match else None


def valid_policy(policy: str, devices: int) -> bool:
    """Whether this is a stash policy on a cluster of so many devices: keep, recompute, offload, or ship>D."""
    target = ship_target(policy)
    return policy in (KEEP, RECOMPUTE, OFFLOAD) or (target is not None and target < devices)


class Structured(Protocol):
    """What plans and candidates have in common: everything but the order."""

    @property
    def problem(self) -> Problem: ...
    @property
    def stages(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def pipelines(self) -> tuple[Pipeline, ...]: ...
    @property
    def stash(self) -> tuple[tuple[str, ...], ...]: ...


class StageEdge(NamedTuple):
    """A tensor that stage `producer` sends to stage `consumer`: bytes a micro-batch; its gradient is as large."""

    producer: int
    consumer: int
    bytes: int


@dataclass(frozen=True)
class StageCosts:
    """Costs of every stage for one micro-batch: arrays of length `stages`; seconds at speed 1, bytes.

    Times, parameters and stashes of a stage's layers add; workspace is their maximum. `input_bytes` is the data
    that a stage takes from outside the model, `kept_input_bytes` what its layers declare as input beyond that and
    beyond the tensors that edges deliver: recompute keeps it. `tied_bytes` of `parameter_bytes` are shared with other
    stages, as `ties` say; `parameter_tensors` leaves those out.
    """

    forward_s: NDArray[np.float64]
    backward_input_s: NDArray[np.float64]
    backward_weight_s: NDArray[np.float64]
    separable: tuple[bool, ...]
    parameter_bytes: NDArray[np.int64]
    tied_bytes: NDArray[np.int64]
    buffer_bytes: NDArray[np.int64]
    parameter_tensors: NDArray[np.int64]
    stash_bytes: NDArray[np.int64]
    weight_stash_bytes: NDArray[np.int64]
    workspace_bytes: NDArray[np.int64]
    input_bytes: NDArray[np.int64]
    kept_input_bytes: NDArray[np.int64]
    edges: tuple[StageEdge, ...]
    ties: tuple[StageTie, ...]

    @property
    def own_bytes(self) -> NDArray[np.int64]:
        """Bytes of parameters that no other stage shares."""
        return self.parameter_bytes - self.tied_bytes

    @property
    def backward_s(self) -> NDArray[np.float64]:
        """Seconds of the whole backward."""
        return self.backward_input_s + self.backward_weight_s

    @cached_property
    def incoming_bytes(self) -> NDArray[np.int64]:
        """Bytes that recompute keeps of every stage: the tensors it takes."""
        total = self.input_bytes + self.kept_input_bytes
        for _, consumer, size in self.edges:
            total[consumer] += size
        return total

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For every stage the stages it takes tensors from."""
        return tuple(tuple(e.producer for e in self.edges if e.consumer == s) for s in range(len(self.forward_s)))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For every stage the stages it sends tensors to."""
        return tuple(tuple(e.consumer for e in self.edges if e.producer == s) for s in range(len(self.forward_s)))

    @cached_property
    def edge_number(self) -> NDArray[np.int64]:
        """Position in `edges` for every [producer, consumer]; -1 where there is no edge."""
        import numpy as np

        table = np.full((len(self.forward_s), len(self.forward_s)), -1, dtype=np.int64)
        for number, edge in enumerate(self.edges):
            table[edge.producer, edge.consumer] = number
        return table

    @classmethod
    def of(cls, model: ModelGraph, stages: tuple[tuple[str, ...], ...]) -> StageCosts:
        """Costs of these stages; raises PlanError when they do not cut the layer graph into a chain of ideals.

        Remembered while the model lives.
        """
        return _known_costs.get(model, stages, lambda: _stage_costs(model, stages))


_known_costs: PerObject[StageCosts] = PerObject()


def _stage_costs(model: ModelGraph, stages: tuple[tuple[str, ...], ...]) -> StageCosts:
    import numpy as np

    home = _stage_of_layer(model, stages)
    members = [[model.layers[model.index[name]] for name in stage] for stage in stages]
    shared = Shared.of(model, home, len(stages))
    tensors = np.array([sum(len(x.parameter_shapes or ()) for x in group) for group in members], dtype=np.int64)

    def total(key: str, kind: type = np.int64) -> NDArray[np.float64]:
        return np.array([sum(getattr(x, key) for x in group) for group in members], dtype=kind)

    return StageCosts(
        total("forward_s", np.float64),
        total("backward_input_s", np.float64),
        total("backward_weight_s", np.float64),
        tuple(all(x.separable for x in group) for group in members),
        total("parameter_bytes").astype(np.int64) - shared.double_bytes,
        shared.tied_bytes,
        total("buffer_bytes").astype(np.int64),
        np.maximum(tensors - shared.extra_tensors, 0),
        total("stash_bytes").astype(np.int64),
        total("weight_stash_bytes").astype(np.int64),
        np.array([max(x.workspace_bytes for x in group) for group in members], dtype=np.int64),
        _source_input_bytes(model, home, len(stages)),
        _kept_input_bytes(model, home, len(stages)),
        _stage_edges(model, home),
        shared.ties,
    )


def _stage_of_layer(model: ModelGraph, stages: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    home: dict[str, int] = {}
    for position, stage in enumerate(stages):
        if not stage:
            raise PlanError(f"stage {position} has no layers")
        for name in stage:
            if name not in model.index:
                raise PlanError(f"stage {position} names layer {name!r}, which the model does not have")
            if name in home:
                raise PlanError(f"layer {name!r} is in stages {home[name]} and {position}")
            home[name] = position
    for layer in model.layers:
        if layer.name not in home:
            raise PlanError(f"layer {layer.name!r} is in no stage")
    for source, target in model.edges:
        if home[source] > home[target]:
            raise PlanError(f"edge {source!r} -> {target!r} goes back from stage {home[source]} to {home[target]}")
    return home


def _stage_edges(model: ModelGraph, home: dict[str, int]) -> tuple[StageEdge, ...]:
    sent = {(source, home[target]) for source, target in model.edges if home[source] != home[target]}
    size: dict[tuple[int, int], int] = {}
    for source, consumer in sent:
        key = (home[source], consumer)
        size[key] = size.get(key, 0) + model.layers[model.index[source]].output_bytes
    return tuple(StageEdge(*key, size[key]) for key in sorted(size))


def _source_input_bytes(model: ModelGraph, home: dict[str, int], count: int) -> NDArray[np.int64]:
    """Bytes of the data that each stage takes from outside the model (layers without predecessors)."""
    import numpy as np

    fed = {target for _, target in model.edges}
    total = np.zeros(count, dtype=np.int64)
    for layer in model.layers:
        if layer.name not in fed:
            total[home[layer.name]] += layer.input_bytes or 0
    return total


def _kept_input_bytes(model: ModelGraph, home: dict[str, int], count: int) -> NDArray[np.int64]:
    """Declared input beyond the predecessors' outputs, of the layers that take tensors from an earlier stage."""
    import numpy as np

    sources: dict[str, list[str]] = {}
    for source, target in model.edges:
        sources.setdefault(target, []).append(source)
    total = np.zeros(count, dtype=np.int64)
    for name, before in sources.items():
        declared = model.layers[model.index[name]].input_bytes
        if declared is not None and any(home[source] != home[name] for source in before):
            delivered = sum(model.layers[model.index[source]].output_bytes for source in before)
            total[home[name]] += max(0, declared - delivered)
    return total


@dataclass(frozen=True)
class Candidate:
    """Stages, pipelines and stash policy: everything but the order of ops."""

    problem: Problem
    stages: tuple[tuple[str, ...], ...]
    pipelines: tuple[Pipeline, ...]
    stash: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.stash:
            rows = tuple((KEEP,) * len(self.stages) for _ in self.pipelines)
            object.__setattr__(self, "stash", rows)

    @cached_property
    def costs(self) -> StageCosts:
        """Costs of the stages."""
        return StageCosts.of(self.problem.model, self.stages)


def regroup(
    problem: Problem,
    stages: tuple[tuple[str, ...], ...],
    pipelines: Sequence[Pipeline],
    rows: Mapping[int, tuple[str, ...]],
) -> Candidate:
    """The candidate in which every micro-batch has its own row of stash policies, one policy a stage.

    Pipelines are split as far as needed: micro-batches of one route with equal rows share one. A micro-batch
    without a row keeps its stashes.
    """
    keep = (KEEP,) * len(stages)
    groups: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for pipeline in pipelines:
        for m in pipeline.micro_batches:
            key = (pipeline.forward, pipeline.backward, tuple(rows.get(m, keep)))
            groups.setdefault(key, []).append(m)
    split = tuple(Pipeline(forward, backward, tuple(sorted(ms))) for (forward, backward, _), ms in groups.items())
    return Candidate(problem, stages, split, tuple(row for _, _, row in groups))


class Message(NamedTuple):
    """One tensor (or the parameters of a stage) that crosses devices, and the ops at its two ends."""

    source: int
    send: Op
    target: int
    receive: Op
    bytes: int


def route(plan: Structured) -> dict[int, int]:
    """Pipeline of every micro-batch; the first one where several claim it (the checker names that)."""
    found: dict[int, int] = {}
    for index, pipeline in enumerate(plan.pipelines):
        for micro_batch in pipeline.micro_batches:
            found.setdefault(micro_batch, index)
    return found


def messages(plan: Structured, costs: StageCosts) -> Iterator[Message]:
    """Every message of a step, even of 0 bytes: activations forward, gradients back, stashes, and new parameters.

    None between stages on one device. A stash goes from the forward to the backward device, or is shipped there and
    back. Stages without parameters return none.
    """
    for number, pipeline in enumerate(plan.pipelines):
        for producer, consumer, size in costs.edges:
            a, b = pipeline.forward[producer], pipeline.forward[consumer]
            c, d = pipeline.backward[consumer], pipeline.backward[producer]
            for m in pipeline.micro_batches:
                if a != b:
                    send, receive = Op(Kind.SEND_F, producer, m, consumer), Op(Kind.RECV_F, consumer, m, producer)
                    yield Message(a, send, b, receive, size)
                if c != d:
                    send, receive = Op(Kind.SEND_B, consumer, m, producer), Op(Kind.RECV_B, producer, m, consumer)
                    yield Message(c, send, d, receive, size)
        for stage, policy in enumerate(plan.stash[number]):
            size = int((costs.incoming_bytes if policy == RECOMPUTE else costs.stash_bytes)[stage])
            for source, target in stash_hops(pipeline, stage, policy):
                for m in pipeline.micro_batches:
                    send, receive = Op(Kind.SEND_S, stage, m, target), Op(Kind.RECV_S, stage, m, source)
                    yield Message(source, send, target, receive, size)
    for stage, source, target in parameter_returns(plan, costs):
        send, receive = Op(Kind.SEND_P, stage, -1, target), Op(Kind.RECV_P, stage, -1, source)
        trained = [s for s, owners in holders(plan).items() if target in owners]
        size = returned_bytes(int(costs.parameter_bytes[stage]), costs.ties, stage, trained)
        yield Message(source, send, target, receive, size)


def stash_hops(pipeline: Pipeline, stage: int, policy: str) -> list[tuple[int, int]]:
    """The pairs of devices between which a stage's stash (recompute: what it keeps) goes as a message, in order."""
    home, back, away = pipeline.forward[stage], pipeline.backward[stage], ship_target(policy)
    if away is not None:
        return [(home, away), (away, home)] if home == back != away else []
    return [(home, back)] if home != back and policy in (KEEP, RECOMPUTE) else []


def parameter_returns(plan: Structured, costs: StageCosts) -> list[tuple[int, int, int]]:
    """(stage, owner, device) for every device that runs a stage's forward only; none of a stage without parameters.

    The owner is one of the device's own node where there is one, of these the lowest.
    """
    cluster, found = plan.problem.cluster, []
    for stage, owners in holders(plan).items():
        if costs.parameter_bytes[stage]:
            for device in forward_only(plan, stage, owners):
                source = min(owners, key=lambda owner: (not cluster.same_node(owner, device), owner))
                found.append((stage, source, device))
    return found


def forward_devices(plan: Structured, stage: int) -> tuple[int, ...]:
    """Devices that run a stage's forward, ascending."""
    return tuple(sorted({p.forward[stage] for p in plan.pipelines if p.micro_batches}))


def forward_only(plan: Structured, stage: int, owners: Sequence[int]) -> list[int]:
    """Devices that run a stage's forward and never its backward, ascending."""
    return [device for device in forward_devices(plan, stage) if device not in owners]


def holders(plan: Structured) -> dict[int, tuple[int, ...]]:
    """Devices that hold a trained replica of each stage (those that run its backward), ascending."""
    found: dict[int, set[int]] = {stage: set() for stage in range(len(plan.stages))}
    for pipeline in plan.pipelines:
        if pipeline.micro_batches:
            for stage, device in enumerate(pipeline.backward):
                found[stage].add(device)
    return {stage: tuple(sorted(devices)) for stage, devices in found.items()}


def training_bytes(workload: Workload, parameters: int, tensors: int) -> dict[str, int]:
    """Bytes by category that a device holds to train `parameters` bytes of parameters in so many tensors."""
    counters = 4 * tensors if workload.optimizer in STEP_COUNTERS else 0
    return {
        "parameters": parameters,
        "gradients": workload.gradient_bytes(parameters),
        "optimizer": workload.optimizer_bytes(parameters) + counters,
    }


def static_bytes(plan: Structured, costs: StageCosts) -> list[dict[str, int]]:
    """Per device, the bytes that stay all step by category: parameters, gradients, optimizer, buffers.

    Where several devices run a stage's forward, each also holds every micro-batch's statistics of its buffers
    (BatchNorm) until they are merged. What stages of one device share counts once.
    """
    workload, owners_of = plan.problem.workload, holders(plan)
    devices: list[dict[str, int]] = [{} for _ in range(len(plan.problem.cluster))]

    def add(device: int, category: str, count: int) -> None:
        devices[device][category] = devices[device].get(category, 0) + count

    def train(device: int, parameters: int, tensors: int) -> None:
        for category, count in training_bytes(workload, parameters, tensors).items():
            add(device, category, count)

    for stage, owners in owners_of.items():
        own, buffers = int(costs.own_bytes[stage]), int(costs.buffer_bytes[stage])
        for device in owners:
            train(device, own, int(costs.parameter_tensors[stage]))
            add(device, "buffers", buffers)
        for device in forward_only(plan, stage, owners):
            add(device, "parameters", own)
            add(device, "buffers", buffers)
        forwards = forward_devices(plan, stage)
        for device in forwards if len(forwards) > 1 else ():
            add(device, "buffers", 2 * workload.micro_batches * buffers)
    for tie in costs.ties:
        copies = tie.copies(owners_of)
        for device in copies:
            train(device, tie.bytes, tie.tensors)
        lent = {device for stage in tie.stages for device in forward_only(plan, stage, owners_of[stage])}
        for device in lent - copies.keys():
            add(device, "parameters", tie.bytes)
    return devices
