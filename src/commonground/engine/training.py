"""Training one algorithm on one federated data set: from what a user gives to a run."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from commonground.algorithms import Algorithm, check_methods
from commonground.algorithms.base import without_class_variables
from commonground.ambient import as_usual
from commonground.config import RunConfig, with_usual_names
from commonground.data import FederatedDataset
from commonground.engine.backends.factory import EngineOf
from commonground.engine.loop import Loop, OnRound, as_one
from commonground.engine.more_rounds import check_rounds, follows
from commonground.engine.observer import Observer, Several, Silent, completed
from commonground.engine.prepare import check_objects, named, prepare_setup
from commonground.engine.private.secret import forget_lost_run
from commonground.engine.run import Run, at_hand
from commonground.engine.setup import Setup
from commonground.engine.state.folder import RunFolder
from commonground.engine.state.lock import locked
from commonground.engine.tracked import Track, Tracking
from commonground.errors import ConfigError
from commonground.existing import as_folder
from commonground.models import own_copy
from commonground.precision import computing_with
from commonground.tasks import OwnLoss, OwnMetric

__all__ = ["check_resumed", "prepared", "run_training", "train"]


def train(
    algorithm: str | Algorithm = "fedrep",
    data: FederatedDataset | str | os.PathLike[str] = "digits",
    *,
    model: str | nn.Module | None = None,
    loss: str | OwnLoss | None = None,
    metrics: str | Mapping[str, OwnMetric] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    track: Track = None,
    data_dir: str | None = None,
    allow_other_numerics: bool = False,
    **settings: Any,
) -> Run:
    """Train one algorithm on one federated data set.

    Args:
        algorithm: a name (``commonground list algorithms``) or an :class:`~commonground.algorithms.Algorithm`.
        data: a federated data set, or a name or path to load with the ``clients``, ``classes_per_client``,
            ``partition`` and ``seed`` of the settings.
        model: a name, or any ``nn.Module``, of which a copy is trained from its present weights (give ``head=`` and
            ``body=`` name patterns unless the head is its last ``nn.Linear``); by default what suits the data.
        loss: in place of the task's in training (tests keep the task's figures): a function of outputs [rows, …] and
            targets [rows, …] that gives one loss for each row [rows], each of its own row alone, or its name
            ``file.py:function``. Numbers of a table or an estimator are standardised for both, as the model learns
            them.
        metrics: metrics of your own by name, beside the task's in a run's last test: functions of targets [n, …] and
            predictions [n, columns] (class probabilities, numbers; as scikit-learn has the order) that give one number,
            or one for each row, which is then averaged over all rows as well. Or ``basic`` or ``full``, the setting.
        out: folder for the run's files; by default none are written.
        resume: continue the run in ``out``. With more ``rounds`` a finished one goes on as well and ends as a run of so
            many rounds would have, where method and learning rate do not depend on their number.
        observer: hears of every round; an object with some of the methods of :class:`~commonground.engine.Observer`.
        on_round: called after each round with its line of ``rounds.jsonl`` as a dict. If it returns False, the run
            stops there and its results so far are returned, with ``stopped_after`` in the summary; in ``out`` it can be
            continued with ``resume=True``. If it raises, the run ends with the exception and keeps its checkpoint.
            Several functions are called in their order; one False is enough.
        track: where the run is tracked beside its own files: ``tensorboard``, ``mlflow``, ``wandb``, a
            :class:`~commonground.tracking.Tracker`, or several of them. One that fails is a warning, not the run's end.
        data_dir: folder of the data files (default: ``COMMONGROUND_DATA``, else a cache folder).
        allow_other_numerics: with ``resume``, go on with other threads, precision or device than the run has computed
            with; its numbers are then not those of an unbroken run, and its summary says so (``numerics_changed``).
        **settings: any field of :class:`~commonground.config.RunConfig`.

    Returns:
        The run, finished or stopped.

    Raises:
        CommonGroundError: anything wrong with settings, data, model or files, in one sentence.
    """
    if resume and out is None:
        raise ConfigError("resume=True needs out=…, the folder of the run to continue")
    folder = as_folder(out) if out is not None else None
    return run_training(
        prepared(algorithm, data, model=model, loss=loss, metrics=metrics, data_dir=data_dir, **settings),
        out=folder,
        resume=resume,
        observer=observer,
        on_round=on_round,
        track=track,
        allow_other_numerics=allow_other_numerics,
    )


def prepared(
    algorithm: str | Algorithm,
    data: FederatedDataset | str | os.PathLike[str],
    *,
    model: str | nn.Module | None = None,
    loss: str | OwnLoss | None = None,
    metrics: str | Mapping[str, OwnMetric] | None = None,
    data_dir: str | None = None,
    **settings: Any,
) -> Setup:
    """What a run needs, from what :func:`train` is given; see there."""
    if not isinstance(algorithm, str | Algorithm):
        raise ConfigError(f"algorithm must be a name or an Algorithm object, such as FedRep(), not {algorithm!r}")
    if isinstance(algorithm, Algorithm):
        check_methods(type(algorithm), ("name", "title"))
    data, settings = named(data), with_usual_names(settings)
    check_objects(data, model, settings)
    values = dict(settings)
    if isinstance(algorithm, Algorithm) and values.get("options"):
        raise ConfigError(
            f"options={values['options']!r} are for a method by name; give them to the object: "
            f"{type(algorithm).__name__}(…)"
        )
    values["algorithm"] = algorithm if isinstance(algorithm, str) else algorithm.name
    if isinstance(algorithm, Algorithm):
        values["options"] = _hyperparameters(algorithm)
    values["data"] = data if isinstance(data, str) else data.name
    if isinstance(model, str):
        values["model"] = model
    elif model is not None:
        values["model"] = type(model).__name__
    if loss is not None:
        if not isinstance(loss, str) and not callable(loss):
            raise ConfigError(f"loss must be a function of outputs and targets, or file.py:function, not {loss!r}")
        values["loss"] = loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__name__)
    if isinstance(metrics, Mapping):
        values["metric"] = ",".join(metrics) or None
    elif metrics is not None:
        values["metrics"] = metrics
    return prepare_setup(
        RunConfig.make(values),
        None if isinstance(data, str) else data,
        own_copy(model) if isinstance(model, nn.Module) else None,
        None if isinstance(algorithm, str) else algorithm,
        loss=None if isinstance(loss, str) else loss,
        metrics=dict(metrics) if isinstance(metrics, Mapping) else None,
        data_dir=data_dir,
    )


def _hyperparameters(algorithm: Algorithm) -> dict[str, Any]:
    """What an object was given, by name; not what it writes over variables of every class, such as ``shared``."""
    mine = without_class_variables(vars(algorithm))
    return {name: value for name, value in mine.items() if value is not None}


@as_usual()
def run_training(
    setup: Setup,
    *,
    out: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    track: Track | Tracking = None,
    allow_other_numerics: bool = False,
    engine_of: EngineOf | None = None,
    held: bool = False,
) -> Run:
    """Carry out a prepared run; see :func:`train`.

    Args:
        engine_of: makes the engine; by default one of this machine's, by its name.
        held: whether the caller has ``out`` locked (:func:`~commonground.engine.state.lock.locked`).
        setup, out, resume, observer, on_round, allow_other_numerics: see there.
        track: see there; a :class:`Tracking` stays open, for what its caller still has to add.
    """
    on_round = as_one(on_round)
    if not isinstance(track, Tracking):
        with Tracking(track, out).told_by(observer) as tracking:
            return run_training(
                setup,
                out=out,
                resume=resume,
                observer=observer,
                on_round=on_round,
                track=tracking,
                allow_other_numerics=allow_other_numerics,
                engine_of=engine_of,
                held=held,
            )
    if out is None and setup.config.early_stopping is not None:
        return _in_temporary_folder(setup, observer, on_round, track)
    hearing = Several(completed(observer, Silent()), track)
    folder = RunFolder(out) if out is not None else None
    alone = contextlib.nullcontext() if folder is None or held else locked(folder.path)
    with alone, computing_with(setup.config.precision, setup.config.threads):
        if folder is not None:
            if resume and folder.exists:
                check_resumed(folder, setup, allow_other_numerics)
            else:
                folder.check_free()
                forget_lost_run(folder.path)
                if resume:
                    hearing.note(f"there is no run in '{folder.path}' yet: it begins now")
            folder.remove_parts()
        run = Loop(setup, folder, hearing, on_round, allow_other_numerics, engine_of).run()
    track.result(run)
    return run


def check_resumed(folder: RunFolder, setup: Setup, allow_other_numerics: bool = False) -> None:
    """Refuse to continue the run in a folder with settings that it was not begun with.

    Raises:
        RunError: names the first that differs, or says why it cannot go on to so many rounds.
    """
    folder.check_same(setup.config, free=follows(setup.config), other_numerics=allow_other_numerics)
    check_rounds(folder, setup.config, setup.algorithm)


def _in_temporary_folder(setup: Setup, observer: Observer | None, on_round: OnRound | None, track: Tracking) -> Run:
    """A run without files that goes back to its best round, whose checkpoint lies where nobody looks."""
    folder = Path(tempfile.mkdtemp(prefix="commonground-run-"))
    try:
        run = run_training(setup, out=folder, observer=observer, on_round=on_round, track=track)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    trained = run.trained
    weakref.finalize(trained, shutil.rmtree, folder, True)  # clients' tensors are read from it as long as the run lives
    return replace(run, folder=None, _read=at_hand(trained))
