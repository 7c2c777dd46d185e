"""How numbers and times are written is one thing for all columns, whatever they are for, and stays so for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.data.own_table import OwnTable
from commonground.data.tables.agree import agreed_readings
from commonground.data.tables.options import TableOptions
from commonground.errors import DataError

CLIENTS = ["a", "b"] * 20


def german(value: float) -> str:
    """1.234,5"""
    return f"{value:,.1f}".translate(str.maketrans(",.", ".,"))


def write(path: Path, **columns: list[str]) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([";".join(columns), *(";".join(row) for row in rows)]) + "\n")
    return path


def values(seed: int = 0) -> np.ndarray:
    return np.round(np.random.default_rng(seed).uniform(300, 9000, len(CLIENTS)), 1)


def stored(data: cg.FederatedDataset) -> list[float]:
    return sorted(float(y) for y in np.concatenate([data.y_train, data.y_test]).ravel())


def loaded(path: Path, **options: Any) -> cg.FederatedDataset:
    return cg.load_data(path, client_column="c", target="y", task="regression", **options)


def test_a_target_with_points_in_a_file_with_decimal_commas(tmp_path: Path) -> None:
    """8.520 may be 8520 or 8.52: refused as a feature is, and read as the user says."""
    x, y = values(), np.round(values(1))
    path = write(tmp_path / "t.csv", c=CLIENTS, x=[german(v) for v in x], y=[german(v)[:-2] for v in y])
    with pytest.raises(
        DataError, match=r"column 'y': the point in '.*' may be a decimal one .* --kinds y=comma-number"
    ):
        loaded(path)
    assert stored(loaded(path, kinds="y=comma-number")) == pytest.approx(sorted(y))
    assert max(stored(loaded(path, kinds="y=number"))) < 1000


def test_a_feature_with_points_where_only_the_target_has_decimal_commas(tmp_path: Path) -> None:
    x = np.round(values())
    path = write(tmp_path / "t.csv", c=CLIENTS, x=[german(v)[:-2] for v in x], y=[german(v) for v in values(1) / 100])
    with pytest.raises(DataError, match=r"column 'x': the point in '.*' may be a decimal one"):
        loaded(path)
    data = loaded(path, kinds="x=comma-number")
    assert sorted(np.concatenate([data.x_train, data.x_test])[:, 0]) == pytest.approx(sorted(x))


def test_a_target_whose_commas_leave_it_open_is_read_as_the_user_says(tmp_path: Path) -> None:
    words = [f"{4 + i % 5},{100 + i}" for i in range(len(CLIENTS))]
    path = write(tmp_path / "t.csv", c=CLIENTS, x=[f"{v:.2f}" for v in values()], y=words)
    with pytest.raises(DataError, match="say --kinds y=comma-number or --kinds y=point-number"):
        loaded(path)
    as_thousands = [float(word.replace(",", "")) for word in words]
    assert stored(loaded(path, kinds="y=point-number")) == pytest.approx(sorted(as_thousands))
    assert stored(loaded(path, kinds="y=comma-number")) == pytest.approx(sorted(v / 1000 for v in as_thousands))


def test_newcomers_targets_are_read_as_the_run_s(tmp_path: Path) -> None:
    """4.189 are four thousand where the run wrote 4.189,0, in adapt as in predict."""
    x, y = values(), np.round(values(1))
    run_table = write(tmp_path / "run.csv", c=CLIENTS, x=[f"{v:.0f}" for v in x], y=[german(v) for v in y])
    run = cg.train("fedavg", loaded(run_table), rounds=1, out=tmp_path / "run")
    schema = run.trained.schema
    with_points = write(tmp_path / "p.csv", c=CLIENTS, x=[f"{v:.0f}" for v in x], y=[german(v)[:-2] for v in y])
    new = loaded(with_points, schema=schema)
    assert stored(new) == pytest.approx(sorted(y))
    truths = write(tmp_path / "t.csv", c=CLIENTS, x=[f"{v:.0f}" for v in x], y=["yes", "no"] * 20)
    assert set(stored(loaded(truths, schema=schema))) == {0.0, 1.0}


@pytest.mark.parametrize("kind", ["", "date:%m/%d/%Y"])
def test_the_column_of_times_is_read_as_the_user_says(kind: str, tmp_path: Path) -> None:
    months = [1 + i % 12 for i in range(12)]
    dates = [f"{month:02d}/{13 - month:02d}/2024" for month in months]
    columns = {"c": ["a"] * 12, "t": dates, "x": [str(m) for m in months], "y": [f"{m}.5" for m in months]}
    data = loaded(write(tmp_path / "t.csv", **columns), time_column="t", kinds=f"t={kind}" if kind else None)
    latest = [10.0, 11.0, 12.0] if kind else [1.0, 2.0, 3.0]  # by month, or with the day before the month
    assert sorted(data.x_test[:, 0]) == latest
    assert any("t: day before month" in note for note in data.about["notes"]) == (not kind)


def test_another_table_s_times_are_read_as_the_run_s(tmp_path: Path) -> None:
    """A run's dates tell which is the month; those of a newcomer need not."""
    days = [f"{1 + i % 12:02d}/{20 + i % 9:02d}/2024" for i in range(40)]
    numbers = [f"{v:.1f}" for v in values()]
    first = loaded(write(tmp_path / "a.csv", c=CLIENTS, t=days, x=numbers, y=numbers), time_column="t")
    months = list(range(1, 13))
    dates = [f"{month:02d}/{13 - month:02d}/2024" for month in months]
    columns = {"c": ["n"] * 12, "t": dates, "x": [str(m) for m in months], "y": [f"{m}.5" for m in months]}
    new = loaded(write(tmp_path / "b.csv", **columns), schema=first.schema)
    assert sorted(new.x_test[:, 0]) == [10.0, 11.0, 12.0]
    numbered = loaded(write(tmp_path / "c.csv", c=CLIENTS, t=[f"{i},{i:03d}" for i in range(1, 41)], x=numbers,
                            y=numbers), time_column="t", kinds="t=point-number")  # fmt: skip
    assert numbered.schema is not None
    assert numbered.schema.asked["kinds"] == {"t": "point-number"}


def test_a_target_that_another_client_writes_otherwise_may_not_be_in_doubt(tmp_path: Path) -> None:
    """8.520 is eight and a half, until another client writes 8.520,0."""
    x, y = [f"{v:.0f}" for v in values()], np.round(values(1)) + 1000
    one = write(tmp_path / "a.csv", x=x, y=[german(v) for v in y])
    other = write(tmp_path / "b.csv", x=x, y=[german(v)[:-2] for v in y])
    first, second = (OwnTable(path, path.stem, "y", task="regression").columns for path in (one, other))
    assert (first.doubtful, second.doubtful) == ((), ("y",))
    with pytest.raises(
        DataError,
        match=r"^client 'b' takes its column 'y' to be written as 1234\.5, which its cells leave open, and client 'a' "
        r"writes 1\.234,5; start 'b' with --kinds y=number if that is so, or with --kinds y=comma-number$",
    ):
        agreed_readings([first, second])
    for kind in ("number", "comma-number"):
        said = TableOptions(kinds={"y": kind})
        agreed_readings([first, OwnTable(other, "b", "y", task="regression", options=said).columns])


def test_naming_the_column_of_times_again_changes_nothing(tmp_path: Path) -> None:
    numbers = [f"{v:.1f}" for v in values()]
    days = [f"{1 + i % 12:02d}/{20 + i % 9:02d}/2024" for i in range(40)]
    first = loaded(write(tmp_path / "a.csv", c=CLIENTS, t=days, x=numbers, y=numbers), time_column="t")
    dates = [f"{month:02d}/{13 - month:02d}/2024" for month in range(1, 13)]
    columns = {"c": ["n"] * 12, "t": dates, "x": [str(m) for m in range(12)], "y": [f"{m}.5" for m in range(12)]}
    path = write(tmp_path / "b.csv", **columns)
    one, same = loaded(path, schema=first.schema), loaded(path, schema=first.schema, time_column="t")
    assert np.array_equal(one.x_test, same.x_test)
    other = loaded(path, schema=first.schema, time_column="t", kinds="t=date:%d/%m/%Y")
    assert not np.array_equal(one.x_test, other.x_test)


def test_what_is_said_of_a_newcomer_s_target_goes_before_the_run(tmp_path: Path) -> None:
    x, y = [f"{v:.0f}" for v in values()], np.round(values(1))
    run_table = write(tmp_path / "run.csv", c=CLIENTS, x=x, y=[german(v) for v in y])
    points = write(tmp_path / "p.csv", c=CLIENTS, x=x, y=[f"{v:,.1f}" for v in y])
    schema = loaded(run_table).schema
    with pytest.raises(DataError, match=r"column 'y': '.*' is no number"):
        loaded(points, schema=schema)
    assert stored(loaded(points, schema=schema, kinds="y=point-number")) == pytest.approx(sorted(y))


def test_times_with_points_in_a_file_with_decimal_commas(tmp_path: Path) -> None:
    times = [german(float(1000 + 7 * i))[:-2] for i in range(len(CLIENTS))]
    path = write(
        tmp_path / "t.csv", c=CLIENTS, t=times, x=[german(v) for v in values()], y=[german(v) for v in values(1)]
    )
    with pytest.raises(DataError, match=r"column 't': the point in '1\.000' may be a decimal one"):
        loaded(path, time_column="t")
    assert loaded(path, time_column="t", kinds="t=comma-number").test_sizes.sum() > 0


def test_another_column_of_times_is_read_by_itself(tmp_path: Path) -> None:
    numbers = [f"{v:.1f}" for v in values()]
    days = [f"{1 + i % 12:02d}/{20 + i % 9:02d}/2024" for i in range(40)]
    first = loaded(write(tmp_path / "a.csv", c=CLIENTS, t=days, x=numbers, y=numbers), time_column="t")
    other = write(tmp_path / "b.csv", c=["n"] * 12, u=[str(i) for i in range(12)], x=numbers[:12], y=numbers[:12])
    new = loaded(other, schema=first.schema, time_column="u")
    assert sorted(new.x_test[:, 0]) == pytest.approx(sorted(float(n) for n in numbers[9:12]))


def test_a_client_s_own_table_is_read_alike(tmp_path: Path) -> None:
    """Over a network: what is said of targets is heeded, points are looked at in all columns, and guesses are said."""
    x, y = [german(v) for v in values()], np.round(values(1))
    path = write(tmp_path / "a.csv", x=x, y=[german(v)[:-2] for v in y])
    with pytest.raises(DataError, match=r"column 'y': the point in '.*' may be a decimal one"):
        OwnTable(path, "a", "y", task="regression")
    own = OwnTable(path, "a", "y", task="regression", options=TableOptions(kinds={"y": "comma-number"}))
    assert own.columns.target_decimals == ("comma",)
    dates = [f"{1 + i % 9:02d}/{1 + i % 7:02d}/2024" for i in range(40)]
    dated = write(tmp_path / "b.csv", x=[f"{v:.1f}" for v in values()], y=[f"{v:.0f}" for v in y], t=dates)
    own = OwnTable(dated, "b", "y", task="regression", options=TableOptions(time_column="t"))
    assert "t: day before month" in own.notes
