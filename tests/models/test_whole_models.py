"""A function that wraps a module must not leave out a part of it."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from contraflow.models import UnknownModel, resolve

WRAPPED = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self, whole, places):
        super().__init__()
        self.wte = whole.wte
        if places:
            self.wpe = whole.wpe
    def forward(self, x):
        return self.wte(x)

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(10, 4), nn.Embedding(6, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("mask", torch.zeros(6, 6))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.wte.weight

def part():
    whole = Whole()
    return [Words(whole, False), whole.norm, whole.head]

def complete():
    whole = Whole()
    del whole.mask
    return [Words(whole, True), whole.norm, whole.head]

def unrelated():
    donor = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
"""


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's."""
    (tmp_path / "wrapped_whole.py").write_text(dedent(WRAPPED))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("wrapped_whole", None)
    return "wrapped_whole"


def test_a_dropped_parameter_is_named_and_counted(wrapped: str) -> None:
    """The positions' embedding and a buffer; what is tied into a layer is not missing."""
    with pytest.raises(UnknownModel, match=r"leave out .*: mask, wpe\.weight \(60 elements\)"):
        resolve(f"{wrapped}:part")


def test_a_module_that_is_all_there_is_a_model(wrapped: str) -> None:
    """Also where the function makes something else beside it."""
    assert len(resolve(f"{wrapped}:complete").layers) == 3
    assert len(resolve(f"{wrapped}:unrelated").layers) == 2
