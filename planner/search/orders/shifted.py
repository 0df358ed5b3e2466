"""A structure's arrays on one cut after the other, put together from what its stages were on earlier ones.

In a chain of layers without ties, what an op of a stage takes depends on where the stage begins and ends alone. So
arrays are made from the candidate, which takes ten times as long, only where some stage is new.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...graph import Candidate, gather_seconds, holders, stage_bytes, step_seconds
from .arm import Arm
from .arrays import build
from .kernels import KINDS, Arrays, Floats, Ints


class Shifted:
    """Arrays of an arm's structure by cut: where its stages end, in layers, with the begin of the first.

    Attributes:
        names: the layers in the order in which they are cut.
        apart: whether stages depend on their own layers alone.
        known: by stage, its column of `_columns` by where it begins and ends.
        home: devices of the units. counted: whether a unit is the first of its stage on its device.
        times: how often every op type runs. room: bytes of every device without its stages.
    """

    def __init__(self, arm: Arm) -> None:
        self.arm, self.first, candidate = arm, arm.arrays, arm.candidate
        self.names = [name for stage in candidate.stages for name in stage]
        following = set(pairwise(self.names))
        self.apart = not arm.folded and not candidate.costs.ties
        self.apart &= all(edge in following for edge in candidate.problem.model.edges)
        self.apart &= all(pipeline.micro_batches for pipeline in candidate.pipelines)
        self.known: list[dict[tuple[int, int], Floats]] = [{} for _ in candidate.stages]
        homes = [pipeline.forward for pipeline in candidate.pipelines]
        self.home = np.array(homes).ravel()
        self.counted = np.array([
            all(route[s] != d for route in homes[:p]) for p, row in enumerate(homes) for s, d in enumerate(row)
        ])  # fmt: skip
        kinds = [np.ones(2 * len(self.home)), self.first.split, self.first.remade, self.first.away, self.first.away]
        self.times = np.tile(self.first.batches, KINDS) * np.concatenate(kinds)
        self.room = self.first.limit + (self._on_devices(self._held(candidate)) if self.apart else 0)

    def candidate(self, cut: Ints) -> Candidate:
        """The structure on a cut."""
        return replace(self.arm.candidate, stages=tuple(tuple(self.names[a:b]) for a, b in pairwise(cut.tolist())))

    def at(self, cut: Ints) -> Arrays:
        """The arrays on a cut."""
        spans = list(pairwise(cut.tolist()))
        if all(span in known for known, span in zip(self.known, spans, strict=True)):
            found = [known[span] for known, span in zip(self.known, spans, strict=True)]
            return self._joined(np.stack(found, axis=1))
        candidate = self.candidate(cut)
        arrays = build(candidate, self.arm.split, self.arm.lowered, self.arm.folded)
        if self.apart and self._alike(arrays):
            for known, span, column in zip(self.known, spans, self._columns(candidate, arrays).T, strict=True):
                known.setdefault(span, column.copy())
        return arrays

    def _alike(self, arrays: Arrays) -> bool:
        """Whether a cut has the same ops and messages as the arm's."""
        return np.array_equal(arrays.split, self.first.split) and all(
            np.array_equal(getattr(arrays, name), getattr(self.first, name))
            for name in ("edge_source", "edge_link", "edge_lag", "remade")
        )

    def _columns(self, candidate: Candidate, a: Arrays) -> Floats:
        """By stage, of every unit: duration, need and delta by kind, tail, seconds of copies, of messages with
        activations and gradients, bytes that stay on its device, seconds of its step and of gathering.
        """
        costs, problem, owners = candidate.costs, candidate.problem, holders(candidate)
        units = [(s, d) for pipeline in candidate.pipelines for s, d in enumerate(pipeline.forward)]
        messages = np.zeros(2 * len(units))
        messages[a.edge_source] = a.edge_work
        steps = [step_seconds(candidate, costs, s, d, owners) for s, d in units]
        gathers = [sum(gather_seconds(problem, owners[s], int(costs.own_trained_bytes[s]))) for s, _ in units]
        rows = (
            a.duration, a.need, a.delta, a.tail, a.copy_work, messages, self._held(candidate), steps, gathers,
        )  # fmt: skip
        return np.concatenate(rows).reshape(-1, len(candidate.stages))

    def _held(self, candidate: Candidate) -> Floats:
        """By unit, the bytes of its stage that stay on its device."""
        found = [stage_bytes(candidate, candidate.costs, s, d) for s, d in holders(candidate).items()]
        units = [(s, d) for pipeline in candidate.pipelines for s, d in enumerate(pipeline.forward)]
        return np.array([sum(found[s][d].values()) for s, d in units], dtype=float)

    def _joined(self, columns: Floats) -> Arrays:
        """The arrays whose stages have these columns."""
        flat, units = columns.ravel(), len(self.home)
        sizes = np.cumsum([KINDS, KINDS, KINDS, 1, 1, 2, 1, 1]) * units
        duration, need, delta, tail, copies, messages, held, steps, gathers = np.split(flat, sizes)
        devices, first = len(self.first.limit), self.first
        least = np.full(devices, np.inf)
        np.minimum.at(least, self.home, gathers)
        done = np.bincount(self.home, self.counted * steps, devices).astype(np.float64)
        return first._replace(
            duration=duration, need=need.astype(np.int64), delta=delta.astype(np.int64), tail=tail, copy_work=copies,
            edge_work=messages[first.edge_source], limit=self.room - self._on_devices(held),
            done=done + np.where(np.isinf(least), 0.0, least),
            load=np.bincount(first.home, self.times * duration, devices).astype(np.float64),
        )  # fmt: skip

    def _on_devices(self, held: Floats) -> Ints:
        """Bytes of all stages by device, what is one stage's counted once."""
        return np.bincount(self.home, self.counted * held, len(self.first.limit)).astype(np.int64)
