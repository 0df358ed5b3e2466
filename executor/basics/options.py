"""Everything that is said of a run beside its plan: one record, from the command line or `execute` to every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .checkpointing import Checkpointing
from .option_fields import Form, SameIn, option
from .training import Training

if TYPE_CHECKING:
    import torch

    from ...models import LayeredModel
    from ...models.loaders import Source

Engine = Literal["auto", "graph", "eager"]
ENGINES: tuple[Engine, ...] = ("auto", "graph", "eager")
DTYPES = ("float32", "float64", "bfloat16", "float16")
TRANSPORTS = ("processes", "threads")
DEVICES = ("cpu", "cuda")
TIMEOUT_S = 300.0
"""How long a rank may go without progress within a step, unless told otherwise: longer than any operation takes."""

OnStep = Callable[[int, float, float], None]
"""Called with (step, loss, seconds) as steps complete."""


@dataclass(frozen=True)
class RunOptions:
    """What `execute` is told of a run beside its plan, as it is given; nothing is checked here.

    Attributes:
        steps: optimizer steps; of an asynchronous plan, updates.
        model: default: the registry's model of the plan's name. A LayeredModel, or a registry name or
            "package.module:function", which every process resolves by itself.
        data: default: the model's own.
        seed: fixes parameters, data order and dropout, whatever the plan.
        lr: the rate of `training`.
        dtype: of the parameters, or its name; default: float32, or bfloat16 where the plan is in mixed precision.
        transport: "threads", or "processes" (gloo; joined, not spawned, when RANK and WORLD_SIZE are set).
        on_step: called in the process that asks for the run.
        threads_per_process: of torch.
        trace: where to write the trace of the steps.
        metrics: where to add a JSON line for every step (see `run.metrics`); of ranks joined, at the end.
        checkpoint: where, and when, to save what has been trained: a folder, or `Checkpointing` with more to say.
        resume: go on from the newest checkpoint there, made by any plan of the same training.
        evaluate_only: train nothing, and tell the held-out loss of the newest checkpoint in the folder, or without one
            of the first parameters.
        self_check: compare every stage program with plain torch first.
        return_state: whether the result has the final tensors.
        timeout_s: how long a rank may go without progress within a step before the run ends.
        training: optimizer options, schedule, clipping, loss scaling, evaluation; default: `Training()`.
        engine: "graph" or "eager" for all stages, or "auto": the graph of a stage, or where there can be no right
            one, torch's eager autograd, with an EngineNotice as a warning.
        device: "cpu", or "cuda": rank r of a machine on its device r, modulo how many it has (docs/cuda.md).
        compiled: run the stage programs through torch's compiler where that is possible: of all stages, or of none;
            None: of those whose layers were faster so when they were profiled.
        enforce: end before an op whose declared bytes would pass the device's planned peak, and right after one whose
            measured bytes did; hosts likewise. Memory is then followed in all steps, which takes time.
    """

    steps: int = field(
        default=10, metadata=option("Optimizer steps (updates).", least=1, same_in=SameIn.RANK)
    )  # ranks compare what is left
    model: LayeredModel | str | None = field(
        default=None,
        metadata=option(
            "package.module:function or hf:FOLDER_OR_NAME, for a model not in the registry.",
            metavar="MODEL",
            same_in=SameIn.TRAINING,
        ),
    )
    data: Source | str | None = field(
        default=None,
        metadata=option(
            "A data set, as stdlib:64 or digits. [default: the model's]", metavar="NAME", same_in=SameIn.TRAINING
        ),
    )
    seed: int = field(
        default=0, metadata=option("Parameters, data, dropout.", least=0, most=2**31 - 1, same_in=SameIn.TRAINING)
    )
    lr: float | None = field(default=None, metadata=option(same_in=SameIn.TRAINING))
    dtype: torch.dtype | str | None = field(
        default=None,
        metadata=option(
            "Of the parameters. [default: float32; of a mixed plan bfloat16]", choices=DTYPES, same_in=SameIn.TRAINING
        ),
    )
    _: KW_ONLY
    engine: Engine = field(
        default="auto",
        metadata=option(
            "What runs the stages: graphs of them, or torch's autograd. auto: graphs where they are right.",
            choices=ENGINES,
        ),
    )
    transport: str = field(
        default="processes",
        metadata=option(
            "A gloo process per device, or all devices as threads of one process.",
            choices=TRANSPORTS,
            same_in=SameIn.RANK,
        ),
    )
    device: str = field(
        default="cpu",
        metadata=option(
            "Where stages run. cuda: over NCCL where every rank has a GPU, else messages go through the host.",
            choices=DEVICES,
        ),
    )
    compiled: bool | None = field(
        default=None,
        metadata=option(
            "Run the stage programs through torch's compiler. [default: where model.json says that it pays]",
            flag="compile",
            form=Form.SWITCH,
            words="compiler",
        ),
    )
    enforce: bool = field(
        default=False,
        metadata=option(
            "End the run before memory passes the planned peak, or as soon as it has.", words="enforcement"
        ),
    )
    trace: str | Path | None = field(
        default=None,
        metadata=option("Write what the steps did, op by op.", form=Form.FILE, metavar="FILE", same_in=SameIn.RANK),
    )
    metrics: str | Path | None = field(
        default=None,
        metadata=option(
            "Add a JSON line a step: loss, seconds, rate, ...", form=Form.FILE, metavar="FILE", same_in=SameIn.RANK
        ),
    )
    checkpoint: Checkpointing | str | Path | None = field(
        default=None, metadata=option(record=Checkpointing, same_in=SameIn.RANK)
    )
    resume: bool = field(default=False, metadata=option(same_in=SameIn.RANK))
    evaluate_only: bool = field(
        default=False,
        metadata=option("Train nothing: tell the held-out loss of the newest checkpoint, or of the first parameters."),
    )
    timeout_s: float = field(
        default=TIMEOUT_S,
        metadata=option(
            "End the run when a rank makes no progress for so long.",
            flag="timeout",
            form=Form.SECONDS,
            same_in=SameIn.RANK,
        ),
    )
    training: Training | None = field(default=None, metadata=option(record=Training, same_in=SameIn.TRAINING))
    self_check: bool = field(default=True, metadata=option(words="self-check"))
    return_state: bool = field(default=False, metadata=option(same_in=SameIn.RANK))
    threads_per_process: int = field(default=1, metadata=option(same_in=SameIn.RANK))
    on_step: OnStep | None = field(default=None, metadata=option(same_in=SameIn.RANK))

    @property
    def saving(self) -> Checkpointing | None:
        """What `checkpoint` and `resume` mean together. Raises RunError: it resumes from nowhere."""
        return Checkpointing.of(self.checkpoint, self.resume)

    @property
    def rated(self) -> Training:
        """`training` with the rate of `lr`."""
        chosen = self.training or Training()
        return chosen if self.lr is None else replace(chosen, lr=self.lr)
