"""Threads that do one thing after the other beside a rank's own work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from .place import Place


class Lane:
    """One thread that does one thing after the other."""

    def __init__(self, name: str, place: Place) -> None:
        threads = torch.get_num_threads()

        def begin() -> None:
            torch.set_num_threads(threads)
            place.adopt_thread()

        self._pool = ThreadPoolExecutor(1, name, initializer=begin)

    def put(self, work: Callable[[], None]) -> Future[None]:
        """Does `work` after everything that was put here before; its errors come out of the future.

        Who sees the future done finds the memory free that the work alone held.
        """
        held = [work]
        del work
        return self._pool.submit(lambda: held.pop()())

    def close(self) -> None:
        """Starts nothing more; does not wait for what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Lanes:
    """Threads by name, started when they are first used."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name
        self._lanes: dict[str, Lane] = {}

    def __getitem__(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = Lane(f"{self._name} {name}", self._place)
        return self._lanes[name]

    def close(self) -> None:
        """Ends them all."""
        for lane in self._lanes.values():
            lane.close()
