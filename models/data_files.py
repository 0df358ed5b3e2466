"""Where the packaged data sets lie: a folder of the user's, then where their packages install them.

$CONTRAFLOW_DATA is the first, $CONTRAFLOW_SYSTEM_DATA the folder of the operating system's packages (default
/usr/share); set and empty, that one is looked for nowhere.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "CONTRAFLOW_DATA"
SYSTEM_VARIABLE = "CONTRAFLOW_SYSTEM_DATA"


class UnknownData(ValueError):
    """A data set name that is not there; the message lists those that are."""


class MissingData(UnknownData):
    """A data set whose files are not on this machine; the message says what to install."""


def data_folder() -> Path:
    """The folder of $CONTRAFLOW_DATA, or else contraflow under the user's data folder (XDG base directories)."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "contraflow"


def system_folder(relative: str) -> Path | None:
    """Where packages of the operating system put `relative`; None: $CONTRAFLOW_SYSTEM_DATA is empty."""
    given = os.environ.get(SYSTEM_VARIABLE, "/usr/share")
    return Path(given) / relative if given else None


def find(data_set: str, relative: str, installed: Path | None, install: str) -> Path:
    """The file or folder `relative` of a data set: in `data_folder`, or under `installed`.

    Raises:
        MissingData: in neither; the line ends with the command `install`.
    """
    places = [data_folder(), *([] if installed is None else [installed])]
    for place in places:
        if (found := place / relative).exists():
            return found
    where = " or ".join(map(str, places))
    raise MissingData(f"data set {data_set!r} needs {relative} in {where} ({VARIABLE}); install it: {install}")


def package_folder(package: str) -> Path | None:
    """Where a Python package is installed, which is not imported; None: nowhere."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
