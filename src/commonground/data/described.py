"""Data that stay with their clients: what a server is told of them, and a data set that stands in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from commonground.data.arrays import Array, Preprocess, offsets_of
from commonground.data.federated import FederatedDataset
from commonground.data.names import sorted_names
from commonground.data.tables.spelling import one_spelling, places_of
from commonground.data.tables.told import Version
from commonground.data.text.tokens import pad_tokens
from commonground.errors import DataError, UpdateError
from commonground.quoting import quoted
from commonground.tasks import Regression, Task, tasks

__all__ = [
    "LONGEST_TEXT",
    "Demand",
    "Description",
    "as_agreed",
    "class_places",
    "describe_client",
    "described_dataset",
    "read_description",
]

# A description cannot make a server allocate what nobody has: numbers of a sample, and rows of all clients together.
LARGEST_SAMPLE, MOST_DESCRIBED = 1 << 26, 1 << 29
LARGEST_TARGET = 1e30  # of which squares are still numbers
LONGEST_TEXT, MOST_TOKENS = 1 << 17, 1 << 31  # tokens of a text, and of as many texts as are described
MOST_ROWS = 1 << 40
_LEFT_OUT = "the server leaves out classes of this client's, or takes several for one"

Fields = Sequence[tuple[str, str, tuple[int, ...]]]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Demand = Literal["client", "example"]
"""What a client's owner wants hidden of whatever it takes part in: whole clients, or single examples."""
Side = Annotated[int, Field(ge=0, le=LARGEST_SAMPLE)]


class Description(BaseModel):
    """What one client says of its data: sizes and kinds, no sample, no target and no count of one.

    Attributes:
        name: the client's.
        data: the data's.
        train, test: rows.
        fields: (name, NumPy type, shape) of a sample's arrays; one without a name for plain samples.
        classes: number of classes that the client knows of (targets, labels).
        class_names: theirs.
        task: by name.
        task_settings: of the task; of numbers to be predicted their mean and deviation over the client's training rows.
        scale: of the client's preprocessing.
        mean, std: likewise.
        counted_classes: whether the classes follow from the client's own rows, and tell of them.
        demand: what the client's owner demands to be hidden, if anything.
        least_noise: and by how much noise at least.
        version: of the client's software.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Name
    data: Name
    train: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    test: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    fields: Annotated[
        tuple[tuple[str, Annotated[str, Field(pattern=r"\A[<|=][buif]\d{1,2}\z")], tuple[Side, ...]], ...],
        Field(min_length=1, max_length=64),
    ]
    classes: Annotated[int, Field(ge=1, le=10_000_000)]
    class_names: Annotated[tuple[str, ...], Field(max_length=10_000_000)]
    task: Name
    task_settings: dict[str, Any]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    counted_classes: bool = False
    demand: Demand | None = None
    least_noise: float = 0.0
    version: Version = ""

    @property
    def tokens(self) -> int | None:
        """Of texts, of how many tokens the longest is; else None."""
        return _tokens_of(self.fields)

    @property
    def agreed(self) -> dict[str, Any]:
        """What has to be the same for all clients."""
        return {
            "the samples": tuple((name, kind) for name, kind, _ in self.fields) if self.tokens else self.fields,
            # Who demands privacy does not tell mean and deviation of its targets; then the others' count.
            "the task": (self.task, sorted(n for n, v in self.task_settings.items() if v and n not in ("mean", "std"))),
            "the number of targets": self.classes if self.task == Regression.name else None,
            "the preprocessing": (self.scale, self.mean, self.std),
        }


def describe_client(data: FederatedDataset, name: str) -> Description:
    """The description of a data set with one client.

    Raises:
        DataError: it has several clients, or something that cannot be agreed on.
    """
    if data.clients != 1:
        raise DataError(f"a client's own data are those of one client, and {data.name!r} has {data.clients}")
    if data.noise is not None or data.validation_index is not None:
        raise DataError(f"{data.name!r} has feature noise or rows for validation, which a network run does not know")
    x = data.x_train
    fields = [(n, x.dtype[n].base.str, x.dtype[n].shape) for n in x.dtype.names or ()]
    p = data.preprocess
    return Description(
        name=name,
        data=data.name,
        train=int(data.train_sizes[0]),
        test=int(data.test_sizes[0]),
        fields=tuple(fields) or (("", x.dtype.str, x.shape[1:]),),
        classes=data.classes,
        class_names=data.class_names,
        task=data.task.name,
        task_settings=asdict(data.task),
        scale=p.scale,
        mean=tuple(p.mean),
        std=tuple(p.std),
        counted_classes=data.counted_classes,
        version=version("commonground"),
    )


def read_description(text: str | bytes) -> Description:
    """From JSON that somebody else wrote.

    Raises:
        DataError: it is none.
    """
    try:
        found = Description.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = quoted(".".join(map(str, first["loc"])))
        raise DataError(f"this describes no data: {where}: {first['msg']}") from None
    for _, _, shape in found.fields:
        if np.prod([max(1, n) for n in shape], dtype=float) > LARGEST_SAMPLE:
            raise DataError(f"this describes samples of the shape {list(shape)}, which is beyond every size")
    _check_kinds(found.fields)
    _check_task(found)
    return found


def _check_kinds(fields: Fields) -> None:
    if len({name for name, _, _ in fields}) < len(fields):
        raise DataError("this describes samples that have two arrays of one name")
    for _, kind, _ in fields:
        try:
            np.dtype(kind)
        except TypeError:
            raise DataError(f"this describes samples of the type {quoted(kind)}, which there is not") from None


def _check_task(found: Description) -> None:
    """One client's mean that is no number would be in all clients' targets."""
    if found.task not in tasks:
        raise DataError(f"this describes the task {quoted(found.task)}, which is not known here")
    task = task_of(found.task, found.task_settings)
    if not isinstance(task, Regression):
        return
    for value in (task.mean, task.std):
        numbers = isinstance(value, tuple) and all(type(one) in (int, float) for one in value)
        if not numbers or any(not abs(one) <= LARGEST_TARGET for one in value):
            raise DataError("this describes targets whose mean and deviation are no numbers of a target's size")
    if len(task.mean) != len(task.std) or any(one <= 0 for one in task.std):
        raise DataError("this describes targets that have a mean without a deviation, or one that is not above 0")
    if task.mean and len(task.mean) != found.classes:
        raise DataError(f"this describes {found.classes} targets, and the mean of {len(task.mean)}")


def described_dataset(descriptions: Sequence[Description]) -> FederatedDataset:
    """A data set with the clients' names and sizes, whose samples are zero.

    Classes are those of :func:`agreed_classes`. Texts are as long as the longest of all clients.

    Args:
        descriptions: one per client, in their order.

    Raises:
        DataError: names two clients who do not agree, and in what.
    """
    first, longest = descriptions[0], max(descriptions, key=lambda d: d.tokens or 0)
    for other in descriptions:
        for what, value in first.agreed.items():
            if other.agreed[what] != value:
                raise DataError(
                    f"the clients {quoted(first.name)} and {quoted(other.name)} do not agree on {what}: "
                    f"{value!r} and {other.agreed[what]!r}"
                )
    class_names = agreed_classes(descriptions)
    task = agreed_task(descriptions)
    train, test = (sum(getattr(d, split) for d in descriptions) for split in ("train", "test"))
    if train + test > MOST_DESCRIBED:
        large = max(descriptions, key=lambda d: d.train + d.test)
        raise DataError(
            f"the clients say that they have {train + test:,} rows together, {large.train + large.test:,} of them "
            f"client {quoted(large.name)}; a server takes up to {MOST_DESCRIBED:,}"
        )
    tokens = longest.tokens or 0
    if tokens > LONGEST_TEXT or tokens * (train + test) > MOST_TOKENS:
        raise DataError(
            f"client {quoted(longest.name)} says that its longest text has {tokens:,} tokens; a server takes texts of "
            f"up to {LONGEST_TEXT:,}, and {MOST_TOKENS:,} tokens where all are as long"
        )
    x_train, x_test = _zeros(longest.fields, train, 0), _zeros(longest.fields, test, train)
    y_train, y_test = (task.neutral_targets(n, len(class_names)) for n in (train, test))
    offsets = {s: offsets_of(getattr(d, s) for d in descriptions) for s in ("train", "test")}
    return FederatedDataset(
        name=first.data,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=len(class_names),
        class_names=class_names,
        train_index=np.arange(train),
        train_offsets=offsets["train"],
        test_index=np.arange(test),
        test_offsets=offsets["test"],
        client_names=tuple(d.name for d in descriptions),
        preprocess=Preprocess(first.scale, first.mean, first.std),
        task=task,
        described=True,
        counted_classes=any(d.counted_classes for d in descriptions),
    )


def agreed_classes(descriptions: Sequence[Description]) -> tuple[str, ...]:
    """Names of the classes of all clients: of the one that knows the most, if the others' are the first of them.

    Texts' classes have no order that a client could not change (:func:`as_agreed`): there they are otherwise those of
    all clients together, in sorted order, as one table of all would have them.

    Raises:
        DataError: names two clients whose classes have other names.
    """
    most = max(descriptions, key=lambda d: d.classes)
    other = next((d for d in descriptions if d.class_names != most.class_names[: d.classes]), None)
    if other is None:
        return most.class_names
    if most.tokens is None:
        raise DataError(f"the classes of the clients {quoted(most.name)} and {quoted(other.name)} have other names")
    return sorted_names(np.array(list(one_spelling([d.class_names for d in descriptions]).values()), dtype=np.str_))


def agreed_task(descriptions: Sequence[Description]) -> Task:
    """The task of all clients together: of numbers to be predicted, with mean and deviation over the training rows of
    all who tell theirs.

    Raises:
        DataError: there is none.
    """
    plain = [task_of(d.task, d.task_settings) for d in descriptions]
    told = [
        (d, task) for d, task in zip(descriptions, plain, strict=True) if isinstance(task, Regression) and task.mean
    ]
    if not told:
        if any(task != plain[0] for task in plain):
            raise DataError("the clients do not agree on the task's settings")
        return plain[0]
    rows = np.array([[d.train] for d, _ in told], dtype=np.float64)
    mean, std = (np.array([getattr(task, name) for _, task in told], dtype=np.float64) for name in ("mean", "std"))
    whole = (rows * mean).sum(0) / rows.sum()
    spread = np.sqrt((rows * (std**2 + (mean - whole) ** 2)).sum(0) / rows.sum())
    return Regression(tuple(whole.tolist()), tuple(spread.tolist()))


def task_of(name: str, settings: Mapping[str, Any]) -> Task:
    """A task from its plain form.

    Raises:
        DataError: it has no such settings.
    """
    try:
        return tasks[name](**{key: tuple(v) if isinstance(v, list | tuple) else v for key, v in settings.items()})
    except (KeyError, TypeError) as error:
        raise DataError(f"this is no task: {quoted(name)} ({error})") from None


def as_agreed(
    data: FederatedDataset, class_names: Sequence[str], settings: Mapping[str, Any], tokens: int | None = None
) -> FederatedDataset:
    """A client's own data with what all clients agreed on: classes, the task's settings, and of texts the most tokens.

    Raises:
        DataError: there is no such task, or it has longer texts than has been agreed on.
        UpdateError: there are fewer classes than its own, or a class of its texts is none of them.
    """
    task, names = task_of(data.task.name, settings), tuple(class_names)
    if tokens is not None and not data.tokens:
        raise DataError(f"all clients have texts, and {data.name!r} is none")
    # Before labels are looked at: an error that named one would tell it.
    if len(names) < data.classes:
        raise UpdateError(_LEFT_OUT)
    agreed = replace(data, classes=len(names), class_names=names, task=task, one_of_many=False, counted_classes=False)
    if tokens is None:
        return agreed
    places = np.array(class_places(data.class_names, names))
    return replace(
        agreed,
        x_train=pad_tokens(data.x_train, tokens),
        y_train=places[data.y_train],
        x_test=pad_tokens(data.x_test, tokens),
        y_test=places[data.y_test],
    )


def class_places(own: Sequence[str], agreed: Sequence[str]) -> list[int]:
    """Which of the agreed classes each of a client's own is.

    Raises:
        UpdateError: one is none of them, or two are the same.
    """
    places = places_of(own, agreed)
    if min(places, default=0) < 0 or len({*places}) < len(places):
        raise UpdateError(_LEFT_OUT)
    return places


def _tokens_of(fields: Fields) -> int | None:
    """How many tokens a sample of these arrays has; None if it is none of tokens."""
    (name, kind, shape), *more = fields
    texts = not (name or more) and np.dtype(kind) == np.int32 and len(shape) == 2 and shape[0] > 1 and shape[1] == 2
    return shape[0] - 1 if texts else None


def _zeros(fields: Fields, rows: int, first: int) -> Array:
    """Samples of these arrays; of tokens, rows of one marked token, numbered from ``first``."""
    if len(fields) > 1 or fields[0][0]:
        return np.zeros(rows, np.dtype([(name, kind, shape) for name, kind, shape in fields]))
    _, kind, shape = fields[0]
    x: Array = np.zeros((rows, *shape), np.dtype(kind))  # untouched pages take no memory
    if _tokens_of(fields) is not None:
        x[:, 0] = np.stack([np.arange(first, first + rows), np.ones(rows)], 1)
        x[:, 1, 1] = 1
        x[:, 2:, 0] = -1
    return x
