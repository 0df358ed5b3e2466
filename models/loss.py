"""The loss the zoo's models share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of logits (..., classes) against int64 targets (...): a scalar."""
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))
