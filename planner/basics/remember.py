"""Results remembered per object: for as long as that object lives, or to the end of a call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


def _forget(known: dict[int, Any], number: int, _: object) -> None:
    known.pop(number, None)


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
            entry = (weakref.ref(owner, partial(_forget, self._known, id(owner))), {})
            self._known[id(owner)] = entry
        results = entry[1]
        try:
            return results[key]
        except KeyError:
            found = make()
        if len(results) >= self._limit:
            results.clear()
        results[key] = found
        return found


_Call = dict[tuple[int, int, Hashable], tuple[object, Any]]
_call: ContextVar[_Call | None] = ContextVar("what a call has computed", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """A call whose results `PerCall` remembers to its end; inside another one, to the end of that."""
    token = _call.set({}) if _call.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _call.reset(token)


class PerCall(Generic[_T]):
    """As PerObject, within a call of `remembering`: results may hold their owner. Elsewhere nothing is remembered."""

    def get(self, owner: object, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result for this owner and key, made by `make` the first time in a call."""
        call = _call.get()
        if call is None:
            return make()
        place = (id(self), id(owner), key)
        if place not in call:
            call[place] = owner, make()  # the owner lives as long as its number stands for it
        found: _T = call[place][1]
        return found
