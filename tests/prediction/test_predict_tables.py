"""Predictions for tables: columns by name, clients by the client column, and no silent answer to a wrong table."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground import load_data, load_run, train
from commonground.cli import main
from commonground.data.tables.features import strange_cells
from commonground.data.tables.raw import raw_of_frame
from commonground.errors import CommonGroundWarning, ConfigError, DataError
from commonground.prediction.tables import Whose, predict_table


def frame(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"who": [f"w{i % 4}" for i in range(rows)], "key": [f"k{i}x" for i in range(rows)]})
    frame["income"] = rng.normal(3000, 800, rows).round(1)
    frame["age"] = rng.integers(18, 80, rows)
    frame["plan"] = rng.choice(["basic", "plus"], rows)
    frame["label"] = np.where(frame.income > 3000, "rich", "poor")
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, and the table."""
    path = tmp_path_factory.mktemp("tables")
    frame().to_csv(path / "t.csv", index=False)
    frame().assign(price=frame().income * 2).drop(columns="label").to_csv(path / "p.csv", index=False)
    given = ["--client-column", "who", "--quiet", "--rounds", "5"]
    assert main(["train", "fedavg", "--data", str(path / "t.csv"), *given, "--out", str(path / "run")]) == 0
    numbers = ["--data", str(path / "p.csv"), "--label", "price", "--task", "regression", "--out", str(path / "prices")]
    assert main(["train", "fedper", *numbers, *given]) == 0
    return path


@pytest.fixture
def ask(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Predicts a changed table; gives the answers by column, what was said, and the exit code."""

    def predict(table: pd.DataFrame, *more: str, run: str = "run") -> tuple[dict[str, list[str]], str, int]:
        table.to_csv(tmp_path / "new.csv", index=False)
        code = main(["predict", str(folder / run), str(tmp_path / "new.csv"), *more])
        out, err = capsys.readouterr()
        rows = list(csv.reader(io.StringIO(out)))
        columns = {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])} if rows else {}
        return columns, err, code

    return predict


def test_the_table_itself_with_ids_and_the_metric(ask: Any, folder: Path) -> None:
    answers, said, code = ask(frame())
    assert code == 0
    assert list(answers) == ["sample", "who", "key", "class", "probability"]
    assert answers["sample"] == [str(i) for i in range(120)]
    assert answers["key"] == list(frame().key)
    right = np.mean(np.array(answers["class"]) == frame().label)
    assert f"accuracy {100 * right:.1f} % over 120 rows" in said
    assert "as the mean over 4 clients" in said
    figures = said.splitlines()[1]
    recall = np.mean([np.mean(np.array(answers["class"])[frame().label == name] == name) for name in ("rich", "poor")])
    assert figures.startswith(f"balanced accuracy {100 * recall:.1f} % (")
    assert all(f" {name} " in figures for name in ("F1", "AUC", "log loss", "calibration error"))
    assert figures.endswith("over all rows (as means over clients)")
    run = load_run(folder / "run")
    assert run.trained.schema is not None


def test_order_does_not_matter_and_units_do(ask: Any) -> None:
    plain, _, _ = ask(frame())
    swapped, said, code = ask(frame()[["label", "plan", "age", "who", "income", "key"]])
    assert (swapped["probability"], code) == (plain["probability"], 0)
    assert "ignored" not in said
    extra, said, _ = ask(frame().assign(colour="red"))
    assert extra["probability"] == plain["probability"]
    assert "new.csv: ignored: 'colour'" in said
    other, said, _ = ask(frame().assign(income=frame().income * 1000))
    assert other["probability"] != plain["probability"]
    assert "income: 120 of 120 rows lie outside what training rows had" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.rename(columns={"income": "incomes"}), r"has no column 'income' (did you mean 'incomes'?)"),
        (lambda t: t.drop(columns="plan"), "has no column 'plan'"),
        (lambda t: t.rename(columns={"plan": "age", "age": "plan"}), "line 2, column 'age': '"),
        (
            lambda t: t.astype({"age": str}).replace({"age": {t.age.astype(str)[7]: "old"}}),
            "column 'age': 'old' is no number",
        ),
        (
            lambda t: t.assign(who=t.who.replace("w2", "5")),
            "1 of the 4 clients took no part in the run, the first is '5'",
        ),
        (lambda t: t.drop(columns="who"), "has no column 'who'; give either --client ID or --global"),
        (lambda t: t.rename(columns={c: str(i) for i, c in enumerate(t)}), "has no column 'income'"),
    ],
)
def test_a_wrong_table_gives_no_answer(change: Any, says: str, ask: Any) -> None:
    answers, said, code = ask(change(frame()))
    assert (answers, code) == ({}, 2)
    assert says in said
    assert said.count("\n") == 1


def test_one_client_for_all_and_the_global_model(ask: Any) -> None:
    rows = frame().drop(columns=["who", "label"])
    one, said, code = ask(rows, "--client", "w1")
    everyone, _, _ = ask(rows, "--global")
    assert (code, said) == (0, "")
    assert one["probability"] == everyone["probability"]  # of FedAvg
    _, said, _ = ask(frame(), "--client", "w1")
    assert "90 rows of other clients; the model of 'w1' is asked of them too" in said
    assert ask(rows, "--client", "w1", "--global")[2] == 2


def test_an_only_client_need_not_be_named(ask: Any, folder: Path) -> None:
    given = ["train", "local", "--clients", "1", "--rounds", "1", "--quiet", "--out", str(folder / "alone"), "--data"]
    assert main([*given, str(folder / "t.csv"), "--drop", "who"]) == 0
    named, _, _ = ask(frame(), "--client", "0", run="alone")
    plain, said, code = ask(frame(), run="alone")
    assert (plain, code) == (named, 0)
    assert len(plain["class"]) == 120
    assert "accuracy" in said


def test_numbers_have_their_own_metric_and_models(ask: Any, folder: Path) -> None:
    table = pd.read_csv(folder / "p.csv")
    answers, said, code = ask(table, run="prices")
    assert code == 0
    error = np.sqrt(np.mean((np.array(answers["price"], dtype=float) - table.price) ** 2))
    assert said.startswith("RMSE ")
    assert float(said.split()[1].replace(",", "")) == pytest.approx(error, rel=1e-2)
    own = {client: ask(table, "--client", client, run="prices")[0]["price"] for client in ("w0", "w1")}
    assert own["w0"] != own["w1"]
    assert answers["price"][:2] == [own["w0"][0], own["w1"][1]]


def test_decimal_commas_in_the_target_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = pd.read_csv(folder / "p.csv"), tmp_path / "run"
    table.to_csv(tmp_path / "p.csv", index=False, sep=";", decimal=",")
    table.to_parquet(tmp_path / "p.parquet")
    given = ["--client-column", "who", "--label", "price", "--task", "regression", "--rounds", "1", "--quiet"]
    assert main(["train", "fedper", "--data", str(tmp_path / "p.csv"), *given, "--out", str(out)]) == 0
    said = []
    for data in (tmp_path / "p.csv", tmp_path / "p.parquet"):
        assert main(["predict", str(out), str(data)]) == 0
        said.append(capsys.readouterr().err.splitlines()[-1])
    assert said[0].startswith("RMSE ")
    assert said[0] == said[1]
    assert main(["predict", str(out), str(folder / "p.csv")]) == 2  # 3000.5 is no number where 3000,5 is one
    assert "column 'income': '" in capsys.readouterr().err


def test_unseen_categories_and_classes_are_said(ask: Any) -> None:
    table = frame().assign(plan="gold")
    _, said, code = ask(table)
    assert code == 0
    assert "plan: 120 rows hold what the model has no input for ('gold'); read as none" in said
    _, said, _ = ask(frame().assign(label="other"))
    assert "accuracy 0.0 % over 120 rows" in said
    _, said, _ = ask(frame().assign(label=lambda t: t.label.where(t.index % 4 > 0, "other")))
    assert "over 120 rows (30 of them of classes that the run does not know, 'other': they count as wrong)" in said
    assert "over the 90 rows of known classes (as means over clients)" in said


def test_an_array_is_no_table(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 5)))
    assert main(["predict", str(folder / "run"), "--client", "w1", "--input", str(tmp_path / "x.npy")]) == 2
    assert "is no table with names of columns" in capsys.readouterr().err
    assert main(["predict", str(folder / "run"), "--client", "w1"]) == 2
    assert "name one file with the samples" in capsys.readouterr().err


def test_a_frame_in_python(folder: Path) -> None:
    run = load_run(folder / "prices")
    table = pd.read_csv(folder / "p.csv")
    said = run.predict(table, client="w1")
    assert np.array_equal(run.predict(table[table.columns[::-1]], client="w1"), said)
    with pytest.raises(DataError, match="has no column 'age'"):
        run.predict(table.drop(columns="age"), client="w1")
    digits = train("fedavg", clients=2, rounds=1, model="linear")
    with pytest.raises(ConfigError, match="was not trained on a table"):
        digits.predict(table, client=0)


def adapted(run: Path, data: Path, out: Path, *more: str) -> dict[str, Any]:
    given = ["--data", str(data), "--out", str(out), "--epochs", "3", "--repeats", "1", *more]
    assert main(["adapt", str(run), "--shots", "2,5", *given]) == 0
    return dict(json.loads((out / "adapt.json").read_text("utf-8")))


def test_a_path_may_be_a_text(folder: Path) -> None:
    assert cg.predict_rows(folder / "run", str(folder / "t.csv")).equals(
        cg.predict_rows(folder / "run", folder / "t.csv")
    )


@pytest.mark.parametrize("other", [np.zeros((2, 2)), [{"age": 1.0}], {"age": 1.0}, None, 3])
def test_what_is_no_table_is_a_sentence(other: Any, folder: Path) -> None:
    kind = type(other).__name__
    with pytest.raises(ConfigError, match=f"^a table is a DataFrame, .* or the path of a file, and no {kind}$"):
        cg.predict_rows(folder / "run", other)
    call = re.escape("load_data(…, client_column='who', schema=run.trained.schema)")
    says = f"^data are the new clients as a FederatedDataset, such as {call}, and no {kind}$"
    with pytest.raises(ConfigError, match=says):
        cg.adapt(folder / "run", other, shots=[2])
    with pytest.raises(ConfigError, match=says):
        cg.keep_clients(folder / "run", other)


def test_new_clients_of_a_table(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Encoded as in the run, columns by name, and customers with few rows do not stop the others."""
    new = frame().assign(who=[f"n{i % 3}" if i > 4 else ("tiny" if i else "single") for i in range(120)])
    files = {
        "plain": new,
        "swapped": new[new.columns[::-1]],
        "unit": new.assign(income=new.income * 1000),
    }
    found = {}
    for name, table in files.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        found[name] = adapted(folder / "run", tmp_path / f"{name}.csv", tmp_path / name)
        said = capsys.readouterr().err
        assert "left out for having too few samples for 5 shots and a test: 2 clients, 'tiny', 'single'" in said
    assert (found["plain"]["clients"], found["plain"]["left_out"]) == (3, ["tiny", "single"])
    assert found["swapped"]["results"] == found["plain"]["results"]
    assert found["unit"]["results"] != found["plain"]["results"]
    assert main(["adapt", str(folder / "run"), "--shots", "5", "--data", str(tmp_path / "plain.csv"), "--quiet"]) == 0
    new.rename(columns={"age": "Age"}).to_csv(tmp_path / "wrong.csv", index=False)
    assert main(["adapt", str(folder / "run"), "--shots", "5", "--data", str(tmp_path / "wrong.csv")]) == 2
    assert "has no column 'age' (did you mean 'Age'?)" in capsys.readouterr().err


def test_newcomers_without_labels(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = frame().assign(who=[f"n{i % 3}" for i in range(120)], label=lambda t: t.label.where(t.index % 7 > 0, None))
    table.to_csv(tmp_path / "t.csv", index=False)
    command = ["adapt", str(folder / "run"), "--shots", "5", "--data", str(tmp_path / "t.csv"), "--quiet"]
    assert main(command) == 2
    assert "--missing-target drop leaves such rows out" in capsys.readouterr().err
    assert main([*command, "--missing-target", "drop", "--out", str(tmp_path)]) == 0


def test_newcomers_rows_of_nobody(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = frame().assign(who=[f"n{i % 3}" if i % 7 else None for i in range(120)])
    table.to_csv(tmp_path / "t.csv", index=False)
    command = ["adapt", str(folder / "run"), "--shots", "5", "--data", str(tmp_path / "t.csv"), "--quiet"]
    assert main(command) == 2
    assert "leave such rows out by --missing-client drop" in capsys.readouterr().err
    assert main([*command, "--missing-client", "drop", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "adapt.json").read_text())["clients"] == 3
    # Rows that nobody owns have no model of their own; a run that left such out does so with newcomers' as well,
    # unless it is told to refuse them.
    assert main(["predict", str(folder / "run"), str(tmp_path / "t.csv")]) == 2
    hint = "give every row its client, or ask one model for all rows by --client or --global"
    assert hint in capsys.readouterr().err
    given = ["train", "fedavg", "--data", str(tmp_path / "t.csv"), "--client-column", "who", "--rounds", "1", "--quiet"]
    assert main([*given, "--missing-client", "drop", "--out", str(tmp_path / "run")]) == 0
    again = ["adapt", str(tmp_path / "run"), "--shots", "5", "--data", str(tmp_path / "t.csv"), "--quiet"]
    assert main([*again, "--out", str(tmp_path)]) == 0
    assert main([*again, "--partition", "iid", "--clients", "3", "--out", str(tmp_path)]) == 0  # clients are dealt
    capsys.readouterr()
    assert main([*again, "--missing-client", "refuse"]) == 2
    assert "the cell is empty" in capsys.readouterr().err


def test_newcomers_of_test_rows_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame().assign(who="new", split="test").to_csv(tmp_path / "t.csv", index=False)
    assert main(["adapt", str(folder / "run"), "--shots", "5", "--data", str(tmp_path / "t.csv"), "--quiet"]) == 2
    assert "no client has both training and test rows; to train, take --few-rows pool" in capsys.readouterr().err


def test_numbers_that_are_written_otherwise_than_in_training(ask: Any) -> None:
    table = frame()
    german = table.assign(income=[f"{value:,.1f}".translate(str.maketrans(",.", ".,")) for value in table.income])
    answers, said, _ = ask(german, "--kinds", "income=comma-number")
    assert (answers, said.splitlines()[-2:]) == (ask(table)[0], ask(table)[1].splitlines()[-2:])
    refused = ask(german)[1].strip()
    assert "column 'income': '" in refused
    assert refused.endswith("; if it writes them otherwise than in training, say --kinds income=comma-number")
    assert "--kinds" not in ask(table.assign(income=["high", *map(str, table.income[1:])]))[1]
    prices = table.assign(price=german.income)
    asked, said, _ = ask(prices, "--kinds", "price=comma-number", run="prices")
    assert asked == ask(table.assign(price=table.income), run="prices")[0]
    assert said == ask(table.assign(price=table.income), run="prices")[1]


def test_dates_keep_the_run_s_order_unless_another_is_said(tmp_path: Path) -> None:
    day = [f"0{1 + i % 9}/0{1 + i % 8}/2024" for i in range(120)]
    table = frame().assign(day=day)
    table.to_csv(tmp_path / "t.csv", index=False)
    run = train("fedavg", load_data(table, client_column="who", label="label", kinds="day=date:%m/%d/%Y"), rounds=1)
    asked: list[Any] = [run.trained, tmp_path / "t.csv", Whose(shared=True), lambda text: None]
    ways = (None, "day=date", "day=date:%m/%d/%Y", "day=date:%d/%m/%Y")
    answers = {kinds: predict_table(*asked, kinds=kinds) for kinds in ways}
    same = answers.pop("day=date:%d/%m/%Y")
    assert all(answer == answers[None] for answer in answers.values())
    assert same != answers[None]


def test_truths_may_be_numbers_if_somebody_says_so(tmp_path: Path) -> None:
    table = frame().assign(far=[i % 2 for i in range(120)])
    run = train("fedavg", load_data(table, client_column="who", label="label"), rounds=1)
    table.assign(far=table.far == 1).to_parquet(tmp_path / "t.parquet")
    asked: list[Any] = [run.trained, tmp_path / "t.parquet", Whose(shared=True), lambda text: None]
    with pytest.raises(DataError, match="column 'far': 'false' is no number"):
        predict_table(*asked)
    table.to_parquet(tmp_path / "n.parquet")
    numbers = predict_table(asked[0], tmp_path / "n.parquet", *asked[2:])
    assert predict_table(*asked, kinds="far=number").rows == numbers.rows


def test_kinds_are_of_tables_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("fedavg", "digits", clients=2, rounds=1, out=tmp_path / "run")
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8)))
    asked = ["predict", str(tmp_path / "run"), str(tmp_path / "x.npy"), "--client", "0"]
    assert main(asked) == 0
    assert main([*asked, "--kinds", "x=number"]) == 2
    assert "--kinds says how a table's columns are written, and the run in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kinds", "match"),
    [
        ("income=category", "the column 'income' cannot be read as category: it was read as number in training"),
        ("income=nombre", "the kind of the column 'income' is 'nombre'"),
        ("salary=number", "has no column 'salary'"),
    ],
)
def test_kinds_that_do_not_fit_the_run_are_refused(kinds: str, match: str, ask: Any) -> None:
    _, said, code = ask(frame(), "--kinds", kinds)
    assert code == 2
    assert match in said


def test_a_metric_over_training_rows_is_said_to_be_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    frame().to_csv(own, index=False)
    frame().to_csv(other, index=False)
    cg.train("fedavg", own, client_column="who", rounds=1, out=tmp_path / "run")
    for table, told in ((own, 1), (other, 0)):
        assert main(["predict", str(tmp_path / "run"), str(table)]) == 0
        said = capsys.readouterr().err
        assert "accuracy" in said
        assert said.count("the run was trained on rows of this file; its own figures are of test rows alone") == told
    frame().drop(columns="label").to_csv(own, index=False)
    assert main(["predict", str(tmp_path / "run"), str(own)]) == 0
    assert "test rows" not in capsys.readouterr().err


def test_a_frame_is_answered_row_by_row(folder: Path, ask: Any) -> None:
    """As by the command, with every class's probability, under the frame's own index."""
    rows = frame().drop(columns="label").sample(frac=1, random_state=3)
    found = cg.predict_rows(folder / "run", rows)
    answers, _, _ = ask(rows)
    assert found.index.equals(rows.index)
    assert [*found.columns] == ["who", "class", "poor", "rich"]
    assert found["who"].tolist() == rows["who"].tolist()
    assert found["class"].tolist() == answers["class"]
    assert [f"{p:.6f}" for p in found[["poor", "rich"]].max(axis=1)] == answers["probability"]
    with pytest.warns(UserWarning, match="the table: 90 rows of other clients; the model of 'w1' is asked of them too"):
        one = cg.predict_rows(folder / "run", rows, client="w1")
    run = cg.load_run(folder / "run")
    assert np.allclose(one[["poor", "rich"]], run.predict(rows, client="w1"))
    assert np.allclose(cg.predict_rows(run, rows, shared=True)[["poor", "rich"]], run.predict(rows))
    with pytest.raises(ConfigError, match="give either client=… or shared=True"):
        cg.predict_rows(run, rows, client="w1", shared=True)
    with pytest.warns(UserWarning, match="the table: ignored: 'colour'"):
        cg.predict_rows(run, rows.assign(colour="red"))


def test_numbers_and_paths_are_answered_row_by_row(tmp_path: Path) -> None:
    rows = frame().drop(columns="label")
    run = cg.train(
        "fedrep", rows_data := cg.load_data(rows, client_column="who", target="income", task="regression"), rounds=1
    )
    assert rows_data.schema is not None
    path = tmp_path / "t.csv"
    rows.to_csv(path, index=False)
    found = cg.predict_rows(run, path)
    assert [*found.columns] == ["who", "income"]
    for who, part in rows.groupby("who"):
        assert np.allclose(found["income"][part.index], run.predict(part, client=str(who))[:, 0], rtol=1e-5)
    with pytest.raises(ConfigError, match=r"was not trained on a table, .*; take run\.predict$"):
        cg.predict_rows(cg.train("fedavg", "digits", clients=4, rounds=1), rows)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_clients_that_are_numbers_are_found_in_whatever_rows(kind: str, tmp_path: Path) -> None:
    """Beside 1.5 a file writes 1 as 1.0; what else is asked, and how it is stored, changes nobody's name."""
    x = np.random.default_rng(0).normal(size=90)
    table = pd.DataFrame({"x": x, "who": np.repeat([1.0, 1.5, 2.0], 30), "label": np.where(x > 0, "a", "b")})
    getattr(table, f"to_{kind}")(tmp_path / f"t.{kind}", index=False)
    run = cg.train("fedrep", cg.load_data(tmp_path / f"t.{kind}", client_column="who"), rounds=2, lr=0.1)
    whole = cg.predict_rows(run, table)
    for rows in ([0, 1, 60], [0, 30], [60]):
        some = table.iloc[rows]
        for asked in (some, some.astype({"who": str}), some.astype({"who": int}) if 30 not in rows else some):
            np.testing.assert_allclose(cg.predict_rows(run, asked)["a"], whole["a"].iloc[rows], atol=1e-6)


def test_columns_that_would_be_called_the_same_have_their_kind_before_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A school's clients are in a column ``class``, and one of what is predicted is called so, too."""
    table = frame().rename(columns={"who": "class", "label": "kind"}).drop(columns="key")
    table["kind"] = table["kind"].replace("rich", "class")
    table.to_csv(tmp_path / "school.csv", index=False)
    run = train("fedavg", tmp_path / "school.csv", client_column="class", target="kind", rounds=1, out=tmp_path / "run")
    said = cg.predict_rows(run, table)
    assert [*said.columns] == ["class", "predicted class", "probability of class", "poor"]
    assert [*said["class"]] == [*table["class"]]
    assert ((said["probability of class"] > 0.5) == (said["predicted class"] == "class")).all()
    tested = cg.predict_tests(run)
    assert [*tested.columns] == ["sample", "client", "actual", "class", "probability of class", "poor"]
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "school.csv")]) == 0
    assert capsys.readouterr().out.startswith("sample,class,predicted class,probability\n0,w0,")


def test_large_targets_are_written_in_the_digits_that_they_differ_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    table = pd.DataFrame({"who": ["a", "b"] * 40, "x": x, "y": 1e9 + 2 * x})
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["--data", str(tmp_path / "t.csv"), "--client-column", "who", "--target", "y", "--task", "regression"]
    assert main(["train", "fedrep", *given, "--rounds", "2", "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "t.csv")]) == 0
    written = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose(
        written["y"] - 1e9, cg.predict_rows(tmp_path / "run", table)["y"] - 1e9, rtol=0, atol=1e-5
    )
    assert main(["predict", str(tmp_path / "run"), "--tested"]) == 0
    tested = pd.read_csv(io.StringIO(capsys.readouterr().out))
    columns = [name for name in tested if tested[name].dtype == float and (tested[name] > 9e8).all()]
    assert len(columns) >= 2  # what is right, and what was said
    assert all((tested[name] % 1 != 0).any() for name in columns)
    said = cg.load_run(tmp_path / "run").trained.task.choose(np.array([[1e9 + 0.25]]), ["y"])  # as a service says it
    assert said == ["1000000000.25"]


def test_a_single_row_that_cannot_be_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By predict, by a model that was exported, and of every row by a service."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"who": ["a", "b"] * 40, "age": rng.uniform(20, 90, 80).round(), "y": ["no", "up"] * 40})
    table.to_csv(tmp_path / "t.csv", index=False)
    run = train("fedavg", tmp_path / "t.csv", client_column="who", target="y", rounds=1, out=tmp_path / "run")
    low, high = table["age"].min(), table["age"].max()
    within = f"far outside what training rows had ({low:g} to {high:g})"
    for ages, said in (([1000.0], "the row lies"), ([30, 40, 50, 60, -500.0, 70], "1 of 6 rows lies")):
        asked = pd.DataFrame({"who": "a", "age": ages, "zz": 1})
        asked.to_csv(tmp_path / "asked.csv", index=False)
        assert main(["predict", str(tmp_path / "run"), str(tmp_path / "asked.csv")]) == 0
        assert f"age: {said} {within}, first in line {ages.index(max(ages, key=abs)) + 2}" in capsys.readouterr().err
    cg.export_model(run, tmp_path / "out")
    exported = cg.load_exported(tmp_path / "out")
    for ask in (exported.predict, lambda frame: cg.table_inputs(tmp_path / "out", frame)):
        # The least and the most of a column do not travel with a model.
        with pytest.warns(CommonGroundWarning) as warned:
            ask(pd.DataFrame({"age": [50.0, None], "zz": 1}))
        sentences = [str(one.message) for one in warned]
        assert sentences[0] == "ignored: 'zz'"
        assert sentences[1].startswith("age: 1 of 2 rows lacks it, which no training row did; ")
    raw = raw_of_frame(pd.DataFrame({"age": [1000.0, None, 50.0]}))
    assert run.trained.schema is not None
    far, empty, plain = strange_cells(raw, run.trained.schema)
    assert far == (f"age: {within}",)
    assert empty[0].startswith("age: empty, which no training row was; ")
    assert plain == ()
