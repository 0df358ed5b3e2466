"""run.json: what a run of a plan really did, read back for pictures. Format "contraflow/run", version 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .formats.reading import items, mapping, number, parse_json, positive, read_text, required, whole
from .plan import Kind, Op
from .plan_file import op_from_text

FORMAT = "contraflow/run"
VERSION = 1


class RunFileError(InputError):
    """A file that is no trace of a run; the message names the device, the op and the key."""


@dataclass(frozen=True)
class RunOp:
    """One op with its times in seconds from the start of the step.

    `live_bytes`, `peak_bytes`: on the device at its start and at most during it; None where the run did not say.
    """

    op: Op
    start_s: float
    end_s: float
    live_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class RunDevice:
    """One device: seconds it computed, idle share of the step, peak bytes, its ops."""

    busy_s: float
    bubble: float
    peak_bytes: int
    ops: tuple[RunOp, ...]


@dataclass(frozen=True)
class Run:
    """One step of a run (or the medians over several), device by device; `losses` are those of all steps."""

    step_s: float
    losses: tuple[float, ...]
    devices: tuple[RunDevice, ...]


def load_run(path: str | Path) -> Run:
    """Reads what `execute --trace` wrote. Raises InputError, one line that names the key, when it is not that."""
    return run_from_dict(parse_json(read_text(path), str(path)), str(path))


def run_from_dict(content: object, where: str = "run") -> Run:
    """The run of a parsed file; keys that it does not know are left to others. Raises InputError naming the key."""
    top = mapping(content, where)
    if top.get("format") != FORMAT:
        raise RunFileError(f"{where}: format must be {FORMAT!r}, got {top.get('format')!r}")
    if top.get("version") != VERSION:
        raise RunFileError(f"{where}: run version must be {VERSION}, got {top.get('version')!r}")
    devices = tuple(_device(entry, f"{where}: devices[{k}]") for k, entry in enumerate(items(top, "devices", where)))
    if not devices:
        raise RunFileError(f"{where}: devices must not be empty")
    return Run(
        positive(required(top, "step_s", where), "step_s", where),
        tuple(_real(x, "losses", where) for x in items(top, "losses", where)),
        devices,
    )


def _device(entry: object, where: str) -> RunDevice:
    content = mapping(entry, where)
    bubble = _real(required(content, "bubble", where), "bubble", where)
    if not math.isfinite(bubble):
        raise RunFileError(f"{where}: bubble must be finite, got {bubble}")
    return RunDevice(
        number(required(content, "busy_s", where), "busy_s", where),
        bubble,
        whole(required(content, "peak_bytes", where), "peak_bytes", where),
        tuple(_timed(x, f"{where}: ops[{k}]") for k, x in enumerate(items(content, "ops", where))),
    )


def _timed(entry: object, where: str) -> RunOp:
    content = mapping(entry, where)
    op = _op(content, where)
    start, end = (number(required(content, key, where), key, where) for key in ("start_s", "end_s"))
    if end < start:
        raise RunFileError(f"{where}: op {op} ends at {end} s, before it starts at {start} s")
    return RunOp(op, start, end, _bytes(content, "live_bytes", where), _bytes(content, "peak_bytes", where))


def _op(content: Mapping[str, Any], where: str) -> Op:
    """The op, written as a plan writes it under "op", or as its parts."""
    if "op" in content:
        try:
            return op_from_text(content["op"])
        except InputError as error:
            raise RunFileError(f"{where}: {error}") from None
    kind = required(content, "kind", where)
    if not isinstance(kind, str) or kind not in Kind.__members__:
        raise RunFileError(f"{where}: unknown kind {kind!r}; known: {', '.join(Kind.__members__)}")
    stage = whole(required(content, "stage", where), "stage", where)
    return Op(
        Kind[kind], stage, _number_or_none(content, "micro_batch", where), _number_or_none(content, "peer", where)
    )


def _number_or_none(content: Mapping[str, Any], key: str, where: str) -> int:
    """A number of at least 0, or -1 for none."""
    return -1 if content.get(key, -1) == -1 else whole(content[key], key, where)


def _bytes(content: Mapping[str, Any], key: str, where: str) -> int | None:
    return None if content.get(key) is None else whole(content[key], key, where)


def _real(value: object, key: str, where: str) -> float:
    """Any number: a run can arrive at a loss that is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RunFileError(f"{where}: {key} must be a number, got {value!r}")
    return float(value)
