"""hf:FOLDER is a model of transformers; what is trained of it goes back to transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as multiprocessing
from commands import run
from instances import cut_evenly
from runs import rewritten, run_jobs_together, run_rank_of, sized, stashed
from torch import nn

transformers: Any = pytest.importorskip("transformers")
hugging_models: Any = pytest.importorskip("hugging_models")

from contraflow.executor.basics.checkpointing import Checkpointing  # noqa: E402
from contraflow.executor.run.job import Job  # noqa: E402
from contraflow.executor.run.launch import execute, prepare  # noqa: E402
from contraflow.executor.run.result import RunResult  # noqa: E402
from contraflow.models import LayeredModel, UnknownModel, resolve  # noqa: E402
from contraflow.models.exported import state_names  # noqa: E402
from contraflow.models.once import drawing, outline  # noqa: E402
from contraflow.models.protocol import build_layer, build_shapes  # noqa: E402
from contraflow.models.sampling import batch_of  # noqa: E402
from contraflow.planner.graph import Candidate  # noqa: E402
from contraflow.planner.lower.plans import assemble  # noqa: E402
from contraflow.planner.plan import Plan, Problem  # noqa: E402
from contraflow.planner.problem.cluster import Cluster  # noqa: E402
from contraflow.planner.problem.weight_policy import FLUSH  # noqa: E402
from contraflow.planner.problem.workload import Workload  # noqa: E402
from contraflow.planner.schedules import build  # noqa: E402

MICRO_BATCHES, SAMPLES, STEPS, RATE = 4, 2, 2, 0.5
NAMES = ["gpt2", "llama", "qwen", "bert", "t5", "vit"]


def saved(name: str, folder: Path) -> tuple[nn.Module, str]:
    """A model with weights of its own as transformers saves it, and how it is named here."""
    with drawing(7):
        module, _ = getattr(hugging_models, name)()
    module.save_pretrained(folder)
    more = "" if name == "vit" else ",inputs=attention_mask"
    return module.train(), f"hf:{folder},length={hugging_models.LENGTH},loss=own{more}"


def with_data(model: LayeredModel, name: str) -> LayeredModel:
    """Words, pairs or pictures of the right shapes."""
    return replace(model, data=getattr(hugging_models, name).data)


def plain(model: LayeredModel, module: nn.Module) -> tuple[float, ...]:
    """The losses of a plain loop over the module, which trains it."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for m in range(MICRO_BATCHES):
            inputs, targets = batch_of(model.data, 0, step, m, SAMPLES)  # type: ignore[arg-type]
            given = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
            found = module(**given, labels=targets).loss
            (found / MICRO_BATCHES).backward()
            total += found.item() / MICRO_BATCHES
        optimizer.step()
        losses.append(total)
    return tuple(losses)


def planned(model: LayeredModel, schedule: str, stash: str = "keep", devices: int = 2) -> Plan:
    """Layers dealt out evenly."""
    layout, graph = build(schedule, devices, MICRO_BATCHES), sized(model, SAMPLES)
    problem = Problem(graph, Cluster.uniform(devices), Workload(MICRO_BATCHES, "sgd"))
    candidate = stashed(Candidate(problem, cut_evenly(graph, layout.stages), layout.pipelines, (), FLUSH), stash)
    return assemble(candidate, [rewritten(order, candidate, halves=False) for order in layout.orders], schedule)


def assert_trained(model: LayeredModel, module: nn.Module, losses: tuple[float, ...], result: RunResult) -> None:
    """The same losses, and every tensor is where the same gradients have taken it."""
    assert result.losses == pytest.approx(losses, abs=1e-5)
    expected, seen = module.state_dict(), set[str]()
    assert result.state is not None
    for spec in model.layers:
        for own, names in state_names(build_shapes(spec)).items():
            found = result.state.get(f"parameters/{spec.name}/{own}")
            if found is not None:
                seen |= set(names)
                torch.testing.assert_close(found, expected[names[0]], rtol=1e-4, atol=1e-6)
    assert seen >= {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_those_of_the_plain_model(name: str, tmp_path: Path) -> None:
    """Tensor by tensor, from the weights of a checkpoint: the rate is such that any other gradient would be seen."""
    module, called = saved(name, tmp_path)
    model = with_data(resolve(called), name)
    losses = plain(model, module)
    result = execute(
        planned(model, "1f1b"), STEPS, model=model, transport="threads", lr=RATE, return_state=True, self_check=False
    )
    assert_trained(model, module, losses, result)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_on_processes_under_any_plan(name: str, devices: int, tmp_path: Path) -> None:
    """1F1B, with recompute, and two directions."""
    module, called = saved(name, tmp_path / "model")
    model = with_data(resolve(called), name)
    plans = [planned(model, *how, devices) for how in (("1f1b", "keep"), ("1f1b", "recompute"), ("chimera", "keep"))]
    losses = plain(model, module)
    data = getattr(hugging_models, name).data
    jobs = [prepare(plan, STEPS, model=called, data=data, lr=RATE, return_state=True) for plan in plans]
    for result in run_jobs_together(jobs, tmp_path):
        assert_trained(model, module, losses, result)


def test_a_configuration_alone_starts_from_the_seed(tmp_path: Path) -> None:
    """As the plain model does that is built under it."""
    with drawing(3):
        module, _ = hugging_models.llama()
    module.config.save_pretrained(tmp_path)
    model = replace(resolve(f"hf:{tmp_path},length=16", 3), data=NextWords())
    plan = planned(model, "1f1b")
    losses = {seed: execute(plan, 1, model=model, transport="threads", seed=seed).losses[0] for seed in (3, 4)}
    batches = [batch_of(NextWords(), 3, 0, m, SAMPLES) for m in range(MICRO_BATCHES)]
    found = [nn.functional.cross_entropy(module(x).logits.flatten(0, 1), y.flatten()).item() for x, y in batches]
    assert losses[3] == pytest.approx(sum(found) / MICRO_BATCHES, abs=1e-5)
    assert abs(losses[3] - losses[4]) > 1e-4


class NextWords:
    """Words and the next ones."""

    name = "next words"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(size, LENGTH) each."""
        words = torch.randint(2, hugging_models.WORDS, (size, hugging_models.LENGTH + 1))
        return words[:, :-1], words[:, 1:]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_trained_weights_go_back(name: str, tmp_path: Path) -> None:
    """from_pretrained reads what export writes; a state_dict has all names of what is tied."""
    module, called = saved(name, tmp_path / "model")
    model = with_data(resolve(called), name)
    plain(model, module)
    execute(
        planned(model, "1f1b"), STEPS, model=called, data=model.data, transport="threads", lr=RATE,
        checkpoint=Checkpointing(str(tmp_path / "kept")),
    )  # fmt: skip
    done = run("export", tmp_path / "kept", "--model", called, "--to", tmp_path / "back")
    assert done.exit_code == 0, done.stderr
    back = type(module).from_pretrained(tmp_path / "back")
    for key, tensor in module.state_dict().items():
        torch.testing.assert_close(back.state_dict()[key], tensor, rtol=1e-4, atol=1e-6)
    assert run("export", tmp_path / "kept", "--model", called, "--to", tmp_path / "back.pt").exit_code == 0
    module.load_state_dict(torch.load(tmp_path / "back.pt"))
    again = run("export", tmp_path / "kept", "--model", called, "--to", tmp_path / "back")
    assert again.exit_code == 2
    assert again.stderr.count("\n") == 1
    assert "there already" in again.stderr
    other = run("export", tmp_path / "kept", "--model", "gpt-tiny", "--to", tmp_path / "other")
    assert other.exit_code == 2
    assert other.stderr.count("\n") == 1
    assert "of another model" in other.stderr


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    """A folder without a configuration, options, weights that are missing, of another shape, pickled, damaged."""
    saved("llama", tmp_path)

    def said(name: str) -> str:
        with pytest.raises(UnknownModel) as caught:
            resolve(name)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "transformers" in said(f"hf:{tmp_path / 'nowhere'}")
    assert "'size' is none of its options" in said(f"hf:{tmp_path},size=3")
    assert "not 'many'" in said(f"hf:{tmp_path},length=many")
    assert "no class 'Nothing'" in said(f"hf:{tmp_path},class=Nothing")
    for change, words in (
        ({"num_hidden_layers": 3}, "of another model: it has no model.layers.2"),
        ({"intermediate_size": 72}, "is (64, 32), not (72, 32)"),
    ):
        other = tmp_path / next(iter(change))
        shutil.copytree(tmp_path, other, ignore=lambda _, names: [n for n in names if n not in _FILES])
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | change))
        assert words in said(f"hf:{other},length=16")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    shutil.copy(tmp_path / "config.json", damaged)
    (damaged / "model.safetensors").write_bytes(b"nothing")
    assert "its weights cannot be read" in said(f"hf:{damaged}")
    (damaged / "model.safetensors").unlink()
    (damaged / "pytorch_model.bin").write_bytes(b"")
    resolve_again = tmp_path / "pickled"
    damaged.rename(resolve_again)
    assert "reading which can run code" in said(f"hf:{resolve_again}")


_FILES = ("config.json", "model.safetensors")


def test_weights_in_several_files(tmp_path: Path) -> None:
    """As transformers saves large models: the index says which file has what; one that is missing is named."""
    with drawing(7):
        module, _ = hugging_models.qwen()
    module.save_pretrained(tmp_path, max_shard_size="20KB")
    parts = sorted(tmp_path.glob("model-*-of-*.safetensors"))
    assert len(parts) > 2
    assert not (tmp_path / "model.safetensors").exists()
    model, expected = resolve(f"hf:{tmp_path},length=16"), module.state_dict()
    for index, spec in enumerate(model.layers):
        built = dict(build_layer(spec, 0, index).named_parameters())
        for own, names in state_names(build_shapes(spec)).items():
            assert own not in built or torch.equal(built[own], expected[names[0]])
    other = tmp_path / "other"
    shutil.copytree(tmp_path, other, ignore=lambda _, names: [n for n in names if n in (parts[1].name, "other")])
    with pytest.raises(UnknownModel, match=f"has no {parts[1].name}, which its .*index.json names"):
        resolve(f"hf:{other},length=16")


def measured_rank(rank: int, ranks: int, jobs: Sequence[Job], folder: str) -> None:
    """A rank that runs one job after the other, and says by how many bytes it has grown at most in the last."""
    for number, job in enumerate(jobs):
        mine = Path(folder) / str(number)
        mine.mkdir(exist_ok=True)
        Path("/proc/self/clear_refs").write_text("5")  # the most is counted anew
        before = _kib("VmRSS")
        run_rank_of(rank, ranks, [job], str(mine))
    (Path(folder) / f"grown{rank}").write_text(str(1024 * (_kib("VmHWM") - before)))


def _kib(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0])


@pytest.mark.slow
def test_a_run_holds_parameters_and_gradients_of_its_stages_alone(tmp_path: Path) -> None:
    """From the first byte of a checkpoint that is read to the last step, beside what a small model takes."""
    jobs, own, total = [], [0, 0], 0
    for width in (32, 512):
        folder = tmp_path / str(width)
        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=6, num_attention_heads=4, intermediate_size=4 * width, vocab_size=64,
            max_position_embeddings=32, use_cache=False,
        )  # fmt: skip
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        called = f"hf:{folder},length=16"
        plan = planned(replace(resolve(called), data=NextWords()), "1f1b")
        jobs.append(prepare(plan, STEPS, model=called, data=NextWords(), self_check=False))
        sizes = {layer.name: layer.parameter_bytes for layer in plan.problem.model.layers}
        own, total = [sum(sizes[name] for name in stage) for stage in plan.stages], sum(sizes.values())
    multiprocessing.spawn(measured_rank, (2, jobs, str(tmp_path)), nprocs=2)
    for rank, mine in enumerate(own):
        grown = int((tmp_path / f"grown{rank}").read_text())
        assert mine < grown < mine + total  # which the gradients are in, and parameters of other stages are not


def test_nothing_is_in_memory_until_a_stage_asks(tmp_path: Path) -> None:
    """Layers are known without their values."""
    _, called = saved("llama", tmp_path)
    model = resolve(called)
    assert all(parameter.is_meta for spec in model.layers for parameter in build_shapes(spec).parameters())
    assert outline(model.layers[0].build.factory) is not None  # type: ignore[attr-defined]
