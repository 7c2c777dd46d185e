"""CIFAR-10 and CIFAR-100 in their binary version: records of one or two label bytes and a 3x32x32 image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Indices, Preprocess
from commonground.data.download import Published, extract, fetch, unavailable
from commonground.data.normalization import STATISTICS
from commonground.data.source import Source
from commonground.errors import DataError

__all__ = ["cifar_is_there", "load_cifar10", "load_cifar100"]

_SIDE, _CHANNELS = 32, 3
_PIXELS = _SIDE * _SIDE * _CHANNELS

_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class _Layout:
    """One of the two data sets' files: records per file, label bytes per record (the last one is the class)."""

    name: str
    folder: str
    train: Mapping[str, int]
    test: Mapping[str, int]
    label_bytes: int
    class_names: tuple[str, ...]
    preprocess: Preprocess
    archive: Published


_CIFAR10 = _Layout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train={f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
    test={"test_batch.bin": 10_000},
    label_bytes=1,
    class_names=_CIFAR10_NAMES,
    preprocess=STATISTICS["imagenet"],  # as the code of FedRep's authors has it
    archive=Published("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
)
_CIFAR100 = _Layout(
    name="cifar100",
    folder="cifar-100-binary",
    train={"train.bin": 50_000},
    test={"test.bin": 10_000},
    label_bytes=2,
    class_names=tuple(_CIFAR100_NAMES.split()),
    preprocess=STATISTICS["cifar100"],  # likewise
    archive=Published("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
)


def load_cifar10(data_dir: Path, download: bool) -> Source:
    """CIFAR-10: 50,000 training and 10,000 test images of ten classes, 32x32 colour (Krizhevsky 2009).

    Args:
        data_dir: holds ``data_batch_1.bin`` … ``data_batch_5.bin`` and ``test_batch.bin`` in
            ``cifar-10-batches-bin`` or itself, or the archive ``cifar-10-binary.tar.gz``.
        download: whether the archive (170 MB) may be downloaded.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load(_CIFAR10, data_dir, download)


def load_cifar100(data_dir: Path, download: bool) -> Source:
    """CIFAR-100 with its 100 fine labels: 50,000 training and 10,000 test images, 32x32 colour (Krizhevsky 2009).

    Args:
        data_dir: holds ``train.bin`` and ``test.bin`` in ``cifar-100-binary`` or itself, or the archive
            ``cifar-100-binary.tar.gz``.
        download: whether the archive (169 MB) may be downloaded.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load(_CIFAR100, data_dir, download)


def cifar_is_there(name: str, data_dir: Path) -> bool:
    """Whether the files or the archive of ``cifar10`` or ``cifar100`` lie in a data folder."""
    layout = {"cifar10": _CIFAR10, "cifar100": _CIFAR100}[name]
    names = [*layout.train, *layout.test]
    folders = (data_dir / layout.folder, data_dir)
    plain = any(all((folder / name).is_file() for name in names) for folder in folders)
    return plain or (data_dir / layout.archive.filename).is_file()


def _load(layout: _Layout, data_dir: Path, download: bool) -> Source:
    folder = _folder(layout, data_dir, download)
    x_train, y_train = _read(folder, layout.train, layout)
    x_test, y_test = _read(folder, layout.test, layout)
    return Source(
        name=layout.name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=len(layout.class_names),
        class_names=layout.class_names,
        preprocess=layout.preprocess,
    )


def _folder(layout: _Layout, data_dir: Path, download: bool) -> Path:
    files, begun = [*layout.train, *layout.test], ""
    for folder in (data_dir / layout.folder, data_dir):
        missing = [name for name in files if not (folder / name).is_file()]
        if not missing:
            return folder
        if len(missing) < len(files):
            begun = f"{folder} lacks {', '.join(missing)}: "
    archive = data_dir / layout.archive.filename
    had = archive.exists()
    if not (had or download):
        raise DataError(begun + unavailable(layout.archive, archive, layout.name))
    fetch(layout.archive, archive, layout.name)
    folder = data_dir / layout.folder
    extract(archive, {f"{layout.folder}/{name}": folder / name for name in files})
    if not had:
        archive.unlink()
    return folder


def _read(folder: Path, files: Mapping[str, int], layout: _Layout) -> tuple[npt.NDArray[np.uint8], Indices]:
    total = sum(files.values())
    x = np.empty((total, _SIDE, _SIDE, _CHANNELS), dtype=np.uint8)
    y = np.empty(total, dtype=np.int64)
    start = 0
    for name, records in files.items():
        stop = start + records
        _read_file(folder / name, layout, x[start:stop], y[start:stop])
        start = stop
    return x, y


def _read_file(path: Path, layout: _Layout, x: npt.NDArray[np.uint8], y: Indices) -> None:
    """Fill ``x`` and ``y`` from one file."""
    record = layout.label_bytes + _PIXELS
    try:
        size = path.stat().st_size
        if size != len(y) * record:
            raise DataError(
                f"{path} has {size:,} bytes; {len(y) * record:,} are expected, {len(y):,} records of {record:,}"
            )
        values = np.fromfile(path, dtype=np.uint8).reshape(len(y), record)
    except OSError as error:
        raise DataError(f"{path} could not be read: {error.strerror or error}") from None
    labels = values[:, layout.label_bytes - 1]
    classes = len(layout.class_names)
    for row in np.flatnonzero(labels >= classes)[:1]:
        raise DataError(f"{path}: the label of record {row} is {labels[row]}; 0 to {classes - 1} are expected")
    y[:] = labels
    x[:] = values[:, layout.label_bytes :].reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1)
