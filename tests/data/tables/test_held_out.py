"""Which rows are held out to judge by, and that they teach a table's encoders and scales nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commonground.data import FederatedDataset, hold_out, load_data
from commonground.data.validation import validation_split
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream

ROWS = 40


def table(tmp_path: Path) -> Path:
    """Two clients; every row has a number that tells it from all others, and a category of its own in pairs."""
    lines = [f"c{i % 2},{i * i},w{i // 2},{'yes' if i % 3 else 'no'},{'' if i == 5 else i}" for i in range(ROWS)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["who,n,word,label,m", *lines]) + "\n", "utf-8")
    return path


def loaded(tmp_path: Path, **options: Any) -> FederatedDataset:
    return load_data(table(tmp_path), client_column="who", **options)


def test_scales_and_categories_are_those_of_the_rows_that_stay(tmp_path: Path) -> None:
    whole = loaded(tmp_path)
    held = hold_out(whole, 0.4, 3)
    assert held.schema is not None
    assert whole.schema is not None
    stay = np.concatenate([held.train_indices(c) for c in range(2)])
    n = held.x_train[:, 0]
    assert np.array_equal(n, whole.x_train[:, 0])  # the same rows in the same places
    assert held.schema.mean[0] == pytest.approx(n[stay].mean(), rel=1e-6)
    assert held.schema.std[0] == pytest.approx(n[stay].std(), rel=1e-6)
    assert whole.schema.mean[0] == pytest.approx(n.mean(), rel=1e-6)
    words = {f"w{round(value**0.5) // 2:.0f}" for value in n[stay]}
    known = next(column for column in held.schema.features if column.name == "word")
    assert set(known.categories) == words
    assert len(words) < len(next(c for c in whole.schema.features if c.name == "word").categories)
    assert held.preprocess.mean == held.schema.mean
    assert held.about["notes"] == list(held.schema.notes)


def test_a_grid_is_judged_on_rows_that_taught_nothing(tmp_path: Path) -> None:
    whole = loaded(tmp_path)
    inner = validation_split(whole, 0.3, 1)
    stay = np.concatenate([inner.train_indices(c) for c in range(2)])
    assert inner.preprocess.mean[0] == pytest.approx(inner.x_train[stay, 0].mean(), rel=1e-6)
    assert np.array_equal(inner.x_test, inner.x_train)
    again = hold_out(inner, 0.3, 2)  # early stopping inside of a tuning run
    rest = np.concatenate([again.train_indices(c) for c in range(2)])
    assert again.preprocess.mean[0] == pytest.approx(again.x_train[rest, 0].mean(), rel=1e-6)
    outer = validation_split(hold_out(whole, 0.3, 2), 0.3, 1)
    rest = np.concatenate([outer.train_indices(c) for c in range(2)])
    assert outer.preprocess.mean[0] == pytest.approx(outer.x_train[rest, 0].mean(), rel=1e-6)


def test_each_clients_own_scale_too(tmp_path: Path) -> None:
    held = hold_out(loaded(tmp_path, scaling="client"), 0.4, 3)
    for client in range(2):
        stay = held.x_train[held.train_indices(client), 0]
        assert stay.mean() == pytest.approx(0, abs=1e-5)
        assert stay.std() == pytest.approx(1, abs=1e-5)


def test_the_targets_of_a_regression_too(tmp_path: Path) -> None:
    held = hold_out(load_data(table(tmp_path), client_column="who", label="n", task="regression"), 0.4, 3)
    stay = np.concatenate([held.train_indices(c) for c in range(2)])
    assert held.task.mean[0] == pytest.approx(held.y_train[stay].mean(), rel=1e-6)  # type: ignore[attr-defined]


def test_rows_without_a_target_are_left_out_and_counted(tmp_path: Path) -> None:
    data = load_data(table(tmp_path), client_column="who", label="m", task="regression", missing_target="drop")
    assert len(data.y_train) + len(data.y_test) == ROWS - 1
    assert data.about["missing_targets"] == 1
    assert data.about["notes"][0] == f"1 of {ROWS} rows has no value in 'm' and is left out"
    assert 5 not in np.concatenate([data.y_train, data.y_test])
    assert data.schema is not None
    assert data.schema.missing_targets == 1


def test_rows_without_a_client_are_refused_or_left_out_and_counted(tmp_path: Path) -> None:
    path = table(tmp_path)
    options: dict[str, Any] = {"client_column": "who", "label": "m", "task": "regression"}
    lines = path.read_text("utf-8").splitlines()
    for row in (0, 5, 7):  # the row 5 has no target either
        lines[1 + row] = lines[1 + row].partition(",")[1] + lines[1 + row].partition(",")[2]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(DataError, match=r"line 2, column 'who': the cell is empty \(2 cells of the column are\); .* by "
                                        "--missing-client drop"):  # fmt: skip
        load_data(path, **options, missing_target="drop")
    data = load_data(path, **options, missing_client="drop")
    assert data.about["notes"][0] == f"3 of {ROWS} rows have no value in 'who' and are left out"
    assert data.client_names == ("c0", "c1")
    assert sorted(np.concatenate([data.y_train, data.y_test]).ravel().tolist()) == [
        n for n in range(ROWS) if n not in (0, 5, 7)
    ]
    # Of both, each row is counted once, and the rows that stay are known by their own lines.
    lines[1 + 9] = lines[1 + 9].rpartition(",")[0] + ","
    path.write_text("\n".join(lines) + "\n", "utf-8")
    data = load_data(path, **options, missing_client="drop", missing_target="drop")
    assert data.about["notes"][:2] == [
        f"3 of {ROWS} rows have no value in 'who' and are left out",
        f"1 of {ROWS} rows has no value in 'm' and is left out",
    ]
    assert data.about["missing_targets"] == 1
    assert data.origin.test_names is not None
    assert [str(name) for name in data.origin.test_names] == [str(int(y)) for y in data.y_test.ravel()]
    with pytest.raises(ConfigError, match="--missing-client drop is about rows that the client column gives to nobody"):
        load_data(path, **options | {"client_column": None}, missing_client="drop", missing_target="drop")
    path.write_text("who,n,m\n,1,2\n,2,3\n", "utf-8")
    with pytest.raises(DataError, match="no row has a value in 'who'"):
        load_data(path, **options, missing_client="drop")


def visits(rows: int = 120, people: int = 30) -> pd.DataFrame:
    """Rows that nobody says the client of: of 30 people, at their time, of two classes."""
    rng = np.random.default_rng(0)
    person, day = rng.integers(people, size=rows), rng.permutation(rows)
    y = np.where(rng.random(rows) < 0.5, "good", "bad")
    return pd.DataFrame({"x": rng.normal(size=rows), "who": [f"p{p}" for p in person], "day": day, "y": y})


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_groups_and_times_are_divided_as_wholes_also_where_rows_are_nobodys(clients: int, task: str) -> None:
    table = visits() if task == "classification" else visits().assign(y=np.arange(120) / 7)
    table["row"] = np.arange(120.0)
    keys: dict[str, Any] = {"target": "y", "task": task}
    by: dict[str, dict[str, Any]] = {"group": {"group_column": "who"}, "time": {"time_column": "day"}}
    for chosen, column in by.items():
        data = load_data(table, clients, **keys, **column)
        assert data.schema is not None
        place = data.schema.inputs.index("row")
        train, test = (np.rint(x[:, place]).astype(int) for x in (data.x_train, data.x_test))
        assert len(train) + len(test) == 120
        if chosen == "group":
            assert not set(table.who[train]) & set(table.who[test])
        else:
            assert table.day[train].max() < table.day[test].min()


def test_a_table_of_one_group_says_so() -> None:
    with pytest.raises(DataError, match="the table has rows of one group only"):
        load_data(visits(people=1), 1, target="y", group_column="who")


def test_a_regressions_groups_are_drawn_as_they_always_were() -> None:
    """Runs of earlier versions find their test rows again."""
    table = visits()
    table["row"] = np.arange(len(table))
    data = load_data(table, 1, target="row", group_column="who", task="regression")
    people = np.unique(table.who.to_numpy()[np.rint(data.y_test[:, 0]).astype(int)])
    by_name = sorted(table.who.unique(), key=str)
    drawn = numpy_stream(0, "table test groups", "any").permutation(len(by_name))
    assert 1 < len(people) < 15
    assert set(people) == {by_name[i] for i in drawn[: len(people)]}


def test_two_rows_of_two_classes_are_one_to_train_and_one_to_test() -> None:
    data = load_data(pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]}), 1, target="y")
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([1], [1])


def test_a_group_of_two_clients_is_said_to_be_on_both_sides(tmp_path: Path) -> None:
    """A patient of two clinics may be a training row of one and a test row of the other."""
    frame = visits(400, 12).assign(clinic=lambda t: np.arange(len(t)) % 4)
    path = tmp_path / "v.csv"
    frame.to_csv(path, index=False)
    data = load_data(path, client_column="clinic", target="y", group_column="who")
    (said,) = [note for note in data.about["notes"] if "groups of 'who'" in note]
    says = (
        "of 12 groups of 'who' have training rows at one client and test rows at another: each client's are drawn by "
    )
    assert said.endswith(f"{says}itself")
    people = frame["who"].to_numpy()
    assert data.origin.test_names is not None
    tests = set(people[data.origin.test_names.astype(int)])
    trains = set(people[np.setdiff1d(np.arange(400), data.origin.test_names.astype(int))])
    assert int(said.split()[0]) == len(tests & trains)
    own = frame.assign(clinic=frame["who"].str[1:].astype(int) % 3)  # each person at one clinic alone
    own.to_csv(path, index=False)
    data = load_data(path, client_column="clinic", target="y", group_column="who")
    assert not any("groups of" in note for note in data.about["notes"])
