"""A run's models behind a service: asked by client, kept ready, and joined by new clients."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from commonground.adapt.keep import Kept, keep_clients
from commonground.counted import counted
from commonground.data import FederatedDataset
from commonground.engine.added import FOLDER as ADDED
from commonground.engine.added import INDEX
from commonground.engine.portable import PortableModel
from commonground.engine.predictions import device_of, portable_model
from commonground.engine.run import Run, at_hand
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, DataError, RunError
from commonground.quoting import quoted
from commonground.serve.joining import Joining
from commonground.serve.rows import SERVED, Row, reader_of
from commonground.serve.tables import cell_kind
from commonground.user_code import failing_as

__all__ = ["Prediction", "RunModels"]

SMALL = 16 * 1024  # bytes of requests that are answered together; longer ones would keep others waiting


@dataclass(frozen=True)
class Prediction:
    """What a model says of one row.

    Attributes:
        answer: in words: a class, numbers, labels.
        values: by name: each class's probability, each number; of labels ``probability of NAME``.
        notes: cells with a category that has no input of its own, which are read as none.
    """

    answer: str
    values: dict[str, float]
    notes: tuple[str, ...] = ()


class RunModels:
    """The models of a run's clients. All methods but :meth:`asked` may be called from several threads.

    Args:
        run: in a folder, of numbers, images, a table, or texts that have classes.
        ready: how many clients' models are kept in memory.

    Raises:
        ConfigError: the run is of a language model that writes answers, or in no folder.
    """

    def __init__(self, run: Run, ready: int = 256) -> None:
        if run.folder is None:
            raise ConfigError("a service needs a run in a folder; train with out=…")
        self.run, self.rows, self._ready = run, reader_of(run), ready
        self._index = run.folder / ADDED / INDEX
        self._stamp: tuple[int, int, int] | None = None  # so that clients who are there are read with the first request
        self._models: OrderedDict[int, PortableModel] = OrderedDict()
        self._lock = threading.Lock()
        self._adding = threading.Lock()
        self._joining: Joining[Sequence[Any], list[Prediction]] = Joining(self._answers, SMALL)

    @property
    def columns(self) -> list[str]:
        """What rows consist of: a table's columns; empty where samples are plain numbers."""
        return list(self.rows.columns)

    def predict(self, client: str, rows: Sequence[Row] | Sequence[Any]) -> list[Prediction]:
        """What a client's own model says.

        Args:
            client: its name.
            rows: of a table or texts, a mapping from column names to cells each; else samples as nested lists of
                numbers.

        Raises:
            ConfigError: there is no such client.
            DataError: the rows are not of the training rows' form.
            ModelError: the model fails.
        """
        (said,) = self._answers(client, [rows])
        if isinstance(said, Exception):
            raise said
        return said

    async def asked(self, client: str, rows: Sequence[Row] | Sequence[Any], size: int) -> list[Prediction]:
        """As :meth:`predict`, for many who ask at once, in one event loop; ``size`` is the request's, in bytes.

        Requests of one client that come while others are answered are answered together (:mod:`.joining`); the answers
        are those that each would get alone, up to rounding in their last digits.
        """
        return await self._joining.ask(client, rows, size)

    def _answers(self, client: str, asked: Sequence[Sequence[Any]]) -> list[list[Prediction] | Exception]:
        """Answers to several requests of one client: those of one form in one pass, each alone if that fails, so that a
        request fails by its own rows only.
        """
        answers: dict[int, list[Prediction] | Exception] = {}
        forms: dict[Any, list[int]] = {}
        for place, rows in enumerate(asked):
            forms.setdefault(_form(rows), []).append(place)
        for places in forms.values():
            try:
                said = self._pass(client, [asked[place] for place in places])
            except Exception as error:
                said = [error] if len(places) == 1 else [self._answers(client, [asked[p]])[0] for p in places]
            answers |= dict(zip(places, said, strict=True))
        return [answers[place] for place in range(len(asked))]

    def _pass(self, client: str, asked: Sequence[Sequence[Any]]) -> list[list[Prediction] | Exception]:
        """Answers to requests whose rows have one form."""
        self.heed_others()
        trained = self.run.trained
        try:
            number = trained.known.number(client)
        except ConfigError:  # whose sentence names a folder of this host
            raise ConfigError(f"{SERVED} has no client {quoted(client)}") from None
        rows = [row for each in asked for row in each]
        try:
            model = self._model(trained, number)
        except ConfigError as error:  # of a client that was added to other rounds of the run than are served here
            raise RunError(str(error)) from None
        with self.rows.alone:
            x, notes = self.rows.read(trained, rows, client, number)
        parts = []
        for start in range(0, len(rows), self.rows.at_once):
            with self.rows.alone, torch.no_grad(), failing_as("the model's prediction failed"):
                parts.append(model.predict(x[start : start + self.rows.at_once], "this service", device_of(trained)))
        said = np.concatenate(parts)
        ends = np.cumsum([0, *(len(each) for each in asked)])
        return [self._in_words(said[a:b], notes[a:b]) for a, b in pairwise(ends)]

    def _in_words(
        self, said: npt.NDArray[np.float64], notes: Sequence[tuple[str, ...]]
    ) -> list[Prediction] | Exception:
        """What the model says of one request's rows."""
        if not np.isfinite(said).all():
            return DataError("the model gives no finite numbers for these rows")
        trained = self.run.trained
        names = trained.split["class_names"]
        columns = names if trained.task.softmax else trained.task.columns(names)
        answers = trained.task.choose(said, names)
        return [
            Prediction(answer, {name: float(v) for name, v in zip(columns, row, strict=True)}, about)
            for answer, row, about in zip(answers, said, notes, strict=True)
        ]

    def add(self, client: str, rows: Sequence[Row], *, epochs: int = 30) -> Kept:
        """Add a client with a head fitted on examples of its own, the last quarter of which tests it.

        Args:
            client: its name.
            rows: with the target's columns; at least 4.
            epochs: passes over them.

        Raises:
            ConfigError: rows of the run hold no targets, it scales by clients' own statistics, or it has a client of
                this name.
            DataError: too few rows, or rows of another form.
        """
        if not client.strip() or client != client.strip() or not client.isprintable() or len(client) > 200:
            raise DataError("a client's name is 1 to 200 printable characters without spaces at its ends")
        if len(rows) < 4:
            raise DataError(
                f"{counted(len(rows), 'row')} {'is' if len(rows) == 1 else 'are'} too few for a head and a test of it; "
                "at least 4 are needed"
            )
        data = self._examples(client, rows)
        with self._adding:
            trained = self.run.trained
            if trained.known.find(client) is not None:
                raise ConfigError(f"there is a client '{client}' already")
            if trained.known.numbered(client) is not None:  # whose number it is, is nothing to tell
                raise ConfigError(f"a new client cannot be called '{client}', which is another one's number")
            with self.rows.alone:
                kept = keep_clients(self.run, data, epochs=epochs, renew=False)
            self._heed(kept.run)
        return kept

    def _examples(self, client: str, rows: Sequence[Row]) -> FederatedDataset:
        """Posted rows as a data set of one client."""
        trained = self.run.trained
        x, y = self.rows.examples(rows, client)
        test = max(1, len(x) // 4)
        return FederatedDataset.from_arrays(
            [(x[:-test], y[:-test], x[-test:], y[-test:])],
            name="posted examples",
            classes=int(trained.split["classes"]),
            class_names=trained.split["class_names"],
            client_names=[client],
            preprocess=trained.format.preprocess,
            task=trained.task,
        )

    def heed_others(self) -> None:
        """Take in what another process has added to the run's folder since."""
        if self._stamp_now() != self._stamp:
            self._heed(self.run)

    def _heed(self, run: Run) -> None:
        """Read the added clients again, whose heads may be new ones."""
        # The stamp first: what is added while the list is read is read once more.
        stamp, fresh = self._stamp_now(), replace(run.trained)  # which has read nothing of the folder yet
        count = len(fresh.known.names)
        with self._lock:
            self.run, self._stamp = replace(run, _read=at_hand(fresh)), stamp
            for number in range(fresh.clients, count):
                self._models.pop(number, None)

    def _stamp_now(self) -> tuple[int, int, int] | None:
        """By which the list of added clients is known; None while there is none."""
        try:
            state = self._index.stat()
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns, state.st_size

    def _model(self, trained: Trained, client: int) -> PortableModel:
        with self._lock:
            if trained is not self.run.trained:  # other clients have come or gone since: the number is another's there
                return portable_model(trained, client)
            if client not in self._models:
                self._models[client] = portable_model(trained, client)
                while len(self._models) > self._ready:
                    self._models.popitem(last=False)
            self._models.move_to_end(client)
            return self._models[client]


def _form(rows: Sequence[Any]) -> Any:
    """What the reading of rows may hang on beside each row itself: their columns in order, and for every one of them
    the kinds of its cells. Rows of equal form are read together exactly as they are apart.
    """
    if not all(isinstance(row, Mapping) for row in rows):
        return tuple(sorted({str(_shape(row)) for row in rows}))
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, cell in row.items():
            kinds.setdefault(name, set()).add(cell_kind(cell))
    for name, found in kinds.items():
        if any(name not in row for row in rows):
            found.add("absent")
    return tuple((name, tuple(sorted(found))) for name, found in kinds.items())


def _shape(row: Any) -> tuple[int, ...]:
    """Of nested lists, as far as their first elements say."""
    sides = []
    while isinstance(row, list | tuple):
        sides.append(len(row))
        row = row[0] if row else None
    return tuple(sides)
