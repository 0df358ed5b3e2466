"""Where `contraflow plan` writes when nobody says: plan.json in the current folder, and never over somebody else's."""

from __future__ import annotations

import re
from pathlib import Path

from ..basics import InputError, refusal
from ..plan_file import FORMAT

PLAN = Path("plan.json")
_HEAD = re.compile(rb'\s*\{\s*"format"\s*:\s*"' + re.escape(FORMAT.encode()) + rb'"')


def own_plan_file() -> Path:
    """plan.json of the current folder. Raises InputError where it cannot be written, or is something else's."""
    reason = refusal(PLAN)
    if reason is not None:
        raise InputError(f"the plan cannot be written to {PLAN} here, {reason}: give -o FILE")
    if PLAN.is_file() and not _is_plan(PLAN):
        raise InputError(f"{PLAN} is there and is no plan of contraflow: give -o FILE")
    return PLAN


def _is_plan(path: Path) -> bool:
    """Whether the file starts as plans are written."""
    try:
        with path.open("rb") as stream:
            return _HEAD.match(stream.read(1000)) is not None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
