"""Training the cells that are missing, in a given order and within a given time."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from commonground.access import reason
from commonground.compare.observer import ComparisonObserver, Step
from commonground.compare.progress import ComparisonProgress
from commonground.config import RunConfig
from commonground.engine import Run, train
from commonground.engine.state.lock import locked_file
from commonground.errors import BusyError, ConfigError, DataError, RunError, UpdateError
from commonground.papers.provenance import commit, version
from commonground.papers.request import Request
from commonground.papers.tables.cells import CellKey, CellStore, Curves, Measurement
from commonground.papers.tables.table import CellRun, PaperColumn, PaperTable, Row
from commonground.papers.tables.variants import Variant
from commonground.processor import processor
from commonground.report.format import slug
from commonground.statistics import Values

__all__ = ["Filled", "Going", "Work", "check_settings", "fill", "missing_of", "remarks_on", "train_missing", "work_for"]

Going = Callable[[], bool]
"""Says whether there is time left."""


@dataclass(frozen=True)
class Work:
    """One run, and the cells that are read from it.

    Attributes:
        arms: of the cells; equal but for what is read.
        seed: of the run.
    """

    arms: tuple[CellRun, ...]
    seed: int

    @property
    def arm(self) -> CellRun:
        """What is trained."""
        return self.arms[0]

    def cells(self) -> list[CellKey]:
        """The cells."""
        return [(a.column.label, a.row.name, a.variant.name, self.seed) for a in self.arms]

    def place(self, folder: Path, precision: str = "fp32") -> Path:
        """Where the run is kept until it is finished; one of another precision is another run."""
        computed = "" if precision == "fp32" else f"in-{precision}"
        name = "-".join(filter(None, (slug(self.arm.row.name) or self.arm.row.key, self.arm.variant.name, computed)))
        return folder / "runs" / slug(self.arm.column.label) / name.replace("*", "-star") / f"seed-{self.seed}"


def work_for(
    table: PaperTable,
    columns: Sequence[PaperColumn],
    rows: Sequence[Row],
    variants: Sequence[Variant],
    seeds: Iterable[int],
    overrides: dict[str, Any],
    *,
    measured: bool = False,
) -> list[Work]:
    """The runs behind some cells: seed by seed, so that one seed of everything comes before a second of anything.

    A row that shares its runs with another one that is not asked for is measured with it.

    Args:
        table: the printed table.
        columns, rows, variants, seeds: of the cells.
        overrides: settings of all runs that the user changes.
        measured: whether the cells are there; earlier versions let a setting undo a variant's change.

    Raises:
        ConfigError: a setting of the user's is what a variant changes.
    """
    found: list[Work] = []
    for seed in seeds:
        for column in columns:
            for one in variants:
                runs: dict[str, list[CellRun]] = {}
                wanted = set()
                for row in table.rows:
                    settings = table.arm(column, row, **overrides).settings
                    # The global model's accuracy is that before fine-tuning.
                    read = settings if row.reads == "personal" else {**settings, "finetune_epochs": 0}
                    if one.fits(row.algorithm, column.data, read):
                        if row in rows and not measured:
                            _check_kept(one, row, {**settings, **overrides}, overrides)
                        arm = table.arm(column, row, one, **overrides)
                        runs.setdefault(arm.same_run, []).append(arm)
                        wanted |= {arm.same_run} if row in rows else set()
                found += [Work(tuple(arms), seed) for key, arms in runs.items() if key in wanted]
    return found


def _check_kept(one: Variant, row: Row, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Refuse a setting that would undo what a variant changes: its cells would be named by a change they do not have.

    Raises:
        ConfigError: there is one.
    """
    for key in one.changes(row.algorithm, settings):
        if key in overrides:
            raise ConfigError(
                f"--set {key}={overrides[key]} would undo the variant {one.name} of {row.name}, which changes {key} "
                "itself; leave one of them out"
            )


@dataclass(frozen=True)
class Filled:
    """What has come of filling a table.

    Attributes:
        notes: remarks, in sentences.
        left: runs that another process had.
        done: whether there was time for all.
    """

    notes: list[str]
    left: list[Work]
    done: bool


def missing_of(work: Sequence[Work], store: CellStore) -> list[Work]:
    """The runs of which cells are missing."""
    return [one for one in work if any(key not in store for key in one.cells())]


def fill(
    table: PaperTable, work: Sequence[Work], store: CellStore, request: Request, going: Going | None = None
) -> tuple[list[str], bool]:
    """Train what is missing; a run that was interrupted goes on. Several processes may fill one folder together.

    Args:
        table: the printed table.
        work: in the order in which it is to be done; what is there already is left out.
        store: where cells are kept.
        request: where to, how loudly, on what device.
        going: whether there is time left, asked before each run and after each round; a run that is stopped is kept for
            the next time.

    Returns:
        Remarks, in sentences, and whether all is done.
    """
    filled = train_missing(table, work, store, request, going, ComparisonProgress(request.quiet))
    return filled.notes + (remarks_on(work, filled.left, store, request) if filled.done else []), filled.done


def train_missing(
    table: PaperTable,
    work: Sequence[Work],
    store: CellStore,
    request: Request,
    going: Going | None,
    observer: ComparisonObserver,
) -> Filled:
    """Train what is missing and no other process has.

    Args:
        table, work, store, request, going: see :func:`fill`.
        observer: hears of the runs.
    """
    missing = missing_of(work, store)
    steps = [
        Step(n, len(missing), one.arm.title, one.seed, int(one.arm.settings["rounds"]))
        for n, one in enumerate(missing, 1)
    ]
    observer.plan(steps)
    notes: list[str] = []
    without: set[str] = set()
    others: list[Work] = []
    for one, step in zip(missing, steps, strict=True):
        if one.arm.column.label in without:
            continue
        if going is not None and not going():
            return Filled(notes, others, False)
        with ExitStack() as stack:
            try:
                stack.enter_context(_alone(one, store, request.precision))
            except BusyError:
                others.append(one)
                continue
            store.read()
            if all(key in store for key in one.cells()):
                continue  # another process has measured it meanwhile
            try:
                said = _measure(table, one, store, request, observer, step, going)
                if said is None:
                    return Filled(notes, others, False)
                notes += said
            except DataError as error:
                without.add(one.arm.column.label)
                notes.append(f"{one.arm.column.label} was left out: {error}")
    return Filled(notes, others, True)


def remarks_on(work: Sequence[Work], others: Sequence[Work], store: CellStore, request: Request) -> list[str]:
    """What there is to say of a folder when all has been done.

    Args:
        work: what was asked for.
        others: of it, what other processes had.
        store, request: see :func:`fill`.
    """
    store.read()
    return _in_other_precision(work, store, request.precision) + [
        f"{one.arm.title}, seed {one.seed}, was being measured by another process." for one in missing_of(others, store)
    ]


def _in_other_precision(work: Sequence[Work], store: CellStore, asked: str) -> list[str]:
    """A sentence about cells that were there already, computed in another precision than is asked for."""
    found: dict[str, list[str]] = {}
    for one in work:
        for key in one.cells():
            cell, wanted = store.get(key), one.arm.settings.get("precision", asked)
            if cell is not None and cell.precision != wanted:
                found.setdefault(cell.precision, []).append(f"{cell.method} (seed {cell.seed})")
    return [
        f"Computed in {precision}, not in {asked}, as measured before and not again: {', '.join(names)}; another --out "
        "has room for both, and --variants bf16 for what bf16 changes."
        for precision, names in found.items()
    ]


@contextmanager
def _alone(one: Work, store: CellStore, precision: str) -> Iterator[None]:
    """Keep a run from other processes; its folder is there meanwhile, and afterwards if something is in it.

    Raises:
        BusyError: another process has it.
        RunError: the folder cannot be written.
    """
    place = one.place(store.folder, precision)
    name = "-".join(place.relative_to(store.folder).parts)
    with locked_file(store.folder / f".{name}.lock"):
        try:
            with store.alone():  # who removes what is empty does so alone as well
                place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"the folder '{place}' cannot be written: {reason(error, place)}") from None
        try:
            yield
        finally:
            with store.alone(), suppress(OSError):  # something is in it
                for folder in (place, *place.parents[:3]):  # the method's, the column's and all runs'
                    folder.rmdir()


def _measure(
    table: PaperTable,
    one: Work,
    store: CellStore,
    request: Request,
    observer: ComparisonObserver,
    step: Step,
    going: Going | None,
) -> list[str] | None:
    """Train one run to its end and keep those of its cells that are missing.

    Returns:
        Remarks about those that are not, in sentences; None if time ran out before.
    """
    folder, began = one.place(store.folder, request.precision), time.monotonic()
    diverged, run = "", None
    if table.needs is not None:
        table.needs(one.seed, request)  # what is not there is told before hours of training
    try:
        run = train(
            one.arm.row.algorithm,
            one.arm.column.data,
            out=folder,
            resume=True,
            observer=observer.step(step),
            on_round=None if going is None else lambda row: going(),
            data_dir=request.data_dir,
            **_settings(one, request),
        )
    except UpdateError as error:
        diverged = str(error)
    if run is not None and not run.finished:
        return None
    served = None if run is None or table.served is None else table.served(run, one.seed, request)
    store.read()  # a process that computes in another precision does not wait for this one
    notes = []
    for arm, key in zip(one.arms, one.cells(), strict=True):
        kept = store.get(key)
        if kept is not None:
            notes += _other_weights(kept, arm, run, request)
            continue
        found = _Found() if run is None else _of_new_clients(served) if served else _of_training(run, arm)
        minutes = (time.monotonic() - began) / 60 if run is None else _minutes(run)
        store.add(_cell(table, arm, one.seed, run, found, diverged, minutes, request), found.clients, found.curves)
    for inside in folder.iterdir():  # the folder itself goes with the lock
        shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
    return notes


def _settings(one: Work, request: Request) -> dict[str, Any]:
    return {
        "device": str(request.device),
        "precision": request.precision,
        **({} if request.workers is None else {"workers": request.workers}),
        **one.arm.settings,
        "options": dict(one.arm.options),
        "seed": one.seed,
    }


def check_settings(work: Sequence[Work], request: Request) -> None:
    """Refuse settings that no run can have.

    Raises:
        ConfigError: a setting is unknown, or its value not allowed.
    """
    for one in work:
        RunConfig.make({**_settings(one, request), "algorithm": one.arm.row.algorithm, "data": one.arm.column.data})


def _other_weights(kept: Measurement, arm: CellRun, run: Run | None, request: Request) -> list[str]:
    """A sentence about a cell that stays although its run, trained once more for others, ended otherwise."""
    now = "" if run is None else str(run.summary["weights_sha256"])
    if kept.precision != arm.settings.get("precision", request.precision) or kept.weights_sha256 == now:
        return []
    return [
        f"{arm.title}, seed {kept.seed}, stays as it was; its run, trained once more for other cells, ended with other "
        "weights, so that these cells are of two runs."
    ]


def _minutes(run: Run) -> float:
    return float(sum(row["seconds"] for row in run.history)) / 60


@dataclass(frozen=True)
class _Found:
    """A cell's accuracies: its figures by their names in :class:`Measurement`, every client's, and the curves."""

    figures: Mapping[str, float | None] = field(default_factory=dict)
    clients: Sequence[float] = ()
    curves: Curves = field(default_factory=dict)


def _of_training(run: Run, arm: CellRun) -> _Found:
    """Of the clients that the run has trained."""
    summary = run.summary
    figures = {
        "personal_last10": summary["personal_accuracy"]["last10"],
        "personal_final": summary["personal_accuracy"]["mean"],
        "global_last10": summary["global_accuracy_last10"],
        "global_final": summary["global_accuracy"],
    }
    # Of models that only participants have, no round has every client's.
    each = [] if arm.row.reads == "trained" else [float(one[f"{arm.row.reads}_accuracy"]) for one in run.clients]
    return _Found(figures, each, _curves(run, arm))


def _of_new_clients(served: Sequence[Values]) -> _Found:
    """Of clients that come after training, by the epochs of their tuning."""
    means = [float(each.mean()) for each in served]
    last = {"personal_last10": means[-1], "personal_final": means[-1]}
    return _Found(last, served[-1].tolist(), {epoch: {"accuracy": mean} for epoch, mean in enumerate(means, 1)})


def _cell(
    table: PaperTable,
    arm: CellRun,
    seed: int,
    run: Run | None,
    found: _Found,
    diverged: str,
    minutes: float,
    request: Request,
) -> Measurement:
    """The measurement that a finished run gives a row."""
    names = ("personal_last10", "personal_final", "global_last10", "global_final")
    tested = [at["accuracy"] for at in found.curves.values() if "accuracy" in at]
    return Measurement(
        column=arm.column.label,
        method=arm.row.name,
        variant=arm.variant.name,
        seed=seed,
        scale=request.scale,
        **{name: found.figures.get(name) for name in names},
        best=max(tested, default=None),
        diverged=diverged,
        rounds=int(arm.settings["rounds"]),
        minutes=round(minutes, 2),
        device=str(request.device) if run is None else str(run.summary["device"]),
        precision=str(arm.settings.get("precision", request.precision)),
        threads=int(arm.settings.get("threads", 1)),
        processor=processor(),
        engine="" if run is None else str(run.summary["engine"]),
        commit=commit(),
        version=version(),
        torch=torch.__version__,
        weights_sha256="" if run is None else str(run.summary["weights_sha256"]),
        command=_command(table, arm, seed, request),
    )


def _command(table: PaperTable, arm: CellRun, seed: int, request: Request) -> str:
    """What measures this cell alone."""
    parts = ["commonground", "reproduce", table.name, "--scale", request.scale, "--columns", arm.column.label]
    parts += ["--methods", arm.row.key, "--seed", str(seed), "--seeds", "1"]
    parts += ["--variants", arm.variant.name] if arm.variant.name else []
    parts += [part for key, value in request.overrides.items() for part in ("--set", f"{key}={value}")]
    parts += [] if request.device.type == "cpu" else ["--device", str(request.device)]
    parts += [] if request.precision == "fp32" else ["--precision", request.precision]
    return shlex.join([*parts, "--out", "OUT"])


def _curves(run: Run, arm: CellRun) -> Curves:
    """What was tested, by round. Fine-tuned models are tested once, after the last round."""
    reads = "after_local" if arm.row.reads == "trained" else arm.row.reads
    names = {
        "accuracy": f"{reads}_accuracy",
        "before_local": "before_local_accuracy",
        "after_local": "after_local_accuracy",
        "global_nc2": "global_nc2",
        "local_nc2": "local_nc2",
    }
    tuned = arm.row.reads == "personal" and arm.settings.get("finetune_epochs")
    found: Curves = {}
    for row in run.history:
        figures = {name: row[key] for name, key in names.items() if row.get(key) is not None}
        if tuned:
            figures.pop("accuracy", None)
        if figures:
            found[int(row["round"])] = figures
    if tuned:
        found.setdefault(len(run.history), {})["accuracy"] = float(run.summary["personal_accuracy"]["mean"])
    return found
