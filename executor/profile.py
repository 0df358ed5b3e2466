"""Measures a model layer by layer: what model.json holds. And a link between two local processes."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from ..models.data import load
from ..models.protocol import Dataset, LayeredModel, build_layer
from .eager import EagerProgram
from .engines import Engine
from .layer_run import LayerRun, trace_layer

FORMAT = "contraflow/model"
VERSION = 1
WARMUPS = 2
LINK_BYTES = 16 << 20


def profile_model(
    model: LayeredModel,
    micro_batch_size: int,
    device: str = "cpu",
    threads: int = 1,
    on_progress: Callable[[str], None] | None = None,
    rounds: int = 5,
    data: Dataset | None = None,
    dtype: torch.dtype = torch.float32,
    engine: Engine = "auto",
) -> dict[str, Any]:
    """Time every layer's forward and backward halves and count its bytes: a "contraflow/model" document.

    Each layer is traced and run alone, on the real output of the layer before it; layers alike (same
    modules, attributes, shapes) are measured once. Seconds are medians over `rounds` runs with `threads`
    threads; the halves of the backward are the time of the whole, divided as the halves measured alone.
    Beyond the format's required keys a layer has `buffer_bytes` and `parameter_shapes`.

    A stage made of layers then needs at most: in F, the sum of `stash_bytes`, its input unless stashed, its
    output, the largest workspace; in B, the sum of `stash_bytes`, both boundary gradients, the largest
    workspace, where a layer's own two boundary gradients count as its workspace.

    Args:
        data: what to feed it; default: the model's own.
        on_progress: told about every layer in a line of text.
        engine: what runs the layers, as for `execute`.

    Raises:
        ValueError: no data, or a micro-batch size below 1.
        TraceError, ProgramMismatch: no engine, or not the one asked for, can run a layer.
    """
    x, target = example_batch(model, micro_batch_size, data, dtype)
    x, target = x.to(device), target.to(device)

    def measured(engine: Engine, index: int, x: Tensor, target: Tensor | None) -> tuple[dict[str, Any], LayerRun]:
        module = build_layer(model.layers[index], 0, index, dtype).to(device)
        run = LayerRun(trace_layer(model, module, index, x, target, engine), module, index, x, target)
        return run.costs(partial(_now, x.device), rounds, WARMUPS), run

    with _threads(threads):
        layers = profiled_layers(model, x, target, measured, "measured", on_progress, engine)
    return model_document(model, micro_batch_size, torch.device(device).type, layers)


def example_batch(
    model: LayeredModel, micro_batch_size: int, data: Dataset | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Inputs, in `dtype` where they are floating point, and targets of one micro-batch, on the CPU.

    Raises:
        ValueError: no data, or a micro-batch size below 1.
    """
    if micro_batch_size < 1:
        raise ValueError(f"micro-batch size {micro_batch_size} is below 1")
    data = data or (load(model.data) if isinstance(model.data, str) else model.data)
    if data is None:
        raise ValueError(f"model {model.name!r} names no data; pass data=...")
    x, target = data.batch(0, 0, 0, micro_batch_size)
    return x.to(dtype) if x.is_floating_point() else x, target


EngineCosts = Callable[[Engine, int, Tensor, Tensor | None], tuple[dict[str, Any], LayerRun]]
"""(engine, position, input, target of the last layer) -> (entry in model.json, what was run)."""


def profiled_layers(
    model: LayeredModel,
    x: Tensor,
    target: Tensor,
    costs_of: EngineCosts,
    how: str,
    on_progress: Callable[[str], None] | None,
    engine: Engine = "auto",
) -> list[dict[str, Any]]:
    """Every layer's entry in model.json, on its engine.

    A stage with a layer that needs the eager engine runs on it as a whole. So where there is such a layer, all
    layers' bytes are the larger of both engines', as any of them may share its stage.
    """
    eager: set[bool] = set()

    def on(engine: Engine) -> LayerCosts:
        def costs(index: int, x: Tensor, target: Tensor | None) -> tuple[dict[str, Any], Tensor]:
            found, run = costs_of(engine, index, x, target)
            eager.add(isinstance(run.program, EagerProgram))
            return found, run.output

        return costs

    layers = distinct_layers(model, x, target, on(engine), how, on_progress)
    if len(eager) == 2:
        others = distinct_layers(model, x, target, on("eager"), how, None)
        layers = [_larger_bytes(layer, other) for layer, other in zip(layers, others, strict=True)]
    return layers


def _larger_bytes(layer: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return layer | {key: max(value, other[key]) for key, value in layer.items() if key.endswith("_bytes")}


LayerCosts = Callable[[int, Tensor, Tensor | None], tuple[dict[str, Any], Tensor]]
"""(position, input, target of the last layer) -> (entry in model.json, output)."""


def distinct_layers(
    model: LayeredModel,
    x: Tensor,
    target: Tensor,
    costs_of: LayerCosts,
    how: str,
    on_progress: Callable[[str], None] | None,
) -> list[dict[str, Any]]:
    """Every layer's entry in model.json; `costs_of` is asked once for layers that are alike.

    Each layer gets the output of the one before; `how` says in the progress what was done for the costs.
    """
    known: dict[object, tuple[dict[str, Any], Tensor]] = {}
    layers = []
    for index, spec in enumerate(model.layers):
        last = index == len(model.layers) - 1
        key = (_likeness(spec.build), x.shape, x.dtype, index == 0, last)
        if fresh := key not in known:
            known[key] = costs_of(index, x, target if last else None)
        costs, x = known[key]
        layers.append({"name": spec.name, **costs})
        if on_progress:
            on_progress(f"{spec.name}: {_summary(costs, how if fresh else 'like an earlier layer')}")
    return layers


def model_document(
    model: LayeredModel, micro_batch_size: int, device: str, layers: list[dict[str, Any]]
) -> dict[str, Any]:
    """The content of model.json for a chain."""
    names = [spec.name for spec in model.layers]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": model.name,
        "micro_batch_size": micro_batch_size,
        "device": device,
        "layers": layers,
        "edges": [list(pair) for pair in pairwise(names)],
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _summary(costs: dict[str, Any], how: str) -> str:
    backward = costs["backward_input_s"] + costs["backward_weight_s"]
    return f"forward {costs['forward_s'] * 1e3:.2f} ms, backward {backward * 1e3:.2f} ms ({how})"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _likeness(build: Callable[[], nn.Module]) -> object:
    """Equal for two builds of one structure: modules, plain attributes, shapes. Allocates no storage."""
    with torch.device("meta"):
        module = build()
    parts = []
    for name, part in module.named_modules():
        plain = sorted((key, repr(value)) for key, value in vars(part).items() if _is_plain(value))
        parts.append((name, type(part), tuple(plain)))
    tensors = [*module.named_parameters(), *module.named_buffers()]
    shapes = tuple((name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors)
    return repr(module), tuple(parts), shapes


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))


def measure_link(payload_bytes: int = LINK_BYTES, rounds: int = 10) -> tuple[float, float]:
    """(bytes per second, seconds of latency) of gloo between two local processes.

    The best of all rounds: what the link can do, not what a busy machine lets it do. Latency is half a round
    trip of one byte; bandwidth counts the time of a large message beyond it, or all of its time if the
    latency is most of it (a payload too small to tell; the bandwidth is then too low). Spawns
    two processes: a script that calls this needs the `if __name__ == "__main__"` guard.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        spawn(  # type: ignore[no-untyped-call]
            _link_worker, (f"file://{Path(folder) / 'rendezvous'}", payload_bytes, rounds, results), nprocs=2
        )
        bandwidth, latency_s = results.get()
    return bandwidth, latency_s


def _link_worker(rank: int, rendezvous: str, payload_bytes: int, rounds: int, results: Any) -> None:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    try:
        small = _round_trip(rank, torch.zeros(1, dtype=torch.uint8), 10 * rounds)
        large = _round_trip(rank, torch.zeros(payload_bytes, dtype=torch.uint8), rounds)
        if rank == 0:
            results.put((payload_bytes / (large - small if large > 2 * small else large), small))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _round_trip(rank: int, message: Tensor, rounds: int) -> float:
    """Least seconds of one way, warmed up."""
    laps = []
    for _ in range(WARMUPS + rounds):
        start = time.perf_counter()
        for sender in (0, 1):
            if sender == rank:
                dist.send(message, 1 - rank)
            else:
                dist.recv(message, 1 - rank)
        laps.append((time.perf_counter() - start) / 2)
    return min(laps[WARMUPS:])
