"""Results remembered per object, for as long as that object lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, cast

_T = TypeVar("_T")


class PerObject(Generic[_T]):
    """A memory for pure functions of an immutable object and a key; found by identity, so large objects are not hashed.

    Safe from threads: at worst a result is computed twice. At most `limit` keys an object are kept.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: dict[int, tuple[weakref.ref[object], dict[Hashable, _T]]] = {}

    def get(self, owner: object, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result for this owner and key, made by `make` the first time."""
        entry = self._known.get(id(owner))
        if entry is None or entry[0]() is not owner:
            number = id(owner)
            entry = (weakref.ref(owner, lambda _: cast(None, self._known.pop(number, None))), {})
            self._known[number] = entry
        results = entry[1]
        try:
            return results[key]
        except KeyError:
            found = make()
        if len(results) >= self._limit:
            results.clear()
        results[key] = found
        return found
