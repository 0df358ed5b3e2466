"""Ops pause for the threads that carry messages where ranks have cores of their own, and compute the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from traced_stages import layers_of

from contraflow.executor.place import cores
from contraflow.executor.stage import Building, build_program, pause, pauses
from contraflow.executor.stage.program import StageProgram
from contraflow.executor.wires import carriers
from contraflow.executor.wires.loopback import ranks_here

WIDE, NARROW = 256, 8


def built(
    width: int, paused: bool, monkeypatch: pytest.MonkeyPatch, seen: list[None]
) -> tuple[StageProgram, dict[str, Tensor], Tensor]:
    monkeypatch.setattr(pauses, "pause", lambda: seen.append(None))
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3)]
    x = torch.randn(32, width)
    layers = layers_of(modules, (1, 2, 3), x)
    program, _ = build_program(layers, x, None, Building("graph", pauses=paused))
    assert isinstance(program, StageProgram)
    parameters = {
        f"{i}.{name}": p.detach() for i, m in zip((1, 2, 3), modules, strict=True) for name, p in m.named_parameters()
    }
    return program, parameters, x


def trained(program: StageProgram, parameters: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """An output and all gradients, of B and of I and W."""
    found = []
    for halves in (False, True):
        sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
        output, stash = program.forward(parameters, {}, x)
        assert isinstance(output, Tensor)
        if halves:
            grad, weights = program.backward_input(stash, parameters, torch.ones_like(output))
            program.backward_weight(weights, sums)
        else:
            grad = program.backward(stash, parameters, torch.ones_like(output), sums)
        assert isinstance(grad, Tensor)
        found += [output, grad, *sums.values()]
    return found


def test_an_op_pauses_between_operators_and_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as often as a layer of this width is long; its code, by which ranks agree, is as without."""
    seen: list[None] = []
    with_them, parameters, x = built(WIDE, True, monkeypatch, seen)
    found = trained(with_them, parameters, x)
    assert len(seen) >= 2 * 3 * 3  # in F and in B or I and W, at every layer
    seen.clear()
    without, *_ = built(WIDE, False, monkeypatch, seen)
    assert all(map(torch.equal, found, trained(without, parameters, x)))
    assert seen == []
    assert with_them.code == without.code


def test_ops_of_microseconds_do_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pauses between them."""
    seen: list[None] = []
    program, parameters, x = built(NARROW, True, monkeypatch, seen)
    trained(program, parameters, x)
    assert seen == []


def test_a_pause_is_the_systems() -> None:
    """Costs nothing where nobody waits, and exists everywhere."""
    pause()
    assert pause is getattr(os, "sched_yield", pause)
    assert cores() >= 1


def test_ranks_of_this_machine_are_those_torchrun_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job on several machines."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert ranks_here() == 3


RANK = """
import os, sys, threading
import torch.distributed as dist
from contraflow.executor.wires.carriers import step_back
from contraflow.executor.wires.transport import GlooTransport

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)

def batch():
    return sum(os.sched_getscheduler(int(task)) == os.SCHED_BATCH for task in os.listdir("/proc/self/task"))

before, transport = batch(), GlooTransport({})
print(before, batch(), os.sched_getscheduler(threading.get_native_id()) == os.SCHED_BATCH)
transport.close()
print(batch(), step_back(), batch())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has batch threads")
def test_the_thread_that_carries_messages_steps_back_and_no_other(tmp_path: Path) -> None:
    """As soon as a rank has wires, and only as long as it has them."""
    command, local = [sys.executable, "-c", RANK, str(tmp_path / "store")], os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=local) for rank in (0, 1)]
    said = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    assert said == [["0", "1", "False", "0", "1", "1"]] * 2


def test_systems_that_do_not_tell_or_let_leave_it_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list of threads, one that has ended, and one that may not be changed."""
    monkeypatch.setattr(carriers, "_TASKS", tmp_path / "none")
    assert carriers.step_back() == 0
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "comm").write_text("gloo_tcp_loop\n")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    monkeypatch.setattr(carriers, "_TASKS", tmp_path)
    assert carriers.step_back() == 0
