"""Asynchronous training without a pipeline: one process, one micro-batch after another, versions in a table.

What a plan's run must equal, float by float: the same stage programs, optimizer and predictions, but which version of
the weights every pass reads is written down here as formulas of stages, updates and micro-batches, from the papers and
not from op lists. They hold for the order "one forward, one backward", a device each stage; with R replicas, which
take micro-batches in turn, gradients are summed in another order than by the run, so that it equals to round-off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models import Dataset, LayeredModel, derive_seed
from ...models.wiring import Value, carried, tensors_of
from ...planner.graph import StashPolicy, route, stash_policy, update_size
from ...planner.plan import Plan
from ...planner.problem import WEIGHT_POLICIES
from ..basics import RunError
from ..run import blueprint_of, prepare
from ..stage import gradients_of
from ..state import Blueprint, MiniBatch, Predictor, StageReplica, in_place_of


@dataclass(frozen=True)
class Emulation:
    """Mean losses an update, and final tensors by checkpoint key."""

    losses: tuple[float, ...]
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Timing:
    """When stages take their updates.

    Attributes:
        stages: their number. update, micro_batches: micro-batches an update, and a run; of one replica.
        summed: stages whose gradients come from several devices: they update right before their next backward,
            the others right after the last one of the update.
    """

    stages: int
    update: int
    micro_batches: int
    summed: frozenset[int] = frozenset()

    def newest(self, stage: int, micro_batch: int) -> int:
        """Updates that a stage has taken when it runs a forward.

        Stage k begins with D - k forwards; from then on a backward precedes every forward.
        """
        backwards = micro_batch + 1 - min(self.stages - stage, self.micro_batches)
        return max(0, backwards - (1 if stage in self.summed else 0)) // self.update

    def read(self, policy: str, stage: int, micro_batch: int) -> int:
        """The version that a forward reads, before any prediction."""
        if policy == "vertical":
            return self.newest(0, micro_batch)
        if policy == "2bw":
            return self.newest(0, micro_batch // self.update * self.update)
        return self.newest(stage, micro_batch)


def updates_ahead(policy: str, stage: int, late: int, backward: bool) -> int:
    """How far a pass's weights are predicted ahead of the version it reads; `late`: updates before its backward."""
    if policy == "spectrain":
        return late + stage // 2
    if backward or not policy.startswith("pipeoptim"):
        return 0
    return late + (1 if policy == "pipeoptim-lookahead" else 0)


def emulate(
    plan: Plan,
    runs: Sequence[int],
    model: LayeredModel | str | None = None,
    data: Dataset | str | None = None,
    **options: Any,
) -> Emulation:
    """Trains as `execute` does under the plan's weight policy and stages, whose op lists are not read.

    Args:
        runs: updates between an empty pipeline and an empty pipeline, one number a run.
        model, data, options: as of `execute`.
    """
    return Emulator(blueprint_of(prepare(plan, sum(runs), model, data, **options))).train(runs)


@dataclass(frozen=True)
class _Version:
    """A stage's weights, and what the optimizer knew then (see `prediction.Known`)."""

    parameters: Mapping[str, Tensor]
    trained: Mapping[str, Tensor]
    states: Mapping[str, Mapping[str, Tensor]]
    last_gradients: Mapping[str, Tensor]
    taken: int

    @classmethod
    def of(cls, replica: StageReplica) -> _Version:
        weights = replica.weights
        values = {name: weights.parameters[name].clone() for name in weights.trained}
        masters = {
            name: values[name] if value is weights.parameters[name] else value.clone()
            for name, value in weights.trained.items()
        }
        states = {key: _copied(tensors) for key, tensors in weights.states.items()}
        return cls(in_place_of(weights, values), masters, states, _copied(weights.last_gradients), weights.taken)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


class Emulator:
    """One training. What depends on the order in which devices work is in `read_by_forward` and `late`.

    kept: versions of a stage before the newest that somebody may still read.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        plan = blueprint.plan
        self.blueprint = blueprint
        if plan.weights not in WEIGHT_POLICIES:
            raise RunError(f"unknown weight policy {plan.weights!r}; known: {', '.join(WEIGHT_POLICIES)}")
        self.policy, self.update, self.depth = plan.weights, update_size(plan), len(plan.stages)
        self.stash, self.routes = plan.stash, route(plan)
        self.kept = self.depth
        devices = plan.pipelines[0].backward
        self.replicas = [blueprint.build(devices[stage], stage, self_check=False) for stage in range(self.depth)]
        self.copies = len({pipeline.forward for pipeline in plan.pipelines})
        tied = {stage for stage in range(self.depth) if self.replicas[stage].ties}
        self.summed = frozenset(range(self.depth)) if self.copies > 1 else frozenset(tied)
        first = self.policy == "pipeoptim-lookahead"
        smoothed = self.policy == "spectrain"
        self.predictor = Predictor(plan.problem.workload.optimizer, blueprint.training, first, smoothed)

    def train(self, runs: Sequence[int]) -> Emulation:
        """Runs of so many updates, one after another."""
        first, losses = 0, list[float]()
        for updates in runs:
            losses += self.run(first, updates)
            first += updates
        return Emulation(tuple(losses), self.state())

    def run(self, first: int, updates: int) -> list[float]:
        """The mean losses of one run."""
        self.first = first
        self.timing = Timing(self.depth, self.update // self.copies, updates * self.update // self.copies, self.summed)
        for replica in self.replicas:
            replica.weights.forget_gradients()
        self.versions = [{0: _Version.of(replica)} for replica in self.replicas]
        means = []
        for number in range(updates):
            for replica in self.replicas:
                replica.weights.zero_gradients()
            mini_batch, before = self.blueprint.mini_batches.weighed(first + number), number * self.update
            losses = {m: self._micro_batch(before + m, mini_batch) for m in range(self.update)}
            means.append(mini_batch.mean(losses))
            self._step(first + number)
        return means

    def _micro_batch(self, m: int, mini_batch: MiniBatch) -> float:
        """One forward and one backward through all stages; returns the loss."""
        step, of = self.first + m // self.update, m % self.update
        samples = mini_batch.size(of)
        programs = [replica.of_size(samples).program for replica in self.replicas]
        passing = self.blueprint.passing
        given, target = self.blueprint.batch(step, of, samples)
        wiring, there = self.blueprint.model.wiring, dict[Value, Tensor]()
        seed = derive_seed(self.blueprint.seed, step, of)
        stashes, read, inputs = [], [], []
        for stage, replica in enumerate(self.replicas):
            version = self.read_by_forward(stage, m)
            read.append(version)
            weights = self._weights(stage, m, version, backward=False)
            wanted = target if stage == self.depth - 1 else None
            part = passing.parts[stage]
            there |= wiring.given(given, part.takes)
            inputs.append(carried([there[value] for value in part.takes]))
            program = programs[stage]
            forward = program.forward_part if self._row(m, stage).partial else program.forward
            x, stash = forward(weights, replica.weights.buffers, inputs[stage], wanted, seed)
            there |= zip(part.gives, tensors_of(x), strict=False)  # a loss is nobody's
            stashes.append(stash)
        loss = tensors_of(x)[0].item()
        scale = self.blueprint.training.loss_scale
        assert isinstance(scale, int | float)
        lost = torch.full((), 1.0 / self.update * mini_batch.weight(of) * scale, dtype=tensors_of(x)[0].dtype)
        sums: dict[Value, Tensor] = {}
        for stage in reversed(range(self.depth)):
            stashed = self.policy in ("stash", "vertical", "2bw")
            version = read[stage] if stashed else m // self.update
            weights, replica = self._weights(stage, m, version, backward=True), self.replicas[stage]
            stash = stashes.pop()
            row = self._row(m, stage)
            if row.partial:
                kept = self.versions[stage][version].parameters
                stash = programs[stage].remake_part(stash, kept, replica.weights.buffers)
            elif row.remade:  # from the version, not predicted
                kept, wanted = self.versions[stage][version].parameters, target if stage == self.depth - 1 else None
                stash = programs[stage].remake(kept, replica.weights.buffers, inputs[stage], wanted, seed)
            entering = (
                carried([sums.pop(value) for value in passing.returned(stage)]) if stage < self.depth - 1 else lost
            )
            found = programs[stage].backward(stash, weights, entering, replica.weights.accumulators)
            shapes = self.blueprint.takes(stage, samples)
            for value, gradient in zip(passing.wanted(stage), gradients_of(found), strict=False):
                gradient = shapes[value].empty().zero_() if gradient is None else gradient
                sums[value] = sums[value] + gradient if value in sums else gradient
        return loss

    def _row(self, m: int, stage: int) -> StashPolicy:
        return stash_policy(self.stash[self.routes[m % len(self.routes)]][stage])

    def _weights(self, stage: int, m: int, version: int, backward: bool) -> Mapping[str, Tensor]:
        known, weights = self.versions[stage][version], self.replicas[stage].weights
        ahead = updates_ahead(self.policy, stage, 0 if backward else self.late(stage, m, version), backward)
        if not ahead:
            return known.parameters
        rate = self.blueprint.training.rate(self.first + version)
        return in_place_of(weights, self.predictor.predict(known, rate, ahead))

    def read_by_forward(self, stage: int, m: int) -> int:
        """The version that a forward reads."""
        return self.timing.read(self.policy, stage, m // self.copies)

    def late(self, stage: int, m: int, version: int) -> int:
        """Updates that the stage takes between a forward's version and its backward."""
        return m // self.update - version

    def _step(self, number: int) -> None:
        training = self.blueprint.training
        assert isinstance(training.loss_scale, int | float)
        for tie in sorted({tie for replica in self.replicas for tie in replica.weights.tied_gradients}):
            first, *others = [r.weights.tied_gradients[tie] for r in self.replicas if tie in r.weights.tied_gradients]
            for other in others:
                first.add_(other)
            for other in others:
                other.copy_(first)
        for versions, replica in zip(self.versions, self.replicas, strict=True):
            if training.loss_scale != 1:
                for flat in (*replica.weights.gradients, *replica.weights.tied_gradients.values()):
                    flat.mul_(1 / training.loss_scale)
            replica.weights.step(training.rate(number))
            newest = max(versions) + 1
            versions[newest] = _Version.of(replica)
            versions.pop(newest - self.kept - 1, None)

    def state(self) -> dict[str, Tensor]:
        """As `execute` returns it."""
        names = self.blueprint.layer_names
        return {key: t for replica in self.replicas for key, t in replica.weights.named_state(names).items()}
