"""What -o writes to stays what it is: links, devices, pipes, modes; an earlier file survives whatever goes wrong."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import CLUSTER
from instances import uniform
from pictures import two_device_plan

from contraflow.__main__ import cli
from contraflow.planner.basics import files
from contraflow.planner.basics.files import refusal, write_bytes, write_text
from contraflow.planner.plan_file import load_plan, save_plan


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    """A chain of relative links into another folder, and one whose target is not there yet."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "real").write_text("old")
    (tmp_path / "second").symlink_to("kept/real")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "new").symlink_to(tmp_path / "kept" / "made")
    write_text(tmp_path / "first", "content")
    write_text(tmp_path / "new", "more")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "new").is_symlink()
    assert (tmp_path / "kept" / "real").read_text() == "content"
    assert (tmp_path / "kept" / "made").read_text() == "more"
    assert names(tmp_path / "kept") == {"real", "made"}


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "links" in (refusal(tmp_path / "a") or "")
    with pytest.raises(OSError, match="links"):
        write_text(tmp_path / "a", "x")


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """Its reader gets all of it, more than a pipe holds."""
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_bytes(pipe, b"x" * 200_000)
    reader.join(60)
    assert found == [b"x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert refusal(pipe) is None
    assert names(tmp_path) == {"pipe"}


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """A node like /dev/null, where one can be made."""
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EACCES)  # noqa: PT017
        assert refusal("/dev/null") is None
        return
    write_text(node, "content")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert names(tmp_path) == {"null"}


def test_modes_are_kept_and_new_files_obey_the_umask(tmp_path: Path) -> None:
    """0600 stays 0600, and is never readable for others on the way."""
    secret, script = tmp_path / "secret", tmp_path / "script"
    for path, bits in ((secret, 0o600), (script, 0o750)):
        path.write_text("old")
        path.chmod(bits)
        write_text(path, "new")
        assert (path.read_text(), mode(path)) == ("new", bits)
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "made", "new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "made") == 0o640


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_failure_leaves_the_earlier_file(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full: the old content, no other file, and one line with exit code 2."""
    save_plan(two_device_plan(), tmp_path / "good.json")
    (tmp_path / "plan.svg").write_text("old")
    real = getattr(os, fails)

    def full(handle: int, *rest: Any) -> Any:
        if ".part" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "plan.svg"))
        return real(handle, *rest)

    monkeypatch.setattr(files.os, fails, full)
    shown = ["show", str(tmp_path / "good.json"), "--as", "svg", "-o", str(tmp_path / "plan.svg")]
    result = CliRunner().invoke(cli, shown)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "No space left" in result.stderr
    assert (tmp_path / "plan.svg").read_text() == "old"
    assert names(tmp_path) == {"good.json", "plan.svg"}


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    """As long as file systems take."""
    write_text(tmp_path / ("n" * 250), "content")
    assert names(tmp_path) == {"n" * 250}


@pytest.mark.parametrize("redirected", [True, False])
def test_o_takes_stdout(tmp_path: Path, redirected: bool) -> None:
    """`-o /dev/stdout`, into a pipe and into a file that already has content."""
    save_plan(two_device_plan(), tmp_path / "good.json")
    code = "from contraflow.__main__ import main; main()"
    command = [sys.executable, "-c", code, "show", "good.json", "--as", "svg", "-o", "/dev/stdout"]
    with (tmp_path / "log").open("wb", buffering=0) as log:
        log.write(b"before\n")
        where: Any = log if redirected else subprocess.PIPE
        found = subprocess.run(command, cwd=tmp_path, stdout=where, stderr=subprocess.PIPE, check=True, timeout=120)
    text = (tmp_path / "log").read_text().removeprefix("before\n") if redirected else found.stdout.decode()
    assert text.startswith("<svg")
    assert text.endswith("</svg>\n")


# ---------------------------------------------------------------- plan without -o


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`plan` of a named schedule in the current folder, without -o."""
    monkeypatch.chdir(tmp_path)
    uniform(2, parameter_bytes=1).save("model.json")
    Path("cluster.toml").write_text(CLUSTER)
    return ["plan", "model.json", "--cluster", "cluster.toml", "--micro-batches", "2", "--schedule", "1f1b"]


def test_plan_without_o_writes_plan_json_here(asked: list[str]) -> None:
    """It says so, and replaces a plan that is there."""
    for _ in range(2):
        result = CliRunner().invoke(cli, asked)
        assert result.exit_code == 0, result.output
        assert "wrote plan.json" in result.stderr
        assert "2 stages on 2 devices" in result.stdout
    assert load_plan("plan.json").provenance.source == "1f1b"


@pytest.mark.parametrize("there", ["mine", '{"format": "contraflow/model"}', ""])
def test_a_plan_json_of_somebody_else_is_refused_before_the_search(asked: list[str], there: str) -> None:
    Path("plan.json").write_text(there)
    asked[asked.index("1f1b")] = "search"
    result = CliRunner().invoke(cli, asked)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "plan.json is there and is no plan" in result.stderr
    assert Path("plan.json").read_text() == there


def test_a_folder_that_cannot_be_written_is_refused_before_the_search(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the answer is simulated."""
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    result = CliRunner().invoke(cli, asked)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give -o FILE" in result.stderr


def test_a_schedule_and_a_method_that_contradict_each_other_are_refused(asked: list[str]) -> None:
    """With both names; a method among several that fits is taken."""
    asked[asked.index("1f1b")] = "pipedream"
    result = CliRunner().invoke(cli, [*asked, "--asynchronous", "2bw"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'pipedream'" in result.stderr
    assert "'2bw'" in result.stderr
    assert CliRunner().invoke(cli, [*asked, "--asynchronous", "2bw,stash"]).exit_code == 0
    assert load_plan("plan.json").weights == "stash"
