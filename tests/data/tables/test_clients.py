"""Clients with few rows by choice, and test rows by time, by group and as a column says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground import load_data, train
from commonground.cli import main
from commonground.data import FederatedDataset
from commonground.data.own_table import OwnTable
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.load import load_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.split import FEW
from commonground.errors import CommonGroundError, ConfigError, DataError


def frame() -> pd.DataFrame:
    """Clients of 40, 30, 20, 3, 2 and 1 rows; a row's value is its number."""
    names = np.repeat(["a", "b", "c", "d", "e", "f"], [40, 30, 20, 3, 2, 1])
    frame = pd.DataFrame({"who": names, "value": np.arange(96)})
    frame["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta((np.arange(96) * 37) % 96, "D")
    frame["visit"] = [f"v{i // 2}" for i in range(96)]
    frame["label"] = np.where(frame.value % 3 > 0, "x", "y")
    return frame


def load(tmp_path: Path, table: pd.DataFrame | None = None, **options: Any) -> FederatedDataset:
    (frame() if table is None else table).to_csv(tmp_path / "t.csv", index=False)
    return load_data(tmp_path / "t.csv", client_column="who", **options)


def test_pooled_clients_are_one(tmp_path: Path) -> None:
    data = load(tmp_path, few_rows="pool", min_rows=10)
    assert data.client_names == (FEW, "a", "b", "c")
    assert (data.train_sizes + data.test_sizes).tolist() == [6, 40, 30, 20]
    assert data.schema is not None
    assert data.schema.few_rows == {"how": "pool", "min_rows": 10, "clients": ["d", "e", "f"], "rows": 6}


def test_clients_left_to_the_global_model_take_no_part(tmp_path: Path) -> None:
    data = load(tmp_path, few_rows="shared", min_rows=10)
    assert data.client_names == ("a", "b", "c")
    assert data.train_sizes.sum() + data.test_sizes.sum() == 90
    assert data.x_train[:, 0].max() < 90
    assert data.preprocess.mean[0] == pytest.approx(data.x_train[:, 0].mean())


def test_clients_that_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where their rows are not in the table, for a method without a global model as well."""
    data = load(tmp_path, few_rows="drop", min_rows=10)
    plain = load(tmp_path, frame()[frame().who.isin([*"abc"])].reset_index(drop=True))
    assert data.fingerprint() == plain.fingerprint()
    assert data.schema is not None
    assert data.schema.few_rows == {"how": "drop", "min_rows": 10, "clients": ["d", "e", "f"], "rows": 6}
    frame().to_csv(tmp_path / "t.csv", index=False)
    given = ["--data", str(tmp_path / "t.csv"), "--client-column", "who", "--drop", "visit,when", "--rounds", "1"]
    out = str(tmp_path / "run")
    assert main(["train", "fedrep", *given, "--few-rows", "drop", "--min-rows", "10", "--out", out]) == 0
    assert "3 clients with fewer than 10: left out" in " ".join(capsys.readouterr().out.split())
    assert "(6 rows in all) are left out." in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert main(["predict", out, str(tmp_path / "t.csv")]) == 2
    said = "3 of the 6 clients took no part in the run, the first is 'd' (left out, having few rows)"
    assert said in capsys.readouterr().err
    assert main(["predict", out, str(tmp_path / "t.csv"), "--client", "f"]) == 2
    assert "was left out, having few rows" in capsys.readouterr().err


def test_kept_clients_need_two_rows(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"client 'f' has 1 row; .* \(1 such client; --few-rows drop, pool or shared says"
    ):
        load(tmp_path)
    data = load(tmp_path, frame()[:-1], min_rows=10)
    assert data.clients == 5
    assert data.schema is not None
    assert data.schema.few_rows["clients"] == ["d", "e"]
    with pytest.raises(
        DataError, match="no client has 50 rows; to train, take a smaller --min-rows or --few-rows pool"
    ):
        load(tmp_path, few_rows="shared", min_rows=50)
    with pytest.raises(
        DataError, match=r"no client has 50 rows; to train, take a smaller --min-rows or --few-rows pool$"
    ):
        load(tmp_path, few_rows="drop", min_rows=50)
    with pytest.raises(DataError, match=r"have 1 row in all; .* train as one, or take --few-rows drop$"):
        load(tmp_path, few_rows="pool")
    with pytest.raises(ConfigError, match="min_rows is 1; a client needs at least 2"):
        load(tmp_path, min_rows=1)


def test_pooling_mends_clients_without_test_rows(tmp_path: Path) -> None:
    table = frame().assign(part=["test" if i % 5 == 0 else "train" for i in range(96)])
    data = load(tmp_path, table, split_column="part", few_rows="pool")
    assert data.schema is not None
    assert data.schema.few_rows["clients"] == ["e", "f"]  # rows 93 and 94 train, 95 tests
    assert data.schema.split == "by the column part"
    assert sorted(data.x_test[:, 0].tolist()) == list(range(0, 96, 5))


def test_a_column_and_a_share_do_not_both_say_which_rows_are_test_rows(tmp_path: Path) -> None:
    marks = ["test" if i % 5 == 0 else "train" for i in range(96)]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, frame().assign(part=marks), split_column="part", few_rows="pool", test_share=0.25)
    both = "says which rows are test rows, so that a test share of 0.25 says nothing"
    assert str(caught.value) == f"the column 'part' {both}; leave one of them out"
    table = frame().assign(split=marks)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, table, few_rows="pool", test_share=0.25)
    hint = "leave out the share, or the column (--drop split)"
    assert str(caught.value) == f"{tmp_path / 't.csv'}: the column 'split' {both}; {hint}"
    with pytest.raises(ConfigError, match="the column 'split' says which rows are test rows"):
        OwnTable(tmp_path / "t.csv", "one", "label", options=TableOptions(test_share=0.25))
    by_column = load(tmp_path, table, few_rows="pool").schema
    by_share = load(tmp_path, table, few_rows="shared", drop="split", test_share=0.5).schema
    assert by_column is not None
    assert by_share is not None
    assert (by_column.split, by_share.split) == ("by the column split", "50% at random")


def held(data: FederatedDataset) -> list[float]:
    return sorted(data.x_test[:, 0].tolist())


@pytest.mark.parametrize("options", [{}, {"group_column": "visit"}])
def test_a_seed_of_their_own_keeps_test_rows_the_same_for_all_runs(options: dict[str, Any], tmp_path: Path) -> None:
    options = {"few_rows": "pool", "min_rows": 10, "drop": "when", **options}
    first, second = (held(load(tmp_path, seed=seed, test_seed=4, **options)) for seed in (0, 1))
    assert first == second == held(load(tmp_path, seed=4, **options))
    assert first != held(load(tmp_path, seed=1, **options))


def test_newcomers_are_divided_by_the_runs_own_seed_of_test_rows(tmp_path: Path) -> None:
    table = frame()[:90]
    schema = load(tmp_path, table, test_seed=4).schema
    assert held(load(tmp_path, table, seed=9, schema=schema)) == held(load(tmp_path, table, seed=4))
    assert held(load(tmp_path, table, seed=9, schema=schema, test_seed=5)) == held(load(tmp_path, table, seed=5))
    marked = table.assign(split=["test" if i % 5 == 0 else "train" for i in range(90)])
    assert held(load(tmp_path, marked, schema=schema)) == list(range(0, 90, 5))


@pytest.mark.parametrize(
    ("said", "before", "columns", "wanted"),
    [
        ({"test_seed": 4}, {"group_column": "a", "test_share": 0.4}, ["a"], ("a", 0.4, 4)),
        ({"test_share": 0.4}, {"group_column": "a", "test_seed": 4}, ["a"], (None, 0.4, 4)),
        ({"group_column": "a"}, {"group_column": "a", "test_seed": 4, "test_share": 0.4}, ["a"], ("a", 0.4, 4)),
        (
            {"group_column": "b"},
            {"group_column": "a", "test_seed": 4, "test_share": 0.4},
            ["a", "b"],
            ("b", None, None),
        ),
        ({}, {"group_column": "a", "test_seed": 4, "test_share": 0.4}, ["b"], (None, 0.4, 4)),
        ({}, {"test_seed": 4, "test_share": 0.4}, ["split"], (None, None, None)),
        ({"drop": ("split",)}, {"test_seed": 4, "test_share": 0.4}, ["split"], (None, 0.4, 4)),
        ({}, {"group_column": "a", "test_seed": 0}, ["a", "split"], ("a", None, 0)),
    ],
)
def test_what_a_run_said_of_test_rows_holds_unless_it_is_said_anew(
    said: dict[str, Any], before: dict[str, Any], columns: list[str], wanted: tuple[Any, ...]
) -> None:
    found, notes = TableOptions(**said).as_asked(before, columns)
    assert (found.group_column, found.test_share, found.test_seed) == wanted
    assert all("here 40% at random are" in note for note in notes)


def test_a_column_split_counts_where_the_run_s_column_is_lacking() -> None:
    found, notes = TableOptions().as_asked({"group_column": "a", "test_seed": 4}, ["b", "split"])
    assert (found.group_column, found.test_seed) == (None, None)
    assert notes == ["no column 'a', which says the run's test rows; here the column 'split' does"]


def test_an_owners_rows_stay_its_own_when_encoders_are_learnt_anew(tmp_path: Path) -> None:
    """Rows that are held out to judge by teach nothing; which rows are test rows does not hang on it."""
    frame()[:40].drop(columns="who").to_csv(tmp_path / "t.csv", index=False)
    source = load_table(tmp_path / "t.csv", owner="a")
    assert source.origin.relearn is not None
    again = source.origin.relearn(np.arange(len(source.x_train)) < 3)
    np.testing.assert_array_equal(again.x_test[:, 0], source.x_test[:, 0])
    whole = load(tmp_path, frame()[:90])
    assert source.x_test[:, 0].tolist() == whole.x_test[whole.test_indices(0), 0].tolist()
    assert source.x_test[:, 0].tolist() != load_table(tmp_path / "t.csv", owner="b").x_test[:, 0].tolist()


def test_seeds_of_test_rows_are_whole_numbers(tmp_path: Path) -> None:
    schema = load(tmp_path, frame()[:90], test_seed=np.int64(4)).schema
    assert schema is not None
    assert json.dumps(schema.asked) == '{"test_seed": 4}'
    assert (TableOptions(test_seed=0).seed(5), TableOptions().seed(5)) == (0, 5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"test_seed": True}, "test_seed is True; it is a whole number, 0 or above"),
        (
            {"split_column": "visit"},
            "'visit' says which rows are test rows, so that a test seed of 4 says nothing; leave",
        ),
        (
            {"time_column": "when"},
            "the last rows by the column 'when' are test rows, so that a test seed of 4 says noth",
        ),
        ({"test_seed": -1}, "test_seed is -1; it is a whole number, 0 or above"),
        ({"test_seed": "x"}, "test_seed is 'x'; it is a whole number, 0 or above"),
    ],
)
def test_a_seed_that_says_nothing_is_refused(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        load(tmp_path, **{"test_seed": 4, **options})
    with pytest.raises(
        ConfigError, match=r"a test seed of 4 says nothing; leave out the seed, or the column \(--drop s"
    ):
        load(tmp_path, frame().assign(split="train"), test_seed=4)


def test_runs_of_several_seeds_are_tested_on_the_same_rows(tmp_path: Path) -> None:
    frame()[:90].to_csv(tmp_path / "t.csv", index=False)
    asked = ["train", "local", "--data", str(tmp_path / "t.csv"), "--client-column", "who", "--rounds", "1"]
    tests = {}
    for seed in (0, 1):
        out = tmp_path / str(seed)
        assert main([*asked, "--seed", str(seed), "--test-seed", "4", "--quiet", "--out", str(out)]) == 0
        tests[seed] = json.loads((out / "split.json").read_text())
        assert json.loads((out / "schema.json").read_text())["asked"] == {"test_seed": 4}
    assert tests[0] == tests[1]


def test_the_last_rows_by_time_are_test_rows(tmp_path: Path) -> None:
    table = frame()
    data = load(tmp_path, table, time_column="when", few_rows="shared", min_rows=10, test_share=0.3)
    assert data.schema is not None
    assert data.schema.inputs == ["value", *[name for name in data.schema.inputs if name.startswith("visit")]]
    days = table.when.to_numpy()
    for client, tests in zip(range(3), (12, 9, 6), strict=True):
        train, test = (
            days[x[index, 0].astype(int)]
            for x, index in ((data.x_train, data.train_indices(client)), (data.x_test, data.test_indices(client)))
        )
        assert len(test) == tests
        assert train.max() < test.min()
    with pytest.raises(DataError, match="the time column 'visit' holds neither dates nor numbers"):
        load(tmp_path, table, time_column="visit", few_rows="shared")
    table.loc[4, "when"] = pd.NaT
    with pytest.raises(DataError, match="line 6, column 'when': no time is given"):
        load(tmp_path, table, time_column="when", few_rows="shared")


def test_groups_are_not_split(tmp_path: Path) -> None:
    data = load(tmp_path, group_column="visit", few_rows="shared", min_rows=10)
    sides = [set((x[:, 0] // 2).tolist()) for x in (data.x_train, data.x_test)]
    assert not sides[0] & sides[1]
    assert data.test_sizes.tolist() == [10, 8, 6]  # a quarter of the rows, in pairs
    again = load(tmp_path, group_column="visit", few_rows="shared", min_rows=10)
    assert np.array_equal(again.x_test, data.x_test)
    with pytest.raises(DataError, match="client 'a' has rows of one group only"):
        load(tmp_path, frame().assign(visit=lambda t: t.who), group_column="visit", few_rows="shared", min_rows=3)


def test_one_way_of_splitting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="time_column and group_column both say which rows are test rows"):
        load(tmp_path, time_column="when", group_column="visit")


def test_by_command_counted_and_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    given = ["--data", str(tmp_path / "t.csv"), "--client-column", "who", "--drop", "visit,when", "--rounds", "2"]
    for how, method in (("pool", "fedrep"), ("shared", "fedavg")):
        out = tmp_path / how
        assert main(["train", method, *given, "--few-rows", how, "--min-rows", "10", "--out", str(out)]) == 0
        assert "3 clients with fewer than 10" in capsys.readouterr().out.replace("\n", " ")
        summary = json.loads((out / "summary.json").read_text("utf-8"))
        assert summary["table"]["few_rows"] == {"how": how, "min_rows": 10, "clients": 3, "rows": 6}
        page = (out / "report.html").read_text("utf-8")
        assert "3 clients with fewer than 10 rows (6 rows in all)" in page
        assert "Test rows: 25% at random." in page
        assert main(["predict", str(out), str(tmp_path / "t.csv")]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 97
    assert main(["train", "fedrep", *given, "--few-rows", "shared", "--out", str(tmp_path / "no")]) == 2
    assert "--few-rows shared serves clients with few rows by the global model" in capsys.readouterr().err


def test_a_client_called_as_the_pooled_ones(tmp_path: Path) -> None:
    table = frame().replace({"who": {"a": FEW}})
    with pytest.raises(CommonGroundError, match=r"a client is called \(few rows\)"):
        load(tmp_path, table, few_rows="pool", min_rows=10)


def test_an_object_that_is_no_table_is_said() -> None:
    table = pd.DataFrame({"who": ["a", "b"] * 20, "x": np.arange(40.0), "ill": [0, 1, 1, 0] * 10, "z": [1, 0] * 20})
    both = load_data(table, client_column="who", target=["ill", "z"], task="multilabel")
    assert both.class_names == ("ill", "z")
    for target in (3, ["ill", 3]):
        with pytest.raises(ConfigError, match="target names a column, or several columns, and 3 is no name"):
            load_data(table, client_column="who", target=target)
    with pytest.raises(ConfigError, match="target names no column"):
        load_data(table, client_column="who", target=[])
    with pytest.raises(ConfigError, match=r"'target' is .*: 3 is no name of a column"):
        train("fedavg", "t.csv", client_column="who", target=["ill", 3])
    with pytest.raises(ConfigError, match="'\"x,z' begins a name with a quote that nothing closes"):
        load_data(table, client_column="who", target="ill", drop='"x,z')
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        load_data(table.iloc[:0], client_column="who", target="ill")
    with pytest.raises(ConfigError, match="a Series is one column; a table is a DataFrame"):
        load_data(table["ill"], client_column="who", target="ill")
    with pytest.raises(ConfigError, match="the data 'digits' are no table, so that there is no target column 'ill'"):
        load_data("digits", 5, target="ill")


def test_a_table_that_nobody_owns_is_said_to_be_dealt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.concat([frame()] * 5).to_csv(tmp_path / "t.csv", index=False)
    words = ["train", "fedavg", "--data", str(tmp_path / "t.csv"), "--rounds", "1"]
    dealt = "rows are dealt at random to 100 clients; --client-column NAME says whose each row is"
    for more in ([], ["--clients", "4"], ["--client-column", "who", "--few-rows", "pool"], ["--quiet"]):
        assert main([*words, *more, "--out", str(tmp_path / "".join(["run", *more]))]) == 0
        assert (dealt in capsys.readouterr().err) == (not more)


def test_names_that_say_nothing_elsewhere_are_told(tmp_path: Path) -> None:
    """NA may be a name (of a country, say), and is one; whoever meant that there is none hears of it."""
    table = pd.DataFrame({"who": ["a", "b", "NA", "a"] * 10, "x": np.arange(40.0), "y": ["no", "up", "no", "N/A"] * 10})
    table.to_csv(tmp_path / "t.csv", index=False, na_rep="NA")
    data = load_data(tmp_path / "t.csv", client_column="who", target="y")
    assert data.classes == data.clients == 3
    assert data.schema is not None
    said = "; ".join(data.schema.notes)
    for column, word in (("who", "NA"), ("y", "N/A")):
        note = f"{column}: '{word}', in 10 rows, is a name as others are; leave the cells empty if it stands for none"
        assert note in said
        seen = inspect_table(tmp_path / "t.csv", client_column="who", target="y")
        assert note in seen.notes
        (report,) = [report for report in seen.columns if report.name == column]
        assert (report.missing, report.distinct) == (0, 3)


def test_a_schema_may_be_named_by_its_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": ["a", "b"] * 12, "x": np.arange(24.0), "label": np.arange(24) % 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    schema = load_data(tmp_path / "t.csv", client_column="who").schema
    assert schema is not None
    (tmp_path / "schema.json").write_text(schema.to_json(), "utf-8")
    frame.iloc[:12].to_csv(tmp_path / "new.csv", index=False)
    for path in (tmp_path / "schema.json", str(tmp_path / "schema.json")):
        by_file = load_data(tmp_path / "new.csv", client_column="who", schema=path)
        by_object = load_data(tmp_path / "new.csv", client_column="who", schema=schema)
        assert by_file.fingerprint() == by_object.fingerprint()
    with pytest.raises(ConfigError, match=r"the schema '.*none\.json' cannot be read: "):
        load_data(tmp_path / "new.csv", client_column="who", schema=tmp_path / "none.json")


def test_clients_of_one_side_are_told_as_such(tmp_path: Path) -> None:
    """20 rows are not few; that they are training rows alone is why their client is left out."""
    table = frame()[frame().who.isin(["a", "b", "c"])]
    split = ["train" if who == "c" or row % 4 else "test" for row, who in enumerate(table.who)]
    data = load(tmp_path, table.assign(split=split), few_rows="drop")
    assert data.client_names == ("a", "b")
    told = TableSchema.sentences(data.about)
    assert "1 client with fewer than 2 rows or without training or test rows (20 rows in all) is left out." in told


def test_files_of_one_folder_may_have_columns_of_no_cells(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, rows in frame().groupby(frame().index % 2):
        rows.assign(tags=[[1, 2]] * len(rows)).to_parquet(folder / f"{part}.parquet")
    data = load_data(folder, client_column="who", drop="tags", few_rows="drop")
    assert data.about["notes"][0] == "2 files"
    assert data.schema is not None
    assert "tags" not in data.schema.needed


def folder_of_files(folder: Path) -> Path:
    """A table per client, in one folder."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name, middle in (("north.csv", 0.0), ("south.csv", 3.0), ("west.v2.csv", -3.0)):
        n = rng.normal(middle, 1, 40).round(3)
        pd.DataFrame({"n": n, "y": np.where(n > middle, "p", "q")}).to_csv(folder / name, index=False)
    return folder


def test_each_file_of_a_folder_is_a_client_s_where_that_is_said(tmp_path: Path) -> None:
    where = folder_of_files(tmp_path / "hospitals")
    data = load_data(str(where), client_column="file", target="y")
    assert data.client_names == ("north", "south", "west.v2")
    assert data.schema is not None
    assert data.schema.inputs == ["n"]  # and no feature
    assert (data.train_sizes + data.test_sizes).tolist() == [40, 40, 40]
    run = cg.train("fedrep", data, rounds=1, out=tmp_path / "run")
    said = cg.predict_rows(run, str(where), note=lambda text: None)
    assert said["file"].tolist() == ["north"] * 40 + ["south"] * 40 + ["west.v2"] * 40
    rows = pd.read_csv(where / "south.csv")
    np.testing.assert_allclose(said["p"][40:80], cg.predict_rows(run, rows, client="south")["p"], atol=1e-7)
    assert main(["predict", str(tmp_path / "run"), str(where), "--out", str(tmp_path / "said.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "said.csv")) == 120
    assert load_data(str(where), clients=3, target="y").clients == 3  # unsaid, rows are dealt out at random


def test_a_column_that_is_called_so_stays_what_it_is(tmp_path: Path) -> None:
    where = folder_of_files(tmp_path / "hospitals")
    for path in where.iterdir():
        pd.read_csv(path).assign(file=["a", "b"] * 20).to_csv(path, index=False)
    assert load_data(str(where), client_column="file", target="y").client_names == ("a", "b")
    with pytest.raises(DataError, match="has no column 'file'"):
        load_data(str(folder_of_files(tmp_path / "more") / "north.csv"), client_column="file", target="y")


def test_inspect_proposes_files_as_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder_of_files(tmp_path / "hospitals"))]) == 0
    assert "--client-column file --target y" in " ".join(capsys.readouterr().out.split())
