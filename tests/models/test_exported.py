"""Any module of torch becomes layers, and trains like the module itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import whole_modules
from instances import cut_evenly
from runs import run_jobs_together, sized
from torch import nn

from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute, prepare
from contraflow.executor.stage import TraceError
from contraflow.models import LayeredModel, UnknownModel, build_layer, cross_entropy, resolve
from contraflow.models.exported import state_names
from contraflow.models.once import drawing
from contraflow.models.protocol import build_shapes
from contraflow.models.sampling import batch_of
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

MICRO_BATCHES, SAMPLES, STEPS, RATE = 4, 2, 3, 0.1


def plain(model: LayeredModel, module: nn.Module, loss: Any = None) -> tuple[float, ...]:
    """The losses of a plain loop over the module itself."""
    optimizer = torch.optim.SGD(module.train().parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for m in range(MICRO_BATCHES):
            inputs, targets = batch_of(model.data, 0, step, m, SAMPLES)  # type: ignore[arg-type]
            if loss is not None:
                found = loss(module(**inputs) if isinstance(inputs, dict) else module(inputs), targets)
            else:
                given = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
                found = module(**given, labels=targets).loss
            (found / MICRO_BATCHES).backward()
            total += found.item() / MICRO_BATCHES
        optimizer.step()
        losses.append(total)
    return tuple(losses)


def planned(model: LayeredModel, schedule: str) -> Plan:
    """Layers dealt out evenly on two devices."""
    layout, graph = build(schedule, 2, MICRO_BATCHES), sized(model, SAMPLES)
    problem = Problem(graph, Cluster.uniform(2), Workload(MICRO_BATCHES, "sgd"))
    stash = (("keep",) * layout.stages,) * len(layout.pipelines)
    return assemble(Candidate(problem, cut_evenly(graph, layout.stages), layout.pipelines, stash, FLUSH),
                    layout.orders, schedule)  # fmt: skip


def test_blocks_become_halves_and_nothing_cheap_is_sent() -> None:
    """One tensor passes; mask and scale are made again from the data; a tied head is found."""
    model = resolve("whole_modules:speaker")
    names = [f"blocks.{k}.part{half}" for k in range(3) for half in range(2)]
    assert [spec.name for spec in model.layers] == ["stem", *names, "head"]
    assert [spec.inputs for spec in model.layers[:4]] == [
        ("input.words",), ("input.there", "stem"), ("blocks.0.part0",), ("input.there", "blocks.0.part1"),
    ]  # fmt: skip
    assert len(model.ties) == 1
    assert not any(spec.outputs for spec in model.layers)


def test_what_blocks_share_is_made_again_where_that_takes_no_longer_than_sending() -> None:
    """Products of 32 terms each, and of four million: then the first layer makes them, and sends them to all."""
    cheap = resolve("whole_modules:sharing_cheaply").layers
    assert [spec.inputs for spec in cheap] == [("input",), ("input", "blocks.0"), ("input", "blocks.1")]
    dear = resolve("whole_modules:sharing").layers
    assert [spec.outputs for spec in dear] == [("x0", "x1"), (), ()]
    assert [spec.inputs for spec in dear[1:]] == [("blocks.0.x0", "blocks.0.x1"), ("blocks.0.x0", "blocks.1")]


@pytest.mark.long
def test_the_modules_own_loss_is_trained_bit_by_bit() -> None:
    """Layers one after another, and a plan of two stages in two directions up to the order of sums."""
    model = resolve("whole_modules:speaker")
    with drawing(0):
        module, _ = whole_modules.speaker()
    expected = plain(model, module)
    assert train_reference(model, MICRO_BATCHES, SAMPLES, "sgd", STEPS, lr=RATE).losses == expected
    for schedule in ("1f1b", "chimera"):
        result = execute(planned(model, schedule), STEPS, model=model, transport="threads", lr=RATE)
        assert result.losses == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
def test_processes_export_for_themselves(tmp_path: Path) -> None:
    """On gloo processes; what is counted of memory are numbers."""
    model = resolve("whole_modules:speaker")
    expected = train_reference(model, MICRO_BATCHES, SAMPLES, "sgd", STEPS, lr=RATE)
    job = prepare(planned(model, "1f1b"), STEPS, model=model, lr=RATE)
    (result,) = run_jobs_together([job], tmp_path)
    assert result.losses == pytest.approx(expected.losses, abs=1e-6)
    assert all(isinstance(peak, int) for peak in result.peak_bytes)


def test_dropout_stays_out_of_evaluation() -> None:
    """Each layer twice: the same in evaluation, not in training."""
    model = resolve("whole_modules:dropping")
    module = model.layers[1].build()
    words = Ready.inputs()
    assert not torch.equal(module(*words), module(*words))
    module.eval()
    assert torch.equal(module(*words), module(*words))


class Ready:
    """What the first half of a block takes."""

    @staticmethod
    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        """Which words are there, and what they are."""
        shape = (2, whole_modules.LENGTH)
        return torch.ones(shape, dtype=torch.bool), torch.randn(*shape, whole_modules.WIDTH)


def test_where_nothing_repeats_few_large_pieces_are_found() -> None:
    """A loss beside the module, statistics of BatchNorm, other numbers of samples than the example's."""
    model = resolve("whole_modules:classifier")
    assert len(model.layers) == 4
    with drawing(0):
        module, _ = whole_modules.classifier()
    expected = plain(model, module, nn.functional.cross_entropy)
    found = train_reference(model, MICRO_BATCHES, SAMPLES, "sgd", STEPS, lr=RATE)
    assert found.losses == pytest.approx(expected, abs=1e-6)


def test_statistics_of_batch_norm_are_those_of_the_module() -> None:
    """On replicas too, which exchange them."""
    model = resolve("whole_modules:classifier")
    with drawing(0):
        module, _ = whole_modules.classifier()
    plain(model, module, nn.functional.cross_entropy)
    for schedule in ("1f1b", "chimera"):
        result = execute(planned(model, schedule), STEPS, model=model, transport="threads", lr=RATE, return_state=True)
        assert result.state is not None
        buffers = {name.rpartition(".")[2]: x for name, x in result.state.items() if name.startswith("buffers/")}
        assert buffers.keys() == {"running_mean", "running_var", "num_batches_tracked"}
        for name, found in buffers.items():
            torch.testing.assert_close(found, module.state_dict()[f"1.{name}"])


def test_a_graph_for_few_samples_refuses_many() -> None:
    """The module looks at their number: what it does with seven is trained, eight are refused in a line."""
    model = resolve("whole_modules:counting")
    with drawing(0):
        module, _ = whole_modules.counting()
    x = torch.randn(7, whole_modules.WIDTH)
    found = x
    for index, spec in enumerate(model.layers):
        found = build_layer(spec, 0, index)(found)
    assert torch.equal(found, module(x))
    with pytest.raises(TraceError, match="computes otherwise from 8 samples on, has 8") as caught:
        sized(model, 8)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_exported_is_refused_with_its_line() -> None:
    """In one line."""
    with pytest.raises(UnknownModel, match=r"Looking cannot be exported: .*whole_modules\.py:\d+\)"):
        resolve("whole_modules:looking")


def test_a_sequence_that_cannot_be_exported_is_cut_between_its_children() -> None:
    """They run on the eager engine, and train as the module does."""
    model = resolve("whole_modules:looking_between")
    assert [(spec.name, spec.inputs) for spec in model.layers] == [
        ("0", ("input",)), ("1", ("0",)), ("2", ("1",)), ("3", ("2",)),
    ]  # fmt: skip
    with drawing(0):
        module, _ = whole_modules.looking_between()
    expected = plain(model, module, nn.functional.cross_entropy)
    result = execute(planned(model, "1f1b"), STEPS, model=model, transport="threads", lr=RATE)
    assert result.losses == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
def test_a_part_that_cannot_be_exported_is_called_as_it_is() -> None:
    """Blocks around it are found, what they share is tied, and all names are the module's; the rest is a graph."""
    model = resolve("whole_modules:routed")
    assert [spec.name for spec in model.layers] == ["stem", "blocks.0.part0", "blocks.0.part1", "blocks.1", "head"]
    assert len(model.ties) == 2
    with drawing(0):
        module, _ = whole_modules.routed()
    names = {name for spec in model.layers for found in state_names(build_shapes(spec)).values() for name in found}
    assert names == set(module.state_dict())
    expected = plain(model, module, cross_entropy)
    result = execute(planned(model, "1f1b"), STEPS, model=model, transport="threads", lr=RATE)
    assert result.losses == pytest.approx(expected, abs=1e-6)


def test_layers_compute_where_their_inputs_are() -> None:
    """The example's device is in none of them."""
    model = resolve("whole_modules:speaker")
    shape = 2, whole_modules.LENGTH
    words, there = torch.zeros(shape, dtype=torch.long, device="meta"), torch.ones(shape, device="meta") > 0
    x = torch.zeros(*shape, whole_modules.WIDTH, device="meta")
    for spec, given in zip(model.layers[:3], ([words], [there, x], [x]), strict=True):
        assert build_shapes(spec)(*given).device == torch.device("meta")


@pytest.mark.parametrize(
    ("name", "said"),
    [("silent", "it returns a NoneType without a tensor"), ("unmatched", r"Block cannot be exported: .*mask.*")],
)
def test_bad_modules_are_refused_in_a_line(name: str, said: str) -> None:
    """What returns nothing, and inputs that do not match."""
    with pytest.raises(UnknownModel, match=said) as caught:
        resolve(f"whole_modules:{name}")
    assert "\n" not in str(caught.value)


HUGGING = ["gpt2", "llama", "bert", "t5", "vit"]


@pytest.mark.parametrize("name", HUGGING)
def test_transformers_train_as_they_are(name: str) -> None:
    """Small configurations of the real library: the same losses as a plain loop over the module."""
    pytest.importorskip("transformers")
    import hugging_models

    model = resolve(f"hugging_models:{name}")
    with drawing(0):
        module, _ = getattr(hugging_models, name)()
    expected = plain(model, module)
    result = execute(planned(model, "1f1b"), STEPS, model=model, transport="threads", lr=RATE)
    assert result.losses == pytest.approx(expected, abs=1e-6)
