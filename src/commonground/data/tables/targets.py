"""A table's target columns, as the task stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.names import sorted_names
from commonground.data.tables.affixes import bare, common_affix
from commonground.data.tables.cells import Cells, too_fine, words_of
from commonground.data.tables.kinds import TRUTHS, Reading
from commonground.data.tables.notation import column_of
from commonground.data.tables.read import RawTable
from commonground.data.tables.spelling import spelt_twice
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted
from commonground.tasks import Classification, MultiLabel, Regression, Task, make_task

__all__ = ["Targets", "as_run_read", "full_words", "is_quantity", "lacks_target", "read_targets"]

UNEQUAL = 10  # times that a target may vary as much as another without a word
MOST_NUMBERS = 200  # more different numbers in a label column are rather a quantity than classes


@dataclass(frozen=True, eq=False)
class Targets:
    """What is to be predicted.

    Attributes:
        y: in the task's stored form.
        names: of classes, targets or labels.
        task: what is learnt.
        strata, stratum: what rows are held out evenly over where there are no clients: names, and whose each row is.
        decimals, affixes: how the numbers of each target are written
            (:class:`~commonground.data.tables.kinds.Reading`).
    """

    y: Array
    names: tuple[str, ...]
    task: Task
    strata: list[str]
    stratum: npt.NDArray[np.int64]
    decimals: tuple[str, ...] = ()
    affixes: tuple[str, ...] = ()

    @property
    def readings(self) -> dict[str, Reading]:
        """How the numbers of each target are written, by name; none of classes."""
        written = zip(self.names, self.decimals, self.affixes, strict=False)
        return {name: Reading("number", decimal, affix=affix) for name, decimal, affix in written}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about units that the numbers of targets have beside them."""
        units = zip(self.names, self.affixes, strict=False)
        return tuple(f"{name}: numbers with {quoted(affix)}, read as numbers" for name, affix in units if affix)

    def strange(self, training: npt.NDArray[np.bool_], tests: npt.NDArray[np.bool_], *, known: bool = False) -> str:
        """What is odd about classes: test rows of those that no training row has, two that are spelt differently and
        alike in all else; or about several numbers, of which one is much larger. Empty if there is nothing.

        Args:
            training, tests: which rows are training and test rows [N].
            known: whether a run knows the targets from rows of its own.
        """
        if isinstance(self.task, Regression):
            return "" if known else self._unequal(training)
        if not isinstance(self.task, Classification):
            return ""
        found = []
        if alike := spelt_twice(self.names):
            one, other = map(quoted, alike)
            found.append(f"{one} and {other} are two classes; if they are one, spell them alike")
        unknown = ~np.isin(self.y, self.y[training]) & tests
        if unknown.any() and not known:
            names = ", ".join(quoted(self.names[i]) for i in np.unique(self.y[unknown])[:3])
            found.append(
                f"{unknown.sum():,} test rows are of classes that no training row has ({names}): they count as wrong"
            )
        return "; ".join(found)

    def _unequal(self, training: npt.NDArray[np.bool_]) -> str:
        """Whether errors in one target's units drown those in another's."""
        y = self.y[training].astype(np.float64).reshape(int(training.sum()), -1)
        spread = y.std(0) if training.any() else np.zeros(1)
        most, least = int(spread.argmax()), int(spread.argmin())
        if not 0 < spread[least] * UNEQUAL < spread[most]:
            return ""
        return (
            f"{quoted(self.names[most])} varies {spread[most] / spread[least]:,.0f} times as much as "
            f"{quoted(self.names[least])}; RMSE, MSE and MAE are means over targets in their own units, and tell "
            "little of the latter: --rank-by r2 weighs all alike"
        )


def read_targets(
    raw: RawTable,
    labels: Sequence[str],
    task: str | None,
    names: Sequence[str] = (),
    *,
    said: Mapping[str, Reading] | None = None,
) -> Targets:
    """The target columns.

    Args:
        raw: the table.
        labels: the columns; one for a classification.
        task: by name; by default classification, or several labels where there are several columns.
        names: classes in their order, if they are known and hold all of the column's.
        said: how numbers are written, by column, where the user or a run says so.

    Raises:
        ConfigError: a table has no such task.
        DataError: a cell is missing or does not fit, or a column of many numbers would become classes unasked.
    """
    chosen = make_task(task or ("classification" if len(labels) == 1 else "multilabel"))
    if isinstance(chosen, Regression | MultiLabel):
        columns = [_numbers(raw, label, said) for label in labels]
        numbers = np.stack([values for values, _ in columns], axis=1)
        if not any(too_fine(values) for values, _ in columns):
            numbers = numbers.astype(np.float32)
        everyone, ways = np.zeros(raw.rows, dtype=np.int64), [reading for _, reading in columns]
        decimals, affixes = tuple(way.decimal for way in ways), tuple(way.affix or "" for way in ways)
        return Targets(chosen.targets(numbers, labels[0]), tuple(labels), chosen, ["any"], everyone, decimals, affixes)
    if not isinstance(chosen, Classification):
        raise ConfigError(f"a table is for classification, regression or multilabel, not for {chosen.name}")
    if len(labels) > 1:
        raise ConfigError(f"a classification has one label column, and {len(labels)} are named; take --task multilabel")
    cells = full_words(raw, labels[0], "; --missing-target drop leaves such rows out")
    found = sorted_names(np.array(cells.words, dtype=np.str_))
    if task is None and is_quantity(words_of(raw.columns[labels[0]]), raw.rows):  # whatever says that one is missing
        raise DataError(
            f"{raw.path}: the column {quoted(labels[0])} holds {len(found):,} different numbers; say --task regression "
            "to predict a number, or --task classification to take each of them as a class"
        )
    places = cells.places(names)
    classes = tuple(names) if min(places) >= 0 else found
    y = np.array(places if classes == tuple(names) else cells.places(found), dtype=np.int64)[cells.codes]
    return Targets(y, classes, chosen, cells.words, cells.codes)


def lacks_target(raw: RawTable, labels: Sequence[str], task: str | None) -> npt.NDArray[np.bool_]:
    """Which rows have no value in one of the target columns [N]: an empty cell, or where numbers are learnt one that
    says that there is none (``NA``).
    """
    chosen = make_task(task or ("classification" if len(labels) == 1 else "multilabel"))
    numbers = isinstance(chosen, Regression | MultiLabel)
    lacking = np.zeros(raw.rows, dtype=np.bool_)
    for label in labels:
        lacking |= words_of(raw.columns[label], keep=not numbers).codes < 0
    return lacking


def is_quantity(cells: Cells, rows: int) -> bool:
    """Whether a column's values are rather measured than named: many numbers, or fractions, in any notation."""
    numbers = bare(cells, common_affix(cells))
    for decimal in ("point", "comma", "thousands"):
        values = numbers.numbers(decimal)
        if not np.isnan(values).any():
            finite = values[np.isfinite(values)]
            fractions = bool((finite != np.round(finite)).any())
            return len(values) > MOST_NUMBERS or (fractions and len(values) > 0.2 * rows)
    return False


def full_words(raw: RawTable, column: str, hint: str = "") -> Cells:
    """A column's words, none of which may be missing.

    Args:
        raw: the table.
        column: its name.
        hint: what to do about empty cells, for the message.

    Raises:
        DataError: a cell is empty (line and column named), or holds a NUL.
    """
    cells = words_of(raw.columns[column], keep=True)
    empty = cells.codes < 0
    if empty.any():
        more = f" ({empty.sum():,} cells of the column are)" if empty.sum() > 1 else ""
        place = raw.where(int(np.argmax(empty)))
        raise DataError(f"{raw.path}, {place}, column {quoted(column)}: the cell is empty{more}{hint}")
    if any("\0" in word for word in cells.words):
        raise DataError(f"{raw.path}: the column {quoted(column)} holds a cell with a NUL character, which is no text")
    return cells


def as_run_read(
    raw: RawTable, targets: Sequence[str], decimals: Sequence[str], affixes: Sequence[str] = ()
) -> dict[str, Reading]:
    """How a run's numeric targets are read in another table: numbers as they were written, or words for truths.

    Args:
        raw: the table, which has the columns.
        targets: their names.
        decimals: how each one's numbers were written; none where classes are learnt.
        affixes: the unit of each one's numbers; none in runs of earlier versions.
    """
    found = {}
    for name, decimal, affix in zip(targets, decimals, affixes or [""] * len(decimals), strict=False):
        words = words_of(raw.columns[name]).words
        truths = bool(words) and all(word.lower() in TRUTHS for word in words)
        found[name] = Reading("boolean") if truths else Reading("number", decimal, affix=affix)
    return found


def _numbers(raw: RawTable, column: str, said: Mapping[str, Reading] | None) -> tuple[npt.NDArray[np.float64], Reading]:
    """A column of numbers, none of which may be missing, and how they are written."""
    read = column_of(raw, column, said)
    if read.reading.kind not in ("number", "boolean"):
        raise DataError(f"{raw.path}: {quoted(column)} holds no numbers; a target of this task must be numeric")
    assert read.numbers is not None
    for row in np.flatnonzero(np.isnan(read.numbers))[:1]:
        raise DataError(
            f"{raw.path}, {raw.where(int(row))}, column {quoted(column)}: the value is missing; a number is expected "
            "(--missing-target drop leaves such rows out)"
        )
    return read.numbers, read.reading
