"""Tables of the user's own: what is read, and how a bad cell is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commonground.data import TableOptions, load_data, load_source
from commonground.data.tables.load import load_table
from commonground.errors import DataError


def table(path: Path, text: str) -> Path:
    file = path / "patients.csv"
    file.write_text(text, encoding="utf-8")
    return file


def hospitals(path: Path, rows: int = 40) -> Path:
    lines = [f"{i},{0.5 * i},{'ill' if i % 3 else 'well'},h{i % 4}" for i in range(rows)]
    return table(path, "age,dose,label,hospital\n" + "\n".join(lines) + "\n")


def test_a_table_with_a_client_column(tmp_path: Path) -> None:
    path = hospitals(tmp_path)
    data = load_data(path, partition="column:hospital")
    assert data.client_names == ("h0", "h1", "h2", "h3")
    assert data.class_names == ("ill", "well")
    assert data.train_sizes.tolist() == [8] * 4  # 10 rows each, a quarter held out, rounded
    assert data.test_sizes.tolist() == [2] * 4
    assert data.sample_shape == (2,)
    rows = data.x_train[data.train_indices(1), 0]
    assert (rows % 4 == 1).all()
    assert data.preprocess.mean[0] == pytest.approx(data.x_train[:, 0].mean())
    assert data.preprocess.std[1] == pytest.approx(data.x_train[:, 1].std())


def test_a_table_without_a_client_column_is_told_of_one_where_it_cannot_be_dealt(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'patients\.csv' has .*; its rows would be dealt out at random: if a col"):
        load_data(hospitals(tmp_path), clients=31)


def test_the_target_may_be_named_as_on_the_command_line(tmp_path: Path) -> None:
    path = table(tmp_path, "a,ill,who\n" + "".join(f"{i},{i % 2},h{i % 3}\n" for i in range(24)))
    labelled = load_data(path, client_column="who", label="ill")
    assert load_data(path, client_column="who", target="ill").fingerprint() == labelled.fingerprint()


def test_the_hold_out_is_keyed_by_seed_and_client(tmp_path: Path) -> None:
    path = hospitals(tmp_path)
    one, same, other = (load_table(path, options=TableOptions("hospital"), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.x_test, same.x_test)
    assert not np.array_equal(one.x_test, other.x_test)
    more = table(tmp_path, path.read_text() + "1,2,ill,h9\n3,4,well,h9\n")
    grown = load_table(more, options=TableOptions("hospital"), seed=1)
    old = grown.test_columns["hospital"] != "h9"
    assert np.array_equal(grown.x_test[old], one.x_test)


def test_a_split_column_says_which_rows_are_test_rows(tmp_path: Path) -> None:
    path = table(tmp_path, "a,label,split\n1,0,train\n2,1,Test\n3,10,train\n4,2,test\n")
    source = load_table(path)
    assert source.x_train.ravel().tolist() == [1, 3]
    assert source.x_test.ravel().tolist() == [2, 4]
    assert source.class_names == ("0", "1", "2", "10")
    assert source.y_train.tolist() == [0, 3]
    assert source.preprocess.std == (1.0,)


def test_another_label_column_and_constant_features(tmp_path: Path) -> None:
    path = table(tmp_path, "\ufeffa,b,kind\n" + "".join(f"{i},7,{'xy'[i % 2]}\n" for i in range(8)))
    data = load_data(str(path), 2, label="kind")
    assert data.class_names == ("x", "y")
    assert data.preprocess.std[1] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 rows below its header"),
        ("a,label\n", "has 0 rows below its header"),
        (
            "a,b\n1,2\n",
            r"has no column 'label', which .*; name what is predicted with --target, one of a, b",
        ),
        ("label\n1\n", "has no feature columns"),
        ("a,a,label\n1,2,0\n", "every column needs its own name; 'a' does not"),
        ("a,,label\n1,2,0\n", "every column needs its own name; column 2 of 3 has none"),
        ("a,label\n1,0\n2\n", "line 3, has 1 cell; the header has 2"),
        ("a,label\nNA,0\n,1\n", r"no feature columns beside the label \('a' is always the same\)"),
        ("a,label\n1,0\n2,\n", "line 3, column 'label': the cell is empty"),
        ("a,label\n1,0\nold,1\n", "line 3, column 'a': 'old' is no number"),
        ("a,label\n1,0\ninf,1\n", "line 3, column 'a': 'inf' is not a finite number"),
        ("a,label\n1,0\n1e39,1\n", "line 3, column 'a': '1e39' is too large"),
        ("a,label\n0.5,0\n2;5,1\n", "line 3, column 'a': '2;5' is no number"),
        (
            'a,label\n"1,234",0\n"2,345",1\n',
            "'1,234' may be a decimal one or mark thousands; say --kinds a=comma-number",
        ),
        ("a,label\ntrue,0\n,1\nfalse,\n", "line 4, column 'label': the cell is empty"),
        ("a,label,split\n1,0,train\n2,1,dev\n", "line 3, column 'split': 'dev' is neither 'train' nor 'test'"),
        ("a,label,split\n1,0,train\n2,1,train\n", "has 2 training rows and 0 test rows"),
        ('a,label\n"1,0\n', "line 2, opens a quotation mark that no mark at the end"),
    ],
)
def test_refusals_name_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_table(table(tmp_path, text))


def test_refusals_about_clients_and_files(tmp_path: Path) -> None:
    path = table(tmp_path, "a,label,who\n1,0,x\n2,1,x\n3,1,y\n")
    with pytest.raises(DataError, match="client 'y' has 1 row; at least 2 are needed"):
        load_data(path, partition="column:who")
    with pytest.raises(DataError, match="has no column 'ward'"):
        load_data(path, partition="column:ward")
    with pytest.raises(DataError, match="cannot be both"):
        load_data(path, partition="column:label")
    with pytest.raises(DataError, match=r"there is no file .*nowhere\.csv"):
        load_source(tmp_path / "nowhere.csv")
    (tmp_path / "latin.csv").write_bytes("a,label\n1,\xe9\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text: byte 10 does not fit"):
        load_source(tmp_path / "latin.csv", options=TableOptions(encoding="UTF-8"))
