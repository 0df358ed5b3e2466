"""The store of a job whose ranks were started one by one: a few words between ranks beside their messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_PATIENCE = timedelta(seconds=5)
"""Nothing that is asked here may keep a rank from watching itself."""


class JobStore:
    """This process's connection, made on first use, and again after it was lost. Without one nothing is heard or told.

    Under torchrun the store is there before any rank; otherwise rank 0 has it once the process group exists.
    """

    def __init__(self) -> None:
        self._store: Any = None

    def set(self, key: str, content: bytes) -> None:
        """Tells all ranks of this attempt."""
        self._ask(lambda store: store.set(own_key(key), content), None)

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """What has been told; b"" for a key of which nothing has."""

        def ask(store: Any) -> list[bytes]:
            return [store.get(own_key(key)) if store.check([own_key(key)]) else b"" for key in keys]

        said: list[bytes] = self._ask(ask, [b""] * len(keys))
        return said

    def first_word(self) -> bool:
        """Whether no rank has asked this before, so that one of them tells the user what is wrong; also if unknown."""
        first: bool = self._ask(lambda store: store.add(own_key("words"), 1) == 1, True)
        return first

    def _ask(self, question: Any, without: Any) -> Any:
        try:
            if self._store is None:
                if not (has_agent_store() or dist.is_initialized()):
                    return without
                self._store = _connected()
            return question(self._store)
        except (RuntimeError, OSError, ValueError, KeyError):
            self._store = None
            return without


def has_agent_store() -> bool:
    """Whether torchrun's agent serves the store, so that it is there before any rank."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def own_key(key: str) -> str:
    """The key that no other attempt of the job uses."""
    return f"contraflow/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{key}"


def _connected() -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_PATIENCE)  # type: ignore[attr-defined]
