"""Where data files are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["data_directory"]


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder data files are read from and downloaded to.

    Args:
        given: the user's own choice; without it the environment variable ``COMMONGROUND_DATA``, without that the
            user's cache folder.
    """
    return Path(
        given or os.environ.get("COMMONGROUND_DATA") or platformdirs.user_cache_dir("commonground")
    ).expanduser()
