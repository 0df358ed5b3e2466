"""plan.json: a plan as a file, complete with its problem. Loading executes nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from .cluster import Cluster
from .errors import InputError, PlanError
from .files import write_text
from .model_graph import ModelGraph
from .plan import DeviceForecast, Forecast, Kind, Op, Pipeline, Plan, Problem, Provenance
from .workload import Workload

FORMAT = "contraflow/plan"
VERSION = 1
_T = TypeVar("_T")
_OP = re.compile(
    r"(\d+)(" + "|".join(sorted((k.name for k in Kind), key=len, reverse=True)) + r")(\d*)(?:[<>=+](\d+))?"
)


def op_from_text(text: object) -> Op:
    """The op of its text form, as str(op) gives it: "2F0", "1SEND_F0>2", "0PREDICT4+3", "0STEP"; raises PlanError."""
    match = _OP.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PlanError(f"not an operation: {text!r}")
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
            "fingerprint": plan.problem.model.fingerprint,
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
    if not isinstance(content, dict):
        raise PlanError(f"a plan must be a JSON object, got {type(content).__name__}")
    if content.get("format") != FORMAT:
        raise PlanError(f"format must be {FORMAT!r}, got {content.get('format')!r}")
    if content.get("version") != VERSION:
        raise PlanError(f"plan version must be {VERSION}, got {content.get('version')!r}")
    known = {
        "format", "version", "problem", "stages", "pipelines", "stash", "weights", "orders", "forecast", "provenance",
    }  # fmt: skip
    for key in content:
        if key not in known:
            raise PlanError(f"plan: unknown key {key!r}")
    return Plan(
        _read(content, "problem", _problem_from),
        _read(content, "stages", lambda v: tuple(tuple(map(_text, stage)) for stage in v)),
        _read(content, "pipelines", lambda v: tuple(_pipeline_from(p) for p in v)),
        _read(content, "orders", lambda v: tuple(tuple(map(op_from_text, order)) for order in v)),
        _read(content, "stash", lambda v: tuple(tuple(map(_text, row)) for row in v)),
        _read(content, "weights", _text) if "weights" in content else "flush",
        _read(content, "forecast", _forecast_from) if content.get("forecast") is not None else None,
        _read(content, "provenance", lambda v: Provenance(**v)) if "provenance" in content else Provenance(),
    )


def _read(content: dict[str, Any], key: str, convert: Callable[[Any], _T]) -> _T:
    if key not in content:
        raise PlanError(f"plan: {key} is missing")
    try:
        return convert(content[key])
    except PlanError as error:
        raise PlanError(f"plan: {key}: {error}") from None
    except InputError as error:
        raise PlanError(f"plan: {key}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PlanError(f"plan: {key} is malformed ({error})") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise PlanError(f"expected a string, got {value!r}")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanError(f"expected a whole number, got {value!r}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise PlanError(f"expected a finite number, got {value!r}")
    return float(value)


def _problem_from(content: Any) -> Problem:
    model = ModelGraph.from_dict(content["model"])
    if content.get("fingerprint") != model.fingerprint:
        raise PlanError(f"fingerprint {content.get('fingerprint')!r} is not the model's, {model.fingerprint!r}")
    return Problem(model, Cluster.from_dict(content["cluster"]), Workload.from_dict(content["workload"]))


def _pipeline_from(content: Any) -> Pipeline:
    keys = ("forward", "backward", "micro_batches")
    return Pipeline(*(tuple(_whole(item) for item in content[key]) for key in keys))


def _forecast_from(content: Any) -> Forecast:
    devices = tuple(
        DeviceForecast(
            _number(d["busy_s"]),
            _number(d["bubble"]),
            _whole(d["peak_bytes"]),
            _number(d.get("peak_at_s", 0.0)),
            tuple((_text(name), _whole(count)) for name, count in d.get("peak_parts", {}).items()),
        )
        for d in content["devices"]
    )
    gap = content.get("gap")
    return Forecast(
        _number(content["step_s"]),
        devices,
        _number(content.get("bound_s", 0.0)),
        None if gap is None else _number(gap),
        _text(content.get("status", "feasible")),
        None if content.get("period_s") is None else _number(content["period_s"]),
    )


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes plan.json; an existing file is replaced only once the new one is complete."""
    write_text(path, json.dumps(plan_to_dict(plan), separators=(",", ":")) + "\n")


def load_plan(path: str | Path) -> Plan:
    """Reads plan.json; raises PlanError (one line) when it is not one."""
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise PlanError(f"{path} is not JSON: {error}") from None
    return plan_from_dict(content)
