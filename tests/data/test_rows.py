"""Samples that stay on disk, and data sets as PyTorch has them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import commonground as cg
from commonground.data import large
from commonground.errors import CommonGroundError, DataError
from tests.helpers import made_data
from tests.language import token_data


def written(path: Path, array: np.ndarray[Any, Any], mode: Any = "r") -> np.ndarray[Any, Any]:
    np.save(path, array)
    mapped: np.ndarray[Any, Any] = np.load(path, mmap_mode=mode)
    return mapped


def is_mapped(array: Any) -> bool:
    return large.mapped(array)


def test_the_class_takes_memory_mapped_arrays_as_they_are(tmp_path: Path) -> None:
    data = made_data(dtype=np.float32)
    fields = {name: getattr(data, name) for name in data.__dataclass_fields__}
    x_train, x_test = (written(tmp_path / f"{n}.npy", fields[n]) for n in ("x_train", "x_test"))
    mapped = cg.FederatedDataset(**fields | {"x_train": x_train, "x_test": x_test})
    assert is_mapped(mapped.x_train)
    assert np.shares_memory(mapped.x_train, x_train)
    assert mapped.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("kind", ["slices of one file", "files of their own", "train and test in one file"])
@pytest.mark.parametrize("tokens", [False, True])
def test_arrays_of_clients_may_be_memory_mapped(kind: str, tokens: bool, tmp_path: Path) -> None:
    data = token_data() if tokens else made_data((5, 3, 8, 1), dtype=np.float32)
    parts: list[Any] = [
        (data.x_train[data.train_indices(c)], data.y_train[data.train_indices(c)],
         data.x_test[data.test_indices(c)], data.y_test[data.test_indices(c)])
        for c in range(data.clients)
    ]  # fmt: skip
    wanted = cg.FederatedDataset.from_arrays(parts)
    if kind == "files of their own":
        mapped: list[Any] = [
            (written(tmp_path / f"a{c}.npy", p[0]), p[1], written(tmp_path / f"b{c}.npy", p[2]), p[3])
            for c, p in enumerate(parts)
        ]
    else:
        columns = [0, 2] if kind == "slices of one file" else [None]
        mapped = [list(part) for part in parts]
        for number, column in enumerate(columns):
            order = [(c, k) for c in range(len(parts)) for k in ((0, 2) if column is None else (column,))]
            whole = written(tmp_path / f"{number}.npy", np.concatenate([parts[c][k] for c, k in order]))
            place = 0
            for c, k in order:
                mapped[c][k] = whole[place : place + len(parts[c][k])]
                place += len(parts[c][k])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    data = cg.FederatedDataset.from_arrays(mapped)
    assert is_mapped(data.x_train)
    assert is_mapped(data.x_test)
    assert data.fingerprint() == wanted.fingerprint()
    view = any(np.shares_memory(data.x_train, part[0]) for part in mapped)
    assert view == (kind == "slices of one file" and not tokens)  # rows of tokens are numbered anew
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_named_inputs_may_be_memory_mapped(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = [9, 4]
    ages = [draws.normal(size=(n, 3)) for n in (*rows, *rows)]  # float64 stays
    words = [draws.integers(0, 7, (n, 2), dtype=np.int32) for n in (*rows, *rows)]  # becomes int64
    labels = [draws.integers(0, 2, n) for n in (*rows, *rows)]

    def clients(kept: Any) -> list[Any]:
        parts = [
            {"ages": kept(f"a{i}", age), "words": word} for i, (age, word) in enumerate(zip(ages, words, strict=True))
        ]
        return [(parts[c], labels[c], parts[c + 2], labels[c + 2]) for c in range(2)]

    plain = cg.FederatedDataset.from_arrays(clients(lambda name, array: array))
    with patch.object(large, "AT_ONCE", 50):  # a row or two at a time
        data = cg.FederatedDataset.from_arrays(clients(lambda name, array: written(tmp_path / f"{name}.npy", array)))
    assert is_mapped(data.x_train)
    assert not is_mapped(plain.x_train)
    assert data.x_train.dtype == plain.x_train.dtype
    assert data.fingerprint() == plain.fingerprint()


def test_wrong_parts_are_still_refused(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a.npy", np.zeros((4, 3), np.float32)), np.zeros((4, 2), np.float32)
    y = np.array([0, 1, 0, 1])
    with pytest.raises(DataError, match=r"client 1 have the shape \(2,\), training samples of client 0 \(3,\)"):
        cg.FederatedDataset.from_arrays([(one, y, one, y), (other, y, other, y)])
    bad = written(tmp_path / "b.npy", np.full((4, 3), np.nan, np.float32))
    with pytest.raises(DataError, match="has a value that is not a finite number"):
        cg.FederatedDataset.from_arrays([(bad, y, one, y)])


HALF_A_GIGABYTE = """
import resource, sys
import numpy as np
import commonground as cg

kind, path = sys.argv[1:]
x = np.memmap(path, np.float32, "r", shape=(125_000, 1_000))
y = np.arange(len(x)) % 3
used = [list(range(100 * c, 100 * c + 20)) for c in range(3)]
cg.train("fedrep", clients=4, model="linear", rounds=1, engine="serial")  # loads what a run needs
# From here on the process may have 200 MB more of its own; pages of the file are not counted.
now = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (now + 200_000_000, -1))
if kind == "class":
    data = cg.FederatedDataset(
        name="large", x_train=x, y_train=y, x_test=x, y_test=y, classes=3, class_names=("a", "b", "c"),
        train_index=np.concatenate(used), train_offsets=np.arange(4) * 20,
        test_index=np.concatenate(used) + 50, test_offsets=np.arange(4) * 20,
    )
else:
    rows = [(0, 40_000), (40_000, 80_000), (80_000, 125_000)]
    if kind == "files":
        rows = rows[::-1]  # do not follow each other: they are copied, but to a file
    data = cg.FederatedDataset.from_arrays([(x[a:b], y[a:b], x[:20], y[:20]) for a, b in rows])
    data = cg.data.limit_samples(data, "train", 30, 0)
run = cg.train("fedrep", data, model="linear", rounds=2, engine="serial", batch_size=10)
print(run.summary["rounds"])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's accounts of memory")
@pytest.mark.parametrize("kind", ["class", "slices", "files"])
def test_half_a_gigabyte_is_not_read_into_memory(kind: str, tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(125_000 * 1_000 * 4)
    done = subprocess.run(
        [sys.executable, "-c", HALF_A_GIGABYTE, kind, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n"


# -- data sets --------------------------------------------------------------------------------------------------------


def pairs(data: cg.FederatedDataset) -> list[tuple[Any, Any]]:
    def part(x: Any, y: Any, rows: Any) -> TensorDataset:
        return TensorDataset(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))

    return [
        (part(data.x_train, data.y_train, data.train_indices(c)), part(data.x_test, data.y_test, data.test_indices(c)))
        for c in range(data.clients)
    ]


@pytest.mark.parametrize("in_file", [False, True])
def test_data_sets_are_read_once(in_file: bool) -> None:
    data = made_data((5, 3, 8, 1), (6, 6, 2), dtype=np.float32)
    with patch.object(large, "IN_MEMORY", 100 if in_file else large.IN_MEMORY):
        read = cg.FederatedDataset.from_datasets(pairs(data), name="made", classes=3)
    assert is_mapped(read.x_train) is in_file
    assert read.fingerprint() == data.fingerprint()


def test_data_sets_of_other_kinds() -> None:
    class Named:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Any, float]:
            if not 0 <= index < 4:
                raise IndexError(index)
            return {"place": index, "size": torch.ones(2) * index}, index / 2

    data = cg.FederatedDataset.from_datasets([(Named(), Named())] * 2, task="regression")
    assert data.x_train.dtype.names == ("place", "size")
    assert data.x_train["place"].tolist() == [0, 1, 2, 3] * 2
    assert data.y_train[:, 0].tolist() == [0, 0.5, 1, 1.5] * 2


def test_what_is_no_data_set_is_named() -> None:
    fine = [(np.zeros(3, np.float32), 0)] * 3
    ragged = [(np.zeros(3, np.float32), 0), (np.zeros(4, np.float32), 0)]
    cases: list[tuple[Any, str]] = [
        ([(fine, 3)], "test samples of client 0 of 'datasets' are a int, which lacks __len__ or __getitem__"),
        (
            [(fine, fine), (fine, [])],
            "there are no test samples of client 1 of 'datasets'; every client needs",
        ),
        (
            [(fine, fine), (ragged, fine)],
            r"sample 1 of the training samples of client 1 of .* is float32 \(4,\)",
        ),
        ([(fine, [1, 2])], r"sample 0 of the test samples of client 0 .* cannot be read as \(x, y\): TypeError"),
        ([fine], r"must be a list of \(train, test\), a data set each"),
        (7, r"must be a list of \(train, test\), a data set each"),
    ]
    for clients, sentence in cases:
        with pytest.raises(DataError, match=sentence):
            cg.FederatedDataset.from_datasets(clients)


class Stream(IterableDataset[Any]):
    """PyTorch's other kind of data set."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from self.samples


def test_streams_are_read_to_their_end() -> None:
    data = made_data((5, 3, 8, 1), (6, 6, 2), dtype=np.float32)
    streams = [(Stream(list(train)), Stream(list(test))) for train, test in pairs(data)]
    read = cg.FederatedDataset.from_datasets(streams, name="made", classes=3)
    assert read.fingerprint() == data.fingerprint()

    def broken() -> Iterator[Any]:
        yield np.zeros(3), 0
        raise OSError("the disk is gone")

    class Broken(Stream):
        def __iter__(self) -> Iterator[Any]:
            return broken()

    with pytest.raises(DataError, match=r"client 0 .* cannot be read as a stream: OSError: the disk is gone"):
        cg.FederatedDataset.from_datasets([(Broken([]), Broken([]))])


def samples_of(rows: int = 24) -> list[tuple[Any, int, Any]]:
    rng = np.random.default_rng(0)
    return [(torch.from_numpy(rng.normal(size=3)).float(), i % 2, (2, 10, "b")[i % 3]) for i in range(rows)]


class ByNumber(Dataset[Any]):
    """A map-style data set that never says where it ends, as most do."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


def test_samples_say_whose_they_are() -> None:
    samples = samples_of()
    data = cg.FederatedDataset.from_samples(ByNumber(samples))
    assert data.client_names == ("10", "2", "b")
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([6, 6, 6], [2, 2, 2])
    for place, client in enumerate((10, 2, "b")):
        own = {(tuple(x.tolist()), y) for x, y, whose in samples if whose == client}
        train = [(data.x_train[i], data.y_train[i]) for i in data.train_indices(place)]
        test = [(data.x_test[i], data.y_test[i]) for i in data.test_indices(place)]
        assert {(tuple(x.tolist()), int(y)) for x, y in (*train, *test)} == own
    streamed = cg.FederatedDataset.from_samples(Stream(samples))
    assert streamed.fingerprint() == data.fingerprint()
    named = [{"image": x, "label": y, "user": torch.tensor(3 if who == "b" else who)} for x, y, who in samples]
    given = cg.FederatedDataset.from_samples(ByNumber(named), Stream(named[:9]), keys=("image", "label", "user"))
    assert given.client_names == ("2", "3", "10")
    assert (given.train_sizes.tolist(), given.test_sizes.tolist()) == ([8, 8, 8], [3, 3, 3])


@pytest.mark.parametrize(
    ("train", "options", "says"),
    [
        (
            [(1.0, 0)],
            {},
            r"training sample 0 of 'samples' is to have input, target and client at 0, 1, 2, and is tuple",
        ),
        ([{"x": 1.0}], {"keys": ("x", "y", "who")}, "at 'x', 'y', 'who', and is the keys x"),
        ([], {}, "there are no training samples of 'samples'"),
        (3, {}, "are a int, which lacks __len__ or __getitem__ and cannot be gone through"),
        ([(np.zeros(2), 0, "a")], {}, "client 'a' of 'samples' has 1 training and 0 test samples"),
        (samples_of(), {"test_share": 1.0}, "test_share is 1.0; it must lie between 0 and 1"),
    ],
)
def test_samples_of_another_form(train: Any, options: Any, says: str) -> None:
    with pytest.raises(CommonGroundError, match=says):
        cg.FederatedDataset.from_samples(train, **options)
