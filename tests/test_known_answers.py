"""Step times, bubbles and peaks of named schedules as their papers state them."""

from __future__ import annotations

import pytest
from instances import named

from contraflow.planner.check import check
from contraflow.planner.errors import ScheduleError
from contraflow.planner.schedules import build, variants


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


@pytest.mark.parametrize("devices", [1, 2, 4, 6])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 12])
def test_every_variant_passes_the_checker(devices: int, micro_batches: int) -> None:
    """Whatever the generators make is executable."""
    seen = set()
    for name, layout in variants(devices, micro_batches, 3 * devices):
        seen.add(layout.name)
        options = {"chunks": layout.stages // devices} if layout.stages > devices else {}
        base = name.split("-")[0]
        if base == "chimera":
            options = {"pipelines": int(name.split("-")[1]) if "-" in name else 2}
        assert check(named(base, devices, micro_batches, 1, 2, **options)) == [], name
    assert {"gpipe", "1f1b", "gems"} <= seen


def test_schedules_say_when_they_do_not_exist() -> None:
    """An odd number of devices has no Chimera, f must divide D/2, interleaving needs multiples of D."""
    with pytest.raises(ScheduleError, match="even number of devices, got 3"):
        build("chimera", 3, 6)
    with pytest.raises(ScheduleError, match="do not divide half of the 8 devices"):
        build("chimera", 8, 8, pipelines=6)
    with pytest.raises(ScheduleError, match="multiples of the 4 devices, got 6"):
        build("interleaved", 4, 6)
    with pytest.raises(ScheduleError, match="unknown schedule 'gpip'"):
        build("gpip", 4, 6)
