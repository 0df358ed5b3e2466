"""`contraflow env`: what it says, what it must never say, and machines on which torch does not work."""

from __future__ import annotations

import getpass
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from contraflow.__main__ import cli
from contraflow.executor.measure import environment

FAKES = {
    "raises": ("raise ImportError('libgomp.so.1: not found')", "libgomp.so.1: not found"),
    "crashes": ("import os\nos.abort()", "exit code -6"),
    "hangs": ("import time\ntime.sleep(60)", "not imported in time"),
}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started."""
    monkeypatch.setattr(environment, "_probe", lambda name: None)


@pytest.mark.long
def test_it_says_versions_limits_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, as text and as JSON; the topics are a contract with whoever reads reports."""
    monkeypatch.setattr(environment, "PROBE_S", 60)
    found: dict[str, Any] = json.loads(CliRunner().invoke(cli, ["env", "--json"]).output)
    assert set(found) == {
        *("contraflow", "python", "packages", "system", "memory", "variables", "kernels", "torch", "data"),
    }
    assert found["packages"]["ortools"]
    assert found["system"]["cores_allowed"] >= 1
    assert found["memory"]["total_bytes"] > 1 << 28
    assert found["torch"]["gloo"] is True
    assert set(found["kernels"]) == {"cache", "warm", "writable"}
    assert set(found["data"]) == {"fashion-mnist", "mnist-5k", "reviews", "verses"}


@pytest.mark.usefixtures("quiet")
def test_no_secrets_and_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only variables of the list, and no home folder or user in their values."""
    monkeypatch.setenv("API_TOKEN", "s3cret")
    monkeypatch.setenv("CONTRAFLOW_TOKEN", "s3cret")
    monkeypatch.setenv("CONTRAFLOW_DATA", f"{Path.home()}/sets")
    monkeypatch.setenv("NUMBA_CACHE_DIR", f"/scratch/{getpass.getuser()}/cache")
    result = CliRunner().invoke(cli, ["env"])
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert "CONTRAFLOW_DATA: ~/sets" in result.output
    assert "NUMBA_CACHE_DIR: /scratch/USER/cache" in result.output
    assert str(Path.home()) not in result.output


@pytest.mark.parametrize("kind", FAKES)
def test_a_torch_that_does_not_work_is_part_of_the_report(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is said all the same, and soon."""
    text, error = FAKES[kind]
    (tmp_path / "torch.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    probe = environment._probe
    monkeypatch.setattr(environment, "_probe", lambda name: probe(name) if name == "torch" else None)
    started = time.monotonic()
    found = environment.report(seconds=2 if kind == "hangs" else 60)
    assert error in found["torch"]["error"]
    assert found["packages"]["numpy"]
    assert time.monotonic() - started < 40, "the fake sleeps for 60 s"


@pytest.mark.usefixtures("quiet")
def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so."""
    assert environment.report()["torch"] == {"error": "not installed"}
