"""Tables that are given as objects, of whichever package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import commonground as cg
from commonground.errors import ConfigError, DataError


class Stream:
    """A table as another package has it, such as polars."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Lazy:
    def collect(self) -> None: ...


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    plain = {"c": np.resize(["a", "b", "d"], rows), "x": rng.normal(size=rows), "k": rng.choice(["new", "old"], rows)}
    return pd.DataFrame({**plain, "y": rng.choice(["no", "yes"], rows)})


def loaded(table: Any) -> cg.FederatedDataset:
    return cg.load_data(table, client_column="c", target="y")


def objects() -> list[Any]:
    table = pa.Table.from_pandas(frame())
    datasets = pytest.importorskip("datasets")
    words = pa.array(["new", "old"], pa.string_view())  # as polars stores categories
    coded = pa.DictionaryArray.from_arrays(pa.array([["new", "old"].index(k) for k in frame().k]), words)
    return [table, Stream(table.set_column(2, "k", coded)), datasets.Dataset.from_pandas(frame())]


def test_a_table_is_read_whatever_package_made_it() -> None:
    expected = loaded(frame())
    run = cg.train("fedavg", expected, rounds=1)
    answers = cg.predict_rows(run, frame())
    rows = frame().drop(columns=["c", "y"])
    for given in objects():
        got = loaded(given)
        assert np.array_equal(got.x_train, expected.x_train)
        assert got.client_names == expected.client_names
        pd.testing.assert_frame_equal(cg.predict_rows(run, given), answers)
        np.testing.assert_array_equal(run.predict(given, client="a"), run.predict(rows, client="a"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Lazy(), "or the path of a file, and no Lazy; give what its .collect.. makes"),
        ([1, 2], "a table is a DataFrame, a pyarrow Table, .* or the path of a file, and no list$"),
        (pa.chunked_array([[1]]), "a ChunkedArray is one column; a table is a DataFrame"),
        (frame().x, "a Series is one column; a table is a DataFrame"),
    ],
)
def test_other_objects_are_refused_by_their_kind(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loaded(given)
    run = cg.train("fedavg", loaded(frame()), rounds=1)
    with pytest.raises(ConfigError, match=says):
        cg.predict_rows(run, given)


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="the Table has no rows"):
        loaded(pa.Table.from_pandas(frame()).slice(0, 0))


def test_an_index_that_has_a_name_is_a_column(tmp_path: Path) -> None:
    """As it is through a file."""
    expected = loaded(frame())
    for table in (frame().set_index("c"), frame().set_index(["c", "k"]), frame().set_index("c", drop=False)):
        got = loaded(table)
        assert got.client_names == expected.client_names
        assert np.array_equal(np.sort(got.x_train[:, 0]), np.sort(expected.x_train[:, 0])) or "k" in table.index.names
    frame().set_index("c").to_parquet(tmp_path / "t.parquet")
    assert np.array_equal(loaded(tmp_path / "t.parquet").x_train, loaded(frame().set_index("c")).x_train)
