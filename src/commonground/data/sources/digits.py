"""The digits that come with scikit-learn: small, real, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Preprocess
from commonground.data.source import Source
from commonground.keys import numpy_stream

__all__ = ["load_digits"]

_TEST_SHARE = 0.3


def load_digits() -> Source:
    """1,797 handwritten digits, 8x8 values of 0…16, one fixed split into 70 % training and 30 % test per class.

    Source: UCI "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998), the test part, as shipped
    with scikit-learn.
    """
    images, y = _read()
    x = images.reshape(-1, 8, 8, 1)
    is_test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        rows = numpy_stream(0, "digits test split", label).permutation(np.flatnonzero(y == label))
        is_test[rows[: round(_TEST_SHARE * len(rows))]] = True
    return Source(
        name="digits",
        x_train=x[~is_test],
        y_train=y[~is_test],
        x_test=x[is_test],
        y_test=y[is_test],
        classes=10,
        class_names=tuple("0123456789"),
        preprocess=Preprocess(scale=1 / 16),
    )


def _read() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Values [1797, 64] and labels [1797], from scikit-learn's file: importing it for that takes a second."""
    spec = find_spec("sklearn")
    folders = () if spec is None else spec.submodule_search_locations or ()
    for folder in folders:
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",", dtype=np.int64)
            return table[:, :-1].astype(np.uint8), table[:, -1]
    return _imported()


def _imported() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The same, wherever scikit-learn keeps it."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    return bunch.data.astype(np.uint8), bunch.target.astype(np.int64)
