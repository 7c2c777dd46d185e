"""Whether verdicts survive other seeds: one experiment from several first seeds, claim by claim.

``other-seeds.csv`` in an experiment's folder has a line per claim and a column per first seed, with the verdict from
there. A claim whose verdict changes is open, whatever one of them says.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.report.read import read_json
from commonground.table import Table

__all__ = ["FILE", "read_other_seeds", "verdict", "write_other_seeds"]

FILE = "other-seeds.csv"

_Claim = tuple[str, int]
_MEASURED = re.compile(r"after \d+ rounds|(not )?contradicted in (\d+ of )?\d+ seeds|\(shown: [^)]*\)")


def _names(texts: Sequence[str]) -> list[_Claim]:
    """What each claim is from every first seed: its text without measured numbers, and how many before it have that."""
    bare = [_MEASURED.sub("…", text) for text in texts]
    return [(text, bare[:place].count(text)) for place, text in enumerate(bare)]


def verdict(holds: bool | None) -> str:
    """A claim's ``holds`` as a word."""
    return {True: "holds", False: "does not hold", None: "open"}[holds]


def write_other_seeds(folder: Path, others: Sequence[Path]) -> list[str]:
    """Compare an experiment's verdicts with those from other first seeds, and keep them beside it.

    Args:
        folder: of the experiment.
        others: of the same experiment with the same settings, each from another first seed.

    Returns:
        The claims whose verdicts change.

    Raises:
        RunError: a folder holds no experiment or another one, or two share seeds.
    """
    about = read_json(folder / "reproduction.json")
    judged: dict[int, dict[_Claim, str]] = {}
    ends: dict[int, int] = {}
    for place in (folder, *others):
        other = read_json(place / "reproduction.json")
        for key in ("experiment", "scale", "seeds", "set"):
            if other.get(key) != about.get(key):
                raise RunError(
                    f"'{place}' has {key} {other.get(key)!r} and '{folder}' {about.get(key)!r}; verdicts are compared "
                    "between first seeds alone"
                )
        first, count = int(other["seed"]), max((claim["seeds"] for claim in other["claims"]), default=1)
        if first in judged:
            raise RunError(f"'{place}' begins at seed {first}, as another folder does")
        for begin, end in ends.items():
            if begin < first + count and first < end:
                raise RunError(
                    f"'{place}' has the seeds {first} to {first + count - 1} and shares some with {begin} to {end - 1} "
                    "of another folder; verdicts are compared between seeds that are others"
                )
        ends[first] = first + count
        names = _names([claim["claim"] for claim in other["claims"]])
        judged[first] = {name: verdict(claim["holds"]) for name, claim in zip(names, other["claims"], strict=True)}
    texts = [claim["claim"] for claim in about["claims"]]
    rows: list[dict[str, Any]] = [
        {"claim": text, **{f"from {seed}": found.get(name, "") for seed, found in judged.items()}}
        for text, name in zip(texts, _names(texts), strict=True)
    ]
    write_atomically(folder / FILE, Table.of("other seeds", rows).to_csv())
    return [row["claim"] for row in rows if _wavers(row)]


def read_other_seeds(folder: Path) -> dict[str, str]:
    """What was found from each first seed, as a text, for every claim whose verdict changes.

    Raises:
        RunError: the file is damaged.
    """
    try:
        text = (folder / FILE).read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"'{folder / FILE}' is not readable: {error}") from None
    rows = list(csv.DictReader(io.StringIO(text)))
    if any("claim" not in row or None in row for row in rows):
        raise RunError(f"'{folder / FILE}' is damaged: a line has no claim, or too many cells")
    return {row["claim"]: _told(row) for row in rows if _wavers(row)}


def _verdicts(row: Mapping[str, str]) -> dict[str, str]:
    """By the column's name; claims that other seeds do not make are no verdicts."""
    return {name: value for name, value in row.items() if name != "claim" and value}


def _wavers(row: Mapping[str, str]) -> bool:
    return len(set(_verdicts(row).values())) > 1


def _told(row: Mapping[str, str]) -> str:
    """For example ``holds from 0 and 1000, open from 2000``."""
    by_verdict: dict[str, list[str]] = {}
    for name, value in _verdicts(row).items():
        by_verdict.setdefault(value, []).append(name.removeprefix("from "))
    return ", ".join(f"{value} from {' and '.join(seeds)}" for value, seeds in by_verdict.items())
