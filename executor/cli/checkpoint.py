"""The options of `contraflow execute` that say when to save and what to go on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..basics import Checkpointing

_OPTIONS = (
    click.option(
        "--checkpoint",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Save there at the end, and on SIGTERM and Ctrl-C.",
    ),
    click.option("--checkpoint-every", type=click.IntRange(min=1), metavar="N", help="Save after every N steps too."),
    click.option(
        "--keep", type=click.IntRange(min=1), metavar="K", help="Keep the newest K checkpoints. [default: all]"
    ),
    click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in DIR, whatever plan made it."),
    click.option(
        "--allow-change",
        multiple=True,
        metavar="NAME",
        help="Resume although NAME (seed, lr, ...) is not what it was.",
    ),
)


def checkpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command; `checkpointing_of` takes their values back out of its keywords."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def checkpointing_of(options: dict[str, Any]) -> Checkpointing | None:
    """Removes the options' values from `options`. Raises click.UsageError for any without --checkpoint."""
    folder, every, keep = (options.pop(name) for name in ("checkpoint", "checkpoint_every", "keep"))
    resume, allow = options.pop("resume"), options.pop("allow_change")
    if folder is not None:
        return Checkpointing(str(folder), every or 0, keep, resume, tuple(allow))
    given = {"--resume": resume, "--checkpoint-every": every, "--keep": keep, "--allow-change": allow}
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{name} needs --checkpoint DIR")
    return None
