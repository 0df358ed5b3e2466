"""A plan as text: what it is and promises, its timeline, and a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..basics import UNLIMITED_BYTES, format_bytes, format_seconds, percent
from ..graph import update_size
from ..plan import PROVEN_GAP, Forecast, Plan, gap_of
from ..problem import FLUSH
from ..search import facts
from .names import plain, wrap
from .reasons import explained
from .terminal import PLAIN, WIDTH, Screen, memory_text, timeline_text

if TYPE_CHECKING:
    from ..forecast import Timeline


def render(plan: Plan, timeline: Timeline, forecast: Forecast, screen: Screen = PLAIN) -> str:
    """Heading, timeline, memory and table of a plan, and why it takes so long."""
    table = device_table(plan, forecast, max(screen.width, WIDTH))  # narrower, its words would break
    found = facts(plan)
    drawn = timeline_text(plan, timeline, screen, found.spans), memory_text(timeline, screen)
    parts = [heading(plan, forecast, screen.width), *drawn, table, explained(found, len(plan.orders), screen.width)]
    return "\n\n".join(part for part in parts if part) + "\n"


def count_pipelines(plan: Plan) -> str:
    """How many pipelines a plan has; those that differ only in what happens to their stashes count as one."""
    count = len({(pipeline.forward, pipeline.backward) for pipeline in plan.pipelines})
    return f"{count} pipeline{'s' * (count != 1)}"


def heading(plan: Plan, forecast: Forecast, width: int = WIDTH) -> str:
    """What the plan is and what it promises, wrapped to `width`."""
    source = plan.provenance.source or "plan"
    shape = (
        f"{plain(plan.problem.model.name)}: {plain(source)}, {len(plan.stages)} stages on {len(plan.orders)} devices, "
        f"{count_pipelines(plan)}, "
        f"{plan.problem.workload.micro_batches} micro-batches{updating(plan)}{_on_two_devices(plan)}{_shared(plan)}"
    )
    said = shape, promise(forecast), samples(plan, forecast), among(plan, forecast)
    return "\n".join(line for text in said for line in wrap(text, width))


def samples(plan: Plan, forecast: Forecast) -> str:
    """Samples of a step and of a second, and of whose ranks, where a micro-batch has several or a device is a team."""
    size, team = plan.problem.model.micro_batch_size, plan.problem.cluster.team
    if size == 1 and team == 1 and not plan.provenance.points:
        return ""
    count = size * plan.problem.workload.micro_batches
    ranks = f", devices are teams of {team}: {team * len(plan.orders)} ranks" if team > 1 else ""
    return f"{count} samples in micro-batches of {size}, {samples_per_s(plan, forecast):.4g} a second{ranks}"


def samples_per_s(plan: Plan, forecast: Forecast) -> float:
    """Samples a second: of a step, or without a flush of a period; infinite where they take no time."""
    size, seconds = plan.problem.model.micro_batch_size, forecast.objective_s
    count = size if forecast.period_s is not None else size * plan.problem.workload.micro_batches
    return count / seconds if seconds > 0 else math.inf


def updating(plan: Plan) -> str:
    """Weight policy and micro-batches an update of a plan without a flush; nothing for the others."""
    if plan.weights == FLUSH:
        return ""
    size = update_size(plan)
    return f", weights {plain(plan.weights)}, an update every {f'{size} micro-batches' if size > 1 else 'micro-batch'}"


def _on_two_devices(plan: Plan) -> str:
    """How many stages have two devices, where some have."""
    pairs = [list(zip(p.forward, p.backward, strict=True)) for p in plan.pipelines]
    separate = sum(any(pair[s][0] != pair[s][1] for pair in pairs) for s in range(len(plan.stages)))
    return f", {separate} of {len(plan.stages)} stages run backward on another device" if separate else ""


def _shared(plan: Plan) -> str:
    """Whether replicas share optimizers."""
    return ", optimizers shared by replicas" if plan.problem.workload.sharded else ""


def promise(forecast: Forecast) -> str:
    """Step, or period and run, with bound, gap and bubble of a forecast in one line."""
    parts = [f"step {format_seconds(forecast.step_s)}"]
    if forecast.period_s is not None:
        parts = [f"period {format_seconds(forecast.period_s)} a micro-batch"]
    if forecast.bound_s > 0:
        parts.append(f"bound {format_seconds(forecast.bound_s)}")
    if forecast.gap is not None:
        parts.append(f"gap {percent(forecast.gap)}")
    if forecast.period_s is not None:
        parts.append(f"run {format_seconds(forecast.step_s)}")
    parts += [f"bubble {percent(forecast.bubble)}", forecast.status]
    return ", ".join(parts)


def among(plan: Plan, forecast: Forecast) -> str:
    """What more is proven of a part of the space, beside the gap of all of it; empty where there is no more."""
    part, bound_s = plan.provenance.among, plan.provenance.among_bound_s
    if not part or not bound_s:
        return ""
    gap = max(0.0, gap_of(forecast.objective_s, bound_s))
    if gap <= PROVEN_GAP:
        return f"optimal among {plain(part)}"
    return f"bound {format_seconds(bound_s)}, gap {percent(gap)} among {plain(part)}"


# ----------------------------------------------------------------------- table


def device_table(plan: Plan, forecast: Forecast, width: int = WIDTH) -> str:
    """Per device: busy, bubble, peak, limit and what made the peak."""
    rows = [["device", "busy", "bubble", "peak", "limit"]]
    made = ["what made the peak"]
    for index, device in enumerate(forecast.devices):
        limit = device_limit(plan, index)
        flag = " OVER" if device.peak_bytes > limit else ""
        rows.append(
            [
                str(index),
                format_seconds(device.busy_s),
                percent(device.bubble),
                format_bytes(device.peak_bytes) + flag,
                limit_text(limit),
            ]
        )
        made.append(peak_text(device.peak_parts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for row, text in zip(rows, made, strict=True):
        start = "".join(f"{cell:>{size}}  " for cell, size in zip(row, widths, strict=True))
        wrapped = _wrap_parts(text, max(16, width - left)) or [""]
        lines.append((start + wrapped[0]).rstrip())
        lines += [" " * left + more for more in wrapped[1:]]
    return "\n".join(lines)


def _wrap_parts(text: str, width: int) -> list[str]:
    """Wraps at commas: a part stays on one line where it can."""
    glued = ", ".join(part.replace(" ", "\u00a0") for part in text.split(", "))
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(glued, width)]


def peak_text(parts: Sequence[tuple[str, int]]) -> str:
    """The categories at the peak, largest first."""
    ranked = sorted((part for part in parts if part[1]), key=lambda part: -part[1])
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in ranked)


def limit_text(limit: int) -> str:
    """Bytes that a device may hold, for people: beyond what any computer has there is no limit."""
    return format_bytes(limit) if limit < UNLIMITED_BYTES else "any size"


def device_limit(plan: Plan, device: int) -> int:
    """Bytes that device may hold in this plan."""
    kind = plan.problem.cluster.devices[device].kind
    return plan.problem.workload.memory_limit(kind.memory_bytes)
