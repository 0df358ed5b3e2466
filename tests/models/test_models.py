"""The zoo: architectures, parameters that know no partition, data that depends on its arguments."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from meta import parameter_count
from packaged import installed

from contraflow.models import (
    LayeredModel,
    LayerSpec,
    UnknownModel,
    build_layer,
    cross_entropy,
    derive_seed,
    load,
    names,
    registry,
    resolve,
)
from contraflow.models.data import UnknownData


@pytest.mark.parametrize("name", [name for name in names() if "tiny" in name])
def test_every_family_computes_a_finite_loss_on_its_own_data(name: str) -> None:
    """A registry model is a chain Tensor -> Tensor whose loss is a scalar mean; every family has a tiny one."""
    model = pickle.loads(pickle.dumps(resolve(name)))  # as it travels to other processes
    assert isinstance(model.data, str)
    x, target = installed(model.data).batch(seed=0, step=0, micro_batch=0, size=4)
    for index, layer in enumerate(model.layers):
        x = build_layer(layer, seed=0, index=index)(x)
    loss = model.loss(x, target)
    assert loss.shape == ()
    assert torch.isfinite(loss)


@pytest.mark.parametrize("name", [name for name in names() if "tiny" in name])
def test_every_family_builds_its_layers_afresh(name: str) -> None:
    """The same seed gives the same values, in tensors of their own."""
    for index, layer in enumerate(resolve(name).layers):
        built = [dict(build_layer(layer, seed=0, index=index).named_parameters()) for _ in range(2)]
        for key, parameter in built[0].items():
            assert torch.equal(parameter, built[1][key]), key
            assert parameter.data_ptr() != built[1][key].data_ptr(), key


def test_every_family_has_a_tiny_model() -> None:
    """Which the tests above and below train."""
    sources = (path for path in Path(registry.__file__).parent.glob("*.py") if path.stem != "registry")
    families = [path.stem for path in sources if "PRESETS: " in path.read_text()]
    assert len(families) >= 9
    for family in families:
        module = importlib.import_module(f"contraflow.models.{family}")
        assert any("tiny" in name for name in module.PRESETS), family


def test_gpt2_initialisation_scales_residual_projections_down() -> None:
    """Projections before a skip are drawn with 0.02 / sqrt(2 blocks), everything else with 0.02."""
    attention, mlp = (build_layer(resolve("gpt-mini").layers[k], seed=0, index=k) for k in (1, 2))
    for layer, drawn in ((attention, {"qkv": 1, "out": 8}), (mlp, {"up": 1, "down": 8})):
        named = dict(layer.named_parameters())
        for name, residuals in drawn.items():
            weight = next(value for key, value in named.items() if key.endswith(f"{name}.weight"))
            assert weight.std().item() == pytest.approx(0.02 / residuals**0.5, rel=0.05)


def test_a_layers_parameters_depend_on_seed_and_position_alone() -> None:
    """Whatever was drawn before, and in float64 too, a layer starts from the same values."""
    layer = resolve("gpt-tiny").layers[2]
    torch.manual_seed(1)
    first = build_layer(layer, seed=7, index=2).state_dict()
    torch.rand(5)
    before = torch.get_rng_state()
    again = build_layer(layer, seed=7, index=2, dtype=torch.float64).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key].double(), again[key]) for key in first)
    other = build_layer(layer, seed=7, index=3).state_dict()
    assert not torch.equal(first["up.weight"], other["up.weight"])


@pytest.mark.long
def test_seeds_are_the_same_in_every_process() -> None:
    """Seeds come from a hash of their parts, not from Python's salted hash."""
    code = "from contraflow.models import derive_seed; print(derive_seed('layer', 3, 1))"
    elsewhere = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(elsewhere.stdout) == derive_seed("layer", 3, 1) < 2**63
    assert derive_seed(1, 23) != derive_seed(12, 3)


@pytest.mark.parametrize("name", ["stdlib:16", "stdlib-masked:16", "digits", "digits-images"])
def test_a_micro_batch_depends_on_its_arguments_alone(name: str) -> None:
    """Order of asking does not matter; another step or micro-batch is other data."""
    data = load(name)
    x, target = data.batch(0, 3, 1, 4)
    data.batch(0, 0, 0, 4)
    again, target_again = load(data.name).batch(0, 3, 1, 4)
    assert torch.equal(x, again)
    assert torch.equal(target, target_again)
    assert not torch.equal(x, data.batch(0, 3, 2, 4)[0])
    assert not torch.equal(x, data.batch(1, 3, 1, 4)[0])


def test_the_target_of_a_language_model_is_the_next_byte() -> None:
    """Targets are inputs shifted by one."""
    x, target = load("stdlib:16").batch(0, 0, 0, 2)
    assert x.shape == target.shape == (2, 16)
    assert torch.equal(x[:, 1:], target[:, :-1])


def test_an_unknown_model_is_named_together_with_the_known_ones() -> None:
    """Errors are ValueErrors that tell what there is."""
    with pytest.raises(UnknownModel, match=r"'gtp'.*gpt-small"):
        resolve("gtp")
    with pytest.raises(UnknownModel, match="nowhere"):
        resolve("nowhere.at.all:model")
    with pytest.raises(UnknownModel, match="no_such"):
        resolve("torch.nn:no_such")
    with pytest.raises(UnknownData, match="digits"):
        load("imagenet")
    assert "gpt-small" in names()


def test_a_function_in_the_working_directory_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of modules, named or not, becomes a chain; every build is a copy."""
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def net():\n    return [nn.Linear(2, 3), ('top', nn.Linear(3, 2))]\n"
        "net.data = 'digits'\n"
        "def broken():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    model = resolve("my_nets:net")
    assert [layer.name for layer in model.layers] == ["layer0", "top"]
    assert model.loss is cross_entropy
    assert model.data == "digits"
    assert model.layers[0].build() is not model.layers[0].build()
    with pytest.raises(UnknownModel, match="returned int"):
        resolve("my_nets:broken")


def test_two_layers_of_one_name_are_refused() -> None:
    """Plans name layers, so names must be unique."""
    layer = LayerSpec("a", torch.nn.Identity)
    with pytest.raises(ValueError, match="two layers named 'a'"):
        LayeredModel("m", (layer, layer), cross_entropy)


def test_layers_of_a_users_function_start_alike_in_every_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parameters depend on (seed, layer) alone, whatever the generator's state was when the model was found."""
    (tmp_path / "own_layers.py").write_text(
        "from torch import nn\ndef build():\n    return [nn.Linear(3, 4), ('head', nn.Linear(4, 2))]\n"
    )
    monkeypatch.chdir(tmp_path)
    built = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = resolve("own_layers:build")
        assert [layer.name for layer in model.layers] == ["layer0", "head"]
        built.append([build_layer(layer, 7, k) for k, layer in enumerate(model.layers)])
    for first, second in zip(*built, strict=True):
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(a, b)
    other = build_layer(model.layers[0], 8, 0)
    assert not torch.equal(next(other.parameters()), next(built[0][0].parameters()))


def rounded(count: int, like: str) -> str:
    """A count as a document has it: in full, or in thousands, millions or billions with as many digits."""
    number, _, unit = like.partition(" ")
    size = {"k": 10**3, "M": 10**6, "G": 10**9}.get(unit)
    return f"{count:,}" if size is None else f"{count / size:.{len(number.partition('.')[2])}f} {unit}"


@pytest.mark.long
def test_the_document_has_every_model_with_its_number_of_parameters() -> None:
    """docs/models.md: names in the first column, numbers in the column "parameters"; tied parameters count once."""
    said: dict[str, str] = {}
    place = 0
    for line in (Path(__file__).parents[2] / "docs" / "models.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"\s*\|\s*", line.strip("| "))]
        if cells[0] == "name":
            place = cells.index("parameters") if "parameters" in cells else 0
        elif place and (models := re.findall(r"`([\w-]+)`", cells[0])) and line.startswith("|"):
            said |= zip(models, re.findall(r"[\d.,]*\d(?: [kMG]\b)?", cells[place]), strict=True)
    assert set(said) == set(names())
    found = {name: rounded(parameter_count(resolve(name)), like) for name, like in said.items()}
    assert found == said
