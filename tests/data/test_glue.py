"""GLUE's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commonground.data import (
    load_data,
    load_source,
    load_tokenizer,
    tokenize,
)
from commonground.data.sources import glue
from commonground.errors import DataError
from tests.token_rows import ID, minilm, numbers, pairs, reviews, tokenizer, write


def test_sst2_from_files(tmp_path: Path) -> None:
    data = load_data("sst2", 3, data_dir=reviews(tmp_path), tokenizer=tokenizer())
    assert (data.clients, len(data.x_train), len(data.x_test)) == (3, 12, 6)
    assert data.class_names == ("negative", "positive")
    assert data.sample_shape == (1 + 7, 2)  # [CLS] bad film a a a [SEP], shared by training and test rows
    assert data.x_train[0, : 1 + 4, 0].tolist() == [0, *numbers("[CLS] bad film [SEP]")]
    assert data.x_test[:, 0, 0].tolist() == list(range(12, 18))
    assert np.array_equal(data.y_train == 1, data.x_train[:, 2, 0] == ID["good"])


OFFICIAL: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "rte": ("RTE", "index\tsentence1\tsentence2\tlabel", lambda label: f"0\ta b\tc\t{label}"),
    "qnli": ("QNLI", "index\tquestion\tsentence\tlabel", lambda label: f"0\ta b\tc\t{label}"),
    "mnli": (
        "MNLI",
        "index\tpromptID\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        lambda label: f"0\t1\tfiction\t( a b )\ta b\tc\tneutral\t{label}",
    ),
    "qqp": ("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", lambda label: f"0\t1\t2\ta b\tc\t{label}"),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_columns_and_plain_ones(name: str, tmp_path: Path) -> None:
    folder, header, row = OFFICIAL[name]
    classes = glue.TASKS[name].classes
    dev = glue.TASKS[name].dev[0]
    official, plain = tmp_path / "official", tmp_path / "plain"
    for part in ("train.tsv", dev):
        write(official / "glue" / folder / part, header, [row(word) for word in classes])
    for part in ("train.tsv", "dev.tsv"):
        rows = [f"a b\tc\t{number}" for number in range(len(classes))]
        write(plain / "glue" / folder / part, "sentence1\tsentence2\tlabel", rows)
    sources = [load_source(name, place, download=False, tokenizer=tokenizer()) for place in (official, plain)]
    for source in sources:
        assert source.class_names == classes
        assert source.y_train.tolist() == list(range(len(classes)))
        assert source.x_train[0, 1:, 0].tolist() == numbers("[CLS] a b [SEP] c [SEP]")
    assert list(sources[0].train_columns) == (["genre"] if name == "mnli" else [])


def test_quotation_marks_are_text_and_rows_without_a_text_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ['"a\tb\t0', "c\t\t1", "d", "e\ta\t1"]  # as two rows of the official QQP lack a question
    for part in ("train", "dev"):
        write(tmp_path / "glue" / "QQP" / f"{part}.tsv", "question1\tquestion2\tis_duplicate", rows)
    source = load_source("qqp", tmp_path, tokenizer=tokenizer())
    assert source.y_train.tolist() == [0, 1]
    assert "train.tsv: 2 of 4 rows lack a text and are left out" in capsys.readouterr().err


def test_a_missing_file_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load_data("mnli", 3, data_dir=tmp_path, download=False, tokenizer=tokenizer())
    assert "mnli needs the file train.tsv in" in str(error.value)
    assert str(Path("glue", "MNLI")) in str(error.value)
    assert "https://dl.fbaipublicfiles.com/glue/data/MNLI.zip" in str(error.value)


def test_an_archive_in_the_folder_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import zipfile

    files = reviews(tmp_path / "made") / "glue" / "SST-2"
    archive = tmp_path / "data" / "glue" / "SST-2.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as packed:
        for name in ("train.tsv", "dev.tsv"):
            packed.write(files / name, f"SST-2/{name}")
    with pytest.raises(DataError, match=r"has the SHA-256 checksum .*; the published file has d67e16fb"):
        load_source("sst2", tmp_path / "data", download=False, tokenizer=tokenizer())
    published = replace(glue.TASKS["sst2"].archive, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setitem(glue.TASKS, "sst2", replace(glue.TASKS["sst2"], archive=published))
    assert len(load_source("sst2", tmp_path / "data", download=False, tokenizer=tokenizer()).x_train) == 12
    assert archive.exists()


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("text\tlabel", "a\t0", "train.tsv has no column 'sentence'; its columns are: text, label"),
        (
            "sentence\tlabel",
            "a\t2",
            "train.tsv, line 2: the label is '2'; it must be one of negative, positive, or 0 to 1",
        ),
        ("sentence\tlabel", "a\tgood", "line 2: the label is 'good'"),
        ("sentence\tlabel", " \t1", "has no training texts"),
    ],
)
def test_damaged_glue_files(tmp_path: Path, header: str, row: str, message: str) -> None:
    folder = reviews(tmp_path)
    write(folder / "glue" / "SST-2" / "train.tsv", header, [row])
    with pytest.raises(DataError, match=message):
        load_source("sst2", folder, tokenizer=tokenizer())


def test_a_real_tokenizer(tmp_path: Path) -> None:
    words = load_tokenizer(f"hf:{minilm()}")
    x = tokenize(pairs([("A cat!", "On mats, really")]), words)
    assert x[0, 1:, 0].tolist() == words(["A cat!"], ["On mats, really"])["input_ids"][0]
    assert words.decode(x[0, 1:, 0].tolist()) == "[CLS] a cat! [SEP] on mats, really [SEP]"
    assert x[0, 1:, 1].tolist() == [0] * 5 + [1] * 5
    assert int(x[..., 0].max()) < len(words)


@pytest.mark.data
@pytest.mark.parametrize("name", ["sst2", "rte", "qnli", "mnli", "qqp"])
def test_real_files(name: str) -> None:
    import os

    root = os.environ.get("COMMONGROUND_DATA")
    folder = Path("glue") / glue.TASKS[name].folder
    if not root or not (Path(root) / folder / "train.tsv").is_file():
        pytest.skip(f"needs the real files: COMMONGROUND_DATA must name a folder that has {folder}")
    words = load_tokenizer(minilm())
    data = load_data(name, 3, data_dir=root, download=False, tokenizer=words, max_length=64, vocab_size=len(words))
    assert data.class_names == glue.TASKS[name].classes
    assert (data.class_counts("train").sum(axis=0) / len(data.x_train) > 0.25).all()
    assert (data.x_train[:, 1, 0] == words.cls_token_id).all()
    assert (data.x_train[:, 1:, 1].max() == 1) == (name != "sst2")
    if name == "sst2":
        assert (len(data.x_train), len(data.x_test)) == (67_349, 872)
        row = data.x_train[0]
        assert words.decode(row[2 : row[0, 1], 0].tolist()) == "hide new secretions from the parental units"
