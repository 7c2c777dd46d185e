"""Whether paths that a command is given are what they should be, told before anything is loaded that could read it."""

from __future__ import annotations

import os
from pathlib import Path

from commonground.errors import DataError, RunError

__all__ = ["check_file", "check_folder", "check_run"]

_HUB = "hf:"  # names of data sets elsewhere begin so
_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".jsonl", ".json", ".parquet", ".feather")


def check_run(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in which no run has begun.

    Raises:
        RunError: there is none.
    """
    if not (Path(folder) / "config.toml").is_file():
        raise RunError(f"'{folder}' holds no run (it has no config.toml)")


def check_file(name: str) -> None:
    """Refuse data by a name that can be nothing but a file's where there is no such file.

    Raises:
        DataError: there is none.
    """
    path = Path(name).expanduser()
    if name.endswith(_ENDINGS) and not name.startswith(_HUB) and not path.exists():
        raise DataError(f"there is no file {path}")


def check_folder(path: Path) -> None:
    """Refuse a path for results that cannot become a folder.

    Raises:
        RunError: it is a file.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"'{path}' is a file; --out needs a folder")
