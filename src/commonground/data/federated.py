"""The federated data set: all samples once in shared arrays, and for every client the rows it owns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from commonground.counted import counted
from commonground.data.arrays import AS_STORED, Array, FeatureNoise, Indices, Preprocess, offsets_of
from commonground.data.checks import (
    check_classes,
    check_clients,
    check_noise,
    check_preprocess,
    check_samples,
    check_several,
    check_split,
    check_targets,
    tell_of_gaps,
    usual_samples,
    whole_numbers,
)
from commonground.data.class_counts import class_counts_in_parts, classes_held
from commonground.data.columns import Rows, client_columns
from commonground.data.formats import InputFormat, Numbers, format_class, format_of
from commonground.data.grouped import clients_of_samples
from commonground.data.names import numbered
from commonground.data.rows import AnySamples, joined, read_samples
from commonground.data.source import UNKNOWN, Origin
from commonground.errors import DataError
from commonground.name_lists import plain_name
from commonground.quoting import escaped
from commonground.tasks import CLASSIFICATION, Task, make_task

if TYPE_CHECKING:
    from commonground.data.tables.schema import TableSchema

__all__ = ["FederatedDataset"]


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Samples of many clients, held once, with the rows of each client in CSR form (no object per client).

    Attributes:
        name: of the data, for people.
        x_train, x_test: [N, …] uint8, float32 or float64, C-contiguous; images are [N, height, width, channels],
            texts int32 [N, 1 + L, 2] in the layout of :mod:`commonground.data.text.tokens`; several inputs by name
            are a structured array [N] (:func:`~commonground.data.formats.pack_named`).
        y_train, y_test: targets in the task's stored form: classes int64 [N], 0 … classes - 1; numbers or labels
            [N, outputs]; of language data, the number of the row's answer.
        classes: number of classes of the whole data set (of targets or labels, for other tasks).
        class_names: one per class (target, label).
        train_index, train_offsets, test_index, test_offsets, client_names: see :class:`Split`.
        preprocess: how stored samples become model inputs.
        task: what is predicted, an object or its name (:mod:`commonground.tasks`).
        noise: what each client's samples are changed by on their way into a model, if anything; ``x_train`` and
            ``x_test`` are without it.
        origin: what the samples were read from, and how, as far as their source knows.
        validation_index, validation_offsets: rows of ``x_train`` that each client holds out to judge a run's rounds by,
            in the same form; None where there are none.
        described: whether the samples are not here, but with the clients: what stands in their place has their numbers,
            shapes and types, and is zero (:mod:`commonground.data.described`).
        one_of_many: whether these are one client's of data whose other clients are elsewhere: it may know one class
            alone, until all have agreed on theirs.
        counted_classes: whether the classes are those that these rows alone have, since nobody else has said them.

    Raises:
        DataError: lengths that disagree, a label or row number out of range, a row owned twice, a client without
            training or test samples, a value that is not finite, tokens in another layout, or noise that does not fit.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int
    class_names: tuple[str, ...]
    train_index: Indices
    train_offsets: Indices
    test_index: Indices
    test_offsets: Indices
    client_names: tuple[str, ...] | None = None
    preprocess: Preprocess = AS_STORED
    task: Task = CLASSIFICATION
    noise: FeatureNoise | None = None
    origin: Origin = UNKNOWN
    validation_index: Indices | None = None
    validation_offsets: Indices | None = None
    described: bool = False
    one_of_many: bool = False
    counted_classes: bool = False

    def __post_init__(self) -> None:
        def put(field: str, value: object) -> None:
            object.__setattr__(self, field, value)  # the only writes to a frozen instance: its normal forms

        put("task", make_task(self.task))
        for split in ("train", "test"):
            put(f"x_{split}", usual_samples(getattr(self, f"x_{split}"), split))
            put(f"y_{split}", self.task.targets(getattr(self, f"y_{split}"), f"y_{split}"))
            for field in (f"{split}_index", f"{split}_offsets"):
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
        self.task.check_inputs(self.name, self.format.kind, self.x_train)
        self.format.check(self.name, self.x_train, self.x_test)
        if self.noise is not None:
            check_noise(self.name, self.x_train, self.noise, self.clients, self.shown_name)
        for split, x, y, index, offsets in (
            ("train", self.x_train, self.y_train, self.train_index, self.train_offsets),
            ("test", self.x_test, self.y_test, self.test_index, self.test_offsets),
        ):
            check_targets(self.name, split, x, y, self.classes, self.task)
            check_split(self.name, split, x, index, offsets, self.shown_name)
        if not self.one_of_many:
            check_several(self.name, self.class_names, self.task)
        if self.validation_index is not None and np.isin(self.validation_index, self.train_index).any():
            raise DataError(f"{self.name!r} has rows that are held out for validation and trained on as well")

    # -- construction ---------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[Rows, npt.ArrayLike, Rows, npt.ArrayLike]],
        *,
        name: str = "arrays",
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        task: Task | str = "classification",
        noise: FeatureNoise | None = None,
        one_of_many: bool = False,
    ) -> FederatedDataset:
        """A federated data set from your own arrays.

        Args:
            clients: one ``(x_train, y_train, x_test, y_test)`` per client; all samples of one shape and type. Several
                inputs are given as a mapping from names to arrays. Rows of tokens are numbered anew. Memory-mapped
                samples of one input are not read into memory (:func:`~commonground.data.rows.joined`; several inputs
                are copied into one array); checks and the fingerprint go over them once, in pieces.
            name: for people.
            classes: number of classes; by default the largest label plus one (of other tasks, their targets).
            class_names: by default "0", "1", ….
            client_names: by default "0", "1", ….
            preprocess: by default none: samples enter the model as they are.
            task: what is learnt: ``classification``, ``regression`` (y: numbers [n] or [n, targets]), ``multilabel``
                (y: zeros and ones [n, labels]), ``answers`` (tokens with marked answers), or a task object.
            noise: what the clients' samples are changed by (:func:`~commonground.data.add_feature_noise`).
            one_of_many: whether the data have other clients elsewhere: these may know one class alone.

        Raises:
            DataError: as the class itself; also arrays of different shapes.
        """
        columns = client_columns(name, clients)
        try:
            form = format_class(columns[0][0]) or Numbers
            x_train, x_test = (joined(columns[place], writable=form.numbered) for place in (0, 2))
            y_train, y_test = (np.concatenate(columns[place]) for place in (1, 3))
        except ValueError as error:
            raise DataError(f"the clients' arrays of {name!r} do not fit together: {error}") from None
        form.number_through(x_train, x_test)
        task = make_task(task)
        y_train, y_test = task.targets(y_train, "y_train"), task.targets(y_test, "y_test")
        counted_classes = classes is None and class_names is None and task.softmax
        if classes is None:
            counted = task.outputs((y_train, y_test), name)
            classes = len(class_names) if class_names is not None else counted
            if counted_classes and not one_of_many:
                tell_of_gaps(name, y_train, y_test)
        return cls(
            name=name,
            x_train=x_train,
            y_train=y_train,
            x_test=x_test,
            y_test=y_test,
            classes=classes,
            class_names=tuple(class_names) if class_names is not None else tuple(map(str, range(classes))),
            train_index=np.arange(len(x_train)),
            train_offsets=offsets_of([len(x) for x in columns[0]]),
            test_index=np.arange(len(x_test)),
            test_offsets=offsets_of([len(x) for x in columns[2]]),
            client_names=None if client_names is None else tuple(client_names),
            preprocess=preprocess or AS_STORED,
            task=task,
            noise=noise,
            one_of_many=one_of_many,
            counted_classes=counted_classes,
        )

    @classmethod
    def from_datasets(
        cls,
        clients: Sequence[tuple[AnySamples, AnySamples]],
        *,
        name: str = "datasets",
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        task: Task | str = "classification",
        noise: FeatureNoise | None = None,
    ) -> FederatedDataset:
        """A federated data set from data sets as PyTorch has them.

        Every sample is read once, here, into an array (more than 2 GiB of them into an unnamed temporary file that is
        mapped into memory): training goes over the samples again and again in an order of its own, so what a data set
        draws at random when it is read stays as it was drawn.

        Args:
            clients: one ``(train, test)`` per client, each with ``len(samples)`` and ``samples[i]``, or a stream to go
                through (``IterableDataset``), which give ``(x, y)``: an array or tensor of one shape and type (images
                as height × width × channels, or a mapping of several inputs), and its target.
            name, classes, class_names, client_names, preprocess, task, noise: as of :meth:`from_arrays`.

        Raises:
            DataError: as :meth:`from_arrays`; also a sample that cannot be read.
        """
        pairs = isinstance(clients, Sequence) and all(isinstance(c, tuple | list) and len(c) == 2 for c in clients)
        if not pairs:
            raise DataError(f"the clients of {name!r} must be a list of (train, test), a data set each")

        def what(kind: str, client: int) -> str:
            return f"{kind} samples of client {client} of {name!r}"

        columns: list[list[Array]] = []
        for place, kind in enumerate(("training", "test")):
            columns += read_samples([pair[place] for pair in clients], partial(what, kind))
        return cls.from_arrays(
            list(zip(*columns, strict=True)),
            name=name,
            classes=classes,
            class_names=class_names,
            client_names=client_names,
            preprocess=preprocess,
            task=task,
            noise=noise,
        )

    @classmethod
    def from_samples(
        cls,
        train: AnySamples,
        test: AnySamples | None = None,
        *,
        keys: tuple[str | int, str | int, str | int] = (0, 1, 2),
        test_share: float = 0.25,
        seed: int = 0,
        name: str = "samples",
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        task: Task | str = "classification",
    ) -> FederatedDataset:
        """A federated data set from one data set as PyTorch has them, whose samples say whose they are.

        Args:
            train: by number (``len(train)``, ``train[i]``) or a stream (``IterableDataset``), of samples
                ``(x, y, client)``; read once, as in :meth:`from_datasets`.
            test: likewise; by default a share of each client's samples is held out, keyed by seed and client.
            keys: where x, y and the client are in a sample, if it is not such a tuple: ``("image", "label", "user")``.
            test_share, seed: of the hold-out.
            name, classes, class_names, preprocess, task: as of :meth:`from_arrays`.

        Raises:
            ConfigError: the share is none.
            DataError: as :meth:`from_arrays`; also a sample of another form, or a client without test samples.
        """
        names, clients = clients_of_samples(name, train, test, keys, test_share, seed)
        return cls.from_arrays(
            clients,
            name=name,
            classes=classes,
            class_names=class_names,
            client_names=names,
            preprocess=preprocess,
            task=task,
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
    def numbers_per_sample(self) -> int:
        """How many numbers a stored sample consists of, for estimates of memory."""
        names = self.x_train.dtype.names
        fields = [self.x_train[name] for name in names] if names else [self.x_train]
        return sum(math.prod(field.shape[1:]) for field in fields)

    @property
    def schema(self) -> TableSchema | None:
        """Of a table, what its columns are and how they became samples."""
        return self.origin.schema

    @property
    def about(self) -> Mapping[str, Any]:
        """How a table, texts or pictures were read and split, for people and a run's summary."""
        return self.origin.about

    @property
    def few_rows(self) -> Mapping[str, Any]:
        """Of samples by a client column, what became of clients with few rows: ``how``, and whom that concerned."""
        few: Mapping[str, Any] = self.about.get("few_rows", {}) if self.schema is None else self.schema.few_rows
        return few

    @property
    def tokens(self) -> bool:
        """Whether the samples are tokenised texts."""
        return self.format.kind == "tokens"

    @property
    def format(self) -> InputFormat:
        """How samples become a model's inputs."""
        return format_of(self.x_train, self.preprocess)

    @cached_property
    def vocabulary(self) -> int:
        """The largest token number plus one: what a model's vocabulary must have at least; 0 unless tokens."""
        return self.format.vocabulary(self.x_train, self.x_test)

    @cached_property
    def train_sizes(self) -> Indices:
        """Training samples of every client, int64 [clients]; not to be changed."""
        return _sizes(self.train_offsets)

    @cached_property
    def test_sizes(self) -> Indices:
        """Test samples of every client, int64 [clients]; not to be changed."""
        return _sizes(self.test_offsets)

    @property
    def validation_sizes(self) -> Indices:
        """Rows that every client holds out for validation, int64 [clients]."""
        return np.zeros(self.clients, np.int64) if self.validation_offsets is None else np.diff(self.validation_offsets)

    def validation_indices(self, client: int) -> Indices:
        """Rows of ``x_train`` and ``y_train`` that this client holds out: a view, no copy."""
        if self.validation_index is None or self.validation_offsets is None:
            return np.zeros(0, np.int64)
        return self.validation_index[self.validation_offsets[client] : self.validation_offsets[client + 1]]

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
        if train and self.validation_index is not None:
            owner[self.validation_index] = np.repeat(np.arange(self.clients), self.validation_sizes)
        return owner

    def client_name(self, client: int) -> str:
        """The client's name: its value in the client column, or its number."""
        return str(client) if self.client_names is None else self.client_names[client]

    def shown_name(self, client: int) -> str:
        """The client's name for a line of ours: cut, and without characters that act instead of being seen."""
        return escaped(self.client_name(client))

    def client_id(self, name: str) -> int:
        """The number of the client of this name, whichever way its letters with marks are written.

        Raises:
            DataError: there is none.
        """
        try:
            found = int(name) if self.client_names is None else self._numbers.get(name, -1)
            if found < 0 and self.client_names is not None:  # tables' names have ö as one character
                found = self._numbers.get(plain_name(name), -1)
        except ValueError:
            found = -1
        if not 0 <= found < self.clients:
            known = f"{self.client_name(0)!r} … {self.client_name(self.clients - 1)!r}"
            raise DataError(f"{self.name!r} has no client {name!r}; its {self.clients} clients are {known}")
        return found

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Clients' numbers by name."""
        return numbered(self.client_names or ())

    def class_counts(self, split: Literal["train", "test"] = "train") -> Indices:
        """Samples per client and class (label, target), int64 [clients, classes]."""
        return np.concatenate(list(self.class_counts_in_parts(split)))

    def class_counts_in_parts(self, split: Literal["train", "test"] = "train") -> Iterator[Indices]:
        """As :meth:`class_counts`, of ten thousand clients after the other: of very many, all take much memory."""
        if split == "train":
            y, index, offsets = self.y_train, self.train_index, self.train_offsets
        elif split == "test":
            y, index, offsets = self.y_test, self.test_index, self.test_offsets
        else:
            raise DataError(f"A split is 'train' or 'test', not {split!r}")
        if self.described:
            index, offsets = index[:0], np.zeros_like(offsets)
        return class_counts_in_parts(self.task, self.classes, y, index, offsets)

    def strata(self, split: Literal["train", "test"]) -> Indices:
        """What samples are chosen evenly over, int64 [N]: their classes; one number for all where there are none."""
        y = self.y_train if split == "train" else self.y_test
        label = self.task.label_of(y)
        return np.zeros(len(y), dtype=np.int64) if label is None else label

    def fingerprint(self) -> str:
        """SHA-256 (hex) over name, samples, labels, owners, preprocessing and noise; computed once, without copies."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.name, self.classes, self.class_names, self.client_names)).encode())
        digest.update(repr(self.preprocess).encode())
        if self.task != CLASSIFICATION:
            digest.update(f"{self.task.name} {self.task!r}".encode())
        for field in ("x_train", "y_train", "x_test", "y_test"):
            _hash_array(digest, field, getattr(self, field))
        for field in ("train_index", "train_offsets", "test_index", "test_offsets"):
            _hash_array(digest, field, getattr(self, field))
        if self.validation_index is not None and self.validation_offsets is not None:
            _hash_array(digest, "validation_index", self.validation_index)
            _hash_array(digest, "validation_offsets", self.validation_offsets)
        if self.noise is not None:
            digest.update(f"noise {self.noise.strength!r}".encode())
            _hash_array(digest, "noise", self.noise.images)
        return digest.hexdigest()

    def describe(self) -> str:
        """One line for people: name, clients, samples and their spread, classes."""
        train, test = self.train_sizes, self.test_sizes
        parts = (
            counted(self.clients, "client"),
            f"{train.sum():,} training samples ({_spread(train)} each)",
            f"{test.sum():,} test samples ({_spread(test)} each)",
            "" if self.validation_index is None else f"{len(self.validation_index):,} held out for validation",
            self.task.describe(self.classes, _spread(classes_held(self.class_counts_in_parts()))),
            self.format.describe(),
            "" if self.noise is None else f"feature noise {self.noise.strength:g}",
        )
        return f"{self.name}: {', '.join(part for part in parts if part)}"

    def __repr__(self) -> str:
        return f"<FederatedDataset {self.describe()}>"


def _sizes(offsets: Indices) -> Indices:
    sizes = np.diff(offsets)
    sizes.setflags(write=False)  # kept, and given to everybody
    return sizes


def _hash_array(digest: hashlib._Hash, field: str, values: Array) -> None:
    if values.dtype.names:  # one by one: between them there may be bytes that mean nothing
        for name in values.dtype.names:
            _hash_array(digest, f"{field} {name}", np.ascontiguousarray(values[name]))
        return
    digest.update(f"{field} {values.dtype.str} {values.shape}".encode())
    digest.update(values.data)


def _spread(values: npt.NDArray[Any]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
