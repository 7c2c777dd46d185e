"""What a server makes of what clients tell of their tables: how all are read, and what their columns become.

What a column holds is the same for all; how its numbers or dates are written each client's file says for itself.

Categories, classes, means and deviations are those of all clients' training rows together. A missing number is filled
with their mean, since a median cannot be found from sums, and lowest and highest values are not asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from commonground.data.names import sorted_names
from commonground.data.tables.encode import MOST_CATEGORIES
from commonground.data.tables.features import WHY_NOT
from commonground.data.tables.kinds import WRITTEN, Reading, kind_of
from commonground.data.tables.spelling import one_spelling, spelt_like
from commonground.data.tables.told import (
    Agreed,
    Columns,
    ColumnStatistics,
    ColumnTold,
    Feature,
    Statistics,
    StatisticsRequest,
)
from commonground.errors import DataError
from commonground.name_lists import option
from commonground.quoting import quoted
from commonground.single_precision import rounding_shows

__all__ = ["agreed_columns", "agreed_readings", "check_statistics", "said_of_classes", "too_many"]

MOST_SAID = 5  # sentences of an error, and classes of a note

_NOTATION = {"point": "1234.5", "comma": "1.234,5", "thousands": "1,234.5"}


def agreed_readings(clients: Sequence[Columns]) -> tuple[tuple[ColumnTold, ...], dict[str, str]]:
    """How all clients are to read their columns, and which columns become no inputs, with why.

    Raises:
        DataError: clients do not agree on columns, kinds, targets or the task, or one may have misread a column that
            another writes otherwise; all of them are named.
    """
    first = clients[0]
    _check_alike(clients)
    wrong: list[str] = []
    asked: list[ColumnTold] = []
    dropped: dict[str, str] = {}
    told = [(client.name, {column.name: column for column in client.columns}) for client in clients]
    for column in first.columns:
        looks = [(client, columns[column.name]) for client, columns in told]
        kinds = {look.kind for _, look in looks}
        for why in ("id", "text", "units"):
            if why in kinds:
                dropped.setdefault(column.name, WHY_NOT[why] + (_units(clients, column.name) if why == "units" else ""))
        if column.name in dropped:
            continue
        if kinds == {"constant"}:
            dropped[column.name] = "is always the same at every client"
            continue
        try:
            asked.append(_reading(looks, {client.name for client in clients if column.name in client.doubtful}))
        except DataError as error:
            wrong.append(str(error))
    try:
        _check_targets(clients)
    except DataError as error:
        wrong.append(str(error))
    _refuse(wrong)
    if not asked:
        raise DataError("the clients' tables have no column that can become an input")
    return tuple(asked), dropped


def _units(clients: Sequence[Columns], column: str) -> str:
    """The units that the numbers of a column have at some client, in parentheses; empty if none has told of them."""
    units = list(dict.fromkeys(unit for client in clients for unit in client.units.get(column, ())))
    shown = ", ".join(quoted(unit, 40) for unit in units[:3])
    return f" ({shown}{', …' if len(units) > 3 else ''})" if units else ""


def _refuse(wrong: Sequence[str], advice: str = "") -> None:
    """Everything at once: each of them would be another run that ends before it begins."""
    if wrong:
        more = len(wrong) - MOST_SAID
        raise DataError("; ".join([*wrong[:MOST_SAID], *([f"{more} more"] if more > 0 else [])]) + advice)


def _check_alike(clients: Sequence[Columns]) -> None:
    """Refuse tables of other targets, tasks or columns."""
    first, found = clients[0], list[str]()
    for what, said in (("the targets", "targets"), ("the task", "task")):
        for other in clients[1:]:
            one, two = getattr(first, said), getattr(other, said)
            if one != two:
                both = f"the clients {quoted(first.name)} and {quoted(other.name)} do not agree on {what}"
                found.append(f"{both}: {one!r} and {two!r} (--target and --task of each client)")
    _refuse(found)
    known = {client.name: {column.name for column in client.columns} for client in clients}
    for name in dict.fromkeys(column.name for client in clients for column in client.columns):
        lacking = [client for client, columns in known.items() if name not in columns]
        if lacking:
            having = [client for client in known if client not in lacking]
            found.append(f"{_called(lacking)} no column {quoted(name)}, and {_called(having, 'has', 'have')} it")
    _refuse(found, "; start those who have what others have not with --drop, if the others' tables are the right ones")


def _called(names: Sequence[str], one: str = "offers", several: str = "offer") -> str:
    """Clients by name, a few of many, with what they do."""
    if len(names) == 1:
        return f"client {quoted(names[0])} {one}"
    *some, last = map(quoted, names) if len(names) <= 3 else (*map(quoted, names[:2]), f"{len(names) - 2:,} more")
    return f"the clients {', '.join(some)} and {last} {several}"


def _check_targets(clients: Sequence[Columns]) -> None:
    """Numbers to be predicted may be written in several ways, if nobody may have misread them."""
    for place, name in enumerate(clients[0].targets):
        written = [(c.name, Reading("number", c.target_decimals[place])) for c in clients if c.target_decimals]
        _check_written(name, written, {client.name for client in clients if name in client.doubtful})
        _check_units(name, {c.name: c.target_affixes[place] for c in clients if c.target_affixes})


def _reading(looks: Sequence[tuple[str, ColumnTold]], doubtful: Collection[str]) -> ColumnTold:
    """The one reading of a column that is a feature to some client; of how it is written, the most frequent way."""
    telling = [(name, look) for name, look in looks if look.kind != "constant"]
    if {look.kind for _, look in telling} == {"boolean", "category"}:
        return next(look for _, look in telling if look.kind == "category")
    name, look = telling[0]
    for other, seen in telling[1:]:
        if seen.kind != look.kind:
            raise DataError(
                f"the clients {quoted(name)} and {quoted(other)} do not agree on the column {quoted(look.name)}: it is "
                f"{look.kind} and {seen.kind} there; say {option('--kinds', f'{look.name}=KIND')} at one of them if "
                "its file can be read so, or write the column alike in both"
            )
    if look.kind in WRITTEN:
        written = [(name, Reading(look.kind, look.decimal, look.order)) for name, look in telling]
        _check_written(look.name, written, doubtful)
        _check_constants(
            look.name, written, [name for name, one in looks if one.kind == "constant" and name in doubtful]
        )
    _check_units(look.name, {name: look.affix for name, look in telling})
    _check_clocks(look.name, {name: look.clocks for name, look in telling if look.clocks is not None})
    alike: dict[str, bool | None] = {"truths": False, "clocks": None}
    (most, _), *_ = Counter(look.model_copy(update=alike) for _, look in telling).most_common(1)
    truths, clocks = (any(getattr(look, name) for _, look in telling) for name in ("truths", "clocks"))
    return most.model_copy(update={"truths": truths, "clocks": clocks if look.kind == "number" else None})


def _check_units(column: str, units: Mapping[str, str]) -> None:
    """Refuse numbers of several units.

    Args:
        column: its name.
        units: of its numbers, by the clients' names; empty for none.
    """
    shown = {client: quoted(unit) if unit else "no unit" for client, unit in units.items()}
    _check_numbers(column, "their unit", shown)


def _check_clocks(column: str, clocks: Mapping[str, bool]) -> None:
    """Refuse times beside plain numbers.

    Args:
        column: its name.
        clocks: whether its numbers are times, by the names of the clients that say so.
    """
    shown = {client: "times" if times else "numbers" for client, times in clocks.items()}
    _check_numbers(column, "whether they are times (13:27)", shown)


def _check_numbers(column: str, what: str, shown: Mapping[str, str]) -> None:
    """Refuse a column of numbers of which two clients say something different.

    Args:
        column: its name.
        what: they say it of.
        shown: what each says, by the clients' names.
    """
    (first, said), *others = shown.items() or [("", "")]
    for other, says in others:
        if says != said:
            raise DataError(
                f"the clients {quoted(first)} and {quoted(other)} do not agree on the numbers of the column "
                f"{quoted(column)}, {what}: {said} and {says} there; write the column alike in both"
            )


def _check_written(column: str, written: Sequence[tuple[str, Reading]], doubtful: Collection[str]) -> None:
    """Refuse a column that one client writes otherwise than another whose cells may be meant so too."""
    for name, reading in written:
        for other, seen in written if name in doubtful else ():
            if seen != reading:
                raise DataError(
                    f"client {quoted(name)} takes its column {quoted(column)} to be written as {_shown(reading)}, "
                    f"which its cells leave open, and client {quoted(other)} writes {_shown(seen)}; start "
                    f"{quoted(name)} with {option('--kinds', f'{column}={kind_of(reading)}')} if that is so, or with "
                    f"{option('--kinds', f'{column}={kind_of(seen)}')}"
                )


def _check_constants(column: str, written: Sequence[tuple[str, Reading]], constants: Sequence[str]) -> None:
    """Refuse a column in which one client has a single date, where others write theirs in several ways."""
    ways = {reading: name for name, reading in written}
    if constants and len(ways) > 1:
        (one, first), (other, second), *_ = ways.items()
        raise DataError(
            f"client {quoted(constants[0])} has one date in its column {quoted(column)}, whose cells leave open how it "
            f"is written, and clients {quoted(first)} and {quoted(second)} write {_shown(one)} and {_shown(other)}; "
            f"start {quoted(constants[0])} with {option('--kinds', f'{column}={kind_of(one)}')} or with "
            f"{option('--kinds', f'{column}={kind_of(other)}')}"
        )


def _shown(reading: Reading) -> str:
    return reading.order or _NOTATION[reading.decimal]


def check_statistics(told: Statistics, asked: StatisticsRequest, train: int) -> None:
    """Refuse what cannot be.

    Args:
        told: by a client.
        asked: of it.
        train: its training rows.

    Raises:
        DataError: says of which column.
    """
    if len(told.columns) != len(asked.columns):
        raise DataError(f"it told of {len(told.columns)} columns and was asked for {len(asked.columns)}")
    for column, one in zip(asked.columns, told.columns, strict=True):
        words = column.kind == "category"
        counted = column.name in asked.counted
        odd = (
            one.present + one.missing > train
            or (bool(one.words) and not words)
            or (bool(one.words) and counted != bool(one.rows))
            or sum(one.rows) > one.present
            or (column.kind == "boolean" and not 0 <= one.mean <= 1)
            or (one.present == 0 and (one.mean, one.squares) != (0.0, 0.0))
        )
        if odd:
            raise DataError(f"what it told of the column {quoted(column.name)} cannot be")


def too_many(asked: Sequence[ColumnTold], told: Sequence[Statistics]) -> tuple[str, ...]:
    """Columns with more categories than can have an input each: which are the most frequent has to be asked."""
    columns = zip(asked, *(one.columns for one in told), strict=True)
    return tuple(
        column.name for column, *parts in columns if len({w for part in parts for w in part.words}) > MOST_CATEGORIES
    )


def agreed_columns(
    clients: Sequence[Columns],
    asked: Sequence[ColumnTold],
    dropped: Mapping[str, str],
    told: Sequence[Statistics],
) -> Agreed:
    """What all clients' columns become.

    Args:
        clients: what they said first.
        asked, dropped: of :func:`agreed_readings`.
        told: by each client.

    Raises:
        DataError: no column can become an input.
    """
    features, left, scales = [], dict(dropped), {}
    for column, *parts in zip(asked, *(one.columns for one in told), strict=True):
        if column.kind == "category":
            words, rare = _categories(parts)
            if not words:
                left[column.name] = "has no category that may be told"
                continue
            missing = any(part.missing for part in parts)
            features.append(_feature(column, categories=words, apart=spelt_like(rare, words), missing=missing))
            continue
        if not any(part.present for part in parts):
            left[column.name] = "has no value that may be told"
            continue
        fill, mean, std = _moments(parts)
        fill = float(fill > 0.5) if column.kind == "boolean" else fill
        times, missing = any(part.times for part in parts), any(part.missing for part in parts)
        offset = fill if column.kind != "boolean" and rounding_shows(fill, std) else 0.0
        features.append(_feature(column, fill=fill, times=times, missing=missing, offset=offset))
        scales[column.name] = (mean - offset, std)
    if not features:
        raise DataError("the clients' tables have no column that can become an input")
    return _agreed(clients, features, left, scales)


def said_of_classes(clients: Sequence[Columns], agreed: Agreed) -> str:
    """What is worth a look of the classes that clients have: spellings that are taken for one, and classes that one of
    several clients has alone, as a wrong spelling would be; empty if there is nothing of the kind.
    """
    if agreed.task != "classification" or len(clients) < 2:
        return ""
    spelling = one_spelling([client.class_names for client in clients])
    of_class: dict[str, list[str]] = {name: [] for name in agreed.class_names}
    for client in clients:
        for name in {spelling[word] for word in client.class_names}:
            of_class[name].append(client.name)
    told = [f"{quoted(word)} is {quoted(taken)}" for word, taken in sorted(spelling.items()) if word != taken]
    told += [f"{quoted(name)} is of client {quoted(of[0])} alone" for name, of in of_class.items() if len(of) == 1]
    more = f", and {len(told) - MOST_SAID:,} more" if len(told) > MOST_SAID else ""
    return f"the clients' classes: {', '.join(told[:MOST_SAID])}{more}" if told else ""


def _agreed(
    clients: Sequence[Columns],
    features: Sequence[Feature],
    dropped: Mapping[str, str],
    scales: Mapping[str, tuple[float, float]],
) -> Agreed:
    first = clients[0]
    classes = first.class_names
    if first.task == "classification":
        spelling = one_spelling([client.class_names for client in clients])
        classes = sorted_names(np.array(list(spelling.values()), dtype=np.str_))
    ways = zip(*(client.target_decimals for client in clients if client.target_decimals), strict=True)
    written = tuple(Counter(way).most_common(1)[0][0] for way in ways)
    plain = Agreed.model_construct(
        features=tuple(features), dropped=dict(dropped), targets=first.targets, task=first.task, class_names=classes,
        target_decimals=written, target_affixes=first.target_affixes, mean=(), std=(),
    )  # fmt: skip
    scaled = [scales[column.name] for column in features if column.kind in ("number", "date")]
    others = len(plain.schema_of_all().inputs) - len(scaled)
    mean, std = [m for m, _ in scaled] + [0.0] * others, [s for _, s in scaled] + [1.0] * others
    return Agreed.model_validate({**vars(plain), "mean": tuple(mean), "std": tuple(std)})


def _feature(column: ColumnTold, **more: object) -> Feature:
    return Feature.model_validate({**vars(column), **more})


def _categories(parts: Sequence[ColumnStatistics]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The most frequent; where nothing was counted, these are all. And the others."""
    rows: Counter[str] = Counter()
    spelling = one_spelling([part.words for part in parts])
    for part in parts:
        for word, n in zip(part.words, part.rows or [1] * len(part.words), strict=True):
            rows[spelling[word]] += n
    all_of_them = [word for word, _ in sorted(rows.items(), key=lambda item: (-item[1], item[0]))]
    often, rare = all_of_them[:MOST_CATEGORIES], all_of_them[MOST_CATEGORIES:]
    return sorted_names(np.array(often, dtype=np.str_)) if often else (), tuple(rare)


def _moments(parts: Sequence[ColumnStatistics]) -> tuple[float, float, float]:
    """Mean of the values there are, and mean and deviation of all rows, those without a value filled with it."""
    there = [part for part in parts if part.present]
    rows = sum(part.present for part in there)
    fill = math.fsum(part.present * part.mean for part in there) / rows
    lacking, filled = sum(part.missing for part in parts), float(np.float32(fill))
    if rounding_shows(fill, math.sqrt(_squares(there, fill) / rows)):
        filled = fill  # as its difference to an offset becomes an input, and not it
    mean = (rows * fill + lacking * filled) / (rows + lacking)
    squares = _squares(there, mean)
    std = math.sqrt((squares + lacking * (filled - mean) ** 2) / (rows + lacking))
    return fill, mean, std if std > 0 else 1.0


def _squares(parts: Sequence[ColumnStatistics], mean: float) -> float:
    """Σ(x − mean)² over the values there are."""
    return math.fsum(part.squares + part.present * (part.mean - mean) ** 2 for part in parts)
