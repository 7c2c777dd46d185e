"""Tables of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commonground.data import (
    kind_of,
    load_data,
    load_source,
)
from commonground.data.sources.table import read_table
from commonground.data.sources.text_table import load_text_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.data.text.samples import TextData
from commonground.errors import ConfigError, DataError
from tests.token_rows import ID, WORDS, numbers, reviews, tokenizer, write


def test_a_table_of_texts(tmp_path: Path) -> None:
    rows = [f'"{"good" if i % 3 else "bad"}, film",l{i % 3},h{i % 4},{i}' for i in range(40)]
    path = write(tmp_path / "notes.csv", "text,label,hospital,other", rows)
    data = load_data(path, partition="column:hospital", tokenizer=tokenizer())
    assert data.client_names == ("h0", "h1", "h2", "h3")
    assert data.train_sizes.tolist() == [8] * 4  # 10 rows each, a quarter held out, rounded
    assert data.class_names == ("l0", "l1", "l2")
    assert data.x_train[0, 2, 0] == (ID["good"] if data.y_train[0] else ID["bad"])
    assert set(load_source(path, tokenizer=tokenizer()).train_columns) == {"hospital", "other"}


def test_another_table_is_split_as_the_first_one_unless_the_options_say_otherwise(tmp_path: Path) -> None:
    rows = [f"{'good' if i % 3 else 'bad'},l{i % 3},{100 - i},g{i % 4}" for i in range(40)]
    path = write(tmp_path / "notes.csv", "text,label,when,group", rows)

    def like(asked: dict[str, Any]) -> TableSchema:
        return TableSchema((), ("label",), "classification", (), asked=asked)

    def tests(options: TableOptions, asked: dict[str, Any] | None = None) -> list[int]:
        of_run = None if asked is None else like(asked)
        return list(load_text_table(path, seed=3, options=options, like=of_run).test.numbers or ())

    by_time, by_group, plain = (
        TableOptions(time_column="when", test_share=0.1),
        TableOptions(group_column="group"),
        TableOptions(),
    )
    assert tests(plain, by_time.of_rows) == tests(by_time) == [2, 3, 4, 5]  # lines; the latest are the first
    assert tests(by_group, by_time.of_rows) == tests(by_group) != tests(plain)
    assert tests(plain, {"time_column": "date"}) == tests(plain)
    about = load_text_table(path, seed=3, like=like({"time_column": "date"})).origin.about
    assert about["notes"] == ["no column 'date', which says the run's test rows; here 25% at random are"]


def test_another_table_s_dates_are_read_as_the_first_one_s(tmp_path: Path) -> None:
    """05/24/2024 says which is the month, and 04/05/2024 does not."""
    first = write(tmp_path / "a.csv", "text,label,day", [f"w{i},l{i % 2},05/{13 + i:02d}/2024" for i in range(12)])
    options = TableOptions(time_column="day")
    times = load_text_table(first, options=options).origin.about["times"]
    assert times == {"day": "date:%m/%d/%Y"}
    rows = [f"w{month},l{month % 2},{month:02d}/{13 - month:02d}/2024" for month in range(1, 13)]
    other = write(tmp_path / "b.csv", "text,label,day", rows)
    alone = load_text_table(other, options=options)
    assert alone.test.numbers == [2, 3, 4]  # lines; with the day before the month the latest are the first
    assert any("day before month" in note for note in alone.origin.about["notes"])
    asked = {**options.of_rows, "kinds": times}
    like = TableSchema((), ("label",), "classification", (), asked=asked)
    assert load_text_table(other, like=like).test.numbers == [11, 12, 13]
    said = TableOptions(kinds={"day": "date:%d/%m/%Y"})
    assert load_text_table(other, options=said, like=like).test.numbers == [2, 3, 4]
    with pytest.raises(ConfigError, match="--kinds is for columns of numbers and categories"):
        load_text_table(other, options=TableOptions(kinds={"text": "category"}), like=like)


def test_another_table_has_the_first_one_s_columns_and_classes_if_they_hold_it(tmp_path: Path) -> None:
    rows = [f"first {i},second {i},{'bc'[i % 2]}" for i in range(12)]
    path = write(tmp_path / "notes.csv", "text,note,label", rows)

    def read(classes: tuple[str, ...], *columns: str) -> TextData:
        asked = {"text_column": columns}
        return load_text_table(path, like=TableSchema((), ("label",), "classification", classes, asked=asked))

    read_so = read(("a", "b", "c"), "note")
    assert read_so.class_names == ("a", "b", "c")
    assert {
        (text.split()[0], label) for text, label in zip(read_so.train.first, read_so.train.labels, strict=True)
    } == {
        ("second", 1),
        ("second", 2),
    }
    other = read(("a", "b"), "sentence")
    assert other.class_names == ("b", "c")
    assert other.train.first[0].startswith("first")


def test_a_table_of_pairs_with_a_split_column(tmp_path: Path) -> None:
    rows = ["a\tb\tyes\ttrain", "c\td\tno\ttrain", '"e\ta\tyes\ttest']
    path = write(tmp_path / "pairs.tsv", "sentence1\tsentence2\tlabel\tsplit", rows)
    source = load_source(path, tokenizer=tokenizer())
    assert source.class_names == ("no", "yes")
    assert source.y_train.tolist() == [1, 0]
    assert source.x_test[0, 1:, 0].tolist() == numbers('[CLS] " e [SEP] a [SEP]')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text\tlabel\na\t1\n \t0\nb\t1\nb\t0\n", r"line 3: the text 'text' is empty; leave such rows out"),
        ("text\tlabel\na\t1\n \t0\n\t1\nb\t0\n", r"line 3: the text 'text' is empty \(2 cells of the column are\)"),
        ("words\tlabel\na\t1\n", "has no column 'text' or 'sentence', nor .*; its columns are: words, label"),
        ("text\tkind\na\t1\n", "has no column 'label'; its columns are: text, kind"),
        ("text\tlabel\na\t\n", "line 2, column 'label': the cell is empty"),
        ("text\tlabel\na\n", "line 2, has 1 cell; the header has 2"),
        ("text\tlabel\tsplit\na\t1\ttrain\n", "has 1 training row and 0 test rows"),
    ],
)
def test_refused_tables(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_source(path, tokenizer=tokenizer())


@pytest.mark.parametrize(
    ("partition", "options"),
    [
        ("iid", {}),
        ("shards", {"classes_per_client": 1}),
        ("dirichlet:1.0", {}),
        ("lognormal:mean=10,min=2", {}),
        ("column:group", {}),
    ],
)
def test_every_partition(tmp_path: Path, partition: str, options: dict[str, Any]) -> None:
    rows = [f"{WORDS[i % 5]} film,{i % 3},g{i % 4}" for i in range(80)]
    path = write(tmp_path / "t.csv", "text,label,group", rows)
    data = load_data(path, 4, partition=partition, tokenizer=tokenizer(), **options)
    assert data.clients == 4
    assert data.tokens


def test_the_fingerprint_notices_other_tokens(tmp_path: Path) -> None:
    folder = reviews(tmp_path)

    def fingerprint(words: Any, max_length: int = 128) -> str:
        return load_data("sst2", 3, data_dir=folder, tokenizer=words, max_length=max_length).fingerprint()

    assert fingerprint(tokenizer()) == fingerprint(tokenizer())
    others = [fingerprint(tokenizer(), 5), fingerprint(tokenizer(words=WORDS[::-1])), fingerprint(tokenizer("llama"))]
    assert len({fingerprint(tokenizer()), *others}) == 4


def test_names_of_text_data() -> None:
    texts: tuple[str | Path, ...] = (
        "sst2",
        "rte",
        "qnli",
        "mnli",
        "qqp",
        "my.tsv",
        "my.json",
        "a/b.JSONL",
        "hf:glue/sst2",
        Path("x.json"),
    )
    assert all(kind_of(name).texts for name in texts)
    assert not any(kind_of(name).texts for name in ("digits", "sent140", "my.csv", "nothing"))


def test_tokenizers_go_with_texts_and_only_with_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'sst2' are texts and need a tokenizer: .* --model hf:"):
        load_data("sst2", 3, data_dir=tmp_path)
    with pytest.raises(ConfigError, match="'digits' are no texts; a tokenizer"):
        load_data("digits", 3, tokenizer=tokenizer())
    with pytest.raises(DataError, match=r"unknown data 'sst3' \(did you mean 'sst2'\?\)"):
        load_data("sst3", 3)


def test_texts_in_columns_of_any_name_and_in_any_file(tmp_path: Path) -> None:
    rows = [{"words": f"{WORDS[i % 5]} film", "kind": f"k{i % 2}", "who": f"w{i % 3}"} for i in range(24)]
    lines = [f"{row['words']};{row['kind']};{row['who']}" for row in rows]
    write(tmp_path / "t.csv", "words;kind;who", lines)
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    given: dict[str, Any] = {"tokenizer": tokenizer(), "text_column": "words", "label": "kind", "client_column": "who"}
    first = load_data(tmp_path / "t.csv", **given)
    assert (first.client_names, first.class_names) == (("w0", "w1", "w2"), ("k0", "k1"))
    for name in ("t.jsonl", "t.parquet"):
        other = load_data(tmp_path / name, **given)
        assert np.array_equal(other.x_train, first.x_train), name
        assert np.array_equal(other.y_test, first.y_test), name
    with pytest.raises(DataError, match="has no column 'word'"):
        load_data(tmp_path / "t.csv", **{**given, "text_column": "word"})
    with pytest.raises(ConfigError, match="text_column names 'words' twice; two columns make a pair of texts"):
        load_data(tmp_path / "t.csv", **{**given, "text_column": "words,words"})
    with pytest.raises(DataError, match="a text or a pair of texts is read, and 3 columns are named"):
        load_data(tmp_path / "t.csv", **{**given, "text_column": "words,kind,who"})


def test_lines_of_json_are_texts_only_if_they_look_so(tmp_path: Path) -> None:
    (tmp_path / "i.jsonl").write_text('{"instruction": "a", "output": "b"}\n', "utf-8")
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": "b"}\n', "utf-8")
    (tmp_path / "n.jsonl").write_text('{"a": 1, "label": "b"}\n', "utf-8")
    (tmp_path / "n.tsv").write_text("a\tlabel\n1\t2\n", "utf-8")
    with pytest.raises(ConfigError, match="are instructions and answers, of which the fields instruction, input and"):
        load_data(tmp_path / "i.jsonl", 1, tokenizer=tokenizer(), text_column="instruction", label="output")
    assert [kind_of(tmp_path / name).texts for name in ("i.jsonl", "t.jsonl", "n.jsonl", "n.tsv")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.timeout(25)  # took 35 s while every name was looked for in all others
def test_forty_thousand_columns(tmp_path: Path) -> None:
    names, path = [f"f{i}" for i in range(40_000)], tmp_path / "wide.csv"
    row = ",".join(["1"] * len(names))
    path.write_text(",".join(names) + f"\n{row}\n")
    assert read_table(path)[0] == names
    path.write_text(",".join([*names, "f7", "f3"]) + f"\n{row},1,1\n")
    with pytest.raises(DataError, match="every column needs its own name; 'f3', 'f7'"):
        read_table(path)
    path.write_text(",".join(names * 2) + f"\n{row},{row}\n")
    with pytest.raises(DataError, match=r"own name; 'f0', 'f1', .*…") as caught:
        read_table(path)
    assert len(str(caught.value)) < 500


def test_a_cell_beyond_the_limit_of_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("a,label\n" + "1" * 140_000 + ",x\n")
    with pytest.raises(DataError, match=r"could not be read as a table: field larger than field limit \(131072\)"):
        read_table(path)
