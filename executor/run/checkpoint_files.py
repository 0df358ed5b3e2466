"""The files of one checkpoint: tensors by rank as safetensors, and an index with a digest of every byte.

    step-00000010/checkpoint.json           what it is of, and bytes and SHA-256 of every other file; its own digest
    step-00000010/rank-00000.safetensors    tensors by name, each in one file
    step-00000020.part/                     not complete: to be removed

Nothing here is unpickled, and nothing is read but regular files of this folder with names made here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..basics import ExecutionError, RunError
from .identity import RunIdentity

FORMAT = 2
INDEX = "checkpoint.json"
INDEX_BYTES = 256 << 20
"""No index is larger."""
_OLD_INDEX = "contraflow.json"
_COMPLETE = re.compile(r"step-(\d{8})")
_LEFT_OVER = re.compile(r"step-\d{8}\.(part|gone)")
_FILE = re.compile(r"rank-\d{5}\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class SaveError(ExecutionError):
    """A checkpoint cannot be written; names the file and why."""

    @classmethod
    def of(cls, path: str | Path, error: Exception) -> SaveError:
        """From what writing raised."""
        if isinstance(error, OSError) and error.strerror:
            return cls(f"cannot save {error.filename or path}: {error.strerror}")
        return cls(f"cannot save {path}: {_first_line(error)}")


class FileRecord(NamedTuple):
    """What a file must be."""

    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What a checkpoint is of, and where its tensors are.

    Attributes:
        run: the same for all checkpoints of one training.
        step: how many steps were taken. scaler: see `LossScaler.to_dict`.
        files: by name. tensors: the file of every tensor by its name.
    """

    run: str
    step: int
    identity: RunIdentity
    scaler: Mapping[str, float | int]
    files: Mapping[str, FileRecord]
    tensors: Mapping[str, str]

    def to_text(self) -> str:
        """As the file has it."""
        body = {
            "format": FORMAT,
            "run": self.run,
            "step": self.step,
            "identity": self.identity.to_dict(),
            "scaler": dict(self.scaler),
            "files": {name: list(record) for name, record in self.files.items()},
            "tensors": dict(self.tensors),
        }
        return json.dumps({"sha256": _digest_of(body), "body": body}) + "\n"

    @classmethod
    def from_text(cls, text: bytes) -> Index:
        """Raises RunError: not what `to_text` wrote."""
        try:
            content = json.loads(text)
            digest, body = content["sha256"], content["body"]
            if digest != _digest_of(body):
                raise RunError("its digest is not that of its content: it is damaged")
            if body["format"] != FORMAT:
                raise RunError(f"format {body['format']!r} is unknown")
            files = {name: FileRecord(*record) for name, record in body["files"].items()}
            index = cls(
                body["run"], body["step"], RunIdentity.from_dict(body["identity"]), body["scaler"], files,
                body["tensors"],
            )  # fmt: skip
        except RunError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"it is damaged ({type(error).__name__})") from None
        index._check()
        return index

    def _check(self) -> None:
        """Raises RunError: values of the wrong type, or names of files that are none of a checkpoint's."""
        for name, record in self.files.items():
            if not _FILE.fullmatch(name):
                raise RunError(f"{name[:80]!r} is no file of a checkpoint")
            if not _whole(record.nbytes) or not isinstance(record.sha256, str) or not _DIGEST.fullmatch(record.sha256):
                raise RunError(f"bytes and digest of {name} are not given")
        if not isinstance(self.run, str) or not _whole(self.step):
            raise RunError("run or step are not given")
        if not all(isinstance(file, str) and file in self.files for file in self.tensors.values()):
            raise RunError("tensors are in files that are not listed")
        if not all(_number(value) for value in self.scaler.values()):
            raise RunError("the loss scale is not made of numbers")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300


def _digest_of(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


# ---------------------------------------------------------------- folders


def folder_of(directory: str | Path, step: int) -> Path:
    """The folder of the checkpoint after so many steps."""
    return Path(directory) / f"step-{step:08d}"


def complete(directory: str | Path) -> list[Path]:
    """All complete checkpoints, the oldest first."""
    folder = Path(directory)
    found = [path for path in folder.iterdir() if _COMPLETE.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found)


def sweep(directory: str | Path) -> None:
    """Removes what saves that did not end have left."""
    folder = Path(directory)
    for path in folder.iterdir() if folder.is_dir() else ():
        if _LEFT_OVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Removes a checkpoint: under its name it is there as a whole or not at all."""
    gone = path.with_name(f"{path.name}.gone")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


# ---------------------------------------------------------------- writing


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> FileRecord:
    """Writes a file of tensors in the host's memory, down to the disk. Raises SaveError."""
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path)
        path.chmod(mode)  # of any new file, not of a private one
        with path.open("rb") as file:
            os.fsync(file.fileno())
            return FileRecord(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())
    except (OSError, SafetensorError) as error:
        raise SaveError.of(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Writes a small file, down to the disk; there as a whole or not at all. Raises SaveError."""
    partial = path.with_name(f"{path.name}.new")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise SaveError.of(path, error) from None


def commit(part: Path, target: Path, index: Index) -> None:
    """Makes a folder with all files of tensors a complete checkpoint. Raises SaveError."""
    write_text(part / INDEX, index.to_text())
    try:
        for path in part.iterdir():
            if path.name not in (INDEX, *index.files):
                path.unlink()
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise SaveError.of(target, error) from None


def _sync(folder: Path) -> None:
    """Down to the disk, what is in a folder by name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---------------------------------------------------------------- reading


def read_index(path: Path) -> Index:
    """The index of a checkpoint's folder. Raises RunError naming it: damaged, of an older format, or none at all."""
    if path.is_symlink():
        raise RunError(f"{path} is a symbolic link, not a checkpoint")
    if not (path / INDEX).exists() and (path / _OLD_INDEX).exists():
        raise RunError(f"{path} is of an older format, reading which can run code: train again")
    try:
        with _opened(path / INDEX) as file:
            if os.fstat(file.fileno()).st_size > INDEX_BYTES:
                raise RunError(f"more than {INDEX_BYTES} bytes")
            index = Index.from_text(file.read(INDEX_BYTES))
        if path.name != folder_of("", index.step).name:
            raise RunError(f"it is of step {index.step}")
    except (OSError, RunError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"cannot resume from {path / INDEX}: {reason}") from None
    return index


def _opened(path: Path) -> BufferedReader:
    """A regular file, not followed where it is a link. Raises OSError or RunError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunError("not a regular file")
    return os.fdopen(handle, "rb")


class Taken(NamedTuple):
    """A tensor of a file, or so many elements of it from `there` on, for elements from `here` on of another.

    number: None: all of it, which is alike.
    """

    name: str
    target: Tensor
    here: int = 0
    there: int = 0
    number: int | None = None


def read_tensors(path: Path, record: FileRecord, most_bytes: int, wanted: Sequence[Taken]) -> None:
    """Copies tensors of a file into those that want them, once all its bytes are known to be what was written.

    Raises RunError naming the file: more than `most_bytes`, damaged, or tensors of another shape or type.
    """
    try:
        if record.nbytes > most_bytes:
            raise RunError(f"{record.nbytes} bytes where its tensors take at most {most_bytes}")
        with _opened(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != record.nbytes:
                raise RunError(f"it has {found} bytes, {record.nbytes} were written")
            if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                raise RunError("its digest is not that of what was written: it is damaged")
        with safe_open(path, framework="pt") as tensors:
            for taken in wanted:
                _copy(taken, tensors.get_tensor(taken.name))
    except (OSError, SafetensorError, RunError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else _first_line(error)
        raise RunError(f"cannot resume from {path}: {reason}") from None


def _copy(taken: Taken, kept: Tensor) -> None:
    name, target, here, there, count = taken
    ends = there + (count or 0)
    if kept.dtype != target.dtype or (kept.shape != target.shape if count is None else kept.numel() < ends):
        raise RunError(
            f"{name} is {tuple(kept.shape)} {kept.dtype} there and {tuple(target.shape)} {target.dtype} in this run"
        )
    if count is None:
        target.copy_(kept)
        return
    flat = target.reshape(-1)
    flat[here : here + count] = kept.reshape(-1)[there:ends]
    if flat.data_ptr() != target.data_ptr():  # its elements are not in a row
        target.copy_(flat.view(target.shape))
