"""Options of a command from a record of options: every field that says what its help is gets one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from ...planner.cli import OutputFile, SecondsLimit
from ..basics import About, Form, about

Record = TypeVar("Record")


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """A finite number: above zero, or at least zero."""

    name = "number"

    def __init__(self, zero: bool = False, word: str | None = None) -> None:
        self._zero = zero
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Also the word, if there is one; raises click.BadParameter."""
        if self._word is not None and value == self._word:
            return self._word
        try:
            number = float(value)
        except (TypeError, ValueError):
            other = f" or {self._word}" if self._word else ""
            self.fail(f"{value!r} is not a number{other}", param, ctx)
        if not (0 < number < float("inf") or (self._zero and number == 0)):
            self.fail(f"must be finite and {'at least' if self._zero else 'above'} 0, got {value}", param, ctx)
        return number


_SHARE = click.FloatRange(0, 1, max_open=True)
_FORMS: Mapping[Form, Callable[[About], Any]] = {
    Form.TEXT: lambda said: click.STRING,
    Form.TEXTS: lambda said: click.STRING,
    Form.NUMBER: lambda said: click.FLOAT,
    Form.POSITIVE: lambda said: Number(word=said.word),
    Form.AT_LEAST_0: lambda said: Number(zero=True, word=said.word),
    Form.SHARE: lambda said: _SHARE,
    Form.SHARES: lambda said: (_SHARE, _SHARE),
    Form.SECONDS: lambda said: SecondsLimit(),
    Form.FILE: lambda said: OutputFile(),
    Form.FOLDER: lambda said: click.Path(path_type=Path, file_okay=False),
}


def _type(said: About) -> Any:
    if said.choices:
        return click.Choice(said.choices)
    if said.least is not None or said.most is not None:
        return click.IntRange(said.least, said.most)
    return _FORMS[said.form](said)


def _flag(of: Field[Any]) -> str:
    return "--" + (about(of).flag or of.name.replace("_", "-"))


def _key(of: Field[Any]) -> str:
    """The keyword under which click gives the value; no two fields have the same."""
    return _flag(of).removeprefix("--").replace("-", "_")


def _fields(record: type) -> Iterator[Field[Any]]:
    """The fields that have options; those of a record within stand in its place."""
    for of in fields(record):
        inner = about(of).record
        if inner is not None:
            yield from _fields(inner)
        elif about(of).help:
            yield of


def _option(of: Field[Any]) -> Callable[..., Any]:
    said = about(of)
    if isinstance(of.default, bool):
        return click.option(_flag(of), _key(of), is_flag=True, default=of.default, help=said.help)
    if said.form is Form.SWITCH:
        both = f"{_flag(of)}/--no-{_flag(of).removeprefix('--')}"
        return click.option(both, _key(of), is_flag=True, default=None, help=said.help)
    hidden = of.default in (MISSING, None, ()) or (said.least is not None and of.default < said.least)
    return click.option(
        _flag(of),
        _key(of),
        type=_type(said),
        default=None if hidden else of.default,
        show_default=not hidden,
        multiple=said.form is Form.TEXTS,
        metavar=said.metavar,
        help=said.help,
    )


def options_of(record: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a record; `gathered` makes the record of their values."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for of in reversed(list(_fields(record))):
            command = _option(of)(command)
        return command

    return decorate


def gathered(record: type[Record], values: Mapping[str, Any], **more: Any) -> Record:
    """The record, and the records within, of what a command was given; `more`: fields that have no option.

    A record within that has fields without a default is None where those are not given.

    Raises:
        click.UsageError: they are not, but another one of its fields is. RunError: from a record.
    """
    found = dict(more)
    for of in fields(record):  # type: ignore[arg-type]
        inner = about(of).record
        if inner is not None:
            found[of.name] = _within(inner, values)
        elif about(of).help and values[_key(of)] is not None:
            found[of.name] = values[_key(of)]
    return record(**found)


def _within(record: type, values: Mapping[str, Any]) -> Any:
    needed = [of for of in fields(record) if of.default is MISSING]
    missing = [of for of in needed if values[_key(of)] is None]
    if not missing:
        return gathered(record, values)
    for of in _fields(record):
        if values[_key(of)]:
            raise click.UsageError(f"{_flag(of)} needs {_flag(missing[0])} {about(missing[0]).metavar}")
    return None
