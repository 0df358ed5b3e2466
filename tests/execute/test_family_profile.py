"""`contraflow profile` of several teams and micro-batch sizes at once: a family."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from contraflow.__main__ import cli
from contraflow.planner import ModelFamily, ModelGraph

LINK_S, BANDWIDTH = 3e-6, 450e9


def profiled(folder: Path, *arguments: object) -> Result:
    """The command, run here."""
    given = ["profile", "gpt-tiny", *map(str, arguments), "-o", str(folder / "family.json")]
    return CliRunner().invoke(cli, given)


@pytest.mark.long
def test_an_analytic_family_has_every_team_and_size_with_its_collectives(tmp_path: Path) -> None:
    """Two sums a block forward and two backward over the link, half of the divided parameters, half of the products."""
    preset = ["--device", "H100-80GB", "--precision", "bf16", "--efficiency", 0.5]
    found = profiled(tmp_path, *preset, "--team", "1,2", "--micro-batch-size", "1,2", "--link", "450GB/s,3us")
    assert found.exit_code == 0, found.output
    family = ModelFamily.load(tmp_path / "family.json")
    assert [(m.team, m.micro_batch_size) for m in family.members] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    whole, half = (next(m for m in family.members if (m.team, m.micro_batch_size) == (t, 2)) for t in (1, 2))
    for name in (x.name for x in whole.layers if x.name.startswith("block")):
        one, two = whole.layers[whole.index[name]], half.layers[half.index[name]]
        assert one.parameter_bytes / 2 < two.parameter_bytes < 0.6 * one.parameter_bytes
        assert two.output_bytes == one.output_bytes
        ring_s = 2 * (LINK_S + one.output_bytes / 2 / BANDWIDTH)
        for there, here in ((two.forward_s, one.forward_s), (two.backward_s, one.backward_s)):
            assert ring_s + here / 2 <= there <= ring_s + here


@pytest.mark.long
def test_sequence_parallel_ranks_hold_a_part_of_what_flows_between_layers(tmp_path: Path) -> None:
    """Activations between blocks are divided too."""
    preset = ["--device", "H100-80GB", "--precision", "bf16", "--team", 2, "--link", "450GB/s"]
    members = []
    for ways in ("tensor", "sequence"):
        assert profiled(tmp_path, *preset, "--ways", ways).exit_code == 0
        members.append(ModelGraph.load(tmp_path / "family.json"))
    assert [member.ways for member in members] == [(("tensor", 2),), (("sequence", 2),)]
    tensor, sequence = (member.layers[1] for member in members)
    assert 2 * sequence.output_bytes == tensor.output_bytes
    assert sequence.stash_bytes < tensor.stash_bytes


@pytest.mark.long
def test_a_measured_family_has_every_size(tmp_path: Path) -> None:
    """All in one go, into one file."""
    found = profiled(tmp_path, "--micro-batch-size", "1,2", "--load", 1)
    assert found.exit_code == 0, found.output
    assert [m.micro_batch_size for m in ModelFamily.load(tmp_path / "family.json").members] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--team", "2", "--link", "450GB/s"], "--link is for device presets"),
        (["--team", "2", "--ways", "expert"], "divides layers by expert 2 is not executed"),
        (["--team", "3"], "layer 'block0.attention': 4 heads cannot be divided among a team of 3"),
        (["--team", "2", "--device", "cuda"], "cuda"),
        (["--device", "H100-80GB", "--team", "2"], "--link"),
        (["--device", "H100-80GB", "--team", "3", "--link", "450GB/s"], "team of 3"),
        (["--device", "H100-80GB", "--team", "2", "--link", "fast"], "--link"),
        (["--device", "H100-80GB", "--micro-batch-size", "1,x"], "--micro-batch-size"),
        (["--device", "H100-80GB", "--team", "0", "--link", "450GB/s"], "--team"),
    ],
)
def test_bad_points_are_refused_in_one_line(tmp_path: Path, arguments: list[str], named: str) -> None:
    """Exit code 2, nothing written."""
    found = profiled(tmp_path, *arguments)
    assert found.exit_code == 2, found.output
    assert named in found.stderr
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "family.json").exists()
