"""Samples that say themselves whose they are, as a list of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commonground.data.arrays import Array
from commonground.data.names import sorted_names
from commonground.data.rows import AnySamples, listed, read_samples
from commonground.data.tables.split import Owners, held_out_tests
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted

__all__ = ["clients_of_samples"]

Parts = tuple[Array, Array, Array, Array]
Columns = tuple[Array, Array, Array]


def clients_of_samples(
    name: str,
    train: AnySamples,
    test: AnySamples | None,
    keys: tuple[str | int, str | int, str | int],
    test_share: float,
    seed: int,
) -> tuple[list[str], list[Parts]]:
    """Samples of many clients, client by client.

    Args:
        name: of the data, for messages.
        train, test: data sets by number or as streams, which are read once; without ``test`` a share of each client's
            samples is held out, keyed by the client's name.
        keys: where a sample has its input, its target and its client: keys of mappings, places in tuples.
        test_share: see ``test``.
        seed: of the hold-out.

    Returns:
        The clients' names, in order, and of each ``(x_train, y_train, x_test, y_test)``.

    Raises:
        ConfigError: the share is none.
        DataError: a sample cannot be read so, or a client lacks training or test samples.
    """
    if not 0 < test_share < 1:
        raise ConfigError(f"test_share is {test_share}; it must lie between 0 and 1")
    parts = [_columns(name, "training", train, keys)]
    if test is None:
        x, y, whose = parts[0]
        known = sorted_names(whose)
        places = {client: place for place, client in enumerate(known)}
        owners = Owners(list(known), np.array([places[client] for client in whose.tolist()], dtype=np.int64))
        held = held_out_tests(owners.parts(), len(whose), test_share, seed)
        parts = [(x[chosen], y[chosen], whose[chosen]) for chosen in (~held, held)]
    else:
        parts.append(_columns(name, "test", test, keys))
    names, clients = sorted_names(np.concatenate([whose for _, _, whose in parts])), list[Parts]()
    for client in names:
        (x, y), (x_test, y_test) = ((x[whose == client], y[whose == client]) for x, y, whose in parts)
        if not (len(x) and len(x_test)):
            counts = f"{len(x)} training and {len(x_test)} test samples"
            raise DataError(f"client {quoted(client)} of {name!r} has {counts}; it needs at least 1 of each")
        clients.append((x, y, x_test, y_test))
    return list(names), clients


def _columns(name: str, kind: str, samples: AnySamples, keys: tuple[str | int, str | int, str | int]) -> Columns:
    """Inputs, targets and clients' names of all samples."""
    pairs, whose = [], []
    read = listed(samples, f"{kind} samples of {name!r}")
    for number in range(len(read)):
        try:
            sample: Any = read[number]
        except Exception as error:  # whatever a user's data set raises
            raise DataError(
                f"{kind} sample {number} of {name!r} cannot be read: {type(error).__name__}: {error}"
            ) from error
        try:
            x, y, client = (sample[key] for key in keys)
        except (KeyError, IndexError, TypeError, ValueError):
            has = f"the keys {', '.join(map(str, sample))}" if isinstance(sample, Mapping) else type(sample).__name__
            wanted = ", ".join(map(repr, keys))
            raise DataError(
                f"{kind} sample {number} of {name!r} is to have input, target and client at {wanted}, and is {has}"
            ) from None
        pairs.append((x, y))
        whose.append(str(client.item() if hasattr(client, "item") else client))
    found, targets = read_samples([pairs], lambda _: f"{kind} samples of {name!r}")
    return found[0], targets[0], np.array(whose)
