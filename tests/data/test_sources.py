"""Sources: the real files where they are (folder COMMONGROUND_DATA), and damaged ones written here."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commonground.data import available_sources, data_directory, load_data, load_source
from commonground.data.sources import digits, idx
from commonground.data.sources.idx import read_idx
from commonground.errors import DataError


def real(folder: str) -> Path:
    """The data folder, if it has this folder; otherwise the test is skipped."""
    root = os.environ.get("COMMONGROUND_DATA")
    if not root or not (Path(root) / folder).is_dir():
        pytest.skip(f"needs the real files: COMMONGROUND_DATA must name a folder that has {folder}")
    return Path(root)


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


# -- registry ---------------------------------------------------------------------------------------------------------


def test_every_source_is_listed_with_its_model() -> None:
    models = {info.name: info.model for info in available_sources()}
    images = {"digits": "mlp", "mnist": "cnn", "cifar10": "cnn", "cifar100": "cnn", "emnist-letters": "mlp"}
    glue = dict.fromkeys(("sst2", "rte", "qnli", "mnli", "qqp"), "")  # texts: the user chooses a model
    assert models == {**images, "sent140": "lstm", **glue}
    assert all(info.description and info.origin for info in available_sources())


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(DataError, match=r"unknown data 'cifar' \(did you mean 'cifar10'\?\); it is one of digits, "):
        load_source("cifar")


def test_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMMONGROUND_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    assert data_directory(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.delenv("COMMONGROUND_DATA")
    assert data_directory().name == "commonground"


# -- digits -----------------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from its file; where there is none at that place, it is asked itself."""
    (x, y), (their_x, their_y) = digits._read(), digits._imported()
    assert (x.dtype, y.dtype) == (their_x.dtype, their_y.dtype)
    np.testing.assert_array_equal(x, their_x)
    np.testing.assert_array_equal(y, their_y)
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    assert digits._read()[0].shape == (1797, 64)


def test_digits_have_a_fixed_stratified_split() -> None:
    source, again = load_source("digits"), load_source("digits", seed=5)
    assert np.array_equal(source.x_train, again.x_train)
    assert source.x_train.shape[1:] == (8, 8, 1)
    assert source.x_train.dtype == np.uint8
    assert source.x_train.max() == 16
    assert len(source.y_train) + len(source.y_test) == 1797
    share = np.bincount(source.y_test) / (np.bincount(source.y_train) + np.bincount(source.y_test))
    assert np.abs(share - 0.3).max() < 0.01


# -- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_real_mnist() -> None:
    source = load_source("mnist", real("MNIST"), download=False)
    assert source.x_train.shape == (60_000, 28, 28, 1)
    assert source.x_test.shape == (10_000, 28, 28, 1)
    assert source.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    pixels = source.x_train / 255
    assert (pixels.mean(), pixels.std()) == pytest.approx((0.1307, 0.3081), abs=1e-4)


@pytest.mark.data
@pytest.mark.parametrize(("clients", "per_client", "shard"), [(100, 2, 250), (1000, 2, 25), (100, 5, 100)])
def test_real_cifar10_in_fedrep_shards(clients: int, per_client: int, shard: int) -> None:
    folder = real("cifar-10-batches-bin")
    data = load_data("cifar10", clients, classes_per_client=per_client, data_dir=folder, download=False)
    train, test = data.class_counts("train"), data.class_counts("test")
    assert (train[train > 0] == shard).all()
    assert (test[test > 0] == shard // 5).all()
    assert ((train > 0) == (test > 0)).all()
    assert ((train > 0).sum(axis=1) == per_client).all()


@pytest.mark.data
def test_real_cifar10_images_are_upright_rgb() -> None:
    source = load_source("cifar10", real("cifar-10-batches-bin"), download=False)
    assert source.x_train.shape == (50_000, 32, 32, 3)
    assert source.x_train.flags.c_contiguous
    assert source.y_train[:5].tolist() == [6, 9, 9, 4, 1]
    assert source.x_train[0, 0, :2].tolist() == [[59, 62, 63], [43, 46, 45]]  # the well-known first frog
    assert np.bincount(source.y_train).tolist() == [5_000] * 10


@pytest.mark.data
def test_real_emnist_letters() -> None:
    source = load_source("emnist-letters", real("emnist-letters-aj"), download=False)
    assert source.x_train.shape == (15_000, 28, 28, 1)
    assert source.x_test.shape == (8_000, 28, 28, 1)
    assert set(source.y_train.tolist()) == set(range(10))
    letter_i = source.x_train[source.y_train == 8, ..., 0].mean(axis=0)
    assert letter_i.mean(axis=0).std() > letter_i.mean(axis=1).std()  # an upright I: columns differ, rows do not


@pytest.mark.data
def test_a_changed_mnist_file_is_refused(tmp_path: Path) -> None:
    shutil.copytree(real("MNIST"), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t10k-labels.* MD5 checksum \w{32}; the published file has ec29112d"):
        load_source("mnist", tmp_path, download=False)


# -- idx --------------------------------------------------------------------------------------------------------------


def write_mnist(folder: Path, train: int = 60_000, test: int = 10_000) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, count in (("train", train), ("t10k", test)):
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((count, 28, 28), np.uint8)))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx_bytes((np.arange(count) % 10).astype(np.uint8)))


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
def test_plain_mnist_is_found_in_three_places(tmp_path: Path, folder: str) -> None:
    write_mnist(tmp_path / folder)
    assert load_source("mnist", tmp_path, download=False).x_test.shape == (10_000, 28, 28, 1)


def test_mnist_with_another_number_of_images_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=100)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte holds 100 by 28 by 28 values; 60000 by 28 by 28 is"):
        load_source("mnist", tmp_path, download=False)


def test_missing_files_are_named_with_where_to_put_and_find_them(tmp_path: Path) -> None:
    for name, file, url in (
        ("mnist", "train-images-idx3-ubyte.gz", "ossci-datasets.s3.amazonaws.com/mnist/train-images"),
        ("cifar10", "cifar-10-binary.tar.gz", "www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-binary.tar.gz", "www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"),
        ("emnist-letters", "gzip.zip", "biometrics.nist.gov/cs_links/EMNIST/gzip.zip"),
    ):
        with pytest.raises(DataError) as caught:
            load_source(name, tmp_path, download=False)
        assert all(part in str(caught.value) for part in (name, file, str(tmp_path), url))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"starts with ; 00 00 08 01 is expected"),
        (idx_bytes(np.zeros((2, 3), np.uint8)), r"starts with 00 00 08 02; 00 00 08 01 is expected"),
        (idx_bytes(np.arange(5, dtype=np.uint8))[:6], r"cut short: its header has 6 of 8 bytes"),
        (idx_bytes(np.arange(5, dtype=np.uint8))[:-2], r"cut short: 3 of 5 values are there"),
        (idx_bytes(np.arange(5, dtype=np.uint8)) + b"x", r"goes on after its 5 values"),
        (idx_bytes(np.arange(6, dtype=np.uint8)), r"holds 6 values; 5 is expected"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_idx_files(tmp_path: Path, content: bytes, message: str, zipped: bool) -> None:
    path = tmp_path / ("labels.gz" if zipped else "labels")
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=message):
        read_idx(path, (5,))


def test_damaged_gzip_and_absurd_headers(tmp_path: Path) -> None:
    whole = gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 255, 5000).astype(np.uint8)))
    for content in (whole[:-50], b"not gzip at all", whole[:30] + b"\0\0\0\0" + whole[34:]):
        (tmp_path / "labels.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"labels\.gz"):
            read_idx(tmp_path / "labels.gz", (5000,))
    (tmp_path / "huge").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 2**32 - 1))
    with pytest.raises(DataError, match="holds 4294967295 values; any is expected"):
        read_idx(tmp_path / "huge", (None,))


# -- EMNIST -----------------------------------------------------------------------------------------------------------


def write_letters(folder: Path, prefix: str, train: int, test: int, classes: int) -> np.ndarray:
    """Image i has its one bright pixel in row 3, column 5 once upright; returns the training labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("test", test)):
        x = np.zeros((count, 28, 28), np.uint8)
        x[:, 5, 3] = 255
        y = (np.arange(count) % classes + 1).astype(np.uint8)
        (folder / f"{prefix}-{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(x), 1))
        (folder / f"{prefix}-{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(y), 1))
    return (np.arange(train) % classes + 1).astype(np.uint8)


def test_letters_of_the_subset_are_made_upright(tmp_path: Path) -> None:
    write_letters(tmp_path / "emnist-letters-aj", "emnist-letters-aj", 30, 20, 10)
    source = load_source("emnist-letters", tmp_path, download=False)
    assert source.x_train[:, 3, 5, 0].tolist() == [255] * 30
    assert source.y_train[:3].tolist() == [0, 1, 2]
    assert source.x_train.flags.c_contiguous
    assert source.class_names[0] == "A"


@pytest.mark.parametrize("folder", ["EMNIST/raw", "gzip"])
def test_official_letters_keep_a_to_j(tmp_path: Path, folder: str) -> None:
    labels = write_letters(tmp_path / folder, "emnist-letters", 124_800, 20_800, 26)
    source = load_source("emnist-letters", tmp_path, download=False)
    assert len(source.y_train) == 48_000
    assert np.array_equal(source.y_train, labels[labels <= 10].astype(np.int64) - 1)


def test_letters_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "emnist-letters-aj"
    write_letters(folder, "emnist-letters-aj", 30, 20, 11)
    with pytest.raises(DataError, match=r"train-labels.*: label 10 is 11; 1 to 10 are expected"):
        load_source("emnist-letters", tmp_path, download=False)
    write_letters(folder, "emnist-letters-aj", 30, 20, 10)
    labels = folder / "emnist-letters-aj-test-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.ones(19, np.uint8))))
    with pytest.raises(DataError, match=r"test-images.* has 20 images, but .* has 19 labels"):
        load_source("emnist-letters", tmp_path, download=False)
    labels.unlink()
    with pytest.raises(DataError, match=r"needs emnist-letters-aj-test-labels-idx1-ubyte\.gz in "):
        load_source("emnist-letters", tmp_path, download=False)


# -- CIFAR ------------------------------------------------------------------------------------------------------------


def write_cifar100(folder: Path) -> np.ndarray:
    """Both files in the published layout: coarse label, fine label, then red, green and blue planes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train.bin", 50_000), ("test.bin", 10_000)):
        records = np.zeros((count, 2 + 3072), dtype=np.uint8)
        records[:, 0] = rng.integers(0, 20, count)
        records[:, 1] = np.arange(count) % 100
        records[:, 2] = 200  # red, row 0, column 0
        records[:, 2 + 1024 + 33] = 100  # green, row 1, column 1
        records.tofile(folder / name)
    return np.arange(50_000) % 100


def test_cifar100_reads_fine_labels_and_planes(tmp_path: Path) -> None:
    labels = write_cifar100(tmp_path / "cifar-100-binary")
    source = load_source("cifar100", tmp_path, download=False)
    assert np.array_equal(source.y_train, labels)
    assert source.x_test.shape == (10_000, 32, 32, 3)
    assert source.x_train[7, 0, 0].tolist() == [200, 0, 0]
    assert source.x_train[7, 1, 1].tolist() == [0, 100, 0]
    assert len(set(source.class_names)) == 100
    assert list(source.class_names) == sorted(source.class_names)
    data = load_data("cifar100", 100, classes_per_client=5, data_dir=tmp_path)
    assert set(data.class_counts("train").ravel().tolist()) == {0, 100}


def spoil_size(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(30_729_999)


def spoil_label(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3073 * 12)
        file.write(b"\x0a")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_size, r"data_batch_2\.bin has 30,729,999 bytes; 30,730,000 are expected, 10,000 records of 3,073"),
        (spoil_label, r"data_batch_2\.bin: the label of record 12 is 10; 0 to 9 are expected"),
    ],
)
def test_damaged_cifar_files(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        with (tmp_path / name).open("wb") as file:
            file.truncate(30_730_000)  # a sparse file of zeros
    spoil(tmp_path / "data_batch_2.bin")
    with pytest.raises(DataError, match=message):
        load_source("cifar10", tmp_path, download=False)


def test_which_of_cifar_s_files_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    write_cifar100(folder)
    (folder / "test.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-100-binary lacks test\.bin: cifar100 needs the file cifar-100-binary"):
        load_source("cifar100", tmp_path, download=False)


def test_missing_files_are_downloaded_where_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(published: object, target: Path, name: str) -> None:
        asked.append((target, name))
        raise DataError("no network")

    monkeypatch.setattr(idx, "fetch", refuse)
    with pytest.raises(DataError, match="no network"):
        load_source("mnist", tmp_path)
    assert asked == [(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz", "mnist")]
