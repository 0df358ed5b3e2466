"""The items of a page: ops that have a job in the simulation, and their columns (see `html_data`)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..forecast import jobs_of_ops
from ..graph import Floats, Ints, copied_bytes
from ..plan import COLLECTIVES, COPIES, Kind, Plan
from .critical import Waiting, all_waiting
from .html_columns import coded

if TYPE_CHECKING:
    from ..forecast import Timeline


class Items:
    """Which ops are items, and their columns."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self.plan, self.timeline, self.jobs = plan, timeline, timeline.jobs
        ops = self.jobs.ops
        self.op = np.flatnonzero(
            (self.jobs.rank[: len(ops)] >= 0) | np.isin(ops.kind, [kind.value for kind in COLLECTIVES])
        )
        self.job = jobs_of_ops(self.jobs)[self.op]
        self._number = np.full(len(self.jobs.start), -1, dtype=np.int64)
        self._number[self.job[::-1]] = np.arange(len(self.job))[::-1]
        self._reductions = {job: np.flatnonzero(self.job == job).tolist() for job in self.jobs.reduce_job.values()}

    def of_job(self, job: int) -> list[int]:
        """The items of a job: several for a reduction, one on every device."""
        return self._reductions.get(job) or [int(self._number[job])]

    def columns(self) -> dict[str, Any]:
        """Kind, stage, micro-batch (-1: none), device, target (of messages, else -1), start, duration, bytes, and the
        latency after which a message has arrived."""
        ops, messages = self.jobs.ops, self.jobs.messages
        target, latency = np.full(len(self.jobs.start), -1), np.zeros(len(self.jobs.start))
        target[messages.send] = ops.device[messages.receive]
        latency[messages.send] = self.jobs.message_latency_s
        return {
            "kind": ops.kind[self.op].tolist(),
            "stage": ops.stage[self.op].tolist(),
            "micro_batch": ops.micro_batch[self.op].tolist(),
            "device": ops.device[self.op].tolist(),
            "target": target[self.job].tolist(),
            "start_s": coded(self.jobs.start[self.job]),
            "duration_s": coded(self.jobs.duration[self.job]),
            "latency_s": coded(latency[self.job]),
            "bytes": coded(self._bytes()),
        }

    def _bytes(self) -> Ints:
        """Of messages, copies and reductions; 0 for what computes."""
        ops, costs, messages = self.jobs.ops, self.timeline.costs, self.jobs.messages
        size = np.zeros(len(self.jobs.start), dtype=np.int64)
        size[messages.send] = messages.bytes
        copies = ops.where(*sorted(COPIES))
        size[copies] = copied_bytes(self.plan, costs, ops, copies)
        tied = {tie.number: tie.trained_bytes for tie in costs.ties}
        for (kind, number, _), job in self.jobs.reduce_job.items():
            size[job] = tied[number] if kind == Kind.TIE else costs.own_trained_bytes[number]
        return np.asarray(size[self.job], dtype=np.int64)

    def waits(self) -> dict[str, Any]:
        """What items wait for. `count`: of how many items each waits; one entry each, item after item, in `back` (its
        number, counted back from the waiting item's) and `lag_s`."""
        before, after, lag = self.waiting
        count = np.bincount(after, minlength=len(self.op))
        return {"count": count.tolist(), "back": (after - before).tolist(), "lag_s": coded(lag)}

    @cached_property
    def waiting(self) -> Waiting:
        """The same as pairs of items, sorted by the waiting one."""
        found = all_waiting(self.jobs)
        before, after, lag = self._pairs(found.before, found.after, found.lag)
        order = np.lexsort((before, after))
        before, after, lag = before[order], after[order], lag[order]
        once = np.append(True, (before[1:] != before[:-1]) | (after[1:] != after[:-1]) | (lag[1:] != lag[:-1]))
        once = once[: len(before)]
        return Waiting(before[once], after[once], lag[once])

    def _pairs(self, before: Ints, after: Ints, lag: Floats) -> tuple[Ints, Ints, Floats]:
        """Jobs to items. A reduction waits on every device; what follows it waits for the item of its own device."""
        ops = self.jobs.ops
        plain = (before < len(ops)) & (after < len(ops))
        parts = [(self._number[before[plain]], self._number[after[plain]], lag[plain])]
        others = zip(before[~plain].tolist(), after[~plain].tolist(), lag[~plain].tolist(), strict=True)
        extra: list[tuple[int, int, float]] = []
        for a, b, seconds in others:
            for waiting in self.of_job(b):
                device = ops.device[self.op[waiting]]
                candidates = self.of_job(a)
                here = [item for item in candidates if ops.device[self.op[item]] == device]
                extra.append(((here or candidates)[0], waiting, seconds))
        if extra:
            columns = list(zip(*extra, strict=True))
            parts.append((np.array(columns[0]), np.array(columns[1]), np.array(columns[2], dtype=np.float64)))
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
        )
