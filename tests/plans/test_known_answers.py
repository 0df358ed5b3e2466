"""Step times and peaks of named schedules with whole backwards, as their papers state them."""

from __future__ import annotations

import pytest
from instances import named, uniform


def test_1f1b_with_equal_passes() -> None:
    """P=4, N=8, F=B=1: makespan 22, bubble 3/11, stashes 4, 3, 2, 1."""
    forecast = named("1f1b", 4, 8).forecast
    assert forecast.step_s == 22
    assert [device.bubble for device in forecast.devices] == pytest.approx([3 / 11] * 4)
    assert forecast.peak_bytes == (4, 3, 2, 1)


def test_gpipe_takes_as_long_and_holds_everything() -> None:
    """P=4, N=8, F=B=1: makespan 22, all eight stashes on every device."""
    forecast = named("gpipe", 4, 8).forecast
    assert (forecast.step_s, forecast.peak_bytes) == (22, (8, 8, 8, 8))


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_backward_twice_as_long(name: str) -> None:
    """P=4, N=8, F=1, B=2: 33 for both."""
    assert named(name, 4, 8, 1, 2).forecast.step_s == 33


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("backward", [1, 2, 3])
def test_one_way_schedules_take_n_plus_d_minus_1_rounds(devices: int, micro_batches: int, backward: float) -> None:
    """(N + D - 1)(F + B) for GPipe and 1F1B."""
    expected = (micro_batches + devices - 1) * (1 + backward)
    for name in ("gpipe", "1f1b"):
        assert named(name, devices, micro_batches, 1, backward).forecast.step_s == expected


@pytest.mark.parametrize(("devices", "backward", "step"), [(4, 1, 10), (4, 2, 16), (8, 1, 22), (8, 2, 36)])
def test_chimera_at_n_equals_d(devices: int, backward: float, step: float) -> None:
    """Two pipelines, N = D."""
    assert named("chimera", devices, devices, 1, backward).forecast.step_s == step


@pytest.mark.parametrize("devices", [2, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("units", [1, 2, 3, 5])
@pytest.mark.parametrize("backward", [1, 1.5, 2, 3])
def test_chimera_formula(devices: int, units: int, backward: float) -> None:
    """2f pipelines, N = u*D, B >= F: F[N - d(u-1)] + B[N + d*u] with d = D/f - 2."""
    n = units * devices
    for f in range(1, devices // 2 + 1):
        if (devices // 2) % f:
            continue
        d = devices // f - 2
        expected = (n - d * (units - 1)) + backward * (n + d * units)
        plan = named("chimera", devices, n, 1, backward, pipelines=2 * f)
        assert plan.forecast.step_s == pytest.approx(expected, rel=1e-12), f"f={f}"
        assert len(plan.pipelines) == 2 * f


@pytest.mark.parametrize("devices", range(1, 10))
@pytest.mark.parametrize("micro_batches", [2, 4, 6, 10])
@pytest.mark.parametrize("backward", [1, 2, 2.5])
def test_gems_formula(devices: int, micro_batches: int, backward: float) -> None:
    """N even, B >= F: N(D*B + F) + (D-1)F, with two stashes of the whole model at most."""
    forecast = named("gems", devices, micro_batches, 1, backward).forecast
    assert forecast.step_s == micro_batches * (devices * backward + 1) + devices - 1
    assert max(forecast.peak_bytes) <= 2


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("units", [1, 2, 4])
def test_interleaved_divides_the_bubble_by_the_chunks(devices: int, chunks: int, units: int) -> None:
    """Megatron-LM: (N*v + D - 1) rounds of F + B of one chunk, for F = B."""
    n = units * devices
    forecast = named("interleaved", devices, n, 1, 1, chunks=chunks).forecast
    assert forecast.step_s == (n * chunks + devices - 1) * 2


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("backward", [1, 2])
def test_breadth_first_divides_the_bubble_and_holds_everything(devices: int, chunks: int, backward: float) -> None:
    """Looped BFS: (N*v + D - 1)(F + B) of one chunk for any N >= D, all N*v stashes of a device at once."""
    for n in (devices, devices + 1, 2 * devices + 3):
        forecast = named("looped-bfs", devices, n, 1, backward, chunks=chunks).forecast
        assert forecast.step_s == (n * chunks + devices - 1) * (1 + backward)
        assert forecast.peak_bytes == (n * chunks,) * devices


@pytest.mark.parametrize("devices", [2, 4, 6, 8, 16])
@pytest.mark.parametrize("units", [1, 2, 4])
def test_forward_doubling_leaves_the_bubble_of_one_unit(devices: int, units: int) -> None:
    """B = 2F, N a multiple of 2D: (N + D/2 - 1)(F + B), at twice the stashes of direct concatenation."""
    n = 2 * units * devices
    doubled, direct = named("chimera-doubling", devices, n, 1, 2).forecast, named("chimera", devices, n, 1, 2).forecast
    assert doubled.step_s == 3 * (n + devices / 2 - 1)
    assert doubled.step_s <= direct.step_s
    assert (max(doubled.peak_bytes), max(direct.peak_bytes)) == (2 * devices, devices)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("chimera", (360, 660, 1260)), ("chimera-doubling", (None, 570, 1050))],
)
def test_chimera_on_eight_devices(name: str, steps: tuple[float | None, ...]) -> None:
    """F=10, B=20, N=8, 16, 32: known steps of direct concatenation and forward doubling."""
    for n, step in zip((8, 16, 32), steps, strict=True):
        if step is not None:
            assert named(name, 8, n, 10, 20).forecast.step_s == step


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("units", [1, 2])
def test_backward_halving_holds_no_more_than_direct_concatenation(devices: int, units: int) -> None:
    """N whole micro-batches are 2N halves with F=1, B=2 and half a stash each: no more memory, no longer step."""
    n = units * devices
    halved = named("chimera-halving", devices, 2 * n, 1, 2, model=uniform(devices, 1, 2, stash_bytes=1)).forecast
    direct = named("chimera", devices, n, 2, 4, model=uniform(devices, 2, 4, stash_bytes=2)).forecast
    assert max(halved.peak_bytes) <= max(direct.peak_bytes)
    assert halved.step_s == 3 * (2 * n + devices / 2 - 1) <= direct.step_s
