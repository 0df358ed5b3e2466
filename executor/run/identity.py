"""What decides the numbers of a run: recorded in checkpoints, compared between ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch

from ...planner.graph import update_size
from ...planner.plan import Plan
from ...planner.runs import plan_fingerprint
from ..basics import RunError, RunOptions, SameIn, Training, same_in, words

Value = str | int | float | None | list[float]
"""What JSON gives back as it was."""


class Difference(NamedTuple):
    """Something that two runs do not have in common: its name, and both values in words."""

    name: str
    mine: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.name} {self.mine} and {self.theirs}"


@dataclass(frozen=True)
class RunIdentity:
    """A run as far as its results depend on it; engine, transport, device and length are not part of it.

    Attributes:
        plan: `plan_fingerprint`: stages, devices, op lists. Another plan gives the same results but for round-off.
        model, model_fingerprint: the model's name; its layers, parameter shapes and ties.
        inputs: shape and type of a micro-batch as the first layer gets it: "16x64 float32".
        data: name of the data set.
        seed: of parameters, data and dropout.
        dtype: of the parameters, "float32". precision: "fp32" or "mixed".
        micro_batch_size: samples. micro_batches: of a step (or update).
        optimizer, weights: its name, and the weight policy ("flush": synchronous).
        training: every field of `Training`, defaults filled in, and what else was chosen of `RunOptions` that decides
            the numbers.
    """

    plan: str
    model: str
    model_fingerprint: str
    inputs: str
    data: str
    seed: int
    dtype: str
    precision: str
    micro_batch_size: int
    micro_batches: int
    optimizer: str
    weights: str
    training: Mapping[str, Value]

    @classmethod
    def of(
        cls,
        plan: Plan,
        options: RunOptions,
        training: Training,
        dtype: torch.dtype,
        *,
        model: tuple[str, str],
        inputs: str,
        data: str,
    ) -> RunIdentity:
        """Of a run of this plan; `training` with its defaults filled in, see `Training.of_run`.

        `model`: its name and the fingerprint of its own layers, see `parts_fingerprint`.
        """
        graph, workload = plan.problem.model, plan.problem.workload
        chosen = {
            of.name: getattr(options, of.name) for of in same_in(options, SameIn.TRAINING) if of.name not in _NAMED
        }
        more = {name: value for name, value in chosen.items() if value != getattr(RunOptions, name)}
        return cls(
            plan=plan_fingerprint(plan),
            model=model[0],
            model_fingerprint=model[1],
            inputs=inputs,
            data=data,
            seed=options.seed,
            dtype=str(dtype).removeprefix("torch."),
            precision=workload.precision,
            micro_batch_size=graph.micro_batch_size,
            micro_batches=update_size(plan),
            optimizer=workload.optimizer,
            weights=plan.weights,
            training={key: list(v) if isinstance(v, tuple) else v for key, v in (asdict(training) | more).items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return {**asdict(self), "training": dict(self.training)}

    @classmethod
    def from_dict(cls, content: object) -> RunIdentity:
        """What `to_dict` gave; raises RunError naming the key that is missing, unknown or of another type."""
        if not isinstance(content, Mapping):
            raise RunError(f"a run's identity must be an object, got {type(content).__name__}")
        known = {field.name: field.type for field in fields(cls)}
        if wrong := sorted(map(str, known.keys() ^ content.keys())):
            state = "missing" if wrong[0] in known else "unknown"
            raise RunError(f"run identity: key {wrong[0]!r} is {state}")
        for name, kind in known.items():
            allowed: Any = {"str": str, "int": int}.get(str(kind), Mapping)
            if not isinstance(content[name], allowed) or isinstance(content[name], bool):
                raise RunError(f"run identity: {name} is a {type(content[name]).__name__}")
        return cls(**content)

    def differences(self, other: RunIdentity) -> tuple[Difference, ...]:
        """What differs, both values each; options of the training by their own names."""
        return differences(self.in_words(), other.in_words())

    def in_words(self) -> dict[str, object]:
        """Everything by the name that messages use, options of the training among the rest."""
        content = self.to_dict()
        content |= {_WORDS.get(key, key): value for key, value in content.pop("training").items()}
        return {key.replace("_", " "): value for key, value in content.items()}


_WORDS = {of.name: words(of) for record in (RunOptions, Training) for of in fields(record)}
_NAMED = frozenset({"model", "data", "seed", "dtype", "lr", "training"})
"""Options of a run that have keys of their own here."""


def differences(mine: Mapping[str, object], theirs: Mapping[str, object]) -> tuple[Difference, ...]:
    """Keys whose values differ, in the first's order; a missing value is "none"."""
    return tuple(
        Difference(name, _text(mine.get(name)), _text(theirs.get(name)))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    )


def _text(value: object) -> str:
    """A value for a line of text."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
