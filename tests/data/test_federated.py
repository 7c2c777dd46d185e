"""The federated data set: what it accepts, what it refuses, what it hands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commonground.data import IID, FederatedDataset, Preprocess, load_data
from commonground.errors import ConfigError, DataError


def tiny(**changes: Any) -> FederatedDataset:
    """Two clients with three and two training samples, one test sample each."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "x_train": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.zeros((2, 2), dtype=np.float32),
        "y_test": np.array([0, 1]),
        "classes": 3,
        "class_names": ("a", "b", "c"),
        "train_index": np.array([0, 2, 5, 1, 3]),
        "train_offsets": np.array([0, 3, 5]),
        "test_index": np.array([1, 0]),
        "test_offsets": np.array([0, 1, 2]),
    }
    return FederatedDataset(**(fields | changes))


def test_reading() -> None:
    data = tiny(client_names=("north", "south"))
    assert data.clients == 2
    assert data.sample_shape == (2,)
    assert data.train_indices(1).tolist() == [1, 3]
    assert data.test_indices(0).tolist() == [1]
    assert np.shares_memory(data.train_indices(0), data.train_index)
    assert data.train_sizes.tolist() == [3, 2]
    assert data.test_sizes.tolist() == [1, 1]
    assert data.class_counts("train").tolist() == [[1, 0, 2], [1, 1, 0]]
    assert data.class_counts("test").tolist() == [[0, 1, 0], [1, 0, 0]]
    assert (data.client_name(1), data.client_id("south")) == ("south", 1)
    assert "2 clients, 5 training samples (2 to 3 each), 2 test samples (1 each)" in repr(data)


def test_clients_without_names_have_numbers() -> None:
    data = tiny()
    assert (data.client_name(1), data.client_id("1")) == ("1", 1)
    for name in ("2", "-1", "north"):
        with pytest.raises(DataError, match=f"has no client '{name}'; its 2 clients are '0' … '1'"):
            data.client_id(name)


def test_arrays_are_made_contiguous_and_otherwise_not_copied() -> None:
    x = np.zeros((6, 2), dtype=np.float32)
    assert tiny(x_train=x).x_train is x
    assert tiny(x_train=np.zeros((2, 6), dtype=np.float32).T).x_train.flags.c_contiguous
    assert tiny(y_train=np.zeros(6, dtype=np.uint8)).y_train.dtype == np.int64


def test_fingerprint_depends_on_everything_that_matters() -> None:
    data = tiny()
    assert data.fingerprint() == tiny().fingerprint() == data.fingerprint()
    assert len(data.fingerprint()) == 64
    x = data.x_train.copy()
    x[5, 1] += 1
    changed = [
        replace(data, name="other"),
        replace(data, x_train=x),
        replace(data, y_test=np.array([0, 2])),
        replace(data, train_index=np.array([0, 2, 5, 3, 1])),
        replace(data, train_offsets=np.array([0, 2, 5])),
        replace(data, preprocess=Preprocess(scale=0.5)),
        replace(data, client_names=("north", "south")),
    ]
    assert len({data.fingerprint(), *(other.fingerprint() for other in changed)}) == len(changed) + 1


def nan_at(row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.zeros((6, 2), dtype=np.float32)
    x[row, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": nan_at(3)}, r"train sample 3 of 'tiny' \(owned by client 1\) has a value that is not a finite"),
        ({"x_train": nan_at(4)}, r"train sample 4 of 'tiny' \(owned by no client\)"),
        ({"x_test": np.full((2, 2), np.inf, np.float32)}, r"test sample 0 of 'tiny' \(owned by client 1\)"),
        ({"y_train": np.array([0, 1, 3, 0, 1, 2])}, r"label of train sample 2 of 'tiny' is 3; .* must be 0 to 2"),
        ({"y_test": np.array([0, -1])}, r"label of test sample 1 of 'tiny' is -1"),
        ({"y_train": np.array([0, 1])}, r"has 6 train samples but 2 train labels"),
        ({"y_train": np.zeros(6)}, r"y_train is float64 .* whole numbers"),
        (
            {"x_train": np.zeros((6, 2), np.int32)},
            r"train samples are int32 of shape \(6, 2\); uint8, float32 or float64 is needed, or int32 tok",
        ),
        ({"x_train": np.zeros(6, np.float32)}, r"one row per sample"),
        ({"x_test": np.zeros((2, 3), np.float32)}, r"training samples of 'tiny' are float32 \(2,\), test samples"),
        ({"train_index": np.array([0, 2, 6, 1, 3])}, r"train index of 'tiny' names rows 0 to 6; there are 6"),
        ({"train_index": np.array([0, 2, 2, 1, 3])}, r"train sample 2 of 'tiny' is owned 2 times"),
        ({"train_offsets": np.array([0, 5, 5])}, r"1 of the 2 clients of 'tiny' have no train samples .*client 1"),
        ({"test_offsets": np.array([0, 0, 2])}, r"1 of the 2 clients of 'tiny' have no test samples .*client 0"),
        ({"train_offsets": np.array([0, 3, 4])}, r"train offsets of 'tiny' must rise from 0 to 5, its index's length"),
        ({"train_offsets": np.array([0, 5])}, r"1 clients with training samples and 2 with test"),
        ({"client_names": ("a", "a")}, r"has 2 clients but 1 different client names"),
        ({"class_names": ("a",)}, r"has 3 classes but 1 class names"),
        ({"preprocess": Preprocess(mean=(1.0, 2.0, 3.0))}, r"has 3 means and 0 deviations for 2 channels"),
        ({"preprocess": Preprocess(std=(0.0,))}, r"positive deviations"),
    ],
)
def test_refusals_name_split_sample_and_client(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        tiny(**changes)


def test_from_arrays() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(m, 4)), np.arange(m) % 3, rng.normal(size=(2, 4)), np.array([0, 1])) for m in (3, 5)]
    data = FederatedDataset.from_arrays(parts, name="mine", client_names=["x", "y"])
    assert data.classes == 3
    assert data.train_sizes.tolist() == [3, 5]
    assert np.array_equal(data.x_train[data.train_indices(1)], parts[1][0])
    assert data.client_name(1) == "y"


def test_from_arrays_refusals() -> None:
    x, y = np.zeros((2, 3)), np.array([0, 1])
    with pytest.raises(DataError, match="has no clients"):
        FederatedDataset.from_arrays([])
    with pytest.raises(DataError, match=r"client 1 of 'arrays' has 2 training samples but 3 training labels"):
        FederatedDataset.from_arrays([(x, y, x, y), (x, np.array([0, 1, 1]), x, y)])
    with pytest.raises(DataError, match="do not fit together"):
        FederatedDataset.from_arrays([(x, y, x, y), (np.zeros((2, 4)), y, x, y)])
    with pytest.raises(DataError, match="have no test samples"):
        FederatedDataset.from_arrays([(x, y, x, y), (x, y, np.zeros((0, 3)), np.zeros(0, np.int64))])


def test_load_data_chooses_the_partition() -> None:
    assert (load_data("digits", 5).train_sizes >= 251).all()
    shards = load_data("digits", clients=20, classes_per_client=2)
    assert ((shards.class_counts("train") > 0).sum(axis=1) == 2).all()
    assert (
        load_data("digits", 5, partition="dirichlet:0.5").fingerprint()
        == load_data("digits", 5, partition="dirichlet:0.5").fingerprint()
    )
    assert load_data("digits", 5, seed=1).fingerprint() != load_data("digits", 5, seed=2).fingerprint()


def test_a_partition_as_an_object_is_whole() -> None:
    with pytest.raises(ConfigError, match="classes_per_client=2 is for a partition by name; iid says it itself"):
        load_data("digits", clients=5, partition=IID(), classes_per_client=2)
    with pytest.raises(ConfigError, match="a partition is an object, such as IID"):
        load_data("digits", clients=5, partition=IID)  # type: ignore[arg-type]


def named(a: Any, b: Any = 2) -> Any:
    """A client of four samples of two inputs, of so many numbers each; or of the types that are given."""

    def of(kind: Any) -> Any:
        return np.ones((4, kind), np.float32) if isinstance(kind, int) else np.ones((4, 2), kind)

    return {"a": of(a), "b": of(b)}


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([(named(4), named(4)), (named(3), named(4))], "training samples of client 1 have the input 'a' as float32 of "
         "shape (3,), training samples of client 0 as float32 of shape (4,)"),
        ([(named(4), named(4, 5))], "test samples of client 0 have the input 'b' as float32 of shape (5,), training"),
        ([(named(np.float32), named("u1"))], "test samples of client 0 have the input 'a' as uint8 of shape (2,), tr"),
        ([(np.ones((4, 2)), np.ones((4, 2))), (np.ones((4, 2), "u1"), np.ones((4, 2)))],
         "training samples of client 1 are uint8, training samples of client 0 float64"),
        ([(named("f8"), named("f4"))],
         "the input 'a' of 'arrays' is float64 (2,) in training samples, float32 (2,) in test samples; they must"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_together(clients: list[tuple[Any, Any]], said: str) -> None:
    y = np.arange(4) % 2
    with pytest.raises(DataError) as caught:
        FederatedDataset.from_arrays([(train, y, test, y) for train, test in clients])
    assert said in str(caught.value)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("place", range(4))
def test_masked_values_are_refused(place: int, listed: bool) -> None:
    parts: list[Any] = [np.ones((4, 2)), np.arange(4) % 2, np.ones((2, 2)), np.arange(2)]
    parts[place] = np.ma.masked_array(parts[place], mask=np.zeros(parts[place].shape, dtype=bool))
    FederatedDataset.from_arrays([tuple(parts)])
    parts[place][0] = np.ma.masked
    if listed:
        parts[place] = list(parts[place])
    with pytest.raises(DataError, match="client 0 of 'arrays' has masked values"):
        FederatedDataset.from_arrays([tuple(parts)])


def test_labels_of_which_most_do_not_occur_are_told() -> None:
    x = np.zeros((4, 2), np.float32)
    with pytest.warns(UserWarning, match=r"has 8 classes, since the largest label is 7, and only 2 of them occur"):
        FederatedDataset.from_arrays([(x, [0, 7, 0, 7], x, [0, 7, 7, 7])])
    for given in ({"classes": 8}, {"class_names": list("abcdefgh")}):
        assert FederatedDataset.from_arrays([(x, [0, 7, 0, 7], x, [0, 7, 7, 7])], **given).classes == 8
    assert FederatedDataset.from_arrays([(x, [0, 3, 0, 3], x, [0, 0, 0, 3])]).classes == 4  # half of them
