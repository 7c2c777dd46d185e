"""Partitions of one's own: functions that deal samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.data import Split
from commonground.errors import CommonGroundError, ConfigError, DataError, RunError


def by_parity(source: cg.Source, clients: int | None, seed: int) -> Split:
    """Two clients: even and odd digits."""
    train, test = ([np.flatnonzero(y % 2 == parity) for parity in (0, 1)] for y in (source.y_train, source.y_test))
    return Split.of_rows(train, test, ["even", "odd"])


def test_a_function_deals_samples_by_their_row_numbers() -> None:
    data = cg.load_data("digits", partition=by_parity)
    assert data.client_names == ("even", "odd")
    for number in (0, 1):
        train = data.train_index[data.train_offsets[number] : data.train_offsets[number + 1]]
        test = data.test_index[data.test_offsets[number] : data.test_offsets[number + 1]]
        assert {*(data.y_train[train] % 2), *(data.y_test[test] % 2)} == {number}
    assert int(data.train_sizes.sum()) == len(cg.load_data("digits", clients=1).y_train)


def test_rows_of_a_client_stay_in_their_order_and_one_may_have_none() -> None:
    split = Split.of_rows([[4, 1], [], np.array([2], np.uint8)], [[0], [1], []])
    assert split.train_index.tolist() == [4, 1, 2]
    assert split.train_offsets.tolist() == [0, 2, 2, 3]
    assert split.train_index.dtype == np.int64
    assert split.test_offsets.tolist() == [0, 1, 2, 2]
    assert split.client_names is None


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        ([[0], [1]], [[0]], "there are training rows of 2 clients, and test rows of 1"),
        ([[0], [1.5]], [[0], [1]], r"rows of client 1 are float64 of shape \(1,\); one row of whole numbers is needed"),
        ([[0], [[1]]], [[0], [1]], r"rows of client 1 are int64 of shape \(1, 1\)"),
        ([[0], [True]], [[0], [1]], "rows of client 1 are bool"),
    ],
)
def test_what_are_no_row_numbers_is_refused(train: Any, test: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        Split.of_rows(train, test)


def _nothing(source: cg.Source, clients: int | None, seed: int) -> Any:
    return None


def _lists(source: cg.Source, clients: int | None, seed: int) -> Any:
    return [[0, 1]], [[0]]


def _fails(source: cg.Source, clients: int | None, seed: int) -> Any:
    return 1 / 0


def _of_floats(source: cg.Source, clients: int | None, seed: int) -> Any:
    return Split(np.array([0.0]), np.array([0, 1]), np.array([0]), np.array([0, 1]))


def _of_names(source: cg.Source, clients: int | None, seed: int) -> Any:
    return Split(np.array([0]), np.array([0, 1]), np.array([0]), ["0", "1"])  # type: ignore[arg-type]


def test_lists_of_whole_numbers_will_do() -> None:
    def first(source: cg.Source, clients: int | None, seed: int) -> Split:
        return Split([3, 4], [0, 1, 2], [0, 1], [0, 1, 2])  # type: ignore[arg-type]

    assert cg.load_data("digits", partition=first).train_index.tolist() == [3, 4]


def test_parameters_are_told_as_they_are_written() -> None:
    def by_name(*, source: cg.Source, clients: int | None, seed: int) -> Split:
        return Split.of_rows([[0]], [[0]])

    with pytest.raises(
        ConfigError, match=r"parameters \(\*, source: .*\), and is called with \(source, clients, seed\)"
    ):
        cg.load_data("digits", partition=by_name)  # type: ignore[arg-type]


def test_a_clients_column_may_be_called_as_a_file_is(tmp_path: Path) -> None:
    lines = [f"{'ab'[row % 2]},{row},{'pq'[row % 3 % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("foo.py:x,z,label\n" + "\n".join(lines))
    settings: dict[str, Any] = {"partition": "column:foo.py:x", "target": "label", "out": tmp_path / "run"}
    cg.train("fedrep", str(tmp_path / "t.csv"), rounds=1, **settings)
    assert len(cg.predict_tests(tmp_path / "run"))


def _refuses(source: cg.Source, clients: int | None, seed: int) -> Any:
    raise ConfigError("these digits are not for sale")


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (
            _nothing,
            r"the partition gave what is a NoneType, and must give a Split; Split\.of_rows\(train, test\)",
        ),
        (_lists, "the partition gave what is a tuple"),
        (_fails, r"the partition failed: ZeroDivisionError in .*test_own_partitions\.py, line \d+: division by zero"),
        (_of_floats, "train_index of the partition's split is float64; it must be whole numbers"),
        (_of_names, "test_offsets of the partition's split is <U1; it must be whole numbers"),
        (_refuses, "^these digits are not for sale$"),
        (
            lambda source, clients: None,
            r"has the parameters \(source, clients\), and is called with",
        ),
        (5, "a partition is a text, or a function that deals samples, and not a int"),
    ],
)
def test_a_partition_that_gives_no_split_is_refused_by_a_sentence(partition: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(CommonGroundError, match=sentence):
        cg.load_data("digits", clients=2, partition=partition)


FILE = """
import numpy as np
from commonground.data import Split

def by_parity(source, clients, seed):
    assert clients in (None, 2)
    train, test = ([np.flatnonzero(y % 2 == which) for which in (0, 1)] for y in (source.y_train, source.y_test))
    return Split.of_rows(train, test, ["even", "odd"])
"""


def test_a_partition_in_a_file(tmp_path: Path) -> None:
    """As one that is given as a function; a run goes on with it, and not with another one."""
    file = tmp_path / "deal.py"
    file.write_text(FILE)
    text, given = f"{file}:by_parity", cg.load_data("digits", partition=by_parity)
    assert cg.load_data("digits", partition=text).fingerprint() == given.fingerprint()
    settings: dict[str, Any] = {"partition": text, "engine": "serial", "out": tmp_path / "run"}
    begun = cg.train("fedrep", "digits", rounds=1, **settings)
    assert (begun.config.clients, begun.config.partition) == (2, text)
    longer = cg.train("fedrep", "digits", rounds=2, resume=True, **settings)
    whole = cg.train("fedrep", given, rounds=2, engine="serial", model="mlp", lr=longer.config.lr)
    assert longer.summary["weights_sha256"] == whole.summary["weights_sha256"]
    file.write_text(FILE.replace("== which", "!= which"))
    with pytest.raises(RunError, match="was started on other data"):
        cg.train("fedrep", "digits", rounds=3, resume=True, **settings)
    file.write_text(FILE + "\n# another one")
    with pytest.raises(RunError, match=r"deal\.py"):
        cg.train("fedrep", "digits", rounds=3, resume=True, **settings)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("absent.py:f", "the partition 'absent.py:f' names the file 'absent.py', which does not exist"),
        ("own", "unknown partition 'own'; it is one of: iid, .*, file.py:FUNCTION"),
        ("file.py", "unknown partition 'file.py'"),
    ],
)
def test_partitions_that_are_none_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cg.load_data("digits", clients=2, partition=text)


def test_train_takes_partition_objects_and_says_where_functions_are_given() -> None:
    settings: dict[str, Any] = {"clients": 4, "rounds": 1, "engine": "serial"}
    by_object = cg.train("fedavg", "digits", partition=cg.Dirichlet(0.3), **settings)
    assert by_object.config.partition == "dirichlet:0.3"
    by_name = cg.train("fedavg", "digits", partition="dirichlet:0.3", **settings)
    assert by_object.summary["weights_sha256"] == by_name.summary["weights_sha256"]
    with pytest.raises(ConfigError, match=r"'partition' .* given with the data, cg.load_data\(…, partition=f\)"):
        cg.train("fedavg", "digits", partition=lambda source, clients, seed: None, **settings)
