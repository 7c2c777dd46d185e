"""A run: what it measured, and the models it trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from torch import nn

from commonground.algorithms import Algorithm, Tensors
from commonground.config import RunConfig
from commonground.counted import counted
from commonground.data import FederatedDataset
from commonground.engine.client_rows import ClientRows
from commonground.engine.importance import Importance, column_importance
from commonground.engine.predictions import predictions_of, representation_of
from commonground.engine.read_trained import read_trained
from commonground.engine.rows import Rows
from commonground.engine.state.folder import IMPORTANCE, RunFolder
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, RunError
from commonground.existing import as_folder, check_run
from commonground.notebook import html_table, report_link
from commonground.privacy import is_private_part
from commonground.tasks import Headline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "as_run", "figures_of", "load_run"]


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run, right after training or from its folder (:func:`load_run`).

    A run that was stopped (``on_round``) has results of its last round, and ``stopped_after`` in its summary. One read
    from a folder while it is not finished has models, but no summary and no clients yet.

    Attributes:
        config: every setting, automatic ones resolved.
        summary: what ``summary.json`` holds.
        history: one dict per round, as in ``rounds.jsonl``.
        clients: one dict per client, as in ``clients.csv``, made when it is asked for;
            ``clients.numbers(column)`` is an array.
        folder: where the files are, if anywhere.
    """

    config: RunConfig
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    clients: Rows
    folder: Path | None
    _read: Callable[[], Trained] = field()

    # -- models -------------------------------------------------------------------------------------------------

    @cached_property
    def trained(self) -> Trained:
        """The network, its parameter groups, the server's tensors and where those of the clients are."""
        return self._read()

    @property
    def shared(self) -> Tensors:
        """The server's final tensors, by name."""
        return {name: value for name, value in self.trained.shared.items() if not is_private_part(name)}

    def model(self, client: str | int | None = None) -> nn.Module:
        """A client's own model, or the global one, ready to use: a copy, in evaluation mode.

        It is the model whose accuracy the run reports: after the last round, before further local training. With
        ``finetune_epochs`` it is the client's fine-tuned one. Methods that train once more before each test and forget
        what they learn there (PerFedAvg, FedBABU, FedALA) give the shared model *before* that training, which needs the
        client's data.

        It takes what the network takes: images as [n, channels, height, width], numbers already scaled
        (:meth:`predict` takes samples as they are stored).

        Args:
            client: its name, or its number (of two clients who might be meant neither is taken); None for the global
                model.

        Raises:
            ConfigError: there is no such client, or the method has no global model.
        """
        return self.trained.model(None if client is None else self.trained.known.number(client))

    def predict(
        self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike], client: str | int | None = None
    ) -> npt.NDArray[np.float64]:
        """What a client's own model (see :meth:`model`) says of raw samples.

        Args:
            x: [n, …] samples stored as the training data were: images as height × width × channels, unscaled; where the
                data have several inputs, a mapping from their names to arrays; of a table, a DataFrame with its
                columns.
            client: its name, or its number (of two clients who might be meant neither is taken); None for the global
                model.

        Returns:
            What the run's task predicts: class probabilities [n, classes], numbers [n, targets], probabilities of
            labels [n, labels].

        Raises:
            ConfigError: as :meth:`model`.
            DataError: the samples are not of the training samples' form.
            ModelError: a language model answers with texts (``commonground predict``).
        """
        return predictions_of(self.trained, x, None if client is None else self.trained.known.number(client))

    def represent(
        self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike], client: str | int | None = None
    ) -> npt.NDArray[np.floating[Any]]:
        """The representation of raw samples: what the body of a client's own model (see :meth:`model`) gives to its
        head.

        Args:
            x, client: as of :meth:`predict`. In a method whose body is shared, all clients' representations are the
                same, and None asks for them where there is a global model.

        Returns:
            [n, k] as the head is given it, in the run's number type: of the papers' linear problem Bᵀx, of a CNN the
            features before its last layer.

        Raises:
            ConfigError, DataError: as :meth:`predict`.
            ModelError: the model is not one of a body and a head.
        """
        return representation_of(self.trained, x, None if client is None else self.trained.known.number(client))

    # -- figures ------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> str:
        """A sentence about models that are not those of a run's end, for whoever uses them; empty where they are."""
        if self.summary:
            return ""
        return f"{self.trained.where} is not finished: these are its models at the last checkpoint"

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return bool(self.summary) and "stopped_after" not in self.summary

    @property
    def personal(self) -> dict[str, float]:
        """The task's headline metric of each client's own model: mean, std, p10, … over clients after the last round,
        and ``last10``, the mean over the last 10 rounds.
        """
        return dict(self._summary[f"personal_{self._summary['metric']}"])

    @property
    def personal_accuracy(self) -> dict[str, float]:
        """:attr:`personal`, where accuracy is the metric.

        Raises:
            ConfigError: the task has another metric.
        """
        return dict(self._accuracy("personal"))

    @property
    def global_accuracy(self) -> float | None:
        """Accuracy of the single shared model, averaged over clients; None where a method has none.

        Raises:
            ConfigError: the task has another metric.
        """
        value = self._accuracy("global")
        return None if value is None else float(value)

    def _accuracy(self, whose: str) -> Any:
        metric = self._summary["metric"]
        if metric != "accuracy":
            raise ConfigError(
                f"a run for {self._summary['task']} has no accuracy; its metric is {metric} (run.personal, "
                "run.summary['metrics'])"
            )
        return self._summary[f"{whose}_accuracy"]

    @property
    def _summary(self) -> dict[str, Any]:
        if not self.summary:
            raise RunError(f"the run in '{self.folder}' is not finished; continue it with --resume")
        return self.summary

    def to_pandas(self, what: Literal["clients", "rounds"] = "clients") -> pd.DataFrame:
        """A row per client, or per round, as a DataFrame.

        Raises:
            ConfigError: pandas is not installed, or there is no such table.
            RunError: the run is not finished, so that there are no clients' results yet.
        """
        if what not in ("clients", "rounds"):
            raise ConfigError(f"a run's tables are 'clients' and 'rounds', not {what!r}")
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from None
        if what == "rounds":
            return figures_of(pd.DataFrame(self.history))
        assert self._summary  # refuses an unfinished run
        return figures_of(pd.DataFrame(list(self.clients)))

    def importance(self, data: FederatedDataset | None = None) -> pd.DataFrame:
        """Of a run on a table: how much each column matters to the clients' own models (:meth:`model`).

        A column's cells are shuffled among a client's test rows, and the run's metric tells how much worse the model
        gets (:func:`~commonground.engine.importance.column_importance`, which says how clients and rows are sampled).

        Args:
            data: other rows of the same columns and clients (``load_data(…, schema=run.trained.schema)``); by default
                what was found on the run's own test rows when it ended, which is in its folder.

        Returns:
            A row per client and column: ``client``, ``column``, ``importance`` (more is more important; of an accuracy
            the share that is lost), ``loss`` (by how much the mean loss rises), ``rows``, ``shuffles``; first a row per
            column without a client, the mean over clients.

        Raises:
            ConfigError: the run is of no table.
            RunError: it has no folder, or was not finished there, and no data are given.
        """
        if data is not None:
            return column_importance(self.trained, data).to_pandas()
        path = None if self.folder is None else self.folder / IMPORTANCE
        if path is None or not path.is_file():
            if self.trained.schema is None:
                raise ConfigError(f"{self.trained.where} was not trained on a table, so that it knows no columns")
            raise RunError(f"{self.trained.where} has no {IMPORTANCE}; give data: run.importance(data)")
        return Importance.from_json(path.read_text("utf-8"), str(path)).to_pandas()

    def in_files(self, model: nn.Module | None = None, algorithm: Algorithm | None = None) -> Run:
        """The same run without any tensor in memory: they are read from its folder when somebody asks.

        Args:
            model, algorithm: objects that the run was given.
        """
        if self.folder is None:
            return self
        reading = partial(read_trained, RunFolder(self.folder), model=model, algorithm=algorithm, trust_code=True)
        return replace(self, _read=reading)

    def in_memory(self) -> Run:
        """The same run with all tensors in plain mappings: no engine, no files, nothing that pickle cannot take."""
        return replace(self, folder=None, _read=at_hand(self.trained.in_memory()))

    def __getstate__(self) -> dict[str, Any]:
        """With the clients' tensors, unless the run's folder has them: an engine's may be gone when they are read."""
        kept = self.trained if self.trained.in_files else self.trained.in_memory()
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**own, "_read": at_hand(kept)}

    # -- for people ---------------------------------------------------------------------------------------------

    def _facts(self) -> list[tuple[str, str]]:
        config, s = self.config, self.summary
        done = f"{len(self.history)} of {config.rounds}" if not self.finished else f"{config.rounds}"
        facts = [
            ("method", config.algorithm),
            ("data", f"{config.data}, {counted(config.clients or 0, 'client')}"),
            ("model", str(config.model)),
            ("rounds", done),
        ]
        if s:
            metric, headline = s["metric"], self.personal
            worst = headline[Headline.of(s).worst_tenth]
            facts.append((f"personal {metric}", f"{_show(headline['mean'])} (worst tenth {_show(worst)})"))
            if s[f"global_{metric}"] is not None:
                facts.append((f"global {metric}", _show(s[f"global_{metric}"])))
        return [*facts, *([("folder", str(self.folder))] if self.folder is not None else [])]

    def __repr__(self) -> str:
        return f"<Run {'; '.join(f'{name}: {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        return html_table(self._facts()) + report_link(self.folder)


def at_hand(trained: Trained) -> Callable[[], Trained]:
    """What a :class:`Run` reads, where it is there; unlike a lambda it can be pickled."""
    return partial(_itself, trained)


def _itself(trained: Trained) -> Trained:
    return trained


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def figures_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The clients or the rounds of runs, with NaN where a figure is not defined, so that its column is of numbers.

    Args:
        frame: rows as the files have them; it is changed.
    """
    for name in frame.columns.drop(["client", "name", "method"], errors="ignore"):
        # The file of the clients has an empty cell there, that of the rounds null.
        frame[name] = frame[name].map(lambda cell: np.nan if cell in ("", None) else cell).infer_objects()
    return frame


def load_run(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    trust_code: bool = False,
) -> Run:
    """Read a run's folder.

    Args:
        folder: of a run, finished or with a checkpoint.
        model: where the run was given a module of your own: one of the same architecture, whose weights do not matter.
        algorithm: where the run was given an algorithm of your own: the same one.
        trust_code: whether Python files that the run names (``file.py:Class``) may be run; give ``model`` and
            ``algorithm`` to do without.

    Returns:
        The run, with the same models and predictions as right after training.

    Raises:
        RunError: there is no run, it has no checkpoint yet, or a file is damaged.
        ConfigError: its model or method was given as a Python object, or would be made by running a file; or an
            argument is of another kind.
        ModelError: the given model does not fit; the first tensor that differs is named.
    """
    check_run(as_folder(folder, "folder"))
    if model is not None and not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module object, not {model!r}")
    files = RunFolder(Path(folder))
    trained = read_trained(files, model=model, algorithm=algorithm, trust_code=trust_code)
    files.check_results()
    summary = files.summary() or {}
    clients = files.clients() if summary else ClientRows(0, {})
    return Run(trained.config, summary, files.rounds.rows(), clients, files.path, at_hand(trained))


def as_run(run: Run | str | PathLike[str], *, trust_code: bool = False) -> Run:
    """A run, or the one that is read from a folder.

    Args:
        run: or its folder.
        trust_code: see :func:`load_run`.

    Raises:
        CommonGroundError: see :func:`load_run`.
    """
    return run if isinstance(run, Run) else load_run(Path(run), trust_code=trust_code)
