"""New clients: a head on the frozen body from few samples, beside what the client could do alone.

Source: Collins et al. 2021, §5.2 "Generalization to new clients" and Figure 6.
"""

from __future__ import annotations

import math
import operator
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from commonground.algorithms import Algorithm, Tensors
from commonground.algorithms.head_tuning import HeadTuning
from commonground.algorithms.local import LocalOnly
from commonground.counted import counted
from commonground.data import FederatedDataset, limit_samples
from commonground.engine.backends.base import Engine
from commonground.engine.backends.checks import settle
from commonground.engine.backends.factory import make_engine
from commonground.engine.build import build_setup
from commonground.engine.network import plain_network
from commonground.engine.run import Run, as_run
from commonground.engine.setup import Setup
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, DataError, LoneSampleError, warn
from commonground.models import constants_of
from commonground.quoting import quoted
from commonground.ranges import LARGEST, MOST, SMALLEST
from commonground.tasks import Task

__all__ = [
    "Adaptation",
    "adapt",
    "as_new_clients",
    "check_has_head",
    "head_curve",
    "head_setup",
    "known_clients",
    "trained_once",
]

Results = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Adaptation:
    """One way of serving new clients at one number of samples.

    Attributes:
        method: ``frozen body`` (a head on the run's body), ``global + FT`` (the global model's head fine-tuned) or
            ``local only``.
        shots: training samples per client.
        mean: the task's headline metric (accuracy, RMSE, …), averaged over clients and repeats.
        std: standard deviation between clients (of their mean over repeats).
        p10, p90: percentiles over clients.
        repeats: draws of the samples.
    """

    method: str
    shots: int
    mean: float
    std: float
    p10: float
    p90: float
    repeats: int

    def to_dict(self) -> dict[str, str | int | float]:
        """As plain values."""
        return asdict(self)


def adapt(
    run: str | os.PathLike[str] | Run,
    data: FederatedDataset,
    shots: Sequence[int],
    *,
    epochs: int = 30,
    lr: float | None = None,
    repeats: int = 3,
    seed: int = 0,
    per_class: bool = False,
    local_only: bool = True,
    note: Callable[[str], None] = warn,
) -> list[Adaptation]:
    """Serve new clients at several numbers of samples.

    Args:
        run: the trained run, or its folder.
        data: clients that never took part; samples of the shape the run was trained on, any classes.
        shots: training samples per client, one result each.
        epochs: passes over the samples.
        lr: learning rate; by default the run's.
        repeats: draws of the samples and of the new heads.
        seed: first seed of the draws.
        per_class: whether the shots count samples of each of a client's classes.
        local_only: whether to train a whole model on each client alone for comparison; left out where BatchNorm would
            have a batch of a single sample, of which it has no statistics.
        note: is told of what is left out, and of clients that are not new; by default it becomes a warning.

    Raises:
        CommonGroundError: the data does not fit the run, a client has too few samples, or the run's metric is defined
            on no client's test samples.
    """
    run = as_run(run)
    trained = run.trained
    check_fitting(epochs=epochs, repeats=repeats, seed=seed, lr=lr)
    data = as_new_clients(trained, data)
    shots = _numbers_of_samples(shots)
    if known := known_clients(trained, data):
        note(
            f"{len(known):,} of {counted(data.clients, 'client')} of {data.name} have names of clients that trained "
            f"the run ({', '.join(map(quoted, known[:3]))}{', …' if len(known) > 3 else ''}): if they are those, its "
            "body knows them, and these figures are better than new clients' will be"
        )
    if trained.schema is not None and trained.schema.scaling == "client":
        note(
            "a new client's numbers are scaled by means and deviations of all its training rows (--scaling client), "
            "also where it has fewer shots: features need no label"
        )
    subsets = {
        k: [limit_samples(data, "train", k, seed + r, per_class=per_class) for r in range(repeats)] for k in shots
    }
    same_head = data.classes == trained.split["classes"] and trained.has_global_model
    results = []
    for k, draws in subsets.items():
        ways: dict[str, list[Results]] = {}
        setups = [head_setup(run, subset, seed + r, lr) for r, subset in enumerate(draws)]
        for setup in setups:
            fresh = setup.initial | trained.body()
            ways.setdefault("frozen body", []).append(_tested(setup, HeadTuning(epochs), fresh))
            if same_head:
                ways.setdefault("global + FT", []).append(_tested(setup, HeadTuning(epochs), trained.shared_model()))
        if local_only:
            try:
                ways["local only"] = [_alone(setup, epochs) for setup in setups]
            except LoneSampleError:
                note(
                    f"local only is left out at {counted(k, 'shot')}{' per class' if per_class else ''}: a batch of a "
                    f"single sample (batches are of {setups[0].config.batch_size}) has no statistics for BatchNorm"
                )
        results += [_summary(way, k, values) for way, values in ways.items()]
    return results


def known_clients(trained: Trained, data: FederatedDataset) -> list[str]:
    """Names of clients of the data that clients which trained a run have as well; none where either are numbers."""
    names = trained.split["client_names"]
    if names is None or data.client_names is None:
        return []
    known = {*names}
    return [name for name in data.client_names if name in known]


def _alone(setup: Setup, epochs: int) -> Results:
    """A whole model of each client, trained on its samples alone."""
    update = {"local_epochs": epochs, "local_steps": None}
    alone = setup.on(setup.data, setup.config.model_copy(update=update))
    return _tested(alone, LocalOnly(), setup.initial)


def _numbers_of_samples(shots: Sequence[int]) -> list[int]:
    try:
        numbers = [operator.index(k) for k in shots]
    except TypeError:
        raise ConfigError(f"shots are whole numbers of samples, such as [5, 10], not {shots!r}") from None
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--shots must be at least 1, not {min(numbers) if numbers else 'none at all'}")
    return numbers


def check_has_head(whose: str, task: Task) -> None:
    """Refuse what answers by writing.

    Args:
        whose: a run or data, for the message.
        task: theirs.

    Raises:
        ConfigError: it is of a model that writes answers.
    """
    if task.generative:
        raise ConfigError(
            f"{whose} is of a language model that writes answers, which has no head to fit for new clients"
        )


def check_fitting(*, lr: float | None, seed: int, **counts: int) -> None:
    """Refuse what no head can be fitted with.

    Args:
        lr: learning rate; None for the run's.
        seed: of the draws.
        **counts: of passes or draws, by their names.

    Raises:
        ConfigError: names what is no number, or out of range.
    """
    for name, value in {**counts, "seed": seed}.items():
        least, most = (0, math.inf) if name == "seed" else (1, MOST)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            raise ConfigError(f"--{name} must be a whole number of at least {least}, not {value!r}")
    real = isinstance(lr, int | float | np.integer | np.floating) and not isinstance(lr, bool)
    if lr is not None and not (real and SMALLEST <= lr <= LARGEST):
        raise ConfigError(f"--lr must be a positive number, {SMALLEST:.2g} to {LARGEST:.2g}, not {lr!r}")


def as_new_clients(trained: Trained, data: FederatedDataset) -> FederatedDataset:
    """New clients' data as the run's model takes them (:meth:`~commonground.engine.trained.Trained.as_read`).

    Raises:
        ConfigError: data that are none, or the run or data of a model that writes answers.
        DataError: samples of another form than the run's, or a table that was read otherwise.
    """
    check_has_head(trained.where, trained.task)
    if not isinstance(data, FederatedDataset):
        like, schema = "", trained.schema
        if schema is not None:
            whose = "" if schema.client_column is None else f", client_column={schema.client_column!r}"
            like = f"{whose}, schema=run.trained.schema"
        raise ConfigError(
            f"data are the new clients as a FederatedDataset, such as load_data(…{like}), and no {type(data).__name__}"
        )
    check_has_head(repr(data.name), data.task)
    trained.format.check_like(data.format, data.name, trained.where)
    if columns := data.about.get("text_columns"):
        trained.check_texts(len(columns), data.name)
    return trained.as_read(data)


def head_curve(
    run: Run, data: FederatedDataset, epochs: int, *, lr: float | None = None, seed: int = 0
) -> list[Results]:
    """How well new clients are served after each epoch of fine-tuning the head on a frozen body (FedRep's Figure 6).

    Args:
        run: the trained run; where it has a global model the head starts from that model's, else anew.
        data: the new clients.
        epochs: passes over each client's training data.
        lr: learning rate; by default the run's.
        seed: keys the batches and a new head.

    Returns:
        [clients] the headline metric on their test samples, after each epoch.
    """
    trained = run.trained
    data = trained.as_read(data)
    setup = head_setup(run, data, seed, lr)
    same_head = data.classes == trained.split["classes"] and trained.has_global_model
    start = setup.initial | (trained.shared_model() if same_head else trained.body())
    setup = setup.with_algorithm(HeadTuning(1), start)
    engine = make_engine("auto", setup)
    everyone = range(data.clients)
    curve = []
    try:
        for epoch in range(1, epochs + 1):
            engine.commit(epoch, engine.train(epoch, everyone, setup.initial_shared))
            curve.append(engine.evaluate(everyone, setup.initial_shared).headline)
    finally:
        engine.close()
    return curve


def head_setup(run: Run, data: FederatedDataset, seed: int, lr: float | None) -> Setup:
    """The run's network with a head for the new clients' classes, drawn anew.

    Raises:
        ConfigError: the network was given as an object, so that no head can be drawn anew.
    """
    trained = run.trained
    if trained.given:
        raise ConfigError(
            f"new clients start from heads drawn anew, for which the model has to be built by name, and that of "
            f"{trained.where} was given as an object ({run.config.model}); train with --model file.py:Class"
        )
    update = {"seed": seed, "lr": lr or run.config.lr, "clients": data.clients, "engine": "auto", "participation": 1.0}
    if lr is not None:
        update |= {"head_lr": None, "body_lr": None}  # which are rates of their own, and would stay what they were
    # Heads are fitted at once, for the task's own loss, and nothing of them is averaged.
    update |= {"loss": None, "warmup": 0, "aggregate": "mean", "server_optimizer": "none"}
    config = run.config.model_copy(update=update)
    model, groups = plain_network(config, trained.algorithm, data.format.shape, data.classes, data.task)
    _take_constants(model, trained.network)
    return build_setup(config, data, model, groups, LocalOnly())


def _take_constants(model: nn.Module, of_run: nn.Module) -> None:
    """What never changes is the run's, also where it was drawn: a frozen base without pretrained weights, a pooler that
    a pretrained model lacks. A head that was frozen in the run is trained here, and drawn anew.
    """
    drawn, known = model.state_dict(keep_vars=True), of_run.state_dict(keep_vars=True)
    with torch.no_grad():
        for name in constants_of(model) & constants_of(of_run):
            drawn[name].copy_(known[name])


def _tested(setup: Setup, algorithm: Algorithm, initial: Tensors) -> Results:
    """[clients] the headline metric on test samples after every client has trained once from ``initial``."""
    setup = setup.with_algorithm(algorithm, initial)
    with trained_once(setup) as engine:
        return engine.evaluate(range(setup.data.clients), setup.initial_shared).headline


@contextmanager
def trained_once(setup: Setup) -> Iterator[Engine]:
    """An engine in which every client has trained one round, from where the setup begins."""
    engine, everyone = make_engine("auto", setup), range(setup.data.clients)
    try:
        engine.commit(1, settle(setup, engine.train(1, everyone, setup.initial_shared), 1))
        yield engine
    finally:
        engine.close()


def _summary(method: str, shots: int, values: Sequence[Results]) -> Adaptation:
    stacked = np.stack(values)
    if np.isnan(stacked).all():
        raise DataError("the run's metric is not defined on any new client's test samples")
    clients = np.nanmean(stacked[:, ~np.isnan(stacked).all(axis=0)], axis=0)  # clients for which it is defined
    low, high = np.quantile(clients, [0.1, 0.9])
    spread = statistics.pstdev(clients.tolist()) if len(clients) > 1 else 0.0
    return Adaptation(method, shots, float(clients.mean()), spread, float(low), float(high), len(values))
