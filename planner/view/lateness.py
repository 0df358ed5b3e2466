"""Where a run lost time against its forecast: along its critical path, op by op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..basics import format_seconds
from ..plan import IN_LINE, Op, Plan

if TYPE_CHECKING:
    from ..forecast import Timeline
    from ..runs import RunTrace

_TOLD = 8
"""Ops of a table."""


@dataclass(frozen=True)
class Late:
    """An op in line of the run's critical path, seconds against the forecast.

    Attributes:
        before_s: it began so much later than the op before it on the path had ended, beyond what was forecast.
        inside_s: it took so much longer. late_s: it ended so much later; the sum of both over the path up to it.
    """

    device: int
    op: Op
    before_s: float
    inside_s: float
    late_s: float

    @property
    def added_s(self) -> float:
        """What it adds to the run."""
        return self.before_s + self.inside_s


def lateness(plan: Plan, timeline: Timeline, run: RunTrace, path: Sequence[tuple[int, Op]]) -> tuple[Late, ...]:
    """Of every op in line on a path (device and op, in order of time); the last one's `late_s` is that of the run."""
    planned = {
        (d, x.op): (x.start_s, x.end_s) for d, device in enumerate(timeline.devices) for x in device.ops
    }  # what takes no time is not there: it is as late as the op before it
    ran = {(d, x.op): (x.start_s, x.end_s) for d, device in enumerate(run.devices) for x in device.ops}
    found: list[Late] = []
    late = 0.0
    for device, op in path:
        if op.kind not in IN_LINE or (device, op) not in planned:
            continue
        (begin, end), (began, ended) = planned[device, op], ran[device, op]
        found.append(Late(device, op, began - begin - late, (ended - began) - (end - begin), ended - end))
        late = ended - end
    return tuple(found)


def late_table(found: Sequence[Late]) -> list[list[str]]:
    """Headings, the ops that add most in order of time, and all others together."""
    if not found:
        return []
    told = sorted(range(len(found)), key=lambda k: -abs(found[k].added_s))[:_TOLD]
    rows = [["op", "device", "begins later by", "takes longer by", "ends late by"]]
    for k in sorted(told):
        one = found[k]
        rows.append([str(one.op), str(one.device), *map(signed, (one.before_s, one.inside_s, one.late_s))])
    rest = [one for k, one in enumerate(found) if k not in set(told)]
    if rest:
        sums = sum(one.before_s for one in rest), sum(one.inside_s for one in rest)
        rows.append([f"{len(rest)} others", "", *map(signed, sums), ""])
    return rows


def late_sentence(found: Sequence[Late]) -> str:
    """Where the run's lateness arose, in one line."""
    if not found:
        return "the run has no critical path"
    before, inside = sum(one.before_s for one in found), sum(one.inside_s for one in found)
    return (
        f"along the run's critical path, {len(found)} operations: ends {signed(found[-1].late_s)} against forecast, "
        f"{signed(inside)} in the operations and {signed(before)} before them"
    )


def signed(seconds: float) -> str:
    """Seconds with their sign."""
    return f"{'-' if seconds < 0 else '+' if seconds > 0 else ''}{format_seconds(abs(seconds))}"
