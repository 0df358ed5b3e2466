"""What the ranks of a team tell each other inside a layer, priced by the link between them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...planner import Link


class TeamLink(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager: collectives of `models/collectives.py` take a ring's time, and nothing runs beside them.

    A ring's all-reduce moves 2(t-1)/t of the tensor over every link in 2(t-1) rounds, its two halves half of that each
    (Patarasuk and Yuan, 2009), sums at the link's `reduce_bandwidth`. An all-to-all is t-1 rounds in which each rank
    sends a t-th part to one other (pairwise exchange: Thakur, Rabenseifner and Gropp, 2005). Only for fake tensors:
    nothing is sent.

    Attributes:
        seconds: the sum so far.
    """

    def __init__(self, size: int, link: Link) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.link = link
        self.seconds = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ops, packet, rounds = torch.ops.contraflow, getattr(func, "overloadpacket", None), self.size - 1
        if packet is ops.team_sum:
            self.seconds += (
                2 * rounds * (self.link.reduce_occupation_s(args[0].nbytes) / self.size + self.link.latency_s)
            )
            return args[0].new_empty(args[0].shape)
        if packet is ops.team_gather:
            self.seconds += rounds * (self.link.occupation_s(args[0].nbytes) + self.link.latency_s)
            return args[0].new_empty((self.size, *args[0].shape))
        if packet is ops.team_scatter:
            self.seconds += rounds * (self.link.reduce_occupation_s(args[0].nbytes) / self.size + self.link.latency_s)
            return args[0].new_empty(args[0].shape[1:])
        if packet is ops.team_exchange:
            self.seconds += rounds * (self.link.occupation_s(args[0].nbytes) / self.size + self.link.latency_s)
            return args[0].new_empty(args[0].shape)
        return func(*args, **(kwargs or {}))
