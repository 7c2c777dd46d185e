"""What both estimators share: parameters, fitting and whose model answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state, check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from commonground.algorithms import Algorithm
from commonground.console import ConsoleProgress
from commonground.data.arrays import AS_STORED
from commonground.engine import Run, train
from commonground.errors import ConfigError, DataError, warn
from commonground.sklearn.fitted import answers
from commonground.sklearn.rows import InputError, client_names, dealt, standardised, without_clients
from commonground.tasks import Task

__all__ = ["FederatedEstimator"]

Array = npt.NDArray[Any]

# Parameters that are settings of the run by the same name; None leaves a setting to the library.
_SETTINGS = (
    "rounds", "participation", "local_epochs", "local_steps", "batch_size", "lr", "head_lr", "body_lr", "optimizer",
    "momentum", "weight_decay", "clip_norm", "lr_schedule", "warmup", "weighting", "finetune_epochs", "finetune",
    "validation_fraction", "early_stopping", "engine", "device",
)  # fmt: skip
_NESTED = ("options", "model_options")
_SET_INSIDE = (*_NESTED, "settings")  # whose entries are set as options__head_epochs is


class FederatedEstimator(BaseEstimator):
    """Fits a shared representation and a model for every client.

    The clients of the rows are said by ``groups`` (in ``fit``, ``predict`` and ``score``; scikit-learn's metadata
    routing hands it on), or are a column of X (``client_column``), which needs no routing; where both are given they
    must say the same. Without either, all rows are one client's.

    A known client's rows are answered by its own model, and so are all rows where there is one client and nobody says
    whose they are. Those of an unknown client, or of nobody among several, are answered by the global model; methods
    without one (FedRep, FedPer, Local Only), and those whose models are fine-tuned (``finetune_epochs``), answer by the
    mean of what all clients' own models say. Nothing is learnt of unknown clients (:func:`commonground.adapt` does
    that).

    Args:
        algorithm: a name (``commonground list algorithms``) or an :class:`~commonground.algorithms.Algorithm`.
        options: the algorithm's own settings, such as ``{"head_epochs": 5}``; a search sets one as
            ``options__head_epochs``.
        model: a name (``commonground list models``) or an ``nn.Module``; by default ``mlp``.
        model_options: the model's, likewise ``model_options__hidden``.
        rounds: communication rounds.
        participation: share of the clients in each round.
        local_epochs, local_steps: of local training in a round: passes, or steps in their place.
        batch_size: samples in a mini-batch.
        lr, head_lr, body_lr: learning rates; by default what suits the data.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        momentum, weight_decay, clip_norm, lr_schedule, warmup: of local training (see ``commonground train --help``).
        weighting: how updates are averaged: ``uniform`` or ``samples``.
        finetune_epochs: epochs of fine-tuning on each client, after the last round.
        finetune: what they train, ``head`` or ``all``.
        validation_fraction, early_stopping: share of each client's rows that judges rounds; end after so many tests
            without a better one.
        engine, device: how and on what it computes.
        standardize: whether columns (of images: channels) are taken by their mean and deviation over all clients' rows,
            two pooled statistics; else as they are.
        settings: any other setting of :class:`~commonground.config.RunConfig`, by name.
        client_column: the column of X that says whose a row is: a name, or for arrays a number. It is no feature.
        unknown: what to do with rows of unknown clients, or of nobody: answer them (``shared``) or ``refuse`` them.
        on_round: called after each round with its figures; False ends the training, with the models of that round, also
            where ``early_stopping`` would have gone back to a better one.
        random_state: seed of every draw; None takes another one in every fit.
        verbose: whether progress is shown on standard error.

    Attributes:
        run_: the run (its tests are on the rows it was fitted to).
        clients_: names of the clients, as text, sorted.
        n_iter_: rounds done.
        loss_curve_: the mean training loss of every round.
        n_features_in_, feature_names_in_: columns of X, the client column among them.
    """

    # Groups go to these methods without set_fit_request(groups=True), as they go to splitters such as GroupKFold.
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": True}
    __metadata_request__score: ClassVar = {"groups": True}

    def __init__(
        self,
        algorithm: str | Algorithm = "fedrep",
        *,
        options: Mapping[str, Any] | None = None,
        model: str | nn.Module | None = None,
        model_options: Mapping[str, Any] | None = None,
        rounds: int = 30,
        participation: float = 1.0,
        local_epochs: int = 1,
        local_steps: int | None = None,
        batch_size: int = 10,
        lr: float | None = None,
        head_lr: float | None = None,
        body_lr: float | None = None,
        optimizer: Literal["sgd", "adam", "adamw"] | None = None,
        momentum: float | None = None,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        lr_schedule: str = "constant",
        warmup: int = 0,
        weighting: Literal["uniform", "samples"] = "uniform",
        finetune_epochs: int = 0,
        finetune: str = "head",
        validation_fraction: float = 0.0,
        early_stopping: int | None = None,
        engine: str = "auto",
        device: str = "auto",
        standardize: bool = True,
        settings: Mapping[str, Any] | None = None,
        client_column: str | int | None = None,
        unknown: Literal["shared", "refuse"] = "shared",
        on_round: Callable[[dict[str, Any]], object] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.options = options
        self.model = model
        self.model_options = model_options
        self.rounds = rounds
        self.participation = participation
        self.local_epochs = local_epochs
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.lr = lr
        self.head_lr = head_lr
        self.body_lr = body_lr
        self.optimizer = optimizer
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.lr_schedule = lr_schedule
        self.warmup = warmup
        self.weighting = weighting
        self.finetune_epochs = finetune_epochs
        self.finetune = finetune
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.engine = engine
        self.device = device
        self.standardize = standardize
        self.settings = settings
        self.client_column = client_column
        self.unknown = unknown
        self.on_round = on_round
        self.random_state = random_state
        self.verbose = verbose

    # -- parameters ---------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters by name; ``deep``: those within ``options``, ``model_options`` and ``settings`` too."""
        params: dict[str, Any] = super().get_params(deep=deep)
        for name in _SET_INSIDE if deep else ():
            inner = params[name] if isinstance(params[name], Mapping) else {}
            params |= {f"{name}__{key}": value for key, value in inner.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``options__head_epochs=5`` sets one of ``options``."""
        inner = {key: params.pop(key) for key in list(params) if key.partition("__")[0] in _SET_INSIDE and "__" in key}
        super().set_params(**params)
        for key, value in inner.items():
            name, _, setting = key.partition("__")
            setattr(self, name, {**(getattr(self, name) or {}), setting: value})
        return self

    # -- fitting ------------------------------------------------------------------------------------------------

    def _rows(self, X: Any, y: Any, groups: Any, *, fitting: bool, **checks: Any) -> tuple[Any, ...]:
        """Rows as numbers, when fitting the targets, and whose the rows are (None if nobody says), checked."""
        checks |= {"dtype": (np.float64, np.float32), "allow_nd": True}
        if self.client_column is None:
            given = (X, y) if fitting else (X,)
            found = validate_data(self, *given, reset=fitting, **checks)
        else:
            validate_data(self, X, y if fitting else "no_validation", reset=fitting, skip_check_array=True)
            X, column = without_clients(X, self.client_column)
            if groups is not None:
                _check_same(client_names(column, len(column)), client_names(groups, len(column)))
            groups = column
            checks |= {"estimator": self}
            found = check_X_y(X, y, **checks) if fitting else check_array(X, **checks)
        rows = found if fitting else (found,)
        return (*rows, None if groups is None else client_names(groups, len(rows[0])))

    def _train(self, X: Array, y: Array, clients: Any, outputs: int, task: Task | str, **about: Any) -> Self:
        """Train on checked rows, and keep what :meth:`predict` needs."""
        names, owner = (["all"], np.zeros(len(X), np.int64)) if clients is None else clients
        if self.unknown not in ("shared", "refuse"):
            raise ConfigError(f"unknown is {self.unknown!r}; rows of unknown clients are 'shared' or 'refuse'")
        try:
            scale = standardised(X) if self.standardize else AS_STORED
            data = dealt(X, y, names, owner, outputs, task=task, preprocess=scale, **about)
            run = train(
                self.algorithm,
                data,
                model=self.model,
                observer=ConsoleProgress() if self.verbose else None,
                on_round=self.on_round,
                **self._run_settings(),
            )
        except DataError as error:
            raise InputError(str(error)) from None
        self.run_: Run = run.in_memory()
        self.clients_ = np.array(names)
        self.n_iter_ = len(run.history)
        self.loss_curve_ = [row["train_loss"] for row in run.history]
        if run.trained.algorithm.personalizes:
            before = "trains each client's model once more before a test and forgets that"
            warn(f"{run.trained.algorithm.title} {before}: the models before it answer here")
        return self

    def _run_settings(self) -> dict[str, Any]:
        """Settings of the run, as :func:`~commonground.engine.train` takes them."""
        values = {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}
        if self.standardize and (self.settings or {}).get("dp") not in (None, "none"):
            raise ConfigError(
                "standardize=True learns means and deviations of all clients' rows without noise; with dp give "
                "standardize=False, and scale the columns by what is known of them"
            )
        values |= {name: dict(given) for name in _NESTED if (given := getattr(self, name))}
        if isinstance(self.algorithm, Algorithm) and self.options:
            raise ConfigError("options are for an algorithm given by name; an object has its own")
        for name in self.settings or {}:
            if name in ("data", "observer"):
                raise ConfigError(f"'{name}' is no setting of an estimator, which is given rows, and verbose")
            if name in (*_SETTINGS, *_NESTED, "algorithm", "model", "on_round", "seed"):
                raise ConfigError(
                    f"'{name}' in settings is a parameter of the estimator (seed: random_state); give it there"
                )
        # Its rows are all it was given: they are tested once, unless tests decide when to end.
        values["eval_every"] = self.rounds if self.early_stopping is None else 1
        whole = isinstance(self.random_state, int | np.integer)
        seed = self.random_state if whole else check_random_state(self.random_state).randint(2**31)
        return {**values, "seed": int(seed), **(self.settings or {})}

    # -- answering ----------------------------------------------------------------------------------------------

    def _answers(self, X: Any, groups: Any) -> npt.NDArray[np.float64]:
        """What the task says of each row [rows, outputs], by the model of its client."""
        check_is_fitted(self)
        rows, clients = self._rows(X, None, groups, fitting=False)
        if clients is None:
            number = np.full(len(rows), 0 if len(self.clients_) == 1 else -1)
            self._ask_whose()
        else:
            known = {name: client for client, name in enumerate(self.clients_.tolist())}
            number = np.array([known.get(name, -1) for name in clients[0]])[clients[1]]
            strangers = [name for name in clients[0] if name not in known]
            if strangers and self.unknown == "refuse":
                raise InputError(f"the client '{strangers[0]}' is not among the {len(known)} that were fitted")
        return answers(self.run_, rows, number)

    def _ask_whose(self) -> None:
        """Rows of which nobody says whose they are: refused, or answered with a warning, if there are several clients.

        Raises:
            InputError: they are refused.
        """
        if len(self.clients_) < 2:
            return
        how = "give groups=… (or fit with client_column)"
        if self.unknown == "refuse":
            raise InputError(f"nobody says which of the {len(self.clients_)} clients the rows are of; {how}")
        model = "the global model" if self.run_.trained.has_global_model else "the mean of all clients' models"
        warn(f"nobody says which client the rows are of; {model} answers: {how}")


def _check_same(column: tuple[Any, Any], groups: tuple[Any, Any]) -> None:
    """Refuse clients that are said twice, in two ways.

    Raises:
        InputError: a row belongs to another client by the one than by the other.
    """
    by_column, by_groups = (np.array(names)[owner] for names, owner in (column, groups))
    for row in np.flatnonzero(by_column != by_groups)[:1]:
        raise InputError(
            f"row {row} belongs to '{by_column[row]}' by client_column and to '{by_groups[row]}' by groups; give one "
            "of them (groups that are for cross-validation alone: set_fit_request(groups=False))"
        )
