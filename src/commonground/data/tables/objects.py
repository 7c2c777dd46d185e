"""Tables that are given as objects, of whichever package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commonground.data.tables.huggingface import is_dataset, raw_of_dataset
from commonground.data.tables.raw import RawTable, raw_of_arrow, raw_of_frame
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted

__all__ = ["is_table_object", "table_of"]

_STREAM = "__arrow_c_stream__"  # by which packages hand tables to each other (Arrow's PyCapsule interface)


def is_table_object(given: Any) -> bool:
    """Whether an object has columns with names: a DataFrame of pandas or another package, a pyarrow Table or a
    ``datasets.Dataset``; no single column.
    """
    return is_dataset(given) or ((hasattr(given, "iloc") or hasattr(given, _STREAM)) and hasattr(given, "columns"))


def table_of(given: Any) -> RawTable:
    """A table of an object: a pandas DataFrame, a ``datasets.Dataset`` or ``DatasetDict``, a pyarrow Table, or what
    gives itself as one (``__arrow_c_stream__``), as a DataFrame of polars does.

    Raises:
        ConfigError: it is none of these.
        DataError: it has no rows, or no columns that a table has.
    """
    import pandas as pd
    import pyarrow as pa

    if is_dataset(given):
        return raw_of_dataset(given)
    if isinstance(given, pd.DataFrame):
        return raw_of_frame(given)
    kind = type(given).__name__
    if not is_table_object(given):
        if hasattr(given, "iloc") or hasattr(given, _STREAM):
            raise ConfigError(f"a {kind} is one column; a table is a DataFrame")
        has = next((name for name in ("to_pandas", "collect", "compute") if callable(getattr(given, name, None))), None)
        how = f"; give what its .{has}() makes" if has else ""
        raise ConfigError(
            f"a table is a DataFrame, a pyarrow Table, a datasets.Dataset or the path of a file, and no {kind}{how}"
        )
    if not hasattr(given, _STREAM):
        raise ConfigError(f"a {kind} is no table that is read here; give its rows as a pandas DataFrame (.to_pandas())")
    try:
        table = pa.table(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the {kind} cannot be read as a table: {quoted(str(error))}; give its .to_pandas()") from None
    if not len(table):
        raise DataError(f"the {kind} has no rows")
    return raw_of_arrow(Path("the table"), table)
