"""plan.json: a plan as a file, complete with its problem. Loading executes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .basics import (
    MOST_DEVICES,
    MOST_LAYERS,
    MOST_MEMORY_BYTES,
    MOST_MICRO_BATCHES,
    MOST_OPS,
    MOST_SECONDS,
    MOST_STAGES,
    PlanError,
    items,
    reading,
    refusing,
    required,
    shown,
    whole,
    write_text,
)
from .plan import DeviceForecast, Forecast, Kind, Op, Pipeline, Plan, Problem, Provenance
from .problem import Cluster, ModelGraph, Workload

FORMAT = "contraflow/plan"
VERSION = 1
_NUMBER = "0|[1-9][0-9]{0,8}"
_KINDS = "|".join(sorted((k.name for k in Kind), key=len, reverse=True))
_OP = re.compile(rf"({_NUMBER})({_KINDS})({_NUMBER})?(?:[<>=+]({_NUMBER}))?")


def op_from_text(text: object) -> Op:
    """The op of its text form, as str(op) gives it: "2F0", "1SEND_F0>2", "0PREDICT4+3", "0STEP"; raises PlanError."""
    match = _OP.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PlanError(f"not an operation: {shown(text)}")
    stage, kind, micro_batch, peer = match.groups()
    return Op(Kind[kind], int(stage), int(micro_batch) if micro_batch else -1, int(peer) if peer else -1)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The content of plan.json."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "problem": {
            "model": plan.problem.model.to_dict(),
            "cluster": plan.problem.cluster.to_dict(),
            "workload": plan.problem.workload.to_dict(),
            "fingerprint": plan.problem.model.measured_fingerprint,
        },
        "stages": [list(stage) for stage in plan.stages],
        "pipelines": [
            {
                "forward": list(p.forward),
                "backward": list(p.backward),
                "micro_batches": list(p.micro_batches),
            }
            for p in plan.pipelines
        ],
        "stash": [list(row) for row in plan.stash],
        "weights": plan.weights,
        "orders": [[str(op) for op in order] for order in plan.orders],
        "provenance": asdict(plan.provenance),
    }
    if plan.forecast is not None:
        content["forecast"] = _forecast_to_dict(plan.forecast)
    return content


def _forecast_to_dict(forecast: Forecast) -> dict[str, Any]:
    content = asdict(forecast)
    if forecast.period_s is None:
        del content["period_s"]
    for device in content["devices"]:
        device["peak_parts"] = dict(device["peak_parts"])
    return content


def plan_from_dict(content: object) -> Plan:
    """The plan of a parsed plan.json; raises PlanError naming the key that is wrong."""
    with refusing(PlanError):
        return _plan_from(content)


_KEYS = {
    "format", "version", "problem", "stages", "pipelines", "stash", "weights", "orders", "forecast", "provenance",
}  # fmt: skip


def _plan_from(content: object) -> Plan:
    top = reading.mapping(content, "a plan", what="a JSON object")
    reading.versioned(top, FORMAT, VERSION, "plan")
    reading.mapping(top, "plan", _KEYS)
    with refusing(PlanError, "plan: problem: "):
        problem = _problem_from(required(top, "problem", "plan"))
    stages = _rows(top, "stages", MOST_STAGES, MOST_LAYERS)
    _require_passes(len(stages), problem.workload.micro_batches)
    forecast = top.get("forecast")
    return Plan(
        problem,
        stages,
        _pipelines_from(items(top, "pipelines", "plan", MOST_MICRO_BATCHES)),
        _orders_from(items(top, "orders", "plan", MOST_DEVICES)),
        _rows(top, "stash", MOST_MICRO_BATCHES, MOST_STAGES),
        reading.text(top.get("weights", "flush"), "weights", "plan"),
        None if forecast is None else _forecast_from(forecast),
        _provenance_from(top["provenance"]) if "provenance" in top else Provenance(),
    )


def _require_passes(stages: int, micro_batches: int) -> None:
    if stages * micro_batches > MOST_OPS:
        passes = f"{stages} stages of {micro_batches} micro-batches make {stages * micro_batches} forwards"
        raise PlanError(f"plan: {passes}, at most {MOST_OPS} operations are read")


def _rows(top: Mapping[str, Any], key: str, most: int, most_each: int) -> tuple[tuple[str, ...], ...]:
    """A list of lists of strings."""
    found = []
    for number, row in enumerate(items(top, key, "plan", most)):
        where = f"plan: {key}[{number}]"
        found.append(reading.texts(reading.sequence(row, where, most_each), "each entry", where))
    return tuple(found)


_PROBLEM_KEYS = {"model", "cluster", "workload", "fingerprint"}


def _problem_from(content: object) -> Problem:
    found = reading.mapping(content, "the problem", _PROBLEM_KEYS)
    model, cluster, workload = (required(found, key, "the problem") for key in ("model", "cluster", "workload"))
    graph, said = ModelGraph.from_dict(model), found.get("fingerprint")
    if said != graph.measured_fingerprint:
        raise PlanError(
            f"fingerprint {shown(said)} is not {graph.measured_fingerprint!r}, of the model in micro-batches of "
            f"{graph.micro_batch_size}"
        )
    return Problem(graph, Cluster.from_dict(cluster), Workload.from_dict(workload))


def _pipelines_from(entries: Sequence[Any]) -> tuple[Pipeline, ...]:
    keys, found = {"forward": MOST_STAGES, "backward": MOST_STAGES, "micro_batches": MOST_MICRO_BATCHES}, []
    for number, entry in enumerate(entries):
        where = f"plan: pipelines[{number}]"
        content = reading.mapping(entry, where, keys)
        routes = (_indices(items(content, key, where, most), key, where) for key, most in keys.items())
        found.append(Pipeline(*routes))
    return tuple(found)


def _indices(values: Sequence[Any], key: str, where: str) -> tuple[int, ...]:
    """Numbers of devices or micro-batches; whether they exist is for the checker to say."""
    return tuple(whole(value, key, where, -MOST_OPS, MOST_OPS) for value in values)


def _orders_from(lists: Sequence[Any]) -> tuple[tuple[Op, ...], ...]:
    count = 0
    for number, order in enumerate(lists):
        count += len(reading.sequence(order, f"plan: orders[{number}]"))
    reading.at_most(count, MOST_OPS, "plan: operations")
    with refusing(PlanError, "plan: orders: "):
        return tuple(tuple(map(op_from_text, order)) for order in lists)


_FORECAST_KEYS = {f.name for f in fields(Forecast)}
_DEVICE_KEYS = {f.name for f in fields(DeviceForecast)}
_LONGEST_S = MOST_SECONDS**2  # of a whole step
_CATEGORIES = 100


def _forecast_from(content: object) -> Forecast:
    where = "plan: forecast"
    said = reading.mapping(content, where, _FORECAST_KEYS)

    def seconds(key: str) -> float | None:
        return None if said.get(key) is None else reading.number(said[key], key, where, _LONGEST_S)

    devices = items(said, "devices", where, MOST_DEVICES)
    gap = said.get("gap")
    return Forecast(
        reading.number(required(said, "step_s", where), "step_s", where, _LONGEST_S),
        tuple(_device_forecast_from(entry, f"{where}: devices[{number}]") for number, entry in enumerate(devices)),
        seconds("bound_s") or 0.0,
        None if gap is None else _gap(gap, where),
        reading.text(said.get("status", "feasible"), "status", where),
        seconds("period_s"),
    )


def _gap(value: object, where: str) -> float:
    """A gap may be a round-off below zero."""
    below = isinstance(value, float) and -1 < value < 0
    return float(value) if isinstance(value, float) and below else reading.number(value, "gap", where)


def _device_forecast_from(content: object, where: str) -> DeviceForecast:
    said = reading.mapping(content, where, _DEVICE_KEYS)
    times = [reading.number(required(said, key, where), key, where, _LONGEST_S) for key in ("busy_s", "bubble")]
    parts = reading.mapping(said.get("peak_parts", {}), f"{where}: peak_parts")
    reading.at_most(len(parts), _CATEGORIES, f"{where}: peak_parts")
    return DeviceForecast(
        times[0],
        times[1],
        whole(required(said, "peak_bytes", where), "peak_bytes", where, most=MOST_MEMORY_BYTES),
        reading.number(said.get("peak_at_s", 0.0), "peak_at_s", where, _LONGEST_S),
        tuple(
            (reading.text(name, "a category", where), whole(count, "peak_parts", where, most=MOST_MEMORY_BYTES))
            for name, count in parts.items()
        ),
    )


def _provenance_from(content: object) -> Provenance:
    where, kinds = "plan: provenance", {f.name: f.default for f in fields(Provenance)}
    said = reading.mapping(content, where, kinds)
    return Provenance(**{key: _like(value, kinds[key], key, where) for key, value in said.items()})


def _like(value: object, default: object, key: str, where: str) -> Any:
    """A value of the default's type; None where that is None too, else a number of seconds."""
    if value is None and default is None:
        return None
    if isinstance(default, str):
        return reading.text(value, key, where)
    if isinstance(default, int):
        return whole(value, key, where, most=MOST_MEMORY_BYTES)
    return reading.number(value, key, where, _LONGEST_S)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes plan.json; an existing file is replaced only once the new one is complete."""
    write_text(path, json.dumps(plan_to_dict(plan), separators=(",", ":")) + "\n")


def load_plan(path: str | Path) -> Plan:
    """Reads plan.json; raises PlanError (one line) when it is not one."""
    with refusing(PlanError):
        return plan_from_dict(reading.read_json(path))
