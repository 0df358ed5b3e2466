"""What a bug report should say of the machine: versions, limits, devices. No secrets, and no names of people.

Nothing here imports torch: `probe` does, in a process that may fail.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__

PACKAGES = ("torch", "ortools", "numba", "numpy", "networkx", "click", "rich", "scikit-learn")
VARIABLES = (
    *("CONTRAFLOW_DATA", "CONTRAFLOW_SYSTEM_DATA", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS"),
    *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "LOCAL_RANK", "MKL_NUM_THREADS", "NCCL_DEBUG", "NCCL_P2P_DISABLE"),
    *("NCCL_SOCKET_IFNAME", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"),
    *("PYTHONDONTWRITEBYTECODE", "PYTORCH_CUDA_ALLOC_CONF", "RANK", "WORLD_SIZE"),
)
"""The only environment variables that are reported."""
PROBE_S = 4.0
"""Seconds that imports may take."""


def report(seconds: float | None = None) -> dict[str, Any]:
    """Everything, JSON-compatible; what cannot be found out in `seconds` (PROBE_S) is None or an "error"."""
    until = time.monotonic() + (PROBE_S if seconds is None else seconds)
    probes = {name: _probe(name) for name in ("kernels", "torch")}
    found: dict[str, Any] = {
        "contraflow": {"version": __version__, "commit": _commit(Path(__file__).parents[2])},
        "python": {"version": platform.python_version(), "build": platform.python_implementation()},
        "packages": {name: _version(name) for name in PACKAGES},
        "system": {"os": platform.platform(), "cpu": _cpu(), **_cores()},
        "memory": {**_memory(), **_cgroup(), "shm_bytes": _shared_memory()},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    for name, probe in probes.items():
        found |= _answers(name, probe, max(0.1, until - time.monotonic()))
    shortened = _anonymous(found)
    assert isinstance(shortened, dict)
    return shortened


def _probe(name: str) -> subprocess.Popen[str] | None:
    if name == "torch" and _version("torch") is None:
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.probe", name],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answers(name: str, probe: subprocess.Popen[str] | None, seconds: float) -> dict[str, Any]:
    """What the probe has printed, after `seconds` at most; its name with an "error" where it printed nothing."""
    if probe is None:
        return {name: {"error": "not installed"}}
    try:
        printed, complaints = probe.communicate(timeout=seconds)
        error = (complaints.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        probe.kill()
        printed, error = probe.communicate()[0], "not imported in time"
    found: dict[str, Any] = {name: {"error": error}}
    for line in printed.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def _commit(root: Path) -> str | None:
    """The commit of a checkout, with "+" where files were changed; None: this is none."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    try:
        short, changed = (
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=1, check=True
            ).stdout
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return short.strip() + "+" * bool(changed.strip())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's model."""
    for line in _text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> dict[str, Any]:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    quota = _text("/sys/fs/cgroup/cpu.max").split()
    limit = int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdecimal() else None
    return {"cores": os.cpu_count(), "cores_allowed": allowed, "cores_cgroup": limit}


def memory_bytes() -> int:
    """Physical memory, or what the control group allows of it."""
    whole, allowed = _memory()["total_bytes"], _cgroup()["cgroup_bytes"]
    return min(size for size in (whole, allowed, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if size)


def _memory() -> dict[str, int | None]:
    lines = (line.split() for line in _text("/proc/meminfo").splitlines())
    size = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}
    return {"total_bytes": size.get("MemTotal"), "available_bytes": size.get("MemAvailable")}


def _cgroup() -> dict[str, int | None]:
    """The limit of the control group, version 2 or 1; None: there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if (text := _text(path).strip()).isdecimal() and int(text) < 1 << 60:
            return {"cgroup_bytes": int(text)}
    return {"cgroup_bytes": None}


def _shared_memory() -> int | None:
    """Bytes of /dev/shm, through which processes share tensors."""
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _anonymous(found: Any) -> Any:
    """With ~ for the home folder and USER for the user's name in every path."""
    if isinstance(found, dict):
        return {key: _anonymous(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_anonymous(value) for value in found]
    if not isinstance(found, str) or "/" not in found:
        return found
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (OSError, KeyError, RuntimeError):
        return found
    if home != "/":
        found = re.sub(rf"(?<![^\s:='\"]){re.escape(home)}(?![^/\s:'\"])", "~", found)
    return "/".join("USER" if part == user else part for part in found.split("/"))
