"""A finished run's models on a table of texts: each row by its own client's model, and the metric."""

from __future__ import annotations

from pathlib import Path

from commonground.data.tables.read import RawTable
from commonground.data.tables.schema import TableSchema
from commonground.data.text.tokens import Tokens
from commonground.engine.run import Run
from commonground.name_lists import names_in
from commonground.prediction.tables import Note, TableAnswers, Whose, answers_of
from commonground.prediction.texts import read_text_table, texts_in, tokens_of

__all__ = ["predict_text_table", "tokens_of_table"]


def predict_text_table(
    run: Run,
    path: Path,
    schema: TableSchema,
    whose: Whose,
    note: Note,
    *,
    separator: str | None = None,
    encoding: str | None = None,
) -> TableAnswers:
    """As :func:`~commonground.prediction.tables.predict_table`, of a table of texts.

    Args:
        run: the run.
        path: the table; texts are in the run's columns, or where it was given none by name, in usual ones.
        schema: of the run (:func:`~commonground.engine.named_columns.schema_of_texts`).
        whose, note, separator, encoding: see there.

    Raises:
        ConfigError: nobody said whose model to ask.
        DataError: a column is missing, a text is empty (line named), or a client is unknown.
    """
    raw = read_text_table(path, separator, encoding, schema.client_column)
    return answers_of(run.trained, raw, schema, tokens_of_table(run, raw, note), whose, note)


def tokens_of_table(run: Run, raw: RawTable, note: Note) -> Tokens:
    """A table's texts as the run's model reads them.

    Raises:
        DataError: a column is missing, or a text is empty (line named).
    """
    for sentence in raw.notes:
        note(f"{raw.path.name}: {sentence}")
    texts = texts_in(raw, names_in(run.trained.config.text_column), run.trained.text_columns)
    return tokens_of(run, texts, note)
