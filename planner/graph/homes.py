"""Where every stage of every micro-batch runs, and what becomes of its stash, as tables of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..basics import PerObject
from ..plan import Kind
from ..problem import FLUSH, StageCosts
from .columns import Flags, Ints, Ops
from .policies import StashPolicy, ship_target, stash_policy
from .structured import Structured, update_size

_BACK = frozenset({Kind.B, Kind.I, Kind.W, Kind.R, Kind.FETCH})
"""Ops of a stage and micro-batch that run where its backward does."""


@dataclass(frozen=True)
class Homes:
    """Tables [stage, micro-batch] of a plan or candidate.

    device: of F. back: of B, I, W, R and FETCH. row: number of the stash's policy in `rows`. away: the device that the
    policy names, -1: none. node: of every device. groups: of tied parameters in the model. update: micro-batches an
    update; 0: one update, at the end. sharded: replicas of a stage share its optimizer.
    """

    device: Ints
    back: Ints
    row: Ints
    away: Ints
    rows: tuple[StashPolicy, ...]
    devices: int
    node: Ints
    groups: int
    update: int
    sharded: bool

    @classmethod
    def of(cls, plan: Structured, micro_batches: int = 0) -> Homes:
        """The tables, for at least so many micro-batches; those that take no pipeline go with the first.

        Raises PlanError for unknown policies. Remembered while the plan lives.
        """
        count = max(micro_batches, plan.problem.workload.micro_batches)
        return _known.get(plan, count, lambda: cls._of(plan, count))

    @classmethod
    def _of(cls, plan: Structured, count: int) -> Homes:
        stages, path = len(plan.stages), np.zeros(count, dtype=np.int64)
        for number in reversed(range(len(plan.pipelines))):
            taken = np.array(plan.pipelines[number].micro_batches, dtype=np.int64)
            path[taken[taken < count]] = number
        routes = np.array([(p.forward, p.backward) for p in plan.pipelines], dtype=np.int64).reshape(-1, 2, stages)
        texts = sorted({text for row in plan.stash for text in row})
        rows = tuple(dict.fromkeys(map(stash_policy, texts)))
        named = {text: (rows.index(stash_policy(text)), _device(text)) for text in texts}
        policies = np.array([[named[text] for text in row] for row in plan.stash], dtype=np.int64)
        policies = policies.reshape(-1, stages, 2)[path]
        cluster = plan.problem.cluster
        return cls(
            device=routes[path, 0].T,
            back=routes[path, 1].T,
            row=policies[:, :, 0].T,
            away=policies[:, :, 1].T,
            rows=rows,
            devices=len(cluster),
            node=np.array([device.node for device in cluster.devices], dtype=np.int64),
            groups=len(plan.problem.model.shared),
            update=0 if plan.weights == FLUSH else update_size(plan),
            sharded=plan.problem.workload.sharded,
        )

    # ------------------------------------------------------------ stashes

    def where(self, says: Callable[[StashPolicy], bool]) -> Flags:
        """Of which stashes the policy's row says so."""
        return np.array([says(row) for row in self.rows], dtype=np.bool_)[self.row]

    @cached_property
    def remade(self) -> Flags:
        """Which stashes are made again by an R."""
        return self.where(lambda row: row.remade)

    def partly(self, ops: Ops, items: Ints) -> Flags:
        """Of the stashes of which of these ops an R makes a part again."""
        if not any(row.partial for row in self.rows):
            return np.zeros(len(items), dtype=np.bool_)
        return self.where(lambda row: row.partial)[ops.stage[items], ops.micro_batch[items]]

    @cached_property
    def hosted(self) -> Flags:
        """Which go to the host and back."""
        return self.where(lambda row: row.hosted)

    @cached_property
    def shipped(self) -> Flags:
        """Which go to the device that their policy names, and back."""
        return self.where(lambda row: row.shipped)

    @cached_property
    def moved(self) -> Flags:
        """Which (or what they are made from again) are sent from the forward to the backward device."""
        return np.asarray((self.device != self.back) & self.where(lambda row: row.crosses))

    @property
    def separate(self) -> bool:
        """Whether some stage has two devices."""
        return bool((self.device != self.back).any())

    def bytes_of(self, costs: StageCosts) -> Ints:
        """[row, stage]: bytes that leave their device by each policy, weights apart."""
        return _known_bytes.get(
            costs, self.rows, lambda: np.array([row.moved_bytes(costs) for row in self.rows], dtype=np.int64)
        )

    def moved_bytes(self, costs: StageCosts, ops: Ops, items: Ints) -> Ints:
        """Bytes that leave the device of the stash of each of these ops, weights apart."""
        stage = ops.stage[items]
        return np.asarray(self.bytes_of(costs)[self.row[stage, ops.micro_batch[items]], stage], dtype=np.int64)

    def versioned(self, ops: Ops, items: Ints) -> Flags:
        """With the stashes of which of these ops a version of the weights goes along."""
        if not any(row.versioned for row in self.rows):
            return np.zeros(len(items), dtype=np.bool_)
        return self.where(lambda row: row.versioned)[ops.stage[items], ops.micro_batch[items]]

    def takers(self, ops: Ops, items: Ints) -> Ints:
        """The op that needs what has come back, or has crossed, of each of these ops' stashes; -1: none is there."""
        backward = ops.at(ops.table(Kind.B, Kind.I), items)
        if all(row.taken_back is Kind.B for row in self.rows):
            return backward
        again = self.where(lambda row: row.taken_back is Kind.R)[ops.stage[items], ops.micro_batch[items]]
        return np.where(again, ops.at(ops.table(Kind.R), items), backward)

    # ------------------------------------------------------------ replicas and updates

    @property
    def update_ends(self) -> Ints:
        """The micro-batch in the STEP of every update: its last one, or -1 where one update ends the step."""
        if not self.update:
            return np.array([-1])
        return np.arange(self.update, self.device.shape[1] + 1, self.update) - 1

    def update_of(self, micro_batch: Ints) -> Ints:
        """The update that each of these micro-batches is part of."""
        return micro_batch // self.update if self.update else np.zeros_like(micro_batch)

    @property
    def held(self) -> Flags:
        """[device, stage]: whether the device holds a trained replica of the stage (it runs the backward)."""
        return self.runs(self.back)

    @property
    def owners(self) -> dict[int, list[int]]:
        """The devices that hold a trained replica of each stage."""
        return {stage: np.flatnonzero(column).tolist() for stage, column in enumerate(self.held.T)}

    def runs(self, table: Ints) -> Flags:
        """[device, stage]: whether the device runs the stage for some micro-batch; `table`: `device` or `back`."""
        runs = np.zeros((self.devices, len(table)), dtype=np.bool_)
        runs[table, np.arange(len(table))[:, None]] = True
        return runs

    @property
    def returned(self) -> tuple[Ints, Ints, Ints]:
        """Stage, source and target of the parameters that go to devices that only run a stage's forward.

        The source holds a trained replica: in the target's node where there is one, of these the lowest device.
        """
        held = self.held
        stage, target = np.nonzero((self.runs(self.device) & ~held).T)
        far = self.node[:, None] != self.node[target][None, :]
        cost = np.where(held[:, stage], far * self.devices + np.arange(self.devices)[:, None], 2 * self.devices)
        return stage, cost.argmin(axis=0), target

    def of_kind(self, kind: int) -> Ints:
        """Where the ops of this kind run."""
        return self.back if kind in _BACK else self.device


def parameter_returns(plan: Structured, costs: StageCosts) -> list[tuple[int, int, int]]:
    """(stage, owner, device) for every device that runs a stage's forward only; with a flush, none of a stage without
    trained parameters.

    The owner is one of the device's own node where there is one, of these the lowest.
    """
    returned = zip(*map(np.ndarray.tolist, Homes.of(plan).returned), strict=True)
    return [row for row in returned if costs.trained_bytes[row[0]] or plan.weights != FLUSH]


def _device(text: str) -> int:
    target = ship_target(text)
    return -1 if target is None else target


_known: PerObject[Homes] = PerObject(2)
_known_bytes: PerObject[Ints] = PerObject(8)


def copied_bytes(plan: Structured, costs: StageCosts, ops: Ops, copies: Ints) -> Ints:
    """Bytes of each of these OFFLOADs and FETCHes: what leaves, and the version of the weights that goes with it."""
    homes = Homes.of(plan, ops.width)
    versions = costs.trained_bytes[ops.stage[copies]] * homes.versioned(ops, copies)
    return np.asarray(homes.moved_bytes(costs, ops, copies) + versions, dtype=np.int64)
