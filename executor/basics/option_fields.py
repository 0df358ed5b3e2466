"""Records of options, whose fields say of themselves what the command line, ranks and checkpoints must know.

A new option is a field of a record and the code that uses it: `cli/options.py` makes its option on the command line,
`run/roll_call.py` compares it between ranks, and `run/identity.py` records it in checkpoints, as the field says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
Subject = TypeVar("Subject")
Options = TypeVar("Options")
Result = TypeVar("Result")


class SameIn(Enum):
    """Where an option must have one value."""

    RANK = "rank"
    """Every rank may have its own."""
    RUN = "run"
    """All ranks of a run must have the same."""
    TRAINING = "training"
    """It decides the numbers: all ranks must have the same, and so must a run that goes on from a checkpoint."""


class Form(Enum):
    """What a value looks like on the command line, where neither `choices`, `least` nor a bool says so."""

    TEXT = "text"
    TEXTS = "texts"
    NUMBER = "number"
    POSITIVE = "positive"
    SWITCH = "switch"
    """Yes or no, where neither has been said: two flags."""
    AT_LEAST_0 = "at least 0"
    SHARE = "share"
    SHARES = "shares"
    SECONDS = "seconds"
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True)
class About:
    """What a field says of itself.

    Attributes:
        help: on the command line; "": it has no option there.
        flag: its name there, where it is not the field's.
        form, choices, least, most: what values it takes; a bool is a flag. word: that is taken as well.
        metavar: what the help calls the value.
        same_in: where it must have one value. words: how messages call it, where that is not the field's name.
        record: it is a record itself, whose options stand in its place.
    """

    help: str = ""
    flag: str = ""
    form: Form = Form.TEXT
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    word: str | None = None
    metavar: str | None = None
    same_in: SameIn = SameIn.RUN
    words: str = ""
    record: type | None = None


def option(help: str = "", **said: Any) -> dict[str, About]:
    """The metadata of a field of a record of options, see `About`."""
    return {"about": About(help, **said)}


def about(of: Field[Any]) -> About:
    """What a field says of itself; nothing, where it was not made by `option`."""
    said = of.metadata.get("about", About())
    assert isinstance(said, About)
    return said


def words(of: Field[Any]) -> str:
    """How messages call a field."""
    return about(of).words or of.name.replace("_", " ")


def same_in(record: Any, where: SameIn) -> list[Field[Any]]:
    """The fields of a record that must be the same there."""
    return [of for of in fields(record) if about(of).same_in is where]


def keywords_of(
    record: Callable[P, Options],
) -> Callable[[Callable[[Subject, Options], Result]], Callable[Concatenate[Subject, P], Result]]:
    """Lets a function of a subject and a record be called with the record's fields, as f(subject, field=value, ...)."""

    def decorate(function: Callable[[Subject, Options], Result]) -> Callable[Concatenate[Subject, P], Result]:
        @wraps(function)
        def call(subject: Subject, /, *given: P.args, **named: P.kwargs) -> Result:
            return function(subject, record(*given, **named))

        first = next(iter(inspect.signature(function).parameters.values()))
        signature = inspect.signature(record)
        call.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
        return call

    return decorate
