"""Whether a federated data set is one: its arrays, its split, its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from commonground.data.arrays import AS_STORED, Array, Indices
from commonground.errors import DataError

if TYPE_CHECKING:
    from commonground.data.federated import FederatedDataset

__all__ = ["check_dataset", "check_labels", "is_tokens", "usual_samples", "whole_numbers"]

_ROWS_PER_CHECK = 8192  # checking floats in pieces keeps the extra memory small whatever the size of the data


def check_dataset(data: FederatedDataset) -> None:
    """Refuse, in one sentence, whatever does not fit together.

    Raises:
        DataError: says what.
    """
    if data.classes < 1 or len(data.class_names) != data.classes:
        raise DataError(f"{data.name!r} has {data.classes} classes but {len(data.class_names)} class names")
    if data.x_train.shape[1:] != data.x_test.shape[1:] or data.x_train.dtype != data.x_test.dtype:
        raise DataError(
            f"training samples of {data.name!r} are {data.x_train.dtype} {data.x_train.shape[1:]}, "
            f"test samples {data.x_test.dtype} {data.x_test.shape[1:]}; they must agree"
        )
    if len(data.train_offsets) != len(data.test_offsets) or len(data.train_offsets) < 2:
        raise DataError(
            f"{data.name!r} has {max(len(data.train_offsets) - 1, 0)} clients with training samples and "
            f"{max(len(data.test_offsets) - 1, 0)} with test samples; both need the same number, at least 1"
        )
    if data.client_names is not None and len(set(data.client_names)) != data.clients:
        raise DataError(
            f"{data.name!r} has {data.clients} clients but {len(set(data.client_names))} different client names"
        )
    _check_preprocess(data)
    _check_tokens(data)
    _check_noise(data)
    _check_split(data, "train", data.x_train, data.y_train, data.train_index, data.train_offsets)
    _check_split(data, "test", data.x_test, data.y_test, data.test_index, data.test_offsets)


def _check_preprocess(data: FederatedDataset) -> None:
    channels = data.x_train.shape[-1] if data.x_train.ndim > 1 else 1
    mean, std = np.asarray(data.preprocess.mean), np.asarray(data.preprocess.std)
    if any(len(values) not in (0, 1, channels) for values in (mean, std)):
        raise DataError(
            f"preprocessing of {data.name!r} has {len(mean)} means and {len(std)} deviations for {channels} channels"
        )
    if not (np.isfinite([data.preprocess.scale, *mean, *std]).all() and (std > 0).all()):
        raise DataError(f"preprocessing of {data.name!r} needs finite numbers and positive deviations")


def _check_noise(data: FederatedDataset) -> None:
    if data.noise is None:
        return
    if data.tokens:
        raise DataError(f"{data.name!r} holds tokens, which take no feature noise")
    images = data.noise.images
    if images.shape != (data.clients, *data.sample_shape) or images.dtype != data.x_train.dtype:
        raise DataError(
            f"the feature noise of {data.name!r} is {images.dtype} {images.shape}; one sample per client, "
            f"{data.x_train.dtype} {(data.clients, *data.sample_shape)}, is needed"
        )
    bad = next(_not_finite(images), None)
    if bad is not None:
        raise DataError(f"the feature noise of client {data.client_name(bad)} of {data.name!r} is not finite")


def _check_tokens(data: FederatedDataset) -> None:
    if data.task not in ("classify", "language"):
        raise DataError(f"the task of {data.name!r} is {data.task!r}; it is 'classify' or 'language'")
    if not data.tokens:
        if data.language:
            raise DataError(f"{data.name!r} is {data.x_train.dtype}; a language model learns from int32 tokens")
        return
    if data.preprocess != AS_STORED:
        raise DataError(f"{data.name!r} holds tokens, which take no preprocessing")
    same = data.x_test is data.x_train  # validation data: training rows in the place of test rows
    parts = [("train", data.x_train, 0)] + ([] if same else [("test", data.x_test, len(data.x_train))])
    for split, x, first in parts:
        bad = next(_wrong_tokens(x), None)
        if bad is not None:
            raise DataError(f"{split} sample {bad[0]} of {data.name!r} is no row of tokens: {bad[1]}")
        number = np.arange(first, first + len(x))
        for row in np.flatnonzero(x[:, 0, 0] != number)[:1]:
            if split == "test" and np.array_equal(x, data.x_train):
                break
            raise DataError(
                f"{split} sample {row} of {data.name!r} has the number {x[row, 0, 0]}; rows of tokens are numbered "
                f"through, and this one is {number[row]}"
            )


def check_labels(name: str, split: str, x: Array, y: Indices, classes: int) -> None:
    """Refuse another number of labels than of samples, and labels outside the classes.

    Raises:
        DataError: names the first wrong label.
    """
    if len(x) != len(y):
        raise DataError(f"{name!r} has {len(x)} {split} samples but {len(y)} {split} labels")
    for row in np.flatnonzero((y < 0) | (y >= classes))[:1]:
        raise DataError(
            f"the label of {split} sample {row} of {name!r} is {y[row]}; "
            f"with {classes} classes it must be 0 to {classes - 1}"
        )


def _check_split(data: FederatedDataset, split: str, x: Array, y: Indices, index: Indices, offsets: Indices) -> None:
    check_labels(data.name, split, x, y, data.classes)
    if offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 0).any():
        raise DataError(f"the {split} offsets of {data.name!r} must rise from 0 to {len(index)}, its index's length")
    if index.size and not (index.min() >= 0 and index.max() < len(x)):
        raise DataError(
            f"the {split} index of {data.name!r} names rows {index.min()} to {index.max()}; there are {len(x)}"
        )
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if empty.size:
        raise DataError(
            f"{empty.size} of the {data.clients} clients of {data.name!r} have no {split} samples "
            f"(the first is client {data.client_name(int(empty[0]))}); every client needs at least 1"
        )
    used = np.bincount(index, minlength=len(x))
    if used.max() > 1:
        row = int(used.argmax())
        raise DataError(f"{split} sample {row} of {data.name!r} is owned {used[row]} times; at most 1 is allowed")
    bad = next(_not_finite(x), None)
    if bad is not None:
        owned = np.flatnonzero(index == bad)
        owner = "no client"
        if owned.size:
            owner = f"client {data.client_name(int(np.searchsorted(offsets, owned[0], side='right')) - 1)}"
        raise DataError(
            f"{split} sample {bad} of {data.name!r} (owned by {owner}) has a value that is not a finite number"
        )


def usual_samples(x: Array, split: str) -> Array:
    """Samples as one contiguous array of a kind that is stored.

    Raises:
        DataError: they are of another kind, or no rows.
    """
    x = np.asarray(x)
    if x.dtype not in (np.uint8, np.float32, np.float64) and not is_tokens(x):
        shape = f" of shape {x.shape}" if x.dtype == np.int32 else ""
        raise DataError(
            f"the {split} samples are {x.dtype}{shape}; uint8, float32 or float64 is needed, "
            "or int32 tokens [N, 1 + L, 2]"
        )
    if x.ndim < 2:
        raise DataError(f"the {split} samples have shape {x.shape}; one row per sample, [N, …], is needed")
    return np.ascontiguousarray(x)


def whole_numbers(values: Array, field: str) -> Indices:
    """Labels, rows or offsets as int64.

    Raises:
        DataError: they are no row of whole numbers.
    """
    values = np.asarray(values)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        raise DataError(f"{field} is {values.dtype} of shape {values.shape}; one row of whole numbers is needed")
    return np.ascontiguousarray(values, dtype=np.int64)


def is_tokens(x: Array) -> bool:
    """Whether samples are rows of tokens [N, 1 + L, 2]."""
    return x.dtype == np.int32 and x.ndim == 3 and x.shape[1] >= 2 and x.shape[2] == 2


def _wrong_tokens(x: Array) -> Iterator[tuple[int, str]]:
    """Rows that are not (number, length), then length times (token, mark), then padding of (-1, 0), and why; lazily."""
    longest = x.shape[1] - 1
    for start in range(0, len(x), _ROWS_PER_CHECK):
        part = x[start : start + _ROWS_PER_CHECK]
        length, token, mark = part[:, 0, 1], part[:, 1:, 0], part[:, 1:, 1]
        for row in np.flatnonzero((length < 1) | (length > longest)):
            yield start + int(row), f"its length is {length[row]}, not 1 to {longest}"
        inside = np.arange(longest) < length[:, np.newaxis]
        fine = np.where(inside, (token >= 0) & (mark >= 0), (token == -1) & (mark == 0)).all(axis=1)
        for row in np.flatnonzero(~fine):
            yield start + int(row), f"it needs {length[row]} tokens of at least 0, then padding of (-1, 0)"


def _not_finite(x: Array) -> Iterator[int]:
    """Row numbers of samples with a NaN or infinite value, lazily."""
    if np.issubdtype(x.dtype, np.floating):
        for start in range(0, len(x), _ROWS_PER_CHECK):
            fine = np.isfinite(x[start : start + _ROWS_PER_CHECK]).reshape(len(x[start : start + _ROWS_PER_CHECK]), -1)
            yield from (start + int(row) for row in np.flatnonzero(~fine.all(axis=1)))
