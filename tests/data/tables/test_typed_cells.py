"""Numbers and times that a file stores as such, beside the same in a text file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.tables.cells import words_of
from commonground.data.tables.spelling import places_of

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1.0, 2.0], ["1", "2"]),
        ([1.0, 1.5, -2.0, None], ["1.0", "1.5", "-2.0"]),
        ([1e20, 0.5], ["1e+20", "0.5"]),
    ],
)
def test_numbers_are_the_words_of_a_csv_file(numbers: list[float | None], words: list[str]) -> None:
    assert words_of(pa.array(numbers, pa.float64())).words == words


def test_a_number_is_one_category_however_it_is_written() -> None:
    """Of text, 1 and 1.0 may be two beside 1.5: codes, versions."""
    assert places_of(["1"], ["1.0", "1.5"]) == [-1]
    assert words_of(pa.array([1.0])).places(["1.0", "1.5"]) == [0]
    assert words_of(pa.array([1])).places(["1.0", "1.5"]) == [0]
    assert words_of(pa.array(["1"])).places(["1.0", "1.5"]) == [-1]
    assert words_of(pa.array([1.0])).places(["01", "1.50"]) == [-1]


def versions() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    version = rng.choice([1.0, 1.5, 2.0], 240)
    label = np.where((version == 1.0) ^ (rng.random(240) < 0.05), "p", "q")
    return pd.DataFrame({"site": np.repeat(["a", "b"], 120), "version": version, "label": label})


@pytest.mark.parametrize("trained_on", ["csv", "parquet"])
def test_answers_are_the_same_whatever_file_rows_come_in(trained_on: str, tmp_path: Path) -> None:
    frame = versions()
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    settings: dict[str, Any] = {"client_column": "site", "kinds": "version=category", "target": "label"}
    run = cg.train(
        "fedavg", str(tmp_path / f"t.{trained_on}"), rounds=4, engine="serial", out=tmp_path / "run", **settings
    )
    assert run.trained.schema is not None
    assert run.trained.schema.features[0].categories == ("1.0", "1.5", "2.0")
    told = [cg.predict_rows(run, str(tmp_path / name)) for name in ("t.csv", "t.parquet")] + [
        cg.predict_rows(run, frame)
    ]
    for other in told[1:]:
        pd.testing.assert_frame_equal(told[0].select_dtypes("number"), other.select_dtypes("number"))
    assert run.predict(frame[["version"]].iloc[:3], 0) == pytest.approx(run.predict(frame.iloc[:3], 0))


def test_classes_that_are_numbers_with_a_fraction(tmp_path: Path) -> None:
    frame = versions().rename(columns={"version": "label", "label": "word"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    settings: dict[str, Any] = {"client_column": "site", "target": "label", "task": "classification", "seed": 1}
    one, two = (cg.load_data(str(tmp_path / name), **settings) for name in ("t.csv", "t.parquet"))
    assert one.class_names == two.class_names == ("1.0", "1.5", "2.0")
    np.testing.assert_array_equal(one.y_train, two.y_train)


def test_the_last_times_are_the_last_moments_also_where_clocks_go_back(tmp_path: Path) -> None:
    moments = pd.to_datetime(["2024-10-27T00:30Z", "2024-10-27T01:00Z", "2024-10-27T01:30Z", "2024-10-27T00:00Z"])
    times = list(moments.tz_convert("Europe/Berlin")) * 2
    frame = pd.DataFrame({"c": ["a"] * 4 + ["b"] * 4, "x": range(8), "label": [*"pqpqpqpq"], "t": times})
    frame.loc[8] = ["a", 8, None, times[0]]  # a row without a target, which is left out
    frame.to_parquet(tmp_path / "t.parquet")
    frame.assign(t=[time.isoformat() for time in frame["t"]]).to_csv(tmp_path / "t.csv", index=False)
    how: dict[str, Any] = {"client_column": "c", "time_column": "t", "test_share": 0.5, "missing_target": "drop"}
    for given in (tmp_path / "t.csv", tmp_path / "t.parquet", frame):
        data = cg.load_data(given, **how)
        assert data.origin.test_names is not None
        assert sorted(data.origin.test_names.tolist()) == [1, 2, 5, 6]
