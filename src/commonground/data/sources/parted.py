"""Samples of clients, of pictures or of LEAF's files, parted into those to train on and those to test on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.tables import split
from commonground.data.tables.options import TableOptions
from commonground.data.tables.split import Owners
from commonground.errors import ConfigError, DataError

__all__ = ["Parted", "check_plain", "parted"]

Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Parted:
    """Which samples are trained on and which tested on.

    Attributes:
        owners: the clients, after what was done with those that have few samples.
        train, test: of each sample whether it is such a one [N].
        how: that was found.
    """

    owners: Owners
    train: Marks
    test: Marks
    how: str

    def arrays(self, x: Array, y: Array, column: str | None) -> dict[str, Any]:
        """What a :class:`~commonground.data.source.Source` takes of samples [N, …] and labels [N].

        Args:
            x, y: of all samples.
            column: what says whose a sample is; None where nothing does.
        """
        sides = {"train": self.train, "test": self.test}
        return {
            **{f"{name}_{side}": values[rows] for side, rows in sides.items() for name, values in (("x", x), ("y", y))},
            **{f"{side}_columns": {column: self.whose[rows]} if column else {} for side, rows in sides.items()},
        }

    @property
    def whose(self) -> Array:
        """The client's name of each sample [N]; empty for those that are left out."""
        return np.array([*self.owners.names, ""])[self.owners.codes]


def check_plain(path: Path, options: TableOptions, client_column: str, what: str, clients: str) -> None:
    """Refuse what says how a table's columns are read, of which such samples have none.

    Args:
        path: the folder or file.
        options: what is said.
        client_column: what the clients' column is called.
        what: it is, for people.
        clients: what the clients are there.

    Raises:
        ConfigError: something is said.
    """
    plain = TableOptions()
    kept = {name: getattr(plain, name) for name in ("few_rows", "min_rows", "test_share", "test_seed", "image_size")}
    if options.client_column not in (None, client_column):
        raise ConfigError(f"the clients of '{path}' are its {clients}; the column is called '{client_column}'")
    if replace(options, client_column=None, **kept) != plain:
        raise ConfigError(f"'{path}' is {what}, no table; there are no columns to drop, read or split by")


def parted(
    path: Path, owners: Owners, is_test: Marks | None, options: TableOptions, seed: int, by: Owners | None, what: str
) -> Parted:
    """Part samples by the folders ``train`` and ``test``, or by chance.

    Args:
        path: for messages.
        owners: whose the samples are.
        is_test: which are in the folder ``test`` [N]; None where there are no such folders.
        options: say what share is held out, and what becomes of clients with few samples.
        seed: keys the hold-out.
        by: of what a share is held out, where there are no clients; None where there are.
        what: the samples are called.

    Raises:
        ConfigError: a share or a seed is said where folders say it.
        DataError: nothing is left to train or to test on.
    """
    if by is None:
        owners = split.few_rows(path, owners, options, is_test)
    for name, value in (("share", options.test_share), ("seed", options.test_seed)):
        if is_test is not None and value is not None:
            raise ConfigError(
                f"{path}: its folders train and test say what is tested, so that a test {name} of {value} says "
                f"nothing; leave out the {name}"
            )
    how = "by the folders train and test"
    if is_test is None:
        how = f"{options.share:.0%} at random"
        is_test = split.held_out_tests((by or owners).parts(), len(owners.codes), options.share, options.seed(seed))
    used = owners.codes >= 0
    train, test = used & ~is_test, used & is_test
    if not train.any() or not test.any():
        raise DataError(f"{path} has {train.sum()} training and {test.sum()} test {what}; both need at least 1")
    return Parted(owners, train, test, how)
