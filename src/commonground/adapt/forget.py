"""Clients that were kept in a run leave it again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from commonground.adapt.keep import WAIT
from commonground.engine.run import Run, as_run, at_hand
from commonground.engine.state.lock import locked
from commonground.engine.state.tokens import Tokens
from commonground.errors import ConfigError
from commonground.quoting import quoted

__all__ = ["forget_clients"]


def forget_clients(run: str | os.PathLike[str] | Run, names: Sequence[str]) -> Run:
    """Take clients that were kept in a run (:func:`~commonground.adapt.keep.keep_clients`) out of its folder.

    Their heads leave its files, those that they had before as well, and their tokens for a service end. Of the model
    that all share they have changed nothing. What was exported for them, and figures that were written of them, stay
    where they are.

    Args:
        run: in a folder, or that folder.
        names: theirs.

    Returns:
        The run without them.

    Raises:
        ConfigError: the run is in no folder, or has kept no client of one of the names; of a client that trained the
            run, what it taught the others cannot be taken out again.
        BusyError: another process is training in the folder.
    """
    run = as_run(run)
    trained = run.trained
    if run.folder is None:
        raise ConfigError("clients are kept in a run's folder, and this run is in none")
    names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    with locked(run.folder, wait=WAIT):
        added = trained.read_added_again()
        numbers = [trained.known.number(name, by_number=False) for name in names]
        for name, number in zip(names, numbers, strict=True):
            if number < trained.clients:
                raise ConfigError(
                    f"{quoted(name)} has trained {trained.where}, and what it taught the shared model stays in it; "
                    "train again without it"
                )
        names = list(dict.fromkeys(trained.known.names[number] for number in numbers))  # as the run spells them
        added.without(run.folder, names)
        tokens = Tokens(run.folder)
        for name in names if len(tokens) else ():
            tokens.revoke(name)
    trained.read_added_again()
    return replace(run, _read=at_hand(replace(trained)))
