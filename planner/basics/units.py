"""Quantities as people write them: "16GiB", "25GB/s", "200Gb/s", "5us"; numbers are bytes, bytes/s and seconds."""

from __future__ import annotations

import math
import re

from .errors import InputError
from .escapes import shown

_BYTES = {"B": 1} | {f"{p}{u}": b ** (k + 1) for k, p in enumerate("KMGT") for u, b in (("iB", 1024), ("B", 1000))}
_RATES = {f"{unit}/s": float(scale) for unit, scale in _BYTES.items()}
_RATES |= {f"{p}{bit}/s": 1000**k / 8 for k, p in enumerate(("", *"KMGT")) for bit in ("b", "bit")}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LETTERS = 100  # of a quantity
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*(?:/s)?)\s*")


def _parse(value: object, what: str, table: dict[str, float], example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(f"{what}: expected a quantity like {example!r}, got {shown(value)}")
    if isinstance(value, (int, float)):
        number = _float(value)
    else:
        match = _QUANTITY.fullmatch(value) if len(value) <= _LETTERS else None
        if match is None:
            raise InputError(f"{what}: expected a quantity like {example!r}, got {shown(value)}")
        unit = match[2]
        if unit and unit not in table:
            raise InputError(f"{what}: unknown unit {shown(unit)} in {shown(value)}; use {', '.join(table)}")
        number = _float(match[1]) * (table[unit] if unit else 1.0)
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{what}: must be finite and not negative, got {shown(value)}")
    return number


def _float(value: int | float | str) -> float:
    """Infinity for what is larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_bytes(value: object, what: str) -> int:
    """Bytes from "16GiB", "2.5MB" or a number; raises InputError naming `what`."""
    return round(_parse(value, what, dict(_BYTES), "16GiB"))


def parse_seconds(value: object, what: str) -> float:
    """Seconds from "5us", "1.5ms", "2s" or a number; raises InputError naming `what`."""
    return _parse(value, what, _SECONDS, "5us")


def parse_bandwidth(value: object, what: str) -> float:
    """Bytes per second from "25GB/s", "200Gb/s", "200Gbit/s" (bits) or a number, more than zero.

    Raises InputError naming `what`.
    """
    rate = _parse(value, what, _RATES, "25GB/s")
    if rate <= 0:
        raise InputError(f"{what}: a bandwidth must be more than 0, got {shown(value)}")
    return rate


def format_bytes(count: float) -> str:
    """A byte count for people, in binary units: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def format_seconds(duration: float) -> str:
    """A duration for people: 0.00123 -> "1.23 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if duration >= scale or unit == "us":
            return f"{duration / scale:.4g} {unit}"
    raise AssertionError("unreachable")


def percent(share: float) -> str:
    """A share for people: 0.2727 -> "27.3 %", exactly nothing -> "0 %"."""
    return "0 %" if abs(share) < 5e-7 else f"{100 * share:.1f} %" if abs(share) >= 5e-4 else f"{100 * share:.2g} %"
