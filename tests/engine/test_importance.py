"""Importance of columns: by hand on raw cells, a column's inputs together, bounded, in files, refused in a sentence."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.engine import importance
from commonground.engine.importance import Importance, column_importance
from commonground.engine.state.folder import IMPORTANCE
from commonground.errors import CommonGroundError, ConfigError, RunError
from commonground.keys import numpy_stream
from commonground.report import write_report

WHO = ("north", "south", "west")
SETTINGS: dict[str, Any] = {"rounds": 6, "lr": 0.1, "model_options": {"hidden": [8]}, "head_lr": 0.1}


def frame(rows: int = 60, nulls: bool = True) -> pd.DataFrame:
    """North looks at a, south at a category, west at a date; b is noise, and c always the same for west."""
    rng = np.random.default_rng(7)
    parts = []
    for who in WHO:
        a, b = rng.normal(size=(2, rows)).round(3)
        plan = rng.choice(["x", "y", "z"], rows)
        day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D")
        yes = {"north": a > 0, "south": plan == "x", "west": day > pd.Timestamp("2024-06-01")}[who]
        c = np.full(rows, 1.5) if who == "west" else rng.normal(size=rows).round(3)
        own = pd.DataFrame({"who": who, "a": a, "b": b, "c": c, "plan": plan, "day": day.strftime("%Y-%m-%d")})
        if nulls:
            own.loc[own.index[::7], "plan"] = None
        own["label"] = np.where(yes, "yes", "no")
        own["split"] = np.where(np.arange(rows) % 3 == 0, "test", "train")
        parts.append(own)
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("importance")
    frame().to_csv(folder / "t.csv", index=False)
    cg.train("fedrep", load(folder / "t.csv"), out=folder / "run", **SETTINGS)
    return folder


def load(path: Path, **options: Any) -> cg.FederatedDataset:
    return cg.load_data(path, client_column="who", **options)


def test_it_is_what_shuffling_raw_cells_does(made: Path) -> None:
    run = cg.load_run(made / "run")
    found = run.importance()
    table = pd.read_csv(made / "t.csv")
    for client in WHO:
        rows = table[(table.who == client) & (table.split == "test")].reset_index(drop=True)
        order = numpy_stream(0, "importance rows", client).permutation(len(rows))
        rows = rows.iloc[order].reset_index(drop=True)
        label = (rows.label == "yes").to_numpy()

        def accuracy(given: pd.DataFrame, client: str = client, label: Any = label) -> float:
            return float((run.predict(given, client).argmax(1) == label).mean())

        whole = accuracy(rows)
        for column in ("a", "b", "c", "plan", "day"):
            lost = []
            for time in range(2):  # 20 rows are shuffled twice
                shuffled = rows.copy()
                places = numpy_stream(0, "importance", client, column, time).permutation(len(rows))
                shuffled[column] = rows[column].to_numpy()[places]
                lost.append(whole - accuracy(shuffled))
            own = found[(found.client == client) & (found.column == column)]
            assert own.importance.item() == pytest.approx(np.mean(lost), abs=1e-12), (client, column)
            assert (own["rows"].item(), own.shuffles.item()) == (20, 2)


def test_each_client_looks_at_its_own_column(made: Path) -> None:
    found = cg.load_run(made / "run").importance()
    first = {who: found[found.client == who].sort_values("loss", ascending=False).column.iloc[0] for who in WHO}
    assert first == {"north": "a", "south": "plan", "west": "day"}
    same = found[(found.client == "west") & (found.column == "c")]
    assert (same.importance.item(), same.loss.item()) == (0, 0)
    each = found[found.client.notna()].groupby("column").importance.mean()
    whole = found[found.client.isna()].set_index("column").importance
    pd.testing.assert_series_equal(each.sort_index(), whole.sort_index(), check_names=False)
    assert list(whole) == sorted(whole, reverse=True)


def test_every_input_belongs_to_one_column(made: Path) -> None:
    schema = cg.load_run(made / "run").trained.schema
    assert schema is not None
    places = schema.input_places
    assert sorted(itertools.chain(*places.values())) == list(range(len(schema.inputs)))
    assert [schema.inputs[i] for i in places["plan"]] == ["plan = x", "plan = y", "plan = z", "plan is missing"]
    assert {schema.inputs[i].split(":")[0] for i in places["day"]} == {"day"}
    assert len(places["day"]) == 5


def test_other_rows_and_repeats(made: Path) -> None:
    run = cg.load_run(made / "run")
    data = load(made / "t.csv", schema=run.trained.schema)
    pd.testing.assert_frame_equal(run.importance(data), run.importance())
    other = column_importance(run.trained, data, seed=3)
    assert other.loss != column_importance(run.trained, data).loss
    assert Importance.from_json(other.to_json()) == other


def test_the_work_is_bounded(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cg.load_run(made / "run")
    data = load(made / "t.csv", schema=run.trained.schema)
    monkeypatch.setattr(importance, "MOST_CLIENTS", 2)
    monkeypatch.setattr(importance, "MOST_ROWS", 15)
    monkeypatch.setattr(importance, "AT_ONCE", 1)  # a column at a time
    few = column_importance(run.trained, data)
    assert (len(few.clients), few.of_clients, few.rows) == (2, 3, (15, 15))
    monkeypatch.setattr(importance, "WORK", 1)
    least = column_importance(run.trained, data)
    assert (len(least.clients), least.rows) == (1, (10,))


@pytest.mark.parametrize("engine", ["serial", "messages", "batched"])
def test_engines_agree(engine: str, made: Path, tmp_path: Path) -> None:
    cg.train("fedrep", load(made / "t.csv"), out=tmp_path / "run", engine=engine, **SETTINGS)
    own, wanted = (cg.load_run(folder).importance() for folder in (tmp_path / "run", made / "run"))
    np.testing.assert_allclose(own.loss, wanted.loss, atol=1e-4)


def test_regression_counts_what_is_added(tmp_path: Path) -> None:
    table = frame(nulls=False)
    table["label"] = 3 * table.a + 100
    table.to_csv(tmp_path / "t.csv", index=False)
    run = cg.train(
        "fedrep", load(tmp_path / "t.csv", task="regression"), out=tmp_path / "run", **SETTINGS | {"lr": 0.02}
    )
    whole = run.importance().query("client.isna()").set_index("column").importance
    assert whole.index[0] == "a"
    assert whole["a"] > 5 * whole.drop("a").abs().max()
    assert "RMSE added" in write_report(tmp_path / "run").read_text("utf-8")


def test_a_column_that_never_changes_counts_nothing(tmp_path: Path) -> None:
    """Not even the last digit by which products over a copy of the rows may differ."""
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"x": rng.normal(size=900), "one": 1.37, "who": np.repeat(["a", "b", "c"], 300)})
    rows["y"] = 2 * rows["x"] + rng.normal(size=900)
    data = cg.load_data(rows, target="y", client_column="who", task="regression")
    run = cg.train("fedavg", data, model="mlp", rounds=2, out=tmp_path / "run")
    found = run.importance().set_index("column")
    assert (found.loc["one", ["importance", "loss"]] == 0).all(axis=None)
    assert (found.loc["x", "importance"] > 0.1).all()


def test_the_page_has_it_without_the_data(made: Path, tmp_path: Path) -> None:
    text = write_report(made / "run").read_text("utf-8")
    found = json.loads((made / "run" / IMPORTANCE).read_text())
    assert "Importance of columns" in text
    assert "measured at all clients, on 20 test rows each, shuffled up to 2 times" in text
    for index, row in enumerate(found["importance"]):
        for place, value in enumerate(row):
            assert f'data-value="{value!r}" data-key="importance[{index}][{place}]"' in text
    (made / "run" / IMPORTANCE).rename(tmp_path / IMPORTANCE)
    assert "Importance of columns" not in write_report(made / "run").read_text("utf-8")
    (tmp_path / IMPORTANCE).rename(made / "run" / IMPORTANCE)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "columns": ["a"]}'])
def test_a_damaged_file_is_a_sentence(text: str, made: Path) -> None:
    path = made / "run" / IMPORTANCE
    whole = path.read_text("utf-8")
    try:
        path.write_text(text)
        with pytest.raises(RunError, match="holds no importance of columns"):
            write_report(made / "run")
        path.write_text(whole.replace('"north"', '"north", "more"', 1))
        with pytest.raises(RunError, match="differ in length"):
            cg.load_run(made / "run").importance()
    finally:
        path.write_text(whole)


def test_refused_in_a_sentence(made: Path, tmp_path: Path) -> None:
    plain = cg.train("fedrep", "digits", clients=4, rounds=1, out=tmp_path / "digits")
    assert not (tmp_path / "digits" / IMPORTANCE).exists()
    with pytest.raises(ConfigError, match="not trained on a table"):
        plain.importance()
    memory = cg.train("fedrep", load(made / "t.csv"), **SETTINGS | {"rounds": 1})
    with pytest.raises(RunError, match=r"give data: run.importance\(data\)"):
        memory.importance()
    other = frame().assign(who="east")
    other.to_csv(tmp_path / "east.csv", index=False)
    with pytest.raises(CommonGroundError, match="has no client 'east'"):
        memory.importance(load(tmp_path / "east.csv", schema=memory.trained.schema))


def test_more_rounds_and_a_stop_leave_no_old_one(made: Path, tmp_path: Path) -> None:
    data, settings = load(made / "t.csv"), SETTINGS | {"rounds": 1}
    first = cg.train("fedrep", data, out=tmp_path / "run", **settings).importance()
    stopped = cg.train(
        "fedrep", data, out=tmp_path / "run", resume=True, on_round=lambda row: False, **settings | {"rounds": 3}
    )
    assert not stopped.finished
    assert not (tmp_path / "run" / IMPORTANCE).exists()
    more = cg.train("fedrep", data, out=tmp_path / "run", resume=True, **settings | {"rounds": 3}).importance()
    assert not np.allclose(first.loss, more.loss)
