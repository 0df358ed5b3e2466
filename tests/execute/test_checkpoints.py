"""What was trained is not lost: saves while training goes on, on signals, and what is never resumed."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Case, in_threads, same_tensors, steps_saved
from torch import Tensor

from contraflow.executor.basics.checkpointing import Checkpointing
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.run import checkpoint_files, saving
from contraflow.executor.run.checkpoint import begin_at
from contraflow.executor.run.checkpoint_files import INDEX, Index, SaveError, complete
from contraflow.executor.run.result import RunResult
from contraflow.executor.run.stopping import Interrupted, Terminated

PLAN = Case("1f1b", "mlp-tiny", 2, 4)
OTHER = Case("chimera", "mlp-tiny", 2, 4)


def run(steps: int, saving: Checkpointing | None = None, case: Case = PLAN, **options: Any) -> RunResult:
    return in_threads(case, steps=steps, checkpoint=saving, **options)


def names(folder: Path) -> list[str]:
    """What is in a folder but its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != saving.LOCK)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one run. Not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    run(4, Checkpointing(str(folder), every=2))
    return folder


def copied(folder: Path, to: Path) -> Path:
    """A folder of checkpoints that may be changed."""
    import shutil

    shutil.copytree(folder, to)
    return to


# ---------------------------------------------------------------- while training goes on


def test_it_saves_every_so_many_steps_and_keeps_the_newest(tmp_path: Path) -> None:
    """And after the last; nothing half done is left, and each of them is gone on from exactly."""
    run(7, Checkpointing(str(tmp_path / "two"), every=3, keep=2))
    assert names(tmp_path / "two") == ["step-00000006", "step-00000007"]
    whole = run(7, Checkpointing(str(tmp_path / "all"), every=3))
    assert steps_saved(tmp_path / "all") == [3, 6, 7]
    for newest, left in ((7, 1), (6, 2), (3, 5)):
        rest = run(left, Checkpointing(str(copied(tmp_path / "all", tmp_path / f"from{newest}")), resume=True))
        assert rest.first_step == newest
        assert rest.losses[: 7 - newest] == whole.losses[newest:]
        checkpoint_files.discard(complete(tmp_path / "all")[-1])


def test_training_does_not_wait_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next steps run while a file is written; the one after that waits for it, so one snapshot is held at most."""
    written = checkpoint_files.write_tensors
    events: list[str] = []

    def slow(path: Path, tensors: dict[str, Tensor]) -> checkpoint_files.FileRecord:
        time.sleep(0.3)
        events.append(f"written {path.parent.name[:13]}")
        return written(path, tensors)

    monkeypatch.setattr(saving, "write_tensors", slow)
    run(8, Checkpointing(str(tmp_path), every=4), on_step=lambda step, loss, seconds: events.append(f"step {step + 1}"))
    assert events.index("step 6") < events.index("written step-00000004")
    assert steps_saved(tmp_path) == [4, 8]


def test_a_snapshot_takes_no_device_memory(tmp_path: Path) -> None:
    """The measured peak is that without saving."""
    assert run(3, Checkpointing(str(tmp_path), every=1)).peak_bytes == run(3).peak_bytes


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, Interrupted)])
def test_a_signal_ends_the_run_after_the_step_under_way(
    tmp_path: Path, number: int, raised: type[Interrupted | Terminated]
) -> None:
    """Which is saved, by all ranks the same one; what follows is as if it had not been interrupted."""

    def ask(step: int, loss: float, seconds: float) -> None:
        if step == 1:
            os.kill(os.getpid(), number)

    whole = run(40)
    with pytest.raises(raised, match=r"after step \d+, which is saved") as caught:
        run(40, Checkpointing(str(tmp_path)), on_step=ask)
    begun = caught.value.result
    assert begun is not None
    done = len(begun.losses)
    assert 2 <= done < 40
    assert steps_saved(tmp_path) == [done]
    rest = run(40 - done, Checkpointing(str(tmp_path), resume=True))
    assert begun.losses + rest.losses == whole.losses
    assert same_tensors(rest, whole)
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """What was saved before stays."""

    def ask(step: int, loss: float, seconds: float) -> None:
        if 2 in steps_saved(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(10_000, Checkpointing(str(tmp_path), every=2), on_step=ask)
    assert not isinstance(caught.value, Interrupted)
    assert steps_saved(tmp_path)[0] == 2
    assert names(tmp_path) == [path.name for path in complete(tmp_path)]


# ---------------------------------------------------------------- faults of the disk


def full(path: Path, tensors: dict[str, Tensor]) -> checkpoint_files.FileRecord:
    """Writes half of a file, and then the disk is full."""
    path.write_bytes(b"half")
    raise SaveError.of(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_a_full_disk_is_one_line_and_the_checkpoint_before_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the run, and no part of a checkpoint is left."""
    run(2, Checkpointing(str(tmp_path)))
    monkeypatch.setattr(saving, "write_tensors", full)
    line = r"cannot save .*step-00000004\.part/rank-0000[01]\.safetensors: No space left on device"
    with pytest.raises(ExecutionError, match=line):
        run(9, Checkpointing(str(tmp_path), every=2, resume=True))
    assert names(tmp_path) == ["step-00000002"]
    monkeypatch.undo()
    assert run(1, Checkpointing(str(tmp_path), resume=True)).first_step == 2


def test_a_folder_that_vanishes_or_is_a_file_is_named(tmp_path: Path) -> None:
    """It is not made anew: a file system that is gone would leave its mount point."""
    folder = tmp_path / "run"

    def remove(step: int, loss: float, seconds: float) -> None:
        if folder.exists():  # all at once, whatever is being written
            folder.rename(tmp_path / f"gone-{step}")

    with pytest.raises(ExecutionError, match=r"cannot save .*step-.*: (No such file|it is gone)"):
        run(50, Checkpointing(str(folder), every=1), on_step=remove)
    folder.write_text("")
    with pytest.raises(ExecutionError, match=r"cannot save .*run: File exists"):
        run(1, Checkpointing(str(folder)))


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    """The second is refused while the first lives, and removes nothing of it."""
    (tmp_path / "step-00000001.part").mkdir()
    lock = saving.Lock(tmp_path)
    with pytest.raises(ExecutionError, match="another run is writing checkpoints to"):
        run(1, Checkpointing(str(tmp_path)))
    assert names(tmp_path) == ["step-00000001.part"]
    lock.release()
    run(1, Checkpointing(str(tmp_path)))
    assert names(tmp_path) == ["step-00000001"]


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    """A rate so high that parameters overflow while every gradient is still finite."""
    training = Training(lr=1e38)
    with pytest.raises(ExecutionError, match=r"step-0000000\d is not saved: \S+ is not finite|NotFinite"):
        run(3, Checkpointing(str(tmp_path), every=1), training=training, data=Large())
    assert all(_finite(path) for path in complete(tmp_path))


class Large:
    """The digits, a thousand times as bright."""

    name = "large"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        from contraflow.models import load

        inputs, targets = load("digits").batch(seed, step, micro_batch, size)
        return inputs * 1e3, targets


def _finite(path: Path) -> bool:
    from safetensors.torch import load_file

    return all(bool(t.isfinite().all()) for file in path.glob("*.safetensors") for t in load_file(file).values())


# ---------------------------------------------------------------- what is not resumed


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"seed": 5}, "seed 0, not 5: give the same, or allow it with --allow-change seed"),
    ({"training": Training(lr=0.5)}, "lr 0.02, not 0.5: give the same, or allow it with --allow-change lr"),
    ({"training": Training(momentum=0.5)}, "momentum 0.9, not 0.5: .* --allow-change momentum"),
    ({"training": Training(mini_batch=7)}, "mini batch none, not 7: .* --allow-change mini-batch"),
    ({"case": Case("1f1b", "mlp-tiny", 2, 6)}, "micro batches 4, not 6: .* --allow-change micro-batches"),
    ({"case": Case("1f1b", "mlp-tiny", 2, 4, "sgd")}, "optimizer momentum, not sgd$"),
    ({"dtype": torch.float64}, "dtype float32, not float64|inputs 2x64 float32, not 2x64 float64"),
    ({"data": Large()}, "data digits, not large: .* --allow-change data"),
]


@pytest.mark.parametrize(("options", "line"), CHANGES, ids=[line.split()[0] for _, line in CHANGES])
def test_another_training_does_not_go_on_from_it(trained: Path, options: dict[str, Any], line: str) -> None:
    """One line that names the checkpoint and both values, before anything starts."""
    with pytest.raises(RunError, match=f"step-00000004 is of a run with ({line})"):
        run(1, Checkpointing(str(trained), resume=True), **options)


def test_what_is_allowed_may_differ(trained: Path, tmp_path: Path) -> None:
    """Also another plan, which needs no leave."""
    changed = Checkpointing(str(copied(trained, tmp_path / "a")), resume=True, allow=("lr", "seed"))
    assert run(1, changed, training=Training(lr=0.5), seed=3).first_step == 4
    with pytest.raises(RunError, match=r"optimizer momentum, not sgd$"):
        run(1, replace(changed, allow=("optimizer", "seed", "lr")), case=Case("1f1b", "mlp-tiny", 2, 4, "sgd"))
    assert run(1, Checkpointing(str(copied(trained, tmp_path / "b")), resume=True), case=OTHER).first_step == 4


def test_a_new_run_is_not_mixed_with_an_old_one(trained: Path) -> None:
    """Whose checkpoints are older, and would be newer than its own."""
    with pytest.raises(
        RunError, match=r"has checkpoints of another run \(the newest: step-00000004\): go on .*--resume"
    ):
        run(1, Checkpointing(str(trained)))
    assert steps_saved(trained) == [2, 4]


def test_an_old_format_is_not_unpickled(tmp_path: Path) -> None:
    """It is named as such."""
    old = tmp_path / "step-00000003"
    old.mkdir()
    (old / "contraflow.json").write_text("{}")
    (old / ".metadata").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(RunError, match=r"step-00000003 is of an older format, reading which can run code: train again"):
        run(1, Checkpointing(str(tmp_path), resume=True))


def _index(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Writes an index with something else in it, whose digest is right."""

    def forge(folder: Path) -> None:
        body = json.loads((folder / INDEX).read_text())["body"]
        change(body)
        (folder / INDEX).write_text(json.dumps({"sha256": checkpoint_files._digest_of(body), "body": body}))

    return forge


def _elsewhere(body: dict[str, Any]) -> None:
    body["files"]["../../../etc/passwd"] = body["files"].pop("rank-00000.safetensors")


def _link(folder: Path) -> None:
    (folder / "rank-00000.safetensors").rename(folder.parent / "moved")
    (folder / "rank-00000.safetensors").symlink_to(folder.parent / "moved")


def _pipe(folder: Path) -> None:
    (folder / "rank-00000.safetensors").unlink()
    os.mkfifo(folder / "rank-00000.safetensors")


def _sized(body: dict[str, Any]) -> None:
    body["files"]["rank-00000.safetensors"][0] = 1 << 50


def _scaled(body: dict[str, Any]) -> None:
    body["scaler"] = {"scale": "x\x1b[31m", "good": 0, "skipped": 0}


def _without(body: dict[str, Any]) -> None:
    del body["tensors"]["parameters/layer0/weight"]


def _deep(folder: Path) -> None:
    (folder / INDEX).write_text('{"sha256": "", "body": ' + "[" * 100_000)


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "path": (_index(_elsewhere), "'../../../etc/passwd' is no file of a checkpoint"),
    "link": (_link, "rank-00000.safetensors: Too many levels of symbolic links"),
    "pipe": (_pipe, "rank-00000.safetensors: not a regular file"),
    "size": (_index(_sized), "1125899906842624 bytes where its tensors take at most"),
    "scale": (_index(_scaled), "the loss scale is not made of numbers"),
    "missing": (_index(_without), "tensor parameters/layer0/weight is not in the checkpoint"),
    "step": (_index(lambda body: body.update(step=9)), "it is of step 9"),
    "deep": (_deep, "it is damaged"),
    "text": (lambda folder: (folder / INDEX).write_text("no"), "it is damaged"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_folders_are_refused(trained: Path, tmp_path: Path, kind: str) -> None:
    """In one line; digests that are right do not help."""
    spoil, line = HOSTILE[kind]
    folder = copied(trained, tmp_path / "run")
    spoil(folder / "step-00000004")
    with pytest.raises(RunError) as caught:
        run(1, Checkpointing(str(folder), resume=True))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_headers_of_tensor_files_are_not_believed(trained: Path, tmp_path: Path) -> None:
    """Random ones, with the digest of the index made right: refused, or the same tensors."""
    from safetensors import safe_open

    rng = random.Random(7)
    source = trained / "step-00000004" / "rank-00000.safetensors"
    content = source.read_bytes()
    length = int.from_bytes(content[:8], "little")
    with safe_open(source, framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    refused = []
    for _ in range(150):
        spoilt = bytearray(content)
        spoilt[rng.choice((rng.randrange(8), rng.randrange(8, 8 + length)))] ^= 1 << rng.randrange(8)
        path = tmp_path / "rank-00000.safetensors"
        path.write_bytes(spoilt)
        record = checkpoint_files.FileRecord(len(spoilt), checkpoint_files.hashlib.sha256(spoilt).hexdigest())
        found = [checkpoint_files.Taken(name, torch.zeros_like(tensor)) for name, tensor in kept.items()]
        try:
            checkpoint_files.read_tensors(path, record, len(spoilt), found)
        except RunError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in line for line in refused)


def test_every_flipped_bit_and_every_lost_byte_is_noticed(trained: Path, tmp_path: Path) -> None:
    """Or harmless: a flip in white space of the index. `benchmarks/reliability/checkpoints.py` tries many more."""
    rng, index = random.Random(3), Index.from_text((trained / "step-00000004" / INDEX).read_bytes())
    for k in range(60):
        name = rng.choice((INDEX, *index.files))
        content = bytearray((trained / "step-00000004" / name).read_bytes())
        if k % 3:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content)) :]
        spoilt = tmp_path / name
        spoilt.write_bytes(content)
        if name == INDEX:
            try:
                assert Index.from_text(bytes(content)) == index
            except RunError:
                continue
        else:
            with pytest.raises(RunError, match=r"it has|its digest"):
                checkpoint_files.read_tensors(spoilt, index.files[name], 1 << 30, [])


# ---------------------------------------------------------------- started again by torchrun


def test_torchrun_starts_a_run_again_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that began it: from the newest checkpoint to the end that it had; another job does not."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    options = Checkpointing(str(tmp_path), every=3)
    written = checkpoint_files.write_tensors
    with monkeypatch.context() as disk:
        sixth = lambda path: "06" in str(path.relative_to(tmp_path))  # noqa: E731
        disk.setattr(saving, "write_tensors", lambda path, t: (full if sixth(path) else written)(path, t))
        with pytest.raises(ExecutionError):
            run(10, options)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert begin_at(options, 10) == (3, 7, replace(options, resume=True))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "b")
    with pytest.raises(RunError, match="checkpoints of another run"):
        begin_at(options, 10)


# ---------------------------------------------------------------- evaluation alone


@pytest.mark.parametrize("case", [PLAN, OTHER, PLAN._replace(schedule="pipedream", weights="stash")])
def test_a_checkpoint_is_evaluated_without_training(case: Case, tmp_path: Path) -> None:
    """The held-out loss that the run had there, of the newest checkpoint; nothing is saved, and no step is taken."""
    held_out = Training(evaluate_every=2, evaluate_steps=2)
    told = run(4, Checkpointing(str(tmp_path), every=2), case, training=held_out).evaluations
    before = names(tmp_path)
    alone = run(1, Checkpointing(str(tmp_path)), case, training=Training(evaluate_steps=2), evaluate_only=True)
    assert (alone.evaluations, alone.losses, alone.first_step) == ({4: told[4]}, (), 4)
    assert names(tmp_path) == before


def test_without_a_checkpoint_the_first_parameters_are_evaluated(tmp_path: Path) -> None:
    """Whatever the plan; a trace of no step is refused, and a folder without a checkpoint."""
    found = [run(1, None, case, evaluate_only=True).evaluations for case in (PLAN, OTHER)]
    assert list(found[0]) == [0]
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    with pytest.raises(RunError, match="an evaluation takes no step"):
        run(1, None, evaluate_only=True, trace=tmp_path / "run.json")
    with pytest.raises(RunError, match="no checkpoint to resume from"):
        run(1, Checkpointing(str(tmp_path / "none")), evaluate_only=True)
