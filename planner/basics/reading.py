"""What every reader of a file shares: its text, strict JSON and TOML, and the words to check values with.

Whatever is wrong is an InputError of one line that says where, what was expected and, shortened, what was there; what
is too much is refused with both numbers, before anything is built of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError
from .escapes import SHOWN, listed, one_line, shown
from .limits import LEAST_NUMBER, MOST_FILE_BYTES, MOST_LEVELS, MOST_NAME, MOST_TABLE_FILE_BYTES

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


@contextmanager
def refusing(kind: type[InputError], prefix: str = "") -> Iterator[None]:
    """Turns every InputError inside into this kind, with `prefix` before its message."""
    try:
        yield
    except InputError as error:
        if type(error) is kind and not prefix:
            raise
        raise kind(f"{prefix}{error}") from None


# ---------------------------------------------------------------- files


def file_name(path: str | Path) -> str:
    """A path as messages name it."""
    return one_line(str(path), 2 * SHOWN)


def read_text(path: str | Path, most: int = MOST_FILE_BYTES) -> str:
    """The text of a UTF-8 file without its byte order mark; raises InputError.

    Of a file larger than `most` bytes nothing is kept.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(most + 1)
            size = max(Path(path).stat().st_size, len(content))
    except OSError as error:
        raise InputError(f"cannot read {file_name(path)}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"cannot read {file_name(path)}: {error}") from None
    if len(content) > most:
        raise InputError(f"{file_name(path)} has {size} bytes or more, at most {most} are read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file_name(path)} is not UTF-8 text (byte {error.start})") from None


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, see `parse_json`; raises InputError."""
    return parse_json(read_text(path), file_name(path))


def parse_json(text: str, where: str) -> Any:
    """JSON without a key twice in one object. Raises InputError.

    NaN and Infinity are read, as a run may have lost its way: `number` and `whole` refuse them and say where.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {one_line(str(error), SHOWN)}") from None
    except RecursionError:
        raise InputError(f"{where} is nested {_levels(text)} levels deep, at most {MOST_LEVELS} are read") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"key {shown(twice)} appears {keys.count(twice)} times in one object")
    return found


def _levels(text: str) -> int:
    """How deep lists and objects are nested."""
    depth = most = 0
    for letter in re.findall(r"[\[{\]}]", _STRINGS.sub("", text)):
        depth += 1 if letter in "[{" else -1
        most = max(most, depth)
    return most


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file of at most some megabytes; raises InputError."""
    import tomllib

    text, where = read_text(path, MOST_TABLE_FILE_BYTES), file_name(path)
    for number, line in enumerate(text.splitlines(), start=1):
        levels = line.count(".") + 1
        if levels > MOST_LEVELS and not line.lstrip().startswith("#"):
            raise InputError(f"{where}: line {number} names {levels} levels of tables, at most {MOST_LEVELS} are read")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"{where} is not TOML: {one_line(str(error), SHOWN)}") from None
    except RecursionError:
        raise InputError(f"{where} is nested {_levels(text)} levels deep, at most {MOST_LEVELS} are read") from None


# ---------------------------------------------------------------- values


def mapping(value: object, where: str, keys: Collection[str] | None = None, what: str = "an object") -> dict[str, Any]:
    """The value as an object, with no other keys than these; raises InputError."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be {what}, got {shown(value)}")
    if keys is not None:
        for key in value:
            if key not in keys:
                raise InputError(f"{where}: unknown key {shown(key)}; known: {listed(sorted(keys), 20)}")
    return value


def required(content: Mapping[str, Any], key: str, where: str) -> Any:
    """The value under a key; raises InputError when there is none."""
    if key not in content:
        raise InputError(f"{where}: {key} is missing")
    return content[key]


def sequence(value: object, what: str, most: int | None = None) -> Sequence[Any]:
    """A list (of Python's, a tuple too) of at most `most` entries; raises InputError with both numbers."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{what} must be a list, got {shown(value)}")
    at_most(len(value), most, what)
    return value


def at_most(count: int, most: int | None, what: str) -> None:
    """Raises InputError with both numbers when there are more than that."""
    if most is not None and count > most:
        raise InputError(f"{what}: {count} of them, at most {most} are read")


def items(content: Mapping[str, Any], key: str, where: str, most: int | None = None) -> Sequence[Any]:
    """The list under a key; raises InputError when it is missing, no list or too long."""
    return sequence(required(content, key, where), f"{where}: {key}", most)


def any_number(value: object, key: str, where: str) -> float:
    """Any number, NaN and infinity too; raises InputError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {key} must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def number(value: object, key: str, where: str, most: float = math.inf) -> float:
    """A finite number, 0 or from `LEAST_NUMBER` to `most`; raises InputError."""
    result = any_number(value, key, where)
    if not math.isfinite(result) or result < 0:
        raise InputError(f"{where}: {key} must be finite and not negative, got {shown(value)}")
    if result > most:
        raise InputError(f"{where}: {key} must be at most {most:g}, got {shown(value)}")
    if 0 < result < LEAST_NUMBER:
        raise InputError(f"{where}: {key} must be 0 or at least {LEAST_NUMBER:g}, got {shown(value)}")
    return result


def positive(value: object, key: str, where: str, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number above 0, from `least` to `most`; raises InputError."""
    result = number(value, key, where, most)
    if result == 0:
        raise InputError(f"{where}: {key} must be above 0")
    if result < least:
        raise InputError(f"{where}: {key} must be at least {least:g}, got {shown(value)}")
    return result


def whole(value: object, key: str, where: str, least: int = 0, most: int | None = None) -> int:
    """A whole number from `least` to `most`; raises InputError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {key} must be a number, got {shown(value)}")
    if not value >= least or (isinstance(value, float) and not value.is_integer()):
        raise InputError(f"{where}: {key} must be a whole number of at least {least}, got {shown(value)}")
    if most is not None and value > most:
        raise InputError(f"{where}: {key} must be at most {most}, got {shown(value)}")
    return int(value)


def text(value: object, key: str, where: str, most: int = MOST_NAME) -> str:
    """A string of at most so many letters; raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} must be a string, got {shown(value)}")
    if len(value) > most:
        raise InputError(f"{where}: {key} has {len(value)} letters, at most {most} are read")
    return value


def name_in(name: str) -> str:
    """A name as the place that a message speaks of."""
    return one_line(name, SHOWN // 2)


def texts(values: Iterable[object], key: str, where: str) -> tuple[str, ...]:
    """Strings; raises InputError."""
    return tuple(text(value, key, where) for value in values)


def versioned(content: Mapping[str, Any], form: str, version: int, what: str, where: str = "") -> None:
    """Raises InputError unless this is of a format, in a version that is read: a number, which true is not."""
    before = f"{where}: " if where else ""
    if content.get("format") != form:
        raise InputError(f"{before}format must be {form!r}, got {shown(content.get('format'))}")
    given = content.get("version")
    if isinstance(given, bool) or given != version:
        raise InputError(f"{before}{what} version must be {version}, got {shown(given)}")
