"""The digits that come with scikit-learn: small, real, no download."""

from __future__ import annotations

import numpy as np

from commonground.data.arrays import Preprocess
from commonground.data.sources.base import Source
from commonground.keys import numpy_stream

__all__ = ["load_digits"]

_TEST_SHARE = 0.3


def load_digits() -> Source:
    """1,797 handwritten digits, 8x8 values of 0…16, one fixed split into 70 % training and 30 % test per class.

    Source: UCI "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998), the test part, as shipped
    with scikit-learn.
    """
    from sklearn import datasets  # takes a second: only for those who ask for it

    bunch = datasets.load_digits()
    x = np.ascontiguousarray(bunch.images, dtype=np.uint8)[..., np.newaxis]
    y = bunch.target.astype(np.int64)
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
