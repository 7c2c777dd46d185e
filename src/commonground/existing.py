"""Whether a run is where one is looked for, told before anything is loaded that could read it."""

from __future__ import annotations

import os
from pathlib import Path

from commonground.errors import RunError

__all__ = ["check_run"]


def check_run(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in which no run has begun.

    Raises:
        RunError: there is none.
    """
    if not (Path(folder) / "config.toml").is_file():
        raise RunError(f"'{folder}' holds no run (it has no config.toml)")
