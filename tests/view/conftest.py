"""Files that the tests of commands begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import CLUSTER
from pictures import chain, two_device_plan

from contraflow.planner.plan_file import save_plan


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a model.json of four equal layers, a cluster.toml of two devices, a plan in good.json."""
    monkeypatch.chdir(tmp_path)
    chain(4).save(tmp_path / "model.json")
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    save_plan(two_device_plan(), tmp_path / "good.json")
    return tmp_path
