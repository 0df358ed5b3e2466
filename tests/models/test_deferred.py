"""Modules are built without memory, and every tensor of them is what it would be in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whole_modules
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from contraflow.models.deferred import NotDeferred, filled, recorded
from contraflow.models.once import build, drawing

KIB = 1024


class Odd(nn.Module):
    """Looks at what it draws, tables computed of it, a view, and tensors that are replaced."""

    def __init__(self) -> None:
        super().__init__()
        rates = torch.linspace(0, 1, 5).tolist()
        drawn = torch.randint(2, 6, ()).item()
        self.table = nn.Parameter(torch.empty(int(drawn), 4))
        nn.init.trunc_normal_(self.table, std=rates[2])
        self.register_buffer("angles", torch.outer(torch.arange(6.0), 1 / 10 ** torch.arange(0, 1, 0.25)).cos(), False)
        self.register_buffer("row", self.angles[2])
        self.inner = nn.Linear(4, 4)
        self.inner.weight.data = torch.randn(4, 4).tril()
        with torch.no_grad():
            self.inner.bias[1:3] = 7.0
        self.plain = torch.arange(3) * drawn


class Elsewhere(nn.Module):
    """Of numpy's array, which is used again, and of a list."""

    def __init__(self) -> None:
        super().__init__()
        array = np.random.randn(3, 3)  # noqa: NPY002 - a user's code may
        self.first = nn.Parameter(torch.from_numpy(array).float())
        array[:] = 5.0
        self.second = nn.Parameter(torch.from_numpy(array) * 2)
        self.third = nn.Parameter(torch.tensor([1.0, 2.0]))


class Seeding(nn.Module):
    """Seeds the generator on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(3, 3)
        torch.manual_seed(int(torch.randint(100, ())))
        self.after = nn.Linear(3, 3)


class SeedingAlike(nn.Module):
    """Seeds the generator with the same number every time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = nn.Linear(3, 3)


class Apart(nn.Module):
    """Draws what leaves the generator as it was, by a seed and without one."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.seeded = nn.Linear(3, 3)
        with torch.random.fork_rng(devices=[]):
            self.apart = nn.Linear(3, 3)
        self.after = nn.Linear(3, 3)


def orthogonal() -> nn.Module:
    """A start that is computed of what is drawn, in two factors."""
    layer = nn.Linear(5, 5)
    nn.init.orthogonal_(layer.weight)
    return nn.utils.parametrizations.weight_norm(layer)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(7, 3),
    "norm": lambda: nn.BatchNorm1d(3),
    "lstm": lambda: nn.LSTM(3, 4, 2),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "blocks": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "embedding": lambda: nn.Embedding(9, 4, padding_idx=1),
    "odd": Odd,
    "elsewhere": Elsewhere,
    "seeding": Seeding,
    "alike": SeedingAlike,
    "apart": Apart,
    "orthogonal": orthogonal,
}


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """All that it has, also what is neither a parameter nor a buffer."""
    held = ((f"{path}.{k}", v) for path, part in module.named_modules() for k, v in vars(part).items())
    loose = {name: value for name, value in held if isinstance(value, Tensor)}
    return {**dict(module.named_parameters()), **dict(module.named_buffers()), **loose}


@pytest.mark.long
@example(["seeding", "seeding"], 0)
@example(["alike", "alike", "linear"], 1)
@example(["linear", "apart", "apart"], 2)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4), st.integers(0, 99))
def test_values_are_those_of_a_build_in_memory(kinds: list[str], seed: int) -> None:
    """Bit by bit, whichever part is made first or alone; also those of views, and of what is no parameter."""
    with drawing(seed):
        expected = nn.ModuleList(KINDS[kind]() for kind in kinds)
    with drawing(seed):
        made, record = recorded(lambda: nn.ModuleList(KINDS[kind]() for kind in kinds))
    for number in reversed(range(len(kinds))):
        found, again = (tensors(filled(made[number], record)) for _ in range(2))
        assert not {t.data_ptr() for t in found.values()} & {t.data_ptr() for t in again.values()}
        wanted = tensors(expected[number])
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        assert all(found[name].requires_grad == wanted[name].requires_grad for name in wanted)
    odd = [filled(made[k], record) for k, kind in enumerate(kinds) if kind == "odd"]
    assert all(one.row.data_ptr() == one.angles[2].data_ptr() for one in odd)


def own_generator() -> list[nn.Module]:
    """Draws where nobody sees it."""
    layer = nn.Linear(4, 4)
    layer.weight.data.normal_(generator=torch.Generator().manual_seed(3))
    return [layer]


def written_elsewhere() -> list[nn.Module]:
    """Writes to a tensor that is there already."""
    return [nn.Linear(4, 4).requires_grad_(WRITTEN.zero_().sum().item() == 0)]


WRITTEN = torch.ones(4)


@pytest.mark.parametrize("function", [own_generator, written_elsewhere])
def test_what_cannot_be_recorded_is_made_in_memory(function: Callable[[], Any]) -> None:
    """With the same values."""
    with drawing(0), pytest.raises(NotDeferred):
        recorded(function)
    with drawing(0):
        expected = function()
    found = build(function, 0)
    assert found.record is None
    assert torch.equal(found.made[0].weight, expected[0].weight)


_RANK = """
import resource, sys
from contraflow.models import build_layer, resolve
from contraflow.models.once import kept
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resolve("whole_modules:classifier")
first, stop = map(int, sys.argv[1:])
with kept():
    start = peak()
    model = resolve("whole_modules:wide")
    known = peak()
    mine = [build_layer(model.layers[k], 0, k) for k in range(first, stop)]
print(known - start, peak() - known, sum(p.nbytes for m in mine for p in m.parameters()) // 1024)
"""


@pytest.mark.long
def test_a_process_holds_the_parameters_of_its_stage_alone() -> None:
    """And one tensor more while it draws: never the module of which these are a half, a third or a tenth."""
    total = sum(p.nbytes for p in whole_modules.wide(meta=True)[0].parameters()) // KIB
    here = Path(whole_modules.__file__).parent
    halves = [
        subprocess.Popen([sys.executable, "-c", _RANK, *map(str, span)], cwd=here, stdout=subprocess.PIPE, text=True)
        for span in ((0, 6), (6, 8))
    ]
    for process in halves:
        learned, made, own = map(int, process.communicate()[0].split())
        assert process.returncode == 0
        assert learned < total // 2
        assert made < own + total // 5 < total
