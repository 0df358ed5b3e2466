"""Where a graph of operators may be cut into layers: along modules that repeat, where few tensors pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import fx, nn

from .exported_nodes import is_tensor, weights_of


@dataclass(frozen=True)
class Segment:
    """Consecutive operators that become a layer; `root`: the module whose parameters they name from."""

    name: str
    nodes: tuple[fx.Node, ...]
    block: str | None = None
    root: str = ""


class Cutting:
    """The operators of a graph in order, without those that every layer makes for itself; `ends`: what leaves it."""

    def __init__(self, nodes: Sequence[fx.Node], ends: Sequence[fx.Node]) -> None:
        self.nodes = tuple(nodes)
        self.place = {node: k for k, node in enumerate(nodes)}
        self._last = {
            node: max((self.place[user] for user in node.users if user in self.place), default=k)
            for node, k in self.place.items()
        }
        self._last |= {node: len(nodes) for node in ends if node in self.place}

    def passing(self, place: int) -> list[fx.Node]:
        """What is made before this place and used from there on."""
        return [node for node in self.nodes[:place] if self._last[node] >= place]

    def may_cut(self, place: int) -> bool:
        """Whether only tensors pass there."""
        return 0 < place < len(self.nodes) and all(map(is_tensor, self.passing(place)))

    @cached_property
    def weights(self) -> list[int]:
        """Numbers of parameters that each operator is the first to take."""
        seen: set[str] = set()
        found = []
        for node in self.nodes:
            mine = weights_of(node)
            found.append(sum(count for name, count in mine.items() if name not in seen))
            seen |= mine.keys()
        return found

    def module(self, node: fx.Node) -> str:
        """The path of the innermost module that it is of."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return str(stack[-1][0]) if stack else ""


def blocks_of(module: nn.Module, cutting: Cutting) -> list[tuple[str, int, int]]:
    """(path, first operator, the one after its last) of the outermost modules that repeat, in order."""
    found: list[tuple[str, int, int]] = []
    taken: list[str] = []
    for path, part in module.named_modules():
        children = list(part.named_children())
        alike = len(children) > 1 and len({type(child) for _, child in children}) == 1
        if not isinstance(part, nn.ModuleList | nn.Sequential) or not alike or _inside(path, taken):
            continue
        spans = [(f"{path}.{name}", *_span(f"{path}.{name}", cutting)) for name, _ in children]
        if all(stop > first for _, first, stop in spans) and not any(
            a[1] < b[2] and b[1] < a[2] for a in spans for b in (*found, *spans) if a is not b
        ):
            found += spans
            taken.append(path)
    return sorted(found, key=lambda span: span[1])


def _inside(path: str, taken: Collection[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in taken)


def _span(path: str, cutting: Cutting) -> tuple[int, int]:
    places = [k for k, n in enumerate(cutting.nodes) if f"{cutting.module(n)}.".startswith(f"{path}.")]
    return (places[0], places[-1] + 1) if places else (0, 0)


def segments_of(cutting: Cutting, blocks: Sequence[tuple[str, int, int]]) -> list[Segment]:
    """The layers: blocks, in halves where that can be, and what is between them; without blocks, few large pieces."""
    if not blocks:
        return _pieces(cutting)
    edges = {0, len(cutting.nodes), *(p for _, first, stop in blocks for p in (first, stop))}
    starts = sorted(p for p in edges if p in (0, len(cutting.nodes)) or cutting.may_cut(p))
    found: list[Segment] = []
    owner = {first: path for path, first, _ in blocks}
    waiting = 0
    for start, stop in zip(starts, starts[1:], strict=False):
        path = owner.get(start)
        if path is None and not any(cutting.weights[start:stop]) and stop < len(cutting.nodes):
            continue  # it goes to the next
        nodes = cutting.nodes[waiting:stop]
        if path is None and not any(cutting.weights[start:stop]) and found:
            found[-1] = replace(found[-1], nodes=(*found[-1].nodes, *nodes))
        elif path is None:
            found.append(Segment(_between(found), nodes))
        else:
            found += _halves(cutting, path, waiting, start, stop, blocks)
        waiting = stop
    return [*found[:-1], replace(found[-1], name="head")] if found[-1].name.startswith("between") else found


def _between(found: Sequence[Segment]) -> str:
    return f"between{len(found)}" if found else "stem"


def _halves(
    cutting: Cutting, path: str, begin: int, first: int, stop: int, blocks: Sequence[tuple[str, int, int]]
) -> Iterator[Segment]:
    """A block as two layers where one tensor passes between them, as evenly by parameters as can be."""
    best, place = 0, 0
    for middle in range(first + 1, stop):
        sides = sum(cutting.weights[begin:middle]), sum(cutting.weights[middle:stop])
        if min(sides) > best and cutting.may_cut(middle):
            passing = [
                n for n in cutting.passing(middle) if cutting.place[n] >= begin or not _shared(n, cutting, blocks)
            ]
            if len(passing) == 1:
                best, place = min(sides), middle
    if not place:
        return iter([Segment(path, cutting.nodes[begin:stop], None, path)])
    halves = (cutting.nodes[begin:place], cutting.nodes[place:stop])
    return iter([Segment(f"{path}.part{k}", nodes, path, path) for k, nodes in enumerate(halves)])


def _shared(node: fx.Node, cutting: Cutting, blocks: Sequence[tuple[str, int, int]]) -> bool:
    """Whether several blocks use it."""
    places = [cutting.place[user] for user in node.users if user in cutting.place]
    return sum(any(first <= p < stop for p in places) for _, first, stop in blocks) > 1


MOST_PIECES = 32
"""Of a graph in which nothing repeats."""


def _pieces(cutting: Cutting) -> list[Segment]:
    """Cut where one tensor passes, into pieces of about as many parameters."""
    total = sum(cutting.weights)
    starts, weight = [0], 0
    for place in range(1, len(cutting.nodes)):
        weight += cutting.weights[place - 1]
        full = weight > 0 and weight * MOST_PIECES >= total and cutting.weights[place] > 0
        if full and cutting.may_cut(place) and len(cutting.passing(place)) == 1:
            starts.append(place)
            weight = 0
    stops = [*starts[1:], len(cutting.nodes)]
    return [Segment(f"part{k}", cutting.nodes[a:b]) for k, (a, b) in enumerate(zip(starts, stops, strict=True))]
