"""Why a plan takes as long as it does, as text: the facts of `search.explain`, nothing worked out anew."""

from __future__ import annotations

import math

from ..basics import format_seconds, percent
from ..forecast import Cause
from ..search import FASTER_BY, Explanation, WhatIf
from .names import plain, shorten, wrap
from .palette import SHORT
from .terminal import WIDTH

TOLD = 5e-4  # smaller shares of the step are not said
_MOST = 16  # devices, before those alike are all that is said
_GAINS, _NAMED = 3, 4  # figures of a sort and devices of a figure in a sentence
_LONGEST = 60  # columns of a name in a sentence


def explained(found: Explanation, devices: int, width: int = WIDTH) -> str:
    """What devices wait for, where the gap comes from, what other machines would give; wrapped to `width`."""
    parts = [
        _idle(found, devices),
        overhead_sentence(found),
        "\n".join(wrap(gap_sentence(found), width)),
        _what_ifs(found),
    ]
    return "\n".join(part for part in parts if part)


def idle_sentence(found: Explanation, devices: int) -> str:
    """Idle time of all devices together by cause, the most first."""
    whole = found.step_s * devices
    told = [(cause, seconds / whole) for cause, seconds in found.idle_s().items()] if whole > 0 else []
    if not told:
        return "no device waits"
    parts = [f"{SHORT[cause]} {percent(share)}" for cause, share in told if share >= TOLD]
    idle = math.fsum(share for _, share in told)
    return f"idle {percent(idle)} of all devices' time: {', '.join(parts) or 'in many ways'}"


def overhead_sentence(found: Explanation) -> str:
    """What ops cost beside their layers, of all devices together; empty where that is nothing."""
    whole = found.step_s * len(found.overhead_s)
    share = math.fsum(found.overhead_s) / whole if whole > 0 else 0.0
    return f"ops cost {percent(share)} of all devices' time beside their layers" if share >= TOLD else ""


def idle_table(found: Explanation, devices: int) -> list[list[str]]:
    """Headings, a row a device, and one for all together; only that where there are many. A column a cause."""
    whole = found.idle_s()
    causes = [cause for cause in Cause if whole.get(cause, 0.0) > 0]
    rows = [["device", "idle", *(SHORT[cause] for cause in causes)]]
    if not causes or found.step_s <= 0:
        return []
    for device in range(devices) if devices <= _MOST else ():
        rows.append([str(device), *_shares(found.idle_s(device), causes, found.step_s)])
    return [*rows, ["all", *_shares(whole, causes, found.step_s * devices)]]


def meanings(found: Explanation) -> list[tuple[str, str]]:
    """The causes that some device has, in a word and in full."""
    there = {span.cause for span in found.spans}
    return [(SHORT[cause], cause.value) for cause in Cause if cause in there]


def _idle(found: Explanation, devices: int) -> str:
    rows = idle_table(found, devices)
    if not rows:
        return "idle: no device waits"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    meaning = "; ".join(f"{short}: {full}" for short, full in meanings(found))
    return "\n".join(["what devices wait for, in shares of the step:", *lines, *wrap(meaning, WIDTH)])


def _shares(idle: dict[Cause, float], causes: list[Cause], whole_s: float) -> list[str]:
    shares = [idle.get(cause, 0.0) / whole_s for cause in causes]
    return [percent(math.fsum(shares)), *("-" if share < TOLD else percent(share) for share in shares)]


def gap_sentence(found: Explanation) -> str:
    """Where the seconds above the bound are; empty without a bound, or where they are hardly any."""
    if found.gap is None or found.bound_s is None or found.step_s - found.bound_s < TOLD * found.step_s:
        return ""
    gap = found.gap
    parts = {
        "computing beyond the bound": gap.load_s, "filling": gap.filling_s, "draining": gap.draining_s,
        "memory full": gap.memory_s, "other waiting": gap.waiting_s,
    }  # fmt: skip
    least = TOLD * found.step_s
    told = ", ".join(f"{name} {_signed(seconds)}" for name, seconds in parts.items() if abs(seconds) >= least)
    whole = format_seconds(max(0.0, found.step_s - found.bound_s))
    said = f"{whole} above the bound, on device {gap.device}, which computes longest: {told or 'nothing'}"
    if found.orders_s is None or found.orders_s <= found.bound_s:
        return said
    return f"{said}; {_order_or_stages(found.step_s - found.orders_s, found.orders_s - found.bound_s, least)}"


def _order_or_stages(order_s: float, rest_s: float, least_s: float) -> str:
    """Whether another order, or other stages and devices, may give more."""
    if order_s < least_s:
        return "no order of these stages on these devices is shorter: it is theirs, or the bound's own"
    order, rest = format_seconds(order_s), format_seconds(rest_s)
    return f"at most {order} of it are the order's; {rest} are the stages' and devices', or the bound's own"


def _signed(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def what_if_table(found: Explanation) -> tuple[list[tuple[str, str, str]], str]:
    """Step, change and what is other, the largest gain first; and, in words, what changes nothing."""
    told = [one for one in found.what_ifs if one.searched_s is not None or abs(one.change) >= TOLD]
    rows = [(format_seconds(one.step_s), f"{100 * one.change:+.1f} %", _named(one)) for one in told]
    rest = ", ".join(_named(one) for one in found.what_ifs if one not in told)
    return rows, f"the same with: {rest}" if rest else ""


def _what_ifs(found: Explanation) -> str:
    if not found.what_ifs:
        return ""
    rows, rest = what_if_table(found)
    widths = [max((len(row[k]) for row in rows), default=0) for k in range(2)]
    lines = [f"  {step.rjust(widths[0])}  {change.rjust(widths[1])}  {what}" for step, change, what in rows]
    lines += [f"  {line}" for line in wrap(rest, WIDTH - 2)]
    return "\n".join(["what the step would be with:", *lines])


def _named(one: WhatIf) -> str:
    if one.searched_s is None:
        return plain(one.what)
    return f"{plain(one.what)} (planned again, at most {format_seconds(one.searched_s)}: there may be better)"


# ---------------------------------------------------------------- what binds


def binding(found: Explanation, devices: int) -> str:
    """What keeps a step from being shorter, in a sentence: what the same lists gain on faster machines, and memory.

    Every figure is a step that was simulated again, against this plan's, or idle time whose cause is full memory.
    """
    if found.step_s <= 0:
        return "nothing takes time"
    return "; ".join(filter(None, [_gains(found), _alone(found, devices), _full(found, devices)]))


def _gains(found: Explanation) -> str:
    """The largest of all sorts of links and devices, and of single devices; devices that gain alike together."""
    simulated = [one for one in found.what_ifs if one.searched_s is None and one.change <= -TOLD]
    told = [(percent(-one.change), _short(one)) for one in simulated if one.device is None][:_GAINS]
    alike: dict[str, list[int]] = {}
    for one in simulated:
        if one.device is not None:
            alike.setdefault(percent(-one.change), []).append(one.device)
    told += [(gain, f"{_any_of(sorted(devices))} alone") for gain, devices in alike.items()][:_GAINS]
    if not told:
        return "no faster device or link makes the step shorter"
    return "what 10 % more speed takes off the step: " + ", ".join(f"{what} {gain}" for gain, what in told)


def _short(one: WhatIf) -> str:
    return shorten(plain(one.what.removesuffix(FASTER_BY)), _LONGEST)


def _any_of(devices: list[int]) -> str:
    """ "device 3", or "one of devices 0, 1, 2" and how many more there are."""
    if len(devices) == 1:
        return f"device {devices[0]}"
    more = f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else ""
    return f"one of devices {', '.join(map(str, devices[:_NAMED]))}{more}"


def _alone(found: Explanation, devices: int) -> str:
    """Said where no single device of those that were tried makes a difference."""
    single = [one for one in found.what_ifs if one.device is not None]
    if not single or any(one.change <= -TOLD for one in single):
        return ""
    of_them = f" of the {len(single)} that compute longest" if len(single) < devices else ""
    return f"no device{of_them} alone shortens it"


def _full(found: Explanation, devices: int) -> str:
    """Devices that a forward waits on because memory is full, the longest first."""
    idle = [(found.idle_s(device).get(Cause.MEMORY, 0.0) / found.step_s, device) for device in range(devices)]
    shares = sorted((pair for pair in idle if pair[0] >= TOLD), key=lambda pair: -pair[0])
    told = [f"{percent(share)} of the step on device {device}" for share, device in shares[:_GAINS]]
    more = f" and on {len(shares) - _GAINS} more" if len(shares) > _GAINS else ""
    return f"a forward that is ready waits for memory for {', '.join(told)}{more}" if told else ""
