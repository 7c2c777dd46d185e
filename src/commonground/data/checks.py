"""Whether arrays make a federated data set: samples, labels, the rows of every client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from commonground.data.arrays import AS_STORED, Array, FeatureNoise, Indices, Preprocess
from commonground.data.formats import both_dtypes, format_class, format_of
from commonground.errors import DataError, warn
from commonground.quoting import quoted
from commonground.tasks import Task
from commonground.tasks.classification import class_numbers

__all__ = [
    "check_classes",
    "check_clients",
    "check_noise",
    "check_preprocess",
    "check_samples",
    "check_several",
    "check_split",
    "check_targets",
    "tell_of_gaps",
    "usual_samples",
    "whole_numbers",
]

_ROWS_PER_CHECK = 8192  # checking floats in pieces keeps the extra memory small whatever the size of the data


def check_classes(name: str, classes: int, class_names: tuple[str, ...]) -> None:
    """Refuse another number of class names than of classes, and no classes at all.

    Raises:
        DataError: says how many there are.
    """
    if classes < 1 or len(class_names) != classes:
        raise DataError(f"{name!r} has {classes} classes but {len(class_names)} class names")


def check_several(name: str, class_names: tuple[str, ...], task: Task) -> None:
    """Refuse a single class where classes are told apart.

    Raises:
        DataError: says what may be meant.
    """
    if len(class_names) == 1 and task.softmax:
        raise DataError(
            f"{name!r} has one class only, {quoted(class_names[0])}, so that nothing is to be learnt; of numbers the "
            "task is regression"
        )


def tell_of_gaps(name: str, y_train: Array, y_test: Array) -> None:
    """Warn of class numbers of which fewer than half occur: 0 and 7 are eight classes, and two were probably meant."""
    found = np.union1d(y_train, y_test)
    classes = int(found[-1]) + 1 if len(found) else 0
    if 2 * len(found) < classes:
        warn(
            f"{name!r} has {classes:,} classes, since the largest label is {classes - 1}, and only {len(found)} "
            f"of them occur; number them from 0 (np.unique(y, return_inverse=True)), or say classes={classes}"
        )


def check_samples(name: str, x_train: Array, x_test: Array) -> None:
    """Refuse training and test samples of different shapes or number types.

    Raises:
        DataError: says which.
    """
    for input, (one, other) in both_dtypes(x_train, x_test).items():
        if one != other:
            raise DataError(
                f"the input {quoted(input)} of {name!r} is {one.base} {one.shape} in training samples, {other.base} "
                f"{other.shape} in test samples; they must agree"
            )
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise DataError(
            f"training samples of {name!r} are {x_train.dtype} {x_train.shape[1:]}, "
            f"test samples {x_test.dtype} {x_test.shape[1:]}; they must agree"
        )


def check_clients(
    name: str, train_offsets: Indices, test_offsets: Indices, client_names: tuple[str, ...] | None
) -> None:
    """Refuse different numbers of clients in the two splits, no clients, and names that do not tell them apart.

    Raises:
        DataError: says how many there are.
    """
    if len(train_offsets) != len(test_offsets) or len(train_offsets) < 2:
        raise DataError(
            f"{name!r} has {max(len(train_offsets) - 1, 0)} clients with training samples and "
            f"{max(len(test_offsets) - 1, 0)} with test samples; both need the same number, at least 1"
        )
    clients = len(train_offsets) - 1
    if client_names is not None and len(set(client_names)) != clients:
        raise DataError(f"{name!r} has {clients} clients but {len(set(client_names))} different client names")


def check_preprocess(name: str, x: Array, preprocess: Preprocess) -> None:
    """Refuse preprocessing for another number of channels, and numbers that are not finite or deviations not positive.

    Raises:
        DataError: says which.
    """
    channels = x.shape[-1] if x.ndim > 1 else 1
    mean, std = np.asarray(preprocess.mean), np.asarray(preprocess.std)
    if any(len(values) not in (0, 1, channels) for values in (mean, std)):
        raise DataError(
            f"preprocessing of {name!r} has {len(mean)} means and {len(std)} deviations for {channels} channels"
        )
    if not (np.isfinite([preprocess.scale, *mean, *std]).all() and (std > 0).all()):
        raise DataError(f"preprocessing of {name!r} needs finite numbers and positive deviations")


def check_noise(name: str, x: Array, noise: FeatureNoise, clients: int, client_name: Callable[[int], str]) -> None:
    """Refuse feature noise that is not one finite sample per client, and any on tokens.

    Args:
        name: of the data.
        x: the samples it is subtracted from.
        noise: the noise.
        clients: how many there are.
        client_name: from a client's number to its name.

    Raises:
        DataError: says what is wrong, with whose.
    """
    format_of(x, AS_STORED).check_noise(name)
    images, wanted = noise.images, (clients, *x.shape[1:])
    if images.shape != wanted or images.dtype != x.dtype:
        raise DataError(
            f"the feature noise of {name!r} is {images.dtype} {images.shape}; one sample per client, "
            f"{x.dtype} {wanted}, is needed"
        )
    bad = next(_not_finite(images), None)
    if bad is not None:
        raise DataError(f"the feature noise of client {client_name(bad)} of {name!r} is not finite")


def check_targets(name: str, split: str, x: Array, y: Array, classes: int, task: Task) -> None:
    """Refuse another number of targets than of samples, and targets that the task does not know.

    Raises:
        DataError: names the first wrong one.
    """
    if len(x) != len(y):
        raise DataError(f"{name!r} has {len(x)} {split} samples but {len(y)} {split} labels")
    task.check_targets(name, split, y, classes)


def check_split(
    name: str, split: str, x: Array, index: Indices, offsets: Indices, client_name: Callable[[int], str]
) -> None:
    """Refuse rows that are not there or owned twice, clients without any, and samples that are not finite.

    Args:
        name: of the data.
        split: ``train`` or ``test``.
        x: its samples.
        index, offsets: the rows of every client (see :class:`~commonground.data.arrays.Split`).
        client_name: from a client's number to its name.

    Raises:
        DataError: names the first wrong row or client.
    """
    if offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 0).any():
        raise DataError(f"the {split} offsets of {name!r} must rise from 0 to {len(index)}, its index's length")
    if index.size and not (index.min() >= 0 and index.max() < len(x)):
        raise DataError(f"the {split} index of {name!r} names rows {index.min()} to {index.max()}; there are {len(x)}")
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if empty.size:
        raise DataError(
            f"{empty.size} of the {len(offsets) - 1} clients of {name!r} have no {split} samples "
            f"(the first is client {client_name(int(empty[0]))}); every client needs at least 1"
        )
    used = np.bincount(index, minlength=len(x))
    if used.max() > 1:
        row = int(used.argmax())
        raise DataError(f"{split} sample {row} of {name!r} is owned {used[row]} times; at most 1 is allowed")
    bad = next(_not_finite(x), None)
    if bad is not None:
        owned = np.flatnonzero(index == bad)
        owner = "no client"
        if owned.size:
            owner = f"client {client_name(int(np.searchsorted(offsets, owned[0], side='right')) - 1)}"
        raise DataError(f"{split} sample {bad} of {name!r} (owned by {owner}) has a value that is not a finite number")


def usual_samples(x: Array, split: str) -> Array:
    """Samples as one contiguous array of a kind that is stored.

    Raises:
        DataError: they are of another kind, or no rows.
    """
    x = np.asanyarray(x)
    form = format_class(x)
    if form is None:
        shape = f" of shape {x.shape}" if x.dtype == np.int32 else ""
        raise DataError(
            f"the {split} samples are {x.dtype}{shape}; uint8, float32 or float64 is needed, "
            "or int32 tokens [N, 1 + L, 2]"
        )
    if x.ndim < form.least_axes:
        raise DataError(f"the {split} samples have shape {x.shape}; one row per sample, [N, …], is needed")
    return np.ascontiguousarray(x)


def whole_numbers(values: Array, field: str) -> Indices:
    """Rows or offsets as int64.

    Raises:
        DataError: they are no row of whole numbers.
    """
    return class_numbers(values, field)


def _not_finite(x: Array) -> Iterator[int]:
    """Row numbers of samples with a NaN or infinite value, lazily."""
    parts = [x] if not x.dtype.names else [x[name] for name in x.dtype.names]
    for part in parts:
        if np.issubdtype(part.dtype, np.floating):
            for start in range(0, len(part), _ROWS_PER_CHECK):
                rows = part[start : start + _ROWS_PER_CHECK]
                fine = np.isfinite(rows).reshape(len(rows), -1)
                yield from (start + int(row) for row in np.flatnonzero(~fine.all(axis=1)))
