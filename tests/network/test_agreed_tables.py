"""Clients with tables agree on what the columns become: what all rows together say, and no row travels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.config import RunConfig
from commonground.data import load_data
from commonground.data.own_table import OwnTable, table_data
from commonground.data.tables.agree import _categories, agreed_columns
from commonground.data.tables.options import TableOptions
from commonground.data.tables.scale import deviations
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.spelling import one_spelling
from commonground.data.tables.told import (
    Columns,
    ColumnStatistics,
    ColumnTold,
    Statistics,
    StatisticsRequest,
    read_told,
)
from commonground.errors import DataError, RunError, UpdateError
from commonground.network import Limits, Members, gather, train_over
from commonground.network.post import Letter, NoAnswerError
from tests.network.tables import NAMES, agreed_on, joined, made_frame, made_frames, one_of, town_of, written
from tests.network.town import Town


def test_the_schema_is_that_of_all_rows_together(tmp_path: Path) -> None:
    """What one machine learns from the joined table; a missing number is filled with the mean, not the median."""
    frames = made_frames()
    agreed = agreed_on(town_of(tmp_path, frames)).schema_of_all()
    options: dict[str, Any] = {"client_column": "site", "kinds": {"ward": "id", "code": "id"}}
    whole = load_data(str(joined(tmp_path, frames)), label="goal", **options).schema
    assert whole is not None
    assert agreed.class_names == whole.class_names == ("ill", "odd", "well")
    assert agreed.inputs == whole.inputs
    assert dict(agreed.dropped) == {"ward": "is always the same at every client", "code": "names a row"}
    assert agreed.ids == ("code",)
    for one, other in zip(agreed.features, whole.features, strict=True):
        assert one == replace(other, fill=one.fill, low=None, high=None)
    place = agreed.inputs.index("income")
    for figures in ("mean", "std"):
        two = [np.delete(getattr(schema, figures), place) for schema in (agreed, whole)]
        np.testing.assert_allclose(two[0], two[1], rtol=1e-12)
    filled = load_data(str(joined(tmp_path, frames)), label="goal", schema=agreed, **options)
    mean, std = deviations(filled.x_train)
    assert agreed.mean[place] == pytest.approx(mean[place], rel=1e-12)
    assert agreed.std[place] == pytest.approx(std[place], rel=1e-12)
    income = pd.to_numeric(pd.concat(frames.values()).query("split == 'train'")["income"])
    assert agreed.features[1].fill == pytest.approx(income.mean(), rel=1e-12)


def test_the_run_is_that_of_one_machine_with_the_schema(tmp_path: Path) -> None:
    frames = made_frames()
    settings: dict[str, Any] = {"rounds": 2, "model": "mlp", "threads": 1, "batch_size": 8, "seed": 5}
    town = town_of(tmp_path, frames)
    members = gather(town, 3, 10)
    for node in town.desks:
        town.restart(node)  # what was agreed on is in what a run begins with
    config = RunConfig.make({"algorithm": "fedrep", "data": "arrays", **settings})
    there = train_over(town, config, members, Limits(seconds=20, patience=0.2, pause=0.01), tmp_path / "run")
    assert Members.read(tmp_path / "run" / "network.json") == members
    schema = TableSchema.from_json((tmp_path / "run" / "schema.json").read_text("utf-8"))
    data = load_data(str(joined(tmp_path, frames)), label="goal", client_column="site", schema=schema)
    here = cg.train("fedrep", data, engine="serial", **settings)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]
    own = cg.load_run(next((tmp_path / "sites" / "client-1" / "models").iterdir()))
    rows = frames["north"]
    assert np.array_equal(own.predict(rows, client=0), here.predict(rows, client="north"))


@pytest.mark.parametrize("kind", ["tell", "agree"])
def test_a_client_that_goes_meanwhile_is_not_said_to_disagree(kind: str, tmp_path: Path) -> None:
    town = town_of(tmp_path, made_frames())
    gone = next(node for node, desk in town.desks.items() if town.names[node - 100] == "north")

    def lost(node: int, asked: Letter, answer: Letter | UpdateError) -> Letter | UpdateError:
        return NoAnswerError("it is not there") if node == gone and asked.kind == kind else answer

    town.spoil = lost
    with pytest.raises(RunError) as raised:
        agreed_on(town)
    said = "client 'north' has not answered while the clients agreed on their tables: it is not there; when it is there"
    assert str(raised.value) == f"{said} again, start the run again"


def test_no_cell_that_is_rare_or_names_a_row_is_in_any_message(tmp_path: Path) -> None:
    frames = made_frames()
    frames["south"].loc[frames["south"].index[:3], "town"] = "a hamlet"
    town = town_of(tmp_path, frames, least=5)
    agreed = agreed_on(town)
    said = b"".join(answer.body for _, _, answer in town.letters)
    assert b"only south" in said
    assert b"a hamlet" not in said
    assert b"south-1" not in said  # a code
    assert b"ward of" not in said
    assert b"site" not in said  # dropped by the client
    towns = next(feature for feature in agreed.features if feature.name == "town")
    assert "a hamlet" not in towns.categories
    for frame in frames.values():
        for word in frame["income"]:
            assert not word or f": {word}".encode() not in said


def test_numbers_of_few_rows_are_held_back(tmp_path: Path) -> None:
    frames = {name: frame.assign(rare="") for name, frame in made_frames().items()}
    frames["east"].loc[frames["east"].index[:3], "rare"] = "7"
    alone = town_of(tmp_path, frames, least=5)
    assert agreed_on(alone).dropped["rare"] == "has no value that may be told"
    assert b"7.0" not in b"".join(answer.body for _, asked, answer in alone.letters if asked.kind == "tell")
    agreed = agreed_on(town_of(tmp_path, frames))
    assert next(f for f in agreed.features if f.name == "rare").fill == 7.0


def test_the_most_frequent_of_too_many_categories_have_inputs(tmp_path: Path) -> None:
    frames = made_frames()
    words = {name: [f"{'abc'[n]}{i // 3 % 50}" for i in range(300)] for n, name in enumerate(NAMES)}
    frames = {name: made_frame(name, 300, place=words[name]) for name in NAMES}
    for name in NAMES:
        frames[name].loc[frames[name].index[:90], "place"] = f"often {name}"
    town = town_of(tmp_path, frames)
    agreed = agreed_on(town).schema_of_all()
    whole = load_data(str(joined(tmp_path, frames)), label="goal", client_column="site").schema
    assert whole is not None
    place = [next(f for f in schema.features if f.name == "place").categories for schema in (agreed, whole)]
    assert len(place[0]) == len(place[1]) == 100
    assert {f"often {name}" for name in NAMES} <= set(place[0])
    asked = [
        StatisticsRequest.model_validate_json(letter.body) for _, letter, _ in town.letters if letter.kind == "tell"
    ]
    assert {one.counted for one in asked} == {(), ("place",)}
    told = [Statistics.model_validate_json(a.body) for _, letter, a in town.letters if letter.kind == "tell"]
    assert all(not column.rows for one in told[:3] for column in one.columns)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"age": "old"}, r"'east' and 'south' do not agree on the column 'age': it is number and category there; say "
                         r"--kinds age=KIND"),
        ({"more": 1}, "the clients 'east' and 'north' offer no column 'more', and client 'south' has it; start "
                      "those who have what others have not with --drop, if the others' tables are the right ones$"),
    ],
)  # fmt: skip
def test_who_does_not_agree_is_named(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    frames = made_frames()
    for name, value in change.items():
        frames["south"][name] = [f"{value} x" if value == "old" and i % 2 else value for i in range(52)]
    with pytest.raises(DataError, match=match):
        gather(town_of(tmp_path, frames), 3, 10)


def test_all_that_clients_do_not_agree_on_is_said_to_everybody(tmp_path: Path) -> None:
    frames = made_frames()
    frames["south"]["more"] = range(52)
    frames["north"] = frames["north"].drop(columns="income")
    town = town_of(tmp_path, frames)
    heard: dict[int, list[str]] = {node: [] for node in town.desks}
    for node, desk in town.desks.items():
        desk.note = heard[node].append
    with pytest.raises(DataError) as error:
        gather(town, 3, 10)
    assert str(error.value) == (
        "client 'north' offers no column 'income', and the clients 'east' and 'south' have it; the clients 'east' and "
        "'north' offer no column 'more', and client 'south' has it; start those who have what others have not with "
        "--drop, if the others' tables are the right ones"
    )
    assert heard == {node: [f"no run has begun: {error.value}"] for node in town.desks}
    frames = made_frames()
    for column in ("age", "since"):
        frames["south"][column] = [f"{'x' if i % 2 else 'y'} z" for i in range(52)]
    with pytest.raises(DataError, match=r"on the column 'age': it is number and category .*; .* on the column 'since'"):
        gather(town_of(tmp_path / "kinds", frames), 3, 10)


def test_truths_that_are_categories_to_others_are_read_as_these(tmp_path: Path) -> None:
    """Whatever their owner says of them."""
    frames = made_frames()
    frames["east"]["member"] = ["yes", "no", "perhaps"] * 20
    town = one_of(tmp_path, frames, "south", {"member": "boolean"})
    data = town.data[2].load(agreed_on(town))
    assert [feature.kind for feature in data.schema.features if feature.name == "member"] == ["category"]


def test_targets_are_as_many_as_what_is_told_of_them(tmp_path: Path) -> None:
    told = json.loads(town_of(tmp_path, made_frames()).data[0].columns.model_dump_json())
    with pytest.raises(DataError, match="the targets are not as many as what is told of them"):
        read_told(Columns, json.dumps(told | {"target_decimals": ["point", "point"]}))


def test_a_column_that_is_always_the_same_at_one_client_is_what_others_say(tmp_path: Path) -> None:
    frames = made_frames()
    frames["east"]["town"] = "Bern"
    frames["north"]["member"] = "yes"
    frames["south"]["age"] = ""
    agreed = agreed_on(town_of(tmp_path, frames))
    kinds = {feature.name: feature.kind for feature in agreed.features}
    assert (kinds["town"], kinds["age"]) == ("category", "number")
    assert next(f for f in agreed.features if f.name == "age").missing


def test_a_word_that_cannot_be_read_as_others_do_is_named(tmp_path: Path) -> None:
    frames = made_frames()
    frames["north"]["age"] = "secret"
    town, heard = town_of(tmp_path, frames), list[str]()
    town.desks[101].note = heard.append
    with pytest.raises(RunError, match=r"client 'north' does not agree on its table: .*column .*age.* as number"):
        gather(town, 3, 10)
    assert "line 2, column 'age': 'secret' is no number" in heard[0]
    assert b"secret" not in b"".join(answer.body for _, _, answer in town.letters)


def test_clients_with_and_without_a_schema_do_not_mix(tmp_path: Path) -> None:
    frames = made_frames()
    town = town_of(tmp_path, frames)
    schema = agreed_on(town)
    town.data[0] = town.data[0].load(schema)
    town.restart(100)
    town.letters.clear()
    with pytest.raises(RunError, match="client 'north' has a table without a schema, and client 'east' has arrays"):
        gather(town, 3, 10)
    told = {node: asked.body.decode() for node, asked, _ in town.letters if asked.kind == "told"}
    assert set(told) == set(town.desks)  # whose owners are the ones who can do something about it
    says = "start all with the same --schema, which those with --demand-dp need, or none"
    assert all(says in text for text in told.values())


def test_who_demands_what_a_run_does_not_give_is_in_nobodys_way(tmp_path: Path) -> None:
    """It needs a schema, which the others need not have."""
    town, notes, without = town_of(tmp_path, made_frames()), list[str](), dict[int, str]()
    schema = agreed_on(town)
    town.data[0] = town.data[0].load(schema)
    town.restart(100)
    town.desks[100].answering.demand = "client"
    config = RunConfig.make({"algorithm": "fedavg", "data": "arrays"})
    members = gather(town, 2, 10, notes.append, without, config)
    assert (members.nodes, [*without]) == ((101, 102), [100])
    assert without[100] in notes
    noisy = RunConfig.make({**config.model_dump(exclude_unset=True), "dp": "client", "dp_where": "client"})
    with pytest.raises(RunError, match="has a table without a schema"):
        gather(town, 3, 10, config=noisy)


def test_a_client_tells_a_server_only_what_its_owner_offers(tmp_path: Path) -> None:
    town = town_of(tmp_path, made_frames())
    own = town.data[0]
    for column, match in (
        ({"name": "site", "kind": "category"}, "'site', which is not offered here"),
        ({"name": "code", "kind": "category"}, "'code' as category, and here it is id"),
        ({"name": "age", "kind": "category"}, "'age' as category, and here it is number"),
        ({"name": "goal", "kind": "category"}, "'goal', which is not offered here"),
    ):
        asked = ColumnTold.model_validate(column)
        with pytest.raises(UpdateError, match=match):
            own.statistics(StatisticsRequest(columns=(asked,)))
    agreed = agreed_on(town)
    features = (*agreed.features, agreed.features[0].model_copy(update={"name": "site"}))
    with pytest.raises(UpdateError, match="'site', which is not offered here"):
        own.load(agreed.model_copy(update={"features": features}))
    with pytest.raises(UpdateError, match="leaves out classes"):
        own.load(agreed.model_copy(update={"class_names": ("ill",)}))
    with pytest.raises(UpdateError, match="other targets"):
        own.load(agreed.model_copy(update={"targets": ("town",)}))


@pytest.mark.parametrize(
    "change",
    [
        {"present": 46, "missing": 0}, {"present": -1}, {"squares": -1.0}, {"mean": float("nan")}, {"more": 1},
        {"words": ["a"]}, {"present": 0}, {"rows": [1]}, None,
    ],
)  # fmt: skip
def test_sums_that_cannot_be_are_refused(change: dict[str, Any] | None, tmp_path: Path) -> None:
    town = town_of(tmp_path, made_frames())

    def spoil(node: int, asked: Letter, answer: Letter) -> Letter:
        if asked.kind != "tell" or node != 100:
            return answer
        told = json.loads(answer.body)
        told["columns"][0].update(change or {})
        told["columns"] = told["columns"] if change else told["columns"][1:]
        return answer._replace(body=json.dumps(told).encode())

    town.spoil = spoil
    with pytest.raises(RunError, match="client 'east' cannot take part"):
        gather(town, 3, 10)


def numbered(name: str, code: Any, goal: Any, rows: int = 40) -> pd.DataFrame:
    """A table whose code tells the goal."""
    place = np.random.default_rng(len(name)).integers(0, 2, rows)
    return pd.DataFrame({"x": np.arange(rows) % 7, "code": np.array(code)[place], "goal": np.array(goal)[place]})


def test_what_is_spelt_differently_at_different_clients_is_one_class_and_one_category(tmp_path: Path) -> None:
    """One missing value, and pandas writes 1.0 where it had written 1."""
    frames = {
        "east": numbered("east", ["1", "2"], ["0", "1"]),
        "north": numbered("north", ["1.0", "2.0"], ["0.0", "1.0"]),
    }
    town = town_of(tmp_path, frames, options=TableOptions(kinds={"code": "category"}))
    agreed = agreed_on(town).schema_of_all()
    assert agreed.class_names == ("0", "1")
    assert [feature.categories for feature in agreed.features if feature.name == "code"] == [("1", "2")]
    config = RunConfig.make({"algorithm": "fedavg", "rounds": 1, "model": "linear", "seed": 0})
    members = gather(town, 2, 10)
    run = train_over(town, config, members, Limits(seconds=20, patience=0.2, pause=0.01), tmp_path / "run")
    whole = load_data(str(joined(tmp_path, {n: f.assign(who=n) for n, f in frames.items()})), client_column="who",
                      label="goal", schema=run.trained.schema)  # fmt: skip
    place = agreed.inputs.index("code = 2")
    assert whole.class_names == ("0", "1")
    assert np.array_equal(whole.x_train[:, place], whole.y_train)


def test_rows_of_a_category_are_counted_over_all_spellings() -> None:
    """Of too many categories: '1' has six rows, of which each client spells three, and is before those with five."""
    words = tuple(f"w{i}" for i in range(100))
    east = ColumnStatistics(present=503, missing=0, words=(*words, "1"), rows=(5,) * 100 + (3,))
    north = ColumnStatistics(present=3, missing=0, words=("1.0",), rows=(3,))
    found, rare = _categories([east, north])
    assert "1" in found
    assert len(rare) == 1
    assert len(found) == 100


def test_what_one_client_tells_apart_stays_apart() -> None:
    said = one_spelling([["no", "No", "yes"], ["NO", "YES"], ["1", "01"]])
    assert said == {"no": "no", "No": "No", "NO": "NO", "yes": "YES", "YES": "YES", "1": "1", "01": "01"}


def test_the_spelling_of_the_most_clients_is_taken() -> None:
    said = one_spelling([["ill", "no"], ["Ill", "no"], ["ill"], ["NO", "ILL"]])
    assert said == {"ill": "ill", "Ill": "ill", "ILL": "ill", "no": "no", "NO": "no"}
    assert one_spelling([["250.0"], ["250.0"], ["250"]]) == {"250.0": "250.0", "250": "250.0"}


def test_numbers_that_files_store_are_one_class_whatever_they_stand_beside(tmp_path: Path) -> None:
    """1 beside 2 in one client's Parquet, and beside 1.5 in another's."""
    grades: dict[str, list[float]] = {"east": [1, 2], "north": [1.0, 1.5, 2.0], "south": [1, 2]}
    frames, tables = {}, []
    for name, some in grades.items():
        grade = np.array(some)[np.arange(45) % len(some)]
        frames[name] = pd.DataFrame({"x": np.arange(45) % 7, "code": grade, "goal": grade})
        path, options = tmp_path / f"{name}.parquet", TableOptions(kinds={"code": "category"})
        frames[name].to_parquet(path)
        tables.append(OwnTable(path, name, "goal", task="classification", options=options))
    town = Town(tables, tmp_path / "sites")
    agreed = agreed_on(town)
    assert agreed.class_names == ("1", "1.5", "2")
    assert [feature.categories for feature in agreed.features if feature.name == "code"] == [("1", "1.5", "2")]
    for table, name in zip(tables, frames, strict=True):
        own = table.load(agreed)
        goals = frames[name]["goal"].astype(float).tolist()
        said = [float(own.class_names[label]) for label in (*own.y_train, *own.y_test)]
        assert sorted(said) == sorted(goals)


def test_classes_that_look_like_a_slip_are_told(tmp_path: Path) -> None:
    frames = {name: numbered(name, ["u", "v"], labels) for name, labels in (
        ("east", ["ill", "well"]), ("north", ["Ill", "gesund"]), ("south", ["ill", "well"])
    )}  # fmt: skip
    notes: list[str] = []
    table = gather(town_of(tmp_path, frames, options=TableOptions()), 3, 10, notes.append).table
    assert table is not None
    assert table.class_names == ("gesund", "ill", "well")
    assert "the clients' classes: 'Ill' is 'ill', 'gesund' is of client 'north' alone" in notes
    notes.clear()
    frames["north"] = numbered("north", ["u", "v"], ["ill", "well"])
    gather(town_of(tmp_path, frames, options=TableOptions()), 3, 10, notes.append)
    assert not [note for note in notes if "classes" in note]


@pytest.mark.parametrize(
    ("east", "west"),
    [
        ("9007199254740993", "9007199254740992"),
        ("1_11", "11_1"),
        ("007", "7"),
        ("1E2", "100"),
        ("2024-01", "2024-01-01"),
    ],
)
def test_what_is_only_alike_as_a_number_is_not_one(east: str, west: str) -> None:
    """Codes are names: only a fraction of nought, as a table with empty cells is written, says nothing."""
    assert one_spelling([[east, "x"], [west, "x"]]) == {east: east, west: west, "x": "x"}


def test_codes_with_fractions_keep_their_points() -> None:
    assert one_spelling([["250", "401"], ["250.0", "401.0"]]) == {w: w[:3] for w in ("250", "250.0", "401", "401.0")}
    said = one_spelling([["250", "401.9"], ["250.0"]])  # ICD-9 knows both
    assert said == {word: word for word in ("250", "250.0", "401.9")}


def test_no_server_takes_two_classes_of_a_client_for_one(tmp_path: Path) -> None:
    frame = numbered("east", ["u", "v"], ["A", "a"])
    (path,) = written(tmp_path, {"east": frame}).values()
    agreed = agreed_on(town_of(tmp_path, {"north": numbered("north", ["u", "v"], ["a", "x"])}, options=TableOptions()))
    with pytest.raises(UpdateError, match="leaves out classes of this client's, or takes several for one"):
        OwnTable(path, "east", "goal").load(agreed)


@pytest.mark.parametrize("goals", [["a", "b"], ["a", "a"], ["a", "b", "c"]])
def test_a_schemas_client_with_an_unknown_class_is_refused(goals: list[str], tmp_path: Path) -> None:
    """Its labels were the places among its own classes."""
    schema = load_data(numbered("b", ["1", "2"], ["b", "c"]), 1, label="goal").schema
    assert schema is not None
    frame = pd.DataFrame({"x": range(24), "code": [1, 2] * 12, "goal": (goals * 12)[:24]})
    (path,) = written(tmp_path, {"own": frame}).values()
    with pytest.raises(DataError, match=r"the column 'goal' holds 'a', and the classes are 'b', 'c'"):
        table_data(path, schema, "north")
    frame["goal"] = "c"
    frame.to_csv(path, index=False)
    data = table_data(path, schema, "north")
    assert (data.class_names, {*data.y_train.tolist()}) == (("b", "c"), {1})


def test_a_rare_category_is_not_read_as_the_frequent_one_that_it_resembles() -> None:
    words = tuple(f"k{i}" for i in range(100))
    told = ColumnStatistics(present=501, missing=0, words=(*words, "K0", "z"), rows=(5,) * 100 + (2, 1))
    column = ColumnTold(name="code", kind="category")
    about = Columns(name="a", train=502, columns=(column,), targets=("y",), task="classification",
                    class_names=("n", "y"), target_decimals=())  # fmt: skip
    (feature,) = agreed_columns([about], [column], {}, [Statistics(columns=(told,))]).features
    assert (len(feature.categories), feature.apart) == (100, ("K0",))


def test_a_table_with_two_spellings_is_told(tmp_path: Path) -> None:
    both = pd.concat([numbered("a", ["u", "U"], ["0", "1"]), numbered("b", ["u", "v"], ["0.0", "1.0"])])
    schema = load_data(both, 2, label="goal").schema
    assert schema is not None
    notes = " ".join(schema.notes)
    assert "'0' and '0.0' are two classes; if they are one, spell them alike" in notes
    assert "code: 'U' and 'u' are two categories" in notes


def test_owners_hear_how_their_tables_were_read(tmp_path: Path) -> None:
    frame = pd.DataFrame({"when": [f"{1 + i % 12:02d}/{1 + i % 11:02d}/2023" for i in range(40)],
                          "goal": [*(["up", "no"] * 18), "", "", "", ""]})  # fmt: skip
    (path,) = written(tmp_path, {"own": frame}).values()
    options = TableOptions(missing_target="drop")
    notes = OwnTable(path, "own", "goal", options=options).notes
    assert notes == ("4 of 40 rows have no value in 'goal' and are left out", "when: day before month")
    town = Town([OwnTable(path, "own", "goal", options=options)], tmp_path / "sites")
    own = OwnTable(path, "own", "goal", options=options).load(agreed_on(town)).schema
    assert own is not None
    assert own.missing_targets == 4
    assert any("left out" in note for note in own.notes)


@pytest.mark.parametrize(("least", "told"), [(1, True), (5, False)])
def test_mean_and_deviation_of_few_rows_targets_are_not_told(tmp_path: Path, least: int, told: bool) -> None:
    """Of two rows they are the two numbers."""
    few = pd.DataFrame({"x": [1.0, 2.0, 3.0], "goal": [100.5, 200.25, 7.5], "split": ["train", "train", "test"]})
    many = pd.DataFrame({"x": np.arange(40.0), "goal": np.arange(40) + 0.5, "split": ["train", "test"] * 20})
    paths = written(tmp_path, {"few": few, "many": many})
    tables = [OwnTable(path, name, "goal", task="regression", least=least) for name, path in paths.items()]
    town = Town(tables, tmp_path / "sites")
    for desk in town.desks.values():
        desk.answering.least = least
    members = gather(town, 2, 10)
    first, second = (description.task_settings for description in members.descriptions)
    assert first == ({"mean": [150.375], "std": [49.875]} if told else {"mean": [], "std": []})
    assert second["mean"] == [19.5]


def test_several_labels_however_each_client_writes_truths(tmp_path: Path) -> None:
    rng, frames = np.random.default_rng(0), {}
    truths = {"east": ("1", "0"), "north": ("yes", "no"), "south": ("True", "False")}
    for name, words in truths.items():
        x = rng.normal(size=40).round(4)
        frames[name] = pd.DataFrame({"x": x, "a": np.where(x > 0, *words), "b": np.where(rng.random(40) < 0.5, *words),
                                     "split": np.where(np.arange(40) % 4 == 3, "test", "train")})  # fmt: skip
    town = town_of(tmp_path, frames, target="a,b", task="multilabel", options=TableOptions())
    settings: dict[str, Any] = {"rounds": 2, "model": "mlp", "seed": 0}
    config = RunConfig.make({"algorithm": "fedrep", **settings})
    run = train_over(town, config, gather(town, 3, 10), Limits(seconds=60, patience=0.2, pause=0.01), tmp_path / "run")
    for name, (yes, _) in truths.items():
        frames[name] = frames[name].assign(who=name, **{q: (frames[name][q] == yes).astype(int) for q in "ab"})
    data = load_data(str(joined(tmp_path, frames)), client_column="who", schema=run.trained.schema)
    here = cg.train("fedrep", data, engine="serial", **settings)
    assert run.summary["weights_sha256"] == here.summary["weights_sha256"]
    for metric, known in here.summary["metrics"].items():
        assert run.summary["metrics"][metric]["mean"] == known["mean"], metric


@pytest.mark.parametrize(
    ("said", "here"),
    [({}, {"test_seed": 0}), ({"test_seed": 7, "test_share": 0.4}, {}), ({"group_column": "ward"}, {})],
)
def test_the_same_rows_are_held_out_as_on_one_machine(
    said: dict[str, Any], here: dict[str, Any], tmp_path: Path
) -> None:
    """Where no column says which rows are test rows: a run with the weights and figures of one on the joined table."""
    frames = {name: frame.drop(columns="split") for name, frame in made_frames().items()}
    for frame in frames.values():
        frame["ward"] = np.arange(len(frame)) // 5
    town = town_of(tmp_path, frames, options=TableOptions(drop=("site",), **said))
    config = RunConfig.make({**SHORT, "rounds": 2})
    run = train_over(town, config, gather(town, 3, 10), FAST, tmp_path / "run")
    data = load_data(str(joined(tmp_path, frames)), client_column="site", schema=run.trained.schema, **said, **here)
    alone = cg.train(data=data, engine="serial", rounds=2, **SHORT)
    assert run.summary["weights_sha256"] == alone.summary["weights_sha256"]
    assert run.summary["personal_accuracy"] == alone.summary["personal_accuracy"]
    # What all scale by was told of these training rows, and of no test row.
    agreed = run.trained.schema
    assert agreed is not None
    numbers = [agreed.inputs.index(name) for name in ("age", "income")]
    for told, learnt in zip((agreed.mean, agreed.std), deviations(data.x_train), strict=True):
        np.testing.assert_allclose(np.array(told)[numbers], np.array(learnt)[numbers], rtol=1e-12)


def test_new_clients_are_served_by_the_model_that_a_client_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its own model there is no report to be written anew, and it said so after the work, with an exit code of 1."""
    frames = made_frames()
    town = town_of(tmp_path, frames)
    train_over(town, RunConfig.make({**SHORT, "rounds": 2}), gather(town, 3, 10), FAST, tmp_path / "run")
    kept = next((tmp_path / "sites" / "client-1").glob("models/*"))
    new = written(tmp_path / "new", {"new": made_frame("north", 60).assign(site="newcomer")})["new"]
    assert main(["adapt", str(kept), "--data", str(new), "--client-column", "site", "--shots", "3"]) == 0
    assert (kept / "adapt.json").is_file()
    assert "report" not in capsys.readouterr().out
    assert main(["report", str(kept)]) != 0
    assert "there is no rounds.jsonl (a client of a network keeps its own model alone" in capsys.readouterr().err


SHORT: dict[str, Any] = {"algorithm": "fedrep", "model": "mlp", "threads": 1, "batch_size": 8, "seed": 5}
FAST = Limits(seconds=20, patience=0.2, pause=0.01)


def test_a_run_is_of_one_reading_of_a_table(tmp_path: Path) -> None:
    """A file that is written anew while its client runs: what was told of it, and what is trained on, stay the same."""
    frames = made_frames()
    config = RunConfig.make({**SHORT, "rounds": 2})
    before = town_of(tmp_path, frames)
    wanted = train_over(before, config, gather(before, 3, 10), FAST, tmp_path / "before").summary["weights_sha256"]
    (tmp_path / "again").mkdir()
    town = town_of(tmp_path / "again", frames)
    notes: list[str] = []
    town.desks[101].answering.note = notes.append
    members = gather(town, 3, 10)
    written(tmp_path / "again", {"north": frames["north"][::-1].head(40)})
    assert train_over(town, config, members, FAST, tmp_path / "run").summary["weights_sha256"] == wanted
    assert [note.partition(";")[0] for note in notes] == ["the run is over"]
    notes.clear()
    described = gather(town, 3, 10).descriptions[1]
    assert described.train == (frames["north"][::-1].head(40)["split"] == "train").sum()
    assert (
        notes[0]
        == f"'{tmp_path / 'again' / 'north.csv'}' has changed and was read anew: {described.train} training rows"
    )
    assert gather(town, 3, 10).descriptions[1] == described
    assert sum("read anew" in note for note in notes) == 1


def test_a_table_that_cannot_be_read_any_more_costs_its_client_the_run(tmp_path: Path) -> None:
    town, notes = town_of(tmp_path, made_frames()), list[str]()
    (tmp_path / "north.csv").write_text("age,goal\n1,2,3\n")
    with pytest.raises(
        RunError, match=r"2 of 3 clients have come within .* 'its table cannot be read any more; its own"
    ):
        gather(town, 3, 0.5, notes.append)
    assert not any("north.csv" in note for note in notes)


def test_a_run_does_not_go_on_with_another_table(tmp_path: Path) -> None:
    """Of as many rows in another order test rows would have been training rows."""
    frames = {name: frame.drop(columns="split") for name, frame in made_frames().items()}
    town, out = town_of(tmp_path, frames), tmp_path / "run"
    members = gather(town, 3, 10)
    train_over(town, RunConfig.make({**SHORT, "rounds": 1}), members, FAST, out)
    written(tmp_path, {"north": frames["north"][::-1]})
    town.data[1] = town.data[1].current()
    for node in town.desks:
        town.restart(node)
    notes: list[str] = []
    town.desks[101].answering.note = notes.append
    run = train_over(town, RunConfig.make({**SHORT, "rounds": 3}), members, FAST, out, resume=True)
    refused = run.summary["refused"]["north"]
    assert refused["rounds"] == 2
    assert refused["why"].endswith("says 'its data are others than those with which it began the run'")
    assert [row["participants"] for row in run.history] == [3, 2, 2]


def test_each_client_has_the_answers_to_its_own_test_rows(tmp_path: Path) -> None:
    """As ``predict --tested`` has them of all clients, by the row of each one's own file."""
    frames = made_frames()
    town = town_of(tmp_path, frames)
    config = RunConfig.make({"algorithm": "fedrep", "rounds": 2, "model": "mlp", "seed": 0, "engine": "messages"})
    members = gather(town, 3, 10)
    run = train_over(town, config, members, Limits(seconds=20, patience=0.2, pause=0.01), tmp_path / "run")
    whole = joined(tmp_path, frames)
    asked: dict[str, Any] = {"client_column": "site", "label": "goal", "schema": run.trained.schema}
    same = cg.train("fedrep", load_data(str(whole), **asked), rounds=2, model="mlp", seed=0)
    wanted = cg.predict_tests(same, data=load_data(str(whole), **asked))
    first = 0
    for client, name in enumerate(NAMES):
        found = pd.read_csv(tmp_path / "sites" / f"client-{client}" / "models" / members.run / "tests.csv")
        mine = wanted[wanted["client"] == name]
        assert [*found["sample"]] == [*mine["sample"] - first] == [*range(3, len(frames[name]), 4)]
        assert [*found["actual"]] == [*mine["actual"]]
        assert [*found["class"]] == [*mine["class"]]
        first += len(frames[name])
