"""Random numbers that a user's code draws, wherever from, follow from seeds: in every process, thread and order."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

RANDOM_LOCK = threading.RLock()
"""Held by whoever reseeds default generators: they belong to the process, not to the thread."""


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from integers and strings, the same in every process and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Python's, numpy's and torch's default generators start from these parts, and are left as they were."""
    seed = derive_seed(*parts)
    with RANDOM_LOCK, torch.random.fork_rng(devices=[]):
        kept = random.getstate(), np.random.get_state()  # noqa: NPY002 - user's code may draw from it
        try:
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002


def generator_states() -> tuple[object, ...]:
    """The states of the three, to be compared."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), kind, np.asarray(keys).tobytes(), *rest
