"""The federated data set: all samples once in shared arrays, and for every client the rows it owns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from commonground.data.feature_noise import FeatureNoise
from commonground.errors import DataError

if TYPE_CHECKING:
    from commonground.data.partitions import Partition
    from commonground.data.sources import Source

__all__ = ["Array", "FederatedDataset", "Indices", "Preprocess", "Split", "Task"]

Array = npt.NDArray[Any]
"""Samples: uint8, float32 or float64; int32 for tokens."""
Indices = npt.NDArray[np.int64]
"""Row numbers, labels, offsets or counts."""
Task = Literal["classify", "language"]
"""What is learnt: a sample's class, or (tokens only) to continue a prompt with its answer."""

_MOST_CLASSES = 1_000_000  # unless asked for: more are rather identifiers than classes
_ROWS_PER_CHECK = 8192  # checking floats in pieces keeps the extra memory small whatever the size of the data


@dataclass(frozen=True)
class Preprocess:
    """How a stored sample becomes a model's input: ``(x.float() * scale - mean) / std``.

    Attributes:
        scale: factor on the stored value; ``1/255`` takes a byte to 0…1.
        mean: per channel (last axis of the stored sample), or one for all; empty means 0.
        std: as ``mean``, all positive; empty means 1.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class Split:
    """Which client owns which rows; client ``i`` owns ``index[offsets[i]:offsets[i + 1]]`` in each split.

    Attributes:
        train_index, test_index: int64, row numbers into the training and test arrays.
        train_offsets, test_offsets: int64 [clients + 1], from 0 up to the length of the index.
        client_names: one name per client, or None for "0", "1", ….
    """

    train_index: Indices
    train_offsets: Indices
    test_index: Indices
    test_offsets: Indices
    client_names: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Samples of many clients, held once, with the rows of each client in CSR form (no object per client).

    Attributes:
        name: of the data, for people.
        x_train, x_test: [N, …] uint8, float32 or float64, C-contiguous; images are [N, height, width, channels],
            texts int32 [N, 1 + L, 2] in the layout of :mod:`commonground.data.text.tokens`.
        y_train, y_test: int64 [N], labels 0 … classes - 1; of language data, the number of the row's answer.
        classes: number of classes of the whole data set.
        class_names: one per class.
        train_index, train_offsets, test_index, test_offsets, client_names: see :class:`Split`.
        preprocess: how stored samples become model inputs.
        task: whether a class is predicted or, of tokens, an answer.
        noise: what each client's samples are changed by on their way into a model, if anything; ``x_train`` and
            ``x_test`` are without it.

    Raises:
        DataError: lengths that disagree, a label or row number out of range, a row owned twice, a client without
            training or test samples, a value that is not finite, tokens in another layout, or noise that does not fit.
    """

    name: str
    x_train: Array
    y_train: Indices
    x_test: Array
    y_test: Indices
    classes: int
    class_names: tuple[str, ...]
    train_index: Indices
    train_offsets: Indices
    test_index: Indices
    test_offsets: Indices
    client_names: tuple[str, ...] | None = None
    preprocess: Preprocess = Preprocess()
    task: Task = "classify"
    noise: FeatureNoise | None = None

    def __post_init__(self) -> None:
        def put(field: str, value: object) -> None:
            object.__setattr__(self, field, value)  # the only writes to a frozen instance: its normal forms

        for split in ("train", "test"):
            put(f"x_{split}", _samples(getattr(self, f"x_{split}"), split))
            for field in (f"y_{split}", f"{split}_index", f"{split}_offsets"):
                put(field, _integers(getattr(self, field), field))
        put("class_names", tuple(map(str, self.class_names)))
        if self.client_names is not None:
            put("client_names", tuple(map(str, self.client_names)))
        self._check()

    # -- construction ---------------------------------------------------------------------------------------------

    @classmethod
    def from_source(cls, source: Source, partition: Partition, clients: int | None, seed: int) -> FederatedDataset:
        """Deal a source's samples to clients.

        Args:
            source: the samples.
            partition: who gets which (:mod:`commonground.data.partitions`). If it has a method ``relabelled(source)``,
                the data set takes its labels and classes from what that returns.
            clients: how many; None only where the partition knows it (a client column).
            seed: keys every draw of the partition.

        Raises:
            DataError: the partition is impossible for these samples.
        """
        relabelled: Callable[[Source], Source] | None = getattr(partition, "relabelled", None)
        labelled = source if relabelled is None else relabelled(source)
        split = partition(source, clients, seed)
        return cls(
            name=source.name,
            x_train=source.x_train,
            y_train=labelled.y_train,
            x_test=source.x_test,
            y_test=labelled.y_test,
            classes=labelled.classes,
            class_names=labelled.class_names,
            train_index=split.train_index,
            train_offsets=split.train_offsets,
            test_index=split.test_index,
            test_offsets=split.test_offsets,
            client_names=split.client_names,
            preprocess=source.preprocess,
            task=source.task,
        )

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]],
        *,
        name: str = "arrays",
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        task: Task = "classify",
        noise: FeatureNoise | None = None,
    ) -> FederatedDataset:
        """A federated data set from your own arrays.

        Args:
            clients: one ``(x_train, y_train, x_test, y_test)`` per client; all samples of one shape and type. Rows of
                tokens are numbered anew.
            name: for people.
            classes: number of classes; by default the largest label plus one.
            class_names: by default "0", "1", ….
            client_names: by default "0", "1", ….
            preprocess: by default none: samples enter the model as they are.
            task: what is learnt; ``language`` for tokens with marked answers.
            noise: what the clients' samples are changed by (:func:`~commonground.data.add_feature_noise`).

        Raises:
            DataError: as the class itself; also arrays of different shapes.
        """
        if not clients:
            raise DataError(f"the data set {name!r} has no clients; at least one is needed")
        for client, parts in enumerate(clients):
            if not isinstance(parts, tuple | list) or len(parts) != 4:
                raise DataError(f"client {client} of {name!r} is not (x_train, y_train, x_test, y_test)")
        try:
            columns: list[list[Array]] = [[np.asarray(part) for part in parts] for parts in zip(*clients, strict=True)]
        except (ValueError, TypeError, RuntimeError) as error:
            raise DataError(f"the clients of {name!r} must hold arrays: {error}") from None
        for client in range(len(clients)):
            for x, y, split in ((columns[0], columns[1], "training"), (columns[2], columns[3], "test")):
                if len(np.atleast_1d(x[client])) != len(np.atleast_1d(y[client])):
                    raise DataError(
                        f"client {client} of {name!r} has {len(x[client])} {split} samples but "
                        f"{len(y[client])} {split} labels"
                    )
        try:
            x_train, y_train, x_test, y_test = (np.concatenate(column) for column in columns)
        except ValueError as error:
            raise DataError(f"the clients' arrays of {name!r} do not fit together: {error}") from None
        if _is_tokens(x_train) and _is_tokens(x_test):
            for rows, number in ((x_train, 0), (x_test, len(x_train))):
                rows[:, 0, 0] = np.arange(number, number + len(rows))
        if classes is None:
            for field, given in (("y_train", y_train), ("y_test", y_test)):
                if given.size and _integers(given, field).max() >= _MOST_CLASSES:
                    raise DataError(
                        f"the largest label of {name!r} is {given.max()}; number the classes from 0, or give classes="
                    )
            labels = [int(y.max()) for y in (y_train, y_test) if y.size]
            classes = len(class_names) if class_names is not None else max(labels, default=0) + 1
        return cls(
            name=name,
            x_train=x_train,
            y_train=y_train,
            x_test=x_test,
            y_test=y_test,
            classes=classes,
            class_names=tuple(class_names) if class_names is not None else tuple(map(str, range(classes))),
            train_index=np.arange(len(x_train)),
            train_offsets=_offsets([len(x) for x in columns[0]]),
            test_index=np.arange(len(x_test)),
            test_offsets=_offsets([len(x) for x in columns[2]]),
            client_names=None if client_names is None else tuple(client_names),
            preprocess=preprocess or Preprocess(),
            task=task,
            noise=noise,
        )

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train_offsets) - 1

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one stored sample; (height, width, channels) for images."""
        return self.x_train.shape[1:]

    @property
    def tokens(self) -> bool:
        """Whether the samples are tokenised texts."""
        return self.x_train.dtype == np.int32

    @property
    def language(self) -> bool:
        """Whether the samples are prompts with answers to learn; their marks then say which tokens are the answer."""
        return self.task == "language"

    @cached_property
    def vocabulary(self) -> int:
        """The largest token number plus one: what a model's vocabulary must have at least; 0 unless tokens."""
        return max(int(x[:, 1:, 0].max()) for x in (self.x_train, self.x_test)) + 1 if self.tokens else 0

    @property
    def train_sizes(self) -> Indices:
        """Training samples of every client, int64 [clients]."""
        return np.diff(self.train_offsets)

    @property
    def test_sizes(self) -> Indices:
        """Test samples of every client, int64 [clients]."""
        return np.diff(self.test_offsets)

    def train_indices(self, client: int) -> Indices:
        """Rows of ``x_train`` and ``y_train`` that this client owns: a view, no copy."""
        return self.train_index[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test_indices(self, client: int) -> Indices:
        """Rows of ``x_test`` and ``y_test`` that this client owns: a view, no copy."""
        return self.test_index[self.test_offsets[client] : self.test_offsets[client + 1]]

    def owners(self, split: Literal["train", "test"]) -> Indices:
        """The client that owns each row of ``x_train`` or ``x_test``, int64 [N]; -1 for nobody."""
        train = split == "train"
        owner = np.full(len(self.y_train if train else self.y_test), -1, dtype=np.int64)
        sizes = self.train_sizes if train else self.test_sizes
        owner[self.train_index if train else self.test_index] = np.repeat(np.arange(self.clients), sizes)
        return owner

    def client_name(self, client: int) -> str:
        """The client's name: its value in the client column, or its number."""
        return str(client) if self.client_names is None else self.client_names[client]

    def client_id(self, name: str) -> int:
        """The number of the client of this name.

        Raises:
            DataError: there is none.
        """
        try:
            found = int(name) if self.client_names is None else self.client_names.index(name)
        except ValueError:
            found = -1
        if not 0 <= found < self.clients:
            known = f"{self.client_name(0)!r} … {self.client_name(self.clients - 1)!r}"
            raise DataError(f"{self.name!r} has no client {name!r}; its {self.clients} clients are {known}")
        return found

    def class_counts(self, split: Literal["train", "test"] = "train") -> Indices:
        """Samples per client and class, int64 [clients, classes]."""
        if split == "train":
            y, index, sizes = self.y_train, self.train_index, self.train_sizes
        elif split == "test":
            y, index, sizes = self.y_test, self.test_index, self.test_sizes
        else:
            raise DataError(f"A split is 'train' or 'test', not {split!r}")
        cell = np.repeat(np.arange(self.clients) * self.classes, sizes) + y[index]
        return np.bincount(cell, minlength=self.clients * self.classes).reshape(self.clients, self.classes)

    def fingerprint(self) -> str:
        """SHA-256 (hex) over name, samples, labels, owners, preprocessing and noise; computed once, without copies."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.name, self.classes, self.class_names, self.client_names)).encode())
        digest.update(repr(self.preprocess).encode())
        if self.task != "classify":  # data without a task keep the fingerprint that earlier runs have noted
            digest.update(self.task.encode())
        for field in ("x_train", "y_train", "x_test", "y_test"):
            _hash_array(digest, field, getattr(self, field))
        for field in ("train_index", "train_offsets", "test_index", "test_offsets"):
            _hash_array(digest, field, getattr(self, field))
        if self.noise is not None:
            digest.update(f"noise {self.noise.strength!r}".encode())
            _hash_array(digest, "noise", self.noise.images)
        return digest.hexdigest()

    def describe(self) -> str:
        """One line for people: name, clients, samples and their spread, classes."""
        train, test = self.train_sizes, self.test_sizes
        held = (self.class_counts("train") > 0).sum(axis=1)
        kinds = f", {self.classes} {'answers' if self.language else 'classes'} ({_spread(held)} per client)"
        return (
            f"{self.name}: {self.clients:,} clients, {train.sum():,} training samples ({_spread(train)} each), "
            f"{test.sum():,} test samples ({_spread(test)} each)"
            + ("" if self.language and self.classes == 1 else kinds)
            + (f", at most {self.sample_shape[0] - 1:,} tokens" if self.tokens else "")
            + (f", feature noise {self.noise.strength:g}" if self.noise is not None else "")
        )

    def __repr__(self) -> str:
        return f"<FederatedDataset {self.describe()}>"

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.classes < 1 or len(self.class_names) != self.classes:
            raise DataError(f"{self.name!r} has {self.classes} classes but {len(self.class_names)} class names")
        if self.x_train.shape[1:] != self.x_test.shape[1:] or self.x_train.dtype != self.x_test.dtype:
            raise DataError(
                f"training samples of {self.name!r} are {self.x_train.dtype} {self.x_train.shape[1:]}, "
                f"test samples {self.x_test.dtype} {self.x_test.shape[1:]}; they must agree"
            )
        if len(self.train_offsets) != len(self.test_offsets) or len(self.train_offsets) < 2:
            raise DataError(
                f"{self.name!r} has {max(len(self.train_offsets) - 1, 0)} clients with training samples and "
                f"{max(len(self.test_offsets) - 1, 0)} with test samples; both need the same number, at least 1"
            )
        if self.client_names is not None and len(set(self.client_names)) != self.clients:
            raise DataError(
                f"{self.name!r} has {self.clients} clients but {len(set(self.client_names))} different client names"
            )
        self._check_preprocess()
        self._check_tokens()
        self._check_noise()
        self._check_split("train", self.x_train, self.y_train, self.train_index, self.train_offsets)
        self._check_split("test", self.x_test, self.y_test, self.test_index, self.test_offsets)

    def _check_preprocess(self) -> None:
        channels = self.x_train.shape[-1] if self.x_train.ndim > 1 else 1
        mean, std = np.asarray(self.preprocess.mean), np.asarray(self.preprocess.std)
        if any(len(values) not in (0, 1, channels) for values in (mean, std)):
            raise DataError(
                f"preprocessing of {self.name!r} has {len(mean)} means and {len(std)} deviations "
                f"for {channels} channels"
            )
        if not (np.isfinite([self.preprocess.scale, *mean, *std]).all() and (std > 0).all()):
            raise DataError(f"preprocessing of {self.name!r} needs finite numbers and positive deviations")

    def _check_noise(self) -> None:
        if self.noise is None:
            return
        if self.tokens:
            raise DataError(f"{self.name!r} holds tokens, which take no feature noise")
        images = self.noise.images
        if images.shape != (self.clients, *self.sample_shape) or images.dtype != self.x_train.dtype:
            raise DataError(
                f"the feature noise of {self.name!r} is {images.dtype} {images.shape}; one sample per client, "
                f"{self.x_train.dtype} {(self.clients, *self.sample_shape)}, is needed"
            )
        bad = next(_not_finite(images), None)
        if bad is not None:
            raise DataError(f"the feature noise of client {self.client_name(bad)} of {self.name!r} is not finite")

    def _check_tokens(self) -> None:
        if self.task not in ("classify", "language"):
            raise DataError(f"the task of {self.name!r} is {self.task!r}; it is 'classify' or 'language'")
        if not self.tokens:
            if self.language:
                raise DataError(f"{self.name!r} is {self.x_train.dtype}; a language model learns from int32 tokens")
            return
        if self.preprocess != Preprocess():
            raise DataError(f"{self.name!r} holds tokens, which take no preprocessing")
        same = self.x_test is self.x_train  # validation data: training rows in the place of test rows
        parts = [("train", self.x_train, 0)] + ([] if same else [("test", self.x_test, len(self.x_train))])
        for split, x, first in parts:
            bad = next(_wrong_tokens(x), None)
            if bad is not None:
                raise DataError(f"{split} sample {bad[0]} of {self.name!r} is no row of tokens: {bad[1]}")
            number = np.arange(first, first + len(x))
            for row in np.flatnonzero(x[:, 0, 0] != number)[:1]:
                if split == "test" and np.array_equal(x, self.x_train):
                    break
                raise DataError(
                    f"{split} sample {row} of {self.name!r} has the number {x[row, 0, 0]}; rows of tokens are numbered "
                    f"through, and this one is {number[row]}"
                )

    def _check_split(self, split: str, x: Array, y: Indices, index: Indices, offsets: Indices) -> None:
        if len(x) != len(y):
            raise DataError(f"{self.name!r} has {len(x)} {split} samples but {len(y)} {split} labels")
        for row in np.flatnonzero((y < 0) | (y >= self.classes))[:1]:
            raise DataError(
                f"the label of {split} sample {row} of {self.name!r} is {y[row]}; "
                f"with {self.classes} classes it must be 0 to {self.classes - 1}"
            )
        if offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 0).any():
            raise DataError(
                f"the {split} offsets of {self.name!r} must rise from 0 to {len(index)}, its index's length"
            )
        if index.size and not (index.min() >= 0 and index.max() < len(x)):
            raise DataError(
                f"the {split} index of {self.name!r} names rows {index.min()} to {index.max()}; there are {len(x)}"
            )
        empty = np.flatnonzero(np.diff(offsets) == 0)
        if empty.size:
            raise DataError(
                f"{empty.size} of the {self.clients} clients of {self.name!r} have no {split} samples "
                f"(the first is client {self.client_name(int(empty[0]))}); every client needs at least 1"
            )
        used = np.bincount(index, minlength=len(x))
        if used.max() > 1:
            row = int(used.argmax())
            raise DataError(f"{split} sample {row} of {self.name!r} is owned {used[row]} times; at most 1 is allowed")
        bad = next(_not_finite(x), None)
        if bad is not None:
            owned = np.flatnonzero(index == bad)
            owner = "no client"
            if owned.size:
                owner = f"client {self.client_name(int(np.searchsorted(offsets, owned[0], side='right')) - 1)}"
            raise DataError(
                f"{split} sample {bad} of {self.name!r} (owned by {owner}) has a value that is not a finite number"
            )


def _samples(x: Array, split: str) -> Array:
    x = np.asarray(x)
    if x.dtype not in (np.uint8, np.float32, np.float64) and not _is_tokens(x):
        shape = f" of shape {x.shape}" if x.dtype == np.int32 else ""
        raise DataError(
            f"the {split} samples are {x.dtype}{shape}; uint8, float32 or float64 is needed, "
            "or int32 tokens [N, 1 + L, 2]"
        )
    if x.ndim < 2:
        raise DataError(f"the {split} samples have shape {x.shape}; one row per sample, [N, …], is needed")
    return np.ascontiguousarray(x)


def _is_tokens(x: Array) -> bool:
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


def _integers(values: Array, field: str) -> Indices:
    values = np.asarray(values)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        raise DataError(f"{field} is {values.dtype} of shape {values.shape}; one row of whole numbers is needed")
    return np.ascontiguousarray(values, dtype=np.int64)


def _offsets(sizes: Sequence[int] | Indices) -> Indices:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _not_finite(x: Array) -> Iterator[int]:
    """Row numbers of samples with a NaN or infinite value, lazily."""
    if np.issubdtype(x.dtype, np.floating):
        for start in range(0, len(x), _ROWS_PER_CHECK):
            fine = np.isfinite(x[start : start + _ROWS_PER_CHECK]).reshape(len(x[start : start + _ROWS_PER_CHECK]), -1)
            yield from (start + int(row) for row in np.flatnonzero(~fine.all(axis=1)))


def _hash_array(digest: hashlib._Hash, field: str, values: Array) -> None:
    digest.update(f"{field} {values.dtype.str} {values.shape}".encode())
    digest.update(values.data)


def _spread(values: Indices) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
