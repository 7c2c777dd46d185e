"""Several methods on the same splits, initial weights and client samples, over several seeds, and what they show."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from commonground.algorithms import Algorithm
from commonground.compare.comparing import Comparing
from commonground.compare.observer import ComparisonObserver, SilentComparison
from commonground.compare.results import summarize
from commonground.counted import counted
from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.engine.loop import OnRound
from commonground.engine.observer import completed
from commonground.engine.state.files import write_atomically
from commonground.engine.tracked import Track
from commonground.errors import ConfigError, RunError
from commonground.existing import as_folder
from commonground.notebook import html_table, report_link

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        result: what ``comparison.json`` holds.
        runs: the runs of every method by its label (``fedavg+ft``), in the order of the seeds, but of those that
            diverged; empty if read from a folder.
        folder: where the files are, if anywhere.
    """

    result: dict[str, Any]
    runs: dict[str, list[Run]] = field(default_factory=dict, repr=False)
    folder: Path | None = None

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """A finished comparison from its folder.

        Raises:
            RunError: there is none, or it is not readable.
        """
        path = Path(folder) / "comparison.json"
        try:
            return cls(json.loads(path.read_text("utf-8")), {}, Path(folder))
        except (OSError, ValueError) as error:
            raise RunError(f"'{path}' is not a readable comparison: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """What ``comparison.json`` holds, as a copy."""
        return copy.deepcopy(self.result)

    def table(self) -> Table:
        """The headline metric with differences to the reference, to print with rich; see :meth:`footnotes`."""
        from commonground.compare.tables import headline_table

        return headline_table(self.result).to_rich(framed=False)

    def cost_table(self) -> Table:
        """The last ten rounds, the global model, bytes and seconds, to print with rich."""
        from commonground.compare.tables import cost_table

        return cost_table(self.result).to_rich(framed=False)

    def metric_table(self) -> Table | None:
        """The task's other metrics, to print with rich; None where it has none."""
        from commonground.compare.tables import metric_table

        table = metric_table(self.result)
        return None if table is None else table.to_rich(framed=False)

    def target_table(self) -> Table | None:
        """What the target accuracy costs, to print with rich; None without a target."""
        from commonground.compare.tables import target_table

        table = target_table(self.result)
        return None if table is None else table.to_rich(framed=False)

    def tuning_table(self) -> Table | None:
        """Every candidate of a grid with its score on validation samples; None without a grid."""
        from commonground.compare.tables import tuning_table

        table = tuning_table(self.result)
        return None if table is None else table.to_rich(framed=False)

    def footnotes(self) -> list[str]:
        """What each number is, in sentences."""
        return list(self.result["notes"])

    def to_pandas(self, what: Literal["methods", "runs", "clients", "rounds"] = "methods") -> pd.DataFrame:
        """A row per method (as in ``table.csv``), per run, per client of each run, or per round of each run.

        Raises:
            ConfigError: pandas is not installed, or there is no such table.
            RunError: a run's folder is gone.
        """
        from commonground.compare.frames import frame

        return frame(what, self.result, self.runs, self.folder)

    def __repr__(self) -> str:
        from commonground.compare.tables import headline_table

        table = headline_table(self.result)
        first, second = table.names[:2]
        told = ", ".join(f"{row[first]} {row[second]}" for row in table.rows)
        return f"<Comparison on {self.result['data']}, {counted(len(self.result['seeds']), 'seed')}: {told}>"

    def _repr_html_(self) -> str:
        from commonground.compare.tables import headline_table

        table = headline_table(self.result)
        names = table.names
        rows = [[str(row[name]) for name in names] for row in table.rows]
        return html_table(rows, header=names, title=table.title, bold=table.bold) + report_link(self.folder)


def compare(
    methods: Sequence[str | Algorithm],
    data: FederatedDataset | str | os.PathLike[str] = "digits",
    seeds: int = 3,
    out: str | Path | None = None,
    reference: str | None = None,
    target: float | str | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    local_only: bool = True,
    *,
    to_accuracy: float | None = None,
    to_metric: float | None = None,
    model: str | nn.Module | None = None,
    validation: float = 0.2,
    observer: ComparisonObserver | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    track: Track = None,
    data_dir: str | None = None,
    command: str | None = None,
    allow_other_numerics: bool = False,
    **settings: Any,
) -> Comparison:
    """Train several methods on the same data splits, initial weights and client samples, and test their differences.

    All draws are keyed by the seed, so that equal seeds give every method the same split, start, participants and
    batch orders. A folder that holds some of the runs already is continued. A method whose training diverges with a
    seed has no figures; ``result["diverged"]`` and the footnotes tell of it.

    Args:
        methods: each ``NAME[+ft][:KEY=VALUE,…]`` (``fedavg``, ``fedavg+ft``, ``fedprox:mu=0.1``) or an
            :class:`~commonground.algorithms.Algorithm`.
        data: a federated data set (the same for all seeds), or a name, dealt to clients anew for every seed.
        seeds: how many, from the setting ``seed`` (0) upwards.
        out: folder for the files; by default none are written.
        reference: the method the others are compared with, as in ``methods``; by default the first.
        target: a table's column to predict, as in the settings; or, as a number, ``to_metric``.
        grid: values to choose from, by setting, for every method that has it and does not set it itself. The choice
            is made for every method and seed on a part of the training data (:func:`validation_split`).
        local_only: add Local Only, the yardstick, unless it is there.
        to_accuracy: between 0 and 1; rounds, bytes and seconds until it is reached are reported.
        to_metric: the same of the metric of any task: of an error, what it is to fall to.
        model: a name, or a module whose present weights every run starts from; by default what suits the data.
        validation: share of the training samples that judges a grid's candidates.
        observer: hears of every run (:class:`~commonground.compare.observer.ComparisonObserver`).
        on_round: called after each round of each run that counts, with its line of ``rounds.jsonl`` and ``method`` and
            ``seed`` in it. What it returns does not matter; if it raises, the comparison ends and can be continued.
        track: where each run that counts is tracked, as of :func:`~commonground.engine.train`.
        data_dir: folder of the data files.
        command: how to repeat it, for the record.
        allow_other_numerics: continue runs that were begun with other threads, precision or device, as of
            :func:`~commonground.engine.train`.
        **settings: any other field of :class:`~commonground.config.RunConfig`, common to all methods;
            hyperparameters in ``options`` go to the methods that have them.

    Returns:
        The finished comparison.

    Raises:
        CommonGroundError: anything wrong with methods, settings, data or files, in one sentence.
    """
    if isinstance(target, str):
        settings["target"] = target
    elif target is not None:
        if to_metric is not None:
            raise ConfigError("give one of target, as a number, and to_metric: there is one target")
        to_metric = target
    folder = as_folder(out) if out is not None else None
    work = Comparing(
        methods, data, seeds, folder, reference, to_accuracy, to_metric, grid or {}, local_only, model,
        validation, completed(observer, SilentComparison()), data_dir, settings, on_round, track, allow_other_numerics,
    )  # fmt: skip
    runs = work.run()
    result = summarize(
        work.methods,
        runs,
        reference=work.reference,
        seeds=list(work.seeds),
        target=work.target,
        same_clients=work.same_clients,
        candidates=work.candidates,
        tuning=work.tuning,
        diverged=list(work.diverged.values()),
        notes=work.notes,
        folder=work.out,
    )
    result["command"] = command or _call(work, seeds, grid, settings)
    comparison = Comparison(result, runs, work.out)
    if work.out is not None:
        _write(comparison, work.out)
    return comparison


def _call(work: Comparing, seeds: int, grid: Mapping[str, Sequence[Any]] | None, settings: Mapping[str, Any]) -> str:
    """The call in Python again; data, models and methods that are objects stand there by their names."""
    given = {"seeds": seeds, **settings, **({} if grid is None else {"grid": dict(grid)}), "reference": work.reference}
    if work.module is None and "model" in work.common:
        given["model"] = work.common["model"]
    targets = {"to_accuracy": work.to_accuracy, "to_metric": work.to_metric}
    given |= {name: value for name, value in targets.items() if value is not None}
    given |= {"validation": work.validation} if grid else {}
    given |= {} if "local" in work.methods else {"local_only": False}
    objects = [] if work.module is None else ["model=model"]
    said = ", ".join([f"{name}={value!r}" for name, value in given.items()] + objects)
    data = repr(work.data) if isinstance(work.data, str) else "data"
    return f"cg.compare({list(work.methods)!r}, {data}, {said})"


def _write(comparison: Comparison, folder: Path) -> None:
    """``comparison.json``, ``table.csv`` and ``report.html``."""
    from commonground.compare.tables import method_table
    from commonground.report import write_comparison_report

    try:
        write_atomically(folder / "table.csv", method_table(comparison.result).to_csv())
        text = json.dumps(comparison.result, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / "comparison.json", text + "\n")
    except OSError as error:
        raise RunError(f"the folder '{folder}' cannot be written: {error.strerror}") from None
    write_comparison_report(folder)
