"""Whose a table's rows are and what each is for: of tables of numbers and of texts alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from commonground.counted import counted
from commonground.data.arrays import Related
from commonground.data.tables import split
from commonground.data.tables.cells import MISSING, is_text, words_of
from commonground.data.tables.dates import date_numbers
from commonground.data.tables.features import readings_said
from commonground.data.tables.kinds import Column, Reading, kind_of
from commonground.data.tables.notation import column_of
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable
from commonground.data.tables.split import Owners
from commonground.data.tables.targets import Targets, full_words, lacks_target
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted

__all__ = ["DividedRows", "complete_rows", "divided", "names_of_nothing", "owners_of", "split_column"]

LONGEST_NAME = 200  # characters of a client's name

Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DividedRows:
    """Whose the rows are, and what each is for.

    Attributes:
        owners: of the rows.
        train, test: which rows are training and test rows [N]; rows of clients that are left out are neither.
        how: how the test rows were chosen, in words.
        told: sentences about that.
        times: the column by which they were, if it is one of times.
        related: what training rows have to do with each other, if test rows were chosen by time or group.
    """

    owners: Owners
    train: Marks
    test: Marks
    how: str
    told: tuple[str, ...] = ()
    times: Column | None = None
    related: Related | None = None

    @property
    def readings(self) -> dict[str, Reading]:
        """How the column of times is read, by its name, where there is one."""
        return {} if self.times is None else {self.times.name: self.times.reading}

    @property
    def kinds(self) -> dict[str, str]:
        """The same as ``--kinds`` takes it: how another table's column of times is to be read."""
        return {name: kind_of(reading) for name, reading in self.readings.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence about how times were read where that could be otherwise."""
        return self.told + readings_said({} if self.times is None else {self.times.name: self.times})


def complete_rows(
    raw: RawTable, labels: Sequence[str], task: str | None, options: TableOptions
) -> tuple[RawTable, int]:
    """The table without the rows that lack a client or a target, as far as the options leave such out.

    Returns:
        the table, and how many rows were left out for their target alone.

    Raises:
        ConfigError: the options say what becomes of rows without a client, and not which column names them.
        DataError: no row is left.
    """
    unowned = unknown = np.zeros(raw.rows, dtype=bool)
    if options.missing_client is not None and options.client_column is None:
        raise ConfigError(
            f"--missing-client {options.missing_client} is about rows that the client column gives to nobody, and "
            "there is no --client-column"
        )
    if options.missing_client == "drop":
        unowned = words_of(raw.columns[str(options.client_column)], keep=True).codes < 0
    if options.missing_target == "drop":
        unknown = lacks_target(raw, labels, task) & ~unowned
    kept = np.flatnonzero(~unowned & ~unknown)
    if len(kept) == raw.rows:
        return raw, 0
    why = ((unowned, quoted(str(options.client_column))), (unknown, ", ".join(map(quoted, labels))))
    missing = [(int(rows.sum()), where) for rows, where in why if rows.any()]
    if not len(kept):
        raise DataError(f"{raw.path}: no row has a value in {' and '.join(where for _, where in missing)}")
    notes = [
        f"{n:,} of {raw.rows:,} rows {'has' if n == 1 else 'have'} no value in {where} and "
        f"{'is' if n == 1 else 'are'} left out"
        for n, where in missing
    ]
    return replace(
        raw,
        columns={name: column.take(kept) for name, column in raw.columns.items()},
        moments={name: column.take(kept) for name, column in raw.moments.items()},
        where=lambda row: raw.where(int(kept[row])),
        numbers=partial(_taken, raw, kept),
        kept=kept,
        notes=(*raw.notes, *notes),
    ), int(unknown.sum())


def _taken(raw: RawTable, kept: npt.NDArray[np.int64]) -> list[int]:
    numbers = raw.numbers()
    return [numbers[row] for row in kept]


def owners_of(
    raw: RawTable, column: str | None, otherwise: str = "leave such rows out by --missing-client drop"
) -> Owners:
    """Whose each row is, by a column; without one, nobody's in particular.

    Args:
        raw: the table.
        column: its name.
        otherwise: what else to do about rows without a client, for the message.

    Raises:
        DataError: a cell is empty (line and column named), or a name is too long for one.
    """
    if column is None:
        return Owners([""], np.zeros(raw.rows, dtype=np.int64))
    cells = full_words(raw, column, f"; give every row its client, or {otherwise}")
    longest = max(cells.words, key=len)
    if len(longest) > LONGEST_NAME:
        raise DataError(
            f"{raw.path}, column {quoted(column)}: {quoted(longest, 40)} has {len(longest):,} characters; a client's "
            f"name has at most {LONGEST_NAME}"
        )
    return Owners(cells.words, cells.codes)


def names_of_nothing(raw: RawTable, columns: Iterable[str | None]) -> list[str]:
    """Sentences about words of columns of clients or classes that say in other columns that there is no value.

    Args:
        raw: the table.
        columns: their names; None of one that there is not.
    """
    return [
        f"{name}: {quoted(word)}, in {n:,} rows, is a name as others are; leave the cells empty if it stands for none"
        for name in columns
        if name is not None
        for cells in (words_of(raw.columns[name], keep=True),)
        for word, n in zip(cells.words, cells.counts, strict=True)
        if word.lower() in MISSING
    ]


def split_column(raw: RawTable, labels: Sequence[str], options: TableOptions) -> str | None:
    """The column of ``train`` and ``test``, if the table has one.

    Raises:
        ConfigError: it is found by its name, and the options ask for a share of test rows.
    """
    if options.split_column or options.time_column or options.group_column:
        return options.split_column
    taken = (*labels, options.client_column, *options.drop)
    if "split" not in raw.columns or "split" in taken:
        return None
    options.check_drawn("split", "leave out the WHAT, or the column (--drop split)", f"{raw.path}: ")
    return "split"


def divided(
    raw: RawTable,
    targets: Targets,
    column: str | None,
    options: TableOptions,
    seed: int,
    owner: str | None = None,
) -> DividedRows:
    """Whose the rows are, and which of them are test rows.

    Args:
        raw: the table.
        targets: where there are no clients, test rows are held out evenly over their classes.
        column: of ``train`` and ``test``, if there is one.
        options: say how else, and what becomes of clients with few rows.
        seed: keys the hold-out, unless the options say by which seed it is drawn.
        owner: whose all rows are, if they are one client's: the same are held out as of its rows in a table of many.

    Raises:
        DataError: a cell does not fit, a client has too few rows, or there are no training or no test rows.
    """
    owners = owners_of(raw, options.client_column) if owner is None else Owners([owner], np.zeros(raw.rows, np.int64))
    is_test, times = None, _times(raw, options)
    if column is not None:
        is_test = split.given_tests(raw.path, column, words_of(raw.columns[column]), raw.where)
    if options.client_column is not None:
        owners = split.few_rows(raw.path, owners, options, is_test)
    how = f"by the column {column}"
    related = _related(raw, times, options)
    if is_test is None:
        is_test, how = _tests(raw, owners, targets, related, options, options.seed(seed))
    used = owners.codes >= 0
    train, test = used & ~is_test, used & is_test
    if not train.any() or not test.any():
        found = f"{counted(int(train.sum()), 'training row')} and {counted(int(test.sum()), 'test row')}"
        raise DataError(f"{raw.path} has {found}, and needs at least 1 of both; give it more rows to divide")
    told = () if column is not None else _groups_on_both_sides(raw, options, train, test)
    of_training = None if related is None else Related(related.by, related.values[train])
    return DividedRows(owners, train, test, how, told, times, of_training)


def _related(raw: RawTable, times: Column | None, options: TableOptions) -> Related | None:
    """What rows have to do with each other, by the columns of times or groups."""
    if times is not None:
        return Related("time", _moments(raw, times))
    if options.group_column is None:
        return None
    groups = full_words(raw, options.group_column)
    places = np.empty(len(groups.words), dtype=np.int64)
    places[sorted(range(len(places)), key=groups.words.__getitem__)] = np.arange(len(places))
    return Related("group", places[groups.codes])


def _groups_on_both_sides(raw: RawTable, options: TableOptions, train: Marks, test: Marks) -> tuple[str, ...]:
    """A sentence where a group has training rows at one client and test rows at another, since each client's are drawn
    by itself.
    """
    if options.group_column is None:
        return ()
    groups = words_of(raw.columns[options.group_column], keep=True)
    both = np.intersect1d(groups.codes[train], groups.codes[test])
    if not len(both):
        return ()
    some = f"{len(both):,} of {len(groups.words):,} groups of {quoted(options.group_column)}"
    return (f"{some} have training rows at one client and test rows at another: each client's are drawn by itself",)


def _times(raw: RawTable, options: TableOptions) -> Column | None:
    """The column that says when a row was, if there is one."""
    name = options.time_column
    if name is None:
        return None
    times = column_of(raw, name, options.readings)
    if times.reading.kind == "constant":  # a single day is one, as a single number is
        with suppress(DataError):
            times = column_of(raw, name, {name: Reading("date")})
    if times.numbers is None:
        raise DataError(f"{raw.path}: the time column {quoted(name)} holds neither dates nor numbers")
    for row in np.flatnonzero(np.isnan(times.numbers))[:1]:
        raise DataError(f"{raw.path}, {raw.where(int(row))}, column {quoted(name)}: no time is given")
    return times


def _moments(raw: RawTable, times: Column) -> npt.NDArray[np.float64]:
    """By which rows follow one another: of dates with a zone the moments, also where clocks are put back."""
    assert times.numbers is not None
    if times.name in raw.moments:
        return np.asarray(raw.moments[times.name], dtype=np.float64)
    if times.reading.kind != "date" or not is_text(raw.columns[times.name].type):
        return times.numbers
    cells = words_of(raw.columns[times.name])
    return cells.spread(date_numbers(cells.words, times.reading.order or "ISO8601", instants=True))


def _tests(
    raw: RawTable, owners: Owners, targets: Targets, related: Related | None, options: TableOptions, seed: int
) -> tuple[Marks, str]:
    """Test rows where no column says train or test, and how they were chosen."""
    share = options.share
    if related is not None:
        chosen = split.related_tests(raw.path, owners.parts(), related, share, seed)
        last, groups = f"the last {share:.0%} by the column", f"{share:.0%} of the groups of the column"
        return chosen, (
            f"{last} {options.time_column}" if related.by == "time" else f"{groups} {options.group_column}, at random"
        )
    # Of rows that are nobody's as many of each class; neither time nor groups know classes.
    evenly = owners.names == [""] and np.bincount(targets.stratum).max(initial=0) > 1
    by = Owners(targets.strata, targets.stratum) if evenly else owners
    return split.held_out_tests(by.parts(), raw.rows, share, seed), f"{share:.0%} at random"
