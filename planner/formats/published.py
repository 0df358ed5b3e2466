"""What the readers of published files share beside `planner.reading`: ids, flags, ends of edges, cycles."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager

from ..basics import MOST_LAYERS, MOST_OPS, SHOWN, InputError, one_line, refusing, shown

MOST_NODES = MOST_LAYERS
MOST_ID = MOST_OPS * 1000


class FormatError(InputError):
    """A published file that is not what its format says: the message names the line, the node or the edge."""


def as_format() -> AbstractContextManager[None]:
    """Whatever is refused inside is a FormatError."""
    return refusing(FormatError)


def identity(value: object, key: str, where: str) -> int:
    """The id of a node; raises FormatError."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_ID:
        raise FormatError(f"{where}: {key} must be a whole number of at most {MOST_ID}, got {shown(value)}")
    return value


def flag(value: object, key: str, where: str) -> bool:
    """A Boolean, which the files also write as 0 or 1; raises FormatError."""
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise FormatError(f"{where}: {key} must be true, false, 0 or 1, got {shown(value)}")
    return bool(value)


def known(end: Hashable, nodes: Iterable[Hashable], where: str) -> None:
    """Raises FormatError when an edge names a node that is not there; `nodes` is a set or a dictionary."""
    if end not in nodes:  # type: ignore[operator,unused-ignore]
        raise FormatError(f"{where}: there is no node {shown(end)}")


def acyclic(edges: Iterable[tuple[Hashable, Hashable]], what: str = "the graph") -> None:
    """Raises FormatError naming the nodes of a cycle, if there is one."""
    import networkx

    graph: networkx.DiGraph[Hashable] = networkx.DiGraph(list(edges))
    if networkx.is_directed_acyclic_graph(graph):
        return
    cycle = [edge[0] for edge in networkx.find_cycle(graph)]
    few = [*cycle[:6], *(["..."] if len(cycle) > 6 else []), cycle[0]]
    raise FormatError(f"{what} has a cycle: {' -> '.join(one_line(str(node), SHOWN // 2) for node in few)}")
