"""Steps of modules of transformers beside torch.distributed.pipelining's `pipeline()`: same module, same split, 1F1B.

Called by `any_model.py --speed`. Everything trains in one set of gloo processes with one thread each, step by step in
turn. Layers are cut between blocks, evenly, and torch is told the same split points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from any_model_cases import Drawn, spoken
from executor_contender import PIPELINE, Entry, Outcome, Pacing, compete
from executor_rows import Speed, wrong_losses
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.multiprocessing import ProcessRaisedException

from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.job import Job
from contraflow.executor.run.launch import prepare
from contraflow.executor.state.weights import make_optimizer
from contraflow.models import resolve
from contraflow.models.once import drawing
from contraflow.models.sampling import batch_of
from contraflow.planner import Cluster, ModelGraph, Plan, Workload
from contraflow.planner.graph import KEEP, Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Problem
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.schedules import build

WORDS, WIDTH, BLOCKS, LENGTH = 1000, 128, 4, 64
SAMPLES, MICRO_BATCHES = 4, 8
DATA = Drawn("words", (("", "words", (LENGTH,)),), ("words", (LENGTH,)))
_SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH,
    "vocab_size": WORDS, "max_position_embeddings": LENGTH,
}  # fmt: skip


class Scores(nn.Module):
    """What a model of transformers says, without what else it returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, words: Tensor) -> Tensor:
        """(n, t) words -> (n, t, WORDS)."""
        scores: Tensor = self.inner(input_ids=words).logits
        return scores


def gpt2() -> tuple[nn.Module, Tensor]:
    """Without the tie, which pipeline() does not keep."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=BLOCKS, n_embd=WIDTH, n_head=4, vocab_size=WORDS, n_positions=LENGTH, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False)  # fmt: skip
    return Scores(GPT2LMHeadModel(config)), torch.zeros(SAMPLES, LENGTH).long()


def llama() -> tuple[nn.Module, Tensor]:
    """Grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_SHAPE, num_key_value_heads=2, use_cache=False)
    return Scores(LlamaForCausalLM(config)), torch.zeros(SAMPLES, LENGTH).long()


def qwen2() -> tuple[nn.Module, Tensor]:
    """Biases at queries, keys and values."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**_SHAPE, num_key_value_heads=2, use_cache=False)
    return Scores(Qwen2ForCausalLM(config)), torch.zeros(SAMPLES, LENGTH).long()


def bert() -> tuple[nn.Module, Tensor]:
    """Without the tie."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**_SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, tie_word_embeddings=False)
    return Scores(BertForMaskedLM(config)), torch.zeros(SAMPLES, LENGTH).long()


SPLITS: dict[Callable[[], Any], str] = {
    gpt2: "inner.transformer.h", llama: "inner.model.layers", qwen2: "inner.model.layers",
    bert: "inner.bert.encoder.layer",
}  # fmt: skip
"""Where each has its blocks."""
BUILDS = {build.__name__: build for build in SPLITS}
for _build in SPLITS:
    _build.data, _build.loss = DATA, spoken  # type: ignore[attr-defined]


def planned(name: str, processes: int) -> Plan:
    """1F1B, as many blocks on every process."""
    model = resolve(f"any_model_speed:{name}")
    graph = ModelGraph.from_dict(profile_model(model, SAMPLES, rounds=1, layers="block"))
    names = [layer.name for layer in graph.layers]
    edges = [0, *(names.index(point) for point in split_points(name, processes)), len(names)]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(edges))
    layout = build("1f1b", processes, MICRO_BATCHES)
    problem = Problem(graph, Cluster.uniform(processes), Workload(MICRO_BATCHES, "sgd"))
    stash = ((KEEP,) * len(stages),)
    return assemble(Candidate(problem, stages, layout.pipelines, stash, FLUSH), layout.orders, "1f1b")


def split_points(name: str, processes: int) -> list[str]:
    """The first block of every process but the first."""
    return [f"{SPLITS[BUILDS[name]]}.{BLOCKS * p // processes}" for p in range(1, processes)]


def _contiguous(made: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
    """Of tensors that lie in memory as gloo sends them: pipeline() leaves that to its users."""

    def sends(micro_batch: int) -> list[Any]:
        found = made(micro_batch)
        for one in found:
            one.tensor = one.tensor.contiguous()
        return found

    return sends


def _buffer(meta: Any, device: Any) -> Tensor:
    """Where such a message arrives."""
    return torch.empty(meta.shape, dtype=meta.dtype, device=device)


class Pipelined:
    """One rank of torch's pipeline() on the module of one of our plans."""

    def __init__(self, job: Job, rank: int) -> None:
        name, ranks = job.plan.problem.model.name.partition(":")[2], len(job.plan.orders)
        self._job, self._first, self._last = job, rank == 0, rank == ranks - 1
        with drawing(job.options.seed):
            module, words = BUILDS[name]()
        points = dict.fromkeys(split_points(name, ranks), pipelining.SplitPoint.BEGINNING)
        made = pipelining.pipeline(module.train(), mb_args=(words,), split_spec=points)
        pipelining.stage._make_tensor_from_meta = _buffer
        stage = made.build_stage(rank, torch.device("cpu"))
        stage.get_fwd_send_ops = _contiguous(stage.get_fwd_send_ops)
        stage.get_bwd_send_ops = _contiguous(stage.get_bwd_send_ops)
        self._schedule = pipelining.Schedule1F1B(stage, MICRO_BATCHES, loss_fn=spoken)
        parameters = list(stage.submod.parameters())
        self._optimizer = make_optimizer("sgd", parameters, job.training, fused=True)

    def prepare(self, step: int) -> None:
        """Draws the step's micro-batches as one batch, as torch's schedules take them."""
        drawn = [batch_of(DATA, self._job.options.seed, step, m, SAMPLES) for m in range(MICRO_BATCHES)]
        self._words, self._targets = (torch.cat(parts) for parts in zip(*drawn, strict=True))

    def step(self, step: int) -> Outcome:
        """One optimizer step."""
        losses: list[Tensor] = []
        self._optimizer.zero_grad()
        inputs = (self._words,) if self._first else ()
        target = self._targets if self._last else None
        self._schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
        self._optimizer.step()
        return Outcome(losses={m: loss.item() for m, loss in enumerate(losses)})

    def close(self) -> None:
        """Nothing to release."""


def speeds(
    names: Sequence[str], processes: Sequence[int], pacing: Pacing, faults: list[str], tell: Callable[[str], None]
) -> Iterator[Speed]:
    """Every module on so many processes; `faults` is told where the two train otherwise."""
    for name in names:
        for count in processes:
            plan = planned(name, count)
            job = prepare(plan, model=plan.problem.model.name, self_check=False)
            entries = [Entry("ours", job), Entry(PIPELINE, job, PIPELINE)]
            try:
                found = compete(entries, pacing, lambda _: None)
            except ProcessRaisedException as error:
                tell(f"{name}, {count}: left out: {str(error).strip().splitlines()[-1]}")
                continue
            faults += wrong_losses(found)
            row = Speed.of(f"{name}, {count}", found["ours"], PIPELINE, found[PIPELINE])
            tell(f"{row.plan}: ours {1e3 * row.ours_s:.1f} ms, torch's {1e3 * row.theirs_s:.1f} ms, {row.ratio:.3f}")
            yield row
