"""Which columns of a table a client's own model looks at: how much worse it is once a column is shuffled.

Permutation importance (Breiman 2001; as in scikit-learn's ``permutation_importance``), of raw columns: all inputs that
a column makes (categories, a mark of missing cells, parts of dates) move together. Cells are shuffled among held-out
rows of the same client, so that a column which is the same in all of a client's rows counts nothing for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.data import FederatedDataset
from commonground.data.arrays import Array
from commonground.engine.predictions import outputs_of
from commonground.engine.state.folder import IMPORTANCE
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, RunError
from commonground.keys import numpy_stream
from commonground.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Importance", "column_importance"]


MOST_CLIENTS, MOST_ROWS = 40, 200
ENOUGH_ROWS, MOST_SHUFFLES, SHUFFLED_ROWS = 10, 5, 50
WORK = 1e10  # multiplications in all, about: seconds on one core
AT_ONCE = 1 << 23  # numbers of the inputs that are in memory together


@dataclass(frozen=True)
class Importance:
    """How much worse the clients' models are without each column.

    Attributes:
        metric: in which ``importance`` is told; its differences are turned so that more is more important.
        columns: of the table.
        clients: names of those that were sampled.
        of_clients: how many there are.
        rows: test rows that were used, for each sampled client.
        shuffles: over how many shuffles a figure is a mean, for each sampled client.
        importance: [clients][columns]: how much worse the metric gets; None where it is not defined.
        loss: [clients][columns]: how much larger the mean loss gets.
    """

    metric: str
    columns: tuple[str, ...]
    clients: tuple[str, ...]
    of_clients: int
    rows: tuple[int, ...]
    shuffles: tuple[int, ...]
    importance: tuple[tuple[float | None, ...], ...]
    loss: tuple[tuple[float | None, ...], ...]

    def to_pandas(self) -> pd.DataFrame:
        """A row per client and column: ``client``, ``column``, ``importance``, ``loss``, ``rows``, ``shuffles``; before
        them, for the mean over clients, a row per column without a client. Columns of most importance come first.
        """
        import pandas as pd

        means = dict(zip(self.columns, self.means, strict=True))
        whole = [
            {"client": None, "column": name, "importance": value, "loss": loss, "rows": sum(self.rows)}
            for name, (value, loss) in means.items()
        ]
        each = [
            {"client": client, "column": name, "importance": value, "loss": loss, "rows": rows, "shuffles": shuffles}
            for client, rows, shuffles, values, losses in zip(
                self.clients, self.rows, self.shuffles, self.importance, self.loss, strict=True
            )
            for name, value, loss in zip(self.columns, values, losses, strict=True)
        ]
        order = {self.columns[place]: rank for rank, place in enumerate(self.order)}
        frame = pd.DataFrame([*whole, *each])
        frame["importance"], frame["loss"] = frame["importance"].astype(float), frame["loss"].astype(float)
        by = frame["column"].map(order)
        return frame.iloc[np.lexsort((by, frame["client"].notna()))].reset_index(drop=True)

    @property
    def means(self) -> list[tuple[float | None, float | None]]:
        """Each column's importance and rise of the loss, means over the sampled clients."""
        return [
            (_mean([own[place] for own in self.importance]), _mean([own[place] for own in self.loss]))
            for place in range(len(self.columns))
        ]

    @property
    def order(self) -> list[int]:
        """The columns' places, those of most importance first."""
        means = [[-math.inf if value is None else value for value in pair] for pair in self.means]
        return sorted(range(len(self.columns)), key=means.__getitem__, reverse=True)

    def to_json(self) -> str:
        """As text; :meth:`from_json` gives an equal one back."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = IMPORTANCE) -> Importance:
        """From text.

        Raises:
            RunError: it is none.
        """
        try:
            values = dict(json.loads(text))
            if values.pop("format") != 1:
                raise ValueError("another version wrote it")
            for name in ("columns", "clients", "rows", "shuffles"):
                values[name] = tuple(values[name])
            for name in ("importance", "loss"):
                values[name] = tuple(tuple(None if v is None else float(v) for v in row) for row in values[name])
            found = cls(**values)
            count = len(found.clients)
            lengths = {count, *(len(each) for each in (found.rows, found.shuffles, found.importance, found.loss))}
            if lengths != {count} or any(len(row) != len(found.columns) for row in (*found.importance, *found.loss)):
                raise ValueError("its lists differ in length")
            return found
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"'{where}' holds no importance of columns: {error}") from None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def column_importance(trained: Trained, data: FederatedDataset, *, seed: int | None = None) -> Importance:
    """Shuffle every column among each client's test rows and see how much worse its own model gets.

    The cost is bounded whatever the table: at most 40 clients with at least 10 test rows (if there are any) and 200
    rows each, fewer where the columns are many or the model is large; clients with few rows are shuffled several times.
    All of it is drawn by keys of the seed and the client's name.

    Args:
        trained: of a run on a table.
        data: with the run's columns (``load_data(…, schema=run.trained.schema)``), whose clients the run knows.
        seed: of the draws; by default the run's.

    Raises:
        ConfigError: the run is of no table, or does not know the clients.
        DataError: the rows do not fit the run's.
    """
    if trained.schema is None:
        raise ConfigError(f"{trained.where} was not trained on a table, so that it knows no columns")
    data = trained.as_read(data)
    seed = trained.config.seed if seed is None else seed
    places = trained.schema.input_places
    clients, rows = _sampled(trained, data, len(places), seed)
    found = []
    for client in clients:
        name = data.client_name(client)
        index = data.test_indices(client)
        chosen = numpy_stream(seed, "importance rows", name).permutation(index)[:rows]
        shuffles = max(1, min(MOST_SHUFFLES, SHUFFLED_ROWS // len(chosen)))
        judge = _Judge(trained, trained.known.number(name), data.x_test[chosen], data.y_test[chosen])
        found.append((name, len(chosen), shuffles, *judge.without(places, shuffles, seed)))
    names, counts, times, importance, loss = zip(*found, strict=True)
    metric = data.task.metric
    return Importance(metric, tuple(places), names, data.clients, counts, times, importance, loss)


def _sampled(trained: Trained, data: FederatedDataset, columns: int, seed: int) -> tuple[list[int], int]:
    """The clients that are looked at, in their order, and at most how many rows of each."""
    weights = sum(value.numel() for value in trained.network.parameters())
    whole = WORK / (weights + 10 * int(np.prod(data.sample_shape))) / (columns + 1)  # rows of all clients
    sizes = data.test_sizes
    enough = np.flatnonzero(sizes >= ENOUGH_ROWS)
    if not len(enough):
        enough = np.arange(data.clients)
    most = max(1, min(MOST_CLIENTS, int(whole / ENOUGH_ROWS)))
    drawn = np.sort(numpy_stream(seed, "importance clients").permutation(enough)[:most])
    return [int(client) for client in drawn], max(ENOUGH_ROWS, min(MOST_ROWS, int(whole / len(drawn))))


class _Judge:
    """One client's model and test rows."""

    def __init__(self, trained: Trained, client: int, x: Array, y: Array) -> None:
        self.trained, self.client, self.x, self.task = trained, client, np.asarray(x), trained.task
        self.y: Tensor = self.task.as_tensor(np.asarray(y), getattr(torch, trained.config.dtype))

    def without(
        self, places: Mapping[str, list[int]], shuffles: int, seed: int
    ) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """How much worse metric and mean loss get without each column."""
        metric, loss = self._figures(self.x[np.newaxis])
        sign = 1 if self.task.higher_is_better else -1
        name = self.trained.known.names[self.client]
        changed: list[list[Array]] = [[], []]
        group = max(1, AT_ONCE // max(1, self.x.size * shuffles))
        columns = list(places)
        for start in range(0, len(columns), group):
            copies = [
                self._shuffled(places[column], numpy_stream(seed, "importance", name, column, time))
                for column in columns[start : start + group]
                for time in range(shuffles)
            ]
            metrics, losses = self._figures(np.stack(copies))
            changed[0].append((sign * (metric - metrics)).reshape(-1, shuffles).mean(1))
            changed[1].append((losses - loss).reshape(-1, shuffles).mean(1))
        # Rows that are alike in a column are the same in any order; products over a copy may differ in a last digit.
        alike = np.array([bool((self.x[:, inputs] == self.x[:1, inputs]).all()) for inputs in places.values()])
        whole = (np.where(alike, 0.0, np.concatenate(parts)).tolist() for parts in changed)
        importance, rise = (tuple(value if math.isfinite(value) else None for value in values) for values in whole)
        return importance, rise

    def _shuffled(self, inputs: list[int], rng: np.random.Generator) -> Array:
        """The rows with one column's inputs from other rows."""
        copy = self.x.copy()
        copy[:, inputs] = self.x[rng.permutation(len(self.x))][:, inputs]
        return copy

    def _figures(self, x: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The headline metric and the mean loss over each copy of the rows, [copies]."""
        copies = len(x)
        output = outputs_of(self.trained, x.reshape(-1, *x.shape[2:]), self.client)
        y = self.y.repeat(copies, *[1] * (self.y.ndim - 1))
        loss = _by_copy(self.task.loss(output, y), copies)
        scores = {name: _by_copy(value, copies) for name, value in self.task.scores(output, y).items()}
        return np.broadcast_to(_headline(self.task, scores), (copies,)), loss


def _by_copy(values: Tensor, copies: int) -> npt.NDArray[np.float64]:
    """Means over the rows of each copy."""
    means: npt.NDArray[np.float64] = values.double().reshape(copies, -1, *values.shape[1:]).mean(1).numpy()
    return means


def _headline(task: Task, means: Mapping[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return task.metrics(means)[task.metric]
