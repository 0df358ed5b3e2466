"""Squeezed orders: every op once, stashes within the room, the same from plain Python and compiled."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.planner.basics import Loops
from contraflow.planner.plan import Kind
from contraflow.planner.schedules import squeezed
from contraflow.planner.schedules.blocks import BLOCKS, adapted, repeated
from contraflow.planner.schedules.squeezing import squeeze
from contraflow.planner.schedules.timing import Timing

ROUNDING = 1 + 1e-9


def random_timing(rng: random.Random, devices: int) -> Timing:
    """Of a V over these devices, with room for one stash of each stage and more."""
    stages = 2 * devices
    forward, back, weight = ([rng.uniform(*ends) for _ in range(stages)] for ends in ((1, 2), (1, 2), (0, 2)))
    stash = [rng.uniform(1, 2) for _ in range(stages)]
    arrival = [rng.choice((0.0, rng.uniform(0, 0.5))) for _ in range(stages - 1)]
    pending = [size * rng.random() for size in stash]
    return Timing(forward, back, weight, arrival, stash, pending, [rng.uniform(4, 4 + 4 * devices)] * devices)


def v(devices: int) -> list[int]:
    """Down and up again."""
    return [*range(devices), *reversed(range(devices))]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12), st.integers(0, len(BLOCKS) - 1))
def test_lists_are_whole_and_fit(seed: int, devices: int, batches: int, block: int) -> None:
    """Every F, I and W of every stage once, W after I after F, and never more bytes than there is room for."""
    timing = random_timing(random.Random(seed), devices)
    given_orders = repeated(BLOCKS[block], v(devices), batches, timing)
    if given_orders is None:
        return
    run = given_orders.run(0.6, 0.3)
    if not run.fits:
        return
    expected = Counter(
        (kind, s, m) for kind in (Kind.F, Kind.I, Kind.W) for s in range(2 * devices) for m in range(batches)
    )
    assert Counter((op.kind, op.stage, op.micro_batch) for order in run.orders for op in order) == expected
    for order, room in zip(run.orders, timing.room_bytes, strict=True):
        held, seen = 0.0, set()
        for op in order:
            s = op.stage
            before = {Kind.F: None, Kind.I: Kind.F, Kind.W: Kind.I}[op.kind]
            assert before is None or (before, s, op.micro_batch) in seen
            seen.add((op.kind, s, op.micro_batch))
            stash, later = timing.stash_bytes[s], timing.pending_bytes[s]
            held += {Kind.F: stash, Kind.I: later - stash, Kind.W: -later}[op.kind]
            assert held <= room * ROUNDING
    assert (
        run.step_s
        >= max(
            sum(timing.forward_s[s] + timing.input_s[s] + timing.weight_s[s] for s in (d, 2 * devices - 1 - d))
            * batches
            for d in range(devices)
        )
        / ROUNDING
    )


def test_plain_and_compiled_loops_make_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """One definition, two ways to run it; the same step to the last bit."""
    rng = random.Random(7)
    cases = [(devices, rng.randint(1, 20), random_timing(rng, devices)) for devices in (1, 2, 3, 5, 8, 12)]
    found = []
    for worth in (10**9, -1):
        loops = Loops(squeeze, small=0, worth=worth)
        monkeypatch.setattr(squeezed, "_loops", loops)
        found.append(
            [
                [(run.step_s, run.orders) for run in adapted(v(devices), batches, timing)]
                for devices, batches, timing in cases
            ]
        )
        assert loops.in_memory == (worth < 0)
    assert found[0] == found[1]
    assert sum(map(len, found[0])) >= len(cases)
