"""Whether folders that a command is given are what they should be, told before anything heavy is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from commonground.errors import ConfigError, RunError

__all__ = ["as_folder", "check_folder", "check_run"]


def as_folder(path: object, name: str = "out") -> Path:
    """The path of a folder that somebody has named in Python.

    Args:
        path: what was given.
        name: of the argument.

    Raises:
        ConfigError: it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} must be the path of a folder, not {path!r}")
    return Path(path)


def check_run(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in which no run has begun.

    Raises:
        RunError: there is none.
    """
    if not (Path(folder) / "config.toml").is_file():
        raise RunError(f"'{folder}' holds no run (it has no config.toml)")


def check_folder(path: Path, option: str = "--out") -> None:
    """Refuse a path for files that cannot become a folder.

    Args:
        path: as the user gave it.
        option: which gave it.

    Raises:
        RunError: it is a file, or in one.
    """
    there = next((part for part in (path, *path.parents) if part.exists()), None)
    if there is not None and not there.is_dir():
        within = "" if there == path else f", and '{path}' would be in it"
        raise RunError(f"'{there}' is a file{within}; {option} needs a folder")
