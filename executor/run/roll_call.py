"""Do ranks that were started one by one mean the same run? Asked before anything depends on the answer.

Over the default process group, which exists whatever the ranks mean: which other groups there are follows from their
plans and options, and ranks that create other groups wait for one another for ever.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...planner.basics import InputError
from ...planner.plan import Plan
from ...planner.plan_file import plan_to_dict
from ..basics import ExecutionError, RunError, SameIn, foreign, ours, same_in, words
from .identity import Difference, differences
from .job import Job
from .model_code import layer_digests, source_digests

_NAMED = 3
"""A refusal names so many differences and counts the others."""


@dataclass(frozen=True)
class Presence:
    """What one rank is about to run.

    Attributes:
        must: what all ranks must have in common, by name. sources: the same of code, by module that both have loaded.
        may: what changes results by round-off at most, and is only told.
        refused: why this rank cannot run at all, if so; bad_input: whether that is the user's input.
    """

    must: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    may: Mapping[str, object] = field(default_factory=dict)
    refused: str | None = None
    bad_input: bool = False

    @classmethod
    def of(cls, job: Job) -> Presence:
        """Of a rank that is ready for a job."""
        must: dict[str, object] = {
            "schedule": job.plan.provenance.source,
            **job.identity.in_words(),
            "steps": job.steps,
            **{f"checkpoint {name}": value for name, value in _saving(job).items()},
            "first step": job.first,
            **{words(of): getattr(job.options, of.name) for of in same_in(job.options, SameIn.RUN)},
            "costs in the plan": _costs(job.plan),
            "contraflow": __version__,
            "torch": str(torch.__version__).partition("+")[0],
        }
        layers = layer_digests(job.model)
        must |= {f"layer {name!r}": digest for name, digest in layers.items()}
        may = {"python": platform.python_version(), "numpy": np.__version__, "torch's build": str(torch.__version__)}
        return cls(must, {f"code of {name}": found for name, found in source_digests().items()}, may)

    @classmethod
    def unable(cls, error: Exception) -> Presence:
        """Of a rank whose preparation has failed."""
        line = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, InputError):
            return cls(refused=line, bad_input=True)
        return cls(refused=line if ours(error) else foreign(error))


def _saving(job: Job) -> dict[str, object]:
    return {} if job.checkpoint is None else asdict(job.checkpoint)


def _costs(plan: Plan) -> str:
    content = plan_to_dict(plan)
    content.pop("provenance")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def call_roll(mine: Presence, gather: Callable[[Presence], Sequence[Any]], tell: Callable[[str], None]) -> None:
    """Compares all ranks; collective. Every rank comes to the same end.

    Args:
        gather: the presences of all ranks, in rank order. tell: what differs but may.

    Raises:
        RunError: two ranks differ in something that decides the result, with both values; or a rank's input is bad.
        ExecutionError: a rank has failed before.
    """
    everyone: Sequence[Presence] = gather(mine)
    _require_able(everyone)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        loaded = first.sources.keys() & other.sources.keys()
        code = [{name: of.sources[name] for name in sorted(loaded)} for of in (first, other)]
        found = [*differences(first.must, other.must), *differences(*code)]
        if found:
            raise RunError(f"ranks 0 and {rank} disagree: {_listed(found)}")
    for rank, other in enumerate(everyone):
        if notable := differences(first.may, other.may):
            tell(f"ranks 0 and {rank} have different versions: {_listed(notable)}")


def _require_able(everyone: Sequence[Presence]) -> None:
    unable = {rank: presence for rank, presence in enumerate(everyone) if presence.refused is not None}
    if not unable:
        return
    rank, presence = min(unable.items(), key=lambda item: (not item[1].bad_input, item[0]))
    same = len({other.refused for other in everyone}) == 1
    text = str(presence.refused) if same else f"rank {rank}: {presence.refused}"
    raise RunError(text) if presence.bad_input else ExecutionError(text)


def _listed(found: Sequence[Difference]) -> str:
    more = len(found) - _NAMED
    return "; ".join(map(str, found[:_NAMED])) + (f" (and {more} more)" if more > 0 else "")
