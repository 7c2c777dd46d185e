"""A look at a table before training, and the table that is made to be looked at."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commonground import load_data, train
from commonground.cli import main
from commonground.data.tables.example import example_table
from commonground.data.tables.inspect import inspect_table
from commonground.errors import DataError


def messy(path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = 200
    frame = pd.DataFrame({"row_id": np.arange(rows) * 3, "Customer": [f"c{max(0, i - 9) % 8}" for i in range(rows)]})
    frame.loc[rows - 2 :, "Customer"] = ["once", "also once"]
    frame["key"] = [f"{i:04x}-{i % 7}" for i in range(rows)]
    frame["age"] = rng.integers(18, 90, rows)
    frame.loc[::10, "age"] = np.nan
    frame["fixed"] = "x"
    frame["churn"] = rng.choice(["no", "yes"], rows, p=[0.8, 0.2])
    frame["reason"] = np.where(frame.churn == "yes", rng.choice(["price", "moved"], rows), "none given")
    frame["last_bill"] = np.where(frame.churn == "yes", 0.0, rng.normal(50, 5, rows).round(2))
    frame["size"] = [("old" if i == 7 else str(i % 5)) for i in range(rows)]
    frame.to_csv(path, index=False, sep=";")
    return path


def test_what_is_found(tmp_path: Path) -> None:
    found = inspect_table(messy(tmp_path / "t.csv"))
    column = {report.name: report for report in found.columns}
    assert (found.rows, found.client_column, found.target, found.task) == (200, "Customer", "churn", "classification")
    assert found.notes == ("separated by semicolons",)
    assert column["row_id"].suspicious.startswith("numbers the rows")
    assert column["key"].suspicious.startswith("names a row")
    assert column["fixed"].suspicious == "is always the same"
    for leak in ("reason", "last_bill"):
        assert column[leak].suspicious.startswith("determines the target"), leak
    assert (column["age"].missing, column["age"].suspicious, column["age"].kind) == (20, "", "number")
    assert column["size"].kind == "mixed"
    assert "line 9, column 'size': 'old'" in column["size"].suspicious
    assert (found.clients, found.sizes["one"], found.sizes["few"]) == (10, 2, 2)
    assert found.drop == ("row_id", "reason", "last_bill", "size")


def test_the_proposed_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = shlex.split(inspect_table(messy(tmp_path / "my table.csv")).command)
    assert command[command.index("--few-rows") + 1] == "pool"
    monkeypatch.chdir(tmp_path)
    assert main([*command[1:], "--rounds", "1", "--quiet"]) == 0
    schema = json.loads((tmp_path / "runs" / "my table" / "schema.json").read_text("utf-8"))
    assert [feature["name"] for feature in schema["features"]] == ["age"]
    assert schema["few_rows"]["clients"] == ["also once", "once"]


def test_texts_are_for_models_that_read_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    words = [" ".join(rng.choice(["good", "bad", "room", "food", "staff", "was", "the"], 12)) for _ in range(60)]
    frame = pd.DataFrame({"review": words, "label": ["a", "b"] * 30, "silo": ["x", "y", "z"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = inspect_table(tmp_path / "t.csv")
    command = shlex.split(found.command)
    assert command[:3] == ["commonground", "train", "lora"]
    assert "--client-column silo --target label --text-column review" in found.command
    assert found.command == found.text_command
    # It is a command that reads the table: all but the model are there.
    (tmp_path / "bert").mkdir()
    command[command.index("--model") + 1] = f"hf:{tmp_path / 'bert'}"
    assert main([*command[1:-1], str(tmp_path / "run")]) == 2
    assert "bert" in capsys.readouterr().err
    # With columns of numbers beside them there is a choice; texts of many words are no classes.
    frame.assign(stars=rng.integers(1, 6, 60)).to_csv(tmp_path / "s.csv", index=False)
    assert main(["inspect", str(tmp_path / "s.csv")]) == 0
    said = capsys.readouterr().out
    assert "to train on it: commonground train fedrep" in said
    assert "to train on its texts alone: commonground train lora" in said
    frame.assign(price=np.exp(rng.normal(size=60))).to_csv(tmp_path / "p.csv", index=False)
    assert inspect_table(tmp_path / "p.csv", target="price").text_command == ""
    assert main(["inspect", str(tmp_path / "p.csv"), "--target", "price", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"].split()[2] == "fedrep"  # by the label


@pytest.mark.parametrize(
    "more",
    [
        {"id": range(60)},
        {"fixed": ["always"] * 60},
        {"split": ["train", "test", "train"] * 20},
        {"key": [f"k{i}x" for i in range(60)]},
        {"known": ["later, yes", "later, no"] * 30},
    ],
)
def test_columns_that_are_no_inputs_are_not_trained_on(
    more: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    pair = [[" ".join(rng.choice(["good", "bad", "room", "food", "was"], 12)) for _ in range(60)] for _ in range(2)]
    frame = pd.DataFrame({"sentence1": pair[0], "sentence2": pair[1], **more, "label": ["a", "b"] * 30})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = inspect_table(tmp_path / "t.csv")
    assert found.command == found.text_command
    assert "--text-column" not in found.command  # a pair of usual names is found
    frame.assign(label=np.exp(rng.normal(size=60))).to_csv(tmp_path / "n.csv", index=False)
    if "known" not in more:
        assert main(["inspect", str(tmp_path / "n.csv")]) == 0
        assert "no column can be an input for that target" in capsys.readouterr().out


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = messy(tmp_path / "t.csv")
    assert main(["inspect", str(file)]) == 0
    said = capsys.readouterr().out
    assert "t.csv: 200 rows, 9 columns (separated by semicolons)" in said
    assert "2 with one row" in said
    assert "to train on it: commonground train fedrep --data" in said
    assert main(["inspect", str(file), "--target", "age", "--client-column", "key", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["client_column"], found["clients"]) == ("age", "key", 200)
    assert main(["inspect", str(file), "--target", "agee"]) == 2
    assert "has no column 'agee' (did you mean 'age'?)" in capsys.readouterr().err


def test_a_target_of_many_numbers_is_a_regression(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    frame = pd.DataFrame({"a": x, "b": x**3, "c": rng.normal(size=300), "y": 5 + np.exp(x)})
    frame.to_parquet(tmp_path / "t.parquet")
    found = inspect_table(tmp_path / "t.parquet")
    assert (found.task, found.target, found.client_column, found.drop) == ("regression", "y", None, ("a", "b"))
    assert "--clients 10 --target y --task regression --drop a,b" in found.command


def test_the_example_is_keyed_and_its_clients_differ() -> None:
    one, same, other = example_table(seed=1), example_table(seed=1), example_table(seed=2)
    pd.testing.assert_frame_equal(one, same)
    assert not one.equals(other)
    assert (len(one), one.customer.nunique(), one.contract.nunique()) == (6000, 60, 6000)
    assert one.customer.value_counts().min() >= 8
    assert 0.3 < (one.renewed == "yes").mean() < 0.7
    assert one.isna().any().sum() == 2


def test_the_example_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "customers.csv"
    assert main(["example", str(file), "--rows", "600", "--customers", "12", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(file), example_table(600, 12, 3), check_dtype=False)
    command = next(line for line in said.splitlines() if "commonground train" in line).partition("commonground ")[2]
    assert main([*shlex.split(command), "--rounds", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    for wrong, says in (([str(file)], "exists already"), ([str(tmp_path / "t.txt")], "as .csv or .parquet"),
                        ([str(tmp_path / "u.csv"), "--rows", "20"], "20 rows are too few for 60")):  # fmt: skip
        assert main(["example", *wrong]) == 2
        assert says in capsys.readouterr().err


def test_a_shared_body_with_personal_heads_fits_the_example(tmp_path: Path) -> None:
    example_table(2000, 20, seed=21).to_csv(tmp_path / "t.csv", index=False)
    data = load_data(tmp_path / "t.csv", client_column="customer", label="renewed")
    reached = {name: train(name, data, rounds=20).personal_accuracy["mean"] for name in ("fedrep", "fedavg", "local")}
    assert reached["fedrep"] > reached["fedavg"] + 0.02
    assert reached["fedrep"] > reached["local"]


@pytest.mark.parametrize("comma", [",", "."])
def test_a_price_with_a_comma_is_a_number_to_predict(comma: str, tmp_path: Path) -> None:
    """Never a classification unasked: neither by inspect nor by train."""
    rng = np.random.default_rng(0)
    lines = ["shop;area;price"]
    for row in range(200):
        area, price = (f"{value:.2f}".replace(".", comma) for value in (50 + 10 * rng.normal(), 1300 * rng.random()))
        lines.append(f"s{row % 4};{area};{price}")
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(lines) + "\n")
    found = inspect_table(path, client_column="shop", target="price")
    assert found.task == "regression"
    assert "--task regression" in found.command
    with pytest.raises(DataError, match=r"the column 'price' holds \d+ different numbers; say --task regression"):
        load_data(path, client_column="shop", label="price")


@pytest.mark.parametrize("without", [1, 2])
def test_the_command_for_empty_targets_and_clients_without_test_rows_runs(without: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"shop": [f"s{row % 5}" for row in range(100)], "a, b": rng.normal(size=100).round(3)})
    frame["label"] = rng.choice(["x", "y"], 100)
    frame.loc[::9, "label"] = None
    frame.loc[50:52, "shop"] = None
    frame["split"] = ["test" if row % 4 == 1 and row % 5 >= without else "train" for row in range(100)]
    frame["copy, of"] = frame["label"]
    frame.to_csv(tmp_path / "shops.csv", index=False)
    found = inspect_table(tmp_path / "shops.csv", client_column="shop", target="label")
    command = shlex.split(found.command)
    assert found.sizes["one_sided"] == without
    assert command[command.index("--few-rows") + 1] == "drop"
    assert command[command.index("--missing-target") + 1] == "drop"
    assert command[command.index("--missing-client") + 1] == "drop"
    assert command[command.index("--drop") + 1] == '"copy, of"'
    assert main([*command[1:], "--rounds", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 0


@pytest.mark.parametrize("alone", [1, 2])
def test_the_command_for_clients_of_one_row_runs(alone: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shops = [f"s{row % 3}" for row in range(60)] + [f"lonely{n}" for n in range(alone)]
    lines = ["shop,a,b,label", *(f"{s},{rng.normal():.3f},{rng.normal():.3f},{rng.choice(['x', 'y'])}" for s in shops)]
    path = tmp_path / "shops.csv"
    path.write_text("\n".join(lines) + "\n")
    command = shlex.split(inspect_table(path, client_column="shop", target="label").command)
    assert command[command.index("--few-rows") + 1] == ("drop" if alone == 1 else "pool")
    assert "--min-rows" not in command  # nobody else is to lose its own model
    assert main([*command[1:], "--rounds", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 0


def test_no_target_is_proposed_that_nothing_can_be_learnt_of(tmp_path: Path) -> None:
    rows = [f"c{n % 4},{n % 7},{'ab'[n % 2]},DE,key{n}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,fault,country,name", *rows]))
    assert inspect_table(tmp_path / "t.csv").target == "fault"
    (tmp_path / "one.csv").write_text("\n".join(["site,country", *[f"c{n % 4},DE" for n in range(40)]]))
    assert inspect_table(tmp_path / "one.csv").target is None


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_number_that_counts_the_rows_is_told_of_in_any_order(shuffled: bool, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).permutation(60) if shuffled else np.arange(60)
    rows = [f"c{n % 4},{count + 100},{n % 7},{'ab'[n % 2]}" for n, count in enumerate(counts)]
    (tmp_path / "t.csv").write_text("\n".join(["site,reading,x,label", *rows]))
    schema = load_data(tmp_path / "t.csv", client_column="site").schema
    assert schema is not None
    assert [note for note in schema.notes if "reading" in note] == [
        "reading: it counts the rows, and is a feature; --drop it if it is none"
    ]


def test_a_column_of_test_rows_is_found_by_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": np.arange(120) % 3, "x": rng.normal(size=120), "ward": rng.choice(["a", "b"], 120)})
    frame["set"] = np.where(np.arange(120) % 5 == 0, "Test", "Train")
    frame["y"] = rng.choice(["no", "yes"], 120)
    frame.loc[frame.set == "Test", "ward"] = ["c", "d"] + ["a"] * 22
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = inspect_table(tmp_path / "t.csv")
    assert found.split == "set"
    command = shlex.split(found.command)
    assert command[command.index("--split-column") + 1] == "set"
    monkeypatch.chdir(tmp_path)
    assert main([*command[1:], "--rounds", "1"]) == 0
    told = capsys.readouterr().err
    assert "ward: 2 test rows with what no training row has ('c', 'd'); read as none" in told
    assert main(["inspect", "t.csv"]) == 0
    assert "category (test rows)" in capsys.readouterr().out
    frame.loc[:4, "shop"] = np.nan
    frame.loc[0, "set"] = "later"
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = inspect_table(tmp_path / "t.csv")
    assert found.split is None
    assert found.notes == ("5 rows without a client, which --missing-client drop leaves out",)


def test_a_price_that_is_not_there_makes_prices_no_classes(tmp_path: Path) -> None:
    """299 different numbers and one NA: what is asked for a column of numbers is asked for this one."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": np.arange(300) % 3, "x": rng.normal(size=300), "price": rng.normal(9, 2, 300)})
    frame.loc[7, "price"] = np.nan
    path = tmp_path / "p.csv"
    frame.to_csv(path, index=False, na_rep="NA")
    with pytest.raises(DataError, match="holds 300 different numbers; say --task regression"):
        load_data(path, client_column="shop", target="price")
    found = inspect_table(path, target="price")
    assert found.task == "regression"
    command = shlex.split(found.command)
    assert command[command.index("--task") + 1] == "regression"
    assert command[command.index("--missing-target") + 1] == "drop"
    assert main([*command[1:], "--rounds", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 0


def test_a_client_column_without_a_name_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("shop,x,label\n,1,a\n,2,b\n")
    with pytest.raises(DataError, match="the column 'shop' names no client; all its cells are empty"):
        inspect_table(tmp_path / "t.csv", client_column="shop")
