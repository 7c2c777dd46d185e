"""New clients that stay: a head each on the run's body, added to the run's folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

import numpy as np

from commonground.adapt.few_shot import as_new_clients, check_fitting, head_setup, trained_once
from commonground.algorithms.head_tuning import HeadTuning
from commonground.data import FederatedDataset
from commonground.engine.read_trained import weights_in
from commonground.engine.run import Run, as_run, at_hand
from commonground.engine.state.folder import RunFolder
from commonground.engine.state.lock import locked
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, DataError, RunError
from commonground.quoting import quoted

__all__ = ["Kept", "keep_clients"]

WAIT = 10.0  # seconds for another process that adds clients; one that trains takes longer


@dataclass(frozen=True)
class Kept:
    """Clients that were added to a run.

    Attributes:
        run: the run with them: ``run.model("name")``, ``run.predict(x, "name")``.
        names: theirs.
        mean: the task's headline metric on their test samples, averaged over them; NaN where it is not defined.
        renewed: names of those that had been added before, and have new heads now.
    """

    run: Run
    names: tuple[str, ...]
    mean: float
    renewed: tuple[str, ...] = ()


def keep_clients(
    run: str | os.PathLike[str] | Run,
    data: FederatedDataset,
    *,
    epochs: int = 30,
    lr: float | None = None,
    seed: int = 0,
    renew: bool = True,
) -> Kept:
    """Fit a head for each new client on all its training samples, the run's body fixed, and add it to the run's folder.

    From then on it is asked as any other client, by its name: in Python, by ``commonground predict`` and ``export``. A
    client that was added before gets the new head. Source: Collins et al. 2021, §5.2.

    Args:
        run: in a folder, or that folder.
        data: clients that never took part; samples and classes of the run's. Where it only numbers them, they are
            called ``new-0``, ``new-1``, ….
        epochs: passes over the samples.
        lr: learning rate; by default the run's.
        seed: keys the new heads and the batches.
        renew: whether a client that was added before may get a new head.

    Raises:
        ConfigError: the run is in no folder, is of a model that writes answers, or has a client of one of the names
            already.
        DataError: samples or classes are not the run's.
        BusyError: another process is training in the folder.
        RunError: the run in the folder has gone on since this one was read, and its body is another.
    """
    run = as_run(run)
    trained = run.trained
    check_fitting(epochs=epochs, seed=seed, lr=lr)
    data = as_new_clients(trained, data)
    if data.preprocess != trained.format.preprocess:
        raise DataError(
            f"the samples of {data.name} are stored otherwise than those of {trained.where} (scaled by "
            f"{data.preprocess.scale:.3g}, there by {trained.format.preprocess.scale:.3g}), and a client that is kept "
            "is asked with samples as the run's"
        )
    if run.folder is None:
        raise ConfigError("new clients are kept in the run's folder, and this run is in none; train with out=…")
    if data.noise is not None:
        raise ConfigError("the feature noise of new clients is not kept; give --feature-noise 0")
    if tuple(data.class_names) != tuple(trained.split["class_names"]):
        raise ConfigError(_other_classes(trained, data))
    names = _names(trained, data)
    taken = sorted({*names} & {*trained.known.names[: trained.clients]})
    if taken:
        raise ConfigError(
            f"{trained.where} has trained a client {quoted(taken[0])} already; new clients need other names"
        )
    for name in names:
        _check_name(trained, name)
    setup = head_setup(run, data, seed, lr)
    body = trained.body()
    setup = setup.with_algorithm(HeadTuning(epochs), setup.initial | body)
    with trained_once(setup) as engine:
        headline = engine.evaluate(range(data.clients), setup.initial_shared).headline
        state = engine.states()
        heads = [{name: state(client)[name] for name in setup.initial_personal} for client in range(data.clients)]
    with locked(run.folder, wait=WAIT):
        if weights_in(RunFolder(run.folder)) != trained.weights_digest:
            raise RunError(
                f"the run in '{run.folder}' has gone on since it was read, and its body is another; read it again"
            )
        added = trained.read_added_again()  # of other processes as well
        names = _names(trained, data)
        renewed = tuple(name for name in names if name in trained.known.names)
        if renewed and not renew:
            raise ConfigError(f"there is a client '{renewed[0]}' already")
        # Clients that the data only number have their scales by no name.
        own = {} if data.schema is None else data.schema.client_scales
        called = data.client_names or [""] * data.clients
        scales = {n: own[c if c in own else ""] for n, c in zip(names, called, strict=True)} if own else {}
        if added.weights != trained.weights_digest:
            added = type(added)(trained.weights_digest)  # heads for an earlier body are of no use any more
        added.with_more(run.folder, names, heads, scales)
    trained.read_added_again()
    known = ~np.isnan(headline)
    mean = float(headline[known].mean()) if known.any() else float("nan")
    again = replace(trained)  # which has read nothing of the folder yet
    return Kept(replace(run, _read=at_hand(again)), tuple(names), mean, renewed)


def _other_classes(trained: Trained, data: FederatedDataset) -> str:
    """What classes (or targets) new clients' data have that the run does not; or in another number or order."""
    own, what = trained.split["class_names"], trained.task.counted
    strange = [name for name in data.class_names if name not in own]
    first = f"{', '.join(map(quoted, own[:5]))}{', …' if len(own) > 5 else ''}"
    has = (
        f"also {', '.join(map(quoted, strange[:5]))}"
        if strange
        else f"{len(data.class_names)} of them, or in another order"
    )
    return (
        f"{trained.where} has the {what} {first}, and the new clients' data {has}; clients that are kept need the run's"
    )


def _names(trained: Trained, data: FederatedDataset) -> list[str]:
    """What the new clients are called, as the run spells those that it has; those that the data only number go on
    counting.
    """
    if data.client_names is not None:
        known = ((name, trained.known.find(name)) for name in data.client_names)
        return [name if number is None else trained.known.names[number] for name, number in known]
    counted = [int(name[4:]) for name in trained.added.names if re.fullmatch("new-[0-9]{1,9}", name)]
    first = max([len(trained.added.names), *(number + 1 for number in counted)])  # of those who are gone as well
    return [f"new-{first + c}" for c in range(data.clients)]


def _check_name(trained: Trained, name: str) -> None:
    """Refuse a name that means something else where clients are named; one that was added before keeps its own."""
    if name in trained.added.names:
        return
    if name == "all":
        raise ConfigError("a new client cannot be called 'all', which stands for every client; give it another name")
    number = trained.known.numbered(name)
    if number is not None:
        raise ConfigError(
            f"a new client cannot be called '{name}', which is the number of {trained.known.for_people(number)} of "
            f"{trained.where}; give it another name"
        )
