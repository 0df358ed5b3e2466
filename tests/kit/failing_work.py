"""Work for companions that does not get to its first pace; importable where they run."""

from __future__ import annotations

import importlib
import os
import signal


def fail(pace: object) -> None:
    """Raises."""
    raise RuntimeError("no")


def killed(pace: object) -> None:
    """Ends its process."""
    os.kill(os.getpid(), signal.SIGKILL)


class Elsewhere:
    """Of a module that is not found in another process."""

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, ("module_that_is_only_here",)

    def __call__(self, pace: object) -> None:
        """Not reached."""
