"""The federated data set: all samples once in shared arrays, and for every client the rows it owns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import AS_STORED, Array, FeatureNoise, Indices, Preprocess, Task
from commonground.data.checks import (
    check_classes,
    check_clients,
    check_labels,
    check_noise,
    check_preprocess,
    check_samples,
    check_split,
    check_tokens,
    is_tokens,
    usual_samples,
    whole_numbers,
)
from commonground.errors import DataError

__all__ = ["FederatedDataset"]

_MOST_CLASSES = 1_000_000  # unless asked for: more are rather identifiers than classes


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
    preprocess: Preprocess = AS_STORED
    task: Task = "classify"
    noise: FeatureNoise | None = None

    def __post_init__(self) -> None:
        def put(field: str, value: object) -> None:
            object.__setattr__(self, field, value)  # the only writes to a frozen instance: its normal forms

        for split in ("train", "test"):
            put(f"x_{split}", usual_samples(getattr(self, f"x_{split}"), split))
            for field in (f"y_{split}", f"{split}_index", f"{split}_offsets"):
                put(field, whole_numbers(getattr(self, field), field))
        put("class_names", tuple(map(str, self.class_names)))
        if self.client_names is not None:
            put("client_names", tuple(map(str, self.client_names)))
        self._check()

    def _check(self) -> None:
        """Refuse, in one sentence, whatever does not fit together."""
        check_classes(self.name, self.classes, self.class_names)
        check_samples(self.name, self.x_train, self.x_test)
        check_clients(self.name, self.train_offsets, self.test_offsets, self.client_names)
        check_preprocess(self.name, self.x_train, self.preprocess)
        check_tokens(self.name, self.x_train, self.x_test, self.preprocess, self.task)
        if self.noise is not None:
            check_noise(self.name, self.x_train, self.noise, self.clients, self.client_name)
        for split, x, y, index, offsets in (
            ("train", self.x_train, self.y_train, self.train_index, self.train_offsets),
            ("test", self.x_test, self.y_test, self.test_index, self.test_offsets),
        ):
            check_labels(self.name, split, x, y, self.classes)
            check_split(self.name, split, x, index, offsets, self.client_name)

    # -- construction ---------------------------------------------------------------------------------------------

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
        if not isinstance(clients, Sequence):
            raise DataError(
                f"the clients of {name!r} are {type(clients).__name__}; a list of (x_train, y_train, x_test, y_test) "
                "is needed"
            )
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
            for x, split in ((columns[0], "training"), (columns[2], "test")):
                if x[client].shape[1:] != columns[0][0].shape[1:]:
                    raise DataError(
                        f"the clients' arrays of {name!r} do not fit together: {split} samples of client {client} have "
                        f"the shape {x[client].shape[1:]}, those of client 0 {columns[0][0].shape[1:]}"
                    )
        try:
            x_train, y_train, x_test, y_test = (np.concatenate(column) for column in columns)
        except ValueError as error:
            raise DataError(f"the clients' arrays of {name!r} do not fit together: {error}") from None
        if is_tokens(x_train) and is_tokens(x_test):
            for rows, number in ((x_train, 0), (x_test, len(x_train))):
                rows[:, 0, 0] = np.arange(number, number + len(rows))
        if classes is None:
            for field, given in (("y_train", y_train), ("y_test", y_test)):
                if given.size and whole_numbers(given, field).max() >= _MOST_CLASSES:
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
            preprocess=preprocess or AS_STORED,
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


def _offsets(sizes: Sequence[int] | Indices) -> Indices:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _hash_array(digest: hashlib._Hash, field: str, values: Array) -> None:
    digest.update(f"{field} {values.dtype.str} {values.shape}".encode())
    digest.update(values.data)


def _spread(values: Indices) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
