"""Why a plan takes as long as it does, as text: the facts of `search.explain`, nothing worked out anew."""

from __future__ import annotations

import math

from ..basics import format_seconds
from ..forecast import Cause
from ..search import Explanation, WhatIf
from .names import plain, wrap
from .text import WIDTH, percent

TOLD = 5e-4  # smaller shares of the step are not said
_SHORT = {
    Cause.UNUSED: "unused", Cause.FILLING: "filling", Cause.DRAINING: "draining", Cause.NOTHING: "nothing ready",
    Cause.MEMORY: "memory full", Cause.MESSAGE: "message", Cause.COPY: "copy", Cause.SUMS: "sums", Cause.ORDER: "order",
}  # fmt: skip
_MOST = 16  # devices, before those alike are all that is said


def explained(found: Explanation, devices: int, width: int = WIDTH) -> str:
    """What devices wait for, where the gap comes from, what other machines would give; wrapped to `width`."""
    parts = [_idle(found, devices), _gap(found, width), _what_ifs(found)]
    return "\n".join(part for part in parts if part)


def _idle(found: Explanation, devices: int) -> str:
    """A row a device, a column a cause that some device has; only all together where there are many devices."""
    if not found.spans or found.step_s <= 0:
        return "idle: no device waits"
    per_device = [found.idle_s(device) for device in range(devices)]
    whole = found.idle_s()
    causes = [cause for cause in Cause if whole.get(cause, 0.0) > 0]
    rows = [["device", "idle", *(_SHORT[cause] for cause in causes)]]
    if devices <= _MOST:
        for device, idle in enumerate(per_device):
            rows.append([str(device), *_shares(idle, causes, found.step_s)])
    rows.append(["all", *_shares(whole, causes, found.step_s * devices)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    meaning = "; ".join(f"{_SHORT[cause]}: {cause.value}" for cause in causes)
    return "\n".join(["what devices wait for, in shares of the step:", *lines, *wrap(meaning, WIDTH)])


def _shares(idle: dict[Cause, float], causes: list[Cause], whole_s: float) -> list[str]:
    shares = [idle.get(cause, 0.0) / whole_s for cause in causes]
    return [percent(math.fsum(shares)), *("-" if share < TOLD else percent(share) for share in shares)]


def _gap(found: Explanation, width: int) -> str:
    if found.gap is None or found.bound_s is None:
        return ""
    gap = found.gap
    parts = {
        "computing beyond the bound": gap.load_s, "filling": gap.filling_s, "draining": gap.draining_s,
        "memory full": gap.memory_s, "other waiting": gap.waiting_s,
    }  # fmt: skip
    least = TOLD * found.step_s
    told = ", ".join(f"{name} {_signed(seconds)}" for name, seconds in parts.items() if abs(seconds) >= least)
    whole = format_seconds(max(0.0, found.step_s - found.bound_s))
    text = f"{whole} above the bound, on device {gap.device}, which computes longest: {told or 'nothing'}"
    return "\n".join(wrap(text, width))


def _signed(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _what_ifs(found: Explanation) -> str:
    if not found.what_ifs:
        return ""
    rows = [(format_seconds(one.step_s), f"{100 * one.change:+.1f} %", _named(one)) for one in found.what_ifs]
    widths = [max(len(row[k]) for row in rows) for k in range(2)]
    lines = [f"  {step.rjust(widths[0])}  {change.rjust(widths[1])}  {what}" for step, change, what in rows]
    return "\n".join(["what the step would be with:", *lines])


def _named(one: WhatIf) -> str:
    if one.searched_s is None:
        return plain(one.what)
    return f"{plain(one.what)} (planned again, at most {format_seconds(one.searched_s)}: there may be better)"
