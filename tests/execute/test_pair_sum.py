"""Two ranks' small sums, by an exchange, are gloo's own, bit by bit."""

from __future__ import annotations

import torch
import torch.distributed as dist

from contraflow.executor.measure.ranks import among
from contraflow.executor.wires.pair_sum import MOST_BYTES, PairSum, exchanged

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)


def summed() -> list[str]:
    """What differs; several sums of one group are under way at a time."""
    mine = dist.new_group([0, 1])
    generator = torch.Generator().manual_seed(dist.get_rank())
    values = [(torch.randn(count, generator=generator) * 100).to(kind) for kind in TYPES for count in (1, 7, 3000)]
    ours, theirs = [value.clone() for value in values], [value.clone() for value in values]
    handles = [PairSum(tensor, mine) for tensor in ours]
    wrong = [f"{tensor.dtype} done before anybody waits" for tensor, h in zip(ours, handles, strict=True) if h.done()]
    for tensor in theirs:
        dist.all_reduce(tensor)
    for handle in reversed(handles):
        handle.wait()
        handle.wait()
    wrong += [f"{a.dtype}, {a.numel()}" for a, b in zip(ours, theirs, strict=True) if not torch.equal(a, b)]
    dist.destroy_process_group(mine)
    return wrong + [f"{handle} is not done" for handle in handles if not handle.done()]


def test_exchanges_come_to_the_same_bits() -> None:
    """Of every type that gradients and counts have."""
    assert among(2, 1, summed) == []


def test_large_sums_and_those_of_more_ranks_are_gloos() -> None:
    """By bytes, and by ranks."""
    small = torch.zeros(4)
    assert exchanged(small, 2)
    assert not exchanged(small, 3)
    assert not exchanged(torch.zeros(0), 2)
    assert not exchanged(torch.zeros(MOST_BYTES // 4 + 1), 2)
