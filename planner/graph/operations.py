"""The operation graph's definition: which ops a candidate has, what each costs, and what each waits for.

Search, simulator, checker, pictures and executor all read operations from here; nothing else defines them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..basics import PlanError, shown
from ..plan import Kind, Op, Pipeline, Problem
from ..problem import FLUSH, STEP_COUNTERS, UNFUSED, WEIGHT_POLICIES, policy_of, returned_bytes
from ..problem import StageCosts as StageCosts
from ..problem import StageEdge as StageEdge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..problem import Layer, Workload


KEEP = "keep"
RECOMPUTE = "recompute"
OFFLOAD = "offload"
OFFLOAD_WEIGHTS = "offload+weights"
"""The stash goes to the host, and with it the version of the weights that its backward uses."""
OFFLOADS = frozenset({OFFLOAD, OFFLOAD_WEIGHTS})
SHIP = "ship"
_SHIP = re.compile(r"ship>(0|[1-9][0-9]{0,8})")
_POLICIES = frozenset({KEEP, RECOMPUTE, *OFFLOADS})


def stash_kind(policy: str) -> str:
    """What becomes of a stash with this policy: KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_WEIGHTS or SHIP.

    Raises PlanError for what is none: no policy is ever taken for another.
    """
    if policy in _POLICIES:
        return policy
    if _SHIP.fullmatch(policy):
        return SHIP
    raise PlanError(f"unknown stash policy {shown(policy)}; known: {', '.join(sorted(_POLICIES))}, ship>DEVICE")


def ship_target(policy: str) -> int | None:
    """The device that a stash with this policy is shipped to and back from; None for every other policy.

    Raises PlanError for what is no policy.
    """
    return int(policy.removeprefix("ship>")) if stash_kind(policy) == SHIP else None


def valid_policy(policy: str, devices: int) -> bool:
    """Whether this is a stash policy on so many devices: keep, recompute, offload, offload+weights, or ship>D."""
    shipped = _SHIP.fullmatch(policy)
    return policy in _POLICIES or (shipped is not None and int(shipped[1]) < devices)


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
    @property
    def weights(self) -> str: ...


@dataclass(frozen=True)
class Candidate:
    """Stages, pipelines, stash and weight policy: everything but the order of ops.

    Raises PlanError for policies that are none.
    """

    problem: Problem
    stages: tuple[tuple[str, ...], ...]
    pipelines: tuple[Pipeline, ...]
    stash: tuple[tuple[str, ...], ...] = ()
    weights: str = FLUSH

    def __post_init__(self) -> None:
        if not self.stash:
            rows = tuple((KEEP,) * len(self.stages) for _ in self.pipelines)
            object.__setattr__(self, "stash", rows)
        require_policies(self)

    @cached_property
    def costs(self) -> StageCosts:
        """Costs of the stages."""
        return StageCosts.of(self.problem.model, self.stages)


def require_policies(plan: Structured) -> None:
    """Raises PlanError for stash and weight policies that are none."""
    for policy in {policy for row in plan.stash for policy in row}:
        stash_kind(policy)
    policy_of(plan.weights)


def regroup(
    problem: Problem,
    stages: tuple[tuple[str, ...], ...],
    pipelines: Sequence[Pipeline],
    rows: Mapping[int, tuple[str, ...]],
    weights: str = FLUSH,
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
    return Candidate(problem, stages, split, tuple(row for _, _, row in groups), weights)


def update_size(plan: Structured) -> int:
    """Micro-batches an update: all of a synchronous plan's."""
    workload = plan.problem.workload
    if plan.weights == FLUSH:
        return workload.micro_batches
    return workload.update_every or WEIGHT_POLICIES[plan.weights].least_update(len(plan.stages))


def weights_offloaded(plan: Structured) -> set[tuple[int, int]]:
    """Stage and micro-batch of every stash that takes a version of the weights to the host with it."""
    return {
        (stage, m)
        for pipeline, row in zip(plan.pipelines, plan.stash, strict=False)
        for stage, policy in enumerate(row)
        if stash_kind(policy) == OFFLOAD_WEIGHTS
        for m in pipeline.micro_batches
    }


def closings(plan: Structured) -> list[int]:
    """The micro-batch in the STEP of every update: its last one, or -1 in a synchronous plan."""
    if plan.weights == FLUSH:
        return [-1]
    size = update_size(plan)
    return list(range(size - 1, plan.problem.workload.micro_batches, size))


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
    back. Stages without parameters return none in a synchronous plan; in others, their versions count all the same.
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
            size = int((costs.incoming_bytes if stash_kind(policy) == RECOMPUTE else costs.stash_bytes)[stage])
            for source, target in stash_hops(pipeline, stage, policy):
                for m in pipeline.micro_batches:
                    send, receive = Op(Kind.SEND_S, stage, m, target), Op(Kind.RECV_S, stage, m, source)
                    yield Message(source, send, target, receive, size)
    for stage, source, target in parameter_returns(plan, costs):
        trained = [s for s, owners in holders(plan).items() if target in owners]
        size = returned_bytes(int(costs.trained_bytes[stage]), costs.ties, stage, trained)
        for m in closings(plan):
            send, receive = Op(Kind.SEND_P, stage, m, target), Op(Kind.RECV_P, stage, m, source)
            yield Message(source, send, target, receive, size)


def stash_hops(pipeline: Pipeline, stage: int, policy: str) -> list[tuple[int, int]]:
    """The pairs of devices between which a stage's stash (recompute: what it keeps) goes as a message, in order."""
    home, back, away = pipeline.forward[stage], pipeline.backward[stage], ship_target(policy)
    if away is not None:
        return [(home, away), (away, home)] if home == back != away else []
    return [(home, back)] if home != back and stash_kind(policy) in (KEEP, RECOMPUTE) else []


def parameter_returns(plan: Structured, costs: StageCosts) -> list[tuple[int, int, int]]:
    """(stage, owner, device) for every device that runs a stage's forward only; with a flush, none of a stage without
    trained parameters.

    The owner is one of the device's own node where there is one, of these the lowest.
    """
    cluster, found = plan.problem.cluster, []
    for stage, owners in holders(plan).items():
        if costs.trained_bytes[stage] or plan.weights != FLUSH:
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


def training_bytes(workload: Workload, parameters: int, tensors: int, trained: int) -> dict[str, int]:
    """Bytes by category that a device holds to train `trained` of `parameters` bytes, in so many tensors."""
    counters = 4 * tensors if workload.optimizer in STEP_COUNTERS else 0
    return {
        "parameters": parameters,
        "gradients": workload.gradient_bytes(trained),
        "optimizer": workload.optimizer_bytes(trained) + counters,
    }


def step_workspace(plan: Structured) -> NDArray[np.int64]:
    """Bytes that a STEP of every stage takes while it runs: room for two gradients in a row, where it needs any.

    The unfused step lets go of a tensor only when it has made the next one. A layer whose shapes are not known counts
    as one tensor.
    """
    import numpy as np

    model, workload = plan.problem.model, plan.problem.workload
    found = np.zeros(len(plan.stages), dtype=np.int64)
    if workload.optimizer in UNFUSED:
        for stage, names in enumerate(plan.stages):
            sizes = [size for name in names for size in _tensor_bytes(model.layers[model.index[name]])]
            found[stage] = workload.gradient_bytes(max(map(sum, pairwise([0, *sizes])), default=0))
    return found


PREDICTED_AT_ONCE = 1 << 16
"""Elements of a master that a PREDICT computes at once, before they are rounded to 16 bit."""


def predict_workspace(plan: Structured) -> NDArray[np.int64]:
    """Bytes that a PREDICT of every stage takes beside what it makes: in mixed precision, a piece of a master."""
    import numpy as np

    model, workload = plan.problem.model, plan.problem.workload
    found = np.zeros(len(plan.stages), dtype=np.int64)
    if workload.precision == "mixed":
        for stage, names in enumerate(plan.stages):
            sizes = [size for name in names for size in _tensor_bytes(model.layers[model.index[name]])]
            found[stage] = min(workload.gradient_bytes(max(sizes, default=0)), 4 * PREDICTED_AT_ONCE)
    return found


def _tensor_bytes(layer: Layer) -> list[int]:
    """Of its parameters, in order; none where all are frozen."""
    if not layer.trained_bytes:
        return []
    sizes = [prod(shape) for shape in layer.parameter_shapes or ()]
    if any(sizes):
        return [-(-layer.parameter_bytes * size // sum(sizes)) for size in sizes]
    return [layer.parameter_bytes] if layer.parameter_bytes else []


def static_bytes(plan: Structured, costs: StageCosts) -> list[dict[str, int]]:
    """Per device, the bytes that stay all step by category: parameters, gradients, optimizer, buffers.

    Where several devices run a stage's forward, each also holds every micro-batch's statistics of its buffers
    (BatchNorm) until they are merged, and counters. What stages of one device share counts once.
    """
    workload, owners_of = plan.problem.workload, holders(plan)
    devices: list[dict[str, int]] = [{} for _ in range(len(plan.problem.cluster))]

    def add(device: int, category: str, count: int) -> None:
        devices[device][category] = devices[device].get(category, 0) + count

    def train(device: int, parameters: int, tensors: int, trained: int) -> None:
        for category, count in training_bytes(workload, parameters, tensors, trained).items():
            add(device, category, count)

    for stage, owners in owners_of.items():
        own, buffers = int(costs.own_bytes[stage]), int(costs.buffer_bytes[stage])
        for device in owners:
            train(device, own, int(costs.parameter_tensors[stage]), int(costs.own_trained_bytes[stage]))
            add(device, "buffers", buffers)
        for device in forward_only(plan, stage, owners):
            add(device, "parameters", own)
            add(device, "buffers", buffers)
        forwards = forward_devices(plan, stage)
        for device in forwards if len(forwards) > 1 else ():
            add(device, "buffers", (1 + workload.micro_batches) * buffers)
    for tie in costs.ties:
        copies = tie.copies(owners_of)
        for device in copies:
            train(device, tie.bytes, tie.tensors, tie.trained_bytes)
        lent = {device for stage in tie.stages for device in forward_only(plan, stage, owners_of[stage])}
        for device in lent - copies.keys():
            add(device, "parameters", tie.bytes)
    return devices
