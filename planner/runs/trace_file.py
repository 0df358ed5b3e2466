"""run.json: the trace that `execute --trace` writes, as a file. Format "contraflow/run", version 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..basics import (
    MOST_DEVICES,
    MOST_LAYERS,
    MOST_MEMORY_BYTES,
    MOST_MICRO_BATCHES,
    MOST_OPS,
    MOST_SECONDS,
    MOST_SPEED,
    MOST_STAGES,
    SHOWN,
    any_number,
    file_name,
    items,
    mapping,
    number,
    one_line,
    positive,
    read_json,
    refusing,
    required,
    sequence,
    text,
    texts,
    versioned,
    write_text,
)
from ..basics import whole as whole_number
from ..plan import Pipeline
from ..plan_file import op_from_text
from ..problem import OVERHEADS, Overhead
from .trace import DeviceTrace, LaneTrace, OpTrace, RunTrace, RunTraceError

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
        "overhead": trace.overhead.to_dict(),
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
            | ({"lanes": [asdict(lane) for lane in device.lanes]} if device.lanes else {})
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
    """Reads a run trace. Raises RunTraceError, one line that names the key, when it is not one."""
    with refusing(RunTraceError):
        return trace_from_dict(read_json(path), file_name(path))


def trace_from_dict(content: object, where: str = "run") -> RunTrace:
    """The trace of a parsed file; raises RunTraceError naming the key that is wrong."""
    with refusing(RunTraceError):
        return _trace_from(content, where)


def _trace_from(content: object, where: str) -> RunTrace:
    top = mapping(content, where)
    versioned(top, FORMAT, VERSION, "run", where)
    mapping(top, where, _TOP)
    stages = _rows(top, "stages", where, MOST_STAGES)
    pipelines = tuple(
        _pipeline(entry, f"{where}: pipelines[{k}]")
        for k, entry in enumerate(items(top, "pipelines", where, MOST_MICRO_BATCHES))
    )
    found = [
        _device(entry, f"{where}: devices[{k}]", len(stages))
        for k, entry in enumerate(items(top, "devices", where, MOST_DEVICES))
    ]
    if not found:
        raise RunTraceError(f"{where}: devices must not be empty")
    return RunTrace(
        text(required(top, "plan", where), "plan", where),
        text(required(top, "model", where), "model", where),
        text(required(top, "model_fingerprint", where), "model_fingerprint", where),
        whole(required(top, "micro_batch_size", where), "micro_batch_size", where, 1),
        stages,
        pipelines,
        _rows(top, "stash", where, MOST_MICRO_BATCHES),
        _environment(top, where),
        positive(required(top, "step_s", where), "step_s", where, most=MOST_SECONDS),
        tuple(_seconds(x, "step_times", where) for x in items(top, "step_times", where, MOST_OPS)),
        tuple(any_number(x, "losses", where) for x in items(top, "losses", where, MOST_OPS)),
        tuple(whole(x, "timed_steps", where) for x in items(top, "timed_steps", where, MOST_OPS)),
        tuple(whole(x, "tracked_steps", where) for x in items(top, "tracked_steps", where, MOST_OPS)),
        tuple(found),
        _overhead(top.get("overhead", {}), f"{where}: overhead"),
    )


def _overhead(entry: object, where: str) -> Overhead:
    content = mapping(entry, where, OVERHEADS)
    return Overhead(*(_seconds(content.get(key, 0), key, where) for key in OVERHEADS))


_TOP = {
    "format", "version", "plan", "model", "model_fingerprint", "micro_batch_size", "stages", "pipelines", "stash",
    "environment", "step_s", "step_times", "losses", "timed_steps", "tracked_steps", "devices", "overhead",
}  # fmt: skip


def whole(value: object, key: str, where: str, least: int = 0) -> int:
    """A whole number that any counter or size of a run may have; raises InputError."""
    return whole_number(value, key, where, least, MOST_MEMORY_BYTES)


def _seconds(value: object, key: str, where: str) -> float:
    return number(value, key, where, MOST_SECONDS)


def _rows(content: Mapping[str, Any], key: str, where: str, most: int) -> tuple[tuple[str, ...], ...]:
    """A list of lists of strings."""
    found = []
    for number_, row in enumerate(items(content, key, where, most)):
        place = f"{where}: {key}[{number_}]"
        found.append(texts(sequence(row, place, MOST_LAYERS), "each entry", place))
    return tuple(found)


_FACTS = 1000  # of an environment


def _environment(content: Mapping[str, Any], where: str) -> dict[str, str | int]:
    place = f"{where}: environment"
    found = mapping(required(content, "environment", where), place)
    if len(found) > _FACTS:
        raise RunTraceError(f"{place}: {len(found)} keys, at most {_FACTS} are read")
    return {text(key, "a key", place): _fact(value, one_line(key, SHOWN), place) for key, value in found.items()}


def _fact(value: object, key: str, where: str) -> str | int:
    if isinstance(value, int):
        return whole_number(int(value), key, where, -MOST_MEMORY_BYTES, MOST_MEMORY_BYTES)
    return text(value, key, where)


def _pipeline(entry: object, where: str) -> Pipeline:
    keys = ("forward", "backward", "micro_batches")
    content = mapping(entry, where, keys)
    return Pipeline(
        *(tuple(whole(x, key, where) for x in items(content, key, where, MOST_MICRO_BATCHES)) for key in keys)
    )


def _device(entry: object, where: str, stages: int) -> DeviceTrace:
    content = mapping(entry, where, ("busy_s", "bubble", "peak_bytes", "speed", "ops", "lanes"))
    return DeviceTrace(
        _seconds(required(content, "busy_s", where), "busy_s", where),
        _seconds(required(content, "bubble", where), "bubble", where),
        whole(required(content, "peak_bytes", where), "peak_bytes", where),
        positive(required(content, "speed", where), "speed", where, 1 / MOST_SPEED, MOST_SPEED),
        tuple(_op(x, f"{where}: ops[{k}]", stages) for k, x in enumerate(items(content, "ops", where, MOST_OPS))),
        tuple(_lane(x, f"{where}: lanes[{k}]") for k, x in enumerate(sequence(content.get("lanes", []), where, 1024))),
    )


def _lane(entry: object, where: str) -> LaneTrace:
    content = mapping(entry, where, ("busy_s", "peak_bytes"))
    return LaneTrace(
        _seconds(required(content, "busy_s", where), "busy_s", where),
        whole(required(content, "peak_bytes", where), "peak_bytes", where),
    )


_OP_KEYS = frozenset({"op", *_TIMES, *_MORE_TIMES, *_BYTES})


def _op(entry: object, where: str, stages: int) -> OpTrace:
    content = mapping(entry, where, _OP_KEYS)
    with refusing(RunTraceError, f"{where}: "):
        op = op_from_text(required(content, "op", "the operation"))
    if op.stage >= stages:
        raise RunTraceError(f"{where}: op {op} is of stage {op.stage}, but there are {stages} stages")
    start, end, duration = (_seconds(required(content, key, where), key, where) for key in _TIMES)
    if end < start:
        raise RunTraceError(f"{where}: op {op} ends at {end} s, before it starts at {start} s")
    spread, waited, overhead = (_seconds(content.get(key, 0), key, where) for key in _MORE_TIMES)
    moved, live, peak = (whole(content.get(key, 0), key, where) for key in _BYTES)
    return OpTrace(op, start, end, duration, spread, waited, overhead, moved, live, peak)
