"""Measures a model layer by layer: what model.json holds. And a link between two local processes."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from .memory import StorageTracker, unique_bytes
from .program import StageProgram, named_buffers, named_parameters

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

    Raises:
        ValueError: no data, or a micro-batch size below 1.
        TraceError: a layer cannot be traced.
    """
    if micro_batch_size < 1:
        raise ValueError(f"micro-batch size {micro_batch_size} is below 1")
    data = data or (load(model.data) if isinstance(model.data, str) else model.data)
    if data is None:
        raise ValueError(f"model {model.name!r} names no data; pass data=...")
    x, target = (tensor.to(device) for tensor in data.batch(0, 0, 0, micro_batch_size))
    x = x.to(dtype) if x.is_floating_point() else x
    known: dict[object, tuple[dict[str, Any], Tensor]] = {}
    layers = []
    with _threads(threads):
        for index, spec in enumerate(model.layers):
            last = index == len(model.layers) - 1
            key = (_likeness(spec.build), x.shape, x.dtype, index == 0, last)
            if fresh := key not in known:
                module = build_layer(spec, 0, index, dtype).to(device)
                run = _LayerRun(model, module, index, x, target if last else None)
                known[key] = (run.costs(rounds), run.output)
                del module, run
            costs, x = known[key]
            layers.append({"name": spec.name, **costs})
            if on_progress:
                on_progress(f"{spec.name}: {_summary(costs, fresh)}")
    names = [spec.name for spec in model.layers]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": model.name,
        "micro_batch_size": micro_batch_size,
        "device": torch.device(device).type,
        "layers": layers,
        "edges": [list(pair) for pair in pairwise(names)],
    }


def _summary(costs: dict[str, Any], fresh: bool) -> str:
    backward = costs["backward_input_s"] + costs["backward_weight_s"]
    how = "measured" if fresh else "like an earlier layer"
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


@dataclass
class _Bytes:
    """One real run's bytes: the stash, and peaks that count neither parameters nor the layer's input."""

    stash: int
    borrowed: int  # part of the stash that existed before: the layer's input and target
    output: int
    weight_stash: int
    forward_peak: int
    forward_only_peak: int
    remake_peak: int
    backward_peak: int
    input_peak: int
    weight_peak: int


class _LayerRun:
    """One layer as its own stage: runs it, times it, counts its bytes."""

    def __init__(self, model: LayeredModel, module: nn.Module, index: int, x: Tensor, target: Tensor | None) -> None:
        loss = None if target is None else model.loss
        label = f"layer {model.layers[index].name}"
        self.program = StageProgram.trace([module], [index], x, loss, target, label=label)
        self.parameters = {name: tensor.detach() for name, tensor in named_parameters([module], [index]).items()}
        self.buffers = named_buffers([module], [index])
        self.sums = {name: torch.zeros_like(self.parameters[name]) for name in self.program.accumulator_names}
        self.x, self.target = x, target
        self.output = self._forward()[0]
        self.grad_output = torch.ones_like(self.output)

    def costs(self, rounds: int) -> dict[str, Any]:
        """A layer's entry in model.json, without its name."""
        forward_s, backward_s, input_s, weight_s = self._seconds(rounds)
        sizes = self._bytes()
        share = input_s / (input_s + weight_s) if self.program.needs_input_grad else 0.0
        parameters = list(self.parameters.values())
        return {
            "forward_s": forward_s,
            "backward_input_s": backward_s * share,
            "backward_weight_s": backward_s * (1 - share),
            "parameter_bytes": unique_bytes(parameters),
            "stash_bytes": sizes.stash,
            "weight_stash_bytes": sizes.weight_stash,
            "output_bytes": sizes.output,
            "input_bytes": self.x.nbytes,
            "workspace_bytes": self._workspace(sizes),
            "buffer_bytes": unique_bytes(self.buffers.values()),
            "parameter_shapes": [list(tensor.shape) for tensor in parameters],
        }

    def _workspace(self, sizes: _Bytes) -> int:
        """Transient bytes: of F beyond output and stash, if it leaves one; of R beyond the stash; of B, I and W
        beyond what they consume or leave.

        Inside a stage nobody else counts the tensors between layers: an unsaved input counts in F and R, any
        input in an F that saves nothing, the gradients on both sides of the layer in B and I.
        """
        own_stash = sizes.stash - sizes.borrowed
        unsaved_input = 0 if self.program.saves_input else self.x.nbytes
        forward = sizes.forward_peak - own_stash - sizes.output + unsaved_input
        forward_only = sizes.forward_only_peak - sizes.output + self.x.nbytes
        remake = sizes.remake_peak - own_stash + unsaved_input
        gradients = self.grad_output.nbytes
        backward = sizes.backward_peak - own_stash + gradients
        own_held = sizes.weight_stash - sizes.borrowed
        halves = [sizes.input_peak - max(own_stash, own_held) + gradients, sizes.weight_peak - sizes.weight_stash]
        return max(forward, forward_only, remake, backward, *halves, 0)

    def _forward(self) -> tuple[Tensor, Any]:
        return self.program.forward(self.parameters, self.buffers, self.x, self.target, seed=0)

    def _seconds(self, rounds: int) -> tuple[float, float, float, float]:
        """Median seconds of F, B, I, W."""
        program, laps = self.program, []
        for _ in range(WARMUPS + rounds):
            start = self._now()
            _, stash = self._forward()
            after_forward = self._now()
            program.backward(stash, self.parameters, self.grad_output, self.sums)
            after_backward = self._now()
            _, stash = self._forward()
            before_input = self._now()
            _, weight_stash = program.backward_input(stash, self.parameters, self.grad_output)
            after_input = self._now()
            program.backward_weight(weight_stash, self.sums)
            laps.append(
                (
                    after_forward - start,
                    after_backward - after_forward,
                    after_input - before_input,
                    self._now() - after_input,
                )
            )
        forward_s, backward_s, input_s, weight_s = map(statistics.median, zip(*laps[WARMUPS:], strict=True))
        return forward_s, backward_s, input_s, weight_s

    def _now(self) -> float:
        if self.x.is_cuda:
            torch.cuda.synchronize(self.x.device)
        return time.perf_counter()

    def _bytes(self) -> _Bytes:
        program, buffers = self.program, list(self.buffers.values())
        given = [self.x, self.grad_output] + ([] if self.target is None else [self.target])
        external = [*self.parameters.values(), *buffers, *self.sums.values(), *given]
        with StorageTracker(external) as tracker:
            output, stash = self._forward()
            forward_peak = tracker.peak_bytes
            stashed = _bytes_beyond(buffers, stash.tensors)
            own = _bytes_beyond([*buffers, *given], stash.tensors)
            output_bytes = 0 if self.target is not None else output.untyped_storage().nbytes()
            del output
            tracker.reset_peak()
            program.backward(stash, self.parameters, self.grad_output, self.sums)
            backward_peak = tracker.peak_bytes
            tracker.reset_peak()
            program.forward_only(self.parameters, self.buffers, self.x, self.target)
            forward_only_peak, remake_peak = tracker.peak_bytes, own
            if program.can_remake:
                tracker.reset_peak()
                program.remake(self.parameters, self.buffers, self.x, self.target)
                remake_peak = tracker.peak_bytes
            stash = self._forward()[1]
            tracker.reset_peak()
            weight_stash = program.backward_input(stash, self.parameters, self.grad_output)[1]
            input_peak = tracker.peak_bytes
            held, own_held = weight_stash.nbytes, _bytes_beyond(given, weight_stash.tensors)
            tracker.reset_peak()
            program.backward_weight(weight_stash, self.sums)
            weight_peak = tracker.peak_bytes + held - own_held
        return _Bytes(
            stashed, stashed - own, output_bytes, held,
            forward_peak, forward_only_peak, remake_peak, backward_peak, input_peak, weight_peak,
        )  # fmt: skip


def _bytes_beyond(known: list[Tensor], tensors: list[Tensor]) -> int:
    """Bytes of the storages behind `tensors` that are not behind `known`."""
    return unique_bytes([*known, *tensors]) - unique_bytes(known)


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
