"""Layers divided among a team compute what one device does: losses, gradients, and parameters put together again."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from lane_ranks import CASES, TEAM, run

from contraflow.models import LayerSpec, build_layer, collectives, resolve
from contraflow.models.lanes import Lane, NoParallelForm, Shard
from contraflow.models.protocol import build_shapes

Found = list[dict[tuple[str, str], dict[str, Any]]]


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What two processes found, for all models."""
    return run(tmp_path_factory.mktemp("lanes"))


@pytest.mark.long
@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_team_computes_what_one_device_does(lanes: Found, name: str, way: str) -> None:
    """In float64: the loss, and every gradient, cut as its parameter is or whole on all lanes. Dropout included."""
    for lane in lanes:
        found = lane[name, way]
        alone, together = found["losses"]
        assert together == pytest.approx(alone, rel=1e-12)
        assert len(found["gradients"]) > 10
        for key, (expected, got) in found["gradients"].items():
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13, msg=key)
        assert len(found["restored"]) > 4
        assert all(found["restored"])


@pytest.mark.parametrize(("shape", "shard"), [((7, 3), Shard(0, 7)), ((12, 2), Shard(0, 12, 3)), ((2, 8), Shard(1, 8))])
def test_the_parts_of_all_lanes_are_the_whole(shape: tuple[int, ...], shard: Shard) -> None:
    """Also of fused blocks, and where the last lane's part ends in rows that are not there."""
    whole = torch.randn(shape)
    for size in (2, 4):
        parts = [shard.part(whole, Lane(size, number)) for number in range(size)]
        assert len({part.shape for part in parts}) == 1
        assert torch.equal(shard.whole(parts), whole)


def test_what_cannot_be_divided_says_why() -> None:
    """Layer, what it has, and the team's size."""
    for name, index, size, text in [
        ("gpt-tiny", 1, 3, "layer 'block0.attention': 4 heads cannot be divided among a team of 3"),
        (
            "llama-tiny",
            1,
            4,
            "block0.attention': 2 heads of keys and values cannot be divided among a team of 4",
        ),
        ("mlp-tiny", 0, 2, "layer 'layer0': Linear has no parallel form"),
    ]:
        with pytest.raises(NoParallelForm, match=text):
            build_layer(resolve(name).layers[index], 0, index, lane=Lane(size))
        with pytest.raises(NoParallelForm, match=text):
            build_shapes(resolve(name).layers[index], Lane(size))
    with pytest.raises(ValueError, match="a team that divides layers by expert 2 is not executed"):
        Lane.of({"expert": 2})
    with pytest.raises(ValueError, match="a team that divides layers by pipe 2 is not estimated"):
        Lane.planned({"pipe": 2})
    planned = LayerSpec("mine", partial(torch.nn.Linear, 4, 4), parallel_plan={})
    with pytest.raises(NoParallelForm, match="layer 'mine': a parallel plan says nothing of experts"):
        build_shapes(planned, Lane(2, experts=True))
    assert Lane.planned({"expert": 2}) == Lane(2, experts=True)
    assert Lane.of({"tensor": 1}) is None
    assert Lane.of({"sequence": TEAM}, 1) == Lane(TEAM, 1, sequence=True)


def test_a_lane_has_a_part_of_what_is_cut() -> None:
    """Gate and up by rows, down by columns, the norm whole."""
    spec = resolve("llama-tiny").layers[2]
    whole, part = (dict(build_shapes(spec, lane).named_parameters()) for lane in (None, Lane(2)))
    cut = {name: (tuple(whole[name].shape), tuple(part[name].shape)) for name in whole}
    assert cut["gate.weight"] == cut["up.weight"] == ((176, 64), (88, 64))
    assert cut["down.weight"] == ((64, 176), (64, 88))
    assert cut["norm.weight"] == ((64,), (64,))


def test_what_a_collective_was_given_is_free_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's thread holds it for a while longer: an op that runs meanwhile would be above its planned memory."""
    held: list[Any] = []

    def gather(parts: list[torch.Tensor], source: torch.Tensor, group: Any) -> None:
        held.append((parts, source))
        threading.Thread(target=lambda: (time.sleep(0.03), held.clear())).start()

    monkeypatch.setattr(collectives.dist, "all_gather", gather)
    with collectives.member_of(None):
        collectives.team_gather(torch.ones(4), 2)
    assert not held
