"""Letters with marks that a file writes as one character or as two, and characters that nobody sees."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.spelling import places_of, spelt_twice
from commonground.data.tables.split import FEW
from commonground.engine.known_clients import KnownClients
from commonground.engine.state.tokens import Tokens
from commonground.errors import ConfigError, DataError
from commonground.prediction.tables import Whose, predict_table
from commonground.serve.rows import reader_of


def two(text: str) -> str:
    """Its letters with marks as two characters each."""
    return unicodedata.normalize("NFD", text)


def frame(*, size: str = "größe") -> pd.DataFrame:
    index = np.arange(40)
    return pd.DataFrame(
        {
            "käufer": [("Zoë", two("Zoë"), "Max", "Max")[i % 4] for i in index],
            size: index % 7,
            "stadt": [("Köln", two("Köln"), "Bonn")[i % 3] for i in index],
            "wahl": [("für", two("für"), "wider")[i // 2 % 3] for i in index],
        }
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "frame"])
def test_both_ways_of_writing_a_letter_are_one(kind: str, tmp_path: Path) -> None:
    table, path = frame(size=two("größe")), tmp_path / f"t.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True, force_ascii=False)
    elif kind == "parquet":
        table.to_parquet(path)
    source = table if kind == "frame" else path
    data = cg.load_data(source, client_column=two("käufer"), target="wahl", kinds="größe=number", drop=two("größe"))
    assert data.schema is not None
    assert data.client_names == ("Max", "Zoë")
    assert data.class_names == ("für", "wider")
    assert [(one.name, one.categories) for one in data.schema.features] == [("stadt", ("Bonn", "Köln"))]
    assert data.schema.dropped == {"größe": "dropped"}
    if kind == "csv":
        assert inspect_table(path, client_column="käufer", target=two("wahl")).clients == 2


def test_a_run_of_before_knows_what_it_called_otherwise(tmp_path: Path) -> None:
    data = cg.load_data(frame(), client_column="käufer", target="wahl")
    assert data.schema is not None
    before = TableSchema.from_json(two(data.schema.to_json()))
    assert before.needed == ["größe", "stadt"]
    assert before.client_column == "käufer"
    assert places_of(["Köln", "Bonn"], before.features[1].categories) == [1, 0]
    assert json.loads(before.to_json())["targets"] == ["wahl"]


def test_a_service_knows_both_ways(tmp_path: Path) -> None:
    run = cg.train("fedavg", cg.load_data(frame(), client_column="käufer", target="wahl"), model="linear", rounds=1)
    reader, trained = reader_of(run), run.trained
    row = {"größe": 3, "stadt": "Köln", "käufer": "Zoë"}
    one, told = reader.read(trained, [row], "Zoë", 1)
    other, also = reader.read(
        trained, [{two(name): two(str(cell)) if cell != 3 else 3 for name, cell in row.items()}], "Zoë", 1
    )
    np.testing.assert_array_equal(one, other)
    assert told == also == [()]
    pd.testing.assert_frame_equal(cg.predict_rows(run, frame()), cg.predict_rows(run, frame(size=two("größe"))))


def test_characters_of_no_width_are_told(tmp_path: Path) -> None:
    assert spelt_twice(["a\u200b", "b", "a"]) == ("a", "a\u200b")
    table = frame().assign(stadt=["Bonn", "Bonn\u200b"] * 20)
    notes = cg.load_data(table, client_column="käufer", target="wahl").about["notes"]
    assert any(note.startswith("stadt: 'Bonn' and 'Bonn\\u200b' are two categories") for note in notes)


def test_versions_that_are_one_number_are_told(tmp_path: Path) -> None:
    for cells, says in (("1.1 1.10 1.2", True), ("1.10 1.20 1.35", False), ("1.5 10 100", False)):
        frame().assign(stadt=[cells.split()[i % 3] for i in range(40)]).to_csv(tmp_path / "t.csv", index=False)
        notes = cg.load_data(tmp_path / "t.csv", client_column="käufer", target="wahl").about["notes"]
        told = "stadt: '1.10' and '1.1' are one number; if they are names, say --kinds stadt=category"
        assert (told in notes) is says


def shops(rows: int = 64) -> pd.DataFrame:
    """Two clients of many rows, and two of few whose names have marks."""
    who = [two("Jörg") if i < 4 else two("Zoë") if i < 8 else ("Änn", "Bob")[i % 2] for i in range(rows)]
    return pd.DataFrame(
        {"who": who, "v": np.arange(rows) * 0.5 % 7, "won": [("yes", "no")[i // 2 % 2] for i in range(rows)]}
    )


def trained_before(folder: Path, few_rows: str) -> cg.Run:
    """A run whose clients are called as a version called them that took names as a file has them."""
    data = cg.load_data(shops(), client_column="who", target="won", few_rows=few_rows, min_rows=10)
    assert data.schema is not None
    assert data.client_names is not None
    few = {**data.schema.few_rows, "clients": [*map(two, data.schema.few_rows["clients"])]}
    origin = replace(data.origin, schema=replace(data.schema, few_rows=few))
    data = replace(data, client_names=tuple(map(two, data.client_names)), origin=origin)
    cg.train("fedavg", data, model="linear", rounds=1, out=folder)
    return cg.load_run(folder)


@pytest.mark.parametrize("few_rows", ["pool", "shared"])
def test_clients_of_few_rows_of_a_run_of_before_are_known(few_rows: str, tmp_path: Path) -> None:
    run = trained_before(tmp_path / "run", few_rows)
    assert run.trained.schema is not None
    assert two("Jörg") in run.trained.schema.few_rows["clients"]
    shops().to_csv(tmp_path / "new.csv", index=False)
    assert len(cg.predict_rows(run, tmp_path / "new.csv")) == 64
    with pytest.raises(ConfigError, match="trained with others" if few_rows == "pool" else "took no part"):
        run.trained.known.number("Jörg")


def test_a_client_of_a_run_of_before_names_itself(tmp_path: Path) -> None:
    run = trained_before(tmp_path / "run", "pool")
    reader = reader_of(run)
    for client, owner in ((two("Änn"), two("Änn")), ("Änn", two("Änn")), (two("Änn"), "Änn"), (FEW, two("Jörg"))):
        number = run.trained.known.number(client)
        assert len(reader.read(run.trained, [{"who": owner, "v": 1.5}], client, number)[0]) == 1
    with pytest.raises(DataError, match="every client asks for its own rows"):
        reader.read(run.trained, [{"who": "Jörg", "v": 1.5}], two("Änn"), 0)


def test_rows_of_the_client_that_is_asked_are_its_own(tmp_path: Path) -> None:
    trained_before(tmp_path / "run", "drop")
    shops().iloc[8:].to_csv(tmp_path / "new.csv", index=False)
    notes: list[str] = []
    run = cg.load_run(tmp_path / "run")
    number = run.trained.known.number("Änn")
    predict_table(run.trained, tmp_path / "new.csv", Whose(number), notes.append)
    assert notes == ["new.csv: 28 rows of other clients; the model of 'A\u0308nn' is asked of them too"]


@pytest.mark.parametrize("before", [False, True])
def test_a_client_is_found_by_either_way_of_writing_its_name(before: bool, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    if before:
        run = trained_before(folder, "drop")
    else:
        data = cg.load_data(shops(), client_column="who", target="won", few_rows="drop", min_rows=10)
        run = cg.train("fedavg", data, model="linear", rounds=1, out=folder)
        assert data.client_id(two("Änn")) == data.client_id("Änn")
    shops().iloc[8:].to_csv(tmp_path / "new.csv", index=False)
    x = np.zeros((1, len(run.trained.schema.inputs)), np.float32)  # type: ignore[union-attr]
    np.testing.assert_array_equal(run.predict(x, client="Änn"), run.predict(x, client=two("Änn")))
    tokens = Tokens(folder)
    for name in ("Änn", two("Änn")):
        assert main(["predict", str(folder), str(tmp_path / "new.csv"), "--client", name]) == 0
        assert main(["export", str(folder), "--out", str(tmp_path / f"e{len(name)}"), "--client", name]) == 0
        capsys.readouterr()
        assert main(["serve", str(folder), "--token-for", name]) == 0
        assert run.trained.known.find(str(tokens.whose(capsys.readouterr().out.strip()))) is not None
    assert tokens.revoke(two("Änn") if not before else "Änn") == 2
    assert len(tokens) == 0


def test_a_client_that_is_added_is_known_and_forgotten_by_either_way(tmp_path: Path) -> None:
    data = cg.load_data(shops().iloc[8:], client_column="who", target="won")
    run = cg.train("fedrep", data, model="mlp", rounds=1, out=tmp_path / "run")

    def newcomer(name: str) -> cg.FederatedDataset:
        part = (data.x_train[:8], data.y_train[:8], data.x_test[:4], data.y_test[:4])
        return cg.FederatedDataset.from_arrays(
            [part], name="new", classes=2, class_names=data.class_names, client_names=[name],
            preprocess=data.preprocess,
        )  # fmt: skip

    for name in (two("Änn"), "Änn"):
        with pytest.raises(ConfigError, match="has trained a client 'Änn' already"):
            cg.keep_clients(run, newcomer(name), epochs=1)
    cg.keep_clients(run, newcomer("Zoë"), epochs=1)
    kept = cg.keep_clients(run, newcomer(two("Zoë")), epochs=1)
    assert kept.renewed == ("Zoë",)
    assert kept.run.trained.known.names == ["Bob", "Änn", "Zoë"]
    token = Tokens(tmp_path / "run").issue("Zoë")
    left = cg.forget_clients(kept.run, [two("Zoë")])
    assert left.trained.known.names == ["Bob", "Änn"]
    assert Tokens(tmp_path / "run").whose(token) is None


def test_two_clients_of_names_that_look_alike_stay_two() -> None:
    known = KnownClients("the run", 2, ["Zoë", two("Zoë")])
    assert (known.number("Zoë"), known.number(two("Zoë"))) == (0, 1)
