"""The run trace: what a step really did, with the forecast's fields. Format "contraflow/run", version 1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..planner.files import write_text
from ..planner.plan import COMPUTE

if TYPE_CHECKING:
    from .rank import RankReport
    from .step_state import OpRecord

FORMAT = "contraflow/run"
VERSION = 1


@dataclass(frozen=True)
class DeviceTrace:
    """One device in the traced step: seconds it computed, idle share, peak bytes (first steps), its ops."""

    busy_s: float
    bubble: float
    peak_bytes: int
    ops: tuple[OpRecord, ...]


@dataclass(frozen=True)
class RunTrace:
    """The last step of a run; `losses` are those of all steps."""

    step_s: float
    losses: tuple[float, ...]
    devices: tuple[DeviceTrace, ...]

    @classmethod
    def of(cls, reports: Sequence[RankReport], step_s: float, losses: Sequence[float]) -> RunTrace:
        """From what every rank reported at its end."""
        devices = []
        for report in reports:
            busy = sum(r.end_s - r.start_s for r in report.ops if r.op.kind in COMPUTE)
            bubble = 1 - busy / step_s if step_s > 0 else 0.0
            devices.append(DeviceTrace(busy, bubble, report.peak_bytes, tuple(report.ops)))
        return cls(step_s, tuple(losses), tuple(devices))

    def to_dict(self) -> dict[str, Any]:
        """The file's content; times in seconds from the step's start."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "step_s": self.step_s,
            "losses": list(self.losses),
            "devices": [
                {
                    "busy_s": device.busy_s,
                    "bubble": device.bubble,
                    "peak_bytes": device.peak_bytes,
                    "ops": [_op_to_dict(record) for record in device.ops],
                }
                for device in self.devices
            ],
        }


def _op_to_dict(record: OpRecord) -> dict[str, Any]:
    op = record.op
    content: dict[str, Any] = {"kind": op.kind.name, "stage": op.stage, "micro_batch": op.micro_batch}
    if op.peer >= 0:
        content["peer"] = op.peer
    return content | {"start_s": record.start_s, "end_s": record.end_s}


def save_trace(trace: RunTrace, path: str | Path) -> None:
    """Writes the trace; an existing file is replaced only once the new one is complete."""
    write_text(path, json.dumps(trace.to_dict(), separators=(",", ":")) + "\n")
