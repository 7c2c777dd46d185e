"""Each client of a network reads numbers and dates as its own file writes them, or hears that it may misread them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import commonground as cg
from commonground.config import RunConfig
from commonground.data.own_table import OwnTable, table_data
from commonground.data.tables.options import TableOptions
from commonground.errors import DataError
from commonground.network import Limits, gather, train_over
from commonground.prediction.tables import Whose, predict_table
from tests.network.tables import NAMES, agreed_on, in_german, made_frame, made_frames, one_of, town_of, written


def test_each_client_reads_numbers_and_dates_as_its_file_writes_them(tmp_path: Path) -> None:
    """What the clients tell, what they agree on and their rows are those of tables that are all written alike."""
    frames = made_frames() | {"north": made_frame("north", 44, paid=[f"1,{i:03d}.5" for i in range(44)])}
    alike = {n: frame.assign(paid=[1000.5 + i for i in range(len(frame))]) for n, frame in frames.items()}
    frames = alike | {"south": in_german(alike["south"], "age", "paid"), "north": frames["north"]}
    plain, unlike = town_of(tmp_path / "a", alike), town_of(tmp_path / "b", frames)
    agreed = agreed_on(unlike)
    assert agreed == agreed_on(plain)
    for client, (one, other) in enumerate(zip(plain.data, unlike.data, strict=True)):
        assert one.load(agreed).fingerprint() == other.load(agreed).fingerprint(), client
    schema = unlike.data[2].load(agreed).schema
    assert {f.name: f.decimal or f.order for f in schema.of_kind("number")} == {
        "age": "comma", "income": "point", "paid": "comma"
    }  # fmt: skip
    assert [f.order for f in schema.of_kind("date")] == ["%d.%m.%Y"]


def test_the_model_that_a_client_keeps_reads_its_own_tables(tmp_path: Path) -> None:
    frames = made_frames()
    frames = {name: in_german(frame, "age", "income") if name == "north" else frame for name, frame in frames.items()}
    config = RunConfig.make({"algorithm": "fedavg", "rounds": 1, "model": "mlp", "seed": 0})
    town = town_of(tmp_path, frames)
    run = train_over(town, config, gather(town, 3, 10), Limits(seconds=20, patience=0.2, pause=0.01), tmp_path / "run")
    folder = next((tmp_path / "sites" / "client-1" / "models").iterdir())
    own, notes = cg.load_run(folder), list[str]()
    north, as_others = tmp_path / "north.csv", tmp_path / "as-others.csv"
    made_frames()["north"].to_csv(as_others, index=False)
    answers = predict_table(own.trained, north, Whose(0), notes.append)
    assert answers.metric.startswith("accuracy")
    with pytest.raises(
        DataError,
        match=r"column 'age': '.*' has a decimal point, and the column's numbers are read with a decimal comma; if it",
    ):
        predict_table(own.trained, as_others, Whose(0), notes.append)
    kinds = "age=number,income=number,since=date:ISO8601"
    assert predict_table(own.trained, as_others, Whose(0), notes.append, kinds=kinds) == answers
    ours, shared = run.trained, Whose(shared=True)  # as most clients write
    kinds = "age=comma-number,income=comma-number,since=date:%d.%m.%Y"
    theirs = predict_table(ours, north, shared, notes.append, kinds=kinds)
    assert theirs == predict_table(ours, as_others, shared, notes.append)


@pytest.mark.parametrize("mark", ["/", "-"])
@pytest.mark.parametrize("kind", [None, "date", "date:%m{}%d{}%Y", "date:%d{}%m{}%Y"])
def test_dates_that_another_client_writes_otherwise_may_not_be_in_doubt(
    kind: str | None, mark: str, tmp_path: Path
) -> None:
    frames = made_frames()
    frames["south"]["since"] = [f"0{1 + i % 9}{mark}0{1 + i % 8}{mark}2024" for i in range(52)]
    said = None if kind is None else kind.format(mark, mark)
    town = one_of(tmp_path, frames, "south", {} if said is None else {"since": said})
    if said not in (None, "date"):
        data = town.data[2].load(agreed_on(town))
        assert data.schema is not None
        assert f"date:{data.schema.of_kind('date')[0].order}" == said
        return
    taken = f"%d{mark}%m{mark}%Y"
    with pytest.raises(
        DataError,
        match=rf"^client 'south' takes its column 'since' to be written as {taken}, which its cells leave open, and "
        rf"client 'east' writes ISO8601; start 'south' with --kinds since=date:{taken} if that is so, or with --kinds "
        r"since=date:ISO8601$",
    ):
        gather(town, 3, 10)


def test_numbers_that_another_client_writes_otherwise_may_not_be_in_doubt(tmp_path: Path) -> None:
    """A feature's as a target's; numbers of a file that knows their type are in no doubt."""
    frames = made_frames()
    frames["south"]["income"] = [f"{1 + i % 9}.{125 + 100 * (i % 8)}" for i in range(52)]
    frames["north"]["income"] = [f"{i % 9},5" for i in range(44)]
    with pytest.raises(
        DataError, match=r"^client 'south' takes its column 'income' to be written as 1234\.5, which its"
    ):
        gather(town_of(tmp_path, frames), 3, 10)
    agreed = agreed_on(one_of(tmp_path, frames, "south", {"income": "comma-number"}))
    assert next(f for f in agreed.features if f.name == "income").decimal == "comma"  # as two of three write
    typed = frames["south"].assign(income=pd.to_numeric(frames["south"]["income"]))
    typed.to_parquet(tmp_path / "south.parquet")
    own = OwnTable(tmp_path / "south.parquet", "south", "goal", options=TableOptions(drop=("site",)))
    assert own.columns.doubtful == ()
    german = frames["south"].assign(income=[f"{i % 9},5" if i % 2 else "1.125" for i in range(52)])
    german.to_csv(tmp_path / "german.csv", index=False)
    assert OwnTable(tmp_path / "german.csv", "south", "goal").columns.doubtful == ()


def test_a_single_date_may_not_be_in_doubt_where_others_write_theirs_in_several_ways(tmp_path: Path) -> None:
    frames = made_frames()
    frames["east"]["since"] = [f"{13 + i % 9}/0{1 + i % 8}/2024" for i in range(60)]
    frames["south"]["since"] = "03/04/2024"
    frames["north"]["since"] = frames["east"]["since"][:44]
    alike = one_of(tmp_path, frames, "south", {}).data[2].load(agreed_on(town_of(tmp_path, frames)))
    assert alike.schema is not None
    assert alike.schema.of_kind("date")[0].order == "%d/%m/%Y"
    frames["north"]["since"] = [f"0{1 + i % 8}/{13 + i % 9}/2024" for i in range(44)]
    with pytest.raises(
        DataError,
        match=r"^client 'south' has one date in its column 'since', whose cells leave open how it is written, and "
        r"clients 'east' and 'north' write %d/%m/%Y and %m/%d/%Y; start 'south' with --kinds since=date:%d/%m/%Y or",
    ):
        gather(town_of(tmp_path, frames), 3, 10)
    agreed = agreed_on(one_of(tmp_path, frames, "south", {"since": "date:%m/%d/%Y"}))
    assert next(f for f in agreed.features if f.name == "since").order == "%m/%d/%Y"


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_read_as_each_client_writes_them(name: str, tmp_path: Path) -> None:
    """The run's own notation is that of most, whoever comes first."""
    frames = {n: frame.assign(goal=[f"{i}.5" for i in range(len(frame))]) for n, frame in made_frames().items()}
    asked: dict[str, Any] = {"task": "regression"}
    plain = town_of(tmp_path / "a", frames, **asked)
    frames[name] = frames[name].assign(goal=[f"{i},5" for i in range(len(frames[name]))])
    unlike = town_of(tmp_path / "b", frames, **asked)
    agreed = agreed_on(unlike)
    assert agreed == agreed_on(plain)
    assert agreed.target_decimals == ("point",)
    for one, other in zip(plain.data, unlike.data, strict=True):
        assert one.load(agreed).fingerprint() == other.load(agreed).fingerprint()


def test_what_most_clients_write_is_how_the_run_reads(tmp_path: Path) -> None:
    frames = {name: in_german(frame, "age") if name != "south" else frame for name, frame in made_frames().items()}
    schema = agreed_on(town_of(tmp_path, frames)).schema_of_all()
    assert {f.name: f.decimal for f in schema.of_kind("number")} == {"age": "comma", "income": "point"}


def test_a_table_with_a_schema_is_written_as_its_owner_says(tmp_path: Path) -> None:
    frames = made_frames()
    schema = agreed_on(town_of(tmp_path, frames)).schema_of_all()
    paths = written(tmp_path, {"north": frames["north"], "commas": in_german(frames["north"], "age")})
    kinds = TableOptions(kinds={"age": "comma-number", "since": "date:%d.%m.%Y"})
    data = table_data(paths["commas"], schema, "one", kinds)
    assert data.fingerprint() == table_data(paths["north"], schema, "one").fingerprint()
    # By it the client's own model reads its tables.
    assert data.schema is not None
    assert [(f.name, f.decimal, f.order) for f in data.schema.of_kind("number", "date")] == [
        ("age", "comma", ""), ("income", "point", ""), ("since", "point", "%d.%m.%Y"),
    ]  # fmt: skip


def test_units_and_times_are_agreed_on_as_on_one_machine(tmp_path: Path) -> None:
    """What numbers have beside them, and whether they are times, is the same for all."""

    def made(unit: str) -> dict[str, pd.DataFrame]:
        more = {n: [f"{5 + i % 7}.5{unit}" for i in range(len(f))] for n, f in made_frames().items()}
        clocks = {n: [f"{i % 24}:30" for i in range(len(f))] for n, f in made_frames().items()}
        return {n: f.assign(share=more[n], start=clocks[n]) for n, f in made_frames().items()}

    town = town_of(tmp_path / "a", made(" %"))
    agreed = agreed_on(town)
    assert {f.name: (f.affix, f.clocks) for f in agreed.features if f.kind == "number"} == {
        "age": ("", False), "income": ("", False), "share": ("%", False), "start": ("", True)
    }  # fmt: skip
    assert [f.affix for f in town.data[0].load(agreed).schema.features if f.name == "share"] == ["%"]
    plain = agreed_on(town_of(tmp_path / "b", made("")))
    assert (plain.mean, plain.std) == (agreed.mean, agreed.std)
    for odd, says in (
        ({"share": made("")["north"]["share"]}, "the numbers of the column 'share', their unit: '%' and no unit there"),
        ({"start": range(44)}, "the column 'start', whether they are times (13:27): times and numbers there"),
    ):
        frames = made(" %")
        frames["north"] = frames["north"].assign(**odd)
        with pytest.raises(DataError) as error:
            agreed_on(town_of(tmp_path / "c", frames))
        assert says in str(error.value)
    frames = made(" %")
    frames["north"]["share"] = [*(f"{i}.5 kg" for i in range(43)), "300 g"]
    assert agreed_on(town_of(tmp_path / "d", frames)).dropped["share"] == "holds numbers with units ('kg', 'g')"
    frames["south"]["share"] = [f"{3 + i} {('mg', 'lb')[i % 2]}" for i in range(52)]
    agreed = agreed_on(town_of(tmp_path / "e", frames))
    assert agreed.dropped["share"] == "holds numbers with units ('kg', 'g', 'mg', …)"
