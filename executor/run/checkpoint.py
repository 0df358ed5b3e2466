"""What a run may go on from, and going on from it: another plan of the same training does."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..basics import INITIAL_SCALE, Checkpointing, ExecutionError, RunError
from ..state import Piece, piece_of
from .checkpoint_files import Index, Taken, complete, folder_of, read_index, read_tensors
from .identity import RunIdentity, differences
from .wholes import Wholes

RUN = "run.json"
"""Which run writes into a folder, for a launcher that starts it again."""
_FREE = ("plan", "model", "evaluate_every", "evaluate_steps", "on_nan")
"""What a run that goes on may have otherwise: its results are the same but for round-off."""
_FIXED = ("model_fingerprint", "dtype", "precision", "optimizer")
"""What tensors depend on: no permission makes them fit."""
_HEADER_BYTES = 1 << 20
_NAME_BYTES = 1 << 10  # of a file's header, for each tensor


def newest(directory: str | Path) -> Path:
    """The folder of the newest complete checkpoint; raises RunError when there is none."""
    found = complete(directory)
    if not found:
        raise RunError(f"there is no checkpoint to resume from in {directory}")
    return found[-1]


def require_unused(directory: str | Path) -> None:
    """Raises RunError where a run that begins anew would mix its checkpoints with those of another."""
    found = complete(directory)
    if found:
        raise RunError(
            f"{directory} has checkpoints of another run (the newest: {found[-1].name}): "
            "go on from it with --resume, or give another directory"
        )


def begin_at(options: Checkpointing | None, steps: int) -> tuple[int, int, Checkpointing | None]:
    """The step to begin at, how many to take, and the options, which resume where torchrun has started a run again.

    Raises RunError: nothing to resume from, or a new run where there is another.
    """
    if options is None:
        return 0, steps, None
    before = restarted(options)
    if before is not None:
        if not complete(options.folder):
            return 0, steps, options
        first = read_index(newest(options.folder)).step
        if before["end"] <= first:
            raise RunError(f"{options.folder}: the run had ended at step {first} before it was started again")
        return first, before["end"] - first, replace(options, resume=True)
    if options.resume:
        return read_index(newest(options.folder)).step, steps, options
    require_unused(options.folder)
    return 0, steps, options


def check_resumable(options: Checkpointing, step: int, identity: RunIdentity) -> None:
    """Raises RunError where a checkpoint is not of the same training; names what differs and both values."""
    path = folder_of(options.folder, step)
    kept = _flat(read_index(path).identity)
    for found in differences(kept, _flat(identity)):
        name, fixed = found.name.replace("_", "-"), found.name in _FIXED
        if found.name in _FREE or (name in options.allow and not fixed):
            continue
        way = "" if fixed else f": give the same, or allow it with --allow-change {name}"
        what = found.name.replace("_", " ")
        raise RunError(f"{path} is of a run with {what} {_short(found.mine)}, not {_short(found.theirs)}{way}")


def _flat(identity: RunIdentity) -> dict[str, object]:
    content = identity.to_dict()
    options: dict[str, object] = content.pop("training")
    return content | options


def _short(text: str) -> str:
    """For a line of text, whatever a file says."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])


# ---------------------------------------------------------------- tensors by name


class Entry(NamedTuple):
    """A tensor that a run keeps: its type and shape, and the rank that saves it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    saver: int

    @property
    def numel(self) -> int:
        """Its elements."""
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return self.dtype.itemsize * self.numel


@dataclass(frozen=True)
class Inventory:
    """Every tensor of a training by name: the same whatever the plan, but for who saves it.

    What replicas share out is there by pieces (see `executor.state.Piece`).
    """

    entries: Mapping[str, Entry]

    @classmethod
    def gather(cls, wholes: Wholes, state: Mapping[str, Tensor]) -> Inventory:
        """Of what every rank can save; collective. Where several can, the one with the least to save does.

        Ranks of a team can save what their device has.

        Raises ExecutionError: ranks have tensors of one name, but of another shape or type.
        """
        transport, size = wholes.transport, wholes.transport.seat.size
        mine = {wholes.name(key): (tensor.dtype, wholes.shape(key, tensor)) for key, tensor in state.items()}
        holders: dict[str, list[int]] = {}
        kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for device, theirs in enumerate(transport.all_gather_object(mine)):
            rank = device * size
            for name, kind in theirs.items():
                holders.setdefault(name, []).extend(range(rank, rank + size))
                if kinds.setdefault(name, kind) != kind:
                    raise ExecutionError(f"{name} is {kinds[name]} on rank {holders[name][0]}, {kind} on rank {rank}")
        load = [0] * (transport.world_size * size)
        entries = {}
        for name in sorted(kinds):
            entry = Entry(*kinds[name], min(holders[name], key=lambda rank: (load[rank], rank)))
            load[entry.saver] += entry.nbytes
            entries[name] = entry
        return cls(entries)

    def saved_by(self, rank: int) -> list[str]:
        """Names of the tensors that a rank saves."""
        return [name for name, entry in self.entries.items() if entry.saver == rank]

    @property
    def savers(self) -> list[int]:
        """Ranks that save anything."""
        return sorted({entry.saver for entry in self.entries.values()})

    @cached_property
    def whole(self) -> dict[str, Entry]:
        """The tensors themselves, pieces put together."""
        found = {}
        for key, entry in self.entries.items():
            name, piece = piece_of(key)
            found[name] = entry if piece is None else entry._replace(shape=piece.shape)
        return found

    def most_bytes(self, names: list[str]) -> int:
        """What a file with these tensors, or pieces of them, has at most, its header included."""
        return _HEADER_BYTES + sum(self._bytes(name) + _NAME_BYTES + 2 * len(name) for name in names)

    def _bytes(self, key: str) -> int:
        name, piece = piece_of(key)
        entry = self.whole[name]
        return entry.nbytes if piece is None else min(entry.nbytes, (piece.stop - piece.first) * entry.dtype.itemsize)


def load(directory: str | Path, step: int, state: Mapping[str, Tensor], inventory: Inventory, wholes: Wholes) -> Index:
    """Loads a checkpoint into a rank's tensors, in place; whoever saved which pieces of them.

    Raises RunError: damaged, or other tensors than the run's.
    """
    path = folder_of(directory, step)
    index = read_index(path)
    kept: dict[str, list[tuple[str, Piece | None]]] = {}
    names: dict[str, list[str]] = {}
    for key, file in index.tensors.items():
        name, piece = piece_of(key)
        kept.setdefault(name, []).append((key, piece))
        names.setdefault(file, []).append(key)
    if odd := sorted(kept.keys() ^ inventory.whole.keys()):
        where = "not in the checkpoint" if odd[0] in inventory.whole else "only in the checkpoint"
        raise RunError(f"cannot resume from {path}: tensor {_short(odd[0])} is {where}")
    wanted: dict[str, list[Taken]] = {}
    read = wholes.targets(state)
    for key, target in read.items():
        for taken in _taken(path, key, target, kept, inventory):
            wanted.setdefault(index.tensors[taken.name], []).append(taken)
    for file in sorted(wanted):
        read_tensors(path / file, index.files[file], inventory.most_bytes(names[file]), wanted[file])
    wholes.keep(state, read)
    return index


def _taken(
    path: Path,
    key: str,
    target: Tensor,
    kept: Mapping[str, list[tuple[str, Piece | None]]],
    inventory: Inventory,
) -> Iterator[Taken]:
    """What is read into one of a rank's tensors or pieces. Raises RunError where it is not all there."""
    name, mine = piece_of(key)
    entry = inventory.whole[name]
    own = mine or Piece(0, entry.numel, entry.shape)
    found = 0
    for source, piece in kept[name]:
        if piece is None and mine is None:
            yield Taken(source, target)
            return
        there = piece or Piece(0, entry.numel, entry.shape)
        first, stop = max(own.first, there.first), min(own.stop, there.stop)
        if there.shape != entry.shape:
            raise RunError(
                f"cannot resume from {path}: {_short(name)} is {there.shape} there and {entry.shape} in this run"
            )
        if first < stop:
            found += stop - first
            yield Taken(source, target, first - own.first, first - there.first, stop - first)
    if found != own.stop - own.first:
        lacks = f"{found} of {own.stop - own.first} elements of {_short(name)} are there"
        raise RunError(f"cannot resume from {path}: {lacks}")


def kept_scaler(index: Index) -> dict[str, float | int]:
    """The loss scale's state; as at the beginning where a constant one was not kept."""
    return {"scale": INITIAL_SCALE, "good": 0, "skipped": 0, **index.scaler}


# ---------------------------------------------------------------- started again by a launcher


def launched() -> str | None:
    """What torchrun's attempts of one job have in common on this machine, None: nothing that is known."""
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ:
        return None
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return job if job not in ("", "none") else f"{socket.gethostname()} {os.getppid()}"


def restarted(options: Checkpointing) -> dict[str, Any] | None:
    """What `announce` left when an earlier attempt of this torchrun job began; None: this is no restart."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) < 1:
        return None
    try:
        kept: dict[str, Any] = json.loads((Path(options.folder) / RUN).read_text())
        return kept if kept["launch"] == launched() and int(kept["end"]) > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
