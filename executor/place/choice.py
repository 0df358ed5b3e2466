"""Which place a rank computes at, and whether there is one."""

from __future__ import annotations

import os

import torch

from ..basics import DEVICES, RunError
from .cuda import CudaPlace
from .place import CPU, Place


def place_of(device: str, local_rank: int) -> Place:
    """The place of a rank: the CPU, or the machine's CUDA devices dealt out in turn.

    Raises RunError: an unknown device, or none of it here.
    """
    if device == "cpu":
        return CPU
    require_device(device)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # see docs/cuda.md
    return CudaPlace(torch.device("cuda", local_rank % torch.cuda.device_count()))


def require_device(device: str) -> None:
    """Raises RunError: an unknown device, or none of it here."""
    if device not in DEVICES:
        raise RunError(f"unknown device {device!r}; known: {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("device cuda: torch sees no CUDA device here")
