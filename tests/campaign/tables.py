"""Random tables of a user's own, valid ones and hostile ones, trained on by the command.

A valid one ends in a run whose clients have the names of the table; a hostile one in that or in one sentence. What is
printed and written shows no character that acts instead of being seen, and no cell that a spreadsheet would compute.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np

from commonground import load_data, load_run
from tests.campaign.common import Tally, call, drawn, tries

__all__ = ["campaign", "hostile", "valid"]

NAMES = [
    *("ward", "Ärzte", "a b", "x,y", 'say "hi"', "日本", "a" * 150, "0", "1.0", "None!", "'s-Hertogenbosch"),
    *("=HYPERLINK(1)", "+49", "-5", "@SUM(A1)", "'=1"),
    *("two\nlines", "tab\tbed", "\u202eevil", "\x1b[31mred", "zero\u200bwidth"),
]
RUN = ["train", "local", "--data", "t.csv", "--partition", "column:who", "--rounds", "1", "--model", "linear",
       "--engine", "serial", "--out", "run"]  # fmt: skip
SECONDS = 60.0


def valid(rng: np.random.Generator) -> tuple[list[list[str]], list[str]]:
    """Header and rows of numbers, a label of words and a client column; and the clients' names."""
    columns, clients = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    names = [str(name) for name in rng.choice(NAMES, clients, replace=False)]
    header = [*(f"f{i}" for i in range(columns)), "label", "who"]
    rows = []
    for name in names:
        for row in range(int(rng.integers(4, 12))):
            cells = [f"{v:.4g}" for v in rng.normal(size=columns) * 10.0 ** int(rng.integers(-3, 4))]
            rows.append([*cells, "yes" if row % 2 else "no", name])
    order = rng.permutation(len(rows))
    return [header, *(rows[i] for i in order)], names


Lie = Callable[[np.random.Generator, list[list[str]], bytes], bytes]


def hostile(kind: str, rng: np.random.Generator, table: list[list[str]]) -> bytes:
    """A table that is none, or hardly one."""
    if kind in CELLS:
        row, column = int(rng.integers(len(table))), int(rng.integers(len(table[0])))
        table = [list(line) for line in table]
        table[row][column] = CELLS[kind]
    content = written(table)
    if kind in BYTES:
        place = int(rng.integers(len(content)))
        return content[:place] + BYTES[kind] + content[place:]
    if kind == "cut":
        return content[: int(rng.integers(len(content)))]
    if kind == "ragged":
        lines = content.split(b"\n")
        place = int(rng.integers(len(lines)))
        return b"\n".join([*lines[:place], lines[place] + b",1,2", *lines[place + 1 :]])
    if kind == "no header":
        return content.split(b"\n", 1)[1]
    if kind == "one class":
        return written([table[0], *([*row[:-2], "yes", row[-1]] for row in table[1:])])
    if kind == "twice the same column":
        return written([[*row, row[0]] for row in table])
    return {"empty": b"", "nothing but a header": written(table[:1])}.get(kind, content)


CELLS = {
    **{"empty cell": "", "infinity": "inf", "nan": "nan", "huge": "1e300", "words": "none of it", "formula": "=1+1"},
    **{"long": "9" * 140_000, "nul": "\0", "bidi": "\u202e", "escape": "\x1b[2J", "digits of others": "٣"},
}
BYTES = {
    **{"bytes": b"\xff\xfe", "quote": b'"', "line": b"\r", "zero": b"\0", "surrogate": b"\xed\xa0\x80"},
    "bom": b"\xef\xbb\xbf",
}
OTHERS = ["cut", "ragged", "no header", "one class", "twice the same column", "empty", "nothing but a header"]
KINDS = [*CELLS, *BYTES, *OTHERS]


def written(table: list[list[str]], newline: str = "\n") -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator=newline).writerows(table)
    return text.getvalue().encode()


def _shown(folder: Path, names: list[str] | None) -> str:
    """What is wrong with a finished run's files; ``names`` are the clients' if they are known."""
    raw = (folder / "run" / "clients.csv").read_text("utf-8")
    page = (folder / "run" / "report.html").read_text("utf-8")
    cells = [cell for row in csv.reader(io.StringIO(raw)) for cell in row[1:2]]
    plain = re.compile(r"[+-]?\d+(\.\d*)?")  # a number computes nothing
    if any(cell[:1] in ("=", "+", "-", "@", "\t", "\r") and not plain.fullmatch(cell) for cell in cells):
        return "clients.csv holds a formula"
    for what, text in (("clients.csv", raw), ("report.html", page)):
        acting = [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
        if acting:
            return f"{what} holds {acting[0]!r} as it came"
    found = {str(client["name"]) for client in load_run(folder / "run").clients}
    return "" if names is None or found == {name.strip() for name in names} else "the clients have other names"


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """So many tables, every third of them valid."""
    findings: list[str] = []
    tried = 0
    with tempfile.TemporaryDirectory() as temporary:  # once in this process, whose children then have all modules
        (Path(temporary) / "t.csv").write_bytes(written(valid(drawn(seed, 0))[0]))
        load_data(Path(temporary) / "t.csv", partition="column:who")
    for number in tries(count, minutes):
        rng = drawn(seed, number)
        table, names = valid(rng)
        kind = "valid" if number % 3 == 0 else str(rng.choice(KINDS))
        content = written(table, str(rng.choice(["\n", "\r\n"]))) if kind == "valid" else hostile(kind, rng, table)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "t.csv").write_bytes(content)
            outcome = call(RUN, folder, SECONDS)
            fault = outcome.fault()
            if not fault and kind == "valid" and outcome.code:
                fault = f"refused: {outcome.err.strip()}"
            if not fault and outcome.code == 0:
                fault = _shown(folder, names if kind == "valid" else None)
            tried += 1
            if fault:
                findings.append(f"{number}: {kind}: {fault.replace(temporary, '.')!a}")
    return Tally(tried, tried - len(findings), tuple(findings))
