"""New clients' tables become inputs, scales and targets as the run's own, however they were read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.engine.predictions import outputs_of
from commonground.errors import DataError

KEYS: dict[str, Any] = {"client_column": "who", "target": "y"}


def rows(who: str, n: int, about: float, seed: int, task: str = "regression") -> pd.DataFrame:
    """y = 100 + 20 (x − 10) + 10 z; or whether z is positive."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"who": rng.choice(list(who), n), "x": rng.normal(about, 2, n), "z": rng.normal(size=n)})
    y = 100 + 20 * (frame.x - 10) + 10 * frame.z
    return frame.assign(y=y if task == "regression" else np.where(frame.z > 0, "up", "down"))


def trained(folder: Path, task: str, **more: Any) -> cg.Run:
    data = cg.load_data(rows("abcd", 200, 10, 0, task), **KEYS, task=task, **more)
    return cg.train("fedrep", data, rounds=4, engine="serial", out=folder)


def score(run: cg.Run, frame: pd.DataFrame, data: cg.FederatedDataset, name: str) -> float:
    """The run's metric over the newcomer's test rows, from what it predicts for them as they stand in the table."""
    found = data.x_test[:, 0] if data.schema and not data.schema.client_scales else None
    held = frame if found is None else frame[frame.x.astype(np.float32).isin(found)]
    said = run.predict(held, name)
    if run.trained.task.name == "regression":
        return float(np.sqrt(((said[:, 0] - held.y) ** 2).mean()))
    return float((np.array(run.trained.split["class_names"])[said.argmax(1)] == held.y).mean())


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_what_keep_says_is_what_the_model_does(task: str, tmp_path: Path) -> None:
    """The head was fitted under scales learnt from the newcomer, and asked under the run's."""
    run = trained(tmp_path, task)
    new = rows("n", 160, 14, 1, task)
    data = cg.load_data(new[["y", "z", "who", "x"]], **KEYS, task=task, schema=run.trained.schema)
    kept = cg.keep_clients(run, data)
    assert kept.mean == pytest.approx(score(kept.run, new, data, "n"), rel=1e-5)
    assert kept.mean == pytest.approx(score(cg.load_run(tmp_path), new, data, "n"), rel=1e-5)


@pytest.mark.parametrize("columns", [["y", "z", "who", "x"], ["who", "z", "y"]])
def test_a_table_that_was_read_otherwise_is_refused(columns: list[str], tmp_path: Path) -> None:
    run, new = trained(tmp_path, "classification"), rows("n", 60, 14, 1, "classification")
    data = cg.load_data(new[columns].assign(**({} if "x" in columns else {"q": new.x})), **KEYS)
    for use in (lambda: cg.keep_clients(run, data), lambda: cg.adapt(run, data, [5], repeats=1)):
        with pytest.raises(DataError, match=r"was read with other columns or fills.*schema=run\.trained\.schema"):
            use()
    with pytest.raises(DataError, match="was read with other columns"):
        run.importance(data)


def test_shots_teach_no_scales(tmp_path: Path) -> None:
    """However few of a newcomer's rows are taken, they are read as the run's: also those of a table that was read by
    itself, whose encoders and scales would else be learnt anew from a row or two.
    """
    run, new = trained(tmp_path, "classification"), rows("nm", 60, 14, 1, "classification")
    tables = [cg.load_data(new, **KEYS, schema=schema) for schema in (None, run.trained.schema)]
    alone, known = ([one.to_dict() for one in cg.adapt(run, table, [1, 4], repeats=2)] for table in tables)
    assert alone == known


def test_a_table_that_was_read_alike_is_scaled_as_the_runs(tmp_path: Path) -> None:
    run, new = trained(tmp_path, "classification"), rows("n", 60, 14, 1, "classification")
    alone, known = (cg.load_data(new, **KEYS, schema=schema) for schema in (None, run.trained.schema))
    assert alone.preprocess != known.preprocess
    first = cg.keep_clients(run, alone, epochs=3).mean
    assert first == cg.keep_clients(run, known, epochs=3).mean


def test_columns_in_another_order_have_their_own_importance(tmp_path: Path) -> None:
    run = trained(tmp_path, "classification")
    own = rows("abcd", 200, 10, 0, "classification")[["y", "x", "who", "z"]]
    found = run.importance(cg.load_data(own, **KEYS, schema=run.trained.schema)).to_dict()
    assert json.dumps(found) == json.dumps(run.importance().to_dict())


def test_the_command_knows_the_target_of_a_run_made_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run", "regression")
    rows("n", 80, 10, 1).to_csv(tmp_path / "new.csv", index=False)
    main(["adapt", str(tmp_path / "run"), "--data", str(tmp_path / "new.csv"), "--shots", "5", "--keep"])
    assert json.loads((tmp_path / "run" / "adapt.json").read_text())["task"] == "regression"
    assert "RMSE" in capsys.readouterr().out


def test_newcomers_that_write_numbers_otherwise_than_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run", "regression")
    new = rows("n", 80, 10, 1)
    new.to_csv(tmp_path / "new.csv", index=False)
    new.to_csv(tmp_path / "german.csv", index=False, decimal=",", sep=";")
    asked = ["adapt", str(tmp_path / "run"), "--shots", "5", "--repeats", "1", "--epochs", "2", "--quiet"]
    assert main([*asked, "--data", str(tmp_path / "new.csv"), "--out", str(tmp_path / "a")]) == 0
    german = [*asked, "--data", str(tmp_path / "german.csv"), "--out", str(tmp_path / "b")]
    assert main(german) == 2
    assert "say --kinds x=comma-number,z=comma-number,y=comma-number" in capsys.readouterr().err
    assert main([*german, "--kinds", "x=comma-number,z=comma-number,y=comma-number"]) == 0
    assert (tmp_path / "a" / "adapt.csv").read_bytes() == (tmp_path / "b" / "adapt.csv").read_bytes()


def test_clients_with_scales_of_their_own_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", "classification", scaling="client")
    new = rows("n", 80, 500, 1, "classification")
    data = cg.load_data(new, **KEYS, schema=run.trained.schema)
    told: list[str] = []
    cg.adapt(run, data, [5], repeats=1, epochs=1, local_only=False, note=told.append)
    assert any("of all its training rows (--scaling client), also where it has fewer shots" in note for note in told)
    kept = cg.keep_clients(run, data)
    assert data.schema is not None
    scale = data.schema.client_scales["n"]
    encoded = new[["x", "z"]].to_numpy(np.float32)
    scaled = ((encoded - np.array(scale["mean"])) / np.array(scale["std"])).astype(np.float32)
    new_one = kept.run.trained.known.number("n")
    by_hand = run.trained.task.predict(outputs_of(kept.run.trained, scaled, new_one))
    for one in (kept.run, cg.load_run(tmp_path / "run")):
        np.testing.assert_allclose(one.predict(new, "n"), by_hand, rtol=1e-5)
    for client in ("n", "all"):
        cg.export_model(kept.run, tmp_path / client, client=client)
    taken = cg.load_exported(tmp_path / "n")
    np.testing.assert_allclose(taken.predict(new), by_hand, rtol=1e-4, atol=1e-6)
    new.to_csv(tmp_path / "new.csv", index=False)
    main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--out", str(tmp_path / "said.csv")])
    said = pd.read_csv(tmp_path / "said.csv")
    assert [*said["class"]] == [run.trained.split["class_names"][c] for c in by_hand.argmax(1)]
    np.testing.assert_allclose(said["probability"], by_hand.max(1), atol=1e-4)


def test_clients_of_a_single_row_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run", "classification")
    new = pd.concat([rows("n", 40, 10, 1, "classification"), rows("o", 1, 10, 2, "classification")])
    new.to_csv(tmp_path / "new.csv", index=False)
    main(["adapt", str(tmp_path / "run"), "--data", str(tmp_path / "new.csv"), "--keep"])
    assert "1 client with a single row, of which none would test a head, left out: 'o'" in capsys.readouterr().err


def with_days(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in disorder, their day in a column, and one without a label."""
    frame = frame.assign(day=np.random.default_rng(5).permutation(len(frame)))
    frame.loc[3, "y"] = None
    return frame


@pytest.mark.parametrize("options", [{"time_column": "day"}, {"group_column": "day", "test_share": 0.5}])
def test_newcomers_are_divided_as_the_run_is(options: dict[str, Any], tmp_path: Path) -> None:
    data = cg.load_data(
        with_days(rows("abcd", 200, 10, 0, "classification")), **KEYS, task="classification", missing_target="drop",
        **options,
    )  # fmt: skip
    run = cg.train("fedrep", data, rounds=1, engine="serial", out=tmp_path / "run")
    new = with_days(rows("n", 80, 10, 1, "classification"))
    found = cg.load_data(new, **KEYS, schema=cg.load_run(tmp_path / "run").trained.schema)
    again = cg.load_data(new, **KEYS, task="classification", missing_target="drop", **options)
    assert found.test_sizes.tolist() == again.test_sizes.tolist()
    held = new[new.x.astype(np.float32).isin(found.x_test[:, 0])]
    assert set(held.x) == set(new[new.x.astype(np.float32).isin(again.x_test[:, 0])].x)
    if "time_column" in options:
        assert held.day.min() > new[~new.index.isin(held.index) & new.y.notna()].day.max()
    other = cg.load_data(new, **KEYS, schema=run.trained.schema, test_share=0.1)
    assert other.test_sizes.sum() < found.test_sizes.sum()
    assert other.schema is not None
    assert other.schema.split == "10% at random"


def test_a_table_that_lacks_the_runs_days_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = with_days(rows("abcd", 200, 10, 0)).dropna()
    cg.train("fedrep", cg.load_data(frame, **KEYS, time_column="day", task="regression"), rounds=1, out=tmp_path / "r")
    rows("n", 80, 10, 1).to_csv(tmp_path / "new.csv", index=False)
    main(["adapt", str(tmp_path / "r"), "--data", str(tmp_path / "new.csv"), "--shots", "5"])
    said = capsys.readouterr().err
    assert "new.csv: no column 'day', which says the run's test rows; here 25% at random are" in said


def test_a_column_of_train_and_test_counts_before_the_runs_share(tmp_path: Path) -> None:
    data = cg.load_data(rows("abcd", 200, 10, 0), **KEYS, test_share=0.4, task="regression")
    schema = cg.train("fedrep", data, rounds=1).trained.schema
    new = rows("n", 10, 10, 1)
    assert cg.load_data(new, client_column="who", schema=schema).test_sizes.tolist() == [4]
    marked = new.assign(split=["test"] * 2 + ["train"] * 8)
    assert cg.load_data(marked, **KEYS, schema=schema).test_sizes.tolist() == [2]


def test_a_target_that_is_named_label_is_as_good_as_any(tmp_path: Path) -> None:
    data = cg.load_data(rows("abcd", 200, 10, 0), **KEYS, task="regression")
    schema = cg.train("fedrep", data, rounds=1).trained.schema
    new = rows("n", 40, 10, 1)
    renamed = new.rename(columns={"y": "label"})
    said, known = (
        cg.load_data(renamed, target="label", client_column="who", schema=schema),
        cg.load_data(new, client_column="who", schema=schema),
    )
    assert np.array_equal(said.y_train, known.y_train)
    with pytest.raises(DataError, match="no column 'y'"):
        cg.load_data(renamed, client_column="who", schema=schema)


def test_fills_matter_where_cells_are_filled(tmp_path: Path) -> None:
    """Rows without a missing cell are the same inputs, whatever medians would have filled them."""
    whole = rows("abcd", 200, 10, 0, "classification")
    data = cg.load_data(whole, **KEYS, task="classification")
    held = cg.train("fedrep", data, rounds=1, validation_fraction=0.3, engine="serial")
    assert held.trained.schema is not None
    assert data.schema is not None
    assert held.trained.schema.features != data.schema.features
    with pytest.warns(UserWarning, match="4 of 4 clients of the table have names of clients that trained the run"):
        assert cg.adapt(held, data, [3], epochs=1, repeats=1)
    assert held.importance(data).to_json()
    some = whole.copy()
    some.loc[:9, "x"] = None
    run = cg.train("fedrep", cg.load_data(some, **KEYS, task="classification"), rounds=1, engine="serial")
    for new, refused in ((rows("n", 40, 90, 1, "classification"), True), (some, False)):
        lacking = new.copy()
        lacking.loc[:9, "x"] = None
        found = cg.load_data(lacking, **KEYS, task="classification")
        if refused:
            with pytest.raises(DataError, match="was read with other columns or fills"):
                cg.adapt(run, found, [3])
        else:
            assert len(run.importance(found))


def test_a_client_without_a_name_keeps_its_scale(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "classification", scaling="client")
    new = rows("n", 40, 90, 1, "classification").drop(columns="who")
    kept = cg.keep_clients(run, cg.load_data(new, clients=1, target="y", schema=run.trained.schema), epochs=3)
    assert kept.names == ("new-0",)
    assert kept.run.predict(new, "new-0").shape == (40, 2)
    cg.export_model(kept.run, tmp_path / "it", client="new-0")
    np.testing.assert_allclose(
        cg.load_exported(tmp_path / "it").predict(new), kept.run.predict(new, "new-0"), rtol=1e-4, atol=1e-6
    )


def test_clients_that_trained_the_run_are_named_as_no_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path / "run", "classification")
    frame = pd.concat([rows("cd", 60, 10, 2, "classification"), rows("n", 40, 14, 1, "classification")])
    frame.to_csv(tmp_path / "mixed.csv", index=False)
    asked = ["adapt", str(tmp_path / "run"), "--shots", "4", "--repeats", "1", "--data", str(tmp_path / "mixed.csv")]
    assert main(asked) == 0
    said = "2 of 3 clients of mixed.csv have names of clients that trained the run ('c', 'd'): if they are those, its"
    assert capsys.readouterr().err.count(said) == 1
    assert json.loads((tmp_path / "run" / "adapt.json").read_text())["trained_the_run"] == ["c", "d"]
    rows("n", 40, 14, 1, "classification").to_csv(tmp_path / "new.csv", index=False)
    assert main([*asked[:-1], str(tmp_path / "new.csv")]) == 0
    assert "trained the run" not in capsys.readouterr().err
    assert "trained_the_run" not in json.loads((tmp_path / "run" / "adapt.json").read_text())
    data = cg.load_data(rows("ab", 60, 10, 3, "classification"), **KEYS, schema=run.trained.schema)
    with pytest.warns(UserWarning, match=r"2 of 2 clients of the table have names of clients that trained the run"):
        cg.adapt(run, data, [4], repeats=1)
