"""A stage as one rank holds it: its program, its weights, and the exchange of statistics if it needs one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ...models import Dataset, LayeredModel, Piece, build_layer
from ...models.lanes import Lane
from ...models.wiring import DATA, Carried, Inputs, Value, carried, each
from ...planner.graph import StashPolicy, asynchronous, forward_devices, holders, route, stash_policy
from ...planner.plan import Kind, Op, Plan
from ...planner.problem import WEIGHT_POLICIES, Layer, twice_inside
from ..basics import Engine, RunError, Training
from ..place import CPU
from ..stage import (
    AnyProgram,
    Building,
    PackedStash,
    Sharing,
    StageLayers,
    Statistics,
    StatisticsExchange,
    StatisticsQueue,
    alone,
    build_lowered,
    build_program,
    half_of,
    isolated,
    shared_by,
    wide,
)
from ..wires import stage_on_two_devices, statistics_group, tie_group
from .batches import Alike, inputs_and_targets, targets_alone
from .compiling import compiled_stages
from .counts import counts_of
from .digests import unregistered
from .mini_batch import Counts, MiniBatches
from .parts import ALL, Part
from .passing import Passing, stage_ids, trained_behind
from .ties import sharing, ties_of
from .validate import Shapes, TensorShape, as_dtype, planned_pieces
from .weights import StageWeights

_SETUP_LOCK = threading.Lock()  # ranks that are threads trace one after another


@dataclass(frozen=True)
class StageReplica:
    """One rank's copy of a stage.

    Attributes:
        group: the ranks it is reduced with (None: it is the only trained copy).
        statistics_group: the ranks with which statistics are exchanged at the step's end (None: with none then).
        two_devices: whether some micro-batches run its forward and backward on different devices: gradients are then
            summed over other ranks than statistics.
        owner, runs_forward: whether this rank runs its backward and steps it, and whether it runs its forward.
        arrival: how a stash from another rank is put together here, where some arrive or leave for good.
        ties: numbers of the groups of tied parameters that it shares with other stages.
        evaluation: the forward in evaluation mode, if the run evaluates.
        notice: what the user should know about the engine it runs on.
        smaller: the same copy for micro-batches of fewer samples, by their number.
        unregistered: see `digests.unregistered`.
    """

    stage: int
    program: AnyProgram
    weights: StageWeights
    statistics: Statistics | None
    group: str | None
    statistics_group: str | None
    two_devices: bool
    owner: bool
    runs_forward: bool
    arrival: PackedStash | None
    ties: tuple[int, ...] = ()
    evaluation: AnyProgram | None = None
    notice: str | None = None
    smaller: Mapping[int, StageReplica] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)

    def of_size(self, samples: int) -> StageReplica:
        """The copy as it runs micro-batches of so many samples."""
        return self.smaller.get(samples, self)

    @property
    def shared(self) -> list[Tensor]:
        """Of what REDUCE sums, that of which this rank needs its own part only."""
        return [] if self.weights.shares is None else self.weights.gradients

    @property
    def gathered(self) -> list[Tensor]:
        """What GATHER brings together: every replica has written its part."""
        return [] if self.weights.shares is None else self.weights.shares.values

    def sums(self, op: Op) -> tuple[str | None, list[Tensor]]:
        """The process group and the tensors of a REDUCE or TIE."""
        if op.kind is Kind.TIE:
            tied = self.weights.tied_gradients.get(op.peer)  # None: it is frozen
            return tie_group(op.peer), [] if tied is None else [tied]
        return self.group, self.reduced

    def awaited(self, step: Op) -> list[tuple[Kind, int, int]]:
        """The sums that a STEP of it waits for, by `Op.collective`."""
        kinds = [(Kind.REDUCE, self.stage), *((Kind.TIE, number) for number in self.ties)]
        return [(kind, number, step.micro_batch) for kind, number in kinds]

    @property
    def reduced(self) -> list[Tensor]:
        """What replicas sum: gradients and, row by row, BatchNorm statistics where the same ranks have them."""
        return [*self.weights.gradients, *([] if self.two_devices else self.rows)]

    def tensors(self) -> Iterator[Tensor]:
        """What it holds all the time."""
        yield from self.weights.tensors()
        yield from self.rows

    @property
    def rows(self) -> list[Tensor]:
        """BatchNorm statistics of the step, if there are any to exchange."""
        rows = None if self.statistics is None else self.statistics.rows
        return [] if rows is None or not rows.numel() else [rows]


@dataclass(frozen=True)
class Blueprint:
    """What every rank builds its stages from.

    Attributes:
        shapes: of what every stage takes, of a full micro-batch; smaller: of those of fewer samples, by their number.
        device: where this rank computes. alike: what its micro-batches have in common so far.
        compiled: as in `RunOptions`. pauses: see `Transport`.
        lane: whose part of every layer it builds, where a device is a team. among_team: see `Building`.
    """

    plan: Plan
    model: LayeredModel
    data: Dataset
    shapes: Shapes
    seed: int
    training: Training
    dtype: torch.dtype
    engine: Engine = "auto"
    device: torch.device = CPU.device
    compiled: bool | None = None
    pauses: bool = False
    smaller: Mapping[int, Shapes] = field(default_factory=dict)
    alike: Alike = field(default_factory=Alike, compare=False)
    lane: Lane | None = None
    among_team: Callable[[Any], list[Any]] = alone

    @property
    def full(self) -> int:
        """Samples of a full micro-batch."""
        return self.plan.problem.model.micro_batch_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples that micro-batches of the run have, the full ones first."""
        return (self.full, *self.smaller)

    @cached_property
    def mini_batches(self) -> MiniBatches:
        """Of the training."""
        return MiniBatches.of_plan(self.plan, self.training, self.data, self.counts)

    @property
    def counts(self) -> Counts | None:
        """What counts of the micro-batches of a step of the data; None: their samples."""
        return counts_of(self.model, self.data, self.seed)

    def takes(self, stage: int, samples: int) -> dict[Value, TensorShape]:
        """What a stage takes."""
        shapes = self.smaller.get(samples, self.shapes)[stage]
        return dict(zip(self.passing.parts[stage].takes, shapes, strict=True))

    @cached_property
    def passing(self) -> Passing:
        """What passes between stages, and which of it has gradients."""
        wiring, ids = self.model.wiring, stage_ids(self.plan, self.pieces)
        trained = trained_behind(self.plan, self.model, self.pieces)
        with_gradients = {
            value
            for mine, shapes in zip(ids, self.shapes, strict=True)
            for value, shape in zip(wiring.part(mine).takes, shapes, strict=True)
            if value.layer != DATA and trained[value.layer] and shape.dtype.is_floating_point
        }
        return Passing(tuple(wiring.part(mine, with_gradients) for mine in ids))

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names by layer id."""
        return tuple(layer.name for layer in self.model.layers)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """What every layer of the plan is made of."""
        return planned_pieces(self.plan, self.model)

    def batch(self, step: int, micro_batch: int, samples: int) -> tuple[Inputs, Tensor]:
        """Inputs and targets of a micro-batch on the host, floating-point ones in the run's dtype and its losses'."""
        drawn = inputs_and_targets(self.data, self.seed, step, micro_batch, samples)
        inputs = each(drawn[0], lambda tensor: as_dtype(tensor, self.dtype))
        targets = as_dtype(drawn[1], wide(self.dtype))
        self.alike.require(self.data, step, micro_batch, samples, "inputs", inputs)
        self.alike.require(self.data, step, micro_batch, samples, "targets", targets)
        return inputs, targets

    def targets(self, step: int, micro_batch: int, samples: int) -> Tensor:
        """The targets of `batch`, where the data set can without its inputs."""
        drawn = targets_alone(self.data, self.seed, step, micro_batch, samples)
        targets = as_dtype(drawn, wide(self.dtype))
        self.alike.require(self.data, step, micro_batch, samples, "targets", targets)
        return targets

    def build(self, rank: int, stage: int, self_check: bool, others: Iterable[StageReplica] = ()) -> StageReplica:
        """This rank's replica of a stage; its parameters depend on seed and layer alone.

        What it shares with `others`, built before for the rank, is theirs.

        Raises TraceError, ProgramMismatch (if `self_check`) or RunError (it cannot be recomputed as planned), all
        naming the stage.
        """
        ids = self.passing.parts[stage].ids
        built = {i: build_lowered(self.model.layers[i], self.seed, i, self.dtype, self.lane) for i in ids}
        modules = {i: module.to(self.device) for i, (module, _) in built.items()}
        kept = {f"{i}.{name}": tensor for i, (_, own) in built.items() for name, tensor in own.items()}
        masters = {name: tensor.to(self.device) for name, tensor in kept.items()}
        check_seed = self.seed if self_check else None
        with _SETUP_LOCK, _disable_current_modes():  # training's memory is measured, not the setup's
            examples = {samples: self._example(stage, samples) for samples in self.sizes}
            layers = self._layers(stage, modules)
            compiled = stage in self._compiled
            programs = {n: self._program(layers, n, *example, check_seed, compiled) for n, example in examples.items()}
        for program, _ in programs.values():
            self._require_runnable(program, rank, stage)
        owners, forwards = holders(self.plan)[stage], forward_devices(self.plan, stage)
        lender = {number: tied for other in others for number, tied in other.weights.tied.items()}
        shared = sharing(self.plan, self.model, modules, masters, lender, self._built)
        optimizer, owner = self.plan.problem.workload.optimizer, rank in owners
        remember = owner and _remembers(self.plan, rank, stage)
        part = _part_of(self.plan, rank, owners)
        weights = StageWeights(modules, optimizer, self.training, masters, shared, part, remember)
        arrivals: dict[int, PackedStash] = {}
        if stage_on_two_devices(self.plan, stage):
            with _SETUP_LOCK, _disable_current_modes():
                arrivals = {n: _arrival(programs[n][0], weights, *example) for n, example in examples.items()}
        statistics = self._statistics(rank, stage, modules, weights)
        evaluation = None
        if self.training.evaluate_every and rank in forwards:
            eager = any(program.one_process for program, _ in programs.values())
            evaluation = self._evaluation(layers, *examples[self.full], check_seed, eager)
        program, notice = programs[self.full]
        full = StageReplica(
            stage, program, weights, statistics, f"stage{stage}" if owner and len(owners) > 1 else None,
            statistics_group(self.plan, stage), stage_on_two_devices(self.plan, stage), owner, rank in forwards,
            arrivals.get(self.full), ties_of(self.plan, stage), evaluation, notice,
        )  # fmt: skip
        less = {n: replace(full, program=programs[n][0], arrival=arrivals.get(n)) for n in self.smaller}
        return replace(full, smaller=less, unregistered=unregistered(modules))

    def _layers(self, stage: int, modules: dict[int, nn.Module]) -> StageLayers:
        part = self.passing.parts[stage]
        loss = self.model.loss if stage == len(self.plan.stages) - 1 else None
        label, half = f"stage {stage}", half_of(self.dtype)
        return StageLayers(tuple(modules.values()), tuple(modules), loss, any(part.wanted), label, half, part)

    def _built(self, index: int) -> nn.Module:
        return build_layer(self.model.layers[index], self.seed, index, wide(self.dtype), self.lane)

    @cached_property
    def _compiled(self) -> frozenset[int]:
        return compiled_stages(self.plan, self.compiled)

    def _sharing(self, compiled: bool) -> Sharing:
        return shared_by(self.model, self.seed, self.dtype, compiled, self.pauses, self.lane)

    def _program(
        self, layers: StageLayers, samples: int, x: Carried, target: Tensor | None, seed: int | None, compiled: bool
    ) -> tuple[AnyProgram, str | None]:
        """The program for micro-batches of so many samples, and a notice as of `build_program`."""
        if samples != self.full:
            layers = replace(layers, label=f"{layers.label}, micro-batches of {samples}")
        how = Building(
            self.engine,
            seed,
            self._stash_bytes(layers.layer_ids),
            compiled=compiled,
            pauses=self.pauses,
            sharing=self._sharing(compiled),
            among_team=self.among_team,
        )
        return build_program(layers, x, target, how)

    def _alone_in_order(self, rank: int, stage: int) -> bool:
        """Whether this rank runs all forwards of the stage, in the order of the micro-batches, and their backwards."""
        return (
            len(forward_devices(self.plan, stage)) == 1
            and not stage_on_two_devices(self.plan, stage)
            and _in_order(self.plan, rank, stage)
        )

    def _statistics(
        self, rank: int, stage: int, modules: dict[int, nn.Module], weights: StageWeights
    ) -> Statistics | None:
        """Needed where other ranks run forwards of the stage too, or this one runs them in another order."""
        forwards = forward_devices(self.plan, stage)
        alone = len(forwards) == 1
        if rank not in forwards or not weights.buffers or (alone and _in_order(self.plan, rank, stage)):
            return None
        total = self.plan.problem.workload.micro_batches
        if asynchronous(self.plan):
            raise RunError(
                f"stage {stage}: its running statistics would have to be exchanged between devices or put in order, "
                "which is done for synchronous plans only: plan without replicas"
            )
        if alone:
            return StatisticsQueue(modules, weights.buffers, self.layer_names)
        return StatisticsExchange(modules, weights.buffers, total, self.layer_names)

    def _evaluation(
        self, layers: StageLayers, example: Carried, target: Tensor | None, check_seed: int | None, eager: bool
    ) -> AnyProgram:
        """The program in evaluation mode, without gradients, on copies of the layers: an `eager` one trains on them.

        Raises RunError: it does, and they cannot be copied.
        """
        copies = isolated(layers)
        if eager and copies is layers:
            raise RunError(f"{layers.label}: on the eager engine, and its layers cannot be copied to be evaluated")
        modules = tuple(module.eval().requires_grad_(False) for module in copies.modules)
        held_out = replace(layers, modules=modules, needs_input_grad=False, label=f"{layers.label}, evaluation")
        how = Building(self.engine, check_seed, sharing=self._sharing(False), among_team=self.among_team)
        with _SETUP_LOCK, _disable_current_modes():
            return build_program(held_out, example, target, how)[0]

    def _require_runnable(self, program: AnyProgram, rank: int, stage: int) -> None:
        """Raises RunError where the plan asks for what the stage cannot do."""
        again = _remade(self.plan, rank, stage)
        planned = sum(x.selective_bytes for x, _ in self._planned(program.layer_ids))
        if planned and not program.selective_bytes and any(row.partial for row in again):
            raise RunError(
                f"stage {stage}: the plan drops {planned} bytes of its stash and makes them again (R), and its "
                "programs can drop none: plan with --no-recompute, or profile the model on the engine that runs it"
            )
        if not program.can_remake and any(not row.partial for row in again):
            raise RunError(
                f"stage {stage}: its forward changes a buffer or a number that it reads, so it cannot be recomputed "
                "(R): plan with --no-recompute"
            )
        if program.one_process and stage_on_two_devices(self.plan, stage):
            raise RunError(
                f"stage {stage}: on the eager engine its forward and backward run on one device: "
                "plan with --no-separate-backward"
            )
        if program.has_state and not self._alone_in_order(rank, stage):
            raise RunError(
                f"stage {stage}: its Python state changes what it computes, so one device must run its "
                "micro-batches in order"
            )

    def _stash_bytes(self, layer_ids: Collection[int]) -> int:
        """What the plan counts for one stash of these layers."""
        layers = [layer for layer, _ in self._planned(layer_ids)]
        twice = twice_inside(self.plan.problem.model.kept_twice, {layer.name for layer in layers})
        return sum(layer.stash_bytes for layer in layers) - twice

    def _planned(self, layer_ids: Collection[int]) -> Iterator[tuple[Layer, Piece]]:
        """These layers as the plan has them."""
        both = zip(self.plan.problem.model.layers, self.pieces, strict=True)
        return ((layer, piece) for layer, piece in both if piece.ids.start in layer_ids)

    def _example(self, stage: int, samples: int) -> tuple[Carried, Tensor | None]:
        """What the stage takes (noise unless it is of the data) and a last stage's target, to trace and check with."""
        inputs, targets = self.batch(0, 0, samples)
        takes = self.takes(stage, samples)
        found = self.model.wiring.given(inputs, takes)
        generator = torch.Generator().manual_seed(self.seed)
        for value, shape in takes.items():
            if value not in found and shape.dtype.is_floating_point:
                found[value] = torch.randn(shape.shape, dtype=shape.dtype, generator=generator)
            elif value not in found:
                found[value] = _even(shape) if shape.dtype == torch.bool else shape.empty().zero_()
        x = carried([found[value].to(self.device) for value in takes])
        return x, targets.to(self.device) if stage == len(self.plan.stages) - 1 else None


def _even(shape: TensorShape) -> Tensor:
    """Every other one true: a mask that hides all there is gives NaN."""
    count = shape.empty("meta").numel()
    return (torch.arange(count) % 2 == 0).reshape(shape.shape)


def _part_of(plan: Plan, rank: int, owners: tuple[int, ...]) -> Part | None:
    """Which part of a stage's optimizer the rank has; None: it trains no replica."""
    if rank not in owners:
        return None
    return Part(owners.index(rank), len(owners)) if plan.problem.workload.sharded else ALL


def _arrival(program: AnyProgram, weights: StageWeights, x: Carried, target: Tensor | None) -> PackedStash:
    """What one stash of the stage is beside its pieces, found by making one; its buffers are this rank's."""
    copies = {name: tensor.clone() for name, tensor in weights.buffers.items()}
    _, stash = program.forward(weights.parameters, copies, x, target)
    _, packed = program.stash_layout.pack(stash)
    own = {id(copy): weights.buffers[name] for name, copy in copies.items()}
    members = (own.get(id(member), member) for member in packed.members)
    return PackedStash(tuple(members), packed.nbytes)


def _remade(plan: Plan, rank: int, stage: int) -> set[StashPolicy]:
    """The policies by which the rank recomputes the stage for some micro-batch."""
    taken = route(plan)
    again = {taken[op.micro_batch] for op in plan.orders[rank] if op.kind is Kind.R and op.stage == stage}
    return {stash_policy(plan.stash[number][stage]) for number in again}


def _remembers(plan: Plan, rank: int, stage: int) -> bool:
    """Whether the rank predicts the stage's weights from the gradient of the last update."""
    predicts = any(op.kind is Kind.PREDICT and op.stage == stage for op in plan.orders[rank])
    return predicts and plan.problem.workload.keeps_gradient(WEIGHT_POLICIES[plan.weights].momentum_first)


def _in_order(plan: Plan, rank: int, stage: int) -> bool:
    """Whether the rank runs the stage's forwards in micro-batch order."""
    order = [op.micro_batch for op in plan.orders[rank] if op.kind is Kind.F and op.stage == stage]
    return order == sorted(order)
