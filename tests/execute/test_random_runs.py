"""Random plans of every kind train exactly as plain torch, within their memory; the long run of it is `make soak`."""

from __future__ import annotations

import random
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import plain_torch
import pytest
import torch
import torch.distributed as dist
import trained
from editing import forecast_anew, mutant
from late import LatePlace
from random_runs import RandomRun, draw, plan_of, profiled, shrink, simpler
from tiny_models import GPT
from torch import nn
from trained import on_threads, outcome

from contraflow.executor.place.lanes import Lane
from contraflow.executor.place.memory import StorageTracker
from contraflow.executor.place.place import CPU
from contraflow.executor.run import rank
from contraflow.executor.run.launch import RunResult
from contraflow.executor.run.rank import Job
from contraflow.executor.state import addresses
from contraflow.executor.wires.transport import GlooTransport
from contraflow.models.attention import Attention
from contraflow.planner.basics.errors import PlanError
from contraflow.planner.check import check
from contraflow.planner.plan import Kind, Op, Plan


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_random_plans_train_as_plain_torch(first: int) -> None:
    """Losses, norms, held-out losses, every tensor; peaks, nothing left alive, the same bits again."""
    run = 0
    for seed in range(first, first + 8):
        case = draw(seed)
        try:
            plan = plan_of(case)
        except PlanError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = outcome(case, plan, again=seed % 4 == 0)
        assert not found.faults, f"seed {seed}: {found.faults[0].text}: {case}"
        run += not found.refused
    assert run >= 4


TWO_OWNERS = RandomRun(
    3, "norm", 2, 1, "quick", 1, (), ((0,), (0,)), ((0,), (1,)), (1, 0, 0, 1, 0), (("keep",), ("keep",)), engine="graph"
)


def test_statistics_out_of_order_with_several_owners() -> None:
    """One device runs all forwards of a stage, in no order, two its backwards: gradients are summed, statistics not.

    The device with the forwards once waited for a sum that the other one took no part in.
    """
    plan = plan_of(TWO_OWNERS)
    forwards = [op.micro_batch for op in plan.orders[0] if op.kind is Kind.F]
    assert forwards != sorted(forwards)
    found = outcome(TWO_OWNERS, plan)
    assert not [fault for fault in found.faults if fault.kind != "above its peak"], found.faults


def test_cases_become_simpler_while_they_fail() -> None:
    """What is left has what the failure needs, and little else."""

    def fails(case: RandomRun) -> bool:
        return "offload" in case.stash[0] and len(case.owner) > 2

    case = next(c for c in map(draw, range(500)) if c.synchronous and fails(c) and len(c.forward) > 1)
    found = shrink(case, fails)
    assert fails(found)
    assert len(found.owner) < len(case.owner)
    assert [kind for row in found.stash for kind in row].count("offload") == 1
    assert (found.cuts, found.split, found.precision, found.options) == ((), False, "fp64", ())
    assert all(not fails(other) for other in simpler(found))


def test_a_case_is_what_its_seed_says() -> None:
    """So that a failure can be repeated from its seed."""
    for seed in range(30):
        case = draw(seed)
        assert draw(seed) == case
        try:
            assert plan_of(case) == plan_of(replace(case))
        except PlanError:
            continue


# ------------------------------------------------------------------ what was found once


PREDICTED = RandomRun(
    183, "mlp", 1, 1, "quick", 1, (), ((0,),), ((0,),), (0, 0), (("keep",),), weights="pipeoptim-lookahead", update=1,
    runs=1, engine="eager",
)  # fmt: skip
LONG_TARGETS = RandomRun(
    236, "lstm", 2, 1, "slow", 1, (2,), ((0, 1),), ((0, 0),), (0, 0, 0), (("keep", "recompute"),), runs=2
)  # fmt: skip


@pytest.mark.parametrize("case", [PREDICTED, LONG_TARGETS], ids=["predicted weights, eager", "targets in F"])
def test_peaks_that_were_not_kept(case: RandomRun) -> None:
    """Predicted weights outlived their forward; targets were not counted while the layers before the last run."""
    assert outcome(case, plan_of(case)).faults == []


def test_free_behind_its_backward() -> None:
    """A FREE that the checker accepts after the backward of its stash has nothing left to wait for."""
    case = RandomRun(5, "drop", 1, 1, "quick", 1, (), ((0,),), ((0,),), (0, 0, 0), (("offload",),))
    plan = plan_of(case)
    last = max(k for k, op in enumerate(plan.orders[0]) if op.kind is Kind.B)
    free = Op(Kind.FREE, 0, plan.orders[0][last].micro_batch)
    order = (*plan.orders[0][: last + 1], free, *plan.orders[0][last + 1 :])
    edited = forecast_anew(replace(plan, orders=(order,)))
    assert check(edited) == []
    assert outcome(case, edited).faults == []


@pytest.mark.long
def test_edited_lists_that_are_accepted_run_as_well() -> None:
    """Lists with ops moved, swapped, repeated, left out and retargeted, as far as the checker lets them pass."""
    run = 0
    for seed in range(40, 70):
        rng, case = random.Random(seed), draw(seed, 3)
        if not case.synchronous or len(case.owner) > 6:
            continue
        other = mutant(plan_of(case), rng)
        if other is not None:
            found = outcome(case, other, again=False)
            assert not found.faults, f"seed {seed}: {found.faults[0].text}"
            run += 1
    assert run >= 5


TIED = RandomRun(
    2, "gpt", 3, 1, "quick", 1, (2, 4), ((0, 1, 2),), ((1, 1, 1),), (0, 0, 0), (("keep", "keep", "keep"),), "momentum"
)


def test_tied_parameters_are_sent_when_they_have_been_stepped() -> None:
    """The first stage's STEP updates what the last one is tied to: the last one's new parameters leave behind both."""
    plan = plan_of(TIED)
    sums = [op for op in plan.orders[1] if op.kind in (Kind.STEP, Kind.SEND_P)]
    assert sums.index(Op(Kind.SEND_P, 2, -1, 2)) > sums.index(Op(Kind.STEP, 0)) > sums.index(Op(Kind.STEP, 2))
    assert outcome(TIED, plan).faults == []
    line = [op for op in plan.orders[1] if op != Op(Kind.SEND_P, 2, -1, 2)]
    line.insert(line.index(Op(Kind.STEP, 2)) + 1, Op(Kind.SEND_P, 2, -1, 2))
    early = replace(plan, orders=(plan.orders[0], tuple(line), plan.orders[2]))
    assert [str(found) for found in check(early)] == [
        "dependency: device 1: 2SEND_P>2 comes before 0STEP, which it needs"
    ]


WAITING = RandomRun(
    236, "lstm", 4, 1, "slow", 2, (1, 2), ((2, 1, 2), (2, 2, 3), (1, 1, 1)), ((2, 1, 2), (0, 2, 1), (1, 1, 1)),
    (1, 2, 1, 0),
    (("offload", "keep", "recompute"), ("offload", "offload", "recompute"), ("offload", "offload", "keep")), runs=1,
)  # fmt: skip


def test_a_rank_that_queues_posts_before_it_waits_for_a_host_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank's copy may need what is listed behind the FETCH that takes it."""
    monkeypatch.setattr(rank, "place_of", lambda device, local_rank: LatePlace())
    monkeypatch.setattr(trained, "TIMEOUT_S", 20.0)
    assert outcome(WAITING, plan_of(WAITING), again=False).faults == []


def test_what_ranks_tell_each_other_counts_as_nobodys_memory(tmp_path: Path) -> None:
    """Copies are compared within the steps whose memory is followed."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        with StorageTracker() as tracker:
            assert GlooTransport({}).all_gather_object("text" * 100) == ["text" * 100]
            GlooTransport({}).barrier()
        assert tracker.peak_bytes == 0
    finally:
        dist.destroy_process_group()


def test_micro_batches_of_one_number_arrive_in_list_order() -> None:
    """Beyond 4,096 micro-batches numbers repeat; messages of one number are matched as they were posted."""
    case = RandomRun(11, "drop", 2, 1, "quick", 1, (2,), ((0, 1),), ((0, 1),), (0,) * 7, (("offload", "ship>0"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(addresses, "_MOST", 2)
        assert outcome(case, plan_of(case)).faults == []
        apart = replace(case, backward=((1, 0),), stash=(("keep", "recompute"),))
        assert outcome(apart, plan_of(apart)).faults == []


NO_KEY_BIAS = RandomRun(
    57000759, "gpt", 3, 1, "slow", 1, (1, 4), ((0, 1, 2),), ((0, 1, 2),), (0,) * 10, (("keep", "keep", "recompute"),),
    "rmsprop", "pipeoptim", 2, late=True, engine="eager", options=(("lr", 0.05), ("evaluate_every", 5)),
)  # fmt: skip


@pytest.mark.long
def test_all_but_key_biases_are_determined_by_training() -> None:
    """A softmax forgets what all keys share: their bias has no gradient, and RMSProp makes steps of its round-off."""
    plan = plan_of(NO_KEY_BIAS)
    wanted = plain_torch.train(
        plan, NO_KEY_BIAS.layered, NO_KEY_BIAS.data, NO_KEY_BIAS.steps, torch.float64, NO_KEY_BIAS.training
    )
    third = GPT.width
    assert list(wanted.undetermined.values()) == [slice(third, 2 * third)] * GPT.blocks
    assert outcome(NO_KEY_BIAS, plan, again=False).faults == []
    ran = list[RunResult]()
    for name, entries in wanted.undetermined.items():
        for start in (0, 2 * third):
            assert _changed(name, start, plan, ran) == [f"{name}: differs"]
        assert _changed(name, entries.start, plan, ran) == []


def _changed(name: str, entry: int, plan: Plan, ran: list[RunResult]) -> list[str]:
    """What is found where a run leaves another number in an entry; `ran`: the run, once it has been made."""

    def execute(job: Job) -> RunResult:
        if not ran:
            ran.append(on_threads(job))
        state = ran[0].state
        assert state is not None
        other = state[name].clone()
        other[entry] += 1e-3
        return replace(ran[0], state={**state, name: other})

    return [fault.text.split(" by ")[0] for fault in outcome(NO_KEY_BIAS, plan, execute, again=False).faults]


@pytest.mark.parametrize("causal", [True, False])
def test_the_key_bias_has_no_gradient(causal: bool) -> None:
    """But for round-off, where those of queries and values are large."""
    torch.manual_seed(0)
    attention = Attention(8, 2, causal).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    (attention(torch.randn(3, 5, 8, dtype=torch.float64)) ** 3).sum().backward()
    assert attention.qkv.bias.grad is not None
    query, key, value = (part.norm().item() for part in attention.qkv.bias.grad.chunk(3))
    assert key < 1e-12 * min(query, value)


REMADE = RandomRun(
    150, "mlp", 3, 1, "slow", 1, (1, 3), ((0, 1, 2),), ((0, 1, 2),), (0, 0, 0, 0), (("keep", "keep", "recompute"),),
    "momentum", "spectrain", 2, runs=1, options=(("lr", 0.05),),
)  # fmt: skip


def test_a_stash_is_made_again_from_weights_that_are_not_predicted() -> None:
    """Though its backward reads predicted ones, and the forward read the same."""
    assert outcome(REMADE, plan_of(REMADE)).faults == []


CARRIED = RandomRun(
    181, "mlp", 2, 1, "quick", 1, (), ((0,), (1,)), ((0,), (1,)), (0, 1) * 3, (("offload+weights",), ("recompute",)),
    weights="2bw", update=2, runs=1,
)  # fmt: skip


def test_weights_that_went_to_the_host_do_not_come_back_as_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch once took over the parameters' own memory, and the backward read what had been stepped meanwhile."""
    monkeypatch.setattr(rank, "place_of", lambda device, local_rank: LatePlace())
    assert outcome(CARRIED, plan_of(CARRIED), again=False).faults == []


NO_WEIGHTS = RandomRun(
    186, "mlp", 3, 1, "quick", 1, (2, 3), ((0, 1, 2),), ((0, 1, 2),), (0,) * 12,
    (("keep", "offload+weights", "keep"),), weights="2bw", update=3, runs=1,
)  # fmt: skip


def test_a_stage_without_weights_has_none_that_go_to_the_host() -> None:
    """Its backward once looked for the version that had gone with its stash on the device."""
    assert not profiled("mlp", "fp64", "graph").layers[2].parameter_bytes
    assert outcome(NO_WEIGHTS, plan_of(NO_WEIGHTS), again=False).faults == []


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw"])
def test_adaptive_optimizers_under_batch_normalisation(optimizer: str) -> None:
    """Equal in float64; in float32 they take large steps along gradients that are nothing but rounding."""
    routes = ((0, 1), (1, 0))
    case = RandomRun(9, "norm", 2, 1, "quick", 1, (3,), routes, routes, (0, 1, 0, 1), (("keep",) * 2,) * 2, optimizer)
    assert outcome(case, plan_of(case), again=False).faults == []


def test_a_lane_lets_go_of_its_work_before_it_says_that_it_is_done() -> None:
    """Else what the work held would still be alive for whoever waits for it."""
    lane, tensor, begin = Lane("a lane", CPU), torch.empty(1), threading.Event()
    held, left = weakref.ref(tensor), SimpleQueue[object]()
    done = lane.put(partial(_after, begin, tensor.numel))
    done.add_done_callback(lambda _: left.put(held()))
    del tensor
    begin.set()
    assert left.get(timeout=60) is None
    lane.close()


def _after(begin: threading.Event, work: Callable[[], int]) -> None:
    begin.wait()
    work()
