"""Columns that a run on texts or pictures knows by name: whose a sample is, and its label."""

from __future__ import annotations

from commonground.data.tables.load import LABEL
from commonground.data.tables.schema import TableSchema
from commonground.engine.trained import Trained

__all__ = ["named_columns", "schema_of_texts"]


def named_columns(trained: Trained, target: str, client_column: str | None, ids: tuple[str, ...] = ()) -> TableSchema:
    """The columns beside its samples that a run knows without a schema of its own, and its classes.

    Args:
        trained: of a run on texts or pictures.
        target: the column of labels.
        client_column: whom a row belongs to, if a column says it.
        ids: columns that name a row.
    """
    return TableSchema(
        features=(),
        targets=(target,),
        task=trained.task.name,
        class_names=tuple(trained.split["class_names"]),
        client_column=client_column,
        ids=ids,
        few_rows=trained.split.get("few_clients", {}),
    )


def schema_of_texts(trained: Trained) -> TableSchema | None:
    """The columns of clients and labels, and the classes, of a run on a user's table of texts; None of other runs."""
    told = trained.split
    if "text_columns" not in told:
        return None
    target = told.get("label_column") or trained.config.target or LABEL  # earlier versions did not keep it
    return named_columns(trained, target, told.get("client_column", trained.config.client_column))
