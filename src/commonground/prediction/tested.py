"""A finished run's models on the samples that it was tested on, one by one: which answers were wrong."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.arrays import offsets_of
from commonground.data.partition_texts import is_own_partition
from commonground.data.sources import kind_of
from commonground.data.sources.kinds import Unknown
from commonground.engine.predictions import outputs_of
from commonground.engine.prepare import data_of
from commonground.engine.run import Run, as_run
from commonground.engine.state.files import write_atomically
from commonground.engine.trained import Trained
from commonground.engine.warm_start import InitialWeights, start_for
from commonground.errors import CommonGroundError, ConfigError, DataError, warn
from commonground.name_lists import plain_name
from commonground.prediction.headings import headings, of_answers
from commonground.prediction.tables import Rows, TableAnswers, Whose, agreement
from commonground.single_precision import in_digits
from commonground.spreadsheet import as_csv
from commonground.tasks import Task
from commonground.user_code import is_code

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TESTS", "answers_to_tests", "predict_tests", "write_tests"]

TESTS = "tests.csv"
"""In the folder of a network's client: its model's answers to its own test samples."""

_GIVE = (
    "where they were given as an object, cg.predict_tests(run, data=…) takes it, and where they are with the clients "
    f"of a network, each has them as {TESTS} beside its model"
)


def predict_tests(
    run: str | os.PathLike[str] | Run,
    *,
    data: FederatedDataset | None = None,
    client: str | int | None = None,
    shared: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """What a run's models say of each sample that the run was tested on, beside what is right, as ``commonground
    predict RUN --tested`` does.

    Args:
        run: the run, or its folder.
        data: the data as an object, where the run was given them as one; they are read again by default.
        client: of this one's test samples alone.
        shared: ask the global model in place of the clients' own. Of PerFedAvg, FedBABU and FedALA the models are asked
            as they were before a test trains them once more, which is warned of: figures are not those of the run then.
        data_dir: folder of the data files.

    Returns:
        A row per test sample: ``sample``, which one it is (of a table the row's number from 0, of pictures the file,
        else the place among the data's test samples); ``client``; what is right, as ``actual``, or ``actual NAME`` of
        each target or label; the class and the probability of each class by name, the predicted numbers, or the
        probability of each label.

    Raises:
        ConfigError: the data are not to be had by their name, or the run is of a language model that writes answers.
        DataError: the data are others than in training.

    >>> tests = predict_tests("runs/clinics")                         # doctest: +SKIP
    >>> tests[tests["actual"] != tests["class"]]                      # doctest: +SKIP
    """
    import pandas as pd

    run = as_run(run)
    if client is not None and shared:
        raise ConfigError("give either client=… or shared=True")
    if data is not None and not isinstance(data, FederatedDataset):
        raise ConfigError(f"data is a FederatedDataset, as the run was given, and no {type(data).__name__}")
    if run.trained.remark and not shared:
        warn(run.trained.remark)
    trained, names = run.trained, run.trained.split["class_names"]
    whose = Whose(None if client is None else trained.known.number(client), shared)
    found = _asked(trained, _data_again(trained, data, data_dir), whose)
    columns = [found.samples, [trained.known.names[number] for number in found.clients]]
    columns += _actual(trained.task, found.y, names)
    columns += [trained.task.choose(found.predicted, names)] if trained.task.softmax else []
    told = pd.concat([pd.DataFrame(dict(enumerate(columns))), pd.DataFrame(found.predicted)], axis=1)
    told.columns = headings(
        ("row", ["sample", "client"]),
        ("right", _headers(found.y, names)),
        *of_answers(trained.task, names),
    )
    return told


def answers_to_tests(run: Run, whose: Whose, data: FederatedDataset | None = None) -> TableAnswers:
    """The same as it is written to a file, with the metric in words.

    Args:
        run: the run.
        whose: samples are asked for, and which models.
        data: those of the run, as it has trained on them, where they are at hand; by default they are read again.

    Raises:
        ConfigError, DataError: as :func:`predict_tests`.
    """
    trained, names = run.trained, run.trained.split["class_names"]
    again = _data_again(trained, None, None) if data is None else data
    found, task = _asked(trained, again, whose), trained.task
    header, answers = task.table(found.predicted, names)
    double = found.y.dtype == np.float64
    actual = zip(
        *([_written(value, double) for value in column] for column in _actual(task, found.y, names)), strict=True
    )
    rows = [
        [str(sample), trained.known.names[client], *right, *answer]
        for sample, client, right, answer in zip(found.samples, found.clients, actual, answers, strict=True)
    ]
    known = np.ones(len(rows), dtype=bool)
    parts = [np.flatnonzero(found.clients == number) for number in np.unique(found.clients)]
    metric = agreement(task, found.y, known, found.outputs, found.predicted, parts)
    columns = headings(("row", ["sample", "client"]), ("right", _headers(found.y, names)), ("predicted", header))
    return TableAnswers(columns, rows, metric)


def write_tests(run: Run, data: FederatedDataset) -> None:
    """What :func:`predict_tests` says, as :data:`TESTS` in the run's folder; nothing of a language model.

    Args:
        run: with a folder.
        data: the run's.

    Raises:
        OSError: it cannot be written.
    """
    if run.folder is None or run.trained.task.generative:
        return
    found = answers_to_tests(run, Whose(None, False), data)
    write_atomically(Path(run.folder) / TESTS, as_csv([found.header, *found.rows]))


@dataclass(frozen=True, eq=False)
class _Tests:
    """Test samples of clients, one after the other, and what models return for them.

    Attributes:
        clients: whose each is [N].
        samples: what each is called [N].
        y: targets in the task's stored form [N, …].
        outputs: of the networks [N, …].
        predicted: what the task makes of them [N, columns].
    """

    clients: Rows
    samples: npt.NDArray[Any]
    y: npt.NDArray[Any]
    outputs: Tensor
    predicted: npt.NDArray[np.float64]


def _data_again(
    trained: Trained, data: FederatedDataset | None, data_dir: str | os.PathLike[str] | None
) -> FederatedDataset:
    """The run's data.

    Raises:
        ConfigError: they cannot be read by the name that the run knows.
        DataError: they are others than in training.
    """
    if trained.task.generative:
        raise ConfigError(
            f"{trained.where} is of a language model that writes answers, whose test samples are not answered again "
            "(--tested); give it a file of instructions (--input FILE)"
        )
    config, given = trained.config, data
    if data is None:
        own = config.partition if is_own_partition(config.partition) else None
        for what, text in (("data", config.data), ("partition", own)):
            trained.check_trusted(what, text, "give the data: cg.predict_tests(run, data=…)")
    if data is None and not is_code(config.data) and isinstance(kind_of(config.data), Unknown):
        raise ConfigError(f"the data of {trained.where}, {config.data!r}, cannot be read by that name; {_GIVE}")
    before, folder = trained.split["fingerprint"], None if data_dir is None else os.fspath(data_dir)
    refused = None
    try:
        data = data_of(config, start_for(config, None), given, folder)
        if data.fingerprint() == before:
            return data
    except CommonGroundError as error:
        refused = error
    with suppress(CommonGroundError):  # what is wrong with them as they are read now says more
        again = data_of(config, _AsInRun(trained), given, folder)
        if again.fingerprint() == before:
            return again
    if refused is not None:
        if given is not None:
            raise refused
        # A file that an object was read from has the run's name for it, and not how it was read.
        why = f"the data of {trained.where} cannot be read again as they were: {refused}; {_GIVE}"
        raise type(refused)(why) from None
    assert data is not None
    raise DataError(
        f"the data {data.name!r} are others than {trained.where} was trained on (fingerprint {before[:12]}, now "
        f"{data.fingerprint()[:12]}), or are read otherwise by this version of commonground; {_GIVE}"
    )


@dataclass(frozen=True, eq=False)
class _AsInRun(InitialWeights):
    """How data are read as a run of before has read them: a table's columns by the run's kinds, which this version may
    not take them for, and clients and classes by the run's names.

    Attributes:
        trained: of the run.
    """

    trained: Trained

    def reading(self, config: RunConfig) -> dict[str, Any]:
        """See :meth:`InitialWeights.reading`."""
        return {} if self.trained.schema is None else {"schema": self.trained.schema}

    def as_read(self, data: FederatedDataset) -> FederatedDataset:
        """See :meth:`InitialWeights.as_read`."""
        return _named_as(self.trained, self.trained.as_read(data))


def _named_as(trained: Trained, data: FederatedDataset) -> FederatedDataset:
    """Data with a run's names of clients and classes, in its order, where they differ in how letters with marks are
    written alone.
    """
    clients, classes = (trained.split[what] or () for what in ("client_names", "class_names"))
    if [*map(plain_name, classes)] == [*map(plain_name, data.class_names)]:
        data = replace(data, class_names=tuple(classes))
    place = {plain_name(name): number for number, name in enumerate(data.client_names or ())}
    order = [place.get(plain_name(name), -1) for name in clients]
    if sorted(order) != [*range(data.clients)]:
        return data
    rows = {
        "train": [data.train_indices(c) for c in order],
        "test": [data.test_indices(c) for c in order],
        **({} if data.validation_index is None else {"validation": [data.validation_indices(c) for c in order]}),
    }
    arrays: dict[str, Any] = {f"{part}_index": np.concatenate(own) for part, own in rows.items()}
    arrays |= {f"{part}_offsets": offsets_of([*map(len, own)]) for part, own in rows.items()}
    return replace(data, client_names=tuple(clients), **arrays)


def _asked(trained: Trained, data: FederatedDataset, whose: Whose) -> _Tests:
    """All test samples, or one client's, and what its own model, or the global one, returns for them."""
    clients = range(data.clients) if whose.client is None else [whose.client]
    if whose.client is not None and whose.client >= data.clients:
        raise ConfigError(
            f"client {trained.known.names[whose.client]!r} was added after the run, which has no test samples of it"
        )
    rows = [data.test_indices(client) for client in clients]
    outputs = [
        outputs_of(trained, data.x_test[own], None if whose.shared else client, client)
        for client, own in zip(clients, rows, strict=True)
        if len(own)
    ]
    index, joined = np.concatenate(rows), torch.cat(outputs)
    return _Tests(
        clients=np.repeat(np.array(clients), [len(own) for own in rows]),
        samples=index if data.origin.test_names is None else data.origin.test_names[index],
        y=data.y_test[index],
        outputs=joined,
        predicted=trained.task.predict(joined),
    )


def _headers(y: npt.NDArray[Any], names: tuple[str, ...]) -> list[str]:
    """What the columns of the right answers are called."""
    if y.ndim == 1:
        return ["actual"]
    return [f"actual {name}" for name in (names if len(names) == y.shape[1] else range(y.shape[1]))]


def _actual(task: Task, y: npt.NDArray[Any], names: tuple[str, ...]) -> list[list[Any]]:
    """The right answers, a list for each column; numbers of single precision as short as the table has them."""
    if task.softmax:
        return [[names[label] for label in y.tolist()]]
    if y.dtype == np.float32:
        return [[float(str(value)) for value in column] for column in y.reshape(len(y), -1).T]
    return [column.tolist() for column in y.reshape(len(y), -1).T]


def _written(value: Any, double: bool) -> str:
    """A right answer in all digits that its number type holds."""
    return value if isinstance(value, str) else f"{value:.15g}" if double else in_digits(value)
