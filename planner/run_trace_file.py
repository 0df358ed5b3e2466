"""run.json: the trace that `execute --trace` writes, as a file. Format "contraflow/run", version 1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import PlanError
from .files import write_text
from .formats.reading import items, mapping, number, parse_json, positive, read_text, required, whole
from .plan import Pipeline
from .plan_file import op_from_text
from .run_trace import DeviceTrace, OpTrace, RunTrace, RunTraceError

FORMAT = "contraflow/run"
VERSION = 1
_TIMES = ("start_s", "end_s", "duration_s")
_MORE_TIMES = ("spread_s", "waited_s", "overhead_s")
_BYTES = ("moved_bytes", "live_bytes", "peak_bytes")


def trace_to_dict(trace: RunTrace) -> dict[str, Any]:
    """The file's content."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "plan": trace.plan,
        "model": trace.model,
        "model_fingerprint": trace.model_fingerprint,
        "micro_batch_size": trace.micro_batch_size,
        "stages": [list(stage) for stage in trace.stages],
        "pipelines": [
            {"forward": list(p.forward), "backward": list(p.backward), "micro_batches": list(p.micro_batches)}
            for p in trace.pipelines
        ],
        "stash": [list(row) for row in trace.stash],
        "environment": dict(trace.environment),
        "step_s": trace.step_s,
        "step_times": list(trace.step_times),
        "losses": list(trace.losses),
        "timed_steps": list(trace.timed_steps),
        "tracked_steps": list(trace.tracked_steps),
        "devices": [
            {
                "busy_s": device.busy_s,
                "bubble": device.bubble,
                "peak_bytes": device.peak_bytes,
                "speed": device.speed,
                "ops": [_op_to_dict(op) for op in device.ops],
            }
            for device in trace.devices
        ],
    }


def _op_to_dict(op: OpTrace) -> dict[str, Any]:
    content: dict[str, Any] = {"op": str(op.op)} | {key: getattr(op, key) for key in _TIMES}
    return content | {key: getattr(op, key) for key in (*_MORE_TIMES, *_BYTES) if getattr(op, key)}


def save_trace(trace: RunTrace, path: str | Path) -> None:
    """Writes the trace; an existing file is replaced only once the new one is complete."""
    write_text(path, json.dumps(trace_to_dict(trace), separators=(",", ":")) + "\n")


# ---------------------------------------------------------------- reading


def load_trace(path: str | Path) -> RunTrace:
    """Reads a run trace. Raises InputError, one line that names the key, when it is not one."""
    return trace_from_dict(parse_json(read_text(path), str(path)), str(path))


def trace_from_dict(content: object, where: str = "run") -> RunTrace:
    """The trace of a parsed file; raises InputError naming the key that is wrong."""
    top = mapping(content, where)
    if top.get("format") != FORMAT:
        raise RunTraceError(f"{where}: format must be {FORMAT!r}, got {top.get('format')!r}")
    if top.get("version") != VERSION:
        raise RunTraceError(f"{where}: run version must be {VERSION}, got {top.get('version')!r}")
    _only(top, _TOP, where)
    stages = _rows(top, "stages", where)
    pipelines = tuple(_pipeline(entry, f"{where}: pipelines[{k}]") for k, entry in _listed(top, "pipelines", where))
    devices = tuple(
        _device(entry, f"{where}: devices[{k}]", len(stages)) for k, entry in _listed(top, "devices", where)
    )
    if not devices:
        raise RunTraceError(f"{where}: devices must not be empty")
    return RunTrace(
        _text(top, "plan", where),
        _text(top, "model", where),
        _text(top, "model_fingerprint", where),
        whole(required(top, "micro_batch_size", where), "micro_batch_size", where, 1),
        stages,
        pipelines,
        _rows(top, "stash", where),
        _environment(top, where),
        positive(required(top, "step_s", where), "step_s", where),
        tuple(number(x, "step_times", where) for x in items(top, "step_times", where)),
        tuple(_loss(x, where) for x in items(top, "losses", where)),
        tuple(whole(x, "timed_steps", where) for x in items(top, "timed_steps", where)),
        tuple(whole(x, "tracked_steps", where) for x in items(top, "tracked_steps", where)),
        devices,
    )


_TOP = {
    "format", "version", "plan", "model", "model_fingerprint", "micro_batch_size", "stages", "pipelines", "stash",
    "environment", "step_s", "step_times", "losses", "timed_steps", "tracked_steps", "devices",
}  # fmt: skip


def _only(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in content:
        if key not in known:
            raise RunTraceError(f"{where}: unknown key {key!r}")


def _listed(content: Mapping[str, Any], key: str, where: str) -> Iterable[tuple[int, Any]]:
    return enumerate(items(content, key, where))


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = required(content, key, where)
    if not isinstance(value, str):
        raise RunTraceError(f"{where}: {key} must be a string, got {value!r}")
    return value


def _loss(value: object, where: str) -> float:
    """A loss may be anything that a training run can arrive at, NaN included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RunTraceError(f"{where}: losses must be numbers, got {value!r}")
    return float(value)


def _rows(content: Mapping[str, Any], key: str, where: str) -> tuple[tuple[str, ...], ...]:
    rows = items(content, key, where)
    if not all(isinstance(row, list) and all(isinstance(x, str) for x in row) for row in rows):
        raise RunTraceError(f"{where}: {key} must be lists of strings")
    return tuple(tuple(row) for row in rows)


def _environment(content: Mapping[str, Any], where: str) -> dict[str, str | int]:
    found = mapping(required(content, "environment", where), f"{where}: environment")
    for key, value in found.items():
        if not isinstance(value, (str, int)):
            raise RunTraceError(f"{where}: environment: {key} must be a string or a whole number, got {value!r}")
    return dict(found)


def _pipeline(entry: object, where: str) -> Pipeline:
    content, keys = mapping(entry, where), ("forward", "backward", "micro_batches")
    _only(content, keys, where)
    return Pipeline(*(tuple(whole(x, key, where) for x in items(content, key, where)) for key in keys))


def _device(entry: object, where: str, stages: int) -> DeviceTrace:
    content = mapping(entry, where)
    _only(content, ("busy_s", "bubble", "peak_bytes", "speed", "ops"), where)
    return DeviceTrace(
        number(required(content, "busy_s", where), "busy_s", where),
        number(required(content, "bubble", where), "bubble", where),
        whole(required(content, "peak_bytes", where), "peak_bytes", where),
        positive(required(content, "speed", where), "speed", where),
        tuple(_op(x, f"{where}: ops[{k}]", stages) for k, x in _listed(content, "ops", where)),
    )


def _op(entry: object, where: str, stages: int) -> OpTrace:
    content = mapping(entry, where)
    _only(content, ("op", *_TIMES, *_MORE_TIMES, *_BYTES), where)
    try:
        op = op_from_text(required(content, "op", where))
    except PlanError as error:
        raise RunTraceError(f"{where}: {error}") from None
    if op.stage >= stages:
        raise RunTraceError(f"{where}: op {op} is of stage {op.stage}, but there are {stages} stages")
    start, end, duration = (number(required(content, key, where), key, where) for key in _TIMES)
    if end < start:
        raise RunTraceError(f"{where}: op {op} ends at {end} s, before it starts at {start} s")
    spread, waited, overhead = (number(content.get(key, 0), key, where) for key in _MORE_TIMES)
    moved, live, peak = (whole(content.get(key, 0), key, where) for key in _BYTES)
    return OpTrace(op, start, end, duration, spread, waited, overhead, moved, live, peak)
