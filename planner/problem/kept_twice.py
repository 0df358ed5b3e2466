"""KeptTwice: a tensor that a layer gives another and both stash; a stage of both keeps it once. Its part of model.json.

An activation's output, for instance, from which its backward computes, and which is the next layer's saved input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..basics import MOST_BYTES, MOST_EDGES, ModelError, reading, shown


class KeptTwice(NamedTuple):
    """Of what layer `first` gives layer `second`, `bytes` are in the stashes of both.

    weight_bytes: the same of what both hold between the halves of their backwards.
    """

    first: str
    second: str
    bytes: int
    weight_bytes: int = 0


def twice_inside(pairs: Iterable[KeptTwice], names: Collection[str]) -> int:
    """Bytes of stashes of these layers that a stage of them keeps once and not twice."""
    return sum(pair.bytes for pair in pairs if pair.first in names and pair.second in names)


def between_stages(pairs: Iterable[KeptTwice], home: Mapping[str, int], names: Sequence[str]) -> tuple[KeptTwice, ...]:
    """What is left of them where layers are stages: `home` of a layer, and the stages' own names."""
    found: dict[tuple[int, int], list[int]] = {}
    for pair in pairs:
        ends = home[pair.first], home[pair.second]
        if ends[0] != ends[1]:
            sizes = found.setdefault(ends, [0, 0])
            sizes[0] += pair.bytes
            sizes[1] += pair.weight_bytes
    return tuple(KeptTwice(names[a], names[b], *sizes) for (a, b), sizes in found.items())


def between_sizes(
    below: Iterable[KeptTwice], above: Iterable[KeptTwice], weights: tuple[int, int]
) -> tuple[KeptTwice, ...]:
    """The weighted means of what is in both, rounded down."""
    found = {pair[:2]: pair for pair in above}
    both = ((pair, found[pair[:2]]) for pair in below if pair[:2] in found)

    def mean(x: int, y: int) -> int:
        return (x * weights[0] + y * weights[1]) // sum(weights)

    return tuple(KeptTwice(*a[:2], mean(a.bytes, b.bytes), mean(a.weight_bytes, b.weight_bytes)) for a, b in both)


def kept_twice_to_list(pairs: Iterable[KeptTwice]) -> list[dict[str, Any]]:
    """As model.json has them."""
    return [
        {
            "layers": [pair.first, pair.second],
            "bytes": pair.bytes,
            **({"weight_bytes": pair.weight_bytes} if pair.weight_bytes else {}),
        }
        for pair in pairs
    ]


def kept_twice_from(content: object) -> tuple[KeptTwice, ...]:
    """Of a parsed model.json. Raises InputError naming the entry."""
    found = []
    for position, entry in enumerate(reading.sequence(content, "kept_twice", MOST_EDGES)):
        where = f"kept_twice[{position}]"
        values = reading.mapping(entry, where, {"layers", "bytes", "weight_bytes"})
        names = reading.texts(reading.items(values, "layers", where, 2), "layers", where)
        if len(names) != 2:
            raise ModelError(f"{where}: layers must be two, got {shown(list(names))}")
        sizes = (reading.required(values, "bytes", where), values.get("weight_bytes", 0))
        whole = [int(reading.whole(size, "bytes", where, most=MOST_BYTES)) for size in sizes]
        found.append(KeptTwice(*names, *whole))
    return tuple(found)
