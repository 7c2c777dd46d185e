"""Whether folders that a command is given are what they should be, told before anything heavy is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from commonground.errors import RunError

__all__ = ["check_folder", "check_run"]


def check_run(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in which no run has begun.

    Raises:
        RunError: there is none.
    """
    if not (Path(folder) / "config.toml").is_file():
        raise RunError(f"'{folder}' holds no run (it has no config.toml)")


def check_folder(path: Path) -> None:
    """Refuse a path for results that cannot become a folder.

    Raises:
        RunError: it is a file.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"'{path}' is a file; --out needs a folder")
