"""One table in every kind of file gives the same samples; what is no table is refused in a sentence."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

from commonground import load_data
from commonground.data import FederatedDataset
from commonground.data.tables.dates import date_numbers
from commonground.data.tables.read import read_raw
from commonground.data.tables.textfile import read_text_file
from commonground.errors import CommonGroundError, ConfigError, DataError

ROWS = 60


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": [f"Kunde {'ÄÖÜ'[i % 3]}" for i in range(ROWS)]})
    frame["amount"] = rng.normal(1000, 300, ROWS).round(2)
    frame["plan"] = rng.choice(["größer", "klein, fein", 'mit "Zitat"'], ROWS)
    frame["since"] = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D")
    frame["count"] = rng.integers(0, 9, ROWS)
    frame["left"] = rng.choice(["no", "yes"], ROWS)
    return frame


def load(path: Path, **options: Any) -> FederatedDataset:
    return load_data(path, client_column="who", label="left", **options)


def written(folder: Path, form: str) -> Path:
    """The table in a file of some form."""
    table, path = frame(), folder / f"t.{form.split()[0]}"
    if form == "parquet":
        table.to_parquet(path)
    elif form in ("feather", "arrow"):
        feather.write_feather(pa.Table.from_pandas(table), path)
    elif form.startswith("jsonl"):
        text = table.assign(since=table.since.dt.strftime("%Y-%m-%d")).to_json(None, orient="records", lines=True)
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    else:
        separator = {"tsv": "\t", "csv semicolon": ";", "csv pipe": "|"}.get(form, ",")
        text = table.to_csv(None, index=False, sep=separator, decimal="," if "semicolon" in form else ".")
        encoding = {"csv latin": "latin-1", "csv utf-16": "utf-16", "csv bom": "utf-8-sig"}.get(form, "utf-8")
        raw = text.encode(encoding)
        path.write_bytes(gzip.compress(raw) if form == "csv.gz" else raw)
    return path


FORMS = ("csv semicolon", "csv pipe", "csv latin", "csv utf-16", "csv bom", "csv.gz", "tsv", "parquet", "feather",
         "arrow", "jsonl", "jsonl.gz")  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_same_table_in_every_form(form: str, tmp_path: Path) -> None:
    expected, got = load(written(tmp_path, "csv")), load(written(tmp_path, form))
    assert got.client_names == ("Kunde Ä", "Kunde Ö", "Kunde Ü")
    for field in ("x_train", "x_test", "y_train", "train_index"):
        assert np.array_equal(getattr(got, field), getattr(expected, field)), field
    assert got.schema is not None
    assert expected.schema is not None
    assert got.schema.inputs == expected.schema.inputs


def test_how_a_file_was_read_is_told(tmp_path: Path) -> None:
    notes = {form: read_text_file(written(tmp_path, form)).note for form in FORMS[:5]}
    assert notes["csv semicolon"] == "separated by semicolons"
    assert notes["csv latin"] == "read as windows-1252"
    assert notes["csv utf-16"] == "read as utf-16"
    assert notes["csv bom"] == ""
    data = load(written(tmp_path, "csv semicolon"))
    assert data.schema is not None
    assert data.schema.notes[0] == "separated by semicolons"


def test_utf_16_without_a_mark(tmp_path: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "t.csv").write_bytes("a,b\n1,2\n".encode(encoding))
        assert read_text_file(tmp_path / "t.csv").content == b"a,b\n1,2\n"


def test_separator_and_encoding_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a;b,c\n1;2,3\n".encode("cp437"))
    assert read_raw(path).names == ["a;b", "c"]  # as many cells by either: the usual separator
    assert read_raw(path, "semicolon").names == ["a", "b,c"]
    path.write_bytes("ä,b\n1,2\n".encode("cp437"))
    assert read_raw(path, encoding="cp437").names == ["ä", "b"]
    for wrong, says in ({"separator": "ab"}, "one character"), ({"encoding": "utf-9"}, "no text encoding 'utf-9'"):
        with pytest.raises(ConfigError, match=says):
            load(path, **wrong)


def test_a_folder_of_equal_tables(tmp_path: Path) -> None:
    whole, folder = frame(), tmp_path / "months"
    folder.mkdir()
    whole[:25].to_csv(folder / "01.csv", index=False)
    whole[25:].to_csv(folder / "02.csv", index=False)
    (folder / "notes.md").write_text("not a table")
    expected, got = load(written(tmp_path, "csv")), load(folder)
    assert np.array_equal(got.x_train, expected.x_train)
    text = (folder / "02.csv").read_text("utf-8")
    (folder / "02.csv").write_text(text.replace("2021", "20x1", 1), "utf-8")
    with pytest.raises(DataError, match=r"02\.csv, line \d+, column 'since': '20x1.*' is no date"):
        load(folder)
    (folder / "02.csv").write_text(text.replace("count", "counts", 1), "utf-8")
    with pytest.raises(DataError, match="cannot be one table: the column 'count' is in one of them only"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.parquet", b"PAR1 and nothing", "could not be read as a table"),
        ("t.feather", b"", "could not be read as a table"),
        ("t.csv.gz", b"\x1f\x8b\x08cut", "could not be read as a table"),
        ("t.jsonl", b'{"a": 1}\n{"a": \n', "line 2 is no JSON"),
        ("t.jsonl", b'{"a": 1}\n[1]\n', "line 2 is no JSON object"),
        ("t.jsonl", b'{"a": [1, 2], "b": {"c": 1}}\n', "has no columns of numbers, words, dates or truths"),
        ("t.csv", b"a,b,left\n1,2,3\n1,2\n", "line 3, has 2 cells; the header has 3"),
        ("t.csv", b'a,left\n"1\n2",x\n1\n', "line 4, has 1 cell; the header has 2"),
        ("t.csv", b"\xff\xfea", "begins as utf-16 text, but byte"),
    ],
)
def test_what_is_no_table(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        load_data(tmp_path / name, 2, label="left")


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "frame"])
@pytest.mark.parametrize(("name", "shown"), [("count ", "'count'"), (" ", "")])
def test_names_are_told_apart_without_blanks_around_them(name: str, shown: str, form: str, tmp_path: Path) -> None:
    table, path = frame().drop(columns="since").assign(**{name: 7}), tmp_path / f"t.{form}"
    if form == "csv":
        table.to_csv(path, index=False)
    elif form == "parquet":
        table.to_parquet(path)
    elif form == "jsonl":
        table.to_json(path, orient="records", lines=True)
    with pytest.raises(DataError, match=f"every column needs its own name; {shown or 'column 6 of 6'} "):
        load_data(table if form == "frame" else path, client_column="who", label="left")


def test_options_of_tables_are_for_tables() -> None:
    with pytest.raises(ConfigError, match="'digits' are no table"):
        load_data("digits", drop="a")
    with pytest.raises(ConfigError, match=r"unknown setting 'client_colum' \(did you mean 'client_column'\?\); of how"):
        load_data("digits", client_colum="a")


def test_client_column_and_partition_say_one_thing(tmp_path: Path) -> None:
    path = written(tmp_path, "csv")
    one, same = load(path), load_data(path, partition="column:who", label="left")
    assert one.fingerprint() == same.fingerprint()
    assert load(path, partition="column:who").fingerprint() == one.fingerprint()
    with pytest.raises(CommonGroundError, match="both say whose the rows are"):
        load(path, partition="iid")


def test_lists_and_objects_are_left_out_with_a_word(tmp_path: Path) -> None:
    rows = [{"a": i, "tags": [1, 2], "more": {"b": 1}, "left": "xy"[i % 2]} for i in range(20)]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    schema = load_data(tmp_path / "t.jsonl", 2, label="left").schema
    assert schema is not None
    assert schema.inputs == ["a"]
    assert schema.notes[0] == "left out: 'tags' (list<item: int64>), 'more' (struct<b: int64>)"
    dropped = load_data(tmp_path / "t.jsonl", 2, label="left", drop="tags").schema
    assert dropped is not None
    assert dropped.inputs == ["a"]
    with pytest.raises(DataError, match=r"the column 'tags' holds list<item: int64>, and no numbers, words, dates or"):
        load_data(tmp_path / "t.jsonl", 2, label="tags")


@pytest.mark.parametrize(
    ("cell", "kind", "says"),
    [
        ("12,5", "number", "'12,5' has a decimal comma, and the column's numbers are read with a decimal point"),
        ("12.5", "comma-number", "'12.5' has a decimal point, and the column's numbers are read with a decimal comma"),
        ("1,2,5", "number", "'1,2,5' is no number"),
    ],
)
def test_a_cell_in_another_notation_is_said_to_be_that(cell: str, kind: str, says: str, tmp_path: Path) -> None:
    others = ["1.5" if kind == "number" else "1,5"] * 20
    rows = [f'"{x}",{"ab"[n % 2]}' for n, x in enumerate([*others, cell])]
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *rows]))
    with pytest.raises(DataError, match=re.escape(says)):
        load_data(tmp_path / "t.csv", 2, kinds={"x": kind})


@pytest.mark.parametrize("zone", ["Z", "+01:00", "-0500", " +02:00", "+13", " -11"])
def test_a_time_with_a_zone_is_what_the_clocks_there_show(zone: str, tmp_path: Path) -> None:
    """Midnight begins the day that it begins there, in summer and in winter."""
    days = pd.date_range("2023-03-20", periods=40)
    plain = date_numbers([f"{day:%Y-%m-%d}" for day in days], "ISO8601")
    assert np.array_equal(plain, np.arange(19436, 19476))
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S.%f"):
        assert np.array_equal(date_numbers([f"{day:{form}}{zone}" for day in days], "ISO8601"), plain)
    if zone != "Z":
        written = [f"{day:%d.%m.%Y %H:%M}{zone}" for day in days]
        assert np.array_equal(date_numbers(written, f"%d.%m.%Y %H:%M{' ' * zone.startswith(' ')}%z"), plain)
    half = date_numbers([f"2023-03-20T12:00:00{zone}"], "ISO8601")
    assert half == plain[0] + 0.5


def test_rows_of_a_zone_follow_one_another_by_the_moment(tmp_path: Path) -> None:
    """Where clocks are put back, and where zones are mixed."""
    times = [
        "2024-10-27T02:30:00+02:00",
        "2024-10-27T02:10:00+01:00",
        "2024-10-26T23:00:00-0500",
        "2024-10-27T03:00:00Z",
    ]
    rows = [f"{who},{time},{row},{row % 2}" for who in "ab" for row, time in enumerate(times)]
    (tmp_path / "t.csv").write_text("\n".join(["who,when,x,label", *rows]))
    data = load_data(tmp_path / "t.csv", client_column="who", time_column="when", test_share=0.5, scaling="none")
    assert sorted(data.x_test[:, 0].tolist()) == [2, 2, 3, 3]
    data = load_data(tmp_path / "t.csv", client_column="who", time_column="when", test_share=0.75, scaling="none")
    assert sorted(data.x_train[:, 0].tolist()) == [0, 0]


def test_files_of_a_folder_keep_the_moments(tmp_path: Path) -> None:
    """Clocks in Berlin are put back at 1:00 UTC: 2:36 comes after 2:48 has been."""
    times = pd.date_range("2023-10-29 00:00", periods=10, freq="12min", tz="UTC").tz_convert("Europe/Berlin")
    parts = [pd.DataFrame({"who": who, "when": times, "x": np.arange(10.0), "label": list("ab") * 5}) for who in "pq"]
    pd.concat(parts).to_parquet(tmp_path / "one.parquet")
    for folder in ("zoned", "mixed"):
        (tmp_path / folder).mkdir()
        for who, part in zip("pq", parts, strict=True):
            clocks = part.assign(when=part.when.dt.tz_localize(None)) if (folder, who) == ("mixed", "q") else part
            clocks.to_parquet(tmp_path / folder / f"{who}.parquet")
    asked: dict[str, Any] = {"client_column": "who", "time_column": "when", "test_share": 0.3, "scaling": "none"}
    one, zoned, mixed = (load_data(tmp_path / name, **asked) for name in ("one.parquet", "zoned", "mixed"))
    for data in (one, zoned):
        assert sorted(data.x_test[:, 0].tolist()) == [7, 7, 8, 8, 9, 9]
    said = "when: times have a zone in some of the files, and count as the clocks show them"
    assert [said in data.about["notes"] for data in (zoned, mixed)] == [False, True]


def test_zones_that_are_none(tmp_path: Path) -> None:
    for word in ("2024-10-27T02:30:00+99:99", "2024-10-27T02:30:00+25"):
        assert np.isnan(date_numbers([word], "ISO8601")).all()
    assert np.isnan(date_numbers(["27.10.2024 02:30"], "%d.%m.%Y %H:%M%z")).all()
    one, other = date_numbers(["2024-10-26 00:00:00-5:00", "2024-10-26 00:00:00-05:00"], "ISO8601")
    assert one == other == 20022
    table = pa.table({"when": pa.array([0, 1] * 20, pa.timestamp("us", "Mars/Olympus")), "label": [0, 1] * 20})
    parquet.write_table(table, tmp_path / "mars.parquet")
    with pytest.raises(
        DataError, match=r"column 'when' are of the zone 'Mars/Olympus', which is not known here; store"
    ):
        load_data(tmp_path / "mars.parquet", 2)


def test_a_column_with_a_zone_is_read_as_without_one(tmp_path: Path) -> None:
    days = pd.Series(pd.date_range("2023-03-20", periods=40))
    frame = pd.DataFrame({"day": days, "label": np.arange(40) % 2})
    plain = load_data(frame, 2).x_train
    for zone in ("Europe/Berlin", "America/New_York", "UTC"):
        local = frame.assign(day=days.dt.tz_localize(zone))
        assert np.array_equal(load_data(local, 2).x_train, plain)
        local.to_csv(tmp_path / "local.csv", index=False)
        assert np.array_equal(load_data(tmp_path / "local.csv", 2).x_train, plain)


def test_finer_times_than_microseconds_are_dates(tmp_path: Path) -> None:
    days = pd.date_range("2020-01-01", periods=40, freq="D") + pd.Timedelta(1, "ns")
    frame = pd.DataFrame({"c": ["a", "b"] * 20, "t": days, "y": [0, 1, 1, 0] * 10})
    data = load_data(frame, client_column="c", target="y")
    assert data.schema is not None
    assert [column.kind for column in data.schema.features] == ["date"]


def test_whole_numbers_of_more_than_64_bits_are_named() -> None:
    frame = pd.DataFrame({"c": ["a", "b"] * 2, "z": pd.Series([1, 2, 3, 4], dtype=object), "y": [0, 1, 1, 0]})
    for large in (10**20, 2**63, -(2**63) - 1):
        frame.loc[2, "z"] = large
        with pytest.raises(DataError, match=rf"row 3, column 'z': {large} is a whole number of more than 64"):
            load_data(frame, client_column="c", target="y")
    for fits in (2**63 - 1, -(2**63)):
        frame.loc[2, "z"] = fits
        assert load_data(frame, client_column="c", target="y").clients == 2


def test_views_of_strings_are_words(tmp_path: Path) -> None:
    words = pa.array([f"w{i % 3}" for i in range(40)]).cast(pa.string_view())
    raw = pa.array([b"x"] * 40).cast(pa.binary_view())
    table = pa.table({"c": ["a", "b"] * 20, "k": words, "raw": raw, "y": [0, 1, 1, 0] * 10})
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    data = load_data(tmp_path / "t.arrow", client_column="c", target="y")
    assert data.schema is not None
    assert data.schema.features[0].categories == ("w0", "w1", "w2")
    assert data.schema.notes[0] == "left out: 'raw' (binary_view)"


def test_lines_between_objects_are_counted(tmp_path: Path) -> None:
    rows = [f'{{"c": "{"ab"[i % 2]}", "x": {i}.5, "y": {"null" if i == 7 else i % 2}}}' for i in range(20)]
    several_in_one = "\n".join([rows[0], " ".join(rows[1:])])  # which have no lines of their own
    texts = {"\n\n".join(rows): 15, "\n  \n".join(rows): 15, "\n".join(rows): 8, several_in_one: 8}
    for text, line in texts.items():
        (tmp_path / "t.jsonl").write_text(text + "\n")
        with pytest.raises(DataError, match=rf"line {line}, column 'y': the cell is empty"):
            load_data(tmp_path / "t.jsonl", client_column="c", target="y")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("marked", "line"),
    [
        ({20: '"u'}, 21),  # takes all that is left
        ({20: '"u', 30: '"v'}, 21),  # ends in front of the v
        ({40: '"u'}, 41),  # in the last line
        ({10: '"u\nv"', 20: '"u'}, 22),  # behind a cell over two lines
        ({10: '"u"x', 20: '"u'}, 21),  # behind one that is clear without its quotes
        ({20: '"' + "u" * 150_000}, 21),  # longer than Python's reader takes by default
    ],
)
def test_a_quotation_that_is_not_closed_takes_no_lines(
    marked: dict[int, str], line: int, end: str, tmp_path: Path
) -> None:
    """Arrow would end it with the file."""
    rows = ["c,x,y,z", *(f"{'ab'[i % 2]},{i},{i // 2 % 2},{marked.get(i, 'u')}" for i in range(1, 41))]
    (tmp_path / "t.csv").write_bytes(end.join([*rows, ""]).encode())
    with pytest.raises(
        DataError, match=rf"t.csv, line {line}, opens a quotation mark that no mark at the end of a cell"
    ):
        load_data(tmp_path / "t.csv", client_column="c", target="y")
    assert csv.field_size_limit() == 131_072
    if line == 41:  # the last one: no line below it, and none of its own
        (tmp_path / "t.csv").write_bytes(end.join(rows).encode())
        with pytest.raises(DataError, match=r"t.csv, line 41, opens a quotation mark"):
            load_data(tmp_path / "t.csv", client_column="c", target="y")


def test_quotation_marks_that_are_clear(tmp_path: Path) -> None:
    said = ['"u"', 'u"', '5" u', '"u ""v"" "', '"u"x', '"u" ', ' "u"', '"' + "u\nv\n" * 50_000 + '"', '"u\r\nv"', '""']
    rows = ["c,x,y,z", *(f"{'ab'[i % 2]},{i},{i // 2 % 2},{said[i % len(said)]}" for i in range(40))]
    (tmp_path / "t.csv").write_bytes("\n".join([*rows, ""]).encode())
    assert read_raw(tmp_path / "t.csv").rows == 40
    (tmp_path / "t.tsv").write_text("c\tx\ty\tz\n" + "".join(f'a\t{i}\t{i % 2}\t"u\n' for i in range(40)))
    assert read_raw(tmp_path / "t.tsv", quotes=False).rows == 40  # where a mark is a mark


def test_rows_of_a_table_that_the_stricter_reader_does_not_take_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('c,x\na,"1"0\n\nb,2\n')
    assert read_raw(tmp_path / "t.csv").numbers() == [1, 2]
    (tmp_path / "t.csv").write_text('c,x\na,"10"\n\nb,2\n')
    assert read_raw(tmp_path / "t.csv").numbers() == [2, 4]


def test_files_without_cells_of_text_are_told_no_separator(tmp_path: Path) -> None:
    table = frame()
    table.to_parquet(tmp_path / "t.parquet")
    table.to_json(tmp_path / "t.jsonl", orient="records", lines=True, date_format="iso")
    with pytest.raises(ConfigError, match=r"--separator says nothing of '.*t.parquet'"):
        read_raw(tmp_path / "t.parquet", separator=";")
    with pytest.raises(ConfigError, match=r"--encoding says nothing of '.*t.parquet'"):
        read_raw(tmp_path / "t.parquet", encoding="ascii")
    with pytest.raises(ConfigError, match=r"--separator says nothing of '.*t.jsonl'"):
        read_raw(tmp_path / "t.jsonl", separator=";")
    assert read_raw(tmp_path / "t.jsonl", encoding="utf-8").rows == ROWS


def test_an_index_that_was_written_beside_the_table_is_left_out(tmp_path: Path) -> None:
    whole = frame()
    expected = load(written(tmp_path, "csv"))
    whole.to_csv(tmp_path / "index.csv")
    got = load(tmp_path / "index.csv")
    assert np.array_equal(got.x_train, expected.x_train)
    assert got.schema is not None
    assert "left out: the first column, which has no name and numbers the rows" in got.schema.notes
    ended = written(tmp_path, "csv").read_text("utf-8").replace("\n", ",\n")
    (tmp_path / "comma.csv").write_text(ended, "utf-8")
    got = load(tmp_path / "comma.csv")
    assert np.array_equal(got.x_train, expected.x_train)
    assert got.schema is not None
    assert any("which has neither a name nor cells" in note for note in got.schema.notes)
    (tmp_path / "words.csv").write_text("a,,left\n1,x,2\n", "utf-8")
    with pytest.raises(DataError, match="every column needs its own name; column 2 of 3 has none"):
        load(tmp_path / "words.csv")
