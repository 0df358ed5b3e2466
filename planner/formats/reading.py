"""What the readers share: text and JSON of a file, checked numbers, cycles."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError


class FormatError(InputError):
    """A published file that is not what its format says: the message names the line, the node or the edge."""


def read_text(path: str | Path) -> str:
    """The content of a text file; raises FormatError when it cannot be read or is no text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not a text file") from None


def parse_json(text: str, where: str) -> Any:
    """The parsed text; raises FormatError with line and column."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON: {error}") from None


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """The value as a JSON object; raises FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be an object, got {_short(value)}")
    return value


def items(content: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """The list under a key; raises FormatError when it is missing or no list."""
    value = required(content, key, where)
    if not isinstance(value, list):
        raise FormatError(f"{where}: {key} must be a list, got {_short(value)}")
    return value


def required(content: Mapping[str, Any], key: str, where: str) -> Any:
    """The value under a key; raises FormatError when there is none."""
    if key not in content:
        raise FormatError(f"{where}: {key} is missing")
    return content[key]


def number(value: object, key: str, where: str) -> float:
    """A finite number of at least 0; raises FormatError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FormatError(f"{where}: {key} must be a number, got {_short(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or result < 0:
        raise FormatError(f"{where}: {key} must be finite and not negative, got {_short(value)}")
    return result


def positive(value: object, key: str, where: str) -> float:
    """A finite number above 0; raises FormatError."""
    result = number(value, key, where)
    if result == 0:
        raise FormatError(f"{where}: {key} must be above 0")
    return result


def whole(value: object, key: str, where: str, least: int = 0) -> int:
    """A whole number of at least `least`; raises FormatError."""
    result = number(value, key, where)
    if result != int(result) or result < least:
        raise FormatError(f"{where}: {key} must be a whole number of at least {least}, got {_short(value)}")
    return int(result)


def identity(value: object, key: str, where: str) -> int:
    """The id of a node; raises FormatError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"{where}: {key} must be a whole number, got {_short(value)}")
    return value


def flag(value: object, key: str, where: str) -> bool:
    """A Boolean, which the files also write as 0 or 1; raises FormatError."""
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise FormatError(f"{where}: {key} must be true, false, 0 or 1, got {_short(value)}")
    return bool(value)


def known(end: Hashable, nodes: Iterable[Hashable], where: str) -> None:
    """Raises FormatError when an edge names a node that is not there; `nodes` is a set or a dictionary."""
    if end not in nodes:  # type: ignore[operator,unused-ignore]
        raise FormatError(f"{where}: there is no node {end!r}")


def acyclic(edges: Iterable[tuple[Hashable, Hashable]], what: str = "the graph") -> None:
    """Raises FormatError naming the nodes of a cycle, if there is one."""
    import networkx

    graph: networkx.DiGraph[Hashable] = networkx.DiGraph(list(edges))
    if networkx.is_directed_acyclic_graph(graph):
        return
    cycle = [edge[0] for edge in networkx.find_cycle(graph)]
    shown = [*map(str, cycle[:6]), *(["..."] if len(cycle) > 6 else []), str(cycle[0])]
    raise FormatError(f"{what} has a cycle: {' -> '.join(shown)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
