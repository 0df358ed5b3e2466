"""Measures a model layer by layer: what model.json holds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...models import Dataset, Granularity, LayeredModel, load
from ...models.lanes import Lane
from ...models.loaders import Feed, Source, as_dataset
from ...models.once import kept
from ...models.wiring import Inputs, each
from ...planner.problem import WORKSPACES
from ..basics import Engine, ExecutionError, RunError, keywords_of, one_line
from ..place import at_once
from ..stage import EagerProgram, ProgramMismatch, TraceError, build_lowered, require_compiler, why_uncompiled, wide
from ..state import as_dtype, inputs_and_targets, planned_edges, tied_bytes
from .between import Handed, Twice
from .companions import Pace, alone, companions
from .distinct import LayerCosts, Pieced, distinct_layers
from .drawing import drawing_s
from .layer_run import BY_ITSELF, Example, LayerRun, Timing, trace_layer
from .reach import Reaches
from .team import Team, lane_of_ways, require_room, seated

FORMAT = "contraflow/model"
VERSION = 1
WARMUPS = 2
MOST_LOAD = 8
"""Copies that are started unasked: each holds a layer and a Python of its own."""


@dataclass(frozen=True)
class Profiling:
    """How a model is measured.

    Attributes:
        micro_batch_size: samples.
        device: "cpu", or one of torch's. threads: of torch in every process.
        on_progress: told about every layer in a line of text.
        rounds: repetitions whose median counts.
        data: what to feed it; default: the model's own.
        dtype: 16 bit means mixed precision, as a mixed plan runs it (see `precision`).
        load: so many processes, this one included, run the same layer at the same time, as they will when they
            train, though no more than have cores: what more of them cost one another is for the cluster to say (see
            `NodeGroup.cores`); as many whole teams as that makes, at least one. With several processes the caller's
            script needs the `if __name__ == "__main__"` guard.
        engine: what runs the layers, as for `execute`.
        layers: "parts": every layer of the model is one of model.json; "block": those of one block are.
        compiled: layers are measured through torch's compiler, too, and are marked where that is faster.
        drawing: whether the first layer's forward has drawing a micro-batch's samples, which a rank on the CPU does in
            between.
        ways: how a team of processes divides the layers, by "tensor" or "sequence". Seconds are then those of its
            slowest rank, with what ranks tell each other inside a layer; bytes are one rank's.
    """

    micro_batch_size: int
    device: str = "cpu"
    threads: int = 1
    on_progress: Callable[[str], None] | None = None
    rounds: int = 5
    data: Source | None = None
    dtype: torch.dtype = torch.float32
    load: int = 1
    engine: Engine = "auto"
    layers: Granularity = "parts"
    compiled: bool = False
    drawing: bool = True
    ways: Mapping[str, int] = field(default_factory=dict)


def measure_layers(model: LayeredModel, how: Profiling) -> dict[str, Any]:
    """Time every layer's forward and backward halves and count its bytes: a "contraflow/model" document.

    Each layer is traced and run alone, on the real output of the layer before it; layers alike (same
    modules, attributes, shapes) are measured once. Seconds are medians over `rounds` runs with `threads`
    threads; the halves of the backward are the time of the whole, divided as the halves measured alone.
    Beyond the format's required keys a layer has `buffer_bytes` and `parameter_shapes`.

    A stage made of layers then needs at most: in F, the sum of `stash_bytes`, its input unless stashed, its
    output, the largest workspace; in B, the sum of `stash_bytes`, both boundary gradients, the largest
    workspace, where a layer's own two boundary gradients count as its workspace.

    Raises:
        ValueError: no data, or a micro-batch size below 1.
        TraceError, ProgramMismatch: no engine, or not the one asked for, can run a layer.
        InputError: ways that are not executed, or that do not divide a layer; fewer CUDA devices than a team's ranks.
        RunError: no compiler; a load above 1 or a team, and the model or its data cannot be sent to other processes.
        ExecutionError: another process has failed.
    """
    if how.compiled:
        require_compiler(torch.device(how.device).type)
    lane = lane_of_ways(model, how.ways)
    if lane is not None:
        return _measured_by_teams(model, how, lane.size)
    together = min(how.load, at_once(how.threads)) if how.device == "cpu" else how.load
    with companions(together - 1, partial(_measured, model, replace(how, on_progress=None))) as pace:
        return _measured(model, how, pace)


profile_model = keywords_of(Profiling)(measure_layers)
"""`measure_layers` as other programs call it: profile_model(model, micro_batch_size, ...)."""


def _measured_by_teams(model: LayeredModel, how: Profiling, size: int) -> dict[str, Any]:
    """`measure_layers` by teams of processes, of which this is the first."""
    require_room(size, how.device)
    processes = max(1, how.load // size) * size
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        meeting = str(Path(folder) / "meeting")
        work = partial(_measured_in_team, model, replace(how, on_progress=None), processes, meeting, False)
        with companions(processes - 1, work) as pace:
            try:
                return _measured_in_team(model, how, processes, meeting, True, pace)
            except (TraceError, ProgramMismatch, RunError, ExecutionError):
                raise
            except RuntimeError as error:
                pace()  # raises where another process is the cause
                raise ExecutionError(f"the team's ranks have lost each other: {one_line(error)}") from error


def _measured_in_team(
    model: LayeredModel, how: Profiling, processes: int, meeting: str, first: bool, pace: Pace
) -> dict[str, Any]:
    """`measure_layers` of one of so many processes that form teams."""
    with seated(how.ways, processes, meeting, how.device, first) as team:
        return _measured(model, how, pace, team)


@kept()
def _measured(model: LayeredModel, how: Profiling, pace: Pace = alone, team: Team = BY_ITSELF) -> dict[str, Any]:
    """`measure_layers` of one process; `pace` is called before every repetition."""
    source = source_of(model, how.micro_batch_size, how.data)
    x, target = example_batch(source, how.micro_batch_size, how.dtype)
    x, target = each(x, lambda tensor: tensor.to(how.device)), target.to(how.device)
    timing = Timing(partial(_now, target.device), how.rounds, WARMUPS, pace, team=team)
    awaiting = target.nbytes

    def measured(engine: Engine, on: Example) -> tuple[dict[str, Any], LayerRun]:
        built = (build_lowered(model.layers[index], 0, index, how.dtype, team.lane)[0] for index in on.piece.ids)
        modules = [module.to(how.device) for module in built]

        def run_of(on: Example) -> LayerRun:
            return LayerRun(trace_layer(model, modules, on, how.dtype, engine, team=team), modules, on, awaiting)

        run = run_of(on)
        costs = reaches.costs(run)
        if how.compiled and not isinstance(run.program, EagerProgram) and not why_uncompiled(run.program):
            costs = reaches.better(costs, reaches.costs(run_of(replace(on, compiled=True))))
        return costs, run

    of = Pieced(model, how.layers)
    with _threads(how.threads):
        reaches = Reaches.of(model, timing, target.device, how.dtype, how.engine)
        layers, twice = profiled_layers(of, x, target, measured, "measured", how.on_progress, how.engine)
        layers = reaches.settle(layers)
        if how.drawing and how.device == "cpu":
            first, drawn_s = layers[0], drawing_s(source, how.micro_batch_size, how.rounds, pace)
            layers[0] = first | {"forward_s": first["forward_s"] + drawn_s}
    device = torch.device(how.device).type
    content = model_document(of, how.micro_batch_size, device, layers, twice, how.dtype, team.lane)
    return content if team.lane is None else content | {"ways": dict(how.ways)}


def source_of(model: LayeredModel, micro_batch_size: int, data: Source | None) -> Dataset:
    """What a model is fed: the data, or its own. Raises ValueError: there is none, or a micro-batch size below 1."""
    if micro_batch_size < 1:
        raise ValueError(f"micro-batch size {micro_batch_size} is below 1")
    found = model.data if data is None else data
    if found is None:
        raise ValueError(f"model {model.name!r} names no data; pass data=...")
    return load(found) if isinstance(found, str) else as_dataset(found, Feed(micro_batch_size, micro_batch_size))


def example_batch(source: Dataset, micro_batch_size: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    """A micro-batch's inputs, in `dtype` where they are floating point, and targets as a loss has them, on the CPU."""
    x, target = inputs_and_targets(source, 0, 0, 0, micro_batch_size)
    return each(x, lambda tensor: as_dtype(tensor, dtype)), as_dtype(target, wide(dtype))


EngineCosts = Callable[[Engine, Example], tuple[dict[str, Any], LayerRun]]
"""(engine, a layer) -> (entry in model.json, what was run)."""


def profiled_layers(
    model: Pieced,
    x: Inputs,
    target: Tensor,
    costs_of: EngineCosts,
    how: str,
    on_progress: Callable[[str], None] | None,
    engine: Engine = "auto",
) -> tuple[list[dict[str, Any]], Twice]:
    """Every layer's entry in model.json, on its engine, and what two of them keep.

    A stage with a layer that needs the eager engine runs on it as a whole. So where there is such a layer, all
    layers' bytes are the larger of both engines', as any of them may share its stage.
    """
    eager: set[bool] = set()

    def on(engine: Engine) -> LayerCosts:
        def costs(layer: Example) -> tuple[dict[str, Any], Handed]:
            found, run = costs_of(engine, layer)
            eager.add(isinstance(run.program, EagerProgram))
            assert run.kept is not None
            return found, Handed(run.output, run.program.saves_input, run.dropped_workspace, *run.kept, run.handed_back)

        return costs

    layers, twice = distinct_layers(model, x, target, on(engine), how, on_progress)
    if len(eager) == 2:
        others, theirs = distinct_layers(model, x, target, on("eager"), how, None)
        layers = [_larger_bytes(layer, other) for layer, other in zip(layers, others, strict=True)]
        ends = (ends for ends in twice if ends in theirs)
        twice = {pair: (min(twice[pair][0], theirs[pair][0]), min(twice[pair][1], theirs[pair][1])) for pair in ends}
    return layers, twice


def _larger_bytes(layer: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = (key for key in layer if key in other and key.endswith("_bytes"))
    found = layer | {key: max(layer[key], other[key]) for key in both}
    return {key: value for key, value in found.items() if not key.startswith("selective")}  # the eager engine has none


def model_document(
    of: Pieced,
    micro_batch_size: int,
    device: str,
    layers: list[dict[str, Any]],
    twice: Twice,
    dtype: torch.dtype,
    lane: Lane | None = None,
) -> dict[str, Any]:
    """The content of model.json; `dtype` is that of the parameters. Raises ValueError for a bad tie.

    What every kind of op takes is told of chains on devices of one rank: stages of other graphs have tensors that pass
    their layers by, those of teams what collectives hold.
    """
    if lane is not None or not of.model.wiring.chained:
        layers = [{key: value for key, value in layer.items() if key not in WORKSPACES} for layer in layers]
    edges = planned_edges(of.model, of.pieces)
    tied = tied_bytes(of.model, dtype, of.pieces, lane)
    shared = [{"layers": list(members), "bytes": count} for members, count in tied]
    kept_twice = [
        {"layers": list(names), "bytes": size, **({"weight_bytes": held} if held else {})}
        for names, (size, held) in twice.items()
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": of.model.name,
        "micro_batch_size": micro_batch_size,
        "device": device,
        "layers": layers,
        "edges": [[e.source, e.target, *([] if e.tensors is None else [list(e.tensors)])] for e in edges],
        **({"shared": shared} if shared else {}),
        **({"kept_twice": kept_twice} if kept_twice else {}),
    }


def default_load(device: str, threads: int) -> int:
    """How many processes of so many threads fill this computer's cores, at most `MOST_LOAD`; 1 for other devices."""
    if device != "cpu":
        return 1
    return min(MOST_LOAD, at_once(threads))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
