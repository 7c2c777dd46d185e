"""MNIST and the letters of EMNIST, in the idx format of LeCun's MNIST page (``.gz`` or plain)."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Indices, Preprocess
from commonground.data.download import Published, check_md5, extract, fetch, unavailable
from commonground.data.source import Source
from commonground.errors import DataError

__all__ = ["emnist_letters_are_there", "load_emnist_letters", "load_mnist", "mnist_is_there", "read_idx"]

Bytes = npt.NDArray[np.uint8]

_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST_MD5 = {  # as published with the data set
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
_EMNIST = Published("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e")
_KINDS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "test-images-idx3-ubyte", "test-labels-idx1-ubyte")
_SUBSET = "emnist-letters-aj"  # folder, and beginning of the files' names, with these letters only
_LETTERS = 10
_MOST_SAMPLES = 1_000_000  # a damaged header must not ask for more memory than any of these files needs


def load_mnist(data_dir: Path, download: bool) -> Source:
    """MNIST: 60,000 training and 10,000 test images of ten digits, 28x28 grey (LeCun, Cortes and Burges 1998).

    Args:
        data_dir: holds the four ``*-ubyte`` files, plain or ``.gz``, in ``MNIST/raw``, ``mnist`` or itself.
        download: whether missing files may be downloaded, to ``MNIST/raw``.

    Raises:
        DataError: a file is missing, damaged or not the published one.
    """
    paths = []
    for stem, md5 in _MNIST_MD5.items():
        path = _find(stem, _mnist_folders(data_dir))
        if path is None:
            published = Published(f"{_MNIST_URL}{stem}.gz", md5)
            path = data_dir / "MNIST" / "raw" / published.filename
            if not download:
                raise DataError(unavailable(published, path, "mnist"))
            fetch(published, path, "mnist")
        elif path.suffix == ".gz":
            check_md5(path, md5)
        paths.append(path)
    return Source(
        name="mnist",
        x_train=_images(paths[0], 60_000),
        y_train=_labels(paths[1], 60_000, 0, 9),
        x_test=_images(paths[2], 10_000),
        y_test=_labels(paths[3], 10_000, 0, 9),
        classes=10,
        class_names=tuple("0123456789"),
        preprocess=Preprocess(scale=1 / 255, mean=(0.1307,), std=(0.3081,)),
    )


def mnist_is_there(data_dir: Path) -> bool:
    """Whether MNIST's files lie in a data folder."""
    return all(_find(stem, _mnist_folders(data_dir)) for stem in _MNIST_MD5)


def _mnist_folders(data_dir: Path) -> list[Path]:
    return [data_dir / "MNIST" / "raw", data_dir / "mnist", data_dir]


def load_emnist_letters(data_dir: Path, download: bool) -> Source:
    """Letters A to J of EMNIST "letters", upper and lower case together, 28x28 grey and upright (Cohen et al. 2017).

    They stand for FedRep's FEMNIST of ten letters; EMNIST has no writers.

    Args:
        data_dir: holds ``emnist-letters-aj/emnist-letters-aj-{train,test}-*-ubyte.gz`` (these letters only), or the
            official ``emnist-letters-*-ubyte`` files, plain or ``.gz``, in ``EMNIST/raw``, ``gzip`` or itself.
        download: whether the official archive (about 540 MB) may be downloaded; its four files go to ``EMNIST/raw``.

    Raises:
        DataError: a file is missing or damaged.
    """
    subset = data_dir / _SUBSET
    paths = _subset_paths(data_dir)
    sizes: tuple[int | None, int | None] = (None, None)
    most = _LETTERS
    if not any(paths):
        paths = _official_paths(data_dir)
        sizes, most = (124_800, 20_800), 26
        if not all(paths):
            paths = list(_official_letters(data_dir, download))
    found = [path for path in paths if path is not None]
    if len(found) < len(_KINDS):
        lacking = [f"emnist-letters-aj-{kind}.gz" for kind, path in zip(_KINDS, paths, strict=True) if path is None]
        raise DataError(f"emnist-letters needs {', '.join(lacking)} in {subset}, beside the files that are there")
    x_train, y_train = _letters(found[0], found[1], sizes[0], most)
    x_test, y_test = _letters(found[2], found[3], sizes[1], most)
    return Source(
        name="emnist-letters",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=_LETTERS,
        class_names=tuple("ABCDEFGHIJ"),
        preprocess=Preprocess(scale=1 / 255, mean=(0.1736,), std=(0.3317,)),
    )


def emnist_letters_are_there(data_dir: Path) -> bool:
    """Whether the files of EMNIST's letters, or the archive, lie in a data folder."""
    known = (_subset_paths(data_dir), _official_paths(data_dir))
    return any(map(all, known)) or (data_dir / _EMNIST.filename).is_file()


def _subset_paths(data_dir: Path) -> list[Path | None]:
    return [_find(f"{_SUBSET}-{kind}", [data_dir / _SUBSET]) for kind in _KINDS]


def _official_paths(data_dir: Path) -> list[Path | None]:
    folders = [data_dir / "EMNIST" / "raw", data_dir / "gzip", data_dir]
    return [_find(f"emnist-letters-{kind}", folders) for kind in _KINDS]


def read_idx(path: Path, shape: Sequence[int | None]) -> Bytes:
    """Read an idx file of unsigned bytes straight into an array.

    Args:
        path: the file, plain or ``.gz``.
        shape: the expected shape; None for a length that is free.

    Raises:
        DataError: it is not such a file, has another shape, or is cut short or too long.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * len(shape))
            magic = bytes([0, 0, 8, len(shape)])
            if header[:4] != magic:
                raise DataError(f"{path} starts with {header[:4].hex(' ')}; {magic.hex(' ')} is expected (idx, bytes)")
            if len(header) < 4 + 4 * len(shape):
                raise DataError(f"{path} is cut short: its header has {len(header)} of {4 + 4 * len(shape)} bytes")
            found = struct.unpack(f">{len(shape)}I", header[4:])
            if (
                any(want not in (None, have) for want, have in zip(shape, found, strict=True))
                or found[0] > _MOST_SAMPLES
            ):
                raise DataError(f"{path} holds {_by(found)} values; {_by(shape)} is expected")
            values = np.empty(math.prod(found), dtype=np.uint8)
            filled = 0
            while count := file.readinto(values.data[filled:]):
                filled += count
            if filled < values.size:
                raise DataError(f"{path} is cut short: {filled:,} of {values.size:,} values are there")
            if file.read(1):
                raise DataError(f"{path} goes on after its {values.size:,} values; it is damaged or another file")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} could not be read: {error}") from None
    return values.reshape(found)


def _images(path: Path, count: int | None) -> Bytes:
    return read_idx(path, (count, 28, 28))[..., np.newaxis]


def _labels(path: Path, count: int | None, low: int, high: int) -> Indices:
    y = read_idx(path, (count,))
    for row in np.flatnonzero((y < low) | (y > high))[:1]:
        raise DataError(f"{path}: label {row} is {y[row]}; {low} to {high} are expected")
    return y.astype(np.int64)


def _letters(images: Path, labels: Path, count: int | None, most: int) -> tuple[Bytes, Indices]:
    y = _labels(labels, count, 1, most)
    x = _images(images, count)
    if len(x) != len(y):
        raise DataError(f"{images} has {len(x)} images, but {labels} has {len(y)} labels")
    if most > _LETTERS:
        kept = y <= _LETTERS
        x, y = x[kept], y[kept]
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)), y - 1  # EMNIST stores images lying on their side


def _official_letters(data_dir: Path, download: bool) -> list[Path]:
    archive = data_dir / _EMNIST.filename
    had = archive.exists()
    if not (download or had):
        raise DataError(unavailable(_EMNIST, archive, "emnist-letters"))
    fetch(_EMNIST, archive, "emnist-letters")
    names = [f"emnist-letters-{kind}.gz" for kind in _KINDS]
    paths = [data_dir / "EMNIST" / "raw" / name for name in names]
    extract(archive, {f"gzip/{name}": path for name, path in zip(names, paths, strict=True)})
    if not had:
        archive.unlink()
    return paths


def _find(stem: str, folders: Sequence[Path]) -> Path | None:
    candidates = (folder / f"{stem}{suffix}" for folder in folders for suffix in (".gz", ""))
    return next((path for path in candidates if path.is_file()), None)


def _by(shape: Sequence[int | None]) -> str:
    return " by ".join("any" if length is None else str(length) for length in shape)
