"""Test rows, clients with few rows and rows without a label of a table of texts: as in other tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground.data import FederatedDataset, hold_out, load_data
from commonground.data.own_texts import text_data
from commonground.data.tables.options import table_options
from commonground.errors import ConfigError, DataError
from tests.token_rows import ID, WORDS, tokenizer, write

HEADER = "text,label,who,day,topic,part"


def table(tmp_path: Path, **changed: str) -> Path:
    """24 rows of 3 clients; the text of row i is word i % 5, its day falls from row to row."""
    rows = []
    for i in range(24):
        row = {
            "text": f"{WORDS[i % 5]} film", "label": f"k{i % 2}", "who": f"w{i % 3}", "day": f"2024-01-{28 - i:02d}",
            "topic": f"t{i // 6}", "part": "test" if i % 4 == 0 else "train",
        }  # fmt: skip
        rows.append(",".join((row | (changed if i == 7 else {})).values()))
    return write(tmp_path / "notes.csv", HEADER, rows)


def load(path: Path, **options: Any) -> FederatedDataset:
    return load_data(path, tokenizer=tokenizer(), client_column="who", drop="part", **options)


def texts(x: Any) -> list[int]:
    return sorted(x[:, 2, 0].tolist())


def test_the_last_rows_by_time_are_test_rows(tmp_path: Path) -> None:
    data = load(table(tmp_path), time_column="day", test_share=0.5)
    latest = [i for who in range(3) for i in range(who, 24, 3)[:4]]  # the first rows have the latest days
    assert texts(data.x_test) == sorted(ID[WORDS[i % 5]] for i in latest)
    assert data.about["test_rows"] == "the last 50% by the column day"


def test_rows_are_held_out_as_test_rows_are(tmp_path: Path) -> None:
    """Of one's own texts as of everybody's."""
    path = table(tmp_path)
    for column, by in (("day", "time"), ("topic", "group")):
        how = {f"{by}_column": column}
        options = table_options({**how, "drop": "part"})
        own = text_data(path, "one", tokenizer(), label="label", options=options)
        for data in (load(path, **how), own):
            related = data.origin.related
            assert related is not None
            assert (related.by, len(related.values)) == (by, len(data.y_train))
            held = hold_out(data, 0.3, 0)
            for client in range(data.clients):
                kept, chosen = (related.values[i(client)] for i in (held.train_indices, held.validation_indices))
                assert not {*kept} & {*chosen}
                assert by == "group" or kept.max() < chosen.min()


def test_a_named_split_column(tmp_path: Path) -> None:
    data = load_data(table(tmp_path), tokenizer=tokenizer(), client_column="who", split_column="part")
    assert texts(data.x_test) == sorted(ID[WORDS[i % 5]] for i in range(0, 24, 4))
    assert data.about["test_rows"] == "by the column part"


def test_groups_stay_together(tmp_path: Path) -> None:
    data = load(table(tmp_path), group_column="topic")
    by_row = {(WORDS[i % 5], i % 2, i % 3): i // 6 for i in range(24)}
    inverse = {number: word for word, number in ID.items()}

    def topics(x: Any, y: Any, who: int, rows: Any) -> set[int]:
        return {by_row[inverse[int(x[r, 2, 0])], int(y[r]), who] for r in rows}

    for who in range(3):
        train = topics(data.x_train, data.y_train, who, data.train_indices(who))
        test = topics(data.x_test, data.y_test, who, data.test_indices(who))
        assert test
        assert not train & test


def test_rows_without_a_label_are_refused_or_left_out_and_counted(tmp_path: Path) -> None:
    path = table(tmp_path, label="")
    with pytest.raises(DataError, match=r"line 9, column 'label': the cell is empty; --missing-target drop"):
        load(path)
    data = load(path, missing_target="drop")
    assert len(data.y_train) + len(data.y_test) == 23
    assert data.about["missing_targets"] == 1
    assert data.about["notes"] == ["1 of 24 rows has no value in 'label' and is left out"]


def test_texts_of_nobody_are_refused_or_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, who="")
    with pytest.raises(DataError, match="leave such rows out by --missing-client drop"):
        load(path)
    data = load(path, missing_client="drop")
    assert len(data.y_train) + len(data.y_test) == 23
    assert data.about["notes"] == ["1 of 24 rows has no value in 'who' and is left out"]


def test_clients_with_few_rows_become_one(tmp_path: Path) -> None:
    data = load(table(tmp_path, who="alone"), few_rows="pool", min_rows=8)
    assert data.client_names == ("(few rows)", "w0", "w2")
    assert np.sum(data.train_sizes + data.test_sizes) == 24


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": "day=date"}, "--kinds is for columns of numbers"),
        ({"scaling": "client"}, "--scaling is for columns of numbers"),
    ],
)
def test_options_for_numbers_are_refused(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(table(tmp_path), **options)


def test_clients_with_few_rows_are_left_to_the_global_model(tmp_path: Path) -> None:
    data = load(table(tmp_path, who="alone"), few_rows="shared", min_rows=8)
    assert data.client_names == ("w0", "w2")
    assert data.about["few_clients"]["how"] == "shared"
    assert "alone" in data.about["few_clients"]["clients"]


def test_classes_that_cannot_be_learnt_are_told(tmp_path: Path) -> None:
    """As of a table of numbers: two that are spelt alike, and a number as a class of its own in each row."""

    def notes(labels: list[str]) -> list[str]:
        rows = [f"{WORDS[i % 5]} film,{label},w{i % 2}" for i, label in enumerate(labels)]
        data = load_data(write(tmp_path / "t.csv", "text,label,who", rows), tokenizer=tokenizer(), client_column="who")
        return list(data.about["notes"])

    assert notes(["Yes", "yes"] * 20) == ["'Yes' and 'yes' are two classes; if they are one, spell them alike"]
    (note,) = notes([str(i / 2) for i in range(40)])
    assert "10 test rows are of classes that no training row has" in note


def test_clients_called_as_nothing_is_are_told(tmp_path: Path) -> None:
    rows = [f"{WORDS[i % 5]} film,k{i // 2 % 2},{('n/a', 'w1')[i % 2]}" for i in range(24)]
    data = load_data(write(tmp_path / "t.csv", "text,label,who", rows), tokenizer=tokenizer(), client_column="who")
    (note,) = data.about["notes"]
    assert note == "who: 'n/a', in 12 rows, is a name as others are; leave the cells empty if it stands for none"


def test_texts_have_no_other_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are texts, which are for classification, not for regression"):
        load(table(tmp_path), task="regression")
    with pytest.raises(ConfigError, match="are texts, which are for classification, not for multilabel"):
        load(table(tmp_path), label="red,large", task="multilabel")


def test_a_time_column_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no column 'days' \(did you mean 'day'\?\)"):
        load(table(tmp_path), time_column="days")
