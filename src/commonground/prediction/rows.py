"""A finished run's models on a table in memory: each row is asked of its own client's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonground.data.tables.objects import table_of
from commonground.data.tables.read import read_raw
from commonground.engine.named_columns import schema_of_texts
from commonground.engine.run import Run, as_run
from commonground.errors import ConfigError, warn
from commonground.prediction.headings import headings, of_answers
from commonground.prediction.tables import Whose, asked_of, features_of
from commonground.prediction.text_tables import tokens_of_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict_rows"]


def predict_rows(
    run: str | os.PathLike[str] | Run,
    table: Any,
    *,
    client: str | int | None = None,
    shared: bool = False,
    kinds: str | Mapping[str, str] | None = None,
    note: Callable[[str], None] = warn,
) -> pd.DataFrame:
    """What a run's models say of the rows of a table, as ``commonground predict RUN TABLE`` does.

    Args:
        run: on a table, of numbers or of texts; or its folder.
        table: a DataFrame or another table as an object (:func:`~commonground.data.tables.objects.table_of`), or a
            table's path. Columns are found by name, in any order.
        client: whose model is asked of all rows; by default each row's own client's, which the client column names.
        shared: ask the global model of all rows instead.
        kinds: how columns of numbers or dates are written, where that is not as in training: by name, or as a text.
        note: hears of columns that the run does not know and of cells that are strange; by default they are warnings.

    Returns:
        A row for each of the table's, with its index if it has one: the client, if a column says it; the class and the
        probability of each class by name, the predicted numbers, or the probability of each label. A name that is
        taken has its kind before it: ``predicted class`` behind a client column ``class``, ``probability of class`` for
        a class of this name.

    Raises:
        ConfigError: the run is on no table, or nobody says whose model to ask.
        DataError: a column is missing, a cell does not fit, or a client is unknown.
    """
    import pandas as pd

    run = as_run(run)
    trained = run.trained
    if client is not None and shared:
        raise ConfigError("give either client=… or shared=True")
    whose = Whose(None if client is None else trained.known.number(client), shared)
    schema = trained.schema or schema_of_texts(trained)
    if schema is None:
        raise ConfigError(f"{trained.where} was not trained on a table, so that it knows no columns; take run.predict")
    is_file = isinstance(table, str | os.PathLike)
    raw = read_raw(Path(table), client_column=schema.client_column) if is_file else table_of(table)
    if trained.schema is None:
        x = tokens_of_table(run, raw, note)
    else:
        x, schema = features_of(trained, raw, kinds, note)
    predicted, names = asked_of(trained, raw, schema, x, whose, note).predicted, trained.split["class_names"]
    whom = schema.client_column if schema.client_column in raw.columns else None
    chosen = trained.task.choose(predicted, names) if trained.task.softmax else None
    found = pd.DataFrame(predicted, index=table.index if isinstance(table, pd.DataFrame) else None)
    if chosen is not None:
        found.insert(0, "class", chosen)
    if whom is not None:
        found.insert(0, "client", raw.columns[whom].to_pylist())
    found.columns = headings(("client", [] if whom is None else [whom]), *of_answers(trained.task, names))
    return found
