"""``commonground inspect`` and ``commonground example``: a look at a table, and a table to try."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from commonground.counted import counted
from commonground.errors import ConfigError, DataError

if TYPE_CHECKING:
    from commonground.data.tables.inspect import Inspection

__all__ = ["example", "inspect"]


@click.command(
    short_help="What a table holds, and the command to train on it.",
    epilog="Example: commonground inspect customers.csv --client-column customer --target renewed",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--client-column", help="whose a row is  [default: what the names suggest]")
@click.option("--target", "--label", help="what is to be predicted  [default: what the names suggest, else the last]")
@click.option("--separator", help="between cells  [default: found]")
@click.option("--encoding", help="of a text file  [default: found]")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def inspect(
    file: Path,
    client_column: str | None,
    target: str | None,
    separator: str | None,
    encoding: str | None,
    as_json: bool,
) -> None:
    """Show the columns of a table FILE, what is missing or suspicious in them, its clients, and the command to run.

    Suspicious are columns that name or number the rows, are always the same, or determine the target alone, as one does
    that is known only afterwards.
    """
    from commonground.data.sources.image_folders import is_image_folder
    from commonground.data.tables.inspect import inspect_table
    from commonground.data.tables.read import is_table
    from commonground.quoting import escaped
    from commonground.terminal import standard_output

    if not is_table(str(file)) and is_image_folder(file):
        raise DataError(f"'{file}' is a folder of pictures, of which there are no columns; `train --data` reads it")
    found = inspect_table(file, client_column=client_column, target=target, separator=separator, encoding=encoding)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        return
    console = standard_output()
    read = f" ({'; '.join(found.notes)})" if found.notes else ""
    head = f"{file.name}: {counted(found.rows, 'row')}, {counted(len(found.columns), 'column')}{read}"
    console.print(head, markup=False, highlight=False)
    console.print(_columns(found))
    for line in _sentences(found):
        console.print(escaped(line, 2000), markup=False, highlight=False, soft_wrap=True)


def _columns(found: Inspection) -> Table:
    from rich.markup import escape

    from commonground.quoting import escaped

    table = Table("column", "holds", "missing", "different", "values", "suspicious")
    for column in found.columns:
        roles = {found.split: " (test rows)", found.client_column: " (client)", found.target: " (target)"}
        role = roles.get(column.name, "")
        texts = (escaped(column.name, 40), column.kind + role, f"{column.missing:,}", f"{column.distinct:,}",
                 escaped(column.example, 40), escaped(column.suspicious))  # fmt: skip
        table.add_row(*map(escape, texts))
    return table


def _sentences(found: Inspection) -> list[str]:
    lines = ["clients: no column's name is that of a client; say --client-column NAME"]
    if found.client_column is not None:
        s = found.sizes
        lines = [
            f"clients: {found.clients:,} by '{found.client_column}', {s['min']:,} to {s['max']:,} rows each "
            f"(median {s['median']:g}); {s['one']:,} with one row, {s['few']:,} with fewer than 10"
        ]
    if found.target is not None:
        lines.append(f"target: '{found.target}', {found.task}")
        nothing = "no column can be an input for that target"
        lines.append(f"to train on it: {found.command}" if found.command else nothing)
        if found.text_command not in ("", found.command):
            lines.append(f"to train on its texts alone: {found.text_command}")
    return lines


@click.command(
    short_help="A realistic synthetic table to try things on.",
    epilog="Example: commonground example customers.csv --customers 40 --rows 4000",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rows", type=click.IntRange(1, 10_000_000), default=6000, show_default=True, help="rows in all")
@click.option("--customers", type=click.IntRange(1, 1_000_000), default=60, show_default=True, help="clients")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="seed of every draw")
def example(file: Path, rows: int, customers: int, seed: int) -> None:
    """Write a synthetic table of customers' contracts to FILE (.csv or .parquet).

    Whether a contract is renewed depends on four things that are the same for all customers, though none is a column:
    use times price, an unusual discount, the season, and tickets against the plan. How much each counts, and in which
    direction, every customer has of its own. Dates, categories, an identifier and missing cells are in it as in real
    tables.
    """
    if file.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigError(f"an example is written as .csv or .parquet, not as '{file.name}'")
    if file.exists():
        raise ConfigError(f"'{file}' exists already; name another file")
    from commonground.data.tables.example import CLIENT_COLUMN, TARGET, example_table

    frame = example_table(rows, customers, seed)
    if file.suffix.lower() == ".csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file, index=False)
    name, out = shlex.quote(str(file)), shlex.quote(f"runs/{file.stem}")
    train = f"--data {name} --client-column {CLIENT_COLUMN} --target {TARGET} --rounds 50"
    print(f"{file}: {rows:,} contracts of {customers:,} customers, made by rule with seed {seed} (see --help)")
    print(f"look at it:     commonground inspect {name}")
    print(f"train on it:    commonground train fedrep {train} --out {out}")
    print(f"compare on it:  commonground compare fedrep fedavg {train} --out {out}-compared")
