"""Data of clients that come after a run, read as the run read its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from commonground.data import FederatedDataset, add_feature_noise, kind_of, load_data
from commonground.data.tables.load import LABEL
from commonground.data.tables.options import table_options
from commonground.data.tables.read import is_table
from commonground.engine.named_columns import named_columns, schema_of_texts
from commonground.engine.prepare import reading
from commonground.engine.run import Run
from commonground.name_lists import listed

__all__ = ["newcomers"]


def newcomers(
    run: Run,
    data: str | None = None,
    *,
    clients: int | None = None,
    classes_per_client: int | None = None,
    partition: str | None = None,
    client_column: str | None = None,
    feature_noise: float | None = None,
    seed: int = 1000,
    data_dir: str | None = None,
    **read_with: Any,
) -> FederatedDataset:
    """Clients that never took part in a run, from data like its own.

    A table's columns are found by name and encoded as in the run, its clients by the run's column unless they are
    dealt; texts are cut to as many tokens, and pictures have the run's size.

    Args:
        run: which they come to.
        data: as the command's ``--data``; None deals the run's own data anew.
        clients, classes_per_client, partition: how they are dealt; None as in the run, or by a table's column.
        client_column: a table's column that says whose a row is; None for the run's.
        feature_noise: how much of another client's image is subtracted; None as in the run.
        seed: of the split.
        data_dir: folder of the data files.
        **read_with: how a table is read where it is not as the run's (``separator``, ``kinds``, ``missing_target``, …);
            what is None is as in the run.

    Raises:
        ConfigError: the run's data are named by a Python file that is not trusted, or a setting does not fit the data.
        DataError: the data are not of the run's form.
    """
    if data is None:
        run.trained.check_trusted("data", run.config.data, "name other data with --data")
    settings = _table_settings(run, data, partition, classes_per_client, client_column)
    settings |= {name: value for name, value in read_with.items() if value is not None}
    kind = kind_of(data or run.config.data)
    size = run.trained.split.get("image_size") or run.config.image_size
    if kind.resized and size is not None:
        settings["image_size"] = size
    dealt = partition or ("" if classes_per_client else kind.partition)
    by_column = "client_column" in settings or dealt.startswith("column")
    tokens = reading(run.config, data)
    if tokens:
        tokens["max_length"] = run.trained.longest_text
    new = load_data(
        data or run.config.data,
        clients or (None if by_column else run.trained.clients),
        classes_per_client=classes_per_client or (None if partition or by_column else run.config.classes_per_client),
        partition=partition,
        seed=seed,
        data_dir=data_dir,
        **_target(run),
        **settings,
        **tokens,
    )
    return add_feature_noise(new, run.config.feature_noise if feature_noise is None else feature_noise, seed)


def _target(run: Run) -> dict[str, Any]:
    """What is predicted, as the run's command said it, or the table that it was given in Python."""
    schema = run.trained.schema or schema_of_texts(run.trained)
    label = None if schema is None else listed(schema.targets)
    return {"label": run.config.target or label, "task": run.config.task or (schema and schema.task)}


def _table_settings(
    run: Run, data: str | None, partition: str | None, classes_per_client: int | None, client_column: str | None
) -> dict[str, Any]:
    """How a table of new clients is read: by the run's schema, clients by the same column unless otherwise said."""
    given = {} if client_column is None else {"client_column": client_column}
    settings = run.config.table_settings() if data is None else {}
    if run.trained.schema is None:
        texts = run.config.text_column
        settings |= {} if texts is None else {"text_column": texts}
        if data is not None and is_table(data):  # what is no table says so itself
            settings |= _as_texts_were(run, dealt=partition is not None or classes_per_client is not None)
        return {**settings, **given}
    if partition is None and classes_per_client is None:
        column = client_column or run.trained.schema.client_column
        given = {"client_column": column} if column is not None else {}
    else:
        for name in ("client_column", "missing_client"):  # clients are dealt
            settings.pop(name, None)
    # Clients of a single row cannot be served and tested; they are left out and named with the others that lack rows.
    few = {"few_rows": "shared", "min_rows": 2} if given else {}
    return {**settings, **few, **given, "schema": run.trained.schema}


def _as_texts_were(run: Run, dealt: bool) -> dict[str, Any]:
    """How another table of texts is read: clients by the run's column unless they are dealt, test rows as the run's."""
    own = schema_of_texts(run.trained)
    about = own or named_columns(run.trained, run.config.target or LABEL, None)  # a run on other texts knows no column
    whose = {} if dealt or about.client_column is None else {"client_column": about.client_column}
    times = run.trained.split.get("times")
    options = table_options(run.config.table_settings())
    asked = {**options.of_rows, "text_column": run.trained.text_columns, **({"kinds": times} if times else {})}
    return {**whose, "schema": replace(about, asked=asked)}
