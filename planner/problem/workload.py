"""Workload: what the training run needs. SearchSpace: what the planner may decide."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import gcd
from typing import Any, NamedTuple

from ..basics import MOST_LAYERS, MOST_MEMORY_BYTES, MOST_MICRO_BATCHES, WorkloadError, reading, refusing, shown
from .weight_policy import FLUSH, WEIGHT_POLICIES

# State bytes per byte of parameters. Mixed precision keeps 16-bit parameters, and an fp32 master copy (2 bytes per
# parameter byte) beside the fp32 optimizer state (ZeRO, arXiv:1910.02054, section 3.1). Gradients of many
# micro-batches are summed in fp32, as Megatron-LM does: 18 bytes a parameter with Adam, not ZeRO's 16.
OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "nesterov": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
STEP_COUNTERS = frozenset({"adam", "adamw", "rmsprop"})
"""Optimizers that count steps: 4 bytes for every tensor of parameters."""
UNFUSED = frozenset({"rmsprop"})
"""Optimizers whose step needs room for two more tensors, as large as two of its gradients in a row."""
PREDICTED_FROM_GRADIENT = frozenset({"sgd", "nesterov", "rmsprop"})
"""Optimizers whose next direction needs the last gradient, not their state alone."""
PRECISIONS = ("fp32", "mixed")


class Across(NamedTuple):
    """What a round of a ring between equal groups of devices takes at the least: seconds a byte and of latency.

    `on_nics`: devices of a group whose replicas lie in several nodes, so that such a ring needs their NICs.
    """

    seconds_a_byte: float
    latency_s: float
    on_nics: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Workload:
    """One training step: its micro-batches, its optimizer and the memory it may use.

    Attributes:
        micro_batches: micro-batches a step, over all pipelines. Asynchronous: micro-batches of the planned run, from an
            empty pipeline to an empty pipeline.
        optimizer: "sgd", "momentum", "nesterov", "rmsprop", "adam" or "adamw".
        precision: "fp32" or "mixed" (16-bit parameters, fp32 gradient sums, master copy and state).
        memory_limit_bytes: a limit for every device; a device with less memory keeps its own.
        update_every: asynchronous: micro-batches an update, over all pipelines; divides `micro_batches`. None: what
            the weight policy needs at least.
        staleness_limit: asynchronous: most updates between the weights of a forward and the update that its gradient
            goes into, on any stage.
        sharded: the trained replicas of a stage hold a part each of its optimizer state and master copy (ZeRO-1,
            arXiv:1910.02054). The search decides it; every other room reads it here, as it reads the precision.
        groups: the workload is that of one of so many equal groups of devices, which share optimizers. A search of one
            group knows that; files have no such key.
        across: what gradient sums between these groups take; None: they are not counted. Files have no such key.

    Raises WorkloadError.
    """

    micro_batches: int
    optimizer: str = "sgd"
    precision: str = "fp32"
    memory_limit_bytes: int | None = None
    update_every: int | None = None
    staleness_limit: int | None = None
    sharded: bool = False
    groups: int = 1
    across: Across | None = None

    def __post_init__(self) -> None:
        with refusing(WorkloadError):
            self._check()

    def _check(self) -> None:
        n, m = self.micro_batches, self.update_every
        _whole(n, "micro-batches", 1, MOST_MICRO_BATCHES)
        reading.text(self.optimizer, "optimizer", "workload")
        reading.text(self.precision, "precision", "workload")
        if self.optimizer not in OPTIMIZER_STATES:
            raise WorkloadError(f"unknown optimizer {shown(self.optimizer)}; known: {', '.join(OPTIMIZER_STATES)}")
        if self.precision not in PRECISIONS:
            raise WorkloadError(f"unknown precision {shown(self.precision)}; known: {', '.join(PRECISIONS)}")
        if self.memory_limit_bytes is not None:
            _whole(self.memory_limit_bytes, "memory limit", 0, MOST_MEMORY_BYTES)
        if m is not None:
            _whole(m, "micro-batches an update", 1, MOST_MICRO_BATCHES)
            if n % m:
                raise WorkloadError(f"micro-batches an update must be a whole number that divides {n}, got {m}")
        if self.staleness_limit is not None:
            _whole(self.staleness_limit, "staleness limit", 0, MOST_MICRO_BATCHES)
        if not isinstance(self.sharded, bool):
            raise WorkloadError(f"sharded must be true or false, got {shown(self.sharded)}")
        _whole(self.groups, "groups", 1, MOST_MICRO_BATCHES)

    def gradient_bytes(self, parameter_bytes: int) -> int:
        """Bytes of the gradient accumulators of parameters of `parameter_bytes`."""
        return parameter_bytes if self.precision == "fp32" else 2 * parameter_bytes

    def optimizer_bytes(self, parameter_bytes: int) -> int:
        """Bytes of optimizer state (and master copy) of parameters of `parameter_bytes`."""
        states = OPTIMIZER_STATES[self.optimizer]
        return parameter_bytes * (states if self.precision == "fp32" else 2 * (states + 1))

    def parts(self, replicas: int) -> int:
        """Among how many devices the optimizer of a stage with so many trained replicas is shared out."""
        return max(1, replicas) * self.groups if self.sharded else 1

    def step_traffic_bytes(self, parameter_bytes: int) -> int:
        """Bytes the optimizer step reads and writes: gradients once, parameters and state both ways.

        In mixed precision the 16-bit copies are only written.
        """
        copies = 2 * parameter_bytes if self.precision == "fp32" else parameter_bytes
        return self.gradient_bytes(parameter_bytes) + copies + 2 * self.optimizer_bytes(parameter_bytes)

    def predict_traffic_bytes(self, parameter_bytes: int, momentum_first: bool) -> int:
        """Bytes a prediction of future weights moves: parameters and state read, predicted parameters written.

        In mixed precision it starts from the fp32 master copy. Whether the last gradient is read, see `keeps_gradient`.
        """
        master = parameter_bytes if self.precision == "fp32" else 2 * parameter_bytes
        gradient = self.gradient_bytes(parameter_bytes) if self.keeps_gradient(momentum_first) else 0
        return master * (1 + OPTIMIZER_STATES[self.optimizer]) + gradient + parameter_bytes

    def keeps_gradient(self, momentum_first: bool) -> bool:
        """Whether predictions need the gradient of the last update, kept beside the one being summed."""
        return self.optimizer in PREDICTED_FROM_GRADIENT or (momentum_first and self.optimizer == "momentum")

    def memory_limit(self, device_memory_bytes: int) -> int:
        """The limit of a device with `device_memory_bytes` of memory."""
        limit = self.memory_limit_bytes
        return device_memory_bytes if limit is None else min(limit, device_memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """As stored in plan.json."""
        usual = {"update_every": None, "staleness_limit": None, "sharded": False}
        said = {key: value for key, value in asdict(self).items() if key not in OF_A_GROUP}
        return {key: value for key, value in said.items() if key not in usual or value != usual[key]}

    @classmethod
    def from_dict(cls, content: object) -> Workload:
        """From plan.json; raises WorkloadError."""
        with refusing(WorkloadError):
            values = reading.mapping(content, "workload", {f.name for f in fields(cls)} - OF_A_GROUP)
            reading.required(values, "micro_batches", "workload")
        return cls(**values)


OF_A_GROUP = frozenset({"groups", "across"})
"""What only a search of one of several equal groups knows."""
PART_UNIT = 64
"""Parts of a sharded stage are whole multiples of so many bytes, where the stage's trained parameters are."""


def part_bytes(trained_bytes: int, parts: int) -> int:
    """Bytes of each of so many equal parts of a stage's trained parameters; the last part is padded.

    The executor cuts by the same rule, so that no part ends within a vector of the optimizer's kernels.
    """
    unit = gcd(trained_bytes, PART_UNIT)
    return -(-trained_bytes // (parts * unit)) * unit if trained_bytes else 0


def _whole(value: object, what: str, least: int, most: int) -> None:
    """Raises InputError unless this is an int of this range; a float is none, whatever its value."""
    if isinstance(value, float):
        raise WorkloadError(f"{what} must be a whole number, got {shown(value)}")
    reading.whole(value, what, "workload", least, most)


Cut = tuple[str, ...] | tuple[tuple[str, ...], ...]
"""The layers that begin a stage, beside the first; or every stage with its layers."""

MOST_SLOWER = 1e6
"""How much slower than the fastest a plan of better quality may be asked to be at most, as a share."""


@dataclass(frozen=True)
class SearchSpace:
    """What may be decided. Every technique is allowed unless switched off.

    Attributes:
        asynchronous: weight policies to choose from (see `weight_policy`); none: synchronous training.
        schedule: "search", or the name of a schedule to plan with on its best partition.
        pipelines: at most this many pipelines; None: no limit. A named schedule brings its own number.
        replicas: exactly so many equal groups of devices, each with its part of the micro-batches; None: as is best.
        quality_within: of several weight policies the best one whose plan is slower than the fastest by at most this
            share (docs/asynchronous.md, "Which method").
        shard_optimizer: replicas of a stage may share its optimizer (`Workload.sharded`), with a flush.
        cut: the stages, where they are decided: the names of the layers that begin one, beside the first, along the
            model's order; or all of them, each with the names of its layers. Every plan has these stages; the rest is
            searched. None: the search cuts.
    """

    schedule: str = "search"
    pipelines: int | None = None
    offload: bool = True
    recompute: bool = True
    split_backward: bool = True
    separate_backward: bool = True
    asynchronous: tuple[str, ...] = ()
    replicas: int | None = None
    quality_within: float = 0.05
    shard_optimizer: bool = True
    cut: Cut | None = None

    def __post_init__(self) -> None:
        with refusing(WorkloadError):
            reading.number(self.quality_within, "quality_within", "space", MOST_SLOWER)
        for what, count in (("pipelines", self.pipelines), ("replicas", self.replicas)):
            if count is not None:
                with refusing(WorkloadError):
                    _whole(count, what, 1, MOST_MICRO_BATCHES)
        named: object = self.asynchronous
        if isinstance(named, str):
            given = shown(named)
            raise WorkloadError(f"asynchronous must be a tuple of methods, as ({given},), got the text {given}")
        for name in self.asynchronous:
            if name not in WEIGHT_POLICIES or name == FLUSH:
                known = ", ".join(other for other in WEIGHT_POLICIES if other != FLUSH)
                raise WorkloadError(f"unknown asynchronous method {shown(name)}; known: {known}")
        if self.cut is not None:
            with refusing(WorkloadError):
                object.__setattr__(self, "cut", _cut_from(self.cut))

    def to_dict(self) -> dict[str, Any]:
        """What differs from the default, as JSON has it."""
        default = type(self)()
        said = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(default, f.name)
        }
        return {key: _listed(value) for key, value in said.items()}

    @classmethod
    def from_dict(cls, content: object) -> SearchSpace:
        """From `to_dict`; raises WorkloadError naming a key or value that is wrong."""
        with refusing(WorkloadError):
            values = reading.mapping(content, "space", {f.name for f in fields(cls)})
            given = dict(values)
            for f in fields(cls):
                if f.type == "bool" and not isinstance(given.get(f.name, True), bool):
                    raise WorkloadError(f"space: {f.name} must be true or false, got {shown(given[f.name])}")
            if "schedule" in given:
                reading.text(given["schedule"], "schedule", "space")
            if "asynchronous" in given:
                listed = reading.sequence(given["asynchronous"], "space: asynchronous", len(WEIGHT_POLICIES))
                given["asynchronous"] = reading.texts(listed, "each method", "space: asynchronous")
        return cls(**given)


def _cut_from(content: object) -> Cut:
    """Names of layers, or stages of them. Raises InputError."""
    given = reading.sequence(content, "space: cut", MOST_LAYERS)
    if all(isinstance(one, str) for one in given):
        return reading.texts(given, "each layer", "space: cut")
    stages = [reading.sequence(one, "space: cut: a stage", MOST_LAYERS) for one in given]
    return tuple(reading.texts(stage, "each layer", "space: cut") for stage in stages)


def _listed(value: object) -> object:
    """Tuples as lists, as JSON has them."""
    return [_listed(one) for one in value] if isinstance(value, tuple) else value
