"""When and where a run saves what it has trained, and what it goes on from. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .errors import RunError
from .option_fields import Form, option


@dataclass(frozen=True)
class Checkpointing:
    """A folder of checkpoints.

    A run saves there after its last step, and after the step under way when SIGTERM or Ctrl-C asks it to end.

    Attributes:
        folder: of one training: a run that does not resume is refused where there are checkpoints already.
        every: steps (updates) between saves, counted from the very first; 0: only at the end. The pipeline of an
            asynchronous plan is drained for each.
        keep: so many of the newest checkpoints stay, None: all.
        resume: go on from the newest one.
        allow: what may differ from the run that made it, by the names that a refusal gives ("seed", "lr").

    Raises RunError.
    """

    folder: str = field(
        metadata=option(
            "Save there at the end, and on SIGTERM and Ctrl-C.", flag="checkpoint", form=Form.FOLDER, metavar="DIR"
        )
    )
    every: int = field(
        default=0, metadata=option("Save after every N steps too.", flag="checkpoint-every", least=1, metavar="N")
    )
    keep: int | None = field(
        default=None, metadata=option("Keep the newest K checkpoints. [default: all]", least=1, metavar="K")
    )
    resume: bool = field(
        default=False, metadata=option("Go on from the newest checkpoint in DIR, whatever plan made it.")
    )
    allow: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Resume although NAME (seed, lr, ...) is not what it was.",
            flag="allow-change",
            form=Form.TEXTS,
            metavar="NAME",
        ),
    )

    def __post_init__(self) -> None:
        for name, count, least in (("checkpoint every", self.every, 0), ("keep", self.keep, 1)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
                raise RunError(f"{name} must be a whole number of at least {least}, got {count!r}")

    @classmethod
    def of(cls, checkpoint: Checkpointing | str | Path | None, resume: bool) -> Checkpointing | None:
        """From the arguments of `execute`. Raises RunError: it resumes from nowhere."""
        if checkpoint is None and resume:
            raise RunError("resume needs a checkpoint directory")
        if checkpoint is None or isinstance(checkpoint, Checkpointing):
            return checkpoint
        return cls(str(checkpoint), resume=resume)

    def due(self, step: int) -> bool:
        """Whether to save after so many steps since the very first."""
        return self.every > 0 and step % self.every == 0
