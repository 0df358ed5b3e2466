"""Selective recomputation in programs: what is dropped, that it comes back bit for bit, and what is never run again."""

from __future__ import annotations

import pytest
import torch
from runs import Case, in_threads, planned, worst_excess
from torch import Tensor, nn
from torch.nn import functional as F
from traced_stages import Part, traced

from contraflow.executor.basics.errors import RunError
from contraflow.executor.place.memory import StorageTracker
from contraflow.executor.run.launch import execute


class Scores(nn.Module):
    """Attention in plain operators: probabilities of (heads, time, time) are kept, unless they are made again."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.into, self.out, self.dropout = nn.Linear(16, 48), nn.Linear(16, 16), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1))
        return x + self.out((weights @ v).transpose(1, 2).flatten(-2))


class Activated(nn.Module):
    """In place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.up, self.down, self.in_place = nn.Linear(16, 64), nn.Linear(64, 16), in_place

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return x + self.down(F.silu(y).mul_(2.0) if self.in_place else F.gelu(y))


MODELS = ["gpt-tiny", "gpt-tiny-dropout", "llama-tiny", "resnet-tiny", "mixtral-tiny", "bert-tiny"]


@pytest.mark.parametrize("name", MODELS)
def test_a_part_made_again_is_the_stash_bit_for_bit(name: str) -> None:
    """Statistics are counted once, random numbers drawn once; what is kept is smaller by what was said."""
    case = Part.of(name, first=1)
    parameters, buffers, bare = case.parameters(), case.buffers(), case.buffers()
    output, stash = case.program.forward(parameters, buffers, case.x, case.target, seed=7)
    again, kept = case.program.forward_part(parameters, bare, case.x, case.target, seed=7)
    assert torch.equal(output, again)
    assert kept.nbytes == stash.nbytes - case.program.selective_bytes
    whole = case.program.remake_part(kept, parameters, bare)
    assert all(torch.equal(buffers[key], bare[key]) for key in buffers)
    for mine, theirs in zip(whole.tensors, stash.tensors, strict=True):
        assert torch.equal(mine, theirs)
    if case.program.selective_bytes:
        with pytest.raises(ValueError, match="consumed already"):
            case.program.remake_part(kept, parameters, bare)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_that_is_not_fused_drops_its_scores(dropout: float) -> None:
    """Korthikanti's case: they are most of its stash. What dropout drew is kept."""
    x = torch.randn(2, 64, 16)
    program = traced([Scores(dropout)], [1], x)
    scores = 2 * 2 * 64 * 64 * x.element_size()
    assert scores <= program.selective_bytes <= program.stash_bytes - x.nbytes
    names = dict(Scores().named_parameters())
    parameters = {f"1.{key}": tensor.detach() for key, tensor in names.items()}
    with StorageTracker([*parameters.values(), x]) as tracker:
        kept = program.forward_part(parameters, {}, x, seed=3)[1]
        assert tracker.current_bytes <= program.stash_bytes - program.selective_bytes
        whole = program.remake_part(kept, parameters, {})
        assert tracker.current_bytes <= program.stash_bytes
    for mine, theirs in zip(whole.tensors, program.forward(parameters, {}, x, seed=3)[1].tensors, strict=True):
        assert torch.equal(mine, theirs)


def test_what_changes_in_place_is_not_made_again_from_what_it_was() -> None:
    """silu(y) is doubled in place: neither it nor what follows can be made from its memory once more."""
    x = torch.randn(8, 16)
    assert traced([Activated(False)], [1], x).selective_bytes > 0
    assert traced([Activated(True)], [1], x).selective_bytes == 0


def test_a_stage_drops_what_its_layers_drop() -> None:
    """Whatever is cut where: what one layer hands to the next is kept."""
    alone = [Part.of("gpt-tiny", first=k, last=k + 1).program.selective_bytes for k in range(1, 5)]
    assert Part.of("gpt-tiny", first=1, last=5).program.selective_bytes == sum(alone) > 0


def test_the_measured_peak_is_the_planned_one() -> None:
    """Less than with every stash kept, and all of what was planned is used."""
    case = Case("gpipe", "gpt-tiny", 2, 4)
    kept, lean = planned(case), planned(case._replace(stash="selective"))
    assert kept.forecast is not None
    assert lean.forecast is not None
    assert lean.forecast.peak_bytes[0] < 0.9 * kept.forecast.peak_bytes[0]
    for share in worst_excess(in_threads(lean)).values():
        assert 0.85 <= share <= 1.0


def test_the_eager_engine_says_that_it_cannot() -> None:
    """It knows nothing of what follows from what: in one line, before anything trains."""
    lean = planned(Case("gpipe", "gpt-tiny", 2, 4, stash="selective"))
    with pytest.raises(RunError, match=r"stage \d: the plan drops \d+ bytes of its stash .* can drop none"):
        execute(lean, 1, transport="threads", engine="eager")
