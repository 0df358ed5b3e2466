"""Whole models on a team of processes and on one device: losses, gradients and parameters side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kept_ranks import kept
from torch import nn

from contraflow.models import LayeredModel, Loss, build_layer, load, resolve
from contraflow.models.collectives import member_of
from contraflow.models.gpt import GPTConfig, gpt
from contraflow.models.lanes import Lane, shards_of
from contraflow.models.mixtral import MixtralConfig, mixtral
from contraflow.models.parallel import loss_of_samples

TEAM = 2
MODELS = ("gpt-tiny", "gpt-tiny-dropout", "odd-vocabulary", "bert-tiny", "llama-tiny", "mixture", "users-own")
"""users-own: examples/parallel_model.py, with the parallel plan that it brings for each way. mixture: of 8
experts that drop nothing."""
CASES = [*((name, way) for way in ("tensor", "sequence") for name in MODELS), ("mixture", "expert")]


def model_of(name: str, sequence: bool) -> LayeredModel:
    """A registered one, a GPT whose vocabulary no team of 2 divides, a Mixtral, or a user's."""
    if name == "mixture":
        return mixtral(name, MixtralConfig(2, 32, 4, 2, hidden=16, sequence=8, capacity=4.0))
    if name == "users-own":
        return resolve("parallel_model:build_sequence" if sequence else "parallel_model:build")
    if name == "odd-vocabulary":
        return gpt(name, GPTConfig(blocks=1, width=16, heads=2, sequence=8, vocabulary=257))
    return resolve(name)


def run(folder: Path) -> list[dict[tuple[str, str], dict[str, Any]]]:
    """What every lane finds, by model and way."""
    kept(TEAM).run(_lane, str(folder))
    return [torch.load(folder / f"lane{number}.pt") for number in range(TEAM)]


def _lane(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/meet", TEAM)
    dist.init_process_group("gloo", store=store, rank=number, world_size=TEAM)
    found = {}
    for name, way in CASES:
        lane = Lane(TEAM, number, way == "sequence", way == "expert")
        with member_of(dist.group.WORLD):
            found[name, way] = _compared(model_of(name, lane.sequence), lane)
    torch.save(found, f"{folder}/lane{number}.pt")
    dist.destroy_process_group()


def _compared(model: LayeredModel, lane: Lane) -> dict[str, Any]:
    """Losses, and by parameter: the lane's gradient, its part of one device's, and whether the parts are the whole."""
    alone, mine = ([build_layer(s, 0, k, torch.float64, of) for k, s in enumerate(model.layers)] for of in (None, lane))
    together = partial(loss_of_samples, model.loss, lane) if lane.experts else model.loss
    losses = [_trained(model, layers, loss) for layers, loss in ((alone, model.loss), (mine, together))]
    gradients, restored = {}, []
    for layer, part, spec in zip(alone, mine, model.layers, strict=True):
        for path, module in part.named_modules():
            for name, own in module.named_parameters(recurse=False):
                whole = layer.get_submodule(path).get_parameter(name)
                shard = shards_of(module).get(name)
                expected = whole.grad if shard is None else shard.part(whole.grad, lane)
                gradients[f"{spec.name}.{path}.{name}"] = (expected, own.grad)
                if shard is not None:
                    parts = [torch.empty_like(own) for _ in range(lane.size)]
                    dist.all_gather(parts, own.detach())
                    restored.append(torch.equal(shard.whole(parts), whole))
    return {"losses": losses, "gradients": gradients, "restored": restored}


def _trained(model: LayeredModel, layers: Sequence[nn.Module], measured: Loss) -> float:
    """The loss of a micro-batch; every layer draws from a seed of its own."""
    x, target = load(str(model.data)).batch(0, 0, 0, 4)
    for index, layer in enumerate(layers):
        torch.manual_seed(index)
        x = layer(x)
    loss = measured(x, target)
    loss.backward()
    return loss.item()
