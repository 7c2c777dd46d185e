"""A client's own model as a run's folder of its own, where it was trained with others elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from commonground.algorithms import Tensors
from commonground.engine.backends.serial import SerialEngine
from commonground.engine.finishing import finish
from commonground.engine.keeper import Keeper
from commonground.engine.observer import Silent
from commonground.engine.progress import Progress
from commonground.engine.run import Run
from commonground.engine.setup import Setup
from commonground.engine.state.folder import RunFolder

__all__ = ["keep_own_model"]


def keep_own_model(
    setup: Setup,
    shared: Tensors,
    personal: Tensors,
    rounds: tuple[int, int],
    folder: Path,
    untuned: Setup | None = None,
    answered: Sequence[int] = (),
) -> Run:
    """Write a folder that :func:`~commonground.load_run`, ``predict``, ``export``, ``adapt`` and ``serve`` take.

    It holds one client, with its test; there are no lines of rounds, nor bytes and seconds, which the server has.

    Args:
        setup: the client's, its data set that of this one client.
        shared: the server's tensors after the last round.
        personal: the client's own.
        rounds: done, and in how many of them the client took part.
        folder: what is in it goes.
        answered: the rounds in which it gave answers with noise of its own.
        untuned: where ``setup`` is that of the head's tuning (``--finetune-epochs``), that of the rounds before.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if untuned is not None:
        return _keep_tuned(untuned, setup, shared, personal, rounds[1], folder, answered)
    files, progress, engine = RunFolder(folder), Progress.of(setup), SerialEngine(setup)
    keeper = Keeper(setup, files, progress, Silent())
    keeper.restore(engine)  # begins it
    progress.shared = setup.moved({**progress.shared, **shared})
    progress.done, progress.took_part[:] = rounds
    progress.heard[:] = progress.done
    if personal:
        engine.store.put(0, personal)
    keeper.save(engine)
    return finish(setup, files, progress, engine, answered=answered)


def _keep_tuned(
    setup: Setup,
    tuning: Setup,
    shared: Tensors,
    personal: Tensors,
    took_part: int,
    folder: Path,
    answered: Sequence[int],
) -> Run:
    """The same of a global model whose head was tuned."""
    files, progress, engine, tuned = RunFolder(folder), Progress.of(setup), SerialEngine(setup), SerialEngine(tuning)
    keeper = Keeper(setup, files, progress, Silent())
    keeper.restore(engine)
    progress.shared = setup.moved({**progress.shared, **tuning.initial, **shared})
    progress.done, progress.took_part[:] = setup.config.rounds, took_part
    progress.heard[:] = progress.done
    if personal:
        tuned.store.put(0, personal)
    keeper.save(engine)
    return finish(setup, files, progress, engine, (tuned, shared), answered=answered)
