"""Records as a table of pandas, where that is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InputError

if TYPE_CHECKING:
    import pandas


def dataframe(records: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """A row a record. Raises InputError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("a table needs pandas: pip install 'contraflow[frames]'") from error
    return pandas.DataFrame.from_records(list(records))
